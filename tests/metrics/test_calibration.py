"""Brier and calibration error against scikit-learn and loops; recalibration and its way through JSON; decisions."""

import json
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss

from deepauc.metrics.auroc import auroc
from deepauc.metrics.calibration import brier_score, expected_calibration_error, reliability_curve
from deepauc.metrics.decisions import decision_curve
from deepauc.metrics.intervals import wilson_limits
from deepauc.metrics.recalibration import (
    IsotonicScaling,
    LabelwiseScaling,
    TemperatureScaling,
    fit_isotonic,
    fit_temperature,
    recalibration_from_dict,
)


def problem(n=500, seed=0, share=0.2):
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < share).astype(int)
    return 3 * (rng.standard_normal(n) + labels) + 5, labels, rng


def probabilities(n=500, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    return p, (rng.random(n) < p**2).astype(int), rng


def test_brier_equals_scikit_learn():
    p, labels, rng = probabilities()
    weights = rng.random(p.size)
    assert brier_score(p, labels) == pytest.approx(brier_score_loss(labels, p))
    weighted = brier_score(p, labels, weights=weights)
    assert weighted == pytest.approx(brier_score_loss(labels, p, sample_weight=weights))
    assert brier_score(torch.tensor(p), torch.tensor(labels)) == brier_score(p, labels)


def calibration_error_by_loop(p, labels, edges, weights):
    total = 0.0
    for low, high in pairwise(edges):
        rows = (p > low) & (p <= high)
        if rows.any():
            w = weights[rows] / weights.sum()
            total += abs(np.sum(w * p[rows]) - np.sum(w * labels[rows]))
    return total


def test_calibration_error_equals_a_loop_over_bins():
    p, labels, rng = probabilities(n=600)
    ones, weights = np.ones(600), rng.random(600)
    widths = np.concatenate([[-1], np.arange(1, 15) / 15, [2]])
    masses = np.concatenate([[-1], np.sort(p)[np.arange(40, 600, 40) - 1], [2]])
    for w, given_weights in ((ones, None), (weights, weights)):
        found = expected_calibration_error(p, labels, equal_width=True, weights=given_weights)
        assert found == pytest.approx(calibration_error_by_loop(p, labels, widths, w))
        found = expected_calibration_error(p, labels, weights=given_weights)
        assert found == pytest.approx(calibration_error_by_loop(p, labels, masses, w))


def test_calibration_error_of_known_cases():
    assert expected_calibration_error([0.2] * 10, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]) == pytest.approx(0.0)
    assert expected_calibration_error([0.7] * 10, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]) == pytest.approx(0.5)
    p, labels, rng = probabilities()
    p = p.round(1)
    order = rng.permutation(p.size)  # equal predictions stay in one bin, so the order of rows is nothing
    assert expected_calibration_error(p, labels) == pytest.approx(expected_calibration_error(p[order], labels[order]))


def test_reliability_curve():
    p, labels, _ = probabilities(n=300)
    curve = reliability_curve(p, labels, bins=10)
    assert curve.count.tolist() == [30] * 10
    ordered = np.argsort(p)
    for b in range(10):
        rows = ordered[30 * b : 30 * b + 30]
        assert curve.predicted[b] == pytest.approx(p[rows].mean())
        assert curve.observed[b] == pytest.approx(labels[rows].mean())
        assert (curve.low[b], curve.high[b]) == pytest.approx(wilson_limits(labels[rows].sum(), 30, 0.95))
    assert curve.weight.sum() == pytest.approx(1.0)


def test_temperature_minimises_the_cross_entropy():
    scores, labels, rng = problem()
    weights = rng.random(labels.size) + 0.1

    def cross_entropy(v, w, x=scores):
        of_classes = [np.ones(labels.size)[labels == y] if w is None else w[labels == y] for y in (1, 0)]
        positives, negatives = (each.sum() ** 2 / (each**2).sum() for each in of_classes)  # Kish's numbers of rows
        targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        z = v[0] * x + (v[1] if len(v) == 2 else 0)
        return np.average(np.logaddexp(0, z) - targets * z, weights=w)

    for given_weights in (None, weights):
        fitted = fit_temperature(scores, labels, weights=given_weights)
        best = minimize(cross_entropy, [0.1, 0.0], args=(given_weights,), method="BFGS", options={"gtol": 1e-9}).x
        assert (fitted.slope, fitted.intercept) == pytest.approx(tuple(best), rel=1e-3, abs=1e-3)
        assert (
            cross_entropy([fitted.slope, fitted.intercept], given_weights) <= cross_entropy(best, given_weights) + 1e-8
        )
    centred = scores - scores.mean()
    only_slope = fit_temperature(centred, labels, intercept=False)
    best = minimize(cross_entropy, [0.1], args=(None, centred), method="BFGS", options={"gtol": 1e-9}).x
    assert only_slope.intercept == 0
    assert only_slope.slope == pytest.approx(best[0], rel=1e-3)
    assert only_slope.temperature == pytest.approx(1 / best[0], rel=1e-3)


