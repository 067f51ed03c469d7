"""Batch normalisation over the batches of all ranks together, whatever module asks for it.

torch's SyncBatchNorm replaces modules, which would drop the activation inside timm's BatchNormAct2d, and is for GPUs
only. Here the modules stay: inside the block every call of F.batch_norm in training mode takes global statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Exchange(Protocol):
    """What is asked of the ranks."""

    def add_up(self, values: Tensor, what: str) -> None: ...


class GlobalBatchNorm(TorchFunctionMode):
    """A block in which batch normalisation has global statistics."""

    def __init__(self, ranks: Exchange) -> None:
        super().__init__()
        self._ranks = ranks

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """F.batch_norm's signature and meaning."""
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        mean, square, count = global_moments(x.detach(), self._ranks)
        variance = square / count
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((square / (count - 1)).to(running_var.dtype), momentum)
        normed: Tensor = _Norm.apply(x, mean, (variance + eps).rsqrt(), count, weight, bias, self._ranks)
        return normed


def global_moments(x: Tensor, ranks: Exchange) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (C,), sum of squared deviations from it (C,), and count of x (N, C, ...) over all ranks.

    Each rank's own moments are taken about its own mean; they are joined as sums in double precision, where taking the
    square of the mean off again loses nothing. The message is as long for two ranks as for a thousand. The results are
    float32 at least.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, _all_but_channels(x), correction=0)
    count = mean.new_full((1,), x.numel() // x.shape[1], dtype=torch.float64)
    mean, square = mean.double(), variance.double() * count
    sums = torch.cat([mean * count, square + mean.square() * count, count])
    ranks.add_up(sums, "statistics")
    channels = len(mean)
    total = sums[-1]
    mean = sums[:channels] / total
    square = (sums[channels:-1] - mean.square() * total).clamp(min=0)
    return mean.to(wide.dtype), square.to(wide.dtype), total.to(wide.dtype)


class _Norm(torch.autograd.Function):
    """(x - mean) rstd weight + bias, with the gradient that knows mean and rstd to be those of all ranks' x.

    dx = rstd (g - mean(g) - x^ mean(g x^)), g = weight dy, means over all ranks. The gradients of weight and bias are
    this rank's terms: like all of the network's they are summed over the ranks afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        count: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        ranks: Exchange,
    ) -> Tensor:
        ctx.save_for_backward(x, mean, rstd, count, weight)
        ctx.ranks, ctx.has_bias = ranks, bias is not None
        scale = rstd if weight is None else rstd * weight
        y = (x - _wide(mean, x)) * _wide(scale, x)
        return (y if bias is None else y + _wide(bias, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rstd, count, weight = ctx.saved_tensors
        dy = gradients[0].to(mean.dtype)
        normed = (x - _wide(mean, x)) * _wide(rstd, x)
        own = torch.stack([dy.sum(_all_but_channels(x)), (dy * normed).sum(_all_but_channels(x))])
        whole = own.clone()
        ctx.ranks.add_up(whole, "statistics")
        dy_mean, dy_normed_mean = whole / count
        scale = rstd if weight is None else rstd * weight
        dx = _wide(scale, x) * (dy - _wide(dy_mean, x) - normed * _wide(dy_normed_mean, x))
        of_weight = None if weight is None else own[1].to(weight.dtype)
        of_bias = own[0].to(rstd.dtype) if ctx.has_bias else None
        return dx.to(x.dtype), None, None, None, of_weight, of_bias, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _wide(values: Tensor, x: Tensor) -> Tensor:
    """(C,) as (1, C, 1, ...)."""
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))
