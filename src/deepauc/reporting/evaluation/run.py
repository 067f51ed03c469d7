"""A finished run folder, judged: its scores, its history and its record as one tree of findings."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.partial import Region
from deepauc.names import Alike, count_possible_leaks, find_alike
from deepauc.reporting.evaluation.cases import find_cases
from deepauc.reporting.evaluation.findings import (
    Absent,
    AucResult,
    BaselineFinding,
    CohortFlow,
    FoldRow,
    History,
    LabelEvaluation,
    LeakFinding,
    OperatingRow,
    Paired,
    PartCounts,
    RunFindings,
    StageFinding,
)
from deepauc.reporting.evaluation.repeats import find_repeats
from deepauc.reporting.evaluation.sample import attempt, count_rows, sample_of
from deepauc.reporting.evaluation.subgroups import Metadata, find_subgroups
from deepauc.reporting.evaluation.table import compare_tables, evaluate_part
from deepauc.reporting.evaluation.within_folds import each_fold
from deepauc.training.run.baseline import FOLDER as BASELINE
from deepauc.training.run.fold_record import KeptCandidate
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.own_files import SCORES, require_own
from deepauc.training.run.record import IMAGES, RunRecord
from deepauc.training.run.run import LAST_STAGE, Run
from deepauc.training.run.scores import OOF, Scores, read_run_scores
from deepauc.training.trivial import FOLDER as TRIVIAL
from deepauc.training.trivial import TITLES

NO_BASELINE = "no baseline was named. Add one with deepauc report RUN --baseline RUN_OF_THE_BASELINE."
OWN_BASELINE = "the kept network is the baseline itself ({}), so there is nothing to compare it with."
SAME_SCORES = "both give every row the same score: they are the same network."
NO_LAST_SCORES = (
    "its scores are not in the run folder (deepauc train stores them, training from Python does not). The table of "
    "stages has its paired test on validation."
)
FOLDS_NOTE = (
    "Each row is judged by a network that was not trained on it (cross-validation). Rows are ranked within their "
    "fold only, because scores of different networks have no common scale."
)
NO_METADATA = "no metadata were given. Add them with deepauc report RUN --metadata table.csv --id-column {}."


def evaluate_run(
    run_dir: str | Path,
    *,
    baseline: str | Path | None = None,
    metadata: Metadata | None = None,
    cases: int = 0,
    force: bool = False,
    region: Region | None = None,
    repeats: Sequence[str | Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> RunFindings:
    """Judge a finished run on its test part, or on validation where there is none; one with folds within these.

    baseline: another run on the same samples, for the paired test; by default the run's own baseline stage, where
    training has kept it (`RUN/baseline`). metadata: columns for subgroups. cases: how many of the highest-scored
    negatives and lowest-scored positives to name by id (ids may name patients: none by default). force: judge a
    scores.csv that is not the run's own, with a caution. region: also the partial AUC there; a run that was trained for
    one has it without being asked. repeats: runs on the same rows with other seeds. progress: called with (labels
    judged, labels in all).
    """
    run = Run(Path(run_dir))
    record = run.record
    own = run.path / BASELINE
    if record.inputs is not None:  # what joins metadata has to beat the network on images alone
        joined = record.inputs.kept != record.inputs.default
        own = run.path / IMAGES if joined else run.path / IMAGES / BASELINE
    if baseline is None and RunFolder(own).done:
        baseline = own
    RunFolder(run.path).require_classifier()
    others = [path for path in (baseline, *repeats) if path]
    cautions = [text for path in (run.path, *others) for text in require_own(path, SCORES, force=force)]
    table = run_scores(run.path, record)
    part = judged_part(table)
    region = region or trained_region(record)
    labels = (
        ()
        if part is None
        else evaluate_part(table, part, curves=True, probabilities=False, region=region, progress=progress)
    )
    on_test: tuple[LabelEvaluation, ...] = ()
    if record.folds is not None:
        labels = corrected_for_choosing(labels, record.folds.choice)
        if "test" in table.part_names:
            on_test = evaluate_part(table, "test", curves=True, probabilities=False, region=region)
    judgeable = [one for one in labels if isinstance(one.auc, AucResult)]
    aucs = [one.auc.headline.value for one in judgeable if isinstance(one.auc, AucResult) and one.too_few is None]
    judged = None if part is None else table.part(part)
    subgroups: Any = Absent(
        NO_METADATA.format(shlex.quote(record.data.image_column or record.data.id_column or "COLUMN"))
    )
    categories: list[str] = []
    if metadata is not None:
        subgroups = (
            Absent(part_note(None))
            if judged is None
            else find_subgroups(judged, metadata, at=_ninety_percent_specific(labels), part=part)
        )
        if not isinstance(subgroups, Absent):
            categories = metadata.alike(dict.fromkeys(one.column for one in subgroups))
    return RunFindings(
        run=run.path.resolve().name,
        task=record.task.name,
        kind=record.task.kind,
        label_names=table.label_names,
        judged_part=part,
        part_note=part_note(part),
        parts=tuple(
            PartCounts(part=name, label=label, counts=count_rows(sample_of(table.part(name), number)))
            for name in table.part_names
            for number, label in enumerate(table.label_names)
        ),
        labels=labels,
        mean_auc=float(np.mean(aucs)) if len(labels) > 1 and aucs else None,
        baseline=_baseline(run, table, part, None if baseline is None else Path(baseline), region),
        not_kept=_not_kept(run, table, part, region),
        kept_objective=record.stages[record.kept_stage].objective if record.stages else "",
        stages=_stages(record),
        subgroups=subgroups,
        history=_history(run, record),
        leaks=find_leaks(table, record),
        cases=() if judged is None else find_cases(judged, cases, within_folds=part == OOF),
        notes=(*(f"{text}." for text in cautions), *table.notes, *_names_alike(table, record), *categories),
        finished=datetime.fromtimestamp((run.path / "DONE").stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        record=record,
        left_out_of_mean=tuple(one.name for one in judgeable if one.too_few is not None) if len(labels) > 1 else (),
        cohort=_cohort(table, record),
        trivial=_trivial(run, table, part),
        folds=() if record.folds is None or judged is None else _folds(judged, record.folds.names),
        average_on_test=on_test,
        fold_histories=_fold_histories(run, record),
        repeats=find_repeats(run, table, part, repeats),
    )


def corrected_for_choosing(
    labels: tuple[LabelEvaluation, ...], choice: KeptCandidate | None
) -> tuple[LabelEvaluation, ...]:
    """With the AUC that the record has of each label: that of the kept candidate alone looks too good."""
    known = {} if choice is None else choice.aucs
    return tuple(
        replace(one, auc=replace(one.auc, corrected=known[one.name]))
        if isinstance(one.auc, AucResult) and one.name in known
        else one
        for one in labels
    )


def _folds(judged: Scores, names: Sequence[str]) -> tuple[FoldRow, ...]:
    labels = enumerate(judged.label_names)
    return tuple(row for j, name in labels for row in each_fold(sample_of(judged, j, part=OOF), names, label=name))


def _ninety_percent_specific(labels: Sequence[LabelEvaluation]) -> dict[str, OperatingRow]:
    """By label, the operating point at a specificity of 90 % on validation."""
    points = {one.name: one.operating_points for one in labels if not isinstance(one.operating_points, Absent)}
    return {name: row for name, rows in points.items() for row in rows if row.asked_specificity == 0.9}


def _cohort(table: Scores, record: RunRecord) -> CohortFlow | None:
    data = record.data
    if data.rows is None:
        return None
    left_out = {"a problem with the row": data.skipped_rows, "no label": data.unlabelled or 0}
    return CohortFlow(
        read=data.rows,
        left_out={reason: rows for reason, rows in left_out.items() if rows},
        parts={part: len(table.part(part)) for part in table.part_names if part != OOF},
        folds=None if record.folds is None else _rows_by_fold(table, record.folds.names),
    )


def _rows_by_fold(table: Scores, names: Sequence[str]) -> dict[str, int]:
    folds = [] if table.folds is None else table.folds.tolist()
    return {name: folds.count(name) for name in names}


def judged_part(table: Scores) -> str | None:
    """The held-out rows of cross-validation; else test, or validation where there is none."""
    return next((name for name in (OOF, "test", "validation") if name in table.part_names), None)


def run_scores(folder: Path, record: RunRecord) -> Scores:
    """The run's scores with their names. A binary scores.csv calls its label `label`; the record knows its name."""
    table, names = read_run_scores(folder), record.task.labels
    names = names if len(names) == len(table.label_names) else table.label_names
    return replace(table, label_names=names, group_word=record.data.group_word)


