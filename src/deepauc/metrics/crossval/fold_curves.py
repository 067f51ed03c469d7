"""ROC and precision-recall curves of cross-validation: every threshold is a fold's own, what it finds is summed.

Scores of different networks have no common scale: put together, a fold whose network scores higher throughout would
rank its negatives above another fold's positives, and the curve would fall below that of every single fold. So rows are
only ever ranked within their fold (`deepauc.metrics.crossval.folds`).

ROC: the vertical mean at each false positive rate x, weighted as `fold_auroc` weights the folds,

    TPR(x) = Σ_f (m_f n_f / P) TPR_f(x),    P = Σ_f m_f n_f,

so that the area under it is `fold_auroc` exactly. With a fold as the covariate it is the covariate-adjusted ROC curve
of Janes and Pepe (2009), but for their weights m_f / M.

Precision-recall: at recall r each fold has the highest threshold that reaches r in it, and the counts of all folds are
summed before the ratio is taken (Forman and Scholz, 2010): R(r) = Σ_f TP_f / M, P(r) = Σ_f TP_f / Σ_f (TP_f + FP_f).
The average precision is the area in steps under that curve, Σ_k (R_k - R_{k-1}) P_k; with one fold it is the usual one.
A fold that lacks a class counts in neither.

Bands are pointwise percentiles of a bootstrap that draws rows of all folds (each class on its own; whole patients with
groups), each row staying in its fold, widened to Wilson's limits as in `deepauc.metrics.curves`. Drawing within each
fold would be too narrow: three positives of a fold vary less among themselves than three others would. Of 400 simulated
cross-validations each (five folds of 3, 6 or 20 positives and ten times as many negatives, AUC .7 to .9) the band at a
false positive rate of .1 and of .3 holds the true sensitivity in .935 to .998 (`pytest -m slow`, test_fold_curves.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.bootstrap import canonical_order, require_resamplable, resampled_counts, resampled_weights
from deepauc.metrics.basis.columns import ArrayLike, Column, Floats, read_columns
from deepauc.metrics.crossval.folds import fold_codes, fold_parts
from deepauc.metrics.curves import (
    Band,
    Descending,
    area_in_steps,
    bands_around,
    height_at,
    recall_reached,
    share_of_last,
)
from deepauc.metrics.intervals import Estimate, percentile_limits, require_interval_options
from deepauc.metrics.partial import Region

Codes = npt.NDArray[np.intp]
Totals = list[tuple[Floats, Floats]]  # of each fold: positives and negatives at or above each distinct score, falling

MOST_STEPS = 1000  # of recall, at which precision is looked at; all there are up to as many positives


@dataclass(frozen=True)
class FoldCurves:
    """ROC (fpr, tpr) as a line from (0, 0) to (1, 1); precision in steps over rising recall. each_roc: of each fold."""

    fpr: Floats
    tpr: Floats
    recall: Floats
    precision: Floats
    each_roc: tuple[tuple[Floats, Floats], ...]

    @property
    def average_precision(self) -> float:
        return area_in_steps(self.recall, self.precision)


def fold_curves(scores: ArrayLike, labels: ArrayLike, folds: ArrayLike) -> FoldCurves:
    """The curves of one label: scores, labels and folds (N,).

    >>> curves = fold_curves([0.9, 0.1, 7.0, 8.0], [1, 0, 1, 0], ["a", "a", "b", "b"])
    >>> curves.tpr
    array([0. , 0.5, 0.5, 1. ])
    """
    totals = _Within.of(scores, labels, folds).totals()
    fpr, tpr = _mean_roc(totals)
    recall, precision = _precision_over_recall(totals)
    return FoldCurves(fpr=fpr, tpr=tpr, recall=recall, precision=precision, each_roc=tuple(_each_roc(totals)))


def fold_bands(
    scores: ArrayLike,
    labels: ArrayLike,
    folds: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    points: int = 101,
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[Band, Band]:
    """Pointwise limits of the true positive rate over the false one, and of precision over recall; one label."""
    require_interval_options(level, n_resamples)
    within = _Within.of(scores, labels, folds, groups)
    grid, totals = np.linspace(0.0, 1.0, points), within.totals()
    drawn = np.empty((2, n_resamples, points))
    rng = np.random.default_rng(seed)
    for place in range(n_resamples):
        drawn[:, place] = _on_grid(grid, within.resampled(rng))
    positive, rows = within.independent
    trials = np.full(points, float(positive)), np.minimum(_called(grid, totals)[1], rows)
    return bands_around(grid, _on_grid(grid, totals), drawn, trials, level)


def fold_average_precision_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    folds: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Estimate[float]:
    """The average precision of `fold_curves`, with percentiles of a bootstrap over all rows (whole patients)."""
    require_interval_options(level, n_resamples)
    within = _Within.of(scores, labels, folds, groups)
    require_resamplable(within.column, "an interval of average precision", stratified=False)
    order, rng = canonical_order(within.column), np.random.default_rng(seed)
    drawn = []
    for block in resampled_counts(within.column, stratified=False, n_resamples=n_resamples, rng=rng):
        for counts in block:
            times = np.empty(order.size)
            times[order] = counts
            if totals := within.totals(times):
                drawn.append(area_in_steps(*_precision_over_recall(totals)))
    value = area_in_steps(*_precision_over_recall(within.totals()))
    return Estimate(value, *percentile_limits(value, np.array(drawn), level))


def fold_partial_auroc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    folds: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Estimate[float]:
    """The area of a region under the mean ROC curve, with percentiles of the bootstrap of `fold_bands`."""
    region = Region(max_fpr=max_fpr, min_tpr=min_tpr)
    require_interval_options(level, n_resamples)
    within, rng = _Within.of(scores, labels, folds, groups), np.random.default_rng(seed)
    require_resamplable(within.column, "an interval of the partial AUC", stratified=False)
    value = float(region.area(*_mean_roc(within.totals())))
    drawn = [region.area(*_mean_roc(within.resampled(rng))) for _ in range(n_resamples)]
    return Estimate(value, *percentile_limits(value, np.array(drawn), level))


@dataclass(frozen=True)
class _Within:
    """One label's rows in folds that hold both classes, each fold's in the order of falling scores."""

    column: Column
    folds: list[tuple[Codes, Descending]]  # row numbers of the fold, and their order

    @classmethod
    def of(cls, scores: ArrayLike, labels: ArrayLike, folds: ArrayLike, groups: ArrayLike | None = None) -> _Within:
        columns = read_columns(scores, labels, groups=groups)
        if columns.scores.ndim != 1 or not columns.complete:
            raise ValueError("curves of folds are of one label, (N,), without missing ones: leave those rows out.")
        codes, (column,) = fold_codes(folds, columns), columns
        rows = [np.flatnonzero(codes == fold) for fold, _ in fold_parts(column, codes)]
        if not rows:
            raise ValueError(f"no fold holds a positive and a negative{column.where}: use fewer folds.")
        return cls(column, [(of, Descending.of(column.scores[of])) for of in rows])

    def totals(self, times: Floats | None = None) -> Totals:
        """Of the folds in which both classes occur. times: how often each row does; by default once."""
        found = []
        for rows, descending in self.folds:
            weights = np.ones(rows.size) if times is None else times[rows]
            true, false = descending.counts(self.column.positive[rows][descending.order], weights)
            if true[-1] > 0 and false[-1] > 0:
                found.append((true, false))
        return found

    def resampled(self, rng: np.random.Generator) -> Totals:
        """Of one bootstrap sample; one that leaves no fold with both classes is drawn again."""
        while True:
            (times,) = resampled_weights(self.column, n_resamples=1, rng=rng)
            if totals := self.totals(times):
                return totals

    @property
    def independent(self) -> tuple[int, int]:
        """Positive rows and all rows of these folds, or patients that have some."""
        rows = np.concatenate([rows for rows, _ in self.folds])
        positive, groups = self.column.positive[rows], self.column.groups
        if groups is None:
            return int(positive.sum()), rows.size
        return np.unique(groups[rows][positive]).size, np.unique(groups[rows]).size


def _weights(totals: Totals) -> Floats:
    pairs = np.array([true[-1] * false[-1] for true, false in totals])
    return np.asarray(pairs / pairs.sum(), dtype=np.float64)


def _each_roc(totals: Totals) -> list[tuple[Floats, Floats]]:
    return [(share_of_last(false), share_of_last(true)) for true, false in totals]


def _mean_roc(totals: Totals) -> tuple[Floats, Floats]:
    """At every false positive rate that a fold can have, the mean of the folds' curves below and above a step there."""
    each, weights = _each_roc(totals), _weights(totals)
    x = np.unique(np.concatenate([fpr for fpr, _ in each]))
    bottoms, tops = (np.array([of(x, *curve) for curve in each]) for of in (_bottom_at, height_at))
    tpr = np.stack([weights @ bottoms, weights @ tops], axis=1).ravel()
    return np.repeat(x, 2), np.minimum(tpr, 1.0)  # rounding alone would pass 1


