"""Convolutions and linear layers of several runs at once, each run with weights of its own.

In bfloat16 on a GPU they are matrix products, batched over runs; the gradients of weights are float32 sums. A
convolution's taps come before the product, as columns of what each output sees, or after it, as sums of what each
input gives, whichever is smaller. Elsewhere: grouped convolutions of torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepauc.kernels.stacked import rows as stacked_rows
from deepauc.kernels.stacked.rows import images_of, row_distance, rows_apart, rows_of

TAPS_BLOCK = (32, 32)  # pixels, channels
SHORT_SUM = 2048  # rows of a weight's gradient that one product adds up: a program or two have all of a small weight
MOST_PIECES = 128  # of all runs


@dataclass(frozen=True)
class Taps:
    """A square convolution's kernel size, stride and padding."""

    kernel: int
    stride: int
    padding: int

    def out(self, size: int) -> int:
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


class _Product(torch.autograd.Function):
    """x (R, M, C) times the transpose of weight (R, N, C), in half precision too; its gradient is float32."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, _, half = inputs
        ctx.save_for_backward(x, half)
        return torch.bmm(x, half.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (dy,) = gradients
        x, half = ctx.saved_tensors
        dx = torch.bmm(dy, half) if ctx.needs_input_grad[0] else None
        return dx, precise_product(dy, x) if ctx.needs_input_grad[1] else None, None


def precise_product(a: Tensor, b: Tensor) -> Tensor:
    """The transpose of a (R, M, N) times b (R, M, C), in float32. A long sum is taken in pieces, in their order."""
    runs, rows, out = a.shape
    pieces = 1
    while rows % (2 * pieces) == 0 and rows >= 2 * pieces * SHORT_SUM and runs * 2 * pieces <= MOST_PIECES:
        pieces *= 2
    a, b = (t.reshape(runs * pieces, rows // pieces, -1) for t in (a, b))
    product = torch.bmm(a.mT, b) if a.dtype == torch.float32 else torch.bmm(a.mT, b, out_dtype=torch.float32)
    return product if pieces == 1 else product.reshape(runs, pieces, out, -1).sum(1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, half: Tensor | None) -> Tensor:
    """x (R * B, C) by weight (R, K, C) and bias (R, K) -> (R * B, K)."""
    runs = weight.shape[0]
    rows = x.reshape(runs, -1, x.shape[-1])
    if stacked_rows.takes(x):
        y: Tensor = _Product.apply(rows.to(stacked_rows.HALF), weight, halved(weight, half))
    else:
        y = torch.bmm(rows, weight.mT)
    if bias is not None:
        y = y + bias.unsqueeze(1)
    return y.reshape(*x.shape[:-1], weight.shape[1])


def halved(weight: Tensor, half: Tensor | None) -> Tensor:
    """The weight as the kernels take it."""
    return weight.detach().to(stacked_rows.HALF) if half is None else half


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, half: Tensor | None, taps: Taps) -> Tensor:
    """x (R * B, C, H, W) by weight (R, K, C, k, k) and bias (R, K) -> (R * B, K, H', W')."""
    runs, out = weight.shape[:2]
    if not stacked_rows.takes(x):
        return _grouped(x, weight, bias, taps)
    x = x.to(stacked_rows.HALF)
    n, _, h, w = x.shape
    high, wide = taps.out(h), taps.out(w)
    matrices = [t.permute(0, 1, 3, 4, 2) for t in (weight, halved(weight, half))]
    if taps.kernel == 1 and taps.padding == 0:
        if taps.stride > 1:
            x = x[:, :, :: taps.stride, :: taps.stride]
        y = _Product.apply(rows_of(x, runs), *(m.reshape(runs, out, -1) for m in matrices))
    elif h * w * out <= high * wide * x.shape[1]:  # the taps of the output are fewer than those of the input
        every = _Product.apply(rows_of(x, runs), *(m.reshape(runs, -1, x.shape[1]) for m in matrices))
        y = _Gather.apply(every, (n, h, w), taps)
    else:
        columns = _Spread.apply(rows_of(x, runs), (n, h, w), taps)
        y = _Product.apply(columns, *(m.reshape(runs, out, -1) for m in matrices))
    if bias is not None:
        y = y + bias.unsqueeze(1).to(y.dtype)
    return images_of(y, (n, high, wide))


def _grouped(x: Tensor, weight: Tensor, bias: Tensor | None, taps: Taps) -> Tensor:
    runs, out = weight.shape[:2]
    batch = x.shape[0] // runs
    side_by_side = x.reshape(runs, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
    flat = None if bias is None else bias.reshape(-1)
    y = F.conv2d(side_by_side, weight.flatten(0, 1), flat, taps.stride, taps.padding, groups=runs)
    return y.reshape(batch, runs, out, *y.shape[2:]).transpose(0, 1).flatten(0, 1)


class _Gather(torch.autograd.Function):
    """From every input pixel under every tap, (R, pixels, K k k), to the sums that are the outputs, (R, pixels', K)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        every, ctx.shape, ctx.taps = inputs
        return gathered(every, ctx.shape, ctx.taps, inverse=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        return spread(gradients[0], ctx.shape, ctx.taps, inverse=True), None, None


class _Spread(torch.autograd.Function):
    """From x (R, pixels, C) to what every output pixel sees, (R, pixels', k k C)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, ctx.shape, ctx.taps = inputs
        return spread(x, ctx.shape, ctx.taps, inverse=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        return gathered(gradients[0], ctx.shape, ctx.taps, inverse=True), None, None


def _maps(shape: tuple[int, int, int], taps: Taps, *, inverse: bool) -> tuple[int, int, int, int]:
    """Height and width of the map that is written, then of the one that is read; shape is the input's (N, H, W)."""
    _, h, w = shape
    out = taps.out(h), taps.out(w)
    return (h, w, *out) if inverse else (*out, h, w)


def spread(x: Tensor, shape: tuple[int, int, int], taps: Taps, *, inverse: bool) -> Tensor:
    """Columns ordered by channel, then tap, where inverse, as the products of `_Gather` are; else by tap, channel."""
    from deepauc.kernels.stacked.kernel import spread_kernel

    x = rows_apart(x)
    runs, channels = x.shape[0], x.shape[2]
    maps = _maps(shape, taps, inverse=inverse)
    rows, across = shape[0] * maps[0] * maps[1], channels * taps.kernel**2
    columns = x.new_empty(runs, rows // runs, across)
    block_p, block_c = TAPS_BLOCK
    spread_kernel[(-(-rows // block_p), -(-across // block_c))](
        x, columns, rows, *maps, row_distance(x), channels,
        KERNEL=taps.kernel, STRIDE=taps.stride, PADDING=taps.padding, INVERSE=inverse, TAPS_LAST=inverse,
        BLOCK_P=block_p, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return columns


def gathered(
    columns: Tensor, shape: tuple[int, int, int], taps: Taps, *, inverse: bool, to: Tensor | None = None
) -> Tensor:
    """The sums over taps, (R, pixels, channels); to: where to write them, its rows evenly apart."""
    from deepauc.kernels.stacked.kernel import gather_kernel

    columns = columns.contiguous()
    runs, channels = columns.shape[0], columns.shape[2] // taps.kernel**2
    maps = _maps(shape, taps, inverse=inverse)
    rows = shape[0] * maps[0] * maps[1]
    y = columns.new_empty(runs, rows // runs, channels) if to is None else to
    block_p, block_c = TAPS_BLOCK
    gather_kernel[(-(-rows // block_p), -(-channels // block_c))](
        columns, y, rows, *maps, row_distance(y), channels,
        KERNEL=taps.kernel, STRIDE=taps.stride, PADDING=taps.padding, INVERSE=inverse, TAPS_LAST=not inverse,
        BLOCK_P=block_p, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return y
