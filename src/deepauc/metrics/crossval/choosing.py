"""Which candidate to keep after cross-validation, and what its AUROC is once the choosing is taken into account.

The default candidate is fixed beforehand. Another one replaces it only if its mean AUROC over folds is higher by more
than one *paired* standard error; of several such the best is kept. A trivial baseline is never kept alone; its average
with the kept candidate replaces that candidate by the same rule.

The best of several looks too good, since luck helps it to be chosen. The figure that is reported comes from a choice
that has not seen what it is judged on: for each fold, the rule is applied to the other folds, and the fold is judged
with the candidate chosen there. Of six candidates with 15 to 30 positives this leaves a bias within .004, where the
plain figure of the kept one is .016 to .051 too high and a bootstrap correction makes it .008 to .025 too low
(`results/choosing.md`, by `benchmarks/choosing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.columns import ArrayLike, to_numpy
from deepauc.metrics.crossval.folds import (
    FoldComparison,
    FoldEstimate,
    compare_fold_auroc,
    fold_auroc_interval,
    labels_with_pairs,
)

Array = npt.NDArray[Any]
Name = TypeVar("Name", str, str | None)
STANDARD_ERRORS = 1.0  # by which a candidate must be better


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The candidate that is kept; figures are means over labels.

    auc: corrected for the choosing. uncorrected: the kept candidate's own, as the leaderboard shows it.
    composed: the scores (N, L) that `auc` is of, each fold's by the candidate that the other folds choose.
    with_trivial: the baseline that joins it in the average, if one does. clearly_better: whether the kept candidate is
    better than the best trivial baseline beyond chance (95 %); None where there is none to compare with.
    """

    name: str
    auc: FoldEstimate
    uncorrected: FoldEstimate
    composed: Array = field(compare=False, repr=False)
    with_trivial: str | None = None
    trivial: str | None = None  # the best trivial baseline
    against_trivial: FoldComparison | None = None

    @property
    def clearly_better(self) -> bool | None:
        return None if self.against_trivial is None else bool(self.against_trivial.low > 0)


def choose(
    candidates: Mapping[str, ArrayLike],
    labels: ArrayLike,
    folds: ArrayLike,
    *,
    default: str,
    groups: ArrayLike | None = None,
    trivial: Mapping[str, ArrayLike] | None = None,
    averages: Mapping[tuple[str, str], ArrayLike] | None = None,
) -> Kept:
    """Choose by out-of-fold scores, (N,) or (N, L) for each candidate; labels of the same shape, folds and groups (N,).

    trivial: the baselines' scores. averages: by (candidate, baseline), the scores of the two averaged; pairs that are
    not given do not take part. Labels without a positive and a negative in any one fold are left out.

    >>> labels, folds = [1, 0, 0, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2]
    >>> weak, strong = [0, 0, 1, 0, 1, 0, 1, 1, 0], [2, 0, 1, 3, 1, 0, 2, 1, 0]
    >>> choose({"weak": weak, "strong": strong}, labels, folds, default="weak").name
    'strong'
    """
    if default not in candidates:
        raise ValueError(f"the default candidate {default!r} is not among {', '.join(candidates)}.")
    known = to_numpy(labels, "labels")
    known = known.reshape(len(known), -1)
    board = _Board(
        {name: _columns(scores, known.shape) for name, scores in candidates.items()},
        {name: _columns(scores, known.shape) for name, scores in (trivial or {}).items()},
        {pair: _columns(scores, known.shape) for pair, scores in (averages or {}).items()},
        known,
        to_numpy(folds, "folds"),
        None if groups is None else to_numpy(groups),
        default,
    )
    if not board.judged.any():
        raise ValueError("no fold holds a positive and a negative, so no candidate can be judged: use fewer folds.")
    name, joined = board.pick()
    best, against = None, None
    if board.trivial:
        best = max(board.trivial, key=lambda one: float(board.interval(board.trivial[one]).value))
        against = board.compare(board.candidates[name], board.trivial[best])
    composed = board.chosen_without_the_fold()
    return Kept(
        name=name,
        auc=board.interval(composed),
        composed=composed,
        uncorrected=board.interval(board.scores(name, joined)),
        with_trivial=joined,
        trivial=best,
        against_trivial=against,
    )


@dataclass(frozen=True)
class _Board:
    """All scores on some rows."""

    candidates: dict[str, Array]
    trivial: dict[str, Array]
    averages: dict[tuple[str, str], Array]
    labels: Array  # (N, L)
    folds: Array
    groups: Array | None
    default: str

    @cached_property
    def judged(self) -> npt.NDArray[np.bool_]:
        """(L,) the labels that have a positive and a negative in some fold."""
        return labels_with_pairs(self.labels, self.folds)

    def interval(self, scores: Array) -> FoldEstimate:
        of = self.judged
        return fold_auroc_interval(scores[:, of], self.labels[:, of], self.folds, groups=self.groups, average=True)

    def compare(self, scores: Array, other: Array) -> FoldComparison:
        of = self.judged
        return compare_fold_auroc(
            scores[:, of], other[:, of], self.labels[:, of], self.folds, groups=self.groups, average=True
        )

    def scores(self, name: str, joined: str | None) -> Array:
        return self.candidates[name] if joined is None else self.averages[name, joined]

    def pick(self) -> tuple[str, str | None]:
        """The rule: a candidate, and the baseline that joins it."""
        name = self._best(self.candidates, self.default)
        joining: dict[str | None, Array] = {None: self.candidates[name]}
        joining |= {baseline: scores for (of, baseline), scores in self.averages.items() if of == name}
        return name, self._best(joining, None)

    def _best(self, offered: Mapping[Name, Array], incumbent: Name) -> Name:
        """The one that is better than the incumbent by most, if by more than a standard error; else the incumbent."""
        best, most = incumbent, 0.0
        for name, scores in offered.items():
            if name == incumbent:
                continue
            found = self.compare(scores, offered[incumbent])
            gain = float(found.difference)
            if gain > max(STANDARD_ERRORS * float(found.standard_error), most):
                best, most = name, gain
        return best

    def chosen_without_the_fold(self) -> Array:
        """Each fold's scores by the candidate that the rule keeps on the other folds; where there are none, its own."""
        folds = np.unique(self.folds)
        if len(folds) == 1:
            return self.scores(*self.pick())
        composed = self.candidates[self.default].astype(np.float64)
        for fold in folds:
            held = self.folds == fold
            others = self._rows(~held)
            if others.judged.any():
                composed[held] = self.scores(*others.pick())[held]
        return composed

    def _rows(self, rows: npt.NDArray[np.bool_]) -> _Board:
        return _Board(
            {name: scores[rows] for name, scores in self.candidates.items()},
            {},
            {pair: scores[rows] for pair, scores in self.averages.items()},
            self.labels[rows],
            self.folds[rows],
            None if self.groups is None else self.groups[rows],
            self.default,
        )


def _columns(scores: ArrayLike, shape: tuple[int, ...]) -> Array:
    array = to_numpy(scores, "scores")
    if array.shape != shape and not (array.ndim == 1 and shape == (len(array), 1)):
        raise ValueError(f"scores have shape {array.shape}; all candidates need {shape}, one score for each label.")
    return array.reshape(shape)
