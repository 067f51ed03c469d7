"""The module around Theorem 1: what it accepts, what it refuses, what it survives, what it says."""

import copy

import numpy as np
import pytest
import torch

from deepauc import PESG, AUCMarginLoss, AUCSquareLoss
from deepauc.objectives.input_check import READ_EVERY
from deepauc.objectives.saddle import auc_saddle


def some(n=32, positives=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) < positives).float()
    return torch.rand(n, generator=generator), labels


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"prior": 0.0}, "strictly between"),
        ({"prior": 1.0}, "strictly between"),
        ({"prior": float("nan")}, "strictly between"),
        ({"prior": 0.1, "margin": 0.0}, "positive"),
        ({"prior": [0.1, 0.2], "num_labels": 3}, "one per label"),
        ({"prior": 0.1, "num_labels": 0}, "at least 1"),
    ],
)
def test_bad_construction(arguments, remedy):
    with pytest.raises(ValueError, match=remedy):
        AUCMarginLoss(**arguments)


@pytest.mark.parametrize(
    ("scores", "labels", "remedy"),
    [
        (torch.rand(2, 3), torch.zeros(2, 3), "num_labels=3"),
        (torch.tensor([0.1, torch.nan]), torch.tensor([0.0, 1.0]), "sigmoid"),
        (torch.tensor([0.1, torch.inf]), torch.tensor([0.0, 1.0]), "BatchScoreNorm"),
    ],
)
def test_bad_scores_name_the_remedy(scores, labels, remedy):
    with pytest.raises(ValueError, match=remedy):
        AUCMarginLoss(prior=0.1)(scores, labels)


@pytest.mark.parametrize(
    "prior", [(0.1, 0.2), [0.1, 0.2], np.array([0.1, 0.2]), torch.tensor([0.1, 0.2], dtype=torch.float64)]
)
def test_one_prior_per_label_in_any_container(prior):
    assert AUCMarginLoss(prior=prior, num_labels=2, margin=np.float32(0.5)).prior == (0.1, 0.2)
    assert AUCMarginLoss(prior=np.float64(0.1)).prior == (0.1,)


@pytest.mark.parametrize("cls", [AUCMarginLoss, AUCSquareLoss])
@pytest.mark.parametrize("positives", [0, 16])
def test_one_class_batch_has_finite_loss_and_gradient(cls, positives):
    scores, labels = some(16, positives)
    scores.requires_grad_()
    loss = cls(prior=0.01)
    value = loss(scores, labels)
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("scores", [torch.zeros(0), torch.full((3,), 5000.0)])
def test_a_batch_without_labels_says_nothing_about_a_and_b(scores):
    loss_fn = AUCMarginLoss(prior=0.5)
    with torch.no_grad():
        loss_fn.a.fill_(5000.0)  # where the scores are
    assert loss_fn(scores, torch.full_like(scores, torch.nan)) == 0
    assert not loss_fn._ran_away(scores)


def test_huge_scores_are_finite():
    scores, labels = some()
    loss = AUCMarginLoss(prior=0.1)
    assert loss(scores * 1e6, labels).isfinite()
    assert loss(torch.full((4,), 6e4, dtype=torch.float16), torch.tensor([0, 1, 0, 1])).isfinite()


def test_two_forwards_then_one_backward():
    scores, labels = some()
    scores.requires_grad_()
    loss = AUCMarginLoss(prior=0.1)
    with torch.no_grad():
        loss.alpha.fill_(-0.5)
    first = loss(scores, labels)
    with torch.no_grad():
        loss.alpha.fill_(-0.2)
    second = loss(scores * 2, labels)  # projects alpha again, in place
    (first + second).backward()
    assert loss.alpha.item() == 0
    assert scores.grad.isfinite().all()


def test_alpha_is_projected_on_entry_unless_free():
    scores, labels = some()
    for loss, expected in ((AUCMarginLoss(prior=0.1), 0.0), (AUCMarginLoss(prior=0.1, constrain_alpha=False), -1.0)):
        with torch.no_grad():
            loss.alpha.fill_(-1)
        loss(scores, labels)
        assert loss.alpha.item() == expected


