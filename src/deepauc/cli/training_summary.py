"""What `train` says: the data, the plan with its reasons, the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepauc.cli.console import Output, printable
from deepauc.data.task import Task
from deepauc.names import group_word
from deepauc.reporting.document.sections import p_text
from deepauc.reporting.evaluation.kept_stage import auc_intervals
from deepauc.reporting.figures.label import interval_text
from deepauc.training.plan.choice import Choice
from deepauc.training.prepare import Prepared
from deepauc.training.run.record import plain_aucs
from deepauc.training.run.run import Run


def show_data(output: Output, prepared: Prepared) -> None:
    """What the data hold, and what is odd about them."""
    report, task = prepared.report, prepared.task
    lists = f"`deepauc data check`{' of the table that was packed' * (prepared.packed is not None)} lists them"
    word = group_word(report.group_column)
    output.say(f"Data: {report.rows:,} rows, {report.labelled:,} labelled, {report.unlabelled:,} unlabelled")
    for name in task.label_names:
        positives, negatives = report.positives[name], report.negatives[name]
        output.say(
            f"  label {name}: {positives:,} positive ({positives / max(1, positives + negatives):.2%}), "
            f"{negatives:,} negative"
        )
    if report.groups is not None:
        largest = report.largest_group
        most = f", at most {largest.rows:,} rows of one" if largest is not None and largest.rows > 1 else ""
        named = "" if word == "patient" else f" ({printable(str(report.group_column))})"
        output.say(f"  {word}s{named}: {report.groups:,}{most}")
    if report.sizes:
        sizes = sorted(report.sizes.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{h} x {w} ({count:,})" for (h, w), count in sizes[:3])
        output.say(
            f"  images: {shown}{', ...' if len(sizes) > 3 else ''}, {'grey' if report.channels == 1 else 'colour'}"
        )
    if report.skipped:
        output.say(f"  left out for a problem: {len(report.skipped):,} rows ({lists})")
    if report.duplicates and report.sizes:
        sets = f"{len(report.duplicates):,} set{'s' * (len(report.duplicates) != 1)}"
        disputed = f", {len(report.disputed):,} WITH DIFFERENT LABELS" if report.disputed else ""
        output.say(f"  identical images: {sets}{disputed} ({lists})")
    outside = report.labelled - sum(len(task.labelled(part)) for part in task.parts)
    if prepared.packed is not None and outside:
        output.say(f"  in no part: {outside:,} of the labelled rows, neither trained on nor judged")
    for part, name, few in _too_few(task):
        output.say(
            f"  few: {part} has {few} of a class of {name}; an AUC's interval needs two of each, and many to be narrow"
        )
    for alike in report.alike:
        output.say(f"  caution: {alike.text(word)}")
    for kind, count in prepared.leaks.items():
        what = word if kind == "patient" else kind
        output.say(f"  LEAK: {count:,} x the same {what} in two parts; the figures will be too good")
    if prepared.possible_leaks:
        output.say(
            f"  POSSIBLE LEAK: {prepared.possible_leaks:,} {word}{'s' * (prepared.possible_leaks != 1)} may be in two "
            "parts under different names (see the caution above); the figures may be too good"
        )
    elif not prepared.leaks:
        output.say(
            "  leaks between parts: none found"
            + ("" if task.groups is not None else " (no groups are named, such as patients)")
        )


def _too_few(task: Task) -> list[tuple[str, str, int]]:
    """(part, label, rows of its rarer class) wherever a held-out part has fewer than two rows of a class."""
    found = []
    for part in task.parts:
        labels = task.labels[task.labelled(part)].reshape(-1, task.num_labels)
        for name, column in zip(task.label_names, labels.T, strict=True):
            fewest = min(int((column == 0).sum()), int((column == 1).sum()))
            if part != "train" and fewest < 2:
                found.append((part, name, fewest))
    return found


def show_choices(output: Output, choices: Sequence[Choice]) -> None:
    """What will be done, and why."""
    output.say("Plan:")
    for choice in choices:
        output.say(f"  {choice.name}: {choice.value}\n    because: {choice.reason}")


def show_results(
    output: Output, run: Run, baseline: Run | None, last_stage: Path | None, *, state: str, report: Path
) -> None:
    """AUC of the kept network and of what it was compared with, where everything lies, and the same as JSON.

    baseline: the first stage with scores as a run of its own. last_stage: the scores of the last one, if it was not
    kept.
    """
    record = run.record
    stages, kept, first = record.objectives, record.kept_stage, record.baseline_stage
    folders = {f"{stages[kept]} (kept)": run.path}
    if baseline is not None and kept != first:
        folders[f"{stages[first]} (stage {first + 1})"] = baseline.path
    if last_stage is not None:
        folders[f"{stages[-1]} (not kept)"] = last_stage.parent
    labels = record.task.labels
    aucs = {title: auc_intervals(folder, labels) for title, folder in folders.items()}
    parts = [part for part in record.results.auc if part != "train"] or ["train"]
    rows = []
    for title, found in aucs.items():
        for label in labels:
            intervals = [found.get(part, {}).get(label) for part in parts]
            rows.append([title, label, *("-" if one is None else interval_text(one) for one in intervals)])
    output.table(["", "label", *(f"{part} AUC" for part in parts)], rows, title="AUC with 95 % intervals")
    if copies := record.tta:
        output.say(
            f"A score of validation and test is the mean over {copies:,} changed copies of an image; the AUC after "
            "each epoch was of the images as they are."
        )
    if last_stage is not None and record.results.guard is not None:
        validation = record.results.guard.validation_auc
        output.say(
            f"{stages[-1]} ({validation[len(stages) - 1]:.3f}) was not better than {stages[kept]} "
            f"({validation[kept]:.3f}) on validation: the network of {stages[kept]} is kept."
        )
    tests = _paired_tests(report.with_suffix(".json"))
    for one in tests:
        output.say(_sentence(one))
    if output.quiet and not output.as_json:
        for row in rows:
            output.result("  ".join(row))
    output.result(f"Run: {run.path}")
    output.result(f"Report: {report}")
    output.say("Not a medical device: nothing here is cleared for decisions about patients.")
    output.record(
        {
            "run": str(run.path),
            "state": state,
            "report": str(report),
            "baseline": None if baseline is None else str(baseline.path),
            "auc": plain_aucs(record.results.auc),
            "baseline_auc": None if baseline is None else plain_aucs(baseline.record.results.auc),
            "not_kept_auc": None if last_stage is None else plain_aucs(aucs[f"{stages[-1]} (not kept)"]),
            "paired_tests": tests,
            "kept_stage": kept,
            "kept_objective": stages[kept],
            "tta": copies,
            "seconds": record.results.seconds,
            "plan": record.plain.get("plan"),
            "leaks": record.leaks,
            "possible_leaks": record.possible_leaks,
            "alike": (record.plain.get("data") or {}).get("alike"),
            "unlabelled": (record.plain.get("data") or {}).get("unlabelled_rows"),
        }
    )


def _paired_tests(report: Path) -> list[dict[str, Any]]:
    """The kept network against the first stage, or against the last that was not kept, by label, as the report has."""
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    tests = []
    for against in ("baseline", "not_kept"):
        other = found.get(against) or {}
        for one in other.get("labels", []):
            if "difference" in one:
                tests.append(
                    {
                        "label": one["label"],
                        "part": other["part"],
                        "against": other["objective"],
                        "test": f"clustered by {other.get('group_word', 'patient')}"
                        if other["clustered"]
                        else "DeLong",
                        **one["difference"],
                        "p_value": one["p_value"],
                    }
                )
    return tests


def _sentence(test: dict[str, Any]) -> str:
    return (
        f"{test['label']}: the kept network is {test['value']:+.3f} [{test['low']:+.3f}, {test['high']:+.3f}] against "
        f"{test['against']} on {test['part']}, paired test ({test['test']}) {p_text(test['p_value'])}"
    )
