"""A network of the user's own, and what is said when it is not one."""

import sys
import types

import pytest
import torch
from torch import nn

from deepauc.models.build import FactorySpec, build_model


class Net(nn.Module):
    def __init__(self, in_channels, num_outputs, width=3, shape="right"):
        super().__init__()
        self.body = nn.Conv2d(in_channels, width, 1)
        self.head = nn.Linear(width, num_outputs)
        self.shape = shape

    def forward(self, x):
        scores = self.head(self.body(x).mean((2, 3)))
        return {"right": scores, "flat": scores.squeeze(1), "tuple": (scores, scores)}[self.shape]


@pytest.fixture(autouse=True)
def module(monkeypatch):
    module = types.ModuleType("my_networks")
    module.Net = Net
    module.container = types.SimpleNamespace(Net=Net)
    module.number = 3
    module.fixed = lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    module.no_module = lambda: "a string"
    monkeypatch.setitem(sys.modules, "my_networks", module)


def build(factory, *, outputs=2, **arguments):
    spec = FactorySpec(factory=f"my_networks:{factory}", arguments=arguments)
    return build_model(spec, in_channels=3, num_outputs=outputs, seed=0, input_shape=(3, 2, 2))


@pytest.mark.parametrize("factory", ["Net", "container.Net"])
def test_what_the_factory_asks_for_is_filled_in(factory):
    model = build(factory, width=5)
    assert model.body.weight.shape == (5, 3, 1, 1)
    assert model.head.weight.shape == (2, 5)


def test_the_seed_decides():
    first, second = build("Net"), build("Net")
    assert torch.equal(first.body.weight, second.body.weight)


def test_a_factory_that_takes_everything_from_its_arguments():
    assert isinstance(build("fixed", outputs=10), nn.Sequential)
    spec = FactorySpec(factory="torchvision.models:resnet18", arguments={"num_classes": 1})
    model = build_model(spec, in_channels=3, num_outputs=1, seed=0, input_shape=(3, 32, 32))
    assert model.fc.out_features == 1


@pytest.mark.parametrize(
    ("factory", "arguments", "message"),
    [
        ("fixed", {}, r"gives \(1, 10\) for one input.*\(1, 2\).*last layer 2 outputs"),
        ("Net", {"shape": "tuple"}, "gives tuple for one input.*one tensor"),
        ("Net", {"depth": 3}, "does not take the arguments.*depth"),
        ("no_module", {}, "returned str, not a torch.nn.Module"),
        ("number", {}, "is int, which cannot be called"),
        ("absent", {}, "module 'my_networks' has no 'absent'"),
    ],
)
def test_errors_name_the_fault(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(factory, **arguments)


def test_a_flat_output_names_unsqueeze():
    with pytest.raises(ValueError, match=r"gives \(1,\).*unsqueeze\(1\)"):
        build("Net", outputs=1, shape="flat")


@pytest.mark.parametrize("factory", ["my_networks.Net", "my_networks:", ":Net", ""])
def test_the_form_of_the_name(factory):
    with pytest.raises(ValueError, match=r"must read 'package.module:function'"):
        FactorySpec(factory=factory).build(in_channels=3, num_outputs=1)


def test_a_module_that_cannot_be_imported():
    with pytest.raises(ValueError, match=r"'not_there' cannot be imported.*PYTHONPATH"):
        FactorySpec(factory="not_there:Net").build(in_channels=3, num_outputs=1)
