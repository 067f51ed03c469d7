"""The interval and the paired test of partial AUCs; the area itself is tested with the curves."""

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.metrics.partial import compare_partial_auroc, partial_auroc, partial_auroc_interval

LIMITS = [{"max_fpr": 0.3}, {"min_tpr": 0.8}, {"max_fpr": 0.4, "min_tpr": 0.5}]


def problem(rows=200, share=0.3, shift=1.0, digits=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < share).astype(int)
    return np.round(rng.standard_normal(rows) + shift * labels, digits), labels


def isic_2024(labels, scores, min_tpr=0.8):
    """The challenge's own metric, with scikit-learn: classes and scores turned round, cut at 1 - min_tpr."""
    most = 1 - min_tpr
    scaled = sk.roc_auc_score(1 - labels, -scores, max_fpr=most)
    return 0.5 * most**2 + (most - 0.5 * most**2) / (1.0 - 0.5) * (scaled - 0.5)


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_above_a_sensitivity_it_is_the_score_of_isic_2024(digits):
    scores, labels = problem(digits=digits)
    for min_tpr in (0.8, 0.5, 0.95):
        assert partial_auroc(scores, labels, min_tpr=min_tpr) == pytest.approx(isic_2024(labels, scores, min_tpr))


def by_pairs(scores, labels, weights, max_fpr, min_tpr):
    """Whole weights: each row as often as it weighs; a tie is spread over both orders, and cut by a fine grid of each.

    Pairs of (positive, negative) in the region, right ones 1, over all pairs.
    """
    fine = 40
    copies = np.repeat(np.arange(scores.size), weights * fine)
    y, s = labels[copies], scores[copies]
    area = []
    negatives = np.sort(s[y == 0])[::-1]
    positives = np.sort(s[y == 1])
    grid = (np.arange(4000) + 0.5) / 4000 * max_fpr
    for f in grid:  # the height of the curve at f, a tie being a straight piece
        cut = negatives[int(f * negatives.size)]
        tied = negatives == cut
        into = (f * negatives.size - np.flatnonzero(tied)[0]) / tied.sum()
        height = ((positives > cut).sum() + into * (positives == cut).sum()) / positives.size
        area.append(max(height - min_tpr, 0))
    return np.mean(area) * max_fpr


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
def test_weights_are_numbers_of_copies_ties_included(data):
    n = data.draw(st.integers(4, 12))
    whole = lambda high: np.array(data.draw(st.lists(st.integers(0, high), min_size=n, max_size=n)))  # noqa: E731
    scores, labels, weights = whole(5).astype(float), whole(1), whole(2) + 1
    labels[:2] = 0, 1
    for limits in LIMITS:
        full = {"max_fpr": 1.0, "min_tpr": 0.0} | limits
        expected = by_pairs(scores, labels, weights, **full)
        assert partial_auroc(scores, labels, weights=weights, **full) == pytest.approx(expected, abs=1e-3)


def test_without_limits_the_interval_is_near_the_aurocs():
    scores, labels = problem(400)
    found, whole = partial_auroc_interval(scores, labels), auroc_interval(scores, labels)
    assert found.value == pytest.approx(auroc(scores, labels))
    assert found.low == pytest.approx(whole.low, abs=0.01)
    assert found.high == pytest.approx(whole.high, abs=0.01)


@pytest.mark.parametrize("limits", LIMITS)
def test_the_interval_is_that_of_a_bootstrap_in_a_loop(limits):
    """SciPy's BCa, which takes the acceleration from a jackknife."""
    scores, labels = problem(150, digits=1)
    found = partial_auroc_interval(scores, labels, n_resamples=4000, **limits)

    def area(positives, negatives):
        drawn = np.concatenate([positives, negatives])
        return partial_auroc(drawn, np.arange(drawn.size) < positives.size, **limits)

    looped = stats.bootstrap(
        (scores[labels == 1], scores[labels == 0]), area, vectorized=False, n_resamples=1500, random_state=5
    ).confidence_interval
    spread = looped.high - looped.low
    assert found.low == pytest.approx(looped.low, abs=0.1 * spread)
    assert found.high == pytest.approx(looped.high, abs=0.1 * spread)
    assert partial_auroc_interval(scores, labels, n_resamples=200, **limits) == partial_auroc_interval(
        scores[::-1], labels[::-1], n_resamples=200, **limits
    )


