"""A model card for Hugging Face from a run's records; every figure stands beside the command that makes it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.intervals import Estimate, auroc_with_limits
from deepauc.names import counted, leak_text
from deepauc.reporting.evaluation.findings import Absent, OperatingRow
from deepauc.reporting.evaluation.sample import sample_of
from deepauc.reporting.folds import SINGLE_NETWORKS, THRESHOLDS_OF_FOLDS, candidate_text, verdict
from deepauc.reporting.operating_card import OperatingCard, operating_card
from deepauc.text_tables import auc_text, markdown_table, percent_text
from deepauc.training.plain import objective_type
from deepauc.training.run.baseline import FOLDER as BASELINE
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.fold_record import FoldsRecord
from deepauc.training.run.folder import code_text
from deepauc.training.run.own_files import BUNDLE, MODEL, SCORES, require_own
from deepauc.training.run.record import DataRecord, RunRecord
from deepauc.training.run.run import LAST_STAGE, Run
from deepauc.training.run.scores import OOF, read_run_scores

NOTICE = (
    "**Not a medical device.** It has not been cleared for any decision about patients. Its figures hold for data like "
    "the table it was judged on; other scanners, clinics and populations can differ."
)
# A backslash before a pipe would itself be escaped by `markdown_table`, and the pipe would end the cell.
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"} | {letter: f"\\{letter}" for letter in "\\`*_[]#~$"}


def model_card(run_dir: str | Path, *, force: bool = False) -> str:
    """Markdown with the front matter that Hugging Face reads.

    force: go on, and say so in the card, where a file is not the one that the run wrote.
    """
    run = Run(Path(run_dir))
    record, bundle = run.record, Bundle.load(run_dir)
    cautions = require_own(run_dir, MODEL, BUNDLE, SCORES, force=force)
    figures, card = _figures(run, record), operating_card(run.path)
    sections = [
        f"# {_text(record.task.name)}: {_text(', '.join(bundle.label_names))}",
        NOTICE,
        *(f"**Caution.** {_text(text)}." for text in cautions),
        "## What it does\n\n" + _purpose(bundle, record),
        "## Results\n\n" + _results(run, record, figures),
        "## Operating points\n\n" + _thresholds(bundle, run, card),
        *(("## Cautions\n\n" + _cautions(card),) if card is not None and card.cautions else ()),
        "## Data\n\n" + _data(run, record),
        "## Training\n\n" + _training(record),
        "## How to use it\n\n" + _usage(bundle),
        "## Where it comes from\n\n" + _provenance(record),
    ]
    return _front_matter(record, figures) + "\n" + "\n\n".join(sections) + "\n"


def _front_matter(record: RunRecord, figures: Sequence[_Figure]) -> str:
    """YAML; strings as JSON, which is YAML too, so that nothing from the data can break out."""
    lines = ["---", "library_name: deepauc", f"pipeline_tag: {_task_type(record)}", "tags:"]
    lines += ["- auc-maximisation", "- imbalanced-classification", "- not-a-medical-device"]
    if figures:
        name = json.dumps(record.task.name)
        lines += ["model-index:", f"- name: {name}", "  results:", "  - task:", f"      type: {_task_type(record)}"]
        lines += ["    dataset:", "      type: table", f"      name: {name}", "    metrics:"]
    for one in figures:
        title = json.dumps(f"AUC, {one.part}, {one.label}")
        lines += ["    - type: auc", f"      name: {title}", f"      value: {one.value:.4f}"]
    return "\n".join([*lines, "---", ""])


def _task_type(record: RunRecord) -> str:
    return "image-classification" if len(record.task.shape) == 3 else "tabular-classification"


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """An AUC on rows that were not trained on, and its interval, absent where a class has a single row or patient.

    by_patient: the interval where some patient has several rows.
    """

    part: str
    label: str
    value: float
    by_row: Estimate[float]
    by_patient: Estimate[float] | None


def _figures(run: Run, record: RunRecord) -> list[_Figure]:
    """Test first, then validation; a label with one class only in a part has none."""
    table = read_run_scores(run.path)
    figures = []
    for part in (name for name in ("test", "validation") if name in table.part_names):
        for number, label in enumerate(record.task.labels):
            sample = sample_of(table.part(part), number).labelled()
            scores, labels, groups = sample.scores, sample.labels, sample.clusters
            if len(np.unique(labels)) < 2:
                continue
            figures.append(
                _Figure(
                    part=part,
                    label=label,
                    value=float(auroc(scores, labels)),
                    by_row=auroc_with_limits(scores, labels),
                    by_patient=None if groups is None else auroc_with_limits(scores, labels, groups=groups),
                )
            )
    return figures


def _purpose(bundle: Bundle, record: RunRecord) -> str:
    shape = " x ".join(map(str, bundle.shape))
    objectives, kept = record.objectives, record.kept_stage
    spec = objective_type(record.stages[kept].objective) if objectives else None
    trained = "by cross-entropy" if getattr(spec, "gives_probabilities", False) else "to maximise its AUC"
    if kept < len(objectives) - 1:
        trained += f" (the {_text(objectives[-1])} stage after it was not better on validation and was not kept)"
    inputs = f"an image of {shape} (height, width, channels)" if bundle.preprocessing.images else f"{shape} numbers"
    return (
        f"It gives {inputs} a score for {_text(', '.join(bundle.label_names))}: higher means more likely "
        f"positive{'' if record.data.positive is None else f' ({_text(record.data.positive)})'}. "
        "Scores are raw and only rank; if there was a validation part, the bundle holds the recalibration that "
        "turns them into probabilities (`deepauc predict --probability`). "
        + (
            f"The network is `{_code(record.network)}`, trained {trained}."
            if record.folds is None
            else f"It is the average of the networks (`{_code(record.network)}`) of {len(record.folds.names)} folds."
        )
    )


def _results(run: Run, record: RunRecord, figures: Sequence[_Figure]) -> str:
    if not figures:
        return (
            "No part was held out, so there is no AUC to report." if record.folds is None else _folds(run, record.folds)
        )
    rows = [
        [
            one.part,
            _text(one.label),
            _interval(one.by_row),
            _interval(one.by_patient),
            f"`{_evaluate(run, one.part)}`",
        ]
        for one in figures
    ]
    caution = ""
    if all(one.part != "test" for one in figures):
        caution = "\n\nThere is no test part: choices may have been made on these rows, so the values may be too good."
    word = record.data.group_word
    table = markdown_table(["part", "label", "AUC [DeLong, 95 %]", f"[by {word}]", "command"], rows)
    if record.folds is not None:
        return f"{_folds(run, record.folds)}\n\nThe average of all networks on the test part:\n\n{table}"
    return f"{table}{_guard(run, record)}{caution}"


def _folds(run: Run, folds: FoldsRecord) -> str:
    """The candidates of cross-validation, and which was kept."""
    assert folds.choice is not None
    rows = [
        [_text(candidate_text(row.candidate)), _text(row.label), _interval(row.auc), "yes" if row.kept else ""]
        for row in folds.choice.board
    ]
    table = markdown_table(["candidate", "label", "mean AUC within folds [95 %]", "kept"], rows)
    said = " ".join(_text(text) for text in verdict(folds))
    return f"{said}\n\n{SINGLE_NETWORKS}\n\n{table}\n\nCommand: `{_evaluate(run, OOF)}`."


def _interval(estimate: Estimate[float] | None) -> str:
    return "-" if estimate is None else auc_text(estimate.value, estimate.low, estimate.high)


def _guard(run: Run, record: RunRecord) -> str:
    """What each stage reached on validation, with the command where its scores are in the folder."""
    guard = record.results.guard
    if guard is None:
        return ""
    names, kept = record.objectives, record.kept_stage
    files = {record.baseline_stage: f"{BASELINE}/scores.csv", len(names) - 1: f"{LAST_STAGE}/scores.csv"} | {
        kept: "scores.csv"
    }
    rows = []
    for number, value in guard.validation_auc.items():
        there = number in files and (run.path / files[number]).exists()
        again = f"`{_evaluate(run, 'validation', files[number])}`" if there else "recorded in run.json"
        rows.append([f"{number + 1}: {_text(names[number])}", f"{value:.3f}", "yes" if number == kept else "", again])
    table = markdown_table(["stage", "validation AUC", "kept", "command"], rows)
    by = "" if guard.chosen_by is None else f", by {_text(guard.chosen_by)},"
    return f"\n\nThe stage that is best on validation{by} is kept:\n\n{table}"


def _thresholds(bundle: Bundle, run: Run, card: OperatingCard | None) -> str:
    """The bundle's thresholds, with what each does on test where there is such a part."""
    if not bundle.thresholds:
        return "None: there was no validation part to take thresholds from."
    judged: dict[tuple[str, str], OperatingRow] = {}
    for label in card.labels if card is not None and card.part in ("test", OOF) else ():
        for points in (label.operating_points, label.sensitivity_points):
            judged |= {} if isinstance(points, Absent) else {(label.name, row.asked): row for row in points}
    rows = [
        [_text(label), _text(name), f"{value:.6g}", *_on_test(judged.get((label, name)))]
        for label, points in bundle.thresholds.items()
        for name, value in points.items()
    ]
    folds = run.record.folds is not None
    where = "on held-out rows" if folds else "on test"
    header = ["label", "reached on held-out rows", "score (log odds) at least"]
    if not folds:
        header = ["label", "reached on validation", "raw score at least"]
    if not judged:
        table = markdown_table(header, [row[:3] for row in rows])
        return f"{table}\n\nThey come from the validation rows of scores.csv; there is no test part to judge them on."
    header += [f"sensitivity {where}, %", f"specificity {where}, %"]
    header += ["positives found, missed", "negatives cleared, false alarms"]
    if folds:
        return f"{markdown_table(header, rows)}\n\n{THRESHOLDS_OF_FOLDS} Intervals: 95 % (Wilson)."
    return f"{markdown_table(header, rows)}\n\nIntervals: 95 % (Wilson). Command: `{_evaluate(run, None)}`."


