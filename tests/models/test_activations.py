"""ReLU out, ELU in: every place, nothing shared, and leftovers named."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from deepauc.models.activations import assert_no_relu, make_activation, relu_calls, replace_relu


def kinds(model):
    return [type(m) for m in model.modules()]


class Planted(nn.Module):
    """A ReLU module that can be replaced and a call in `forward` that cannot."""

    def __init__(self, function):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.function = function

    def forward(self, x):
        return self.function(self.inner(x))


class Outer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.block = Planted(function)

    def forward(self, x):
        return self.block(x)


RELU_BY_ANOTHER_NAME = {
    "F.relu": F.relu,
    "in place": lambda x: F.relu(x, inplace=True),
    "torch.relu": torch.relu,
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(min=0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "threshold": lambda x: F.threshold(x, 0, 0),
}


@pytest.mark.parametrize("function", RELU_BY_ANOTHER_NAME.values(), ids=RELU_BY_ANOTHER_NAME.keys())
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_planted_function_call_is_found_and_named(function, device):
    model = Outer(function)
    assert replace_relu(model) == 1
    with pytest.raises(ValueError, match=r"left in 1 places: block \("):
        assert_no_relu(model, torch.zeros(2, 4, device=device))


HARMLESS = {
    "elu": F.elu,
    "silu": F.silu,
    "leaky": F.leaky_relu,
    "range": lambda x: x.clamp(0, 1),
    "positive floor": lambda x: x.clamp_min(1e-6),
    "hardtanh": F.hardtanh,
    "normalize": F.normalize,
}


@pytest.mark.parametrize("function", HARMLESS.values(), ids=HARMLESS.keys())
def test_other_operations_are_not_taken_for_relu(function):
    model = Outer(function)
    replace_relu(model)
    assert_no_relu(model, torch.zeros(2, 4))


def test_a_module_left_over_is_named_even_if_it_never_runs():
    model = Planted(F.elu)
    model.unused = nn.ReLU6()
    replace_relu(model.inner)
    with pytest.raises(ValueError, match=r"unused \(nn.ReLU6\)"):
        assert_no_relu(model, torch.zeros(2, 4))


def test_a_branch_of_training_mode_is_seen():
    class Auxiliary(nn.Module):
        def forward(self, x):
            return F.relu(x) if self.training else x

    assert relu_calls(Auxiliary(), torch.zeros(2, 4)) == ["the model itself (relu)"]


def test_the_check_changes_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.ELU())
    model[1].eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert_no_relu(model, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model] == [True, False, True, True]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_timms_batchnorm_activation_layers_are_converted():
    with torch.device("meta"):
        model = timm.create_model("densenet121", num_classes=1)
    # One BN+ReLU after the stem, two a dense layer (58), one a transition (3), one before the classifier.
    assert replace_relu(model) == 1 + 2 * 58 + 3 + 1 == 121
    assert nn.ReLU not in kinds(model)
    assert kinds(model).count(nn.ELU) == 121
    assert isinstance(model.features.denseblock1.denselayer1.norm1.act, nn.ELU)
    assert_no_relu(model, torch.zeros(2, 3, 64, 64, device="meta"))


def test_every_place_has_an_activation_of_its_own():
    shared = nn.ReLU(inplace=True)
    model = nn.Sequential(shared, nn.Linear(2, 2), shared, nn.Sequential(shared))
    assert replace_relu(model) == 3
    found = [model[0], model[2], model[3][0]]
    assert all(isinstance(m, nn.ELU) and m.inplace for m in found)
    assert len({id(m) for m in found}) == 3


def test_a_second_network_does_not_change_the_first():
    first, second = (timm.create_model("resnet18", num_classes=1).eval() for _ in range(2))
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = first(x)
        replace_relu(second)
        assert nn.ELU not in kinds(first)
        assert torch.equal(first(x), expected)
    assert not {id(m) for m in first.modules()} & {id(m) for m in second.modules()}


def test_inplace_flag_is_kept_and_gradients_are_those_without_it():
    torch.manual_seed(0)
    inplace = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 3)).double()
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3)).double()
    plain.load_state_dict(inplace.state_dict())
    for model in (inplace, plain):
        replace_relu(model)
        model(torch.arange(2 * 49, dtype=torch.float64).reshape(2, 1, 7, 7).sin()).square().sum().backward()
    assert (inplace[2].inplace, plain[2].inplace) == (True, False)
    for a, b in zip(inplace.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


def test_other_kinds_on_request():
    model = nn.Sequential(nn.SiLU(inplace=True), nn.ReLU())
    assert replace_relu(model, kinds=(nn.SiLU,)) == 1
    assert kinds(model)[1:] == [nn.ELU, nn.ReLU]
    assert model[0].inplace


def test_a_bare_activation_is_refused():
    with pytest.raises(ValueError, match="itself an activation"):
        replace_relu(nn.ReLU())


def test_make_activation_names_the_choices():
    assert isinstance(make_activation("elu"), nn.ELU)
    with pytest.raises(ValueError, match="relu, elu"):
        make_activation("swish")
