"""Batch normalisation with activation of several runs at once, each by its own moments.

In bfloat16 on a GPU it is one kernel where a run has few pixels and two where it has many, and so is its backward
pass; elsewhere plain torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from deepauc.kernels.stacked import rows as stacked_rows
from deepauc.kernels.stacked.rows import images_of, row_distance, rows_apart, rows_of

Activation = Literal["", "relu", "elu"]  # ELU with alpha 1
CODES: dict[str, int] = {"": 0, "relu": 1, "elu": 2}

WHOLE = 512  # pixels of a run that one program takes at once
TILE = 4096  # numbers a program has in hand at once
PROGRAMS = 1024  # aimed at, over runs, channels and pixels
MOST_PROGRAMS = 32  # a run's pixels are divided among


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Batch normalisation and activation. All tensors are (R, C); the running mean and variance are moved in place."""

    weight: Tensor
    bias: Tensor
    running: tuple[Tensor, Tensor]
    momentum: float
    eps: float
    activation: Activation


def norm_act(x: Tensor, norm: Norm) -> Tensor:
    """Batch normalisation of x (R * B, C, ...) by each run's own moments, then the activation."""
    rows = rows_of(x, norm.weight.shape[0])
    if stacked_rows.takes(x):
        y: Tensor = _NormAct.apply(rows.to(stacked_rows.HALF), norm.weight, norm.bias, norm)
    else:
        y = plain_norm_act(rows, norm)
    return images_of(y, (x.shape[0], *x.shape[2:]))


def plain_norm_act(rows: Tensor, norm: Norm) -> Tensor:
    """The same of x (R, pixels, C) in plain torch."""
    variance, mean = torch.var_mean(rows.float(), dim=1, correction=0, keepdim=True)
    pixels = rows.shape[1]
    with torch.no_grad():
        norm.running[0].lerp_(mean.squeeze(1), norm.momentum)
        norm.running[1].lerp_(variance.squeeze(1) * (pixels / max(pixels - 1, 1)), norm.momentum)
    y = (rows - mean) * (variance + norm.eps).rsqrt() * norm.weight.unsqueeze(1) + norm.bias.unsqueeze(1)
    y = y.to(rows.dtype)
    return {"": lambda z: z, "relu": F.relu, "elu": F.elu}[norm.activation](y)


class _NormAct(torch.autograd.Function):
    """The kernels; backward finds the normalised x and what went into the activation again from x."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, _, _, ctx.norm = inputs
        x = rows_apart(x)
        y, mean, rstd = norm_act_rows(x, ctx.norm)
        ctx.save_for_backward(x, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, mean, rstd = ctx.saved_tensors
        dx, dweight, dbias = norm_act_gradients(gradients[0], x, ctx.norm, mean, rstd)
        return dx, dweight, dbias, None


@dataclass(frozen=True)
class _Blocks:
    """How the pixels and channels of each run are divided: pixels and channels a tile, tiles a program, the grid."""

    pixels: int
    channels: int
    tiles: int
    programs: int
    columns: int

    @classmethod
    def of(cls, x: Tensor) -> _Blocks:
        runs, pixels, channels = x.shape
        if pixels <= WHOLE:
            high = max(16, _power_of_two(pixels))
            wide = max(16, min(32, TILE // high))
            return cls(high, wide, 1, 1, -(-channels // wide))
        wide = 64 if channels % 64 == 0 else 32
        high = TILE // wide
        columns, tiles = -(-channels // wide), -(-pixels // high)
        wanted = max(1, min(MOST_PROGRAMS, tiles, -(-PROGRAMS // (columns * runs))))
        each = -(-tiles // wanted)
        return cls(high, wide, each, -(-tiles // each), columns)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def norm_act_rows(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """The result of x (R, pixels, C), and for the backward pass mean and 1 / sqrt(variance + eps), (R, C)."""
    from deepauc.kernels.stacked.kernel import norm_apply_kernel, norm_moments_kernel, norm_whole_kernel

    runs, pixels, channels = x.shape
    how = _Blocks.of(x)
    y = x.new_empty(x.shape)
    mean, rstd = x.new_empty(2, runs, channels, dtype=torch.float32)
    weights = (norm.weight, norm.bias, *norm.running, y, mean, rstd)
    runs_apart = norm.weight.stride(0), norm.running[0].stride(0)
    sizes = (pixels, channels, row_distance(x), *runs_apart, norm.momentum, norm.eps)
    act = CODES[norm.activation]
    block = {"BLOCK_P": how.pixels, "BLOCK_C": how.channels}
    if pixels <= WHOLE:
        norm_whole_kernel[(how.columns, runs)](x, *weights, *sizes, ACT=act, **block, num_warps=_warps(how))
        return y, mean, rstd
    moments = x.new_empty(runs, how.programs, 2, channels, dtype=torch.float32)
    grid = (how.programs, how.columns, runs)
    norm_moments_kernel[grid](x, moments, pixels, channels, row_distance(x), how.tiles, **block, num_warps=4)
    norm_apply_kernel[grid](
        x, moments, *weights, *sizes, how.tiles, how.programs,
        ACT=act, PROGRAMS=MOST_PROGRAMS, **block, num_warps=4,
    )  # fmt: skip
    return y, mean, rstd


def norm_act_gradients(
    dy: Tensor, x: Tensor, norm: Norm, mean: Tensor, rstd: Tensor, *, onto: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias; onto: what the gradient of x is added to, in place."""
    from deepauc.kernels.stacked.kernel import norm_gradient_kernel, norm_sums_kernel, norm_whole_gradient_kernel

    dy = rows_apart(dy)
    runs, pixels, channels = x.shape
    how = _Blocks.of(x)
    dx = x.new_empty(x.shape) if onto is None else onto
    dweight, dbias = x.new_empty(2, runs, channels, dtype=torch.float32)
    given = (dy, x, norm.weight, norm.bias, mean, rstd)
    sizes = (pixels, channels, row_distance(dy), row_distance(x), norm.weight.stride(0))
    to = {"ADD": onto is not None}
    block = {"ACT": CODES[norm.activation], "BLOCK_P": how.pixels, "BLOCK_C": how.channels}
    if pixels <= WHOLE:
        norm_whole_gradient_kernel[(how.columns, runs)](
            *given, dx, dweight, dbias, *sizes, row_distance(dx), **to, **block, num_warps=_warps(how)
        )
        return dx, dweight, dbias
    sums = x.new_empty(runs, how.programs, 2, channels, dtype=torch.float32)
    grid = (how.programs, how.columns, runs)
    norm_sums_kernel[grid](*given, sums, *sizes, how.tiles, **block, num_warps=4)
    norm_gradient_kernel[grid](
        *given, sums, dx, dweight, dbias, *sizes, row_distance(dx), how.tiles, how.programs,
        PROGRAMS=MOST_PROGRAMS, **to, **block, num_warps=4,
    )  # fmt: skip
    return dx, dweight, dbias


def _warps(how: _Blocks) -> int:
    return 8 if how.pixels * how.channels > TILE else 4
