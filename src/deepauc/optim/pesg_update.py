"""The arithmetic of a PESG step in torch operations: on a CPU, and wherever the kernel of `pesg_fused` is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SMALL = 1 << 16


class Rates(NamedTuple):
    """The options of a parameter group."""

    lr: float | Tensor
    gamma: float
    weight_decay: float
    momentum: float


class Primal(NamedTuple):
    """A parameter v with its gradient and state; reference and drift = sum of (v - v_ref) come with gamma > 0."""

    value: Tensor
    gradient: Tensor | None
    reference: Tensor | None
    drift: Tensor | None
    momentum: Tensor | None


def update(primal: Sequence[Primal], rates: Rates) -> None:
    """d = g + gamma (v - v_ref) + weight_decay v; buf = momentum buf + d; v <- v - lr buf; drift += v - v_ref.

    Small tensors together, since calls cost more than arithmetic there; on a CPU large ones one after the other, so
    that each stays in the cache for all its operations.
    """
    alone: list[Primal] = []
    together: list[Primal] = []
    for item in primal:
        fits = item.gradient is not None and item.gradient.dtype == item.value.dtype
        full = item.value.dtype in (torch.float32, torch.float64)
        small = item.value.numel() <= SMALL or item.value.device.type != "cpu"
        (together if fits and full and small else alone).append(item)
    for item in alone:
        _update_one(item, rates)
    if together:
        _update_together(together, rates)


def _update_one(item: Primal, rates: Rates) -> None:
    value, gradient, reference, drift, momentum = item
    half = value.dtype in (torch.bfloat16, torch.float16)
    v = value.float() if half else value
    if gradient is not None:
        d = gradient.to(v.dtype)
        if rates.gamma and reference is not None:
            pull = v - reference
            d = torch.add(d, pull, alpha=rates.gamma, out=pull)
        if rates.weight_decay:
            d = d.add(v, alpha=rates.weight_decay)
        if rates.momentum and momentum is not None:
            d = momentum.mul_(rates.momentum).add_(d)
        descend(v, d, rates.lr)
        if half:
            value.copy_(v)
            v = value.float()
    if rates.gamma and reference is not None and drift is not None:
        drift.add_(v).sub_(reference)


def _update_together(items: Sequence[Primal], rates: Rates) -> None:
    """`_update_one` for many tensors of one type, all with a gradient: the same operations, a call each for all."""
    v, d = [item.value for item in items], [item.gradient for item in items if item.gradient is not None]
    reference = [item.reference for item in items if item.reference is not None]
    drift = [item.drift for item in items if item.drift is not None]
    momentum = [item.momentum for item in items if item.momentum is not None]
    if rates.gamma:
        d = list(torch._foreach_add(d, torch._foreach_sub(v, reference), alpha=rates.gamma))
    if rates.weight_decay:
        d = list(torch._foreach_add(d, v, alpha=rates.weight_decay))
    if rates.momentum:
        torch._foreach_mul_(momentum, rates.momentum)
        torch._foreach_add_(momentum, d)
        d = momentum
    if isinstance(rates.lr, Tensor) and rates.lr.device.type != "cpu":
        torch._foreach_sub_(v, torch._foreach_mul(d, rates.lr.to(v[0].dtype)))
    else:
        torch._foreach_add_(v, d, alpha=-float(rates.lr))
    if rates.gamma:
        torch._foreach_add_(drift, v)
        torch._foreach_sub_(drift, reference)


def descend(value: Tensor, direction: Tensor, lr: float | Tensor) -> None:
    """value <- value - lr direction, in place; a learning rate on the device is not waited for."""
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        value.addcmul_(direction, lr.to(value.dtype), value=-1)
    else:
        value.add_(direction, alpha=-float(lr))
