"""Cross-validated AUROC against loops over pairs, DeLong on one fold, and what must not change it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc import auroc, compare_auroc
from deepauc.metrics.crossval.folds import compare_fold_auroc, fold_auroc, fold_auroc_interval
from deepauc.metrics.intervals import delong_variance


def sample(rows=120, folds=4, seed=0, images=1):
    """Scores on another scale in each fold, so that pooling them would be wrong."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(rows // images), images)
    fold = groups % folds
    labels = (rng.random(rows) < 0.3).astype(int)
    scores = rng.standard_normal(rows) + labels + 3 * fold
    return scores, labels, fold, groups


def by_pairs(scores, labels, folds):
    right = pairs = 0.0
    for i in np.flatnonzero(labels == 1):
        for j in np.flatnonzero(labels == 0):
            if folds[i] == folds[j]:
                right += 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0
                pairs += 1
    return right / pairs


@pytest.mark.parametrize("ties", [False, True])
def test_it_is_the_share_of_within_fold_pairs(ties):
    scores, labels, folds, _ = sample()
    scores = np.round(scores) if ties else scores
    assert fold_auroc(scores, labels, folds) == pytest.approx(by_pairs(scores, labels, folds), abs=1e-12)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_rising_map_of_one_fold_alone_changes_nothing(seed):
    scores, labels, folds, groups = sample(seed=seed)
    moved = np.where(folds == 2, np.exp(scores / 4) - 50, scores)
    if auroc(scores, labels) == auroc(moved, labels):
        return  # the pooled AUROC is what a map of one fold moves
    before = fold_auroc_interval(scores, labels, folds, groups=groups)
    after = fold_auroc_interval(moved, labels, folds, groups=groups)
    assert before == after


def test_a_fold_without_a_class_does_not_count():
    scores, labels, folds, _ = sample()
    labels[folds == 1] = 0
    inside = folds != 1
    with_fold, without = (
        fold_auroc_interval(scores[rows], labels[rows], folds[rows]) for rows in (slice(None), inside)
    )
    assert with_fold == without


@pytest.mark.parametrize("images", [1, 4])
def test_one_fold_is_delong(images):
    scores, labels, _, groups = sample(images=images)
    given_groups = None if images == 1 else groups
    found = fold_auroc_interval(scores, labels, np.zeros(120), groups=given_groups)
    assert found.value == auroc(scores, labels)
    assert found.standard_error**2 == pytest.approx(delong_variance(scores, labels, groups=given_groups), rel=1e-10)


def test_one_image_a_patient_is_no_groups():
    scores, labels, folds, groups = sample()
    with_groups, without = (fold_auroc_interval(scores, labels, folds, groups=g) for g in (groups, None))
    assert with_groups.standard_error == pytest.approx(without.standard_error, rel=1e-3)


def test_the_variance_by_hand():
    """V = M/(M-1) Σ_i (n_f/P)² (v10_i - A)² + N/(N-1) Σ_j (m_f/P)² (v01_j - A)²."""
    scores, labels, folds, _ = sample(rows=60, folds=3)
    area, pairs = (
        by_pairs(scores, labels, folds),
        sum(int((labels[folds == f] == 1).sum() * (labels[folds == f] == 0).sum()) for f in range(3)),
    )
    total = 0.0
    for value in (1, 0):
        terms = []
        for i in np.flatnonzero(labels == value):
            others = scores[(folds == folds[i]) & (labels == 1 - value)]
            placed = np.mean(others < scores[i]) if value else np.mean(others > scores[i])
            terms.append((len(others) / pairs * (placed - area)) ** 2)
        total += len(terms) / (len(terms) - 1) * sum(terms)
    assert fold_auroc_interval(scores, labels, folds).standard_error ** 2 == pytest.approx(total, rel=1e-10)


