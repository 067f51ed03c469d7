"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """average <- decay average + (1 - decay) weights after each step; buffers are the network's own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.average = [p.detach().float().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        weights = [p.detach().float() for p in model.parameters()]
        torch._foreach_lerp_(self.average, weights, 1 - self.decay)

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """The network with averaged weights inside the block, its own again after it."""
        own = [p.detach().clone() for p in model.parameters()]
        self.write_to(model)
        try:
            yield
        finally:
            _write(model, own)

    def write_to(self, model: nn.Module) -> None:
        """The averaged weights become the network's own."""
        _write(model, self.average)


@torch.no_grad()
def _write(model: nn.Module, weights: list[Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(weight)
