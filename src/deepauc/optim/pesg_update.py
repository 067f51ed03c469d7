"""The arithmetic of a PESG step on one parameter after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


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


def update_each(primal: Sequence[Primal], rates: Rates) -> None:
    """d = g + gamma (v - v_ref) + weight_decay v; buf = momentum buf + d; v <- v - lr buf; drift += v - v_ref.

    Tensor by tensor, so that one stays in the cache for all its operations.
    """
    for value, gradient, reference, drift, momentum in primal:
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


def descend(value: Tensor, direction: Tensor, lr: float | Tensor) -> None:
    """value <- value - lr direction, in place; a learning rate on the device is not waited for."""
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        value.addcmul_(direction, lr.to(value.dtype), value=-1)
    else:
        value.add_(direction, alpha=-float(lr))
