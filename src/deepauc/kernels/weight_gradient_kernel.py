"""Triton kernels of the gradient of a small convolution's weight; `small_conv_kernel` says how pixels are grouped."""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradient_kernel(  # type: ignore[no-untyped-def]
    x,
    dy,
    sums,
    groups,
    height: tl.constexpr,
    width: tl.constexpr,
    in_height: tl.constexpr,
    in_width: tl.constexpr,
    tiles_each,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    ALL: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """sums[program, r, k, j] = sum over this program's groups m of x[under m in row r, k] dy[m, j].

    ALL: a program does all three rows of taps and reads dy once, for few channels; else program (p, r) does row r.
    """
    r = 1 if ALL else tl.program_id(1)
    k = tl.arange(0, ROW)
    j = tl.arange(0, GROUP * OUT)
    total = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    top = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    bottom = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each, num_stages=STAGES):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        line = m // width
        h = (line % height) * STRIDE + r - 1
        w = (m % width) * (GROUP * STRIDE) - 1
        under = ((line // height) * in_height + h) * in_width + w
        ww = w[:, None] + (k // IN)[None, :]
        there = (m < groups)[:, None] & (k < (GROUP * STRIDE - STRIDE + 3) * IN)[None, :] & (ww >= 0) & (ww < in_width)
        piece = x + under[:, None] * IN + k[None, :]
        g = tl.load(dy + m[:, None] * (GROUP * OUT) + j[None, :], mask=(m < groups)[:, None], other=0.0)
        here = tl.load(piece, mask=there & ((h >= 0) & (h < in_height))[:, None], other=0.0)
        if ALL:
            above = tl.load(piece - in_width * IN, mask=there & (h > 0)[:, None], other=0.0)
            below = tl.load(piece + in_width * IN, mask=there & (h < in_height - 1)[:, None], other=0.0)
            top = tl.dot(tl.trans(above), g, top)
            bottom = tl.dot(tl.trans(below), g, bottom)
        total = tl.dot(tl.trans(here), g, total)
    s = (k // IN)[:, None] - (j // OUT)[None, :] * STRIDE
    used = (s >= 0) & (s < 3)  # a quarter is not, and nobody reads it
    to = sums + ((tl.program_id(0) * 3 + r) * ROW + k[:, None]) * (GROUP * OUT) + j[None, :]
    tl.store(to, total, mask=used)
    if ALL:
        tl.store(to - ROW * GROUP * OUT, top, mask=used)
        tl.store(to + ROW * GROUP * OUT, bottom, mask=used)


@triton.jit  # type: ignore[untyped-decorator]
def sum_programs_kernel(  # type: ignore[no-untyped-def]
    sums,
    gradient,
    programs,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """gradient[o, i, r, s] = sum over programs and a group's pixels of what belongs there, always in the same order."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o = e % OUT
    i = (e // OUT) % IN
    s = (e // (OUT * IN)) % 3
    r = e // (OUT * IN * 3)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, programs, AT_ONCE):
        p = first + tl.arange(0, AT_ONCE)
        there = (p < programs)[:, None] & (e < 9 * IN * OUT)[None, :]
        for pixel in tl.static_range(GROUP):
            at = (r * ROW + (s + pixel * STRIDE) * IN + i) * (GROUP * OUT) + pixel * OUT + o
            found = tl.load(sums + p[:, None] * (3 * ROW * GROUP * OUT) + at[None, :], mask=there, other=0.0)
            total += tl.sum(found, axis=0)
    to = gradient + o * stride_out + i * stride_in + r * stride_r + s * stride_s
    tl.store(to, total.to(gradient.dtype.element_ty), mask=e < 9 * IN * OUT)


@triton.jit  # type: ignore[untyped-decorator]
def add_programs_kernel(  # type: ignore[no-untyped-def]
    sums, gradient, programs, length, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr
):
    """gradient[e] = sum over programs of sums[program, e], always in the same order."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, programs, AT_ONCE):
        p = first + tl.arange(0, AT_ONCE)
        there = (p < programs)[:, None] & (e < length)[None, :]
        total += tl.sum(tl.load(sums + p[:, None] * length + e[None, :], mask=there, other=0.0), axis=0)
    tl.store(gradient + e, total.to(gradient.dtype.element_ty), mask=e < length)
