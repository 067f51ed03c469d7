"""The classifier layer of any network: found, and drawn anew between two stages (the paper's section 3.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Classifier = nn.Linear | nn.Conv2d  # some of timm's networks classify with a 1x1 convolution

TOO_WIDE = 3  # times the standard deviation that PyTorch gives a layer; others of timm's networks lie below 1.1


def classifier_name(model: nn.Module) -> str:
    """The path of the classifier layer: what `get_classifier()` returns (timm), else `head`, else the last nn.Linear.

    "Last" is the order of registration, in practice the order of `__init__`. A network of one's own with another order
    calls the layer `head`, or defines `get_classifier()`.
    """
    get_classifier = getattr(model, "get_classifier", None)
    layer = get_classifier() if callable(get_classifier) else getattr(model, "head", None)
    if isinstance(layer, nn.Linear | nn.Conv2d):
        for path, module in model.named_modules():
            if module is layer:
                return path
    elif not callable(get_classifier):
        linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
        if linear:
            return linear[-1]
    raise ValueError(
        f"no classifier layer found in {type(model).__name__}: name its last nn.Linear `head`, "
        "or define get_classifier() to return it."
    )


def classifier_head(model: nn.Module) -> Classifier:
    """The layer that turns features into scores, by the rule of `classifier_name`."""
    layer = model.get_submodule(classifier_name(model))
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    return layer


def narrow_classifier(model: nn.Module) -> None:
    """Scale a fresh classifier that was drawn far wider than `reset_classifier` draws it down to that range.

    timm's EfficientNets, MobileNets and their like draw it from U(-1/sqrt(outputs), 1/sqrt(outputs)): with one output
    raw scores begin at about ±6, and hundreds of steps go by before they rank anything.
    """
    try:
        layer = classifier_head(model)
    except ValueError:  # networks with two, or none
        return
    bound = _bound(layer)
    if not layer.weight.is_meta and layer.weight.std() > TOO_WIDE * bound / math.sqrt(3):
        with torch.no_grad():
            layer.weight.mul_(bound / layer.weight.abs().max())


def _bound(layer: Classifier) -> float:
    return 1 / math.sqrt(layer.weight[0].numel())


def reset_classifier(model: nn.Module, *, seed: int) -> None:
    """Draw the classifier layer anew, weights and bias from U(-1/sqrt(fan_in), 1/sqrt(fan_in)); nothing else changes.

    The numbers come from a generator of its own, on the CPU in float32: the same for a seed whatever the device and
    the machine, and the global generator is not touched. The parameters stay the same objects: an optimiser that
    holds them still does, though momentum or Adam's moments of the old layer are better forgotten.
    """
    layer = classifier_head(model)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    bound = _bound(layer)

    def draw(parameter: Tensor) -> None:
        fresh = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        parameter.copy_(fresh.uniform_(-bound, bound, generator=generator))

    with torch.no_grad():
        draw(layer.weight)
        if layer.bias is not None:
            draw(layer.bias)
