"""Intervals of AP, Brier score and ECE against rows resampled by index and scikit-learn; what leaves them unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import average_precision_score, brier_score_loss

from deepauc.metrics.average_precision import _resampled, average_precision, average_precision_interval
from deepauc.metrics.basis import bootstrap
from deepauc.metrics.basis.bootstrap import canonical_order, resampled_counts
from deepauc.metrics.basis.columns import read_columns
from deepauc.metrics.calibration import (
    brier_score,
    calibration_intervals,
    expected_calibration_error,
    reliability_curve,
)
from deepauc.metrics.intervals import wilson_limits
from deepauc.metrics.operating_points import operating_point


def problem(n=120, share=0.3, seed=0, digits=2):
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < share).astype(int)
    labels[:4] = [0, 1, 0, 1]
    groups = rng.integers(0, n // 3, n)
    groups[:4] = range(4)
    p = 1 / (1 + np.exp(-(rng.standard_normal(n) + 1.5 * labels - 1)))
    return p.round(digits), labels, groups


def one_column(p, labels, groups=None):
    return next(iter(read_columns(p, labels, groups=groups)))


def rows_drawn(labels, groups, stratified, rng):
    """One bootstrap sample as row numbers, the plain way; drawn again where a class is missing."""
    while True:
        if groups is not None:
            patients = np.unique(groups)
            rows = np.concatenate([np.flatnonzero(groups == g) for g in rng.choice(patients, patients.size)])
        elif stratified:
            parts = [np.flatnonzero(labels == value) for value in (0, 1)]
            rows = np.concatenate([rng.choice(part, part.size) for part in parts])
        else:
            rows = rng.integers(0, labels.size, labels.size)
        if 0 < labels[rows].sum() < rows.size:
            return rows


def gaps_by_loop(p, labels, edges):
    """Mean of p - y over all rows, bin by bin; a bin holds what is above one edge and not above the next."""
    pairs = zip([-1.0, *edges], [*edges, 2.0], strict=True)
    return np.array([np.where((p > low) & (p <= high), p - labels, 0.0).sum() / p.size for low, high in pairs])


DESIGNS = [(False, False), (False, True), (True, False)]  # clustered, stratified


@pytest.mark.parametrize(("clustered", "stratified"), DESIGNS)
@pytest.mark.parametrize(("digits", "share"), [(1, 0.3), (6, 0.1), (1, 0.8)])
def test_counts_give_what_scikit_learn_gives_for_repeated_rows(monkeypatch, clustered, stratified, digits, share):
    monkeypatch.setattr(bootstrap, "CHUNK", 700)  # several blocks, the last one short
    p, labels, groups = problem(digits=digits, share=share)
    column = one_column(p, labels, groups if clustered else None)
    options = {"stratified": stratified, "n_resamples": 23}
    fast = _resampled(column, **options, rng=np.random.default_rng(3))
    counts = np.concatenate(list(resampled_counts(column, **options, rng=np.random.default_rng(3))))
    assert counts.shape == (23, p.size)
    order = canonical_order(column)
    for value, times in zip(fast, counts, strict=True):
        rows = np.repeat(order, times)
        assert value == pytest.approx(average_precision_score(labels[rows], p[rows]), abs=1e-12)
        if clustered:
            assert all(np.unique(times[groups[order] == g]).size == 1 for g in np.unique(groups))
        elif stratified:
            assert labels[rows].sum() == labels.sum()
        else:
            assert times.sum() == p.size


@pytest.mark.parametrize(("clustered", "stratified"), DESIGNS)
def test_intervals_are_those_of_rows_resampled_by_index(clustered, stratified):
    p, labels, groups = problem(n=200, share=0.25)
    groups = groups if clustered else None
    rng, bins, count = np.random.default_rng(11), 5, 1000
    edges = np.sort(p)[[200 * b // bins - 1 for b in range(1, bins)]]
    gaps = gaps_by_loop(p, labels, edges)
    slow = {"AP": [], "Brier": [], "ECE": [], "distance": []}
    for _ in range(count):
        rows = rows_drawn(labels, groups, stratified, rng)
        slow["AP"].append(average_precision_score(labels[rows], p[rows]))
        slow["Brier"].append(brier_score_loss(labels[rows], p[rows]))
        drawn = gaps_by_loop(p[rows], labels[rows], edges)
        slow["ECE"].append(np.abs(drawn).sum())
        slow["distance"].append(np.abs(drawn - gaps).sum())
    options = {"groups": groups, "stratified": stratified, "n_resamples": 8000}
    both = calibration_intervals(p, labels, bins=bins, **options)
    precision = average_precision_interval(p, labels, **options)
    for found, name in ((precision, "AP"), (both.brier, "Brier")):
        low, high = np.quantile(slow[name], [0.025, 0.975])
        assert [found.low, found.high] == pytest.approx([low, high], abs=0.1 * (high - low))
    error, width = np.abs(gaps).sum(), np.ptp(np.quantile(slow["ECE"], [0.025, 0.975]))
    assert both.calibration_error.value == pytest.approx(error)
    assert both.calibration_error.low == pytest.approx(
        max(0, error - np.quantile(slow["distance"], 0.975)), abs=0.1 * width
    )
    assert both.calibration_error.high == pytest.approx(np.quantile(slow["ECE"], 0.975), abs=0.1 * width)
    replicates = _resampled(
        one_column(p, labels, groups), stratified=stratified, n_resamples=6000, rng=np.random.default_rng(0)
    )
    assert ks_2samp(replicates, slow["AP"]).pvalue > 1e-3


def test_patients_with_copied_rows_know_no_more_than_one_row_each():
    p, labels, _ = problem(n=150)
    rows = np.arange(p.size)
    once = average_precision_interval(p, labels, groups=rows, n_resamples=4000)
    copied = average_precision_interval(np.tile(p, 4), np.tile(labels, 4), groups=np.tile(rows, 4), n_resamples=4000)
    assert [copied.low, copied.high] == pytest.approx([once.low, once.high], abs=1e-12)
    alone = average_precision_interval(np.tile(p, 4), np.tile(labels, 4), n_resamples=1000)
    assert alone.high - alone.low < 0.7 * (once.high - once.low)
    once, copied = (
        calibration_intervals(np.tile(p, k), np.tile(labels, k), groups=np.tile(rows, k), bins=5, n_resamples=500)
        for k in (1, 4)
    )
    for name in ("brier", "calibration_error"):
        a, b = getattr(once, name), getattr(copied, name)
        assert [a.low, a.high] == pytest.approx([b.low, b.high], abs=1e-12)


def intervals_of(p, labels, groups=None, **options):
    both = calibration_intervals(p, labels, bins=10, groups=groups, n_resamples=200, **options)
    return [
        average_precision_interval(p, labels, groups=groups, n_resamples=200, **options),
        both.brier,
        both.calibration_error,
    ]


@given(
    seed=st.integers(0, 10_000),
    share=st.floats(0.02, 0.98),
    clustered=st.booleans(),
    stratified=st.booleans(),
    digits=st.sampled_from([0, 1, 4]),
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_the_value_is_inside_and_all_of_it_within_0_and_1(seed, share, clustered, stratified, digits):
    p, labels, groups = problem(n=24, seed=seed, share=share, digits=digits)
    options = {"groups": groups} if clustered else {"stratified": stratified}
    found = intervals_of(p, labels, **options)
    values = average_precision(p, labels), brier_score(p, labels), expected_calibration_error(p, labels, bins=10)
    for one, value in zip(found, values, strict=True):
        assert one.value == value
        assert 0 <= one.low <= one.value <= one.high <= 1
        assert one.low < one.high
    for one, wide in zip(found, intervals_of(p, labels, level=0.99, **options), strict=True):
        assert wide.low <= one.low
        assert wide.high >= one.high


@given(seed=st.integers(0, 10_000), clustered=st.booleans(), digits=st.sampled_from([1, 6]))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_the_order_of_rows_and_rising_maps_are_nothing(seed, clustered, digits):
    p, labels, groups = problem(n=40, seed=seed, digits=digits)
    groups = groups if clustered else None
    before = intervals_of(p, labels, groups)
    order = np.random.default_rng(seed).permutation(p.size)
    after = intervals_of(p[order], labels[order], None if groups is None else groups[order])
    for a, b in zip(before, after, strict=True):
        assert [a.low, a.high] == pytest.approx([b.low, b.high], abs=1e-12)
    for rising in (lambda x: 7 * x - 3, np.exp, lambda x: np.unique(x, return_inverse=True)[1]):
        mapped = average_precision_interval(rising(p), labels, groups=groups, n_resamples=200)
        assert mapped == before[0]


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    p, labels, _ = problem()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = intervals_of(p, labels)
    assert intervals_of(p, labels) == first
    for one, other in zip(first, intervals_of(p, labels, seed=1), strict=True):
        assert one != other
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("clustered", [False, True])
def test_columns_with_missing_labels_are_single_calls(clustered):
    rng = np.random.default_rng(0)
    labels = (rng.random((150, 2)) < 0.4).astype(float)
    p, groups = 1 / (1 + np.exp(-rng.standard_normal((150, 2)) - labels)), rng.integers(0, 60, 150)
    labels[rng.random((150, 2)) < 0.2] = np.nan
    found = intervals_of(torch.tensor(p), torch.tensor(labels), groups if clustered else None)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        single = intervals_of(p[rows, j], labels[rows, j], groups[rows] if clustered else None)
        for both, one in zip(found, single, strict=True):
            assert (both.value[j], both.low[j], both.high[j]) == pytest.approx((one.value, one.low, one.high))


def test_where_nothing_varies_the_interval_still_has_a_width():
    labels = np.repeat([0, 1], [20, 10])
    perfect = average_precision_interval(np.arange(30.0), labels)
    assert perfect.value == pytest.approx(1.0)
    assert perfect.high == 1.0
    assert perfect.low**10 == pytest.approx(0.025)  # ten pairs without a common sample, as for AUC
    by_patient = average_precision_interval(np.arange(30.0), labels, groups=np.arange(30) // 5)
    assert by_patient.low**2 == pytest.approx(0.025)
    constant = average_precision_interval(np.zeros(30), labels, stratified=True)
    assert (constant.low, constant.high) == pytest.approx(wilson_limits(10 / 3, 10, 0.95))
    exact = calibration_intervals(labels.astype(float), labels)
    for one in (exact.brier, exact.calibration_error):
        assert (one.value, one.low) == (0, 0)
        assert (1 - one.high) ** 30 == pytest.approx(0.025)
    exact = calibration_intervals(labels.astype(float), labels, groups=np.arange(30) // 5)
    assert (1 - exact.brier.high) ** 6 == pytest.approx(0.025)


def test_a_calibrated_model_is_not_denied_its_calibration_and_a_poor_one_is():
    rng = np.random.default_rng(0)
    p = rng.random(3000) * 0.2
    labels = (rng.random(3000) < p).astype(int)
    good = calibration_intervals(p, labels, bins=10).calibration_error
    assert good.low == 0 < good.value < good.high < 0.04
    poor = calibration_intervals(p + 0.3, labels, bins=10).calibration_error
    assert 0.25 < poor.low < 0.3 < poor.high < 0.35


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 0, 0, 0], {}, "0 positives and 4 negatives"),
        ([0, 0, 0, 1], {}, "two positives and two negatives; there are 1 and 3"),
        ([1, 1, 0, np.nan], {}, "two positives and two negatives; there are 2 and 1"),
        (
            [1, 1, 0, 0],
            {"groups": [1, 1, 2, 3]},
            r"two groups \(patients\) with a positive and two with a negative; there are 1",
        ),
        ([1, 1, 0, 0], {"groups": [1, 2, 3, 4], "stratified": True}, "leave one of the two out"),
        ([1, 1, 0, 0], {"level": 95}, "between 0 and 1"),
        ([1, 1, 0, 0], {"n_resamples": 10}, "at least 100"),
    ],
)
def test_refusals(labels, options, message):
    for interval in (average_precision_interval, calibration_intervals):
        with pytest.raises(ValueError, match=message):
            interval([0.1, 0.2, 0.3, 0.4], labels, **options)
    with pytest.raises(ValueError, match="fit_temperature"):
        calibration_intervals([-0.5, 2.0, 0.1, 0.2], [0, 1, 0, 1])
    with pytest.raises(ValueError, match="bins"):
        calibration_intervals([0.5, 0.2, 0.1, 0.2], [0, 1, 0, 1], bins=0)


@pytest.mark.parametrize("rows", range(4, 40))
def test_predictions_that_are_all_wrong_are_no_worse_than_wrong(rows):
    """Rounding must not carry a figure past 1, nor past its own limits."""
    labels = np.arange(rows) % 2
    found = calibration_intervals(1.0 - labels, labels, n_resamples=100)
    assert found.brier.value == pytest.approx(1, abs=1e-15)
    assert found.brier.low == pytest.approx(0.025 ** (1 / rows), rel=1e-12)  # Clopper and Pearson's
    for one in (found.brier, found.calibration_error):
        assert 0 <= one.low <= one.value <= one.high <= 1
    point = operating_point(1.0 - labels, labels, 0.5)
    assert (point.sensitivity.value, point.sensitivity.low) == (0, 0)
    point = operating_point(labels, labels, 0.5)
    assert (point.specificity.value, point.specificity.high) == (1, 1)


def test_a_level_is_a_share():
    for compute in (reliability_curve, calibration_intervals):
        with pytest.raises(ValueError, match="level is 95;"):
            compute([0.2, 0.8, 0.3, 0.7], [0, 1, 1, 0], level=95)
