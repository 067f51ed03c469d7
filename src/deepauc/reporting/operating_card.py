"""The operating points and cautions of a run for what leaves it without the report: model card, bundle, ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepauc.reporting.document.background_sections import leak_texts
from deepauc.reporting.evaluation.findings import LabelEvaluation
from deepauc.reporting.evaluation.run import find_leaks, judged_part, part_note, run_scores
from deepauc.reporting.evaluation.table import evaluate_part
from deepauc.reporting.folds import SINGLE_NETWORKS, THRESHOLDS_OF_FOLDS, verdict
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.own_files import SCORES
from deepauc.training.run.scores import OOF


@dataclass(frozen=True, kw_only=True)
class OperatingCard:
    """labels: judged as in the report, without curves. cautions: all that the report has, each a sentence or more."""

    part: str | None
    labels: tuple[LabelEvaluation, ...]
    cautions: tuple[str, ...]


def operating_card(folder: Path) -> OperatingCard | None:
    """Of a run folder; None of a bundle without its scores."""
    run = RunFolder(folder)
    if not (run.record_path.exists() and (folder / SCORES).is_file()):
        return None
    record = run.record()
    table = run_scores(folder, record)
    part = judged_part(table)
    labels = () if part is None else evaluate_part(table, part, curves=False, probabilities=False)
    several = len(table.label_names) > 1
    cautions = [] if part in ("test", OOF) else [part_note(part)]
    if record.folds is not None:
        cautions += [*verdict(record.folds)[:1], SINGLE_NETWORKS, THRESHOLDS_OF_FOLDS, *record.folds.cautions]
    cautions += leak_texts(find_leaks(table, record))
    for one in labels:
        named = f"{one.name}: " if several else ""
        few = () if one.too_few is None else (f"AUC: {one.too_few}.",)
        cautions += [f"{named}{text}" for text in (*few, *one.cautions)]
    return OperatingCard(part=part, labels=labels, cautions=tuple(cautions))
