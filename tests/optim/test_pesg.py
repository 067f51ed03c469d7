"""PESG against its plain twin in the paper's letters, and as a torch optimizer among others."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from deepauc import PESG, AUCMarginLoss
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.pesg_reference import PESGReference

SHAPES = [(3, 4), (4,), (2, 3, 1, 1), (1,), (300, 300)]  # the last is large enough to be updated on its own


def parameters(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]


def random_gradients(shapes, generator, dtype):
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize("gamma", [0.0, 0.05])
def test_equals_the_reference_over_100_steps_and_two_new_stages(dtype, momentum, weight_decay, gamma):
    objective = AUCMarginLoss(prior=0.1).to(dtype)
    network = parameters(dtype)
    optimizer = PESG(network, objective, lr=0.1, gamma=gamma, weight_decay=weight_decay, momentum=momentum)
    v = [*network, objective.a, objective.b]
    twin = PESGReference(
        [x.detach() for x in v],
        objective.alpha.detach(),
        eta=0.1,
        gamma=gamma,
        lambda_=weight_decay,
        mu=momentum,
    )
    generator = torch.Generator().manual_seed(1)
    for t in range(100):
        gradients = random_gradients([x.shape for x in v], generator, dtype)
        gradients[1] = None if t % 3 == 1 else gradients[1]  # unused now and then
        ascent = torch.randn(1, generator=generator).to(dtype)
        for x, g in zip(v, gradients, strict=True):
            x.grad = None if g is None else g.clone()
        objective.alpha.grad = -ascent
        optimizer.step()
        twin.step(gradients, ascent)
        if t in (39, 69):
            optimizer.new_stage(lr_factor=0.3)
            twin.new_stage(0.3)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    for mine, theirs in zip([*v, objective.alpha], [*twin.v, twin.alpha], strict=True):
        torch.testing.assert_close(mine.detach(), theirs, **tolerance)
    assert objective.alpha >= 0


def test_algorithm_one_to_the_letter_on_the_literal_loss():
    """normalise=False and the reference twin fed by autograd on Theorem 1 itself: the whole chain is Algorithm 1."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 5, generator=generator, dtype=torch.float64)
    y = (torch.rand(64, generator=generator) < 0.2).double()
    p, m = 0.2, 0.5
    w = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    objective = AUCMarginLoss(prior=p, margin=m, normalise=False).double()
    optimizer = PESG([w], objective, lr=0.2, gamma=0.01, weight_decay=1e-3)
    zero = torch.zeros(1, dtype=torch.float64)
    twin = PESGReference([w.detach(), zero, zero], zero, eta=0.2, gamma=0.01, lambda_=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        objective(torch.sigmoid(x @ w), y).backward()
        optimizer.step()
        tw, ta, tb, talpha = (t.clone().requires_grad_() for t in (*twin.v, twin.alpha))
        h = torch.sigmoid(x @ tw)
        f = (1 - p) * (h - ta) ** 2 * y + p * (h - tb) ** 2 * (1 - y) - p * (1 - p) * talpha**2
        f = f + 2 * talpha * (p * (1 - p) * m + p * h * (1 - y) - (1 - p) * h * y)
        gradients = torch.autograd.grad(f.mean(), (tw, ta, tb, talpha))
        twin.step(gradients[:3], gradients[3])
    torch.testing.assert_close(w.detach(), twin.v[0])
    torch.testing.assert_close(objective.alpha.detach(), twin.alpha)


def test_groups_have_their_own_options_and_frozen_ones_stay():
    objective = AUCMarginLoss(prior=0.1)
    first, second, frozen, *_ = parameters()
    frozen.requires_grad_(False)
    before = frozen.clone()
    optimizer = PESG(
        [{"params": [first, frozen]}, {"params": [second], "lr": 0.5, "gamma": 0.0, "momentum": 0.9}], objective, lr=0.1
    )
    twins = [
        PESGReference([first.detach()], torch.zeros(1), eta=0.1, gamma=0.002),
        PESGReference([second.detach()], torch.zeros(1), eta=0.5, gamma=0.0, mu=0.9),
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradients = random_gradients([first.shape, second.shape], generator, torch.float32)
        first.grad, second.grad = (g.clone() for g in gradients)
        optimizer.step()
        for twin, gradient in zip(twins, gradients, strict=True):
            twin.step([gradient], torch.zeros(1))
    torch.testing.assert_close(first.detach(), twins[0].v[0])
    torch.testing.assert_close(second.detach(), twins[1].v[0])
    assert torch.equal(frozen, before)
    assert len(optimizer.param_groups) == 4  # two given, (a, b), alpha


def test_gamma_zero_keeps_no_copies():
    objective = AUCMarginLoss(prior=0.1)
    network = parameters()
    optimizer = PESG(network, objective, gamma=0.0)
    for x in [*network, objective.a, objective.b, objective.alpha]:
        x.grad = torch.ones_like(x)
    optimizer.step()
    assert not any(isinstance(v, torch.Tensor) for state in optimizer.state.values() for v in state.values())


def test_weight_decay_and_pull_never_touch_alpha():
    objective = AUCMarginLoss(prior=0.1)
    with torch.no_grad():
        objective.alpha.fill_(1.0)
    optimizer = PESG([nn.Parameter(torch.ones(2))], objective, lr=0.1, gamma=0.5, weight_decay=0.5, momentum=0.9)
    for _ in range(3):
        objective.alpha.grad = torch.tensor([0.5])
        optimizer.step()
    assert objective.alpha.item() == pytest.approx(1 - 3 * 0.1 * 0.5)
    objective.alpha.grad = torch.tensor([100.0])
    optimizer.step()
    assert objective.alpha.item() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_parameters_stay_half_and_keep_their_storage(dtype):
    objective = AUCMarginLoss(prior=0.1)
    x = nn.Parameter(torch.linspace(-1, 1, 64).to(dtype))
    pointer = x.data_ptr()
    optimizer = PESG([x], objective, lr=0.1, gamma=0.1, momentum=0.9)
    twin = PESGReference([x.detach().float()], torch.zeros(1), eta=0.1, gamma=0.1, mu=0.9)
    for _ in range(10):
        x.grad = torch.full_like(x, 0.01)
        optimizer.step()
        twin.step([torch.full((64,), 0.01).to(dtype).float()], torch.zeros(1))
    assert x.dtype == dtype
    assert x.data_ptr() == pointer
    state = optimizer.state[x]
    assert state["reference"].dtype == state["drift"].dtype == state["momentum"].dtype == torch.float32
    torch.testing.assert_close(x.detach().float(), twin.v[0], atol=0.05, rtol=0.05)


def train(model, objective, optimizer, data, steps, scheduler=None):
    for t in steps:
        x, y = data[t % len(data)]
        optimizer.zero_grad()
        objective(torch.sigmoid(model(x).squeeze(1)), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if t == 25:
            optimizer.new_stage(0.5)


def problem(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    data = [(torch.randn(16, 4, generator=generator).to(dtype), (torch.arange(16) < 3).float()) for _ in range(7)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1)).to(dtype)
    objective = AUCMarginLoss(prior=3 / 16)
    return data, model, objective


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [10, 25, 40])
def test_resume_to_the_bit(dtype, stop):
    data, model, objective = problem(dtype)
    optimizer = PESG(model.parameters(), objective, lr=0.1, gamma=0.02, momentum=0.5)
    train(model, objective, optimizer, data, range(60))
    data, again, second = problem(dtype)
    half = PESG(again.parameters(), second, lr=0.1, gamma=0.02, momentum=0.5)
    train(again, second, half, data, range(stop))
    file = io.BytesIO()
    torch.save([again.state_dict(), second.state_dict(), half.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    _, last, third = problem(dtype)
    resumed = PESG(last.parameters(), third, lr=123.0, gamma=0.02, momentum=0.5)
    last.load_state_dict(saved[0]), third.load_state_dict(saved[1]), resumed.load_state_dict(saved[2])
    train(last, third, resumed, data, range(stop, 60))
    for mine, theirs in zip(
        [*last.parameters(), *third.parameters()], [*model.parameters(), *objective.parameters()], strict=True
    ):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(resumed.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k], theirs[k]) and mine[k].dtype == theirs[k].dtype for k in mine)


def test_the_state_of_another_optimizer_is_refused_with_a_remedy():
    _, model, objective = problem()
    optimizer = PESG(model.parameters(), objective)
    before = optimizer.state_dict()
    numbers = [n for group in before["param_groups"] for n in group["params"]]
    options = {"lr": 0.1, "momentum": 0.9, "margin": 1.0, "epoch_decay": 0.002, "a": 0.0, "b": 0.0, "alpha": 0.0}
    with pytest.raises(ValueError, match=r"LibAUC's PESG.*'a', 'b', 'alpha'.*a new PESG"):
        optimizer.load_state_dict({"state": {}, "param_groups": [{**options, "params": numbers}]})
    sgd = torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1)
    with pytest.raises(ValueError, match=r"another optimizer.*a new PESG"):
        optimizer.load_state_dict(sgd.state_dict())
    assert optimizer.state_dict() == before


def test_deepcopy_and_pickle_go_on_alike():
    data, model, objective = problem()
    optimizer = PESG(model.parameters(), objective, lr=0.1, gamma=0.02)
    train(model, objective, optimizer, data, range(10))
    copies = [copy.deepcopy((model, objective, optimizer)), pickle.loads(pickle.dumps((model, objective, optimizer)))]
    train(model, objective, optimizer, data, range(10, 40))
    for twin_model, twin_objective, twin_optimizer in copies:
        assert twin_optimizer.objective is twin_objective
        train(twin_model, twin_objective, twin_optimizer, data, range(10, 40))
        for mine, theirs in zip(twin_model.parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_schedulers_and_tensor_learning_rates():
    results = []
    for lr in (0.1, torch.tensor(0.1)):
        data, model, objective = problem()
        optimizer = PESG(model.parameters(), objective, lr=lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        train(model, objective, optimizer, data, range(20), scheduler)
        results.append([p.detach().clone() for p in model.parameters()])
        assert float(optimizer.param_groups[0]["lr"]) < 0.1
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def test_new_stage_scales_a_shared_tensor_learning_rate_once():
    optimizer = PESG(parameters(), AUCMarginLoss(prior=0.1), lr=torch.tensor(0.4))
    optimizer.new_stage(0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.2] * 3)


def test_new_stage_before_any_step_and_twice_in_a_row_keeps_the_reference():
    x = nn.Parameter(torch.ones(3))
    optimizer = PESG([x], AUCMarginLoss(prior=0.1), lr=0.1, gamma=0.1)
    optimizer.new_stage()
    x.grad = torch.ones(3)
    optimizer.step()
    optimizer.new_stage()
    reference = optimizer.state[x]["reference"].clone()
    torch.testing.assert_close(reference, x.detach())  # the average of one iterate is that iterate
    optimizer.new_stage()
    assert torch.equal(optimizer.state[x]["reference"], reference)


def test_parameter_unfrozen_later_is_referenced_where_it_stood():
    objective = AUCMarginLoss(prior=0.1)
    early, late = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
    optimizer = PESG([early, late], objective, lr=0.1, gamma=0.1)
    twin = PESGReference([early.detach(), late.detach()], torch.zeros(1), eta=0.1, gamma=0.1)
    for t in range(8):
        gradients = [torch.ones(2), torch.ones(2) if t >= 5 else None]
        early.grad, late.grad = gradients
        optimizer.step()
        twin.step(gradients, torch.zeros(1))
    optimizer.new_stage()
    twin.new_stage(0.1)
    torch.testing.assert_close(optimizer.state[late]["reference"], twin.v_ref[1])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"lr": -1.0}, "lr"),
        ({"gamma": -0.1}, "gamma"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -1}, "decay"),
    ],
)
def test_bad_options_are_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        PESG(parameters(), AUCMarginLoss(prior=0.1), **arguments)


