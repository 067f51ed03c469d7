"""Learned weights: scikit-learn's logistic regression, a proportion known beforehand, and what must not happen."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from deepauc.metrics.auroc import auroc
from deepauc.metrics.learned_weights import NothingToWeigh, learn_weights, standardised


def planted(rows=300, shifts=(1.5, 0.5), share=0.3, seed=0):
    """Scores of unit variance in each class, shifted by so much in the positives, on scales of their own."""
    draw = np.random.default_rng(seed)
    labels = (draw.random(rows) < share).astype(float)
    return [10.0**m * (draw.normal(size=rows) + shift * labels) - 7 for m, shift in enumerate(shifts)], labels


def reference(members, labels):
    """Intercept and slopes on standardised columns, by scikit-learn; a target t is rows of weight t and 1 - t."""
    z = np.stack([(one - one.mean()) / one.std() for one in members], axis=1)
    positives = labels.sum()
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2))
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000)
    weights = np.concatenate([targets, 1 - targets])
    model.fit(np.concatenate([z, z]), np.repeat([1, 0], len(z)), sample_weight=weights)
    return z, model


@pytest.mark.parametrize("shifts", [(1.5, 0.5), (0.3, 2.5), (1.0, 0.8, 0.6)])
def test_as_scikit_learn(shifts):
    members, labels = planted(shifts=shifts)
    found = learn_weights(members, labels)
    z, model = reference(members, labels)
    np.testing.assert_allclose(found.slopes, model.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(found.intercept, model.intercept_[0], rtol=1e-4)
    np.testing.assert_allclose(found.probability(members), model.predict_proba(z)[:, 1], rtol=1e-4)
    np.testing.assert_allclose(found.score(members), z @ model.coef_[0] / model.coef_[0].sum(), atol=1e-4)
    assert sum(found.shares) == pytest.approx(1)
    assert (found.positives, found.negatives) == (labels.sum(), len(labels) - labels.sum())


def test_a_known_proportion_is_found():
    """Normal classes of one width: the log odds are sum of shift x score, so slopes are shift x standard deviation."""
    shifts, share = np.array([1.5, 0.5]), 0.3
    spreads = np.sqrt(1 + share * (1 - share) * shifts**2)
    expected = shifts * spreads / (shifts @ spreads)
    members, labels = planted(rows=200_000, shifts=tuple(shifts), share=share)
    np.testing.assert_allclose(learn_weights(members, labels).shares, expected, atol=0.01)


def test_better_than_half_and_half_and_than_either_alone():
    members, labels = planted(rows=20_000, shifts=(1.8, 0.9))
    fresh, truth = planted(rows=20_000, shifts=(1.8, 0.9), seed=1)
    learned = auroc(learn_weights(members, labels).score(fresh), truth)
    others = [*fresh, sum(standardised(one) for one in fresh)]
    assert learned > max(auroc(one, truth) for one in others) + 0.005


def test_scale_and_origin_of_a_model_change_nothing():
    (first, second), labels = planted()
    other = learn_weights([first / 50 + 3, second * 1e6], labels)
    np.testing.assert_allclose(other.slopes, learn_weights([first, second], labels).slopes, rtol=1e-6)


def test_rows_without_a_label_drop_out():
    members, labels = planted()
    missing = np.where(np.arange(len(labels)) % 4 == 0, np.nan, labels)
    kept = ~np.isnan(missing)
    assert learn_weights(members, missing) == learn_weights([one[kept] for one in members], labels[kept])


def test_tensors_and_whole_numbers():
    members, labels = planted()
    found = learn_weights([torch.tensor(one) for one in members], torch.tensor(labels))
    assert found == learn_weights(members, labels.astype(int))
    assert found.score([torch.tensor(one) for one in members]).shape == labels.shape


def test_separable_classes_leave_finite_weights():
    labels = np.repeat([0.0, 1.0], 50)
    clear = labels + np.linspace(0, 0.5, 100)
    found = learn_weights([clear, np.random.default_rng(0).normal(size=100)], labels)
    assert np.isfinite(found.slopes).all()
    assert found.shares[0] > 0.8
    z, model = reference([clear], labels)
    alone = learn_weights([clear], labels)
    np.testing.assert_allclose(alone.probability([clear]), model.predict_proba(z)[:, 1], rtol=1e-3)


def test_the_same_scores_twice_count_alike():
    (first, _), labels = planted()
    np.testing.assert_allclose(learn_weights([first, 3 * first + 1], labels).shares, 0.5, rtol=1e-6)


@pytest.mark.parametrize("useless", ["backwards", "constant", "constant with rounding"])
def test_a_model_that_says_nothing_counts_nothing(useless):
    (first, second), labels = planted()
    second = {"backwards": -second, "constant": np.full(len(labels), 5.0)}.get(useless, np.full(len(labels), 0.1))
    found = learn_weights([second, first], labels)
    assert found.shares == (0, 1)
    alone = learn_weights([first], labels)
    assert (found.slopes[1], found.intercept) == pytest.approx((alone.slopes[0], alone.intercept))
    # Of all slopes that are not negative these are the best: no step to the inside is downhill.
    z = [standardised(second), standardised(first)]
    positives = labels.sum()
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2))
    p = expit(found.intercept + found.slopes[1] * z[1])
    assert z[0] @ (p - targets) >= -1e-9


def test_nothing_is_left():
    members, labels = planted()
    for some in ([-one for one in members], [np.ones(len(labels))] * 2):
        with pytest.raises(NothingToWeigh, match="no model's scores rise with the label"):
            learn_weights(some, labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, y: learn_weights(s, np.ones(len(y))), "learning weights needs at least one positive and one neg"),
        (lambda s, y: learn_weights(s, np.zeros(len(y))), "needs at least one positive and one negative"),
        (lambda s, y: learn_weights([s[0], s[1][:-1]], y), "shape"),
        (lambda s, y: learn_weights([s[0], s[1] * np.nan], y), "NaN"),
        (lambda s, y: learn_weights(s, y * 2 - 1), "labels > 0"),
        (lambda s, y: learn_weights([np.stack(s, 1)], np.stack([y, y], 1)), "one label at a time"),
        (lambda s, y: learn_weights([], y), "at least one model"),
        (lambda s, y: learn_weights(s, y).score(s[:1]), "scores of 1 model, but weights of 2"),
    ],
)  # fmt: skip
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*planted())
