"""What `train` says: the data, the plan with its reasons, the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from deepauc.cli.console import Output, printable
from deepauc.names import counted, group_word
from deepauc.pipeline.cross_validation import CrossValidation
from deepauc.pipeline.data_warnings import said_of
from deepauc.pipeline.outcome import Outcome, PairedTest, ScoredNetwork, doubts
from deepauc.reporting.document.cells import p_text
from deepauc.reporting.figures.label import interval_text, signed_text
from deepauc.reporting.folds import verdict
from deepauc.training.plan.decision import Decision
from deepauc.training.plan.wording import told
from deepauc.training.predict.cost import prediction_cost
from deepauc.training.prepare.prepare import Prepared
from deepauc.training.run.fold_record import KeptCandidate
from deepauc.training.run.record import plain_aucs


def show_data(output: Output, prepared: Prepared) -> None:
    """What the data hold, and what is odd about them."""
    report, task = prepared.report, prepared.task
    lists = f"`deepauc data check`{' on the table that was packed' * (prepared.packed is not None)} lists them"
    word = group_word(report.group_column)
    output.say(f"Data: {counted(report.rows, 'row')}, {report.labelled:,} labelled, {report.unlabelled:,} unlabelled")
    for name in task.label_names:
        positives, negatives = report.positives[name], report.negatives[name]
        output.say(
            f"  label {name}: {positives:,} positive ({positives / max(1, positives + negatives):.2%}), "
            f"{negatives:,} negative"
        )
    if report.groups is not None:
        largest = report.largest_group
        most = f", at most {largest.rows:,} rows each" if largest is not None and largest.rows > 1 else ""
        named = "" if word == "patient" else f" ({printable(str(report.group_column))})"
        output.say(f"  {word}s{named}: {report.groups:,}{most}")
    if report.sizes:
        sizes = sorted(report.sizes.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{h} x {w} ({count:,})" for (h, w), count in sizes[:3])
        output.say(
            f"  images: {shown}{', ...' if len(sizes) > 3 else ''}, {'grey' if report.channels == 1 else 'colour'}"
        )
    if report.skipped:
        output.say(f"  left out because of a problem: {counted(len(report.skipped), 'row')} ({lists})")
    if report.duplicates and report.sizes:
        sets = counted(len(report.duplicates), "set")
        disputed = f", {len(report.disputed):,} WITH DIFFERENT LABELS" if report.disputed else ""
        output.say(f"  identical images: {sets}{disputed} ({lists})")
    outside = report.labelled - sum(len(task.labelled(part)) for part in task.parts)
    if prepared.packed is not None and outside:
        output.say(f"  in no part: {counted(outside, 'labelled row')}, used neither for training nor for evaluation")
    for text in said_of(prepared):
        output.say(f"  {text}")
    if not (prepared.leaks or prepared.possible_leaks) and task.groups is not None:
        output.say("  leaks between parts: none found")


def show_decisions(output: Output, decisions: Sequence[Decision]) -> None:
    """What will be done, and why."""
    output.say("Plan:")
    for one in map(told, decisions):
        output.say(f"  {one.name}: {one.value}\n    {one.reason}")


def show_outcome(output: Output, outcome: Outcome, *, examples: Path | None = None) -> None:
    """AUC of the kept network and of what it was compared with, where everything lies, and the same as JSON."""
    run, record = outcome.run, outcome.run.record
    if outcome.report is None:
        output.result(f"Run: {run.path} (it has features but no classifier, so there are no scores and no report)")
        output.record({"run": str(run.path), "state": outcome.state, "report": None, "seconds": record.results.seconds})
        return
    parts = [part for part in record.results.auc if part != "train"] or ["train"]
    rows = []
    for network in outcome.networks:
        for label in record.task.labels:
            intervals = [network.auc.get(part, {}).get(label) for part in parts]
            title = _title(network) if record.inputs is None else f"{record.inputs.kept} (kept)"
            rows.append([title, label, *("-" if one is None else interval_text(one) for one in intervals)])
    for text in doubts(outcome.tests):
        output.result(text)
    output.table(["", "label", *(f"{part} AUC" for part in parts)], rows, title="AUC with 95 % intervals")
    if copies := record.tta:
        output.say(
            f"Validation and test scores are means over {copies:,} augmented copies of each image; the AUC after each "
            "epoch is measured without augmentation."
        )
    if record.inputs is not None:
        _show_candidates(output, record.inputs, title="AUC on validation, with 95 % intervals")
    kept, other = outcome.kept, outcome.not_kept
    if other is not None and record.results.guard is not None:
        guard = record.results.guard
        by = "" if guard.chosen_by is None else f", by {guard.chosen_by}"
        output.say(
            f"{other.objective} ({guard.measured[other.stage]:.3f}) was not better than {kept.objective} "
            f"({guard.measured[kept.stage]:.3f}) on validation{by}: the network of {kept.objective} is kept."
        )
    for test in outcome.tests:
        output.say(_sentence(test))
    if output.quiet and not output.as_json:
        for row in rows:
            output.result("  ".join(row))
    baseline = outcome.baseline
    own = {
        "baseline": None if baseline is None else str(baseline.path),
        "baseline_auc": None if baseline is None else plain_aucs(baseline.record.results.auc),
        "not_kept_auc": None if other is None else plain_aucs(other.auc),
        "paired_tests": [asdict(test) for test in outcome.tests],
        "kept_stage": kept.stage,
        "kept_objective": kept.objective,
        **({} if record.inputs is None else {"inputs": record.plain["inputs"]}),
        "tta": copies,
    }
    _close(output, outcome, examples, own)


def _show_candidates(output: Output, choice: KeptCandidate, *, title: str) -> None:
    rows = [
        [
            row.candidate,
            row.label,
            interval_text(row.auc),
            "-" if row.less_kept is None else signed_text(row.less_kept),
            f"{row.seconds:.0f} s",
            "kept" if row.kept else "trivial" if row.trivial else "",
        ]
        for row in choice.board
    ]
    output.table(["candidate", "label", "AUC", "minus the kept one", "time", ""], rows, title=title)


def show_cross_validation(output: Output, outcome: CrossValidation, *, examples: Path | None = None) -> None:
    """The candidates and the one that was kept, its AUC over the folds and on a test part, and the same as JSON."""
    run, record, folds = outcome.run, outcome.run.record, outcome.folds
    choice = folds.choice
    assert choice is not None
    for text in verdict(folds):
        output.result(text)
    title = "Candidates: mean AUC within folds with 95 % intervals, before the correction for choosing one"
    _show_candidates(output, choice, title=title)
    for label, auc in record.results.auc.get("test", {}).items():
        output.result(f"Test part, {label}: AUC {interval_text(auc)} (average of the networks of all folds)")
    for caution in folds.cautions:
        output.say(f"Caution. {caution}")
    cost = prediction_cost(run.path)
    output.say(f"Prediction: {cost.text}; `deepauc export --single` exports the network of one fold instead.")
    _close(output, outcome, examples, {"folds": record.plain.get("folds"), "cost": asdict(cost)})


def _close(
    output: Output, outcome: Outcome | CrossValidation, examples: Path | None, own: Mapping[str, object]
) -> None:
    """Where everything lies, and the result as JSON. own: what a run of this kind has besides."""
    run, record = outcome.run, outcome.run.record
    output.result(f"Run: {run.path}")
    output.result(f"Report: {outcome.report}")
    if examples is not None:
        output.result(f"Examples: {examples} (it shows images of patients: take care with whom you share it)")
    output.say("Not a medical device: nothing here is cleared for decisions about patients.")
    data = record.plain.get("data") or {}
    output.record(
        {
            "run": str(run.path),
            "state": outcome.state,
            "report": str(outcome.report),
            **({} if examples is None else {"examples": str(examples)}),
            "auc": plain_aucs(record.results.auc),
            **own,
            "seconds": record.results.seconds,
            "plan": record.plain.get("plan"),
            "leaks": record.leaks,
            "possible_leaks": record.possible_leaks,
            "alike": data.get("alike"),
            "unlabelled": data.get("unlabelled_rows"),
        }
    )


def _title(network: ScoredNetwork) -> str:
    what = f"stage {network.stage + 1}" if network.role == "baseline" else network.role
    return f"{network.objective} ({what})"


def _sentence(test: PairedTest) -> str:
    return (
        f"{test.label}: the AUC of the kept network minus that of {test.against} on {test.part} is {test.value:+.3f} "
        f"[{test.low:+.3f}, {test.high:+.3f}]; paired test ({test.test}): {p_text(test.p_value)}."
    )
