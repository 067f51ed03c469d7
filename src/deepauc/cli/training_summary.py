"""What `train` says: the data, the plan with its reasons, the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from deepauc.cli.console import Output
from deepauc.reporting.tables import auc_text
from deepauc.training.plan import Choice
from deepauc.training.prepare import Prepared
from deepauc.training.run import Run


def show_data(output: Output, prepared: Prepared) -> None:
    """What the table holds, and what is odd about it."""
    report, task = prepared.report, prepared.task
    output.say(f"Data: {report.rows:,} rows, {report.labelled:,} labelled, {report.unlabelled:,} unlabelled")
    for name in task.label_names:
        positives, negatives = report.positives[name], report.negatives[name]
        output.say(
            f"  label {name}: {positives:,} positive ({positives / max(1, positives + negatives):.2%}), "
            f"{negatives:,} negative"
        )
    if report.groups is not None:
        output.say(f"  patients: {report.groups:,}")
    if report.sizes:
        sizes = sorted(report.sizes.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{h} x {w} ({count:,})" for (h, w), count in sizes[:3])
        output.say(
            f"  images: {shown}{', ...' if len(sizes) > 3 else ''}, {'grey' if report.channels == 1 else 'colour'}"
        )
    if report.skipped:
        output.say(f"  left out for a problem: {len(report.skipped):,} rows (`deepauc data check` lists them)")
    if report.duplicates and report.sizes:
        sets = f"{len(report.duplicates):,} set{'s' * (len(report.duplicates) != 1)}"
        output.say(f"  identical images: {sets} (`deepauc data check` lists them)")
    for kind, count in prepared.leaks.items():
        output.say(f"  LEAK: {count:,} x the same {kind} in two parts; the figures will be too good")
    if not prepared.leaks:
        output.say(
            "  leaks between parts: none found" + ("" if task.groups is not None else " (no patients are named)")
        )


def show_choices(output: Output, choices: Sequence[Choice]) -> None:
    """What will be done, and why."""
    output.say("Plan:")
    for choice in choices:
        output.say(f"  {choice.name}: {choice.value}\n    because: {choice.reason}")


def show_results(output: Output, run: Run, baseline: Run | None, *, state: str, report: Path) -> None:
    """AUC of the kept network and of the first stage, where everything lies, and the same as JSON."""
    record = run.record
    guard = record["results"].get("guard")
    stages = [stage["objective"]["type"] for stage in record["recipe"]["stages"]]
    kept = len(stages) - 1 if guard is None else guard["winner"]
    runs = {stages[kept] + " (kept)": run}
    if baseline is not None and kept != 0:
        runs[stages[0] + " stage"] = baseline
    parts = [part for part in record["results"]["auc"] if part != "train"] or ["train"]
    rows = []
    for title, one in runs.items():
        for label in record["task"]["labels"]:
            found = [one.auc(part).get(label) for part in parts]
            cells = ["-" if e is None else auc_text(float(e.value), float(e.low), float(e.high)) for e in found]
            rows.append([title, label, *cells])
    output.table(["", "label", *(f"{part} AUC" for part in parts)], rows, title="AUC with 95 % intervals")
    if guard is not None and kept != len(stages) - 1:
        aucs = [guard["validation_auc"][str(number)] for number in (len(stages) - 1, kept)]
        output.say(
            f"{stages[-1]} ({aucs[0]:.3f}) was not better than {stages[kept]} ({aucs[1]:.3f}) on "
            f"validation: the network of {stages[kept]} is kept."
        )
    else:
        for line in _paired_tests(report.with_suffix(".json")):
            output.say(line)
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
            "auc": record["results"]["auc"],
            "baseline_auc": None if baseline is None else baseline.record["results"]["auc"],
            "kept_stage": kept,
            "seconds": record["results"]["seconds"],
            "plan": record.get("plan"),
            "leaks": record.get("leaks"),
        }
    )


def _paired_tests(report: Path) -> list[str]:
    """The kept network against the first stage, by label, as the report has it."""
    found = json.loads(report.read_text(encoding="utf-8"))["baseline"] if report.exists() else {}
    lines = []
    for one in found.get("labels", []):
        if difference := one.get("difference"):
            low, high = difference["low"], difference["high"]
            lines.append(
                f"{one['label']}: {difference['value']:+.3f} [{low:+.3f}, {high:+.3f}] over {found['objective']} on "
                f"{found['part']}, paired DeLong test p = {one['p_value']:.2g}"
            )
    return lines
