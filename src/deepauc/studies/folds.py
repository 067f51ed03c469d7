"""Cross-validation inside training sets as a source of tasks: every fold of every set has a seed of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepauc.data.splits import k_fold
from deepauc.data.task import Task
from deepauc.studies.sources import Place, TaskSource


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
