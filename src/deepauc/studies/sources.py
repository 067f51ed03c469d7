"""Where a study's tasks come from: one training set a seed, with a validation part for tuning, or whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.datasets.benchmarks.load import load
from deepauc.data.splits import k_fold, split_by_fractions
from deepauc.data.task import Task
from deepauc.training.run.run import Run


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of a study: images (None: DEEPAUC_DATA), run folders, and the small records that are kept."""

    data: Path | None = None
    runs: Path = Path("runs")
    results: Path = Path("results")


class TaskSource(Protocol):
    """A family of training sets. Frozen dataclasses of plain values: records hold them, processes are sent them."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Studies of the same set whose final runs of a seed come before this task's of that seed."""
        return ()

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        """The training set of this seed; tuning: with a tenth held out as validation."""

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        """Further entries of a final run's record, for other studies; mostly none.

        device: what is computed for them is computed there; None takes a GPU when there is one.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class BenchmarkSource(TaskSource):
    """C2, C10, C100 or S10 at an imratio (D1); images are decoded once in a process."""

    benchmark: str
    imratio: float

    @property
    def name(self) -> str:
        return f"{self.benchmark} at {self.imratio:.0%}"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        return load(self.benchmark, imratio=self.imratio, seed=seed, validation=tuning, root=place.data)


@dataclass(frozen=True, kw_only=True)
class FoldSource(TaskSource):
    """Seed s is fold s mod `folds` of the training set s div `folds` of `source`: the fold is the validation part.

    Nothing else of that set is in the task: no test part, and no positive that was removed to make the imbalance. What
    comes before the supervised stages sees the other folds only, since they alone are the training part. Folds are for
    choosing: a study on them has no final runs.
    """

    source: TaskSource
    folds: int = 5

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"cross-validation takes at least two folds, not {self.folds}.")

    @property
    def name(self) -> str:
        return f"{self.source.name}, {self.folds} folds of the training set"

    @property
    def needs(self) -> tuple[str, ...]:
        return self.source.needs

    def seeds(self, sets: Sequence[int]) -> tuple[int, ...]:
        """The seeds of all folds of these training sets, set by set."""
        return tuple(number * self.folds + fold for number in sets for fold in range(self.folds))

    def place_of(self, seed: int) -> tuple[int, int]:
        """(training set, fold) of a seed."""
        return divmod(seed, self.folds)

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        if not tuning:
            raise ValueError(f"{self.name}: folds are for choosing; refit on {self.source.name} itself.")
        number, fold = self.place_of(seed)
        whole = self.source.load(number, tuning=False, place=place)
        return k_fold(whole.with_parts({"train": whole.part("train")}), folds=self.folds, seed=number)[fold]


def is_for_choosing(source: TaskSource) -> bool:
    """Whether a study on this source ends with its selection, without final runs."""
    return isinstance(source, FoldSource)


def without_test(task: Task) -> Task:
    """The task as tuning sees it: no test part, so that no test score can be computed; validation is required."""
    if "validation" not in task.parts:
        raise ValueError(f"task {task.name!r} has no validation part: tuning chooses on it.")
    return task.with_parts({part: rows for part, rows in task.parts.items() if part != "test"})


def comparable(task: Task, *, several_labels: bool = False) -> Task:
    """The task, if its settings can be compared by one AUC; said before anything is trained."""
    if task.num_labels != 1 and not several_labels:
        raise ValueError(
            f"task {task.name!r} has {task.num_labels} labels, and a study compares settings by one AUC: declare one "
            "for each label, with the others' columns left out."
        )
    for part in sorted(task.parts.keys() & {"validation", "test"}):
        columns = task.labels[task.part(part)].reshape(-1, task.num_labels).T
        for name, labels in zip(task.label_names, columns, strict=True):
            if not np.isin((0, 1), labels).all():  # an uncertain label is neither
                one = f"one class only of {name!r}" if task.num_labels > 1 else "one class only"
                raise ValueError(
                    f"the {part} part of task {task.name!r} has {one}, so it has no AUC: split it by class."
                )
    return task


def fold_task(
    task: Task, *, fold: int, folds: int = 5, split_seed: int = 0, outside: npt.ArrayLike = (), tuning: bool = False
) -> Task:
    """Cross-validation with the fold's number as the seed: this fold is the test part, the rest is trained on.

    The training part of `task` is cut into patient-disjoint, stratified folds by split_seed, which all folds share.
    outside: rows that are trained on in every fold and never held out. tuning: a tenth of what is left, by patients
    again, is validation.
    """
    if not 0 <= fold < folds:
        raise ValueError(f"the seeds of a study on {folds} folds are the folds' numbers, 0 to {folds - 1}, not {fold}.")
    held = _all_folds(task, folds, split_seed, np.asarray(outside, dtype=np.int64))[fold]
    parts = {"train": held.part("train"), "test": held.part("validation")}
    divided = held.with_parts(parts)
    if not tuning:
        return divided
    kept = np.asarray(outside, dtype=np.int64)
    return split_by_fractions(
        divided,
        fractions={"train": 0.9, "validation": 0.1},
        seed=split_seed,
        outside=kept[np.isin(kept, parts["train"])],
    )


_FOLDS: WeakKeyDictionary[Task, dict[tuple[int, int, bytes], tuple[Task, ...]]] = WeakKeyDictionary()


def _all_folds(task: Task, folds: int, split_seed: int, outside: npt.NDArray[np.int64]) -> tuple[Task, ...]:
    """Dealt once for a task: every fold asks for them, and thousands of patients take a second or more."""
    known = _FOLDS.setdefault(task, {})
    key = (folds, split_seed, outside.tobytes())
    if key not in known:
        known[key] = k_fold(task, folds=folds, seed=split_seed, outside=outside)
    return known[key]