def _cautions(card: OperatingCard) -> str:
    return "\n".join(f"- {_text(text)}" for text in card.cautions)


def _on_test(row: OperatingRow | None) -> list[str]:
    if row is None:
        return ["-"] * 4
    return [
        *(percent_text(one.value, one.low, one.high).replace(" %", "") for one in (row.sensitivity, row.specificity)),
        f"{row.true_positives:,}, {row.false_negatives:,}",
        f"{row.true_negatives:,}, {row.false_positives:,}",
    ]


def _data(run: Run, record: RunRecord) -> str:
    names = {OOF: "all folds"}
    rows = [[_text(names.get(part, part)), f"{count:,}"] for part, count in record.task.rows.items()]
    lines = [markdown_table(["part", "labelled rows"], rows) + f"\n\nCommand: `{_evaluate(run, None)}`."]
    data, word = record.data, record.data.group_word
    for label, positives in data.positives.items():
        known = positives + data.negatives.get(label, 0)
        lines.append(f"- {_text(label)}: {positives:,} of {known:,} positive ({positives / max(1, known):.2%})")
    if data.groups is not None:
        named = "" if word == "patient" else f" ({_text(data.group_column)})"
        lines.append(f"- {word}s{named}: {data.groups:,}")
    if record.leaks is not None:
        found = ", ".join(leak_text(_text(kind), count, word) for kind, count in record.leaks.items())
        possible = record.possible_leaks
        maybe = f"; {counted(possible, word)} may be, under different names" if possible else ""
        lines.append(f"- in two parts: {found or 'nothing found'}{maybe}")
    if data.table:
        lines.append(f"- to list the contents of the table: `{_check(data, data.table, record.task.labels)}`")
    elif data.packed:
        lines.append("- trained on a packed set, not on a table; `deepauc data info` of its folder lists what it holds")
    lines.append(f"- SHA-256 of the data: `{_code(record.identity.data)}`")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _training(record: RunRecord) -> str:
    lines = [f"- {_text(one.name)}: {_text(one.value)} ({_text(one.reason)})" for one in record.plan.decisions]
    if record.command:
        lines.append(f"- trained by: `{_code(record.command)}`")
    lines.append(f"- seed {_text(record.identity.seed)}; {_text(record.hardware)}")
    return "\n".join(lines)