@pytest.mark.parametrize(("batch", "prior", "steps"), [(32, 1e-3, 4000), (128, 1e-5, 30000)])
def test_tiny_prior_with_plain_batches_never_ends_in_a_silent_nan(batch, prior, steps):
    """A positive weighs 1/(N p): a step in a of lr 0.1 overshoots. Finite to the end, or refused with the remedy."""
    generator = torch.Generator().manual_seed(0)
    loss = AUCMarginLoss(prior=prior)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = PESG([weight], loss, lr=0.1)
    for _ in range(steps):
        labels = (torch.rand(batch, generator=generator) < prior).float()
        if not labels.any() and torch.rand(1, generator=generator) > 0.05:
            continue  # most batches hold no positive and change nothing of interest
        scores = torch.sigmoid(weight * labels)
        try:
            value = loss(scores, labels)
        except ValueError as error:
            assert "ClassQuotaSampler" in str(error)  # noqa: PT017
            return
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        assert loss.a.isfinite().all()
        assert value.isfinite()


def test_diagnose_beside_brute_force():
    scores, labels = some(50, 12)
    loss = AUCMarginLoss(prior=0.1, margin=0.7)
    with torch.no_grad():
        loss.a.fill_(0.6), loss.b.fill_(0.1), loss.alpha.fill_(0.2)
    found = loss.diagnose(scores, labels)
    positive, negative = scores[:12].double(), scores[12:].double()
    s = 0.7 - positive.mean() + negative.mean()

    def phi(a, b, alpha):
        spread = ((positive - a) ** 2).mean() + ((negative - b) ** 2).mean()
        return spread - alpha**2 + 2 * alpha * s

    grid = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    top = max(phi(0.6, 0.1, alpha) for alpha in grid[grid >= 0])
    bottom = phi(positive.mean(), negative.mean(), 0.2)
    assert found.gap == pytest.approx((top - bottom).item(), abs=1e-5)
    assert found.value == pytest.approx(phi(positive.mean(), negative.mean(), s.clamp(min=0)).item())
    assert found.a_optimal == pytest.approx(positive.mean().item())
    assert found.b_optimal == pytest.approx(negative.mean().item())
    assert found.alpha_optimal == pytest.approx(s.item())
    assert found.positive_share == pytest.approx(12 / 50)
    assert (found.a, found.b, found.alpha) == pytest.approx((0.6, 0.1, 0.2))


def test_diagnose_is_never_negative_and_gap_closes_at_the_optimum():
    scores, labels = some()
    for loss in (AUCMarginLoss(prior=0.1, margin=0.1), AUCSquareLoss(prior=0.1)):
        start = loss.diagnose(scores + labels, labels)
        assert start.value >= 0
        with torch.no_grad():
            loss.a.fill_(start.a_optimal), loss.b.fill_(start.b_optimal), loss.alpha.fill_(start.alpha_optimal)
        assert loss.diagnose(scores + labels, labels).gap == pytest.approx(0, abs=1e-12)
        assert start.gap > 0


def test_diagnose_several_labels_and_one_class():
    scores, labels = some()
    loss = AUCMarginLoss(prior=0.1, num_labels=2)
    found = loss.diagnose(torch.stack([scores, scores], 1), torch.stack([labels, torch.zeros_like(labels)], 1))
    assert found.value[0] > 0
    assert found.value[1] != found.value[1]  # NaN: no positive in the second
    with pytest.raises(ValueError, match="at least one positive"):
        AUCMarginLoss(prior=0.1).diagnose(scores, torch.zeros(32))


