"""Triton kernels of `small_conv`; imported only where a CUDA device (or Triton's interpreter) is to run them.

Images are NHWC. A pixel's number is m = (n H + h) W + w, so the pixel under tap (r, s) has number m + (r-1) W + (s-1).
"""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253


@triton.jit  # type: ignore[untyped-decorator]
def conv_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    pixels,
    height,
    width,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y[m, o] = sum over taps and i of x[m + tap, i] weight[o, i, tap]; FLIP turns the taps round (the transpose)."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = m < pixels
    w = m % width
    h = (m // width) % height
    i = tl.arange(0, IN)
    o = tl.arange(0, OUT)
    total = tl.zeros((BLOCK, OUT), dtype=tl.float32)
    for tap in tl.static_range(9):
        r = tap // 3
        s = tap % 3
        hh = h + (r - 1)
        ww = w + (s - 1)
        there = inside & (hh >= 0) & (hh < height) & (ww >= 0) & (ww < width)
        shifted = m + (r - 1) * width + (s - 1)
        a = tl.load(x + shifted[:, None] * IN + i[None, :], mask=there[:, None], other=0.0)
        at = (2 - r) * stride_r + (2 - s) * stride_s if FLIP else r * stride_r + s * stride_s
        b = tl.load(weight + i[:, None] * stride_in + o[None, :] * stride_out + at)
        total += tl.dot(a, b.to(a.dtype))
    tl.store(y + m[:, None] * OUT + o[None, :], total.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradient_kernel(  # type: ignore[no-untyped-def]
    x,
    dy,
    dweight,
    pixels,
    height,
    width,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    blocks_each,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dweight[o, i, r, s] += sum over this program's pixels of dy[m, o] x[m + tap, i], for one row r of taps."""
    r = tl.program_id(1)
    i = tl.arange(0, IN)
    o = tl.arange(0, OUT)
    left = tl.zeros((OUT, IN), dtype=tl.float32)
    middle = tl.zeros((OUT, IN), dtype=tl.float32)
    right = tl.zeros((OUT, IN), dtype=tl.float32)
    first = tl.program_id(0) * blocks_each
    for block in range(blocks_each):
        m = (first + block) * BLOCK + tl.arange(0, BLOCK)
        inside = m < pixels
        w = m % width
        hh = (m // width) % height + (r - 1)
        row = inside & (hh >= 0) & (hh < height)
        shifted = m + (r - 1) * width
        g = tl.load(dy + m[None, :] * OUT + o[:, None], mask=inside[None, :], other=0.0)
        at = x + shifted[:, None] * IN + i[None, :]
        left += tl.dot(g, tl.load(at - IN, mask=(row & (w > 0))[:, None], other=0.0))
        middle += tl.dot(g, tl.load(at, mask=row[:, None], other=0.0))
        right += tl.dot(g, tl.load(at + IN, mask=(row & (w < width - 1))[:, None], other=0.0))
    to = dweight + o[:, None] * stride_out + i[None, :] * stride_in + r * stride_r
    tl.atomic_add(to, left)
    tl.atomic_add(to + stride_s, middle)
    tl.atomic_add(to + 2 * stride_s, right)
