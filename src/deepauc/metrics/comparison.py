"""The difference of two AUROCs on the same samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepauc.metrics.auroc import auroc_of
from deepauc.metrics.basis.columns import ArrayLike, Column, FloatOrArray, read_columns
from deepauc.metrics.basis.delong import independent_pairs, placements, variance
from deepauc.metrics.intervals import limits_without_variance, normal_quantile, require_interval_options

Row = tuple[float, float, float, float]  # difference, low, high, p_value


@dataclass(frozen=True)
class Comparison:
    """The difference of two AUCs with its confidence limits; arrays (L,) for (N, L) inputs.

    Attributes:
        difference: AUC(a) - AUC(b).
        low: Lower limit, at 95 % unless said otherwise.
        high: Upper limit.
        p_value: Of the two-sided test.
    """

    difference: FloatOrArray
    low: FloatOrArray
    high: FloatOrArray
    p_value: FloatOrArray


def compare_auroc(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    labels: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    level: float = 0.95,
) -> Comparison:
    """The paired test of two AUROCs: z = (AUC_a - AUC_b) / se against the standard normal.

    se is DeLong, DeLong & Clarke-Pearson's (1988) for two scores of the same samples; with groups (N,) of patients
    Obuchowski's (1997) clustered one. Limits are difference ± z·se, cut at -1 and 1.

    Two scores that rank all pairs alike differ by 0 with certainty: limits 0, p-value 1. Where the variance is
    estimated as 0 although the areas differ (a perfect ranking against a reversed or constant one), the k pairs that
    share no sample (patient) decide: the sign test's p-value 2^(1 - k), and limits from the two areas' own exact ones.

    Args:
        scores_a: (N,) or (N, L), as in `auroc`.
        scores_b: Of the same rows.
        labels: The same shape: 0/1, NaN where missing.
        groups: (N,) the patient of each row.
        level: The interval's confidence level.

    Returns:
        AUC(a) - AUC(b), its limits and the two-sided p-value; arrays (L,) for (N, L).

    Examples:
        >>> labels = [0, 0, 0, 1, 1, 1]
        >>> found = compare_auroc([0.1, 0.4, 0.2, 0.3, 0.8, 0.6], [0.5, 0.4, 0.2, 0.3, 0.8, 0.1], labels)
        >>> print(f"{found.difference:.3f} [{found.low:.3f}, {found.high:.3f}], p = {found.p_value:.2f}")
        0.444 [-0.172, 1.000], p = 0.16
    """
    require_interval_options(level)
    columns_a = read_columns(scores_a, labels, groups=groups)
    columns_b = read_columns(scores_b, labels, groups=groups)
    rows = [_compare(a, b, level) for a, b in zip(columns_a, columns_b, strict=True)]
    return Comparison(*(columns_a.collect(values) for values in zip(*rows, strict=True)))


def _compare(a: Column, b: Column, level: float) -> Row:
    placed = placements([a, b], "a comparison of AUROCs").contrast([1, -1])
    areas = auroc_of(a), auroc_of(b)
    difference, se = areas[0] - areas[1], math.sqrt(variance(placed, a.where))
    if se > 0:
        return compared_by_z(difference, se, level)
    if difference == 0:
        return 0.0, 0.0, 0.0, 1.0
    pairs = independent_pairs(a)
    return compared_exactly(difference, *(limits_without_variance(area, pairs, level) for area in areas), pairs=pairs)


def compared_by_z(difference: float, se: float, level: float, *, most: float = 1.0) -> Row:
    """By the normal distribution. most: how large a difference can be."""
    half = normal_quantile(level) * se
    p_value = math.erfc(abs(difference) / se / math.sqrt(2))
    return difference, max(difference - half, -most), min(difference + half, most), p_value


def compared_exactly(difference: float, of_a: tuple[float, float], of_b: tuple[float, float], *, pairs: int) -> Row:
    """Without a variance: the limits of both areas, and the sign test over the pairs that share no sample."""
    return difference, of_a[0] - of_b[1], of_a[1] - of_b[0], min(1.0, 2.0 ** (1 - pairs))