def _usage(bundle: Bundle) -> str:
    copies = ""
    if bundle.copies is not None:
        number = bundle.copies.number
        copies = (
            f"\n\nA score is the mean over {number} augmented copies of an image: `predict` and an ONNX file make them."
        )
    column = "--image-column file" if bundle.preprocessing.images else "--feature-column a --feature-column b"
    if bundle.metadata is not None:  # its columns are found by their names
        column = "--image-column file" if bundle.picture else "--id-column id"
    return (
        "`model.safetensors` and `bundle.json` are all that an installed deepauc needs (`deepauc export RUN "
        f"--bundle DIR`):\n\n```\ndeepauc predict DIR --table new.csv {column} --out scores.csv\n```{copies}"
    )


def _provenance(record: RunRecord) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return "\n".join(
        [
            f"- recipe, SHA-256: `{_code(record.identity.recipe)}`",
            f"- code: {code_text(record.made_by)}",
            f"- versions: {_text(versions)}",
        ]
    )


def _evaluate(run: Run, part: str | None, scores: str = "scores.csv") -> str:
    name = run.path.resolve().name
    command = f"deepauc evaluate {shlex.quote(f'{name}/{scores}') if _harmless(name) else f'RUN/{scores}'}"
    return command if part is None else f"{command} --part {part}"


def _check(data: DataRecord, table: str, labels: Sequence[str]) -> str:
    words = ["deepauc", "data", "check", Path(table).name]
    single = {
        "image": data.image_column,
        "group": data.group_column,
        "id": data.id_column,
        "split": data.split_column,
        "weight": data.weight_column,
    }
    several = {"feature": data.feature_columns, "metadata": data.metadata_columns, "category": data.category_columns}
    named = {"label": labels} | {kind: (name,) for kind, name in single.items() if name} | several
    words += [word for kind, names in named.items() for name in names for word in (f"--{kind}-column", name)]
    words += [] if data.positive is None else ["--positive", data.positive]
    command = shlex.join(words)
    return command if _harmless(command) else "deepauc data check"


def _harmless(command: str) -> bool:
    """Names that mean something in markdown or HTML do not get there, not even as code."""
    return command.isprintable() and not any(letter in command for letter in "<>&|`[]")


def _text(value: Any) -> str:
    """What comes from data, on one line and without a meaning in markdown or HTML."""
    return "".join(_ESCAPES.get(letter, letter) for letter in _line(value))


def _code(value: Any) -> str:
    """The same between backticks, where only a backtick means something, and in a table a pipe, which it escapes."""
    return _line(value).replace("`", "'")


def _line(value: Any) -> str:
    """On one line; what cannot be seen, such as a letter that turns the direction of writing, as its escape."""
    line = " ".join(str(value).split())
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