def trained_region(record: RunRecord) -> Region | None:
    """The region of the ROC curve that the last stage was trained for, kept or not, where that was a part of it."""
    objective = record.stages[-1].plain.get("objective") if record.stages else None
    if not isinstance(objective, Mapping) or objective.get("type") != "PartialAUC":
        return None
    limits = [objective.get(name) for name in ("max_fpr", "min_tpr")]
    if not all(isinstance(limit, float | int) for limit in limits):
        return None
    found = attempt(lambda: Region.asked(*limits))
    return None if isinstance(found, Absent) or found == Region() else found


def part_note(part: str | None) -> str:
    """What the judged part means for the values."""
    if part == OOF:
        return FOLDS_NOTE
    if part == "test":
        return "Judged on the test part, which played no role in training or in any choice."
    if part == "validation":
        return (
            "This run has no test part: it is judged on validation. Training may have chosen epochs, stages or "
            "settings on these rows, so the values are likely too good."
        )
    return (
        "This run has neither a test nor a validation part. The AUC on training rows says nothing about new rows, "
        "so it is not shown: train with --split-column, or with parts held out."
    )


def _baseline(
    run: Run, table: Scores, part: str | None, path: Path | None, region: Region | None
) -> BaselineFinding | Absent:
    record = run.record
    first = record.baseline_stage
    if len(record.stages) > 1 and record.kept_stage == first:
        own = {(run.path / name).resolve() for name in ("", BASELINE, f"{IMAGES}/{BASELINE}")}
        if path is None or path.resolve() in own:
            return Absent(OWN_BASELINE.format(f"stage {first + 1}"))
    if path is None:
        return Absent(NO_BASELINE)
    other = Run(path)
    their_record = other.record
    theirs = run_scores(path, their_record)
    cautions = []
    if record.identity.data != their_record.identity.data:
        cautions.append("The two runs were trained on different data (their hashes differ).")
    if record.tta != their_record.tta:
        cautions.append(
            f"Scores are means over copies of an image ({record.tta:,} here, {their_record.tta:,} there; 0: no "
            "augmentation). Part of the difference comes from this, not from the training."
        )
    objective = ", then ".join(their_record.objectives[: their_record.kept_stage + 1])
    if path == run.path / IMAGES:
        objective = f"images alone: {objective}"
    return _compared(table, theirs, part, region, name=path.resolve().name, objective=objective, cautions=cautions)


