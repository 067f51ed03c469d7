"""ROC, precision-recall, average precision and partial areas against scikit-learn and brute force."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from deepauc.metrics.auroc import auroc
from deepauc.metrics.average_precision import average_precision
from deepauc.metrics.basis.bootstrap import resampled_weights
from deepauc.metrics.basis.columns import read_columns
from deepauc.metrics.curves import both_bands, precision_recall_band, precision_recall_curve, roc_band, roc_curve
from deepauc.metrics.intervals import wilson_limits
from deepauc.metrics.partial import partial_auroc

HYPOTHESIS = settings(derandomize=True, deadline=None)
problems = st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.integers(1, 5)), min_size=2, max_size=40)


def arrays(data):
    scores, labels, weights = (np.array(part, dtype=float) for part in zip(*data, strict=True))
    assume(0 < labels.sum() < labels.size)
    return scores, labels, weights


def normal_problem(n=300, share=0.3, seed=0, digits=2):
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < share).astype(float)
    return (rng.standard_normal(n) + labels).round(digits), labels, rng


@given(data=problems, weighted=st.booleans())
@HYPOTHESIS
def test_roc_equals_scikit_learn(data, weighted):
    scores, labels, weights = arrays(data)
    weights = weights if weighted else None
    ours = roc_curve(scores, labels, weights=weights)
    fpr, tpr, thresholds = sk.roc_curve(labels, scores, sample_weight=weights, drop_intermediate=False)
    np.testing.assert_allclose(ours.fpr, fpr, atol=1e-14)
    np.testing.assert_allclose(ours.tpr, tpr, atol=1e-14)
    np.testing.assert_array_equal(ours.thresholds, thresholds)
    area = ((ours.tpr[1:] + ours.tpr[:-1]) / 2 * np.diff(ours.fpr)).sum()
    assert area == pytest.approx(auroc(scores, labels, weights=weights), abs=1e-12)


@given(data=problems, weighted=st.booleans())
@HYPOTHESIS
def test_precision_recall_and_average_precision_equal_scikit_learn(data, weighted):
    scores, labels, weights = arrays(data)
    weights = weights if weighted else None
    ours = precision_recall_curve(scores, labels, weights=weights)
    precision, recall, thresholds = sk.precision_recall_curve(labels, scores, sample_weight=weights)
    np.testing.assert_allclose(ours.precision[::-1], precision, atol=1e-14)
    np.testing.assert_allclose(ours.recall[::-1], recall, atol=1e-14)
    np.testing.assert_array_equal(ours.thresholds[:0:-1], thresholds)
    expected = sk.average_precision_score(labels, scores, sample_weight=weights)
    assert average_precision(scores, labels, weights=weights) == pytest.approx(expected, abs=1e-12)


def test_rows_of_weight_zero_take_no_part():
    scores, labels = np.array([9.0, 3, 2, 1, 0]), np.array([0, 1, 0, 1, 0])
    weights = np.array([0.0, 1, 2, 1, 1])
    for function in (roc_curve, precision_recall_curve):
        with_zero = function(scores, labels, weights=weights)
        without = function(scores[1:], labels[1:], weights=weights[1:])
        for name in with_zero.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(with_zero, name), getattr(without, name))
    value = average_precision(scores, labels, weights=weights)
    assert value == average_precision(scores[1:], labels[1:], weights=weights[1:])


@given(data=problems, max_fpr=st.sampled_from([0.05, 0.2, 0.5, 0.77, 0.999]))
@HYPOTHESIS
def test_partial_area_in_its_standard_form_equals_scikit_learn(data, max_fpr):
    scores, labels, _ = arrays(data)
    expected = sk.roc_auc_score(labels, scores, max_fpr=max_fpr)
    assert partial_auroc(scores, labels, max_fpr=max_fpr, standardise=True) == pytest.approx(expected, abs=1e-12)


def by_fine_steps(scores, labels, max_fpr, min_tpr, steps=200_000):
    fpr, tpr, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    middles = (np.arange(steps) + 0.5) / steps * max_fpr
    return np.maximum(np.interp(middles, fpr, tpr) - min_tpr, 0).mean() * max_fpr


@given(data=problems, max_fpr=st.sampled_from([0.1, 0.4, 1.0]), min_tpr=st.sampled_from([0.0, 0.3, 0.8]))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_partial_area_equals_the_integral_in_fine_steps(data, max_fpr, min_tpr):
    scores, labels, _ = arrays(data)
    expected = by_fine_steps(scores, labels, max_fpr, min_tpr)
    assert partial_auroc(scores, labels, max_fpr=max_fpr, min_tpr=min_tpr) == pytest.approx(expected, abs=2e-5)


def test_partial_area_of_whole_blocks_is_a_share_of_pairs():
    """Without ties and with limits on whole samples, the two-way area counts the pairs of hard negatives and positives.

    (max_fpr n- top negatives against (1 - min_tpr) n+ bottom positives, as LibAUC and Yang et al., 2019, define it.)
    """
    scores, labels, _ = normal_problem(n=400, digits=9)
    positives, negatives = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])[::-1]
    hard_positives, hard_negatives = positives[:30], negatives[:40]
    pairs = (hard_positives[:, None] > hard_negatives[None, :]).sum() / (positives.size * negatives.size)
    found = partial_auroc(scores, labels, max_fpr=40 / negatives.size, min_tpr=1 - 30 / positives.size)
    assert found == pytest.approx(pairs, abs=1e-12)


def test_partial_area_limits():
    scores, labels, rng = normal_problem()
    assert partial_auroc(scores, labels) == pytest.approx(auroc(scores, labels), abs=1e-12)
    weights = rng.random(labels.size)
    weighted = partial_auroc(scores, labels, max_fpr=0.3, standardise=True, weights=weights)
    expected = sk.roc_auc_score(labels, scores, sample_weight=weights, max_fpr=0.3)
    assert weighted == pytest.approx(expected, abs=1e-12)
    for limits in ({"max_fpr": 0.2}, {"min_tpr": 0.6}, {"max_fpr": 0.9, "min_tpr": 0.4}):
        assert partial_auroc(labels, labels, standardise=True, **limits) == pytest.approx(1.0)
        assert partial_auroc(0 * labels, labels, standardise=True, **limits) == pytest.approx(0.5)
        most = limits.get("max_fpr", 1.0) * (1 - limits.get("min_tpr", 0.0))
        assert partial_auroc(labels, labels, **limits) == pytest.approx(most)
    for wrong in ({"max_fpr": 0.0}, {"max_fpr": 1.2}, {"min_tpr": 1.0}, {"min_tpr": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            partial_auroc(scores, labels, **wrong)


def test_columns_and_missing_labels():
    rng = np.random.default_rng(0)
    labels = (rng.random((120, 2)) < 0.4).astype(float)
    scores = rng.standard_normal((120, 2)) + labels
    labels[rng.random((120, 2)) < 0.2] = np.nan
    rocs, recalls = roc_curve(scores, labels), precision_recall_curve(scores, labels)
    bands = roc_band(scores, labels, n_resamples=120)
    precision, partial = average_precision(scores, labels), partial_auroc(scores, labels, max_fpr=0.3)
    assert precision.shape == partial.shape == (2,)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        s, y = scores[rows, j], labels[rows, j]
        np.testing.assert_array_equal(rocs[j].tpr, roc_curve(s, y).tpr)
        np.testing.assert_array_equal(recalls[j].precision, precision_recall_curve(s, y).precision)
        np.testing.assert_array_equal(bands[j].low, roc_band(s, y, n_resamples=120).low)
        assert precision[j] == average_precision(s, y)
        assert partial[j] == partial_auroc(s, y, max_fpr=0.3)


def test_height_of_a_curve_is_the_top_of_a_vertical_piece():
    curve = roc_curve([4.0, 3, 2, 1], [1, 0, 1, 0])  # (0,0) (0,.5) (.5,.5) (.5,1) (1,1)
    np.testing.assert_array_equal(curve.tpr_at([0.0, 0.25, 0.5, 0.75, 1.0]), [0.5, 0.5, 1.0, 1.0, 1.0])
    tied = roc_curve([1.0, 1, 0, 0], [1, 0, 1, 0])  # a tie is a straight piece
    np.testing.assert_array_equal(tied.tpr_at([0.0, 0.25, 0.5]), [0.0, 0.25, 0.5])


def test_a_band_is_that_of_weighted_curves():
    """Its totals are sums of whole numbers, taken in one pass; those of a curve are of any weights."""
    rng = np.random.default_rng(4)
    labels = rng.random(200) < 0.4
    scores = rng.normal(labels).round(1)
    (column,) = read_columns(scores, labels)
    drawn = resampled_weights(column, n_resamples=100, rng=np.random.default_rng(0))
    band = roc_band(scores, labels, n_resamples=100, points=11)
    curves = [roc_curve(scores, labels, weights=weights).tpr_at(band.x) for weights in drawn]
    wilson = [wilson_limits(value * labels.sum(), labels.sum(), 0.95) for value in band.value]
    np.testing.assert_allclose(band.low, np.minimum(np.quantile(curves, 0.025, axis=0), [low for low, _ in wilson]))
    np.testing.assert_allclose(band.high, np.maximum(np.quantile(curves, 0.975, axis=0), [top for _, top in wilson]))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_both_bands_are_the_two_bands(ties, grouped):
    rng = np.random.default_rng(3)
    labels = rng.random(300) < 0.2
    scores = rng.normal(labels)
    scores = scores.round(1) if ties else scores
    options = {"n_resamples": 100, "seed": 5, "groups": rng.integers(0, 90, 300) if grouped else None}
    for one, found in zip((roc_band, precision_recall_band), both_bands(scores, labels, **options), strict=True):
        alone = one(scores, labels, **options)
        for name in ("x", "value", "low", "high"):
            np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))


@pytest.mark.parametrize("band", [roc_band, precision_recall_band])
@pytest.mark.parametrize("clustered", [True, False])
def test_bands_hold_their_curve_and_have_width(band, clustered):
    scores, labels, rng = normal_problem(n=200)
    groups = rng.integers(0, 90, 200) if clustered else None
    found = band(scores, labels, groups=groups, n_resamples=200, points=21)
    assert found.x.shape == found.low.shape == (21,)
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
    assert (found.high - found.low > 0.01).all()
    assert found.low.min() >= 0
    assert found.high.max() <= 1
    perfect = band(labels, labels, groups=groups, n_resamples=120, points=5)
    assert (perfect.value[1:-1] == 1).all()
    assert (perfect.low[1:-1] < 1).all()
    with pytest.raises(ValueError, match="level"):
        band(scores, labels, level=95)
    with pytest.raises(ValueError, match="n_resamples is 1;"):
        band(scores, labels, n_resamples=1)


def test_band_values_are_the_curves():
    scores, labels, _ = normal_problem(n=200, digits=1)
    roc, recall = roc_curve(scores, labels), precision_recall_curve(scores, labels)
    on_grid = roc_band(scores, labels, n_resamples=100, points=11)
    np.testing.assert_allclose(on_grid.value, roc.tpr_at(on_grid.x), atol=1e-14)
    on_grid = precision_recall_band(scores, labels, n_resamples=100, points=11)
    for x, value in zip(on_grid.x, on_grid.value, strict=True):
        first = np.flatnonzero((recall.recall >= x - 1e-12) & (recall.recall > 0))[0]
        assert value == pytest.approx(recall.precision[first])


@pytest.mark.slow
def test_the_roc_band_covers_pointwise():
    """500 simulations of 60 positives and 140 negatives: the true height lies in the band about 95 times of 100."""
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    labels = np.repeat([1.0, 0.0], [60, 140])
    grid = np.linspace(0, 1, 21)
    truth = norm.cdf(1.2 + norm.ppf(grid))
    inside = np.zeros(21)
    for _ in range(500):
        found = roc_band(rng.standard_normal(200) + 1.2 * labels, labels, n_resamples=300, points=21)
        inside += (found.low <= truth) & (truth <= found.high)
    coverage = inside[2:-2] / 500
    assert coverage.min() > 0.92, coverage
    assert coverage.mean() < 0.99, coverage


@pytest.mark.parametrize("function", [roc_curve, precision_recall_curve, average_precision, partial_auroc, roc_band])
def test_one_class_is_refused(function):
    with pytest.raises(ValueError, match="0 positives and 2 negatives"):
        function([0.1, 0.2], [0, 0])
