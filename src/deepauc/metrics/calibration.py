"""How far probabilities can be taken at their word: Brier score, calibration error, reliability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.columns import ArrayLike, Column, FloatOrArray, Floats, read_probabilities
from deepauc.metrics.intervals import wilson_limits


@dataclass(frozen=True)
class ReliabilityCurve:
    """Observed share of positives beside the mean prediction, one entry an occupied bin."""

    predicted: Floats
    observed: Floats
    low: Floats  # Wilson's limits of `observed`
    high: Floats
    count: npt.NDArray[np.int64]  # rows in the bin
    weight: Floats  # their weights' share of the total


def brier_score(probabilities: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> FloatOrArray:
    """The mean of (p - y)² (Brier, 1950) over labelled rows; (N,) gives a float, (N, L) an array (L,)."""
    columns = read_probabilities(probabilities, labels, weights=weights)
    return columns.collect([float(c.shares() @ (c.scores.astype(np.float64) - c.positive) ** 2) for c in columns])


def expected_calibration_error(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    equal_width: bool = False,
    weights: ArrayLike | None = None,
) -> FloatOrArray:
    """ECE = Σ_b w_b |mean p - mean y| over bins b of the predictions (Naeini et al., 2015).

    Bins hold equally many rows: at 1 % positives, bins of equal width (`equal_width=True`, the older convention) put
    almost all rows into the first one. Equal predictions are never parted. (N,) gives a float, (N, L) an array (L,).
    """
    columns = read_probabilities(probabilities, labels, weights=weights)
    values = []
    for column in columns:
        r = _reliability(column, bins, equal_width, level=0.95)
        values.append(float(r.weight @ np.abs(r.predicted - r.observed)))
    return columns.collect(values)


def reliability_curve(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    equal_width: bool = False,
    level: float = 0.95,
    weights: ArrayLike | None = None,
) -> ReliabilityCurve | tuple[ReliabilityCurve, ...]:
    """What a reliability plot shows, with Wilson's limits (for the number of rows, whatever their weights)."""
    columns = read_probabilities(probabilities, labels, weights=weights)
    curves = tuple(_reliability(column, bins, equal_width, level) for column in columns)
    return curves[0] if columns.scores.ndim == 1 else curves


def _reliability(column: Column, bins: int, equal_width: bool, level: float) -> ReliabilityCurve:
    if bins < 1:
        raise ValueError(f"bins is {bins}; it must be at least 1.")
    p, weights = column.scores.astype(np.float64), column.shares()
    inner = np.arange(1, bins) / bins
    # A value on an edge belongs to the bin below, so that rows of equal prediction stay together.
    edges = inner if equal_width else np.quantile(p, inner, method="inverted_cdf")
    number = np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)[1]
    count = np.bincount(number)
    weight = np.bincount(number, weights).astype(np.float64)
    held = weight > 0
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(number, weights * p) / weight
        observed = np.bincount(number, weights * column.positive) / weight
    limits = [wilson_limits(o * n, n, level) for o, n in zip(observed[held], count[held], strict=True)]
    low, high = np.array(limits).T
    return ReliabilityCurve(predicted[held], observed[held], low, high, count[held], weight[held])
