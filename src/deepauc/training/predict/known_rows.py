"""Which rows of a table a run knows, and in which of its parts they were: by name, as its scores.csv has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepauc.data.task import PART_NAMES, Array, Task
from deepauc.training.plan.decision import Decision, Fact
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.own_files import SCORES, require_own
from deepauc.training.run.run import Run
from deepauc.training.run.scores import Scores, read_run_scores

NO_PART = "none"


def known_parts(run: Path) -> dict[str, str]:
    """id -> part of the rows that a run has scored; ids in one form, in which an older run may not have them."""
    return part_by_id(read_run_scores(run))


def part_by_id(scores: Scores) -> dict[str, str]:
    """The part of each row; of an id that stands in several, the first."""
    if scores.ids is None or scores.parts is None:
        raise ValueError(f"{scores.source} has no columns 'id' and 'part', so its rows cannot be recognised.")
    known: dict[str, str] = {}
    for name, part in zip(scores.ids.tolist(), scores.parts.tolist(), strict=True):
        known.setdefault(name, part)  # train comes before the other parts
    return known


def names_rows(run: Path) -> bool:
    """Whether a run calls its rows by names (ids, files), not by their lines; False if nothing says."""
    with suppress(OSError, ValueError):
        return RunFolder(run).record().data.names_rows
    return False


@dataclass(frozen=True, kw_only=True)
class KnownRows:
    """Rows of a table as several runs know them.

    parts: (n,) the part that a row had in the runs that know it, `none` where none does. seen: how many a run was
    trained or chosen on. unaware: runs that know no row of it. conflict: in words, where parts of a row differ.
    """

    parts: Array
    seen: int
    unaware: tuple[Path, ...]
    conflict: str | None

    def require_parts(self) -> Array:
        """The parts; ValueError where they are not the same in all runs, or a run does not say."""
        if self.conflict is not None:
            raise ValueError(f"{self.conflict}. Train one with the split of the other: --split-of.")
        if self.unaware:
            raise ValueError(
                f"{self.unaware[0]} knows none of these rows by name, so its training rows cannot be found. Name the "
                "folder of the run itself. The ids of images are their file names, so train a run on numbers with "
                "--id-column and that column."
            )
        return self.parts


def known_rows(runs: Sequence[Path], ids: Sequence[str], *, named: bool) -> KnownRows:
    """named: the table has a column of ids. Else numbers are those of lines, which say nothing, here or in a run."""
    numbers = all(name.isdigit() for name in ids)
    found: list[dict[str, str]] = []
    for run in runs:
        parts: dict[str, str] = {}
        if not numbers or (named and names_rows(run)):
            with suppress(OSError, ValueError):  # damage there is no reason to withhold scores of new rows
                parts = known_parts(run)
        found.append(parts)
    each = [[parts[name] for parts in found if name in parts] for name in ids]
    apart = [row for row, parts in enumerate(each) if len(set(parts)) > 1]
    return KnownRows(
        parts=np.array([parts[0] if parts else NO_PART for parts in each], dtype=str),
        seen=sum(bool({"train", "validation", "oof"} & set(parts)) for parts in each),
        unaware=tuple(run for run, parts in zip(runs, found, strict=True) if not parts.keys() & set(ids)),
        conflict=_conflict(runs, found, ids[apart[0]], len(apart)) if apart else None,
    )


def _conflict(runs: Sequence[Path], found: Sequence[dict[str, str]], name: str, count: int) -> str:
    where = ", ".join(f"{parts[name]} of {run}" for run, parts in zip(runs, found, strict=True) if name in parts)
    return (
        f"the runs were not trained on the same split; rows in different parts: {count:,} (the first, {name}: "
        f"{where}). So their average was trained on rows that it would be judged on"
    )


def split_like(task: Task, run: Path) -> tuple[Task, Decision]:
    """The task with its rows in the parts that they had in a finished run; rows it has not scored are in none."""
    Run(run)  # refused, where it is none
    RunFolder(run).require_classifier()
    require_own(run, SCORES, force=None)
    if task.ids is None or not names_rows(run):
        raise ValueError(f"--split-of {run}: its rows have no ids, only line numbers. Train that run with --id-column.")
    known = known_parts(run)
    parts = np.array([known.get(name, NO_PART) for name in task.ids.tolist()])
    if not (parts != NO_PART).any():
        raise ValueError(
            f"--split-of {run}: it knows none of these rows by name. The ids of images are their file names: for "
            "a run on numbers name that column, --id-column."
        )
    unlabelled = np.isnan(task.labels.reshape(len(task), -1)).all(axis=1)
    if (lost := unlabelled & np.isin(parts, ("validation", "test"))).any():
        raise ValueError(
            f"--split-of {run}: {int(lost.sum()):,} rows of its validation and test parts have no label here (the "
            f"first: {task.ids[lost][0]}). Take the table that it was trained on."
        )
    left, gone = int((parts == NO_PART).sum()), len(known.keys() - set(task.ids.tolist()))
    task = task.with_parts({name: rows for name in PART_NAMES if len(rows := np.flatnonzero(parts == name))})
    reason = ("of a run", *(("not scored",) if left else ()), *(("gone",) if gone else ()))
    return task, parts_decision(task, reason, {"run": str(run), "left": left, "gone": gone})


def parts_decision(task: Task, reason: tuple[str, ...], facts: Mapping[str, Fact]) -> Decision:
    """How many labelled rows each part of the task has, and why."""
    counts = {part: len(task.labelled(part)) for part in task.parts}
    return Decision(name="parts", value=counts, reason=reason, rests_on=facts)