def _not_kept(run: Run, table: Scores, part: str | None, region: Region | None) -> BaselineFinding | Absent | None:
    """The last stage, where the guard kept an earlier one: on validation it was worse, here is what it is on test."""
    record, folder = run.record, run.path / LAST_STAGE
    if not record.stages or record.kept_stage == len(record.stages) - 1 or record.inputs is not None:
        return None
    if not (folder / SCORES).is_file():
        return Absent(NO_LAST_SCORES)
    theirs = attempt(lambda: run_scores(folder, record))
    if isinstance(theirs, Absent):
        return theirs
    return _compared(table, theirs, part, region, name=LAST_STAGE, objective=record.objectives[-1], cautions=())


def _trivial(run: Run, table: Scores, part: str | None) -> tuple[BaselineFinding, ...]:
    """The trivial baselines in the run's folder; one that has not scored the judged part is left out."""
    found = []
    for place in sorted(path for path in (run.path / TRIVIAL).glob("*") if (path / SCORES).is_file()):
        theirs = attempt(partial(run_scores, place, run.record))
        if not isinstance(theirs, Absent):
            name = place.name
            title = TITLES.get(name, name)
            found.append(_compared(table, theirs, part, None, name=name, objective=title, cautions=()))
    return tuple(one for one in found if isinstance(one, BaselineFinding))


