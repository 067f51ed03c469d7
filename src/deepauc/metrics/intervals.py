"""The AUROC with a confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from deepauc.metrics.auroc import auroc, auroc_of
from deepauc.metrics.basis.bootstrap import resampled_auroc
from deepauc.metrics.basis.columns import ArrayLike, Column, FloatOrArray, Floats, read_columns
from deepauc.metrics.basis.delong import independent_pairs, influence, placements, variance

WHAT = "an AUROC interval"


Values_co = TypeVar("Values_co", bound=FloatOrArray, covariant=True)


@dataclass(frozen=True)
class Estimate(Generic[Values_co]):
    """A value with its confidence limits; arrays (L,) for (N, L) inputs.

    Attributes:
        value: The estimate.
        low: Lower limit, at 95 % unless said otherwise.
        high: Upper limit.
    """

    value: Values_co
    low: Values_co
    high: Values_co

    def floats(self) -> Estimate[float]:
        """Of (N,) inputs, as Python's own numbers."""
        return Estimate(float(self.value), float(self.low), float(self.high))


def auroc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    method: str = "delong",
    level: float = 0.95,
    groups: ArrayLike | None = None,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Estimate[FloatOrArray]:
    """AUROC with a confidence interval that never leaves [0, 1]; `groups` (N,) are patients.

    `delong`: DeLong's variance (clustered by patient: Obuchowski, 1997) on the logit scale,
    logit(AUC) ± z·se / (AUC (1 - AUC)). The plain AUC ± z·se, which other software prints, is `delong_variance` away,
    but covers only 92 % where 95 % is asked for at an AUC of .9 with 50 positives.
    `bootstrap`: bias-corrected and accelerated (BCa; Efron, 1987) over `n_resamples` samples, each class resampled on
    its own, or whole patients with groups; the plain percentiles have the fault named above too.

    A perfect ranking (AUC of exactly 1 or 0) has no sampling variance to estimate, and both methods would answer with
    an interval of width 0. Then the limit comes from the k = min(n+, n-) pairs that share no sample (with groups: no
    patient), each right with probability AUC: AUC^k >= (1 - level)/2, the exact, conservative bound of Clopper and
    Pearson. Constant scores (AUC 1/2) get Wilson's interval over the same k pairs.

    Few positives: of nominal 95 % intervals for normal scores, 4,000 samples each, at an AUC of .7 / .8 / .9, this many
    hold the truth (tests/metrics/test_coverage.py):

        50 positives, 450 negatives: delong .947 / .946 / .937, bootstrap .947 / .945 / .936
        10 positives,  90 negatives: delong .941 / .925 / .912, bootstrap .935 / .921 / .905
        10 positives, 990 negatives: delong .930 / .910 / .871, bootstrap .923 / .899 / .855

    so with ten positives read the interval as too narrow.

    Args:
        scores: (N,) or (N, L), as in `auroc`.
        labels: The same shape: 0/1, NaN where missing.
        method: "delong" or "bootstrap".
        level: The interval's confidence level.
        groups: (N,) the patient of each row; rows of one patient are not independent.
        n_resamples: Samples of the bootstrap.
        seed: Of the bootstrap.

    Returns:
        The AUROC with its limits; arrays (L,) for (N, L).

    Examples:
        >>> estimate = auroc_interval([0.1, 0.4, 0.35, 0.8, 0.6, 0.2], [0, 0, 1, 1, 1, 0])
        >>> print(f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]")
        0.889 [0.261, 0.995]
    """
    if method not in ("delong", "bootstrap"):
        raise ValueError(f"method is {method!r}; it must be 'delong' or 'bootstrap'.")
    require_interval_options(level, n_resamples if method == "bootstrap" else None)
    columns = read_columns(scores, labels, groups=groups)
    rows = []
    for column in columns:
        rng = np.random.default_rng(seed) if method == "bootstrap" else None
        rows.append(_interval_of(column, level, n_resamples, rng))
    return Estimate(*(columns.collect(values) for values in zip(*rows, strict=True)))


