"""Convolution, batch normalisation, shortcut, activation: as modules, or on a GPU in a third of the launches.

The moments are taken where the convolution writes its result, and the backward pass of normalisation and activation is
two kernels. A step of ResNet20 then has 180 kernels instead of 280, which is what it costs when runs are packed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deepauc.models.small_conv import SmallConv2d, join_moments, pixels_a_program, small_conv_with_moments

TILE = 4096  # numbers a program has in hand at once
PROGRAMS = 128


def conv_norm_act(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module, x: Tensor, shortcut: Tensor | None = None
) -> Tensor:
    """act(norm(conv(x)) + shortcut); training with a `SmallConv2d` on a GPU takes the kernels."""
    if isinstance(conv, SmallConv2d) and norm.training and conv.takes(x) and _known(norm, act):
        y, moments = small_conv_with_moments(x.to(torch.bfloat16), conv.weight, conv.stride[0])
        pixels = y.numel() // y.shape[1]
        each = pixels_a_program(conv.in_channels, tuple(y.shape), conv.stride[0])
        running = norm.running_mean, norm.running_var, norm.momentum
        mean, rstd = join_moments(moments.detach(), pixels, each, *running, norm.eps)
        activated: Tensor = _NormAct.apply(y, mean, rstd, norm.weight, norm.bias, shortcut, isinstance(act, nn.ELU))
        return activated
    out = norm(conv(x))
    activated = act(out if shortcut is None else out + shortcut)
    return activated


def _known(norm: nn.BatchNorm2d, act: nn.Module) -> bool:
    """Whether the kernels do this normalisation and activation."""
    plain = norm.affine and norm.running_mean is not None and norm.momentum is not None
    return plain and (type(act) is nn.ReLU or (type(act) is nn.ELU and act.alpha == 1))


class _NormAct(torch.autograd.Function):
    """act((y - mean) rstd weight + bias + shortcut), with the gradient that knows mean and rstd to be y's own."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        y, mean, rstd, weight, bias, shortcut, elu = inputs
        scale = (weight * rstd).reshape(1, -1, 1, 1)
        shift = (bias - mean * weight * rstd).reshape(1, -1, 1, 1)
        out = y.float() * scale + shift
        if shortcut is not None:
            out = out + shortcut
        out = (nn.functional.elu(out) if elu else nn.functional.relu(out)).to(y.dtype)
        ctx.save_for_backward(out, y, mean, rstd, weight)
        ctx.elu, ctx.shortcut = elu, shortcut is not None
        activated: Tensor = out
        return activated

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        dy, dshortcut, dweight, dbias = norm_act_gradients(gradients[0], *ctx.saved_tensors, ctx.elu, ctx.shortcut)
        return dy, None, None, dweight, dbias, dshortcut if ctx.shortcut else None, None


@torch.library.custom_op("deepauc::norm_act_gradients", mutates_args=())
def norm_act_gradients(
    gradient: Tensor, out: Tensor, y: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, elu: bool, shortcut: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of y, the shortcut (empty where there is none), weight and bias."""
    from deepauc.models.norm_kernel import norm_gradient_kernel, norm_sums_kernel

    gradient, out, y = (t.contiguous(memory_format=torch.channels_last) for t in (gradient, out, y))
    channels = y.shape[1]
    pixels, block = y.numel() // channels, TILE // channels
    tiles = -(-pixels // block)
    each = -(-tiles // PROGRAMS)
    programs = -(-tiles // each)
    sums = torch.empty(programs, 2, channels, dtype=torch.float32, device=y.device)
    form = {"CHANNELS": channels, "ELU": elu, "BLOCK": block, "num_warps": 4}
    norm_sums_kernel[(programs,)](gradient, out, y, mean, rstd, sums, pixels, each, **form)
    dy, dshortcut, dweight, dbias = _shaped(y, weight, shortcut)
    norm_gradient_kernel[(tiles,)](
        gradient, out, y, mean, rstd, weight, sums, dy, dshortcut, dweight, dbias, pixels, programs,
        RESIDUAL=shortcut, PROGRAMS=1 << (programs - 1).bit_length(), **form,
    )  # fmt: skip
    return dy, dshortcut, dweight, dbias


def _shaped(y: Tensor, weight: Tensor, shortcut: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like = torch.empty_like(y, memory_format=torch.channels_last)
    dshortcut = torch.empty_like(like) if shortcut else y.new_empty(0)
    return like, dshortcut, torch.empty_like(weight), torch.empty_like(weight)


@norm_act_gradients.register_fake
def _(
    gradient: Tensor, out: Tensor, y: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, elu: bool, shortcut: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _shaped(y, weight, shortcut)
