"""Theorem 1 against brute force over pairs, class moments, finite differences."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc import AUCMarginLoss, AUCSquareLoss
from deepauc.objectives.saddle import auc_saddle, auc_saddle_one_label


def batch(n=40, positives=7, offset=0.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(n, dtype=dtype)
    labels[torch.randperm(n, generator=generator)[:positives]] = 1
    scores = torch.randn(n, generator=generator, dtype=dtype) + labels + offset
    return scores, labels


def pairwise_square(scores, labels, margin=1.0):
    pairs = itertools.product(scores[labels == 1], scores[labels == 0])
    return torch.stack([(margin - i + j) ** 2 for i, j in pairs]).mean()


def closed_form(scores, labels, margin):
    positive, negative = scores[labels == 1], scores[labels == 0]
    shortfall = margin - positive.mean() + negative.mean()
    return positive.var(correction=0) + negative.var(correction=0) + shortfall.clamp(min=0) ** 2


def set_optimal(loss, scores, labels, margin=1.0):
    a, b = scores[labels == 1].mean(), scores[labels == 0].mean()
    alpha = margin + b - a
    with torch.no_grad():
        loss.a.copy_(a.reshape(1))
        loss.b.copy_(b.reshape(1))
        loss.alpha.copy_((alpha.clamp(min=0) if loss.constrain_alpha else alpha).reshape(1))


@pytest.mark.parametrize("offset", [0.0, -3.0, 100.0])
@pytest.mark.parametrize("positives", [1, 7, 20, 39])
def test_square_loss_is_the_mean_over_all_pairs(positives, offset):
    scores, labels = batch(positives=positives, offset=offset)
    loss = AUCSquareLoss(prior=positives / 40).double()
    set_optimal(loss, scores, labels)
    torch.testing.assert_close(loss(scores, labels), pairwise_square(scores, labels), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("positives", [1, 7, 39])
@pytest.mark.parametrize("normalise", [True, False])
def test_margin_loss_is_its_closed_form_at_the_optimum(positives, margin, normalise):
    scores, labels = batch(positives=positives)
    prior = positives / 40
    loss = AUCMarginLoss(prior=prior, margin=margin, normalise=normalise).double()
    set_optimal(loss, scores, labels, margin)
    factor = 1.0 if normalise else prior * (1 - prior)
    torch.testing.assert_close(loss(scores, labels), factor * closed_form(scores, labels, margin))


def test_free_alpha_is_the_square_loss_with_margin():
    scores, labels = batch()
    scores = scores + 5 * labels  # beyond the margin, where the constraint matters
    loss = AUCMarginLoss(prior=7 / 40, margin=0.3, constrain_alpha=False).double()
    set_optimal(loss, scores, labels, 0.3)
    assert loss.alpha < 0
    torch.testing.assert_close(loss(scores, labels), pairwise_square(scores, labels, 0.3))


@pytest.mark.parametrize("prior", [1e-5, 0.01, 0.5])
def test_theorem_one_term_by_term(prior):
    scores, labels = batch(positives=3)
    a, b, alpha, m = 0.3, -0.2, 0.7, 0.4
    terms = [
        (1 - prior) * (h - a) ** 2 * y
        + prior * (h - b) ** 2 * (1 - y)
        - prior * (1 - prior) * alpha**2
        + 2 * alpha * (prior * (1 - prior) * m + prior * h * (1 - y) - (1 - prior) * h * y)
        for h, y in zip(scores, labels, strict=True)
    ]
    loss = AUCMarginLoss(prior=prior, margin=m, normalise=False).double()
    with torch.no_grad():
        loss.a.fill_(a), loss.b.fill_(b), loss.alpha.fill_(alpha)
    torch.testing.assert_close(loss(scores, labels), torch.stack(terms).mean())


@pytest.mark.parametrize("function", [auc_saddle, auc_saddle_one_label])
@pytest.mark.parametrize("normalise", [True, False])
def test_gradient_of_the_pure_function(function, normalise):
    scores, labels = batch(n=9, positives=3)
    variables = [torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (0.2, -0.4, 0.6)]

    def value(h, a, b, alpha):
        return function(h, labels, a, b, alpha, prior=0.2, margin=0.7, normalise=normalise)

    assert torch.autograd.gradcheck(value, (scores.requires_grad_(), *variables))


def test_gradient_with_several_labels_weights_and_soft_labels():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(8, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.rand(2, 8, 3, generator=generator, dtype=torch.float64)
    variables = [torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    prior = torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64)
    margin = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)

    def value(h, a, b, alpha):
        return auc_saddle(h, labels, a, b, alpha, prior=prior, margin=margin, weights=weights)

    assert torch.autograd.gradcheck(value, (scores, *variables))


@pytest.mark.parametrize("cls", [AUCMarginLoss, AUCSquareLoss])
def test_alpha_grad_has_the_sign_that_makes_descent_ascend(cls):
    scores, labels = batch()
    loss = cls(prior=0.2).double()
    with torch.no_grad():
        loss.alpha.fill_(0.25)
    loss(scores, labels).backward()
    step = 1e-4
    before = loss(scores, labels).item()
    with torch.no_grad():
        loss.alpha.add_(step)
    slope = (loss(scores, labels).item() - before) / step
    assert slope == pytest.approx(-loss.alpha.grad.item(), abs=1e-3)


def test_one_label_path_equals_the_general_one():
    scores, labels = batch(n=200, positives=11, dtype=torch.float32, offset=100)
    fast, general = (AUCMarginLoss(prior=0.05, margin=0.5) for _ in range(2))
    for loss in (fast, general):
        with torch.no_grad():
            loss.a.fill_(100.9), loss.b.fill_(99.9), loss.alpha.fill_(0.3)
    one = scores.clone().requires_grad_()
    two = scores.clone().requires_grad_()
    first, second = fast(one, labels), general(two.unsqueeze(1), labels.unsqueeze(1))
    first.backward(), second.backward()
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)
    for name in ("a", "b", "alpha"):
        torch.testing.assert_close(getattr(fast, name).grad, getattr(general, name).grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_float32_keeps_its_digits_far_from_zero(offset):
    scores, labels = batch(n=4096, positives=400, dtype=torch.float32)
    scores = scores + offset  # what float32 can hold of it is the input of both
    loss, exact = AUCSquareLoss(prior=400 / 4096), AUCSquareLoss(prior=400 / 4096).double()
    set_optimal(loss, scores.double(), labels)
    exact.load_state_dict({k: v.double() for k, v in loss.state_dict().items()})
    loss(scores, labels).backward()
    exact(scores.double(), labels.double()).backward()
    torch.testing.assert_close(loss(scores, labels).double(), exact(scores.double(), labels), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss.alpha.grad.double(), exact.alpha.grad, rtol=0, atol=max(2e-6, 3e-7 * offset))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1)), min_size=2, max_size=12),
    st.floats(0.05, 0.95),
)
def test_soft_labels_equal_brute_force_over_weighted_pairs(rows, shift):
    scores = torch.tensor([r[0] for r in rows], dtype=torch.float64) + shift
    soft = torch.tensor([r[1] for r in rows], dtype=torch.float64)
    weight = soft[:, None] * (1 - soft[None, :])
    prior = soft.mean().item()
    if not 0.01 < prior < 0.99 or weight.sum() < 1e-6:
        return
    loss = AUCSquareLoss(prior=prior, soft_labels=True).double()
    a = (soft * scores).sum() / soft.sum()
    b = ((1 - soft) * scores).sum() / (1 - soft).sum()
    with torch.no_grad():
        loss.a.fill_(a), loss.b.fill_(b), loss.alpha.fill_(1 + b - a)
    brute = (weight * (1 - scores[:, None] + scores[None, :]) ** 2).sum() / weight.sum()
    torch.testing.assert_close(loss(scores, soft), brute, rtol=1e-8, atol=1e-8)


def test_soft_form_at_hard_labels_is_the_hard_form():
    scores, labels = batch()
    hard, soft = AUCMarginLoss(prior=0.2).double(), AUCMarginLoss(prior=0.2, soft_labels=True).double()
    torch.testing.assert_close(hard(scores, labels), soft(scores, labels))


def test_sample_weights_count_as_repetition():
    scores, labels = batch(n=10, positives=4)
    weights = torch.tensor([1, 2, 3, 1, 2, 3, 1, 2, 3, 1])
    loss = AUCMarginLoss(prior=0.3).double()
    with torch.no_grad():
        loss.a.fill_(0.4), loss.alpha.fill_(0.2)
    repeated = loss(scores.repeat_interleave(weights), labels.repeat_interleave(weights))
    torch.testing.assert_close(loss(scores, labels, weights), repeated)


def test_missing_labels_drop_out_of_their_labels_mean():
    scores, labels = batch(n=30, positives=6)
    second, other = batch(n=30, positives=10, seed=1)
    gaps = labels.clone()
    gaps[3:12] = torch.nan
    both = AUCMarginLoss(prior=[0.2, 0.3], margin=[0.5, 1.0], num_labels=2).double()
    first, last = AUCMarginLoss(prior=0.2, margin=0.5).double(), AUCMarginLoss(prior=0.3).double()
    kept = ~gaps.isnan()
    expected = (first(scores[kept], labels[kept]) + last(second, other)) / 2
    torch.testing.assert_close(both(torch.stack([scores, second], 1), torch.stack([gaps, other], 1)), expected)


def test_label_without_entries_contributes_nothing():
    scores, labels = batch(n=12, positives=4)
    nothing = torch.full_like(labels, torch.nan)
    two = torch.stack([scores, scores], 1).requires_grad_()
    loss = AUCMarginLoss(prior=0.3, num_labels=2).double()
    with torch.no_grad():
        loss.alpha.fill_(0.5)
    value = loss(two, torch.stack([labels, nothing], 1))
    value.backward()
    alone = AUCMarginLoss(prior=0.3).double()
    with torch.no_grad():
        alone.alpha.fill_(0.5)
    torch.testing.assert_close(value, alone(scores, labels) / 2)
    assert (two.grad[:, 1] == 0).all()
    assert loss.alpha.grad[1] == 0
    assert loss.a.grad[1] == 0