def _compared(
    table: Scores,
    theirs: Scores,
    part: str | None,
    region: Region | None,
    *,
    name: str,
    objective: str,
    cautions: Sequence[str],
) -> BaselineFinding | Absent:
    if part is None:
        return Absent("a paired test needs a test or validation part.")
    if part not in theirs.part_names:
        return Absent(f"the baseline has no {part} part.")
    found = attempt(lambda: compare_tables(table, theirs, part=part, region=region))
    if isinstance(found, Absent):
        return found
    pairs = [one for one in found.labels if isinstance(one, Paired)]
    if pairs and all(one.same_scores for one in pairs):
        return Absent(SAME_SCORES)
    return BaselineFinding(
        name=name,
        objective=objective,
        part=part,
        paired_by=found.paired_by,
        clustered=found.clustered,
        group_word=found.group_word,
        labels=found.labels,
        cautions=tuple(cautions),
    )


def _stages(record: RunRecord) -> tuple[StageFinding, ...]:
    names, guard, found = record.objectives, record.results.guard, list[StageFinding]()
    if guard is None:
        return ()
    for number, value in guard.validation_auc.items():
        test = guard.last_minus_stage.get(number)
        found.append(
            StageFinding(
                number=number,
                objective=names[number] if number < len(names) else "?",
                validation_auc=value,
                kept=guard.winner == number,
                last_minus_this=None if test is None else Estimate(test.difference, test.low, test.high).floats(),
                p_value=None if test is None else float(test.p_value),
            )
        )
    return tuple(found)


def _fold_histories(run: Run, record: RunRecord) -> tuple[History, ...]:
    """Of each fold's run folder, as far as they are there."""
    names = () if record.folds is None else record.folds.names
    folders = [run.path / f"fold-{number + 1}" for number in range(len(names))]
    found = [_history(Run(folder), record) for folder in folders if RunFolder(folder).done]
    return tuple(one for one in found if isinstance(one, History))


def _history(run: Run, record: RunRecord) -> History | Absent:
    try:
        rows = run.history
    except OSError:
        return Absent("history.csv does not exist.")
    if not rows:
        return Absent("history.csv has no rows.")
    columns = {name: np.array([_number(row.get(name)) for row in rows]) for name in rows[0] | rows[-1]}
    test_curve = run.path / "test_curve.csv"
    if test_curve.is_file():
        with test_curve.open(newline="", encoding="utf-8") as file:
            values = [_number(row.get("test_auc")) for row in csv.DictReader(file)]
        if len(values) == len(rows):
            columns["test_auc"] = np.array(values)
    stages = columns.pop("stage", np.zeros(len(rows)))
    return History(
        stages=tuple(int(s) for s in np.nan_to_num(stages)), objectives=tuple(record.objectives), columns=columns
    )


def find_leaks(table: Scores, record: RunRecord) -> LeakFinding:
    """Patients in two parts, from the scores, and what training has found."""
    patients, both, possible = None, None, 0
    if table.groups is not None and table.parts is not None:
        places = table.parts if table.folds is None else np.char.add(np.char.add(table.parts, " "), table.folds)
        numbers = [np.unique(column, return_inverse=True)[1] for column in (table.groups, places)]
        pairs = np.unique(np.stack(numbers, axis=1), axis=0)
        counts = np.unique(pairs[:, 0], return_counts=True)[1]
        patients, both = int(counts.size), int((counts > 1).sum())
        possible = count_possible_leaks(table.groups, places)
    return LeakFinding(
        patients=patients,
        patients_in_two_parts=both,
        recorded=record.leaks,
        group_word=table.group_word,
        possible=possible,
        between="parts" if record.folds is None else "folds",
    )


def _names_alike(table: Scores, record: RunRecord) -> list[str]:
    """Cautions on names of rows (images are called by their files, and copies found by pixels) and of categories."""
    found = list[Alike | None]()
    if table.ids is not None and record.data.id_column:
        found.append(find_alike(table.ids.tolist(), what="id", column=record.data.id_column))
    found += [one for one in record.data.alike if one.what == "category"]
    return [one.text() for one in found if one is not None]


def _number(cell: str | None) -> float:
    try:
        return float(cell) if cell else float("nan")
    except ValueError:
        return float("nan")
