"""PESG as Algorithm 1, and as a torch optimizer among others; `test_pesg_options` has the steps of every option."""

import pytest
import torch
from torch import nn

from deepauc import PESG, AUCMarginLoss
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.pesg_reference import PESGReference


def parameters():
    return [nn.Parameter(torch.ones(shape)) for shape in ((3, 4), (4,), (2, 3, 1, 1))]


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


def train(model, objective, optimizer, data, steps, *, scheduler=None, scaler=None):
    for t in steps:
        x, y = data[t % len(data)]
        optimizer.zero_grad()
        loss = objective(torch.sigmoid(model(x).squeeze(1)), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
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


def test_schedulers_and_tensor_learning_rates():
    results = []
    for lr in (0.1, torch.tensor(0.1)):
        data, model, objective = problem()
        optimizer = PESG(model.parameters(), objective, lr=lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        train(model, objective, optimizer, data, range(20), scheduler=scheduler)
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