def auroc_with_limits(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], *, groups: npt.NDArray[Any] | None = None, **options: Any
) -> Estimate[float]:
    """`auroc_interval` of (N,), all labels known; from 0 to 1 where a class has a single row (with groups: patient).

    That has no variance to estimate, and says next to nothing; the AUC itself is there all the same.
    """
    of_classes = [labels == value for value in (0, 1)]
    if min(int(of.sum()) if groups is None else len(np.unique(groups[of])) for of in of_classes) == 1:
        return Estimate(float(auroc(scores, labels)), 0.0, 1.0)
    return auroc_interval(scores, labels, groups=groups, **options).floats()


def require_interval_options(level: float, n_resamples: int | None = None) -> None:
    """Raise ValueError unless level is a share and a bootstrap (n_resamples not None) has enough samples."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1, for example 0.95.")
    if n_resamples is not None and n_resamples < 100:
        raise ValueError(f"n_resamples is {n_resamples}; the tails of a bootstrap need at least 100, better 2000.")


def delong_variance(scores: ArrayLike, labels: ArrayLike, *, groups: ArrayLike | None = None) -> FloatOrArray:
    """DeLong's variance of the AUROC; with groups (N,) of patients Obuchowski's clustered one."""
    columns = read_columns(scores, labels, groups=groups)
    return columns.collect([variance(placements([column], WHAT), column.where) for column in columns])


def _interval_of(
    column: Column, level: float, n_resamples: int, rng: np.random.Generator | None
) -> tuple[float, float, float]:
    placed = placements([column], WHAT)
    value, spread = auroc_of(column), variance(placed, column.where)
    if spread == 0 or value in (0.0, 1.0):
        return value, *limits_without_variance(value, independent_pairs(column), level)
    if rng is None:
        return value, *logit_limits(value, math.sqrt(spread), normal_quantile(level))
    replicates = resampled_auroc(column, n_resamples=n_resamples, rng=rng)
    return value, *bca_limits(value, replicates, influence(placed), level)


def limits_without_variance(value: float, pairs: int, level: float) -> tuple[float, float]:
    """Limits for an AUROC whose sampling variance is estimated as 0, from `pairs` independent pairs."""
    bound = ((1 - level) / 2) ** (1 / pairs)
    if value == 1:
        return bound, 1.0
    if value == 0:
        return 0.0, 1 - bound
    return wilson_limits(value * pairs, pairs, level)


def percentile_limits(value: float, replicates: Floats, level: float) -> tuple[float, float]:
    """The bootstrap's percentiles, moved where the value itself would lie outside."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return min(float(low), value), max(float(high), value)


def wilson_limits(successes: float, trials: float, level: float) -> tuple[float, float]:
    """Wilson's score interval (1927) for a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    z = normal_quantile(level)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    # At a share of 0 or 1 one limit is the share itself, which rounding alone would miss.
    low = 0.0 if share == 0 else max((centre - half) / scale, 0.0)
    high = 1.0 if share == 1 else min((centre + half) / scale, 1.0)
    return low, high


def normal_quantile(level: float) -> float:
    """z such that a normal variable lies within ±z with probability `level`."""
    return NormalDist().inv_cdf((1 + level) / 2)


def logit_limits(value: float, se: float, quantile: float) -> tuple[float, float]:
    """logit(value) ± quantile · se / (value (1 - value)), back on the scale of the value."""
    half = min(quantile * se / (value * (1 - value)), 700.0)  # exp(700) is still a double
    against = (1 - value) / value
    return 1 / (1 + against * math.exp(half)), 1 / (1 + against * math.exp(-half))


def bca_limits(value: float, replicates: Floats, empirical_influence: Floats, level: float) -> tuple[float, float]:
    """Efron's BCa: percentiles moved by the bias z0 and the acceleration a = Σu³ / (6 (Σu²)^(3/2))."""
    normal, n = NormalDist(), replicates.size
    below = (np.count_nonzero(replicates < value) + np.count_nonzero(replicates <= value)) / (2 * n)
    z0 = normal.inv_cdf(min(max(below, 0.5 / n), 1 - 0.5 / n))
    u = empirical_influence
    a = float((u**3).sum() / (6 * (u @ u) ** 1.5))
    shares = []
    for z in (-normal_quantile(level), normal_quantile(level)):
        moved = z0 + z
        shares.append(normal.cdf(z0 + moved / (1 - a * moved)) if a * moved < 1 else float(z > 0))
    low, high = np.quantile(replicates, shares)
    return min(float(low), value), max(float(high), value)  # at extreme bias BCa may pass by the value
