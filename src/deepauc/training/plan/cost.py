"""What a network costs, counted and never measured: the same on every machine."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor, nn

from deepauc.models.build import ModelSpec, architecture, check_output

TRAINING_FACTOR = 3  # forward, gradient of the inputs, gradient of the weights


@lru_cache(maxsize=128)  # a plan asks several times of the same network
def multiply_adds(spec: ModelSpec, shape: tuple[int, ...]) -> int:
    """Multiply-adds of one forward pass over one input, (H, W, C) or (F,): convolutions and linear layers.

    The network is built without memory (torch's meta device), so the largest one costs no more than its Python.
    """
    total = 0

    def count(module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(module.weight, Tensor)
        total += output.numel() * prod(module.weight.shape[1:])

    with torch.device("meta"):
        model = architecture(spec).build(in_channels=shape[-1], num_outputs=1)
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(count)
        check_output(model, (shape[-1], *shape[:-1]), num_outputs=1)  # one forward pass
    return total
