"""The part of the area under the ROC curve where a screening or a triage would work: value, interval, paired test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.bootstrap import canonical_order, require_resamplable, resampled_counts
from deepauc.metrics.basis.columns import ArrayLike, Column, FloatOrArray, Floats, read_columns
from deepauc.metrics.comparison import Comparison, compared_by_z, compared_exactly
from deepauc.metrics.curves import Descending, roc_of
from deepauc.metrics.intervals import (
    Estimate,
    bca_limits,
    limits_without_variance,
    require_interval_options,
)


@dataclass(frozen=True, kw_only=True)
class Region:
    """The part of the ROC curve that counts: false positive rates up to `max_fpr`, sensitivities above `min_tpr`."""

    max_fpr: float = 1.0
    min_tpr: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.max_fpr <= 1:
            raise ValueError(f"max_fpr is {self.max_fpr}; it must lie in (0, 1].")
        if not 0 <= self.min_tpr < 1:
            raise ValueError(f"min_tpr is {self.min_tpr}; it must lie in [0, 1).")

    @property
    def most(self) -> float:
        """The area of a perfect ranking."""
        return self.max_fpr * (1 - self.min_tpr)

    @property
    def chance(self) -> float:
        """The area of a coin."""
        diagonal = np.array([0.0, 1.0])
        return float(self.area(diagonal, diagonal))

    def of(self, column: Column) -> float:
        """The area of one checked column."""
        curve = roc_of(column)
        return float(self.area(curve.fpr, curve.tpr))

    def area(self, fpr: Floats, tpr: Floats) -> Floats:
        """The sum over straight pieces along the last axis, each cut at f = max_fpr and where it passes min_tpr."""
        left, right = fpr[..., :-1], np.minimum(fpr[..., 1:], self.max_fpr)
        run, width = np.diff(fpr), np.maximum(right - left, 0.0)
        low = tpr[..., :-1] - self.min_tpr
        end = low + np.diff(tpr) * (width / np.where(run > 0, run, 1.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.where((low < 0) & (end > 0), end / (end - low), 1.0)  # share of the piece that lies above
        found: Floats = (width * above * (np.maximum(low, 0) + np.maximum(end, 0)) / 2).sum(axis=-1)
        return found

    @classmethod
    def asked(cls, max_fpr: float | None, min_tpr: float | None) -> Region | None:
        """What two options say; None where neither was given."""
        if max_fpr is None and min_tpr is None:
            return None
        return cls(max_fpr=1.0 if max_fpr is None else max_fpr, min_tpr=0.0 if min_tpr is None else min_tpr)

    def __str__(self) -> str:
        limits = {f"FPR up to {self.max_fpr:g}": self.max_fpr < 1, f"TPR above {self.min_tpr:g}": self.min_tpr > 0}
        return ", ".join(text for text, limited in limits.items() if limited) or "the whole curve"


def partial_auroc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    standardise: bool = False,
    weights: ArrayLike | None = None,
) -> FloatOrArray:
    """The area between the ROC curve and the line TPR = `min_tpr`, over false positive rates up to `max_fpr`.

    A = ∫_0^max_fpr max(TPR(f) - min_tpr, 0) df: one-way with one of the limits, two-way with both; ties are straight
    pieces of the curve. It spans [0, max_fpr (1 - min_tpr)]. `min_tpr=0.8` alone is the score of the ISIC 2024
    challenge, which spans [0, 0.2]. Scores, labels and result as in `auroc`.

    Args:
        max_fpr: The highest false positive rate that counts.
        min_tpr: The lowest sensitivity that counts.
        standardise: McClish's (1989) form (1 + (A - A_chance) / (A_max - A_chance)) / 2, which is 1/2 for a coin and 1
            for a perfect ranking (scikit-learn's `roc_auc_score(max_fpr=...)`).

    Examples:
        >>> scores, labels = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
        >>> partial_auroc(scores, labels, max_fpr=0.5)
        0.25
        >>> partial_auroc(scores, labels, max_fpr=0.5, standardise=True)
        0.6666666666666666
    """
    region = Region(max_fpr=max_fpr, min_tpr=min_tpr)
    columns = read_columns(scores, labels, weights=weights)
    areas = [region.of(column) for column in columns]
    if standardise:
        areas = [(1 + (area - region.chance) / (region.most - region.chance)) / 2 for area in areas]
    return columns.collect(areas)


def partial_auroc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Estimate[FloatOrArray]:
    """`partial_auroc` with a bias-corrected and accelerated (BCa) bootstrap; with `groups` (N,) over whole patients.

    Without groups each class is drawn by itself. Where every resample says the same (a perfect ranking), the limits are
    exact ones from the pairs of the region that share no sample, as in `auroc_interval`.

    A region of few rows makes intervals too narrow. Of nominal 95 % intervals for normal scores of AUC .7 / .8 / .9,
    1,000 samples each, this many hold the truth (tests/metrics/test_secondary_coverage.py):

        50 positives, 450 negatives: FPR <= .3: .958 / .946 / .953; TPR >= .8: .933 / .922 / .911
        10 positives,  90 negatives: FPR <= .3: .955 / .964 / .935; TPR >= .8: .795 / .770 / .729

    BCa was the best of six methods on some of these samples, so the figures favour it a little.
    """
    region = Region(max_fpr=max_fpr, min_tpr=min_tpr)
    require_interval_options(level, n_resamples)
    columns = read_columns(scores, labels, groups=groups)
    rows = []
    for column in columns:
        require_resamplable(column, "an interval of the partial AUC", stratified=False)
        value, influence = region.of(column), _influence(column, region)
        replicates = next(_resampled([column], region, n_resamples=n_resamples, seed=seed))
        if np.ptp(replicates) < ROUNDING or influence @ influence < ROUNDING**2:
            rows.append((value, *_exact_limits(column, value, region, level)))
        else:
            rows.append((value, *bca_limits(value, replicates, influence, level)))
    return Estimate(*(columns.collect(values) for values in zip(*rows, strict=True)))


def compare_partial_auroc(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    labels: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """The paired test of two partial AUCs on the same samples: z = (A_a - A_b) / se against the standard normal.

    se is the deviation of the difference over bootstrap samples that both scores share, drawn as in
    `partial_auroc_interval`; limits are difference ± z·se, cut where the areas end. Two scores with the same areas in
    every sample differ by 0: limits 0, p-value 1. Options as in `partial_auroc`, `compare_auroc` and `auroc_interval`.
    """
    region = Region(max_fpr=max_fpr, min_tpr=min_tpr)
    require_interval_options(level, n_resamples)
    columns_a = read_columns(scores_a, labels, groups=groups)
    columns_b = read_columns(scores_b, labels, groups=groups)
    rows = []
    for pair in zip(columns_a, columns_b, strict=True):
        require_resamplable(pair[0], "a comparison of partial AUCs", stratified=False)
        a, b = _resampled(pair, region, n_resamples=n_resamples, seed=seed)
        values = [region.of(column) for column in pair]
        difference, se = values[0] - values[1], float(np.std(a - b, ddof=1))
        if se < ROUNDING and abs(difference) < ROUNDING:
            rows.append((0.0, 0.0, 0.0, 1.0))
        elif se < ROUNDING:
            limits = [_exact_limits(column, value, region, level) for column, value in zip(pair, values, strict=True)]
            rows.append(compared_exactly(difference, *limits, pairs=_independent_pairs(pair[0], region)))
        else:
            rows.append(compared_by_z(difference, se, level, most=region.most))
    return Comparison(*(columns_a.collect(values) for values in zip(*rows, strict=True)))


ROUNDING = 1e-12  # areas of one ranking, summed in another order, differ by less


def _resampled(columns: Sequence[Column], region: Region, *, n_resamples: int, seed: int) -> Iterator[Floats]:
    """The areas of each column, (n_resamples,), over the same bootstrap samples of the rows that all have."""
    first = columns[0]
    back = np.argsort(canonical_order(first))  # from the order in which counts come to that of the rows
    for column in columns:
        descending = Descending.of(column.scores)
        last, positive, taken = descending.last_of_value, column.positive[descending.order], back[descending.order]
        rng = np.random.default_rng(seed)
        blocks = resampled_counts(first, stratified=first.groups is None, n_resamples=n_resamples, rng=rng)
        found = []
        for block in blocks:
            counts = block.take(taken, axis=1)
            true, both = np.cumsum(counts * positive, axis=1)[:, last], np.cumsum(counts, axis=1)[:, last]
            rates = [np.pad(total / total[:, -1:], ((0, 0), (1, 0))) for total in (both - true, true)]
            found.append(region.area(rates[0], rates[1]))
        yield np.concatenate(found)


def _influence(column: Column, region: Region) -> Floats:
    """What one sample (one patient, with groups) adds to the area to first order; sums to 0, (n,) or (G,).

    With phi(c) = max(TPR(c) - min_tpr, 0) and the threshold c_0 where FPR is max_fpr, a negative at c >= c_0 adds
    phi(c) - phi(c_0), a positive the share of such negatives below it at which TPR is above min_tpr.
    """
    positive = column.positive
    of_positives, of_negatives = column.scores[positive], column.scores[~positive]
    ordered = np.sort(of_positives)

    def height(cuts: npt.NDArray[Any]) -> Floats:
        below = np.searchsorted(ordered, cuts, side="left") + np.searchsorted(ordered, cuts, side="right")
        found: Floats = 1 - below / (2 * ordered.size) - region.min_tpr
        return found

    within = np.sort(of_negatives)[-min(math.ceil(region.max_fpr * of_negatives.size), of_negatives.size) :]
    found = np.empty(positive.size)
    found[~positive] = np.maximum(height(np.maximum(of_negatives, within[0])), 0)
    counted = within[height(within) > 0]
    passed = np.searchsorted(counted, of_positives, side="left") + np.searchsorted(counted, of_positives, side="right")
    found[positive] = passed / (2 * of_negatives.size)
    for rows in (positive, ~positive):
        found[rows] = (found[rows] - found[rows].mean()) / np.count_nonzero(rows)
    return found if column.groups is None else np.bincount(column.groups, found).astype(np.float64)


def _exact_limits(column: Column, value: float, region: Region, level: float) -> tuple[float, float]:
    """Without a variance: the area over its largest value is a share of right pairs."""
    share = round(value / region.most, 12)
    low, high = limits_without_variance(share, _independent_pairs(column, region), level)
    return low * region.most, high * region.most


def _independent_pairs(column: Column, region: Region) -> int:
    """Pairs of the region that share no sample and, with groups, no patient; at least 1."""
    positives, negatives = column.positives, column.negatives
    if column.groups is not None:
        positives = np.unique(column.groups[column.positive]).size
        negatives = np.unique(column.groups[~column.positive]).size
    return max(1, int(min(positives * (1 - region.min_tpr), negatives * region.max_fpr) + 1e-9))
