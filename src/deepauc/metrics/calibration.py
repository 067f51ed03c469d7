"""How far probabilities can be taken at their word: Brier score, calibration error, reliability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.bootstrap import canonical_order, require_resamplable, resampled_counts
from deepauc.metrics.basis.columns import ArrayLike, Column, FloatOrArray, Floats, read_probabilities
from deepauc.metrics.intervals import (
    Estimate,
    limits_without_variance,
    percentile_limits,
    require_interval_options,
    wilson_limits,
)

Limits = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True)
class ReliabilityCurve:
    """Observed share of positives beside the mean prediction, one entry an occupied bin.

    Attributes:
        predicted: The mean prediction in each bin.
        observed: The share of positives there.
        low: Wilson's lower limit of `observed`.
        high: Its upper limit.
        count: Rows in the bin.
        weight: Their weights' share of the total.
    """

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    count: npt.NDArray[np.int64]
    weight: Floats


@dataclass(frozen=True)
class CalibrationIntervals:
    """Both figures with their limits, from one bootstrap.

    Attributes:
        brier: The Brier score.
        calibration_error: The expected calibration error.
    """

    brier: Estimate[FloatOrArray]
    calibration_error: Estimate[FloatOrArray]


def brier_score(probabilities: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> FloatOrArray:
    """The mean of (p - y)² (Brier, 1950) over labelled rows; labels, weights and result as in `auroc`.

    Args:
        probabilities: (N,) or (N, L).

    Examples:
        >>> round(brier_score([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), 4)
        0.1581
    """
    columns = read_probabilities(probabilities, labels, weights=weights)
    return columns.collect([_brier_of(column) for column in columns])


def expected_calibration_error(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    equal_width: bool = False,
    weights: ArrayLike | None = None,
) -> FloatOrArray:
    """ECE = Σ_b w_b |mean p - mean y| over bins b of the predictions (Naeini et al., 2015).

    Bins hold equally many rows; equal predictions are never parted. Predictions as in `brier_score`; labels,
    weights and result as in `auroc`.

    Args:
        bins: How many.
        equal_width: Bins of equal width, the older convention. At 1 % positives it puts almost all rows into the first
            one.

    Examples:
        >>> round(expected_calibration_error([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1], bins=2), 4)
        0.175
    """
    columns = read_probabilities(probabilities, labels, weights=weights)
    return columns.collect([_calibration_error_of(column, bins, equal_width) for column in columns])


def reliability_curve(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    equal_width: bool = False,
    level: float = 0.95,
    weights: ArrayLike | None = None,
) -> ReliabilityCurve | tuple[ReliabilityCurve, ...]:
    """What a reliability plot shows, with Wilson's limits (for the number of rows, whatever their weights).

    Options as in `brier_score`, `expected_calibration_error` and `auroc`.

    Args:
        level: Of the limits.
    """
    require_interval_options(level)
    columns = read_probabilities(probabilities, labels, weights=weights)
    curves = tuple(_reliability(column, bins, equal_width, level) for column in columns)
    return curves[0] if columns.scores.ndim == 1 else curves


def calibration_intervals(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    equal_width: bool = False,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    stratified: bool = False,
    n_resamples: int = 2000,
    seed: int = 0,
) -> CalibrationIntervals:
    """`brier_score` and `expected_calibration_error` with confidence intervals, from one bootstrap.

    Rows are drawn from all rows (whole patients, where `groups` (N,) names them), so that the share of positives varies
    as it does from cohort to cohort: much of the Brier score's spread comes from there. Options as in `auroc_interval`
    and `average_precision_interval`.

    Brier score: the bootstrap's percentiles. Where every row has the same loss, nothing varies between resamples, and
    the limits are those of a share of the rows (patients): Clopper and Pearson's at 0 and 1, else Wilson's.

    Calibration error: ECE = Σ_b |g_b|, g_b the mean over all rows of p - y where p lies in bin b, is a norm of noisy
    gaps and so lies above the truth: a perfectly calibrated model has ECE > 0 on every sample. A resample adds the
    noise once more, so that ECE* lies above ECE again, and percentiles on both sides would never hold the truth of a
    calibrated model, 0. Instead

        low = max(0, ECE - q), q the (1 + level)/2 quantile of Σ_b |g*_b - g_b|: |ECE - true ECE| is at most
              Σ_b |g_b - true g_b|, whatever the gaps. So `low` > 0 says that perfect calibration is rejected;
        high = the (1 + level)/2 quantile of ECE*, which the bias moves to the safe side.

    Both refer to the error in these bins, whose edges stay as they are; ECE itself is not corrected for its bias.

    Of nominal 95 % intervals for normal scores of AUC .7 / .8 / .9, cohorts with 10 % positives, 1,000 each, this many
    hold the truth (tests/metrics/test_secondary_coverage.py):

          100 rows: Brier .930 / .933 / .928, ECE .903 / .906 / .919    (stratified: Brier .33 / .57 / .78)
          300 rows: Brier .933 / .937 / .933, ECE .949 / .951 / .953    (stratified: Brier .29 / .62 / .80)
        3,000 rows: Brier .949 / .949 / .941, ECE .971 / .973 / .969    (stratified: Brier .38 / .64 / .86)

    for a calibrated model (ECE in 10 bins, the truth 0; stratified: 300 cohorts each); for five miscalibrated ones of
    300 and 3,000 rows ECE's holds it in .98 to 1.00: on the safe side, at the price of width.
    """
    require_interval_options(level, n_resamples)
    columns = read_probabilities(probabilities, labels, groups=groups)
    both = []
    for column in columns:
        require_resamplable(column, "an interval of calibration figures", stratified=stratified)
        rng = np.random.default_rng(seed)
        both.append(_intervals_of(column, bins, equal_width, level, stratified, n_resamples, rng))
    brier, error = (
        Estimate(*(columns.collect(values) for values in zip(*rows, strict=True))) for rows in zip(*both, strict=True)
    )
    return CalibrationIntervals(brier, error)


def _brier_of(column: Column) -> float:
    losses = (column.scores.astype(np.float64) - column.positive) ** 2
    return min(float(column.shares() @ losses), 1.0)  # rounding alone would pass 1


def _calibration_error_of(column: Column, bins: int, equal_width: bool) -> float:
    curve = _reliability(column, bins, equal_width, level=0.95)
    return min(float(curve.weight @ np.abs(curve.predicted - curve.observed)), 1.0)  # rounding alone would pass 1


def _intervals_of(
    column: Column,
    bins: int,
    equal_width: bool,
    level: float,
    stratified: bool,
    n_resamples: int,
    rng: np.random.Generator,
) -> tuple[Limits, Limits]:
    """Value and limits of the Brier score and of the calibration error."""
    order = canonical_order(column)
    p, positive = column.scores[order].astype(np.float64), column.positive[order]
    gap, loss = p - positive, (p - positive) ** 2
    # Rows of rising p have rising bins, so that each bin is one stretch of rows.
    starts = np.flatnonzero(np.diff(_bin_numbers(p, bins, equal_width), prepend=-1))
    gaps = np.add.reduceat(gap, starts) / p.size
    brier, error = _brier_of(column), _calibration_error_of(column, bins, equal_width)
    briers, errors, distances = [], [], []
    for counts in resampled_counts(column, stratified=stratified, n_resamples=n_resamples, rng=rng):
        weights = counts.astype(np.float64)
        rows = weights.sum(axis=1)
        briers.append(weights @ loss / rows)
        drawn = np.add.reduceat(weights * gap, starts, axis=1) / rows[:, None]
        errors.append(np.abs(drawn).sum(axis=1))
        distances.append(np.abs(drawn - gaps).sum(axis=1))
    units = p.size if column.groups is None else int(column.groups.max()) + 1
    if np.ptp(loss) == 0:
        brier_limits = limits_without_variance(float(loss[0]), units, level)
    else:
        brier_limits = percentile_limits(brier, np.concatenate(briers), level)
    if not gap.any():
        return (brier, *brier_limits), (error, *limits_without_variance(0.0, units, level))
    low = max(0.0, error - float(np.quantile(np.concatenate(distances), (1 + level) / 2)))
    high = max(error, float(np.quantile(np.concatenate(errors), (1 + level) / 2)))
    return (brier, *brier_limits), (error, low, high)


def _bin_numbers(p: Floats, bins: int, equal_width: bool) -> npt.NDArray[np.intp]:
    """The occupied bin of each row, numbered from 0 by rising prediction, (n,)."""
    if bins < 1:
        raise ValueError(f"bins is {bins}; it must be at least 1.")
    inner = np.arange(1, bins) / bins
    # A value on an edge belongs to the bin below, so that rows of equal prediction stay together.
    edges = inner if equal_width else np.quantile(p, inner, method="inverted_cdf")
    return np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)[1]


def _reliability(column: Column, bins: int, equal_width: bool, level: float) -> ReliabilityCurve:
    p, weights = column.scores.astype(np.float64), column.shares()
    number = _bin_numbers(p, bins, equal_width)
    count = np.bincount(number)
    weight = np.bincount(number, weights).astype(np.float64)
    held = weight > 0
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(number, weights * p) / weight
        observed = np.bincount(number, weights * column.positive) / weight
    limits = [wilson_limits(o * n, n, level) for o, n in zip(observed[held], count[held], strict=True)]
    low, high = np.array(limits).T
    return ReliabilityCurve(predicted[held], observed[held], low, high, count[held], weight[held])
