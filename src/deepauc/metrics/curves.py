"""ROC and precision-recall curves, and pointwise confidence bands for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.bootstrap import resampled_weights
from deepauc.metrics.columns import ArrayLike, Column, Columns, Floats, read_columns
from deepauc.metrics.intervals import require_interval_options, wilson_limits

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class RocCurve:
    """One point a distinct score, from (0, 0) at threshold +inf to (1, 1); positive means score >= threshold."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats

    def tpr_at(self, fpr: ArrayLike) -> Floats:
        """The curve's height at false positive rates, straight between its points, the top of a vertical piece."""
        return height_at(np.asarray(fpr, dtype=np.float64), self.fpr, self.tpr)


@dataclass(frozen=True)
class PrecisionRecallCurve:
    """One point a distinct score in order of rising recall, after the conventional (recall 0, precision 1) at +inf."""

    recall: Floats
    precision: Floats
    thresholds: Floats


@dataclass(frozen=True)
class Band:
    """A curve on a common grid `x` with pointwise confidence limits; all of shape (points,)."""

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
class _Descending:
    """The order of falling scores, and where in it each distinct score ends."""

    order: Indices
    last_of_value: Indices

    @classmethod
    def of(cls, scores: npt.NDArray[Any]) -> _Descending:
        order = np.argsort(scores, kind="stable")[::-1]
        ordered = scores[order]
        return cls(order, np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), ordered.size - 1))

    def totals(self, positive: npt.NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
        """Weights of the positives and of the negatives at or above each distinct score."""
        of_positives = np.where(positive, weights, 0.0)
        true = np.cumsum(of_positives[self.order])[self.last_of_value]
        false = np.cumsum((weights - of_positives)[self.order])[self.last_of_value]
        return true, false


def roc_curve(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> RocCurve | tuple[RocCurve, ...]:
    """The ROC curve of (N,) scores, or one a label of (N, L) scores; labels 0/1, NaN where missing."""
    columns = read_columns(scores, labels, weights=weights)
    curves = tuple(roc_of(column) for column in columns)
    return curves[0] if columns.scores.ndim == 1 else curves


def precision_recall_curve(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> PrecisionRecallCurve | tuple[PrecisionRecallCurve, ...]:
    """The precision-recall curve of (N,) scores, or one a label of (N, L) scores."""
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
    resample agrees.
    """
    columns = read_columns(scores, labels, groups=groups)
    return _bands(columns, _tpr_on_grid, _positives_behind, level, points, n_resamples, seed)


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
    straight lines are too optimistic there; Davis & Goadrich, 2006).
    """
    columns = read_columns(scores, labels, groups=groups)
    return _bands(columns, _precision_on_grid, _calls_behind, level, points, n_resamples, seed)


def roc_of(column: Column) -> RocCurve:
    """The ROC curve of one checked column."""
    column.require_both_classes("a ROC curve")
    c = cumulative(column)
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
        scores, positive, weights = scores[held], positive[held], weights[held]
    descending = _Descending.of(scores)
    true, false = descending.totals(positive, weights)
    thresholds = scores[descending.order][descending.last_of_value].astype(np.float64)
    return Cumulative(thresholds, true, false)


def height_at(x: Floats, fpr: Floats, tpr: Floats) -> Floats:
    """A rising piecewise straight curve at x; where it is vertical, its top."""
    left = np.searchsorted(fpr, x, side="right") - 1
    right = np.minimum(left + 1, fpr.size - 1)
    run = np.where(right > left, fpr[right] - fpr[left], 1.0)
    return tpr[left] + (x - fpr[left]) / run * (tpr[right] - tpr[left])


def _bands(
    columns: Columns,
    on_grid: Callable[[Floats, Floats, Floats], Floats],
    trials_behind: Callable[[Column, Floats, Floats, Floats], Floats],
    level: float,
    points: int,
    n_resamples: int,
    seed: int,
) -> Band | tuple[Band, ...]:
    require_interval_options(level, n_resamples)
    grid = np.linspace(0.0, 1.0, points)
    bands = []
    for column in columns:
        column.require_both_classes("a confidence band")
        descending = _Descending.of(column.scores)
        true, false = descending.totals(column.positive, np.ones(column.scores.size))
        value = on_grid(grid, true, false)
        resamples = resampled_weights(column, n_resamples=n_resamples, rng=np.random.default_rng(seed))
        drawn = np.array([on_grid(grid, *descending.totals(column.positive, w)) for w in resamples])
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
        trials = trials_behind(column, grid, true, false)
        wilson = np.array([wilson_limits(v * n, n, level) for v, n in zip(value, trials, strict=True)])
        bands.append(Band(grid, value, np.minimum(low, wilson[:, 0]), np.maximum(high, wilson[:, 1])))
    return bands[0] if columns.scores.ndim == 1 else tuple(bands)


def _tpr_on_grid(grid: Floats, true: Floats, false: Floats) -> Floats:
    return height_at(grid, _from_zero(false / false[-1]), _from_zero(true / true[-1]))


def _precision_on_grid(grid: Floats, true: Floats, false: Floats) -> Floats:
    reached = _first_reaching(grid, true)
    return true[reached] / (true[reached] + false[reached])


def _first_reaching(grid: Floats, true: Floats) -> Indices:
    """The highest threshold that finds at least one positive and a share `grid` of them."""
    needed = np.maximum(grid * true[-1] * (1 - 1e-12), np.nextafter(0.0, 1.0))
    return np.searchsorted(true, needed, side="left")


def _positives_behind(column: Column, grid: Floats, true: Floats, false: Floats) -> Floats:
    return np.full(grid.size, float(_independent(column, column.positive)))


def _calls_behind(column: Column, grid: Floats, true: Floats, false: Floats) -> Floats:
    reached = _first_reaching(grid, true)
    return np.minimum(true[reached] + false[reached], _independent(column, np.ones_like(column.positive)))


def _independent(column: Column, rows: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(rows)) if column.groups is None else np.unique(column.groups[rows]).size


def _from_zero(values: Floats) -> Floats:
    return np.concatenate([[0.0], values])