def test_alike_rows_of_a_patient_widen_the_interval():
    scores, labels = problem(120)
    four = np.repeat(np.arange(120), 4)
    rows = partial_auroc_interval(scores[four], labels[four], min_tpr=0.5)
    patients = partial_auroc_interval(scores[four], labels[four], min_tpr=0.5, groups=four)
    once = partial_auroc_interval(scores, labels, min_tpr=0.5)
    assert rows.value == pytest.approx(patients.value)
    assert patients.high - patients.low > 1.6 * (rows.high - rows.low)
    assert patients.high - patients.low == pytest.approx(once.high - once.low, rel=0.15)


def test_a_perfect_ranking_still_has_a_lower_limit():
    labels = np.array([0] * 40 + [1] * 20)
    found = partial_auroc_interval(labels + 0.0, labels, min_tpr=0.8)
    assert found.value == found.high == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 * 0.025 ** (1 / 4))  # the lowest 4 of 20 positives


def test_several_labels_with_gaps():
    rng = np.random.default_rng(0)
    labels = (rng.random((150, 2)) < 0.4).astype(float)
    scores = rng.standard_normal((150, 2)) + labels
    labels[rng.random((150, 2)) < 0.2] = np.nan
    found = partial_auroc_interval(scores, labels, max_fpr=0.3, n_resamples=200)
    tested = compare_partial_auroc(scores, -scores, labels, max_fpr=0.3, n_resamples=200)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        s, y = scores[rows, j], labels[rows, j]
        assert found.low[j] == partial_auroc_interval(s, y, max_fpr=0.3, n_resamples=200).low
        assert tested.p_value[j] == compare_partial_auroc(s, -s, y, max_fpr=0.3, n_resamples=200).p_value


def test_without_limits_the_test_is_near_delongs():
    scores, labels = problem(500)
    other = scores + np.random.default_rng(1).standard_normal(500)
    found, delong = compare_partial_auroc(scores, other, labels, n_resamples=4000), compare_auroc(scores, other, labels)
    assert found.difference == pytest.approx(delong.difference)
    assert found.high - found.low == pytest.approx(delong.high - delong.low, rel=0.06)
    assert found.p_value == pytest.approx(delong.p_value, rel=0.3)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("by_patient", [False, True])
def test_the_paired_test_holds_its_level(limits, by_patient):
    """Two scores of equal worth: p below .2 in about a fifth of the samples (200 of them: .2 +- .08)."""
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        labels = (rng.random(120) < 0.4).astype(int)
        groups = np.arange(120) // (2 if by_patient else 1)
        if by_patient:
            labels[1::2] = labels[::2]
        a, b = (rng.standard_normal(120) + labels for _ in range(2))
        if by_patient:
            a[1::2], b[1::2] = a[::2], b[::2]
        options = {"groups": groups if by_patient else None, "n_resamples": 200, **limits}
        rejected += compare_partial_auroc(a, b, labels, **options).p_value < 0.2
    assert 0.11 < rejected / 200 < 0.29


def test_the_same_scores_do_not_differ():
    scores, labels = problem(60)
    found = compare_partial_auroc(scores, 3 * scores + 1, labels, max_fpr=0.3)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_perfect_against_reversed():
    labels = np.array([0] * 40 + [1] * 20)
    found = compare_partial_auroc(labels, -labels, labels, min_tpr=0.5)
    assert found.difference == pytest.approx(0.5)
    assert found.low < found.difference <= found.high == pytest.approx(0.5)
    assert found.p_value == 2.0**-9  # of 10 pairs


def test_one_positive_is_too_few_and_limits_are_checked():
    with pytest.raises(ValueError, match="at least two positives"):
        partial_auroc_interval([0.1, 0.2, 0.3], [0, 0, 1], max_fpr=0.5)
    for function in (partial_auroc_interval, lambda s, y, **k: compare_partial_auroc(s, s, y, **k)):
        with pytest.raises(ValueError, match=r"max_fpr is 0; it must lie in \(0, 1\]"):
            function([0.1, 0.2], [0, 1], max_fpr=0)
