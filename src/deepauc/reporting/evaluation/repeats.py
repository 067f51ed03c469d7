"""What the seed alone changes: runs on the same rows with other seeds, beside the judged one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.evaluation.findings import Absent, RepeatRow
from deepauc.reporting.evaluation.pairing import pair_rows
from deepauc.reporting.evaluation.sample import attempt, sample_of
from deepauc.reporting.evaluation.within_folds import part_interval
from deepauc.training.run.run import Run
from deepauc.training.run.scores import Scores, read_run_scores


def find_repeats(run: Run, table: Scores, part: str | None, others: Sequence[str | Path]) -> tuple[RepeatRow, ...]:
    """The AUC of each run on the judged part of the first; a ValueError where one was judged on other rows."""
    if not others or part is None:
        return ()
    rows = _of(run, run, table, part)
    for path in others:
        other = Run(Path(path))
        theirs = replace(read_run_scores(other.path), label_names=table.label_names)
        if part not in theirs.part_names or len(theirs.scores[0]) != len(table.label_names):
            raise ValueError(f"{path} has no scores of the {part} part for the same labels: name runs of one table.")
        pair_rows(table.part(part), theirs.part(part))  # refuses other rows and other labels
        rows += _of(run, other, theirs, part)
    return tuple(rows)


def _of(run: Run, other: Run, table: Scores, part: str) -> list[RepeatRow]:
    mine, theirs = run.record, other.record
    return [
        RepeatRow(
            run=other.path.resolve().name,
            seed=theirs.identity.seed,
            label=name,
            auc=_auc(other, table, part, number, name),
            same_recipe=mine.identity.recipe == theirs.identity.recipe,
        )
        for number, name in enumerate(table.label_names)
    ]


def _auc(run: Run, table: Scores, part: str, number: int, name: str) -> Estimate[float] | Absent:
    folds = run.record.folds
    if folds is not None and folds.choice is not None and name in folds.choice.aucs:
        return folds.choice.aucs[name]
    sample = sample_of(table.part(part), number, part=part)
    return attempt(lambda: part_interval(sample.labelled()))