def test_other_bad_input_names_the_remedy():
    objective = AUCMarginLoss(prior=0.1)
    with pytest.raises(ValueError, match=r"model\.parameters\(\) only"):
        PESG([*parameters(), *objective.parameters()], objective)
    with pytest.raises(ValueError, match="no parameters"):
        PESG([], objective)
    with pytest.raises(ValueError, match="lr_factor"):
        PESG(parameters(), objective).new_stage(0)
    with pytest.raises(ValueError, match="decay_factor"):
        PESG(parameters(), objective).new_stage(10)
    table = nn.Embedding(3, 2, sparse=True)
    optimizer = PESG(table.parameters(), objective)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        optimizer.step()


def test_closure():
    x = nn.Parameter(torch.ones(1))
    optimizer = PESG([x], AUCMarginLoss(prior=0.1), lr=0.1, gamma=0.0)

    def closure():
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert x.item() == pytest.approx(0.8)


def test_named_parameters_train_alike():
    states = []
    for given in (lambda model: model.parameters(), lambda model: model.named_parameters()):
        data, model, objective = problem()
        optimizer = PESG(given(model), objective, lr=0.1, gamma=0.02)
        train(model, objective, optimizer, data, range(30))
        states.append([*model.parameters(), *objective.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    names = [group["param_names"] for group in optimizer.param_groups]
    assert names == [
        ["0.weight", "0.bias", "2.weight", "2.bias"],
        ["objective.primal.0", "objective.primal.1"],
        ["objective.dual.0"],
    ]
    with pytest.raises(ValueError, match="from the objective itself"):
        PESG(objective.named_parameters(), objective)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reference": "origin"}, "reference must be 'start' or 'zero', not 'origin'"),
        ({"alpha_step": "exact"}, "alpha_step must be 'gradient' or 'closed', not 'exact'"),
        ({"clip_value": 0}, "clip_value must be positive, or None"),
        ({"clip_value": -1.0}, "clip_value must be positive, or None"),
        ({"clip_value": float("nan")}, "clip_value must be positive, or None"),
    ],
)
def test_bad_settings_name_the_valid_ones(arguments, message):
    with pytest.raises(ValueError, match=message):
        PESG(parameters(), AUCMarginLoss(prior=0.1), **arguments)
    with pytest.raises(ValueError, match=message):
        PESGSpec(**arguments)