def test_a_fit_at_the_limit_of_precision_is_no_warning():
    scores = np.random.default_rng(25596).normal(size=20)  # lbfgs ends in the middle of a line search
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_temperature(scores, np.arange(20) % 2).slope == 0


def test_targets_follow_the_weights():
    scores, labels = np.array([0.0, 0.1, 0.2, 0.8, 0.9, 1.0]), np.array([0, 0, 0, 1, 1, 1])
    alone = fit_temperature(scores[[0, 5]], labels[[0, 5]])
    without = fit_temperature(scores, labels, weights=[1, 0, 0, 0, 0, 1])  # a weight of 0: as if it was not there
    np.testing.assert_allclose(without.apply([0.0, 1.0]), [1 / 3, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(without.apply(scores), alone.apply(scores), rtol=1e-6)
    plain = fit_temperature(scores, labels)
    for factor in (1e-200, 0.01, 7.0):  # no common factor says that there are more rows
        scaled = fit_temperature(scores, labels, weights=np.full(6, factor))
        np.testing.assert_allclose(scaled.apply(scores), plain.apply(scores), rtol=1e-4)
    uneven = fit_temperature(scores, labels, weights=[1, 1, 1, 1, 1, 100])
    assert uneven.apply(1.0) < plain.apply(1.0)  # the positives are hardly more than one row: less is sure


def test_recalibration_mends_what_it_should_on_another_part():
    scores, labels, _ = problem(n=4000)
    other, other_labels, _ = problem(n=4000, seed=1)
    raw = 1 / (1 + np.exp(-other))  # the raw score taken for a logit: far too sure of itself
    before = expected_calibration_error(raw, other_labels)
    for fit in (fit_temperature, fit_isotonic):
        p = fit(scores, labels).apply(other)
        assert expected_calibration_error(p, other_labels) < before / 5
        assert brier_score(p, other_labels) < brier_score(raw, other_labels)
        assert p.mean() == pytest.approx(other_labels.mean(), abs=0.02)
    assert auroc(fit_temperature(scores, labels).apply(other), other_labels) == auroc(other, other_labels)


def test_separable_reversed_shifted_and_constant_scores():
    separable = fit_temperature([0.0, 0.1, 0.9, 1.0], [0, 0, 1, 1])
    assert np.isfinite([separable.slope, separable.intercept]).all()
    p = separable.apply([0.0, 1.0])
    assert 0 < p[0] < 0.3
    assert 0.7 < p[1] < 1
    scores, labels, _ = problem()
    for backwards in (fit_temperature(-scores, labels), fit_temperature(0 * scores, labels)):
        assert backwards.slope == 0
        assert backwards.temperature == np.inf
        np.testing.assert_allclose(backwards.apply([-3.0, 9.0]), labels.mean(), atol=0.005)
    usual, moved = fit_temperature(scores, labels), fit_temperature(1e-4 * scores - 100, labels)
    np.testing.assert_allclose(moved.apply(1e-4 * scores - 100), usual.apply(scores), atol=1e-5)
    extreme = TemperatureScaling(1.0, 0.0).apply([-1e6, 1e6])
    np.testing.assert_array_equal(extreme, [0.0, 1.0])


def test_isotonic_equals_scikit_learn_inside_and_outside():
    scores, labels, rng = problem()
    weights = rng.random(labels.size)
    fitted = fit_isotonic(scores, labels, weights=weights)
    reference = IsotonicRegression(out_of_bounds="clip").fit(scores, labels, sample_weight=weights)
    grid = np.linspace(scores.min() - 3, scores.max() + 3, 400)
    np.testing.assert_allclose(fitted.apply(grid), reference.predict(grid), atol=1e-12)


def test_recalibrations_travel_through_json():
    scores, labels, _ = problem()
    two = np.stack([scores, -scores], axis=1)
    two_labels = np.stack([labels, 1 - labels], axis=1).astype(float)
    two_labels[:50, 1] = np.nan
    for fit, kind in ((fit_temperature, TemperatureScaling), (fit_isotonic, IsotonicScaling)):
        one, both = fit(scores, labels), fit(two, two_labels)
        assert isinstance(one, kind)
        assert isinstance(both, LabelwiseScaling)
        for fitted, x in ((one, scores), (both, two)):
            back = recalibration_from_dict(json.loads(json.dumps(fitted.to_dict())))
            assert back == fitted
            np.testing.assert_array_equal(back.apply(x), fitted.apply(x))
        np.testing.assert_array_equal(both.apply(two)[:, 0], one.apply(scores))
        np.testing.assert_array_equal(both.apply(two)[:, 1], fit(-scores[50:], 1 - labels[50:]).apply(-scores))
        with pytest.raises(ValueError, match="fitted on 2 labels"):
            both.apply(scores)
    with pytest.raises(ValueError, match="unknown recalibration"):
        recalibration_from_dict({"kind": "beta"})


def test_net_benefit_by_loop():
    p, labels, rng = probabilities()
    p = p.round(2)  # so that thresholds meet predictions
    weights = rng.random(p.size)
    for w in (None, weights):
        curve = decision_curve(p, labels, weights=w)
        u = (np.ones(p.size) if w is None else w) / (p.size if w is None else w.sum())
        for t, model, everybody in zip(curve.thresholds, curve.model, curve.treat_all, strict=True):
            treated = p >= t
            expected = u[treated & (labels == 1)].sum() - u[treated & (labels == 0)].sum() * t / (1 - t)
            assert model == pytest.approx(expected, abs=1e-12)
            share = u[labels == 1].sum()
            assert everybody == pytest.approx(share - (1 - share) * t / (1 - t), abs=1e-12)
        assert not curve.treat_none.any()
    assert curve.thresholds.size == 99


def test_decisions_of_a_perfect_and_of_an_empty_model():
    labels = np.array([1, 0, 0, 0])
    perfect = decision_curve(labels.astype(float), labels, thresholds=[0.1, 0.5, 0.9])
    np.testing.assert_allclose(perfect.model, 0.25)
    nobody = decision_curve(np.zeros(4), labels, thresholds=[0.1, 0.5])
    np.testing.assert_array_equal(nobody.model, 0)
    everybody = decision_curve(np.ones(4), labels, thresholds=[0.1, 0.5])
    np.testing.assert_allclose(everybody.model, everybody.treat_all)


def test_columns_and_missing_labels():
    rng = np.random.default_rng(0)
    p = rng.random((200, 2))
    labels = (rng.random((200, 2)) < p).astype(float)
    labels[rng.random((200, 2)) < 0.2] = np.nan
    brier, error = brier_score(p, labels), expected_calibration_error(p, labels)
    curves, decisions = reliability_curve(p, labels), decision_curve(p, labels)
    assert decisions.model.shape == decisions.treat_all.shape == decisions.treat_none.shape == (2, 99)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        one = p[rows, j], labels[rows, j]
        assert brier[j] == brier_score(*one)
        assert error[j] == expected_calibration_error(*one)
        np.testing.assert_array_equal(curves[j].observed, reliability_curve(*one).observed)
        np.testing.assert_array_equal(decisions.model[j], decision_curve(*one).model)


@pytest.mark.parametrize("function", [brier_score, expected_calibration_error, reliability_curve, decision_curve])
def test_raw_scores_are_refused_not_squashed(function):
    with pytest.raises(ValueError, match="fit_temperature"):
        function([-0.5, 2.0], [0, 1])
    with pytest.raises(ValueError, match="no row is labelled"):
        function([0.5, 0.2], [np.nan, np.nan])
    with pytest.raises(ValueError, match="all weights are 0"):
        function([0.5, 0.2], [0, 1], weights=[0, 0])


def test_other_refusals():
    for fit in (fit_temperature, fit_isotonic):
        with pytest.raises(ValueError, match="0 positives"):
            fit([0.1, 0.2], [0, 0])
    with pytest.raises(ValueError, match="bins"):
        expected_calibration_error([0.1, 0.2], [0, 1], bins=0)
    with pytest.raises(ValueError, match="strictly between"):
        decision_curve([0.1, 0.2], [0, 1], thresholds=[0.5, 1.0])
