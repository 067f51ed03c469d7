"""Means of runs with t-intervals: of one column of values, and of several columns whose training sets are shared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from deepauc.metrics.intervals import Estimate


def mean_interval(values: npt.ArrayLike) -> Estimate[float]:
    """Mean of independent values (seeds) with the 95 % t-interval."""
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2:
        raise ValueError(f"an interval needs a flat array of at least two values, not shape {array.shape}.")
    half = float(stats.t.ppf(0.975, len(array) - 1)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    mean = float(array.mean())
    return Estimate(mean, mean - half, mean + half)


def stratified_interval(cells: Sequence[tuple[str, Mapping[int, float]]]) -> Estimate[float]:
    """Mean of the cells' means with a 95 % t-interval. A cell: its stratum, and a value by training set.

    Cells of one stratum share their training sets s, which count once; strata are independent. With d_cs the value of
    cell c, n_c sets in it and C cells, u_s = sum_c (d_cs - mean_c) / (C n_c) is what a set adds, and a stratum of n
    sets has the variance v = n/(n - 1) sum_s u_s². Degrees of freedom by Welch and Satterthwaite:
    (sum v)² / sum v²/(n - 1) over strata.
    """
    from scipy import stats

    if not cells or any(len(values) < 2 for _, values in cells):
        raise ValueError("a pooled interval needs cells with at least two training sets each.")
    means = [fmean(values.values()) for _, values in cells]
    added: dict[str, dict[int, float]] = {}
    for (stratum, values), mean in zip(cells, means, strict=True):
        sums = added.setdefault(stratum, {})
        for number, value in values.items():
            sums[number] = sums.get(number, 0.0) + (value - mean) / (len(cells) * len(values))
    variances = [len(u) / (len(u) - 1) * math.fsum(x * x for x in u.values()) for u in added.values()]
    middle, total = fmean(means), math.fsum(variances)
    if not total:
        return Estimate(middle, middle, middle)
    freedom = total**2 / math.fsum(v * v / (len(u) - 1) for v, u in zip(variances, added.values(), strict=True))
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)
    return Estimate(middle, middle - half, middle + half)
