"""ROC and precision-recall curves, and pointwise confidence bands for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
class Cumulative:
    """Weights of positives and negatives at or above each distinct score, the scores descending."""

    thresholds: Floats
    true_positives: Floats
    false_positives: Floats


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
    (bands,) = _bands(columns, [_ROC], level, points, n_resamples, seed)
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
    (bands,) = _bands(columns, [_PRECISION], level, points, n_resamples, seed)
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
    """`roc_band` and `precision_recall_band` of (N,) scores, to the bit, from one bootstrap: in half the time."""
    columns = read_columns(scores, labels, groups=groups)
    (roc,), (precision,) = _bands(columns, [_ROC, _PRECISION], level, points, n_resamples, seed)
    return roc, precision


def roc_of(column: Column) -> RocCurve:
    """The ROC curve of one checked column."""
    column.require_both_classes("a ROC curve")
    c = cumulative(column.with_classes_apart())
    return RocCurve(
        fpr=_from_zero(c.false_positives / c.false_positives[-1]),
        tpr=_from_zero(c.true_positives / c.true_positives[-1]),
        thresholds=np.concatenate([[np.inf], c.thresholds]),
    )


def precision_recall_of(column: Column) -> PrecisionRecallCurve:
    """The precision-recall curve of one checked column."""
    column.require_both_classes("a precision-recall curve")
    c = cumulative(column)
    precision = c.true_positives / (c.true_positives + c.false_positives)
    return PrecisionRecallCurve(
        recall=_from_zero(c.true_positives / c.true_positives[-1]),
        precision=np.concatenate([[1.0], precision]),
        thresholds=np.concatenate([[np.inf], c.thresholds]),
    )


def cumulative(column: Column) -> Cumulative:
    """Running totals over descending distinct scores; rows of weight 0 take no part."""
    scores, positive, weights = column.scores, column.positive, column.weights
    if weights is None:
        weights = np.ones(scores.size)
    else:
        held = weights > 0
        scores, positive, weights = scores[held], positive[held], scale_free_array(weights[held])
    descending = Descending.of(scores)
    true, false = descending.totals(positive, weights)
    thresholds = scores[descending.order][descending.last_of_value].astype(np.float64)
    return Cumulative(thresholds, true, false)


def height_at(x: Floats, fpr: Floats, tpr: Floats) -> Floats:
    """A rising piecewise straight curve at x; where it is vertical, its top."""
    left = np.searchsorted(fpr, x, side="right") - 1
    right = np.minimum(left + 1, fpr.size - 1)
    run = np.where(right > left, fpr[right] - fpr[left], 1.0)
    return tpr[left] + (x - fpr[left]) / run * (tpr[right] - tpr[left])


@dataclass(frozen=True)
class _Kind:
    """A curve on a grid from running totals, and how many independent trials are behind each of its points."""

    on_grid: Callable[[Floats, Floats, Floats], Floats]
    trials_behind: Callable[[Column, Floats, Floats, Floats], Floats]


def _bands(
    columns: Columns, kinds: Sequence[_Kind], level: float, points: int, n_resamples: int, seed: int
) -> list[tuple[Band, ...]]:
    """For each kind a band a column."""
    require_interval_options(level, n_resamples)
    grid = np.linspace(0.0, 1.0, points)
    found: list[list[Band]] = [[] for _ in kinds]
    for column in columns:
        column.require_both_classes("a confidence band")
        descending = Descending.of(column.scores)
        positive = column.positive[descending.order]
        true, false = descending.counts(positive, np.ones(column.scores.size))
        drawn = np.empty((len(kinds), n_resamples, points))
        resamples = resampled_weights(column, n_resamples=n_resamples, rng=np.random.default_rng(seed))
        for place, times in enumerate(resamples):
            totals = descending.counts(positive, times)
            for kind, curves in zip(kinds, drawn, strict=True):
                curves[place] = kind.on_grid(grid, *totals)
        for kind, curves, bands in zip(kinds, drawn, found, strict=True):
            value = kind.on_grid(grid, true, false)
            low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
            trials = kind.trials_behind(column, grid, true, false)
            wilson = np.array([wilson_limits(v * n, n, level) for v, n in zip(value, trials, strict=True)])
            bands.append(Band(grid, value, np.minimum(low, wilson[:, 0]), np.maximum(high, wilson[:, 1])))
    return [tuple(bands) for bands in found]


def _tpr_on_grid(grid: Floats, true: Floats, false: Floats) -> Floats:
    return height_at(grid, _from_zero(false / false[-1]), _from_zero(true / true[-1]))


def _precision_on_grid(grid: Floats, true: Floats, false: Floats) -> Floats:
    reached = recall_reached(grid, true)
    return true[reached] / (true[reached] + false[reached])


def recall_reached(grid: Floats, true: Floats) -> Indices:
    """The highest threshold that finds at least one positive and a share `grid` of them."""
    needed = np.maximum(grid * true[-1] * (1 - 1e-12), np.nextafter(0.0, 1.0))
    return np.searchsorted(true, needed, side="left")


def _positives_behind(column: Column, grid: Floats, true: Floats, false: Floats) -> Floats:
    return np.full(grid.size, float(_independent(column, column.positive)))


def _calls_behind(column: Column, grid: Floats, true: Floats, false: Floats) -> Floats:
    reached = recall_reached(grid, true)
    return np.minimum(true[reached] + false[reached], _independent(column, np.ones_like(column.positive)))


def _independent(column: Column, rows: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(rows)) if column.groups is None else np.unique(column.groups[rows]).size


def _from_zero(values: Floats) -> Floats:
    return np.concatenate([[0.0], values])


_ROC = _Kind(_tpr_on_grid, _positives_behind)
_PRECISION = _Kind(_precision_on_grid, _calls_behind)
