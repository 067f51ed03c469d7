"""torch's optimizers as specs: clipped gradients, and what weight decay acts on."""

import copy

import pytest
import torch
from torch import nn

from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.baselines import CrossEntropyLoss
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, ClippedSGD, SGDSpec


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 1))


def test_clipping_comes_before_decay_and_momentum():
    """Against the formula: d = clip(g) + decay v; buf = momentum buf + d; v <- v - lr buf."""
    start = torch.tensor([1.0, -2.0, 3.0])
    weights = nn.Parameter(start.clone())
    optimizer = SGDSpec(lr=0.1, momentum=0.9, weight_decay=0.5, clip_value=1.0).build([weights], CrossEntropyLoss())
    v, buffer = start.clone(), torch.zeros(3)
    for gradient in ([5.0, -0.5, -7.0], [0.2, -3.0, 1.0]):
        weights.grad = torch.tensor(gradient)
        optimizer.step()
        buffer = 0.9 * buffer + torch.tensor(gradient).clamp(-1, 1) + 0.5 * v
        v = v - 0.1 * buffer
        torch.testing.assert_close(weights.detach(), v)
    twin = copy.deepcopy(optimizer)
    assert isinstance(twin, ClippedSGD)
    assert twin.defaults["clip_value"] == 1.0


def test_a_closure_is_called_once_and_steps_without_gradients_are_none():
    weights = nn.Parameter(torch.ones(1))
    optimizer = ClippedSGD([weights], clip_value=0.5, lr=1.0)
    optimizer.step()
    assert weights.item() == 1.0

    def closure():
        optimizer.zero_grad()
        loss = (4 * weights).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4.0
    assert weights.item() == 0.5


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_clip_value_that_stops_everything_is_refused(clip):
    with pytest.raises(ValueError, match="clip_value must be positive, or None"):
        SGDSpec(clip_value=clip)


@pytest.mark.parametrize("make", [SGDSpec, AdamSpec, AdamWSpec])
@pytest.mark.parametrize("decay_norms", [True, False])
def test_what_decay_acts_on(make, decay_norms):
    model, objective = network(), AUCMarginLoss(prior=0.1)
    optimizer = make(lr=0.1, weight_decay=0.01, decay_norms=decay_norms).build(model.parameters(), objective)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay.keys() == {id(p) for p in (*model.parameters(), *objective.parameters())}
    for parameter in model.parameters():
        assert decay[id(parameter)] == (0.01 if decay_norms or parameter.ndim > 1 else 0.0)
    assert all(decay[id(p)] == 0 for p in objective.parameters())


def test_pesg_without_decay_of_norms():
    model, objective = network(), AUCMarginLoss(prior=0.1)
    optimizer = PESGSpec(weight_decay=0.01, decay_norms=False).build(model.parameters(), objective)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert [decay[id(p)] for p in model.parameters()] == [0.01, 0.0, 0.0, 0.0, 0.01, 0.0]
    assert [decay[id(p)] for p in (objective.a, objective.b, objective.alpha)] == [0.01, 0.01, 0.0]
    zero = PESGSpec(gamma=0.1, reference="zero", decay_norms=False).build(model.parameters(), AUCMarginLoss(prior=0.1))
    assert [group["reference"] for group in zero.param_groups[:2]] == ["zero", "start"]
