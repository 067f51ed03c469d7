"""Cross-entropy and focal loss against torch, torchvision and loops."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from deepauc.objectives import input_check
from deepauc.objectives.baselines import CrossEntropy, CrossEntropyLoss, Focal, FocalLoss

LOSSES = [
    *(CrossEntropyLoss(), FocalLoss(), FocalLoss(alpha=0.7, gamma=0.5)),
    *(CrossEntropyLoss(class_prior=0.2, scale=0.3), FocalLoss(scale=3.0)),
]


def batch(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(shape, generator=generator, dtype=dtype)).requires_grad_()
    labels = (torch.rand(shape, generator=generator) < 0.3).to(dtype)
    return scores, labels


def value_and_grad(loss_fn, scores, labels, weights=None):
    scores = scores.detach().clone().requires_grad_()
    loss = loss_fn(scores, labels) if weights is None else loss_fn(scores, labels, weights)
    loss.backward()
    return loss.detach(), scores.grad


def by_hand(scores, labels, weights, entry_loss):
    """A loop over labels and entries: the weighted mean over valid entries, then the mean over labels."""
    columns = [(scores, labels, weights)] if scores.ndim == 1 else list(zip(scores.T, labels.T, weights.T, strict=True))
    means = []
    for h, y, w in columns:
        total, mass = 0.0, 0.0
        for i in range(len(h)):
            if not math.isnan(y[i]):
                total += w[i].item() * entry_loss(h[i].item(), y[i].item())
                mass += w[i].item()
        means.append(total / mass if mass else 0.0)
    return sum(means) / len(means)


def entry_cross_entropy(h, y, smoothing=0.0, pos_weight=1.0):
    y = y * (1 - smoothing) + smoothing / 2
    p = 1 / (1 + math.exp(-h))
    return -pos_weight * y * math.log(p) - (1 - y) * math.log(1 - p)


def entry_focal(h, y, alpha, gamma):
    p = 1 / (1 + math.exp(-h))
    return -alpha * y * (1 - p) ** gamma * math.log(p) - (1 - alpha) * (1 - y) * p**gamma * math.log(1 - p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(64,), (64, 5)])
def test_cross_entropy_is_torchs_to_the_bit(shape, dtype):
    scores, labels = batch(*shape, dtype=dtype)
    ours = value_and_grad(CrossEntropyLoss(), scores, labels)
    torchs = value_and_grad(F.binary_cross_entropy_with_logits, scores, labels)
    assert ours[0].dtype == dtype
    assert torch.equal(ours[0], torchs[0])
    assert torch.equal(ours[1], torchs[1])


@pytest.mark.parametrize("pos_weight", [2.5, [0.5, 3.0, 1.0]])
def test_pos_weight_is_torchs(pos_weight):
    scores, labels = batch(32, 3)
    ours = value_and_grad(CrossEntropyLoss(pos_weight=pos_weight), scores, labels)
    as_tensor = torch.tensor(pos_weight, dtype=torch.float64)
    torchs = value_and_grad(lambda s, y: F.binary_cross_entropy_with_logits(s, y, pos_weight=as_tensor), scores, labels)
    assert torch.equal(ours[0], torchs[0])
    assert torch.equal(ours[1], torchs[1])


def test_pos_weight_needs_one_value_a_label():
    for loss_fn, shape in (
        (CrossEntropyLoss(pos_weight=[1.0, 2.0]), (4, 3)),
        (CrossEntropyLoss(pos_weight=[2.0]), (4,)),
    ):
        with pytest.raises(ValueError, match="one per label"):
            loss_fn(*batch(*shape))
    with pytest.raises(ValueError, match="pos_weight must be"):
        CrossEntropyLoss(pos_weight=-1.0)


@pytest.mark.parametrize("shape", [(30,), (30, 1), (30, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_class_weights_are_those_of_theorem_1(shape, weighted):
    """(1 - p) of a positive's loss and p of a negative's, each label by its own p, over the number of all entries."""
    scores, labels = batch(*shape)
    priors = [0.01, 0.3, 0.6][: 1 if len(shape) == 1 else shape[1]]
    loss_fn = CrossEntropy(prior_weights=True).build(prior=priors)
    weights = torch.rand(shape, dtype=torch.float64) + 0.5 if weighted else torch.ones(shape, dtype=torch.float64)
    labels[3] = float("nan") if weighted else 1.0
    p = torch.tensor(priors, dtype=torch.float64)

    def entry(h, y, prior):
        return (1 - prior) * y * F.softplus(-h) + prior * (1 - y) * F.softplus(h)

    columns = [x.reshape(30, -1) for x in (scores, labels, weights)]
    means = []
    for h, y, w, prior in zip(*(x.T for x in columns), p, strict=True):
        known = ~y.isnan()
        means.append((entry(h, y, prior) * w)[known].sum() / w[known].sum())
    given = (scores, labels, weights) if weighted else (scores, labels)
    torch.testing.assert_close(loss_fn(*given), torch.stack(means).mean())


@pytest.mark.parametrize("make", [CrossEntropy, Focal])
def test_the_scale_multiplies_value_and_gradient(make):
    scores, labels = batch(20)
    value, gradient = value_and_grad(make().build(prior=(0.3,)), scores, labels)
    scaled_value, scaled_gradient = value_and_grad(make(scale=0.25).build(prior=(0.3,)), scores, labels)
    assert torch.equal(scaled_value, 0.25 * value)
    assert torch.equal(scaled_gradient, 0.25 * gradient)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="scale must be positive"):
            make(scale=bad)


def test_bad_class_weights_are_refused():
    with pytest.raises(ValueError, match="class_prior must lie strictly between 0 and 1"):
        CrossEntropyLoss(class_prior=[0.5, 1.0])
    with pytest.raises(ValueError, match="one of the two"):
        CrossEntropy(prior_weights=True, pos_weight=2.0).build(prior=(0.5,))


def test_label_smoothing_formula():
    scores, labels = batch(9, 2)
    loss = CrossEntropyLoss(label_smoothing=0.2)(scores, labels)
    expected = by_hand(scores, labels, torch.ones_like(labels), lambda h, y: entry_cross_entropy(h, y, smoothing=0.2))
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(scores, labels * 0.8 + 0.1))


@pytest.mark.parametrize("shape", [(12,), (12, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_missing_labels_and_weights_against_a_loop(shape, weighted):
    scores, labels = batch(*shape, seed=3)
    labels[::4] = torch.nan
    if len(shape) == 2:
        labels[:, 1] = torch.nan  # a label without a valid entry contributes 0
    weights = torch.rand(shape, dtype=torch.float64) if weighted else torch.ones(shape, dtype=torch.float64)
    for loss_fn, entry in (
        (CrossEntropyLoss(label_smoothing=0.1), lambda h, y: entry_cross_entropy(h, y, smoothing=0.1)),
        (CrossEntropyLoss(pos_weight=3.0), lambda h, y: entry_cross_entropy(h, y, pos_weight=3.0)),
        (FocalLoss(alpha=0.6, gamma=1.5), lambda h, y: entry_focal(h, y, 0.6, 1.5)),
    ):
        loss, grad = value_and_grad(loss_fn, scores, labels, weights if weighted else None)
        assert loss.item() == pytest.approx(by_hand(scores, labels, weights, entry), rel=1e-11)
        assert (grad[labels.isnan()] == 0).all()
        assert (grad[~labels.isnan()] != 0).all()


@pytest.mark.parametrize("loss_fn", LOSSES)
def test_sample_weights_of_shape_n_count_for_every_label(loss_fn):
    scores, labels = batch(10, 3)
    weights = torch.rand(10)
    wide = weights.unsqueeze(1).expand(10, 3)
    assert torch.equal(loss_fn(scores, labels, weights), loss_fn(scores, labels, wide))
    torch.testing.assert_close(loss_fn(scores, labels, weights * 7), loss_fn(scores, labels, weights))
    torch.testing.assert_close(loss_fn(scores, labels, torch.ones(10)), loss_fn(scores, labels))


@pytest.mark.parametrize("loss_fn", LOSSES)
def test_a_weight_of_two_is_the_row_twice(loss_fn):
    scores, labels = batch(6)
    twice = torch.tensor([0, 1, 2, 3, 4, 5, 2])
    weights = torch.tensor([1.0, 1, 2, 1, 1, 1])
    torch.testing.assert_close(loss_fn(scores, labels, weights), loss_fn(scores[twice], labels[twice]))


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("gamma", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("shape", [(50,), (50, 4)])
def test_focal_is_torchvisions(alpha, gamma, shape):
    from torchvision.ops import sigmoid_focal_loss

    scores, labels = batch(*shape)
    ours = value_and_grad(FocalLoss(alpha=alpha, gamma=gamma), scores, labels)
    theirs = value_and_grad(
        lambda s, y: sigmoid_focal_loss(s, y, alpha=alpha, gamma=gamma, reduction="mean"), scores, labels
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-15)


def test_focal_at_gamma_zero_is_half_the_cross_entropy():
    scores, labels = batch(30, 2)
    ours = value_and_grad(FocalLoss(alpha=0.5, gamma=0.0), scores, labels)
    half = value_and_grad(lambda s, y: CrossEntropyLoss()(s, y) / 2, scores, labels)
    torch.testing.assert_close(ours, half, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("size", [20.0, 100.0, 1e4, 1e6])
def test_focal_is_stable_for_huge_logits(gamma, size):
    scores = torch.tensor([size, -size, size, -size])
    loss, grad = value_and_grad(FocalLoss(gamma=gamma), scores, torch.tensor([1, 0, 0, 1]))
    # Two are right (loss 0), two are wrong: (1 - alpha) size and alpha size.
    assert loss.item() == pytest.approx(size / 4, rel=1e-6)
    torch.testing.assert_close(grad, torch.tensor([0.0, 0.0, 0.75 / 4, -0.25 / 4]), rtol=1e-5, atol=1e-8)


def test_focal_keeps_the_digits_of_easy_entries():
    """1 - sigmoid(20) is 0 in float32; the loss of such an entry is e^-20 to the third, times alpha, all the same."""
    loss, grad = value_and_grad(FocalLoss(alpha=0.25, gamma=2.0), torch.tensor([20.0]), torch.tensor([1]))
    assert loss.item() == pytest.approx(0.25 * math.exp(-60), rel=1e-4)
    assert grad.item() == pytest.approx(-0.75 * math.exp(-60), rel=1e-4)


@pytest.mark.parametrize(
    "loss_fn",
    [
        CrossEntropyLoss(label_smoothing=0.1, pos_weight=2.0, soft_labels=True),
        FocalLoss(soft_labels=True),
        FocalLoss(alpha=0.6, gamma=0.5, soft_labels=True),
    ],
)
@pytest.mark.parametrize("shape", [(6,), (6, 2)])
def test_gradcheck(loss_fn, shape):
    scores, labels = batch(*shape)
    labels = labels * 0.7 + 0.1
    labels[0] = torch.nan
    weights = torch.rand(shape, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: loss_fn(s, labels, weights), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: loss_fn(s, labels, weights), (scores,))


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.floats(0, 1), st.floats(0.1, 3)), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 4),
)
def test_soft_labels_are_shares_of_both_classes(rows, alpha, gamma):
    scores, labels, weights = torch.tensor(rows, dtype=torch.float64).T
    for loss_fn in (CrossEntropyLoss(soft_labels=True), FocalLoss(alpha=alpha, gamma=gamma, soft_labels=True)):
        soft = loss_fn(scores, labels, weights)
        # Each row once as a positive with weight w y and once as a negative with weight w (1 - y).
        hard = torch.cat([torch.ones_like(labels), torch.zeros_like(labels)])
        shares = torch.cat([weights * labels, weights * (1 - labels)])
        torch.testing.assert_close(soft, loss_fn(scores.repeat(2), hard, shares), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"alpha": -0.1}, {"gamma": -1.0}, {"gamma": math.nan}])
def test_bad_focal_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        FocalLoss(**options)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_bad_smoothing_is_refused(smoothing):
    with pytest.raises(ValueError, match="label_smoothing"):
        CrossEntropyLoss(label_smoothing=smoothing)


@pytest.mark.parametrize("make", [CrossEntropyLoss, FocalLoss])
def test_a_loss_that_overflows_is_refused(make):
    with pytest.raises(ValueError, match="overflowed: scores reach 3e\\+38"):
        make()(torch.full((9,), -3e38), torch.ones(9))
    assert make().state_dict() == {}


def test_flags_are_read_at_the_first_call_and_every_hundredth():
    """The accelerator's branch of the check, on the CPU: a bad batch in between is reported at the next reading."""
    check = input_check.InputCheck(soft=False)
    good, bad = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([0.0, 2.0, 1.0])
    loss = torch.tensor(0.5)
    with pytest.raises(ValueError, match="Name the positive class"):
        check._note(loss, bad, None)
    check._note(loss, bad, None)
    for _ in range(input_check.READ_EVERY - 2):
        check._note(loss, good, None)
    with pytest.raises(ValueError, match="In one of the last 100 batches"):
        check._note(loss, good, None)
    for _ in range(input_check.READ_EVERY):
        check._note(loss, good, None)
    check._note(torch.tensor(torch.nan), good, None)
    for _ in range(input_check.READ_EVERY - 2):
        check._note(loss, good, None)
    with pytest.raises(ValueError, match="NaN or infinity"):
        check._note(loss, good, None)
    check._note(loss, good, torch.tensor([1.0, -1.0, 1.0]))
    for _ in range(input_check.READ_EVERY - 2):
        check._note(loss, good, torch.ones(3))
    with pytest.raises(ValueError, match="weights must be"):
        check._note(loss, good, torch.ones(3))


@pytest.mark.gpu
@pytest.mark.parametrize("loss_fn", LOSSES)
def test_on_a_gpu_as_on_the_cpu(loss_fn):
    scores, labels = batch(300, 3, dtype=torch.float32)
    labels[::7] = torch.nan
    weights = torch.rand(300)
    for given_weights in (None, weights):
        expected = value_and_grad(loss_fn, scores, labels, given_weights)
        there = None if given_weights is None else given_weights.cuda()
        loss, grad = value_and_grad(loss_fn, scores.cuda(), labels.cuda(), there)
        torch.testing.assert_close((loss.cpu(), grad.cpu()), expected, rtol=1e-5, atol=1e-9)
    with pytest.raises(ValueError, match="labels > 0"):
        copy.deepcopy(type(loss_fn)())(scores.cuda(), torch.full_like(scores, -1.0).cuda())
