"""Thresholds from one part, rates on another."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepauc.metrics.intervals import wilson_limits
from deepauc.metrics.operating_points import (
    operating_point,
    sensitivity_at_specificity,
    threshold_at_sensitivity,
    threshold_at_specificity,
)

problems = st.lists(st.tuples(st.integers(-6, 6), st.booleans()), min_size=2, max_size=40)


@given(data=problems, share=st.sampled_from([0.05, 0.5, 0.8, 0.9, 0.95, 1.0]))
@settings(derandomize=True, deadline=None)
def test_the_threshold_is_the_extreme_one_that_keeps_the_promise(data, share):
    scores, labels = np.array([float(s) for s, _ in data]), np.array([int(y) for _, y in data])
    assume(0 < labels.sum() < labels.size)
    positives, negatives = scores[labels == 1], scores[labels == 0]
    cut = threshold_at_specificity(scores, labels, share)
    assert (negatives < cut).mean() >= share - 1e-9
    lower = scores[scores < cut]
    assert not lower.size or (negatives < lower.max()).mean() < share - 1e-9  # one score lower breaks it
    cut = threshold_at_sensitivity(scores, labels, share)
    assert (positives >= cut).mean() >= share - 1e-9
    stricter = positives[positives > positives[positives >= cut].min()]  # what the next higher threshold still finds
    assert stricter.size / positives.size < share - 1e-9


def test_the_threshold_stands_between_two_scores():
    scores, labels = np.array([0.0, 1.0, 2.0, 5.0]), np.array([0, 0, 0, 1])
    assert threshold_at_specificity(scores, labels, 1.0) == 3.5
    assert threshold_at_specificity(scores, labels, 0.6) == 1.5
    assert threshold_at_sensitivity(scores, labels, 1.0) == 3.5
    assert threshold_at_specificity(-scores, labels, 1.0) == np.nextafter(0.0, 1.0)  # no score above the last negative
    single = np.array([1.0, 1.0 + np.finfo(np.float32).eps, 3.0], dtype=np.float32)
    cut = threshold_at_specificity(single, [0, 1, 1], 1.0)  # halfway is not a float32, yet it separates
    assert operating_point(single, [0, 1, 1], cut).sensitivity.value == 1.0
    assert operating_point(single, [0, 1, 1], cut).specificity.value == 1.0


def test_rates_are_counted_on_the_other_part():
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.3).astype(int)
    scores = rng.standard_normal(400) + labels
    other_labels = (rng.random(300) < 0.3).astype(int)
    other = rng.standard_normal(300) + other_labels
    point = sensitivity_at_specificity(
        scores, labels, specificity=0.9, validation_scores=other, validation_labels=other_labels
    )
    cut = threshold_at_specificity(other, other_labels, 0.9)
    called = scores >= cut
    assert point.threshold == cut
    tp, fp = (called & (labels == 1)).sum(), (called & (labels == 0)).sum()
    tn, fn = (~called & (labels == 0)).sum(), (~called & (labels == 1)).sum()
    assert (point.true_positives, point.false_positives, point.true_negatives, point.false_negatives) == (
        tp,
        fp,
        tn,
        fn,
    )
    for estimate, right, of in (
        (point.sensitivity, tp, tp + fn),
        (point.specificity, tn, tn + fp),
        (point.positive_predictive_value, tp, tp + fp),
        (point.negative_predictive_value, tn, tn + fn),
    ):
        assert estimate.value == right / of
        assert (estimate.low, estimate.high) == pytest.approx(wilson_limits(right, of, 0.95))


def test_patients_widen_the_limits():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 60), rng.standard_normal(60)
    single = operating_point(scores, labels, 0.0)
    alone = operating_point(scores, labels, 0.0, groups=np.arange(60))
    copies = operating_point(np.tile(scores, 4), np.tile(labels, 4), 0.0, groups=np.tile(np.arange(60), 4))
    for name in ("sensitivity", "specificity", "positive_predictive_value", "negative_predictive_value"):
        plain, own, copied = (getattr(p, name) for p in (single, alone, copies))
        assert (copied.low, copied.high) == pytest.approx((own.low, own.high))  # copies add nothing
        assert own.low == pytest.approx(plain.low, abs=0.01)
    certain = operating_point(np.ones(40), np.repeat([1, 0], 20), 0.5, groups=np.arange(40) // 5)
    assert certain.sensitivity.value == 1.0
    assert (certain.sensitivity.low, certain.sensitivity.high) == pytest.approx(wilson_limits(4, 4, 0.95))


def test_nothing_called_positive_leaves_the_predictive_value_open():
    point = operating_point([0.1, 0.2, 0.3], [0, 1, 0], 5.0)
    assert np.isnan(point.positive_predictive_value.value)
    assert (point.positive_predictive_value.low, point.positive_predictive_value.high) == (0.0, 1.0)
    assert point.sensitivity.value == 0.0


def test_columns_and_missing_labels():
    rng = np.random.default_rng(0)
    labels = (rng.random((100, 2)) < 0.4).astype(float)
    scores = rng.standard_normal((100, 2)) + labels
    labels[rng.random((100, 2)) < 0.2] = np.nan
    cut = threshold_at_specificity(scores, labels, 0.8)
    assert cut.shape == (2,)
    point = operating_point(scores, labels, cut)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        one = operating_point(scores[rows, j], labels[rows, j], cut[j])
        assert threshold_at_specificity(scores[rows, j], labels[rows, j], 0.8) == cut[j]
        assert (point.sensitivity.value[j], point.sensitivity.low[j]) == (one.sensitivity.value, one.sensitivity.low)
        assert point.true_positives[j] == one.true_positives


def test_refusals():
    for function in (threshold_at_specificity, threshold_at_sensitivity):
        for wrong in (0.0, 1.1, 95):
            with pytest.raises(ValueError, match="must lie in"):
                function([0.1, 0.2], [0, 1], wrong)
        with pytest.raises(ValueError, match="0 positives"):
            function([0.1, 0.2], [0, 0], 0.9)
    with pytest.raises(ValueError, match="level"):
        operating_point([0.1, 0.2], [0, 1], 0.1, level=95)
