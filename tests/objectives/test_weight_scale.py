"""Of sample weights only the ratios count: no unit makes them overflow or vanish."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.labels import scale_free, scale_free_array
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.baselines import CrossEntropyLoss, FocalLoss
from deepauc.objectives.multiclass import OneVsRestAUCLoss
from deepauc.objectives.pairwise import PairwiseAUCLoss, _masked
from tests.objectives.test_every_loss import LOSSES


def batch(dtype, *, missing=False):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(40, generator=generator, dtype=dtype)
    labels = (torch.rand(40, generator=generator) < 0.3).to(dtype)
    weights = torch.rand(40, generator=generator, dtype=dtype) + 0.1
    if missing:
        labels[::7] = torch.nan
    return scores, labels, weights


def value_and_gradient(loss_fn, scores, labels, weights):
    leaf = scores.clone().requires_grad_()
    loss = loss_fn(leaf, labels, weights)
    loss.backward()
    parameters = [p.grad for p in loss_fn.parameters()]
    return [loss.detach(), leaf.grad, *parameters]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(k=st.integers(-1000, 1000), wide=st.booleans(), missing=st.booleans())
def test_a_power_of_two_changes_nothing(name, k, wide, missing):
    """float64 weights, beside float32 scores too; the value, and the gradient of all there is."""
    scores, labels, weights = batch(torch.float64 if wide else torch.float32, missing=missing)
    weights = weights.double()
    expected = value_and_gradient(LOSSES[name](), scores, labels, weights)
    assert expected[0] > 0 or name.startswith("auc")
    scaled = weights * 2.0 ** (k // 2) * 2.0 ** (k - k // 2)
    assert_equal(value_and_gradient(LOSSES[name](), scores, labels, scaled), expected)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [1e38, 1e-37])
def test_single_precision_weights_at_the_ends_of_their_range(name, scale):
    scores, labels, weights = batch(torch.float32)
    expected = value_and_gradient(LOSSES[name](), scores, labels, weights)
    found = value_and_gradient(LOSSES[name](), scores, labels, weights * scale)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_equal_weights_of_any_size_are_as_good_as_none():
    scores, labels, _ = batch(torch.float32)
    for make in (*LOSSES.values(), lambda: AUCMarginLoss(prior=0.3, normalise=False)):
        expected = make()(scores, labels)
        for size in (1e38, 3e38, 1e-30, 1e-39, 1e-45):
            torch.testing.assert_close(make()(scores, labels, torch.full_like(scores, size)), expected)


def test_a_missing_row_of_huge_weight_does_not_drown_the_others():
    scores, labels, weights = batch(torch.float32, missing=True)
    lost = torch.where(labels.isnan(), 1e200, weights.double())
    for make in LOSSES.values():
        torch.testing.assert_close(make()(scores, labels, lost), make()(scores, labels, weights))


def test_each_label_is_scaled_by_itself():
    scores, labels, weights = batch(torch.float32)
    two = torch.stack([scores, scores], 1), torch.stack([labels, labels], 1)
    uneven = torch.stack([weights.double() * 1e-200, weights.double() * 1e200], 1)
    for make in (CrossEntropyLoss, FocalLoss, PairwiseAUCLoss):
        torch.testing.assert_close(make()(*two, uneven), make()(scores, labels, weights))
    loss = AUCMarginLoss(prior=0.3, num_labels=2)
    torch.testing.assert_close(loss(*two, uneven), AUCMarginLoss(prior=0.3)(scores, labels, weights))


def test_pairs_of_two_classes_far_apart_in_weight():
    scores, labels, weights = batch(torch.float64)
    far = torch.where(labels == 1, 1e-170 * weights, 1e160 * weights)
    for surrogate in ("squared_hinge", "logistic"):
        expected = PairwiseAUCLoss(surrogate)(scores, labels, weights)
        torch.testing.assert_close(PairwiseAUCLoss(surrogate)(scores, labels, far), expected)
        torch.testing.assert_close(_masked(scores, labels, far, surrogate, 1.0)[0], expected)


@settings(max_examples=25, deadline=None)
@given(k=st.integers(-1000, 1000))
def test_the_way_of_an_accelerator_is_scale_free_too(k):
    scores, labels, weights = batch(torch.float64)
    expected = _masked(scores, labels, weights, "squared_hinge", 1.0)
    assert_equal(_masked(scores, labels, weights * 2.0**k, "squared_hinge", 1.0), expected)


def test_a_diagnosis_and_several_classes():
    scores, labels, weights = batch(torch.float32)
    expected = AUCMarginLoss(prior=0.3).diagnose(scores, labels, weights)
    for factor in (2.0**-900, 2.0**1010):
        assert AUCMarginLoss(prior=0.3).diagnose(scores, labels, weights.double() * factor) == expected
        several = torch.stack([scores, 1 - scores], 1), labels.long()
        rest = OneVsRestAUCLoss(prior=[0.7, 0.3])
        torch.testing.assert_close(rest(*several, weights.double() * factor), rest(*several, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_weights_keep_their_ratios_to_the_bit(dtype):
    info = torch.finfo(dtype)
    for largest in (info.max, 1.0, 3.7, info.tiny, info.tiny * info.eps * 8):
        weights = torch.tensor([0.0, largest / 4, largest], dtype=dtype)
        scaled = scale_free(weights)
        assert scaled[0] == 0
        assert scaled[1] * 4 == scaled[2]
        assert 2**-55 < scaled[2] < 4
    assert (scale_free(torch.zeros(3, dtype=dtype)) == 0).all()
    assert scale_free(torch.zeros(0, dtype=dtype)).shape == (0,)


def test_scaled_arrays_keep_their_ratios_to_the_bit():
    for largest in (1.7e308, 1.0, 3.7, 5e-324):
        weights = np.array([0.0, largest / 2, largest])
        scaled = scale_free_array(weights)
        np.testing.assert_array_equal(scaled[1] / scaled[2], weights[1] / weights[2])
        assert 1 <= scaled[2] < 2
    np.testing.assert_array_equal(scale_free_array(np.zeros(3)), np.zeros(3))
    assert scale_free_array(np.zeros(0)).shape == (0,)


def test_the_gradient_of_the_weights_themselves():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0.0, 1, 0, 1, 0, 0], dtype=torch.float64)
    weights = torch.rand(6, generator=generator, dtype=torch.float64).add(0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: FocalLoss()(h, labels, w), (logits, weights))
