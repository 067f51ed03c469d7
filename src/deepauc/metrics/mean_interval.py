"""The mean of runs with its t-interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % t-interval."""

    value: float
    low: float
    high: float


def mean_interval(values: npt.ArrayLike) -> MeanInterval:
    """Mean of independent values (seeds) with the 95 % t-interval."""
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2:
        raise ValueError(f"an interval needs at least two values in a row, not shape {array.shape}.")
    half = float(stats.t.ppf(0.975, len(array) - 1)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    mean = float(array.mean())
    return MeanInterval(mean, mean - half, mean + half)
