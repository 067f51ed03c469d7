"""t-intervals against scipy's, by hand and by simulation."""

import numpy as np
import pytest
from scipy import stats

from deepauc.metrics.mean_interval import mean_interval, stratified_interval


def cell(stratum, values, first_seed=0):
    return stratum, {first_seed + i: float(v) for i, v in enumerate(values)}


def test_mean_interval_is_the_t_interval():
    values = np.random.default_rng(0).normal(size=12)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 11, loc=values.mean(), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    with pytest.raises(ValueError, match="two values"):
        mean_interval([1.0])


def test_one_cell_has_its_own_t_interval():
    values = [0.02, 0.03, 0.01, 0.025, 0.005]
    found = stratified_interval([cell("C10", values)])
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))


def test_two_sets_of_images_make_welchs_interval():
    a, b = np.array([0.02, 0.03, 0.01, 0.025]), np.array([-0.1, 0.05, 0.0, 0.02, 0.01, -0.04])
    found = stratified_interval([cell("C10", a), cell("C2", b)])
    # (mean a + mean b)/2 is half the difference of a and -b
    whole = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((whole.low / 2, whole.high / 2))


def test_both_networks_on_one_training_set_are_one_draw():
    a, b = np.array([0.02, 0.03, 0.01, 0.025, 0.0]), np.array([-0.1, -0.08, -0.11, -0.07, -0.12])
    found = stratified_interval([cell("C10", a), cell("C10", b)])
    low, high = stats.t.interval(0.95, 4, np.mean((a + b) / 2), stats.sem((a + b) / 2))
    assert (found.low, found.high) == pytest.approx((low, high))
    alone = stratified_interval([cell("C10", a), cell("C2", b)])
    assert found.high - found.low > alone.high - alone.low  # what they share does not cancel


def test_cells_with_constant_differences_have_no_width():
    found = stratified_interval([cell("C10", [0.1, 0.1]), cell("C2", [0.3, 0.3])])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.2, 0.2))


def test_the_interval_covers_as_often_as_it_says():
    """Three strata of five sets with different spreads, one of them with two networks that share their sets."""
    generator = np.random.default_rng(5)
    means = {"R": 0.01, "D": -0.1, "C2": 0.03, "C100": 0.0}
    truth, inside, trials = np.mean(list(means.values())), 0, 1500
    for _ in range(trials):
        shared = generator.normal(scale=0.02, size=5)
        found = stratified_interval(
            [
                cell("C10", means["R"] + shared + generator.normal(scale=0.005, size=5)),
                cell("C10", means["D"] + shared + generator.normal(scale=0.01, size=5)),
                cell("C2", means["C2"] + generator.normal(scale=0.03, size=5)),
                cell("C100", means["C100"] + generator.normal(scale=0.005, size=5)),
            ]
        )
        inside += found.low <= truth <= found.high
    assert 0.93 <= inside / trials <= 0.97


def test_a_cell_with_one_set_is_refused():
    with pytest.raises(ValueError, match="at least two training sets each"):
        stratified_interval([cell("C10", [0.1, 0.2]), cell("C2", [0.1])])
