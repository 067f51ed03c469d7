"""Scores and labels of one label in one part, counted; and what cannot be had, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deepauc.metrics.pooling import pool_scores
from deepauc.reporting.evaluation.findings import Absent, Counts
from deepauc.training.run.scores import OOF, Scores

Floats = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Scores and labels of one label in one part: (n,) each, labels NaN where missing."""

    scores: Floats
    labels: Floats
    groups: npt.NDArray[np.str_] | None = None
    group_word: str = "patient"  # what one of them is called
    folds: npt.NDArray[np.str_] | None = None  # rows are ranked within theirs; a patient is in one of them

    @cached_property
    def clusters(self) -> npt.NDArray[np.str_] | None:
        """The groups, where some patient has several rows; of labelled rows."""
        several = self.groups is not None and np.unique(self.groups).size < len(self.groups)
        return self.groups if several else None

    def labelled(self) -> Sample:
        known = ~np.isnan(self.labels)
        return self.rows(known)

    def rows(self, chosen: npt.NDArray[Any]) -> Sample:
        """Some rows, by mask or by number."""
        groups = None if self.groups is None else self.groups[chosen]
        folds = None if self.folds is None else self.folds[chosen]
        return replace(self, scores=self.scores[chosen], labels=self.labels[chosen], groups=groups, folds=folds)


def sample_of(table: Scores, number: int, *, part: str | None = None) -> Sample:
    """One label of a table. part: of which its rows are; held-out rows of cross-validation have their folds."""
    return Sample(
        scores=table.scores[:, number],
        labels=table.labels[:, number],
        groups=table.groups,
        group_word=table.group_word,
        folds=table.folds if part == OOF else None,
    )


def attempt(compute: Callable[[], T]) -> T | Absent:
    """The result, or why there is none, in the words of the metric that refused."""
    try:
        return compute()
    except ValueError as error:
        return Absent(" ".join(str(error).split()))


def count_rows(sample: Sample) -> Counts:
    """Labelled rows, classes and patients."""
    missing = int(np.isnan(sample.labels).sum())
    sample = sample.labelled()
    groups, positive = sample.groups, sample.labels == 1
    return Counts(
        rows=len(sample.labels),
        positives=int(positive.sum()),
        negatives=int((sample.labels == 0).sum()),
        missing=missing,
        patients=None if groups is None else int(np.unique(groups).size),
        patients_with_positive=None if groups is None else int(np.unique(groups[positive]).size),
        patients_with_negative=None if groups is None else int(np.unique(groups[sample.labels == 0]).size),
        group_word=sample.group_word,
    )


def by_patient(sample: Sample, *, mean: bool) -> Sample:
    """Every patient as one row: positive where a labelled row is; the highest score of its rows, or their mean."""
    sample = sample.labelled()
    if sample.groups is None:
        return sample
    _, labels = pool_scores(sample.labels, sample.groups, "max")
    _, scores = pool_scores(sample.scores, sample.groups, "mean" if mean else "max")
    folds = None if sample.folds is None else sample.folds[np.unique(sample.groups, return_index=True)[1]]
    return Sample(scores=scores, labels=labels, group_word=sample.group_word, folds=folds)
