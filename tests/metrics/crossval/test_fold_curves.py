"""Curves of cross-validation against loops over folds, rows and thresholds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.metrics.average_precision import average_precision
from deepauc.metrics.crossval.fold_curves import fold_average_precision_interval, fold_bands, fold_curves
from deepauc.metrics.crossval.folds import fold_auroc
from deepauc.metrics.curves import roc_curve


def cohort(rng, *, sizes=((3, 9), (5, 4), (2, 20)), ties=True, offsets=None):
    scores, labels, folds = [], [], []
    for fold, (m, n) in enumerate(sizes):
        y = np.repeat([1, 0], [m, n])
        s = rng.normal(size=m + n) + y
        s = np.round(s, 1) if ties else s
        scores.append(s + (0 if offsets is None else offsets[fold]))
        labels.append(y)
        folds.append(np.full(m + n, fold))
    return np.concatenate(scores), np.concatenate(labels), np.concatenate(folds)


def area(x, y):
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), ties=st.booleans())
def test_the_area_under_the_mean_curve_is_the_mean_auc(seed, ties):
    scores, labels, folds = cohort(np.random.default_rng(seed), ties=ties)
    curves = fold_curves(scores, labels, folds)
    assert area(curves.fpr, curves.tpr) == pytest.approx(fold_auroc(scores, labels, folds), abs=1e-12)
    assert (np.diff(curves.fpr) >= 0).all()
    assert (np.diff(curves.tpr) >= -1e-12).all()
    assert (curves.fpr[0], curves.tpr[0], curves.fpr[-1], curves.tpr[-1]) == (0, 0, 1, 1)


def test_the_height_is_the_pair_weighted_mean_of_the_folds_curves():
    scores, labels, folds = cohort(np.random.default_rng(1))
    grid = np.linspace(0, 1, 101)
    expected, pairs = np.zeros(101), 0
    for fold in range(3):
        own = folds == fold
        weight = int(labels[own].sum()) * int((1 - labels[own]).sum())
        expected += weight * roc_curve(scores[own], labels[own]).tpr_at(grid)
        pairs += weight
    roc, _ = fold_bands(scores, labels, folds, n_resamples=100)
    np.testing.assert_allclose(roc.value, expected / pairs)
    assert (roc.low <= roc.value).all()
    assert (roc.value <= roc.high).all()


def test_a_networks_own_scale_changes_nothing_where_pooling_would_fall():
    sizes = ((4, 12),) * 3
    plain = cohort(np.random.default_rng(2), sizes=sizes, ties=False)
    moved = cohort(np.random.default_rng(2), sizes=sizes, ties=False, offsets=(0.0, 50.0, -50.0))
    ours, theirs = fold_curves(*plain), fold_curves(*moved)
    np.testing.assert_allclose(theirs.tpr, ours.tpr)
    np.testing.assert_allclose(theirs.precision, ours.precision)
    pooled = roc_curve(moved[0], moved[1])
    assert area(pooled.fpr, pooled.tpr) < fold_auroc(*moved) - 0.05


def test_precision_is_of_counts_summed_over_folds_at_each_ones_threshold():
    scores, labels, folds = cohort(np.random.default_rng(3))
    curves = fold_curves(scores, labels, folds)
    recalls = sorted({k / m for m in (3, 5, 2) for k in range(1, m + 1)})
    points = {}
    for recall in recalls:
        found = called = 0
        for fold in range(3):
            s, y = scores[folds == fold], labels[folds == fold]
            cuts = [cut for cut in sorted(set(s), reverse=True) if (s[y == 1] >= cut).mean() >= recall - 1e-9]
            found += int((s[y == 1] >= cuts[0]).sum())
            called += int((s >= cuts[0]).sum())
        points[found / labels.sum()] = found / called
    drawn = dict(zip(curves.recall[1:], curves.precision[1:], strict=True))
    for recall, precision in points.items():
        near = min(drawn, key=lambda one: abs(one - recall))
        assert near == pytest.approx(recall)
        assert drawn[near] == pytest.approx(precision)
    steps, before = 0.0, 0.0
    for recall in sorted(points):
        steps, before = steps + (recall - before) * points[recall], recall
    assert curves.average_precision == pytest.approx(steps)


def test_one_fold_is_no_fold():
    scores, labels, folds = cohort(np.random.default_rng(4), sizes=((12, 40),))
    curves = fold_curves(scores, labels, folds)
    assert curves.average_precision == pytest.approx(average_precision(scores, labels))
    plain = roc_curve(scores, labels)
    np.testing.assert_allclose(np.interp(0.37, curves.fpr, curves.tpr), plain.tpr_at(0.37))


def test_a_fold_without_a_class_does_not_count():
    scores, labels, folds = cohort(np.random.default_rng(5))
    more = np.append(scores, [99.0, 98.0]), np.append(labels, [0, 0]), np.append(folds, [7, 7])
    np.testing.assert_array_equal(fold_curves(*more).tpr, fold_curves(scores, labels, folds).tpr)
    with pytest.raises(ValueError, match="no fold holds a positive and a negative"):
        fold_curves([1.0, 2.0], [0, 1], ["a", "b"])


def test_patients_are_drawn_whole():
    scores, labels, folds = cohort(np.random.default_rng(6), sizes=((10, 40), (10, 40)), ties=False)
    four = [np.repeat(one, 4) for one in (scores, labels, folds)]
    patients = np.repeat(np.arange(100), 4)
    one = fold_average_precision_interval(scores, labels, folds, n_resamples=400)
    by_patient = fold_average_precision_interval(*four, groups=patients, n_resamples=400)
    by_row = fold_average_precision_interval(*four, n_resamples=400)
    width = [limits.high - limits.low for limits in (one, by_patient, by_row)]
    assert width[1] == pytest.approx(width[0], rel=0.15)
    assert width[2] < 0.7 * width[0]


def coverage(area_of, sizes, *, cohorts, resamples=200):
    """Shares of intervals that hold the truth: sensitivity at false positive rates of .1 and .3."""
    from statistics import NormalDist

    normal = NormalDist()
    shift = normal.inv_cdf(area_of) * np.sqrt(2)
    at = (10, 30)
    truth = np.array([1 - normal.cdf(normal.inv_cdf(1 - x / 100) - shift) for x in at])
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(cohorts):
        labels = np.concatenate([np.repeat([1, 0], size) for size in sizes])
        folds = np.repeat(np.arange(len(sizes)), [sum(size) for size in sizes])
        scores = rng.normal(size=labels.size) + shift * labels
        band, _ = fold_bands(scores, labels, folds, n_resamples=resamples)
        held += (band.low[list(at)] <= truth) & (truth <= band.high[list(at)])
    return held / cohorts


@pytest.mark.slow
@pytest.mark.parametrize("positives", [3, 6, 20])
@pytest.mark.parametrize("area_of", [0.7, 0.8, 0.9])
def test_the_band_holds_the_truth_about_as_often_as_it_says(positives, area_of):
    assert coverage(area_of, [(positives, 10 * positives)] * 5, cohorts=400).min() >= 0.92
