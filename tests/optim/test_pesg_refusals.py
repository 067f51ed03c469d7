"""What PESG leaves undone: a step whose gradients overflowed, `maximize`, the state of another network."""

import copy

import pytest
import torch
from torch import nn

from deepauc import PESG, AUCMarginLoss

LABELS = torch.tensor([1.0, 0, 0, 1, 0, 0])


def pesg(model, objective):
    return PESG(model.parameters(), objective, lr=0.1, momentum=0.9)


def sgd(model, objective):
    return torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1, momentum=0.9)


def stepped(features, make=pesg):
    torch.manual_seed(0)
    model, objective = nn.Linear(features, 1), AUCMarginLoss(prior=0.3)
    optimizer = make(model, objective)
    objective(torch.sigmoid(model(torch.randn(6, features)).squeeze(1)), LABELS).backward()
    optimizer.step()
    return model, objective, optimizer


@pytest.mark.parametrize("make", [sgd, pesg])
@pytest.mark.parametrize("where", ["weight", "a", "alpha"])
def test_gradients_that_overflowed_skip_the_step(make, where):
    model, objective, optimizer = stepped(3, make)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def one_step(*, overflow):
        optimizer.zero_grad()
        loss = objective(torch.sigmoid(model(torch.randn(6, 3)).squeeze(1)), LABELS)
        scaler.scale(loss).backward()
        if overflow:
            {"weight": model.weight, "a": objective.a, "alpha": objective.alpha}[where].grad[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()

    def everything():
        return copy.deepcopy([*model.state_dict().values(), *objective.state_dict().values(), optimizer.state_dict()])

    before = everything()
    one_step(overflow=True)
    assert str(everything()) == str(before)
    assert scaler.get_scale() == 2.0**15
    one_step(overflow=False)
    assert not torch.equal(model.weight, before[0])
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("objective", [nn.BCEWithLogitsLoss(), 0.1, None])
def test_a_loss_that_is_no_min_max_problem_is_refused(objective):
    with pytest.raises(ValueError, match=r"PESG needs an AUC objective with .* as the second argument"):
        PESG(nn.Linear(2, 1).parameters(), objective)


def test_maximize_is_refused():
    model, objective = nn.Linear(3, 1), AUCMarginLoss(prior=0.3)
    with pytest.raises(ValueError, match="PESG does not take maximize"):
        PESG([{"params": model.parameters(), "maximize": True}], objective)
    optimizer = PESG([{"params": model.parameters(), "maximize": False}], objective)
    state = optimizer.state_dict()
    state["param_groups"][0]["maximize"] = True
    with pytest.raises(ValueError, match="PESG does not take maximize"):
        optimizer.load_state_dict(state)


def test_the_state_of_another_network_is_refused_and_nothing_changes():
    _, _, other = stepped(5)
    model, _, optimizer = stepped(3)
    before = str(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"state of another network: .* has shape \(1, 5\), the parameter \(1, 3\)"):
        optimizer.load_state_dict(other.state_dict())
    assert str(optimizer.state_dict()) == before
    optimizer.load_state_dict(stepped(3)[2].state_dict())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
