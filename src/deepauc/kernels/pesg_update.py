"""The arithmetic of a PESG step in torch operations: on a CPU, and wherever the kernel of `pesg_fused` is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 1 << 18  # numbers in the parameters of a chunk: its five arrays then fit into a CPU's cache


class Rates(NamedTuple):
    """The options of a parameter group."""

    lr: float | Tensor
    gamma: float
    weight_decay: float
    momentum: float
    clip_value: float | None = None


class Primal(NamedTuple):
    """A parameter v with its gradient and state; reference and drift = sum of (v - v_ref) come with gamma > 0."""

    value: Tensor
    gradient: Tensor | None
    reference: Tensor | None
    drift: Tensor | None
    momentum: Tensor | None


def update(primal: Sequence[Primal], rates: Rates) -> None:
    """d = clip(g) + gamma (v - v_ref) + weight_decay v; buf = momentum buf + d; v <- v - lr buf; drift += v - v_ref.

    Tensors together, since calls cost more than arithmetic on small ones; on a CPU a chunk after the other, so that
    each stays in the cache for all its operations.
    """
    first = primal[0].value
    on_cpu, full = first.device.type == "cpu", first.dtype in (torch.float32, torch.float64)
    if on_cpu and not float(rates.lr) * rates.gamma < 0.5:
        full = False  # `_update_on_cpu` divides by 1 - lr gamma
    together: list[Primal] = []
    for item in primal:
        if full and item.gradient is not None and _one_layout(item):
            together.append(item)
        else:
            _update_one(item, rates)
    if together and on_cpu:
        for chunk in _chunks(together):
            _update_on_cpu(chunk, rates)
    elif together:
        _update_together(together, rates)


def same_dense_layout(value: Tensor, other: Tensor) -> bool:
    """Element k of the memory means the same in both, and there are no gaps (the reference follows the value)."""
    dense = value.is_contiguous() or (value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last))
    strides = zip(value.shape, value.stride(), other.stride(), strict=True)
    return dense and all(size == 1 or mine == theirs for size, mine, theirs in strides)


def _one_layout(item: Primal) -> bool:
    """Whether all its tensors have the value's layout: torch's fused kernel for the CPU goes by memory alone."""
    value, gradient, reference, _, momentum = item  # the drift is made with the reference
    if value.is_contiguous():  # the usual case
        return (
            (gradient is None or gradient.is_contiguous())
            and (reference is None or reference.is_contiguous())
            and (momentum is None or momentum.is_contiguous())
        )
    return all(other is None or same_dense_layout(value, other) for other in item)


def _chunks(items: Sequence[Primal]) -> Iterator[Sequence[Primal]]:
    start = size = 0
    for number, item in enumerate(items):
        count = item.value.numel()
        if size and size + count > CHUNK:
            yield items[start:number]
            start, size = number, 0
        size += count
    yield items[start:]


def _update_one(item: Primal, rates: Rates) -> None:
    value, gradient, reference, drift, momentum = item
    half = value.dtype in (torch.bfloat16, torch.float16)
    v = value.float() if half else value
    if gradient is not None:
        d = gradient.to(v.dtype)
        if rates.clip_value is not None:
            d = d.clamp(-rates.clip_value, rates.clip_value)
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


def _update_on_cpu(items: Sequence[Primal], rates: Rates) -> None:
    """`_update_one` for many tensors of full precision, all with a gradient, in place and in as few passes as can be.

    Without momentum v - lr (g + weight_decay v + gamma (v - v_ref)) is u + lr gamma (v_ref - u) with
    u = v - lr / (1 - lr gamma) (g + weight_decay v); with momentum the pull's -gamma v_ref goes into the buffer first.
    """
    v, d, references, drifts, momenta = (list(column) for column in zip(*items, strict=True))
    lr, gamma, decay, momentum = float(rates.lr), rates.gamma, rates.weight_decay, rates.momentum
    if rates.clip_value is not None:
        d = _clipped(d, rates.clip_value)
    if momentum:
        if gamma:
            _fused_sgd(momenta, references, lr=gamma / momentum)
        _fused_sgd(v, d, momenta, lr=lr, decay=gamma + decay, momentum=momentum)
    else:
        _fused_sgd(v, d, lr=lr / (1 - lr * gamma), decay=decay)
        if gamma:
            _fused_sgd(v, references, lr=-lr * gamma, decay=-1.0)
    if gamma:
        _fused_sgd(drifts, v, lr=-1.0)
        _fused_sgd(drifts, references, lr=1.0)


def _fused_sgd(
    v: list[Tensor],
    d: list[Tensor],
    momenta: Sequence[Tensor] = (),
    *,
    lr: float,
    decay: float = 0.0,
    momentum: float = 0.0,
) -> None:
    """v <- v - lr (d + decay v) by torch's own kernel: on a CPU a third of the cost of other calls for each tensor."""
    torch._fused_sgd_(
        v,
        d,
        list(momenta),
        lr=lr,
        weight_decay=decay,
        momentum=momentum,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _update_together(items: Sequence[Primal], rates: Rates) -> None:
    """`_update_one` for many tensors of one type, all with a gradient: the same operations, a call each for all."""
    v, d, reference, drift, momentum = (list(column) for column in zip(*items, strict=True))
    if rates.clip_value is not None:
        d = _clipped(d, rates.clip_value)
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


def _clipped(gradients: list[Tensor], limit: float) -> list[Tensor]:
    return list(torch._foreach_clamp_max(torch._foreach_clamp_min(gradients, -limit), limit))


def descend(value: Tensor, direction: Tensor, lr: float | Tensor) -> None:
    """value <- value - lr direction, in place; a learning rate on the device is not waited for."""
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        value.addcmul_(direction, lr.to(value.dtype), value=-1)
    else:
        value.add_(direction, alpha=-float(lr))