def _on_grid(grid: Floats, totals: Totals) -> tuple[Floats, Floats]:
    """The mean true positive rate at these false positive rates, and precision at these recalls."""
    heights = [height_at(grid, *curve) for curve in _each_roc(totals)]
    found, called = _called(grid, totals)
    return np.minimum(_weights(totals) @ np.array(heights), 1.0), found / called


def _called(recalls: Floats, totals: Totals) -> tuple[Floats, Floats]:
    """Of all folds, each at its own threshold for a recall: positives found, and rows called positive."""
    found, called = np.zeros(recalls.size), np.zeros(recalls.size)
    for true, false in totals:
        reached = recall_reached(recalls, true)
        found += true[reached]
        called += true[reached] + false[reached]
    return found, called


def _precision_over_recall(totals: Totals) -> tuple[Floats, Floats]:
    """The curve at every recall that a fold can have, after the conventional (0, 1)."""
    asked = np.unique(
        np.concatenate([true[np.flatnonzero(np.diff(true, prepend=0.0))] / true[-1] for true, _ in totals])
    )
    if asked.size > MOST_STEPS:
        asked = np.append(asked[:: -(-asked.size // MOST_STEPS)], 1.0)
    found, called = _called(asked, totals)
    return share_of_last(found), np.append(1.0, found / called)


def _bottom_at(x: Floats, fpr: Floats, tpr: Floats) -> Floats:
    """A rising piecewise straight curve at x; where it is vertical, its bottom."""
    first = np.searchsorted(fpr, x, side="left")
    return np.where(fpr[first] == x, tpr[first], height_at(x, fpr, tpr))
