"""PESG's reference, alpha_step and clip_value: against the plain twin, saved and loaded, and on old states."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch import nn

from deepauc import PESG, AUCMarginLoss, AUCSquareLoss
from deepauc.kernels import pesg_update
from deepauc.objectives.multiclass import OneVsRestAUCLoss
from deepauc.optim.pesg_reference import PESGReference
from tests.optim.test_pesg import problem, train

SHAPES = [(3, 4), (4,), (2, 3, 2, 2), (30, 20), (1,)]
PRIOR, MARGIN = [0.1, 0.3, 0.2], [0.4, 0.7, 1.0]
NEW = {"reference": "zero", "alpha_step": "closed", "clip_value": 0.5}


def tolerance(dtype):
    return {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}


def network(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]
    made[2].data = made[2].data.contiguous(memory_format=torch.channels_last)
    return made


def twin_of(v, objective, *, lr, gamma, weight_decay, momentum, reference, alpha_step, clip_value):
    margin = torch.tensor(objective.margin, dtype=v[0].dtype)
    return PESGReference(
        [x.detach() for x in v],
        objective.alpha.detach(),
        eta=lr,
        gamma=gamma,
        lambda_=weight_decay,
        mu=momentum,
        reference=reference,
        clip=float("inf") if clip_value is None else clip_value,
        margin=margin if alpha_step == "closed" else None,
    )


def give(v, objective, gradients, ascent):
    for x, g in zip(v, gradients, strict=True):
        x.grad = None if g is None else torch.empty_like(x).copy_(g)  # laid out as the parameter is
    objective.alpha.grad = -ascent


def drawn(v, alpha, t, present):
    generator = torch.Generator().manual_seed(t)
    gradients = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in v]
    gradients[1] = None if t < 20 or t % 3 == 1 else gradients[1]  # comes late, and not always
    gradients[-2:] = [g * present for g in gradients[-2:]]
    return gradients, torch.randn(alpha.shape, generator=generator, dtype=torch.float64).to(alpha.dtype) * present


@pytest.mark.parametrize("reference", ["start", "zero"])
@pytest.mark.parametrize("alpha_step", ["gradient", "closed"])
@pytest.mark.parametrize("clip_value", [None, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("gamma", "weight_decay"), [(0.05, 1e-2), (0.0, 1e-2), (0.05, 0.0)])
@pytest.mark.parametrize(("dtype", "labels"), [(torch.float32, 1), (torch.float64, 3)])
def test_equals_the_twin_over_100_steps(
    reference, alpha_step, clip_value, momentum, gamma, weight_decay, dtype, labels, monkeypatch
):
    """With two new stages and a saved and loaded state on the way, and a label that is absent now and then."""
    monkeypatch.setattr(pesg_update, "CHUNK", 500)  # several chunks, the large tensor alone
    objective = AUCMarginLoss(prior=PRIOR[:labels], margin=MARGIN[:labels], num_labels=labels).to(dtype)
    weights = network(dtype)
    options = {
        "lr": 0.1, "gamma": gamma, "weight_decay": weight_decay, "momentum": momentum,
        "reference": reference, "alpha_step": alpha_step, "clip_value": clip_value,
    }  # fmt: skip
    optimizer = PESG(weights, objective, **options)
    v = [*weights, objective.a, objective.b]
    twin = twin_of(v, objective, **options)
    for t in range(100):
        present = torch.tensor([True, t % 4 != 2, t % 5 != 1][:labels])
        gradients, ascent = drawn(v, objective.alpha, t, present)
        give(v, objective, gradients, ascent)
        optimizer.step()
        twin.step(gradients, ascent, present=present)
        if t in (39, 69):
            optimizer.new_stage(lr_factor=0.3)
            twin.new_stage(0.3)
        if t == 60:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = PESG(weights, objective, lr=9.0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
    for mine, theirs in zip([*v, objective.alpha], [*twin.v, twin.alpha], strict=True):
        torch.testing.assert_close(mine.detach(), theirs, **tolerance(dtype))


@pytest.mark.parametrize("reference", ["start", "zero"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("first", [0, 12])
def test_a_parameter_that_begins_to_move_late_is_averaged_where_it_stood(reference, momentum, first):
    """Before and after a new stage: the twin has all its iterates."""
    objective = AUCMarginLoss(prior=0.1).double()
    early, late = (nn.Parameter(torch.full((3,), x, dtype=torch.float64)) for x in (1.0, 2.0))
    optimizer = PESG([early, late], objective, lr=0.1, gamma=0.3, momentum=momentum, reference=reference)
    zero = torch.zeros(1, dtype=torch.float64)
    twin = PESGReference([early.detach(), late.detach()], zero, eta=0.1, gamma=0.3, mu=momentum, reference=reference)
    for t in range(20):
        gradients = [torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64) if t >= first + 5 else None]
        early.grad, late.grad = gradients
        optimizer.step()
        twin.step(gradients, zero)
        if t == 9:
            optimizer.new_stage()
            twin.new_stage(0.1)
    for mine, theirs in zip((early, late), twin.v, strict=True):
        torch.testing.assert_close(mine.detach(), theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("new", [{}, NEW])
def test_half_parameters_stay_half_and_keep_their_storage(dtype, new):
    objective = AUCMarginLoss(prior=0.1)
    x = nn.Parameter(torch.linspace(-1, 1, 64).to(dtype))
    pointer = x.data_ptr()
    optimizer = PESG([x], objective, lr=0.1, gamma=0.1, momentum=0.9, **new)
    own = {"reference": "zero", "clip": 0.5} if new else {}
    twin = PESGReference([x.detach().float()], torch.zeros(1), eta=0.1, gamma=0.1, mu=0.9, **own)
    for _ in range(10):
        x.grad = torch.linspace(-2, 2, 64).to(dtype)
        optimizer.step()
        twin.step([x.grad.float()], torch.zeros(1))
    assert x.dtype == dtype
    assert x.data_ptr() == pointer
    state = optimizer.state[x]
    assert state["reference"].dtype == state["drift"].dtype == state["momentum"].dtype == torch.float32
    torch.testing.assert_close(x.detach().float(), twin.v[0], atol=0.05, rtol=0.05)


def test_zero_reference_is_a_weight_decay_of_gamma_until_the_first_new_stage():
    results = []
    for options in ({"gamma": 0.3, "reference": "zero"}, {"gamma": 0.0, "weight_decay": 0.3}):
        weights, objective = network(torch.float64), AUCMarginLoss(prior=0.1).double()
        optimizer = PESG(weights, objective, lr=0.1, **options)
        v = [*weights, objective.a, objective.b]
        for t in range(30):
            give(v, objective, *drawn(v, objective.alpha, t, torch.tensor([True])))
            optimizer.step()
        results.append([x.detach() for x in v])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_weight_at_its_reference_without_gradient_stays_to_the_bit():
    x = nn.Parameter(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    before = x.detach().clone()
    optimizer = PESG([x], AUCMarginLoss(prior=0.1), lr=0.1, gamma=0.3)
    for _ in range(5):
        x.grad = torch.zeros(1000)
        optimizer.step()
    assert torch.equal(x, before)


@pytest.mark.parametrize(("lr", "gamma"), [(0.5, 1.0), (1.0, 1.0), (2.0, 3.0)])
@pytest.mark.parametrize("momentum", [0.0, 1e-6])
def test_large_and_tiny_rates_are_the_twins_too(lr, gamma, momentum):
    x = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = PESG([x], AUCMarginLoss(prior=0.1).double(), lr=lr, gamma=gamma, weight_decay=0.1, momentum=momentum)
    twin = PESGReference([x.detach()], torch.zeros(1), eta=lr, gamma=gamma, lambda_=0.1, mu=momentum)
    for t in range(6):
        x.grad = torch.full((4,), t - 2.0, dtype=torch.float64)
        optimizer.step()
        twin.step([x.grad], torch.zeros(1))
    torch.testing.assert_close(x.detach(), twin.v[0])


def test_a_layout_that_changes_under_the_optimizer_is_followed():
    """torch's fused kernel goes by memory: it must not pair elements of different places."""
    results = []
    for change in (False, True):
        x = network(torch.float64)[2]
        x.data = x.data.contiguous()
        optimizer = PESG([x], AUCMarginLoss(prior=0.1).double(), lr=0.1, gamma=0.3, momentum=0.5)
        for t in range(6):
            generator = torch.Generator().manual_seed(t)
            x.grad = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
            if change and t == 2:
                x.data = x.data.contiguous(memory_format=torch.channels_last)
        results.append(x.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("loss", ["margin", "free", "square", "one against the rest"])
def test_closed_ascent_by_hand(loss):
    made = {
        "margin": lambda: AUCMarginLoss(prior=PRIOR, margin=MARGIN, num_labels=3, normalise=False),
        "free": lambda: AUCMarginLoss(prior=PRIOR, margin=MARGIN, num_labels=3, constrain_alpha=False),
        "square": lambda: AUCSquareLoss(prior=PRIOR, num_labels=3),
        "one against the rest": lambda: OneVsRestAUCLoss(prior=[0.2, 0.3, 0.5], margin=MARGIN),
    }[loss]()
    own = made.columns if loss == "one against the rest" else made
    with torch.no_grad():
        own.a.copy_(torch.tensor([0.9, 2.5, 0.1])), own.b.copy_(torch.tensor([0.1, 0.0, 0.3]))
        own.alpha.copy_(torch.tensor([0.2, 0.1, 0.0]))
    weights = nn.Parameter(torch.zeros(2))
    optimizer = PESG([weights], made, lr=0.3, gamma=0.0, alpha_step="closed")
    own.a.grad, own.b.grad = torch.tensor([0.1, 0.2, 0.0]), torch.tensor([0.0, 0.1, 0.0])
    own.alpha.grad = torch.tensor([0.0, 5.0, 0.0])  # the third label was absent
    optimizer.step()
    margins = [1.0] * 3 if loss == "square" else MARGIN
    a, b = [0.9 - 0.03, 2.5 - 0.06], [0.1, -0.03]
    wanted = [al + 0.6 * (m + y - x - al) for al, m, x, y in zip([0.2, 0.1], margins, a, b, strict=False)]
    if loss in ("margin", "one against the rest"):
        wanted = [max(0.0, x) for x in wanted]
    assert own.alpha.tolist() == pytest.approx([*wanted, 0.0], abs=1e-6)


def test_closed_ascent_leaves_a_label_alone_that_a_batch_has_not():
    loss_fn = AUCMarginLoss(prior=[0.3, 0.3], num_labels=2)
    model = nn.Linear(4, 2)
    optimizer = PESG(model.parameters(), loss_fn, lr=0.1, alpha_step="closed")
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), (torch.arange(8) < 3).float()
    labels = torch.stack([y, torch.full((8,), torch.nan)], 1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_fn(torch.sigmoid(model(x)), labels).backward()
        optimizer.step()
    assert loss_fn.alpha[0] > 0
    assert loss_fn.alpha[1] == 0
    optimizer.zero_grad()
    before = loss_fn.alpha.detach().clone()
    optimizer.step()  # no loss, no step
    assert torch.equal(loss_fn.alpha, before)


def test_closed_needs_a_loss_that_can():
    class Plain:
        def primal_parameters(self):
            return [nn.Parameter(torch.zeros(1))]

        dual_parameters = primal_parameters

        def project_(self):
            pass

    PESG([nn.Parameter(torch.zeros(1))], Plain())
    with pytest.raises(ValueError, match=r"closed_ascent_, which Plain lacks: use alpha_step='gradient'"):
        PESG([nn.Parameter(torch.zeros(1))], Plain(), alpha_step="closed")


def values(model, objective):
    return [*model.parameters(), *objective.parameters()]


@pytest.mark.parametrize("stop", [10, 25, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("new", [{}, NEW])
def test_resume_copy_and_pickle_to_the_bit(stop, dtype, new):
    data, model, objective = problem(dtype)
    optimizer = PESG(model.parameters(), objective, lr=0.1, gamma=0.02, momentum=0.5, **new)
    train(model, objective, optimizer, data, range(stop))
    state = copy.deepcopy((model.state_dict(), objective.state_dict(), optimizer.state_dict()))
    others = [copy.deepcopy((model, objective, optimizer)), pickle.loads(pickle.dumps((model, objective, optimizer)))]
    _, fresh, loss = problem(dtype)
    again = PESG(fresh.parameters(), loss)
    for part, saved in zip((fresh, loss, again), state, strict=True):
        part.load_state_dict(saved)
    train(model, objective, optimizer, data, range(stop, 60))
    for mine, own, its in [*others, (fresh, loss, again)]:
        assert its.objective is own
        train(mine, own, its, data, range(stop, 60))
        assert all(torch.equal(x, y) for x, y in zip(values(mine, own), values(model, objective), strict=True))
        for one, other in zip(its.state.values(), optimizer.state.values(), strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one)


def test_a_state_from_before_the_options_goes_on_as_it_was():
    data, model, objective = problem()
    optimizer = PESG(model.parameters(), objective, lr=0.1, gamma=0.02)
    train(model, objective, optimizer, data, range(10))
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        for name in ("reference", "clip_value", "alpha_step"):
            group.pop(name, None)
    weights = copy.deepcopy((model.state_dict(), objective.state_dict()))
    _, again, loss = problem()
    resumed = PESG(again.parameters(), loss, **NEW)
    resumed.load_state_dict(old)
    again.load_state_dict(weights[0]), loss.load_state_dict(weights[1])
    train(model, objective, optimizer, data, range(10, 40))
    train(again, loss, resumed, data, range(10, 40))
    assert all(torch.equal(x, y) for x, y in zip(values(again, loss), values(model, objective), strict=True))


def test_clipping_acts_on_unscaled_gradients():
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        data, model, objective = problem()
        optimizer = PESG(model.parameters(), objective, lr=0.1, gamma=0.02, clip_value=0.01, alpha_step="closed")
        train(model, objective, optimizer, data, range(30), scaler=scaler)
        results.append(values(model, objective))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))  # a power of two scales exactly


def test_groups_have_their_own_options_and_frozen_parameters_stay():
    first, second, frozen = (nn.Parameter(torch.ones(3)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = PESG(
        [
            {"params": [first, frozen], "reference": "zero", "clip_value": 0.5},
            {"params": [second], "lr": 0.5, "gamma": 0.0, "momentum": 0.9},
        ],
        AUCMarginLoss(prior=0.1),
        lr=0.1,
        gamma=0.2,
    )
    twins = [
        PESGReference([torch.ones(3)], torch.zeros(1), eta=0.1, gamma=0.2, reference="zero", clip=0.5),
        PESGReference([torch.ones(3)], torch.zeros(1), eta=0.5, gamma=0.0, mu=0.9),
    ]
    for t, (x, twin) in itertools.product(range(10), zip((first, second), twins, strict=True)):
        x.grad = torch.full((3,), t - 3.0)
        twin.step([x.grad], torch.zeros(1))
        if x is second:
            optimizer.step()
    torch.testing.assert_close(first.detach(), twins[0].v[0])
    torch.testing.assert_close(second.detach(), twins[1].v[0])
    assert torch.equal(frozen, torch.ones(3))
    assert len(optimizer.param_groups) == 4  # two given, (a, b), alpha
