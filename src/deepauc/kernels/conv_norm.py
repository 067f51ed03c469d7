"""Convolution, batch normalisation, shortcut, activation: as modules, or on a GPU with fewer bytes and launches.

The moments are taken where a convolution writes its result. A network of such layers can also delay each norm and
activation until the next convolution (`Delayed`): then one function does both, and on its way back the convolution's
kernel also goes through the activation, adds the shortcut's gradient and takes the norm's sums. Of 26 times that the
backward pass of a residual block reads or writes an activation 18 are left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepauc.kernels.norm_gradient import norm_gradients, norm_sums
from deepauc.kernels.small_conv import (
    SmallConv2d,
    join_moments,
    small_conv_norm_gradient,
    small_conv_weight_gradient,
    small_conv_with_moments,
)

SUMS_IN_CONV = True  # whether `conv_norm` delays


class Delayed(NamedTuple):
    """act(weight (y - mean) rstd + bias + shortcut), yet to be computed; mean and rstd are y's own."""

    y: Tensor
    mean: Tensor
    rstd: Tensor
    weight: Tensor
    bias: Tensor
    shortcut: Tensor | None
    elu: bool


def conv_norm_act(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, x: Tensor, shortcut: Tensor | None = None
) -> Tensor:
    """act(norm(conv(x)) + shortcut); training with a `SmallConv2d` on a GPU takes the kernels."""
    if fits(conv, norm, act, x):
        y, moments = small_conv_with_moments(x.to(torch.bfloat16), conv.weight, conv.stride[0])
        return activated(_delayed(conv, norm, act, y, moments, shortcut))
    out = norm(conv(x))
    found: Tensor = act(out if shortcut is None else out + shortcut)
    return found


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, x: Tensor) -> Tensor | Delayed:
    """act(norm(conv(x))), delayed where the kernels are for it."""
    if SUMS_IN_CONV and fits(conv, norm, act, x):
        y, moments = small_conv_with_moments(x.to(torch.bfloat16), conv.weight, conv.stride[0])
        return _delayed(conv, norm, act, y, moments, None)
    return conv_norm_act(conv, norm, act, x)


def delayed_conv_norm(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, x: Delayed, shortcut: Tensor | None = None
) -> Delayed:
    """act(norm(conv(x)) + shortcut), for layers that `fits`."""
    y, moments = _ActConv.apply(*x, conv.weight, conv.stride[0], False)
    return _delayed(conv, norm, act, y, moments, shortcut)


def delayed_conv_norm_and_input(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, x: Delayed
) -> tuple[Delayed, Tensor]:
    """The same without a shortcut, and x, for a shortcut that begins there."""
    y, moments, computed = _ActConv.apply(*x, conv.weight, conv.stride[0], True)
    return _delayed(conv, norm, act, y, moments, None), computed


def activated(x: Tensor | Delayed) -> Tensor:
    """Delayed or not, computed."""
    if isinstance(x, Tensor):
        return x
    found: Tensor = _Act.apply(*x)
    return found


def fits(conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, x: Tensor) -> bool:
    """Whether the kernels do this layer."""
    plain = norm.training and norm.affine and norm.running_mean is not None and norm.momentum is not None
    known = type(act) is nn.ReLU or (type(act) is nn.ELU and act.alpha == 1)
    return isinstance(conv, SmallConv2d) and plain and known and conv.takes(x)


def _delayed(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, y: Tensor, moments: Tensor, shortcut: Tensor | None
) -> Delayed:
    """Of a convolution's result and its programs' moments; moves the running mean and variance."""
    running = norm.running_mean, norm.running_var, norm.momentum
    mean, rstd = join_moments(moments.detach(), y.shape, conv.in_channels, conv.stride[0], *running, norm.eps)
    return Delayed(y, mean, rstd, norm.weight, norm.bias, shortcut, isinstance(act, nn.ELU))


def _computed(x: Delayed) -> Tensor:
    factor = x.weight * x.rstd
    out = x.y.float() * factor.reshape(1, -1, 1, 1) + (x.bias - x.mean * factor).reshape(1, -1, 1, 1)
    if x.shortcut is not None:
        out = out + x.shortcut
    return (nn.functional.elu(out) if x.elu else nn.functional.relu(out)).to(x.y.dtype)


class _Act(torch.autograd.Function):
    """A delayed norm and activation, with the gradient that knows mean and rstd to be y's own."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x = Delayed(*inputs)
        out = _computed(x)
        ctx.save_for_backward(out, *x[:5])
        ctx.elu, ctx.shortcut = x.elu, x.shortcut is not None
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        out, y, mean, rstd, weight, bias = ctx.saved_tensors
        norm = (out if ctx.shortcut else None, y, mean, rstd, weight, bias, ctx.elu)
        gradient, sums = norm_sums(gradients[0], *norm)
        dy, dweight, dbias = norm_gradients(gradient, y, mean, rstd, weight, sums)
        return dy, None, None, dweight, dbias, gradient if ctx.shortcut else None, None


class _ActConv(torch.autograd.Function):
    """(convolution of a delayed norm and activation, its programs' moments[, the convolution's input])."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        x, (conv_weight, stride, with_input) = Delayed(*inputs[:7]), inputs[7:]
        out = _computed(x)
        result, moments = small_conv_with_moments(out, conv_weight, stride)
        ctx.save_for_backward(out, *x[:5], conv_weight)
        ctx.elu, ctx.stride, ctx.shortcut = x.elu, stride, x.shortcut is not None
        return (result, moments, out) if with_input else (result, moments)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """The moments are looked at, not differentiated."""
        dresult, dout = gradients[0], gradients[2] if len(gradients) > 2 else None
        out, y, mean, rstd, weight, bias, conv_weight = ctx.saved_tensors
        dconv = small_conv_weight_gradient(out, dresult, conv_weight, ctx.stride)
        norm = (out if ctx.shortcut else None, y, mean, rstd, weight, bias, ctx.elu)
        gradient, sums = small_conv_norm_gradient(dresult, conv_weight, ctx.stride, dout, *norm)
        dy, dweight, dbias = norm_gradients(gradient, y, mean, rstd, weight, sums)
        return dy, None, None, dweight, dbias, gradient if ctx.shortcut else None, None, dconv, None, None
