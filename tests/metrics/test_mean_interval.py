"""The mean of runs with its t-interval, as scipy has it."""

import numpy as np
import pytest
from scipy import stats

from deepauc.metrics.mean_interval import mean_interval


def test_mean_interval_is_the_t_interval():
    values = np.random.default_rng(0).normal(size=12)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 11, loc=values.mean(), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    with pytest.raises(ValueError, match="two values"):
        mean_interval([1.0])