def test_plain_sgd_over_all_parameters_just_works():
    scores, labels = some(200, 20)
    features = torch.stack([scores, labels + 0.3 * torch.randn(200, generator=torch.Generator().manual_seed(2))], 1)
    weights = {}
    for name in ("sgd", "pesg"):
        model = torch.nn.Linear(2, 1)
        torch.nn.init.zeros_(model.weight)
        loss = AUCMarginLoss(prior=0.1)
        if name == "sgd":
            optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05)
        else:
            optimizer = PESG(model.parameters(), loss, lr=0.05, gamma=0.0)
        for _ in range(2000):
            value = loss(model(features).squeeze(1), labels)
            optimizer.zero_grad(), value.backward(), optimizer.step()
        found = loss.diagnose(model(features).squeeze(1), labels)
        assert found.alpha == pytest.approx(found.alpha_optimal, abs=0.05)
        ranks = model(features).squeeze(1).detach()
        difference = ranks[labels == 1][:, None] - ranks[labels == 0]
        weights[name] = (difference > 0).double().mean().item()
    assert weights["sgd"] == pytest.approx(weights["pesg"], abs=0.01)
    assert weights["sgd"] > 0.9


def test_state_dict_deepcopy_and_repr():
    loss = AUCMarginLoss(prior=[0.1, 0.2], num_labels=2, margin=0.5)
    with torch.no_grad():
        loss.a.uniform_()
    other = AUCMarginLoss(prior=[0.1, 0.2], num_labels=2, margin=0.5)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other.a, loss.a)
    assert set(loss.state_dict()) == {"a", "b", "alpha"}
    assert torch.equal(copy.deepcopy(loss).a, loss.a)
    assert "margin=(0.5, 0.5)" in repr(loss)
    assert "margin" not in repr(AUCSquareLoss(prior=0.1))


def test_flags_on_the_device_are_read_at_the_first_and_every_hundredth_call():
    """What a GPU does, followed on the CPU: faults are noted in flags, and said when these are read."""
    scores, labels = some(8, 3)
    loss = AUCMarginLoss(prior=0.1)
    check, fine, away = loss.input_check, torch.tensor(1.0), loss._ran_away(scores)
    assert not away
    check._note(fine, labels, None, away)  # the first call reads
    check._note(fine, labels + 3, None, away)
    for _ in range(READ_EVERY - 2):
        check._note(fine, labels, None, away)
    with pytest.raises(ValueError, match=r"labels must be 0 or 1"):
        check._note(fine, labels, None, away)
    check._note(fine, labels, None, away)  # said once
    with torch.no_grad():
        loss.a.fill_(1e6)
    check._note(fine, labels, None, loss._ran_away(scores))
    with pytest.raises(ValueError, match="ClassQuotaSampler"):
        loss.diagnose(scores, labels)
    check._note(fine * torch.nan, labels, None, away)
    with pytest.raises(ValueError, match="sigmoid"):
        loss.diagnose(scores, labels)
    for weight in (-1.0, torch.nan, torch.inf):
        check._note(fine * torch.nan, labels, torch.full_like(scores, weight), away)
        with pytest.raises(ValueError, match="weights must be finite"):
            loss.diagnose(scores, labels)


def test_compiled_loss_equals_eager_without_looking_at_values():
    scores, labels = some(64, 9)
    labels[5] = torch.nan
    eager, compiled = AUCMarginLoss(prior=0.1), AUCMarginLoss(prior=0.1)
    run = torch.compile(compiled, backend="eager", fullgraph=True)
    for offset in (0.0, 0.5):
        one, two = (scores + offset).requires_grad_(), (scores + offset).requires_grad_()
        eager(one, labels).backward(), run(two, labels).backward()
        torch.testing.assert_close(one.grad, two.grad)
    torch.testing.assert_close(eager.alpha.grad, compiled.alpha.grad)


def test_torch_func_gradient():
    scores, labels = some()
    loss = AUCMarginLoss(prior=0.1)
    direct = scores.clone().requires_grad_()
    loss(direct, labels).backward()
    through = torch.func.grad(lambda h: auc_saddle(h, labels, loss.a, loss.b, loss.alpha, prior=0.1, margin=1.0))(
        scores
    )
    torch.testing.assert_close(through, direct.grad)


