"""Which stage's network a run kept, and the scores of the last stage where that is not the one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepauc.data.task import Task
from deepauc.metrics.partial import Region
from deepauc.reporting.evaluation.findings import Absent, Interval
from deepauc.reporting.evaluation.label import attempt, part_interval
from deepauc.reporting.evaluation.scores_file import read_scores
from deepauc.reporting.evaluation.table import sample_of
from deepauc.training.engine.loop import chosen_device
from deepauc.training.run.bundle import Bundle, load_weights
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.run import Run

FOLDER = "last-stage"


def stage_objectives(record: Mapping[str, Any]) -> list[str]:
    """The objective of each stage, by name."""
    stages = _mapping(record.get("recipe")).get("stages") or []
    return [str(_mapping(_mapping(stage).get("objective")).get("type", "?")) for stage in stages]


def kept_stage(record: Mapping[str, Any]) -> int:
    """The number of the stage whose network is the run's: the guard's choice, or the last."""
    last = max(0, len(stage_objectives(record)) - 1)
    winner = _mapping(_mapping(record.get("results")).get("guard")).get("winner")
    return winner if isinstance(winner, int) and 0 <= winner <= last else last


def trained_region(record: Mapping[str, Any]) -> Region | None:
    """The region of the ROC curve that the kept stage was trained for, where that was a part of it."""
    stages = _mapping(record.get("recipe")).get("stages") or []
    objective = _mapping(_mapping(stages[kept_stage(record)]).get("objective")) if stages else {}
    if objective.get("type") != "PartialAUC":
        return None
    limits = [objective.get(name) for name in ("max_fpr", "min_tpr")]
    if not all(isinstance(limit, float | int) for limit in limits):
        return None
    found = attempt(lambda: Region.asked(*limits))
    return None if isinstance(found, Absent) or found == Region() else found


def copies_of(record: Mapping[str, Any]) -> int:
    """Over how many changed copies of an image the run's validation and test scores are means; 0: as they are."""
    number = _mapping(record.get("recipe")).get("tta")
    return number if isinstance(number, int) and number > 0 else 0


def baseline_stage(record: Mapping[str, Any]) -> int:
    """The number of the first stage that gives scores, the baseline of those after it; stages on views give none."""
    stages = _mapping(record.get("recipe")).get("stages") or []
    views = [_mapping(stage).get("views", 1) for stage in stages]
    return next((number for number, count in enumerate(views) if count == 1), 0)


def score_last_stage(run: Run, task: Task, *, device: str | torch.device | None = None) -> Path | None:
    """`RUN/last-stage/scores.csv` by the last stage's weights, where the guard kept an earlier stage; else None.

    Rows and columns are those of the run's own scores.csv, so that the two can be compared.
    """
    record, own = run.record, RunFolder(run.path)
    last = len(stage_objectives(record)) - 1
    if kept_stage(record) == last or not own.stage_path(last).exists():
        return None
    folder = RunFolder(run.path / FOLDER)
    scores_path = folder.path / "scores.csv"
    if not scores_path.exists():
        target, bundle = chosen_device(device), Bundle.load(run.path)
        model = bundle.network(run.path).to(target)
        load_weights(own.stage_path(last), model)
        folder.path.mkdir(exist_ok=True)
        folder.write_scores(task, bundle.scores(model, task, target))
    return scores_path


def auc_intervals(scores: Path, label_names: Sequence[str]) -> dict[str, dict[str, Interval]]:
    """AUC by part and label of a run's scores.csv, as the report gives it: by patient where patients have several rows.

    A label that has none in a part (one class only) is left out there.
    """
    table = read_scores(scores, other_labels_missing=True)
    found: dict[str, dict[str, Interval]] = {part: {} for part in table.part_names}
    for part, labels in found.items():
        for number, name in enumerate(label_names):
            sample = sample_of(table.part(part), number).labelled()
            auc = attempt(partial(part_interval, sample))
            if isinstance(auc, Interval):
                labels[name] = auc
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
