"""torch's own optimizers as frozen specs; the objective's parameters, if it has any, are trained along.

decay_norms, of each: whether weight decay acts on normalisation parameters and biases too, as torch's does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn


class ClippedSGD(torch.optim.SGD):
    """torch.optim.SGD on gradients whose every element is first clipped to +-clip_value, before decay and momentum."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        clip_value: float,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        self.defaults["clip_value"] = clip_value  # which a copy and a pickle keep

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        limit = self.defaults["clip_value"]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_clamp_min_(gradients, -limit)
            torch._foreach_clamp_max_(gradients, limit)
        super().step()
        return loss


def require_rates(options: Mapping[str, Any]) -> None:
    """ValueError unless an optimizer can work with those of its options that are rates, or shares of what it keeps."""
    for name in ("lr", "gamma", "weight_decay"):
        if not 0 <= float(options.get(name, 0)) < math.inf:
            raise ValueError(f"{name} must be finite and not negative, not {options[name]}.")
    if not 0 <= options.get("momentum", 0) < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, not {options['momentum']}.")
    if not all(0 <= beta < 1 for beta in options.get("betas", ())):
        raise ValueError(f"betas must be at least 0 and below 1, not {options['betas']}.")


@dataclass(frozen=True, kw_only=True)
class SGDSpec:
    """torch.optim.SGD.

    Args:
        lr: Learning rate.
        momentum: Momentum.
        weight_decay: Weight decay of the network; a, b and alpha have none.
        nesterov: Nesterov's form of the momentum.
        clip_value: Each element of the gradient is first clipped to +-clip_value; None does not clip.
        decay_norms: Whether normalisation parameters and biases are decayed too.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_value: float | None = None
    decay_norms: bool = True

    def __post_init__(self) -> None:
        require_rates(vars(self))
        if self.clip_value is not None and not self.clip_value > 0:
            raise ValueError(f"clip_value must be positive, or None for no clipping, not {self.clip_value}.")

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer:
        groups = _groups(parameters, objective, decay_norms=self.decay_norms)
        options: dict[str, Any] = {
            "lr": self.lr,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "nesterov": self.nesterov,
        }
        if self.clip_value is None:
            return torch.optim.SGD(groups, **options)
        return ClippedSGD(groups, clip_value=self.clip_value, **options)


@dataclass(frozen=True, kw_only=True)
class AdamSpec:
    """torch.optim.Adam; weight decay is added to the gradient.

    Args:
        lr: Learning rate.
        betas: Decay of the averages of the gradient and of its square.
        weight_decay: Weight decay of the network; a, b and alpha have none.
        decay_norms: Whether normalisation parameters and biases are decayed too.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    decay_norms: bool = True
    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam

    def __post_init__(self) -> None:
        require_rates(vars(self))

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer:
        groups = _groups(parameters, objective, decay_norms=self.decay_norms)
        return self.kind(groups, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class AdamWSpec(AdamSpec):
    """torch.optim.AdamW: `AdamSpec`, but weight decay acts on the weights themselves."""

    weight_decay: float = 0.01
    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.AdamW


def without_norms(parameters: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(weights, the rest): normalisation parameters and biases have one axis, the weights of a layer two or more."""
    weights: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in parameters:
        (weights if parameter.ndim > 1 else rest).append(parameter)
    return weights, rest


def _groups(parameters: Iterable[nn.Parameter], objective: nn.Module, *, decay_norms: bool) -> list[dict[str, object]]:
    """Network and objective; a, b and alpha are estimates, not weights, so no decay pulls them to 0."""
    decayed, undecayed = (list(parameters), []) if decay_norms else without_norms(parameters)
    undecayed += objective.parameters()
    groups: list[dict[str, object]] = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
