"""torch's own optimizers as frozen specs; the objective's parameters, if it has any, are trained along."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class SGDSpec:
    """torch.optim.SGD."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            _groups(parameters, objective),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


@dataclass(frozen=True, kw_only=True)
class AdamSpec:
    """torch.optim.Adam; weight decay is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            _groups(parameters, objective), lr=self.lr, betas=self.betas, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, kw_only=True)
class AdamWSpec:
    """torch.optim.AdamW; weight decay acts on the weights themselves."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            _groups(parameters, objective), lr=self.lr, betas=self.betas, weight_decay=self.weight_decay
        )


def _groups(parameters: Iterable[nn.Parameter], objective: nn.Module) -> list[dict[str, object]]:
    """Network and objective; a, b and alpha are estimates, not weights, so no decay pulls them to 0."""
    own = list(objective.parameters())
    groups: list[dict[str, object]] = [{"params": list(parameters)}]
    return [*groups, {"params": own, "weight_decay": 0.0}] if own else groups