@pytest.mark.parametrize("alpha", [0.4, -0.3])
@pytest.mark.parametrize("kind", [AUCMarginLoss, AUCSquareLoss])
def test_the_loss_itself_under_torch_func(kind, alpha):
    scores, labels = some()
    loss = kind(prior=0.1)
    with torch.no_grad():
        loss.alpha.fill_(alpha)
    direct = scores.clone().requires_grad_()
    through = torch.func.grad(lambda h: loss(h, labels))(scores)
    assert loss.alpha.item() == pytest.approx(alpha)  # changed by the plain call alone
    loss(direct, labels).backward()
    torch.testing.assert_close(through, direct.grad)
    own = dict(loss.named_parameters())
    grads = torch.func.grad(lambda p: torch.func.functional_call(loss, p, (scores, labels)))(own)
    for name, parameter in own.items():
        torch.testing.assert_close(grads[name], parameter.grad)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("outer", [lambda loss: loss, lambda loss: 2 * loss, lambda loss: loss**2])
def test_second_derivatives_are_refused_rather_than_wrong(several, outer):
    scores, labels = some()
    scores, labels = (torch.stack([x, x], 1) if several else x for x in (scores, labels))
    scores.requires_grad_()
    loss = AUCMarginLoss(prior=0.1, num_labels=2 if several else 1)
    (grad,) = torch.autograd.grad(outer(loss(scores, labels)), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.square().sum().backward()
    first = torch.autograd.grad(outer(loss(scores, labels)), scores)[0]
    torch.testing.assert_close(grad.detach(), first)


@pytest.mark.parametrize("several", [False, True])
def test_a_step_between_forward_and_backward_of_another_batch_does_no_harm(several):
    """Two batches in flight: nothing that a step changes in place is kept for backward."""
    scores, labels = some()
    scores, labels = (torch.stack([x, x], 1) if several else x for x in (scores, labels))
    loss_fn = AUCMarginLoss(prior=0.1, num_labels=2 if several else 1)
    network = torch.nn.Parameter(torch.ones(()))
    optimizer = PESG([network], loss_fn, lr=0.1)
    first, second = (loss_fn(torch.sigmoid(scores * network + shift), labels) for shift in (0.0, 1.0))
    first.backward()
    optimizer.step()
    optimizer.zero_grad()
    expected = torch.autograd.grad(second, list(loss_fn.parameters()), retain_graph=True)
    assert all(gradient.isfinite().all() for gradient in expected)


@pytest.mark.parametrize("labels", [1, 2])
def test_diagnose_says_how_far_decay_holds_a_and_b_from_the_class_means(labels):
    """Against descent itself: Theorem 1 at 1 %, decay .002."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(1000) < 10).double()
    h = torch.rand(1000, generator=generator, dtype=torch.float64)
    if labels == 2:
        h, y = torch.stack([h, h.flip(0)], 1), torch.stack([y, y], 1)
    loss = AUCMarginLoss(prior=0.01, num_labels=labels, normalise=False).double()
    optimizer = torch.optim.SGD([loss.a, loss.b], lr=20.0, weight_decay=0.002)
    for _ in range(500):
        optimizer.zero_grad()
        loss(h, y).backward()
        optimizer.step()
    found = loss.diagnose(h, y, decay=0.002)
    biases = torch.tensor(found.decay_bias).reshape(-1)
    for now, best in ((found.a, found.a_optimal), (found.b, found.b_optimal)):
        torch.testing.assert_close(1 - torch.tensor(now).reshape(-1) / torch.tensor(best).reshape(-1), biases)
    assert biases[0].item() == pytest.approx(0.002 / (0.0198 / labels + 0.002))
    assert "normalise=True" in found.caution
    normalised = AUCMarginLoss(prior=0.01, num_labels=labels).double().diagnose(h, y, decay=0.002)
    assert max(torch.tensor(normalised.decay_bias).reshape(-1)) < 0.003
    assert normalised.caution == loss.diagnose(h, y).caution == ""
    with pytest.raises(ValueError, match="decay must be at least 0"):
        loss.diagnose(h, y, decay=-1.0)