def test_a_single_positive_in_each_fold_still_has_an_interval():
    labels = np.tile([1, 0, 0, 0], 6)
    scores = np.arange(24) % 5
    found = fold_auroc_interval(scores, labels, np.repeat(np.arange(6), 4))
    assert 0 < found.low < found.value < found.high < 1
    assert np.isfinite(found.standard_error)


def test_a_perfect_ranking_has_a_lower_limit_from_its_independent_pairs():
    labels = np.tile([1, 0, 0], 8)
    found = fold_auroc_interval(labels * 1.0, labels, np.repeat(np.arange(4), 6))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 8))


def test_one_positive_says_nothing():
    found = fold_auroc_interval([3.0, 1, 2, 1], [1, 0, 0, 0], [0, 0, 1, 1])
    assert (found.value, found.low, found.high, found.standard_error) == (1.0, 0.0, 1.0, np.inf)


def test_the_paired_difference_of_one_fold_is_delongs():
    scores, labels, _, groups = sample(images=2)
    other = scores + np.random.default_rng(1).standard_normal(120)
    found = compare_fold_auroc(scores, other, labels, np.zeros(120), groups=groups)
    known = compare_auroc(scores, other, labels, groups=groups)
    assert found.difference == pytest.approx(known.difference, abs=1e-12)
    assert found.low == pytest.approx(known.low, abs=0.01)  # t for z
    assert found.p_value == pytest.approx(known.p_value, abs=0.02)
    swapped = compare_fold_auroc(other, scores, labels, np.zeros(120), groups=groups)
    assert swapped.difference == -found.difference
    assert swapped.standard_error == pytest.approx(found.standard_error, rel=1e-12)


def test_equal_rankings_differ_by_nothing():
    scores, labels, folds, _ = sample()
    found = compare_fold_auroc(scores, np.exp(scores / 9), labels, folds)
    assert (found.difference, found.low, found.high, found.standard_error, found.p_value) == (0, 0, 0, 0, 1)


def two_labels():
    scores, labels, folds, groups = sample(images=2)
    more, others, _, _ = sample(seed=5, images=2)
    both = np.stack([labels, others], axis=1).astype(float)
    both[7, 0] = both[8, 1] = np.nan
    return np.stack([scores, more], axis=1), both, folds, groups


def test_several_labels_are_each_by_itself():
    scores, labels, folds, groups = two_labels()
    found = fold_auroc_interval(scores, labels, folds, groups=groups)
    for j in range(2):
        known = ~np.isnan(labels[:, j])
        one = fold_auroc_interval(scores[known, j], labels[known, j], folds[known], groups=groups[known])
        assert (found.value[j], found.low[j], found.high[j]) == (one.value, one.low, one.high)


def test_the_mean_over_labels_counts_what_they_share():
    scores, labels, folds, groups = two_labels()
    single = fold_auroc_interval(scores[:, 0], labels[:, 0], folds, groups=groups)
    twice = fold_auroc_interval(scores[:, [0, 0]], labels[:, [0, 0]], folds, groups=groups, average=True)
    assert twice.value == single.value
    assert twice.standard_error == pytest.approx(single.standard_error)  # a copy tells nothing new
    opposite = compare_fold_auroc(
        np.stack([scores[:, 0], -scores[:, 0]], axis=1),
        np.zeros((120, 2)),
        labels[:, [0, 0]],
        folds,
        groups=groups,
        average=True,
    )
    assert opposite.difference == pytest.approx(0, abs=1e-12)
    assert opposite.standard_error == pytest.approx(0, abs=1e-9)


def test_refusals():
    scores, labels, folds, groups = sample()
    with pytest.raises(ValueError, match="one fold for each row"):
        fold_auroc(scores, labels, folds[:-1])
    with pytest.raises(ValueError, match="are in more than one fold"):
        fold_auroc_interval(scores, labels, folds, groups=groups // 2)
    with pytest.raises(ValueError, match="no fold holds a positive and a negative"):
        fold_auroc(scores, labels, labels)
