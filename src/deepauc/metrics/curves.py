"""ROC and precision-recall curves, and pointwise confidence bands for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.labels import scale_free_array
from deepauc.metrics.basis.bootstrap import resampled_weights
from deepauc.metrics.basis.columns import ArrayLike, Column, Columns, Floats, read_columns
from deepauc.metrics.intervals import require_interval_options, wilson_limits

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class RocCurve:
    """One point a distinct score, from (0, 0) at threshold +inf to (1, 1).

    Attributes:
        fpr: False positive rates.
        tpr: True positive rates.
        thresholds: Positive means score >= threshold.
    """

    fpr: Floats
    tpr: Floats
    thresholds: Floats

    def tpr_at(self, fpr: ArrayLike) -> Floats:
        """The curve's height at false positive rates, straight between its points, the top of a vertical piece."""
        return height_at(np.asarray(fpr, dtype=np.float64), self.fpr, self.tpr)


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """One point a distinct score in order of rising recall, after the conventional (recall 0, precision 1).

    Attributes:
        recall: From 0 up.
        precision: 1 at the first point, by convention.
        thresholds: +inf at the first point.
    """

    recall: Floats
    precision: Floats
    thresholds: Floats


@dataclass(frozen=True)
class Band:
    """A curve on a grid with pointwise confidence limits; all of shape (points,).

    Attributes:
        x: The grid.
        value: The curve on it.
        low: Lower limits, each for its point alone.
        high: Upper limits.
    """

    x: Floats
    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Descending:
    """The order of falling scores, and where in it each distinct score ends."""

    order: Indices
    last_of_value: Indices

    @classmethod
    def of(cls, scores: npt.NDArray[Any]) -> Descending:
        order = np.argsort(scores, kind="stable")[::-1]
        ordered = scores[order]
        return cls(order, np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), ordered.size - 1))

    def totals(self, positive: npt.NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
        """Weights of the positives and of the negatives at or above each distinct score."""
        of_positives = np.where(positive, weights, 0.0)
        true = np.cumsum(of_positives[self.order])[self.last_of_value]
        false = np.cumsum((weights - of_positives)[self.order])[self.last_of_value]
        return true, false

    def counts(self, positive: npt.NDArray[np.bool_], times: Floats) -> tuple[Floats, Floats]:
        """`totals` of weights that are whole numbers: their sums are exact, so that one pass through the rows will do.

        positive: in this order already.
        """
        ordered = times[self.order]
        true, both = np.cumsum(ordered * positive), np.cumsum(ordered)
        if self.last_of_value.size < self.order.size:
            true, both = true[self.last_of_value], both[self.last_of_value]
        return true, both - true


def roc_curve(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> RocCurve | tuple[RocCurve, ...]:
    """The ROC curve, or one a label of (N, L) scores; scores and labels as in `auroc`.

    Examples:
        >>> curve = roc_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        >>> curve.fpr
        array([0. , 0. , 0.5, 0.5, 1. ])
        >>> curve.tpr
        array([0. , 0.5, 0.5, 1. , 1. ])
    """
    columns = read_columns(scores, labels, weights=weights)
    curves = tuple(roc_of(column) for column in columns)
    return curves[0] if columns.scores.ndim == 1 else curves


def precision_recall_curve(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> PrecisionRecallCurve | tuple[PrecisionRecallCurve, ...]:
    """The precision-recall curve, or one a label of (N, L) scores; scores and labels as in `auroc`."""
    columns = read_columns(scores, labels, weights=weights)
    curves = tuple(precision_recall_of(column) for column in columns)
    return curves[0] if columns.scores.ndim == 1 else curves


def roc_band(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    points: int = 101,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Band | tuple[Band, ...]:
    """The ROC curve on a grid of false positive rates, with pointwise limits for the true positive rate.

    Limits hold at one false positive rate at a time, not for the whole curve at once. They are percentiles of the
    bootstrap (each class resampled on its own; whole patients with groups), widened to Wilson's limits for a share of
    the positives (of the patients with a positive) where these are wider, so that the band does not vanish where every
    resample agrees. Other options as in `auroc_interval`.

    Args:
        points: Number of points of the grid.
    """
    columns = read_columns(scores, labels, groups=groups)
    bands = tuple(roc for roc, _ in _bands(columns, level, points, n_resamples, seed))
    return bands[0] if columns.scores.ndim == 1 else bands


def precision_recall_band(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    points: int = 101,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Band | tuple[Band, ...]:
    """Precision on a grid of recalls, with pointwise limits made as in `roc_band`.

    Precision at recall r is that of the highest threshold whose recall reaches r (nothing is drawn between points:
    straight lines are too optimistic there; Davis & Goadrich, 2006). Other options as in `auroc_interval`.
    """
    columns = read_columns(scores, labels, groups=groups)
    bands = tuple(precision for _, precision in _bands(columns, level, points, n_resamples, seed))
    return bands[0] if columns.scores.ndim == 1 else bands


def both_bands(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    *,
    level: float = 0.95,
    groups: npt.NDArray[Any] | None = None,
    points: int = 101,
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[Band, Band]:
    """`roc_band` and `precision_recall_band` of (N,) scores, from one bootstrap: in half the time."""
    (both,) = _bands(read_columns(scores, labels, groups=groups), level, points, n_resamples, seed)
    return both


def roc_of(column: Column) -> RocCurve:
    """The ROC curve of one checked column."""
    column.require_both_classes("a ROC curve")
    thresholds, true, false = _cumulative(column.with_classes_apart())
    return RocCurve(fpr=share_of_last(false), tpr=share_of_last(true), thresholds=np.append(np.inf, thresholds))


def precision_recall_of(column: Column) -> PrecisionRecallCurve:
    """The precision-recall curve of one checked column."""
    column.require_both_classes("a precision-recall curve")
    thresholds, true, false = _cumulative(column)
    return PrecisionRecallCurve(
        recall=share_of_last(true),
        precision=np.append(1.0, true / (true + false)),
        thresholds=np.append(np.inf, thresholds),
    )


def area_in_steps(recall: Floats, precision: Floats) -> float:
    """The average precision: Σ_k (R_k - R_{k-1}) P_k."""
    return min(float(np.diff(recall) @ precision[1:]), 1.0)  # rounding alone would pass 1


def _cumulative(column: Column) -> tuple[Floats, Floats, Floats]:
    """Distinct scores, falling, and the weights of the positives and of the negatives at or above each of them.

    Rows of weight 0 take no part.
    """
    scores, positive, weights = column.scores, column.positive, column.weights
    if weights is None:
        weights = np.ones(scores.size)
    else:
        held = weights > 0
        scores, positive, weights = scores[held], positive[held], scale_free_array(weights[held])
    descending = Descending.of(scores)
    thresholds = scores[descending.order][descending.last_of_value].astype(np.float64)
    return thresholds, *descending.totals(positive, weights)


def height_at(x: Floats, fpr: Floats, tpr: Floats) -> Floats:
    """A rising piecewise straight curve at x; where it is vertical, its top."""
    left = np.searchsorted(fpr, x, side="right") - 1
    right = np.minimum(left + 1, fpr.size - 1)
    run = np.where(right > left, fpr[right] - fpr[left], 1.0)
    return tpr[left] + (x - fpr[left]) / run * (tpr[right] - tpr[left])


def _bands(columns: Columns, level: float, points: int, n_resamples: int, seed: int) -> list[tuple[Band, Band]]:
    """Of each column the true positive rate over the false one, and precision over recall."""
    require_interval_options(level, n_resamples)
    grid = np.linspace(0.0, 1.0, points)
    found = []
    for column in columns:
        column.require_both_classes("a confidence band")
        descending = Descending.of(column.scores)
        positive = column.positive[descending.order]
        drawn = np.empty((2, n_resamples, points))
        resamples = resampled_weights(column, n_resamples=n_resamples, rng=np.random.default_rng(seed))
        for place, times in enumerate(resamples):
            drawn[:, place] = _on_grid(grid, *descending.counts(positive, times))
        true, false = descending.counts(positive, np.ones(column.scores.size))
        reached = recall_reached(grid, true)
        called = np.minimum(true[reached] + false[reached], _independent(column, np.ones_like(column.positive)))
        trials = np.full(points, float(_independent(column, column.positive))), called
        found.append(bands_around(grid, _on_grid(grid, true, false), drawn, trials, level))
    return found


def bands_around(
    grid: Floats, values: Sequence[Floats], drawn: Floats, trials: Sequence[Floats], level: float
) -> tuple[Band, Band]:
    """The percentiles of two curves' resamples, (2, n_resamples, points), widened to Wilson's limits.

    values: (points,) the two curves. trials: how many independent ones are behind each of their points.
    """
    bands = []
    for value, curves, behind in zip(values, drawn, trials, strict=True):
        low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
        wilson = np.array([wilson_limits(v * n, n, level) for v, n in zip(value, behind, strict=True)])
        bands.append(Band(grid, value, np.minimum(low, wilson[:, 0]), np.maximum(high, wilson[:, 1])))
    return bands[0], bands[1]


def _on_grid(grid: Floats, true: Floats, false: Floats) -> tuple[Floats, Floats]:
    """The true positive rate at these false positive rates, and precision at these recalls."""
    reached = recall_reached(grid, true)
    tpr = height_at(grid, share_of_last(false), share_of_last(true))
    return tpr, true[reached] / (true[reached] + false[reached])


def recall_reached(grid: Floats, true: Floats) -> Indices:
    """The highest threshold that finds at least one positive and a share `grid` of them."""
    needed = np.maximum(grid * true[-1] * (1 - 1e-12), np.nextafter(0.0, 1.0))
    return np.searchsorted(true, needed, side="left")


def _independent(column: Column, rows: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(rows)) if column.groups is None else np.unique(column.groups[rows]).size


def share_of_last(totals: Floats) -> Floats:
    """Running totals over the last of them, after a 0."""
    return np.append(0.0, totals / totals[-1])
