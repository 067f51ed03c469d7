"""Triton kernels of `small_conv`; imported only where a CUDA device (or Triton's interpreter) is to run them.

Images are NHWC, so the three pixels under a row of taps lie side by side in memory: 3 IN numbers in one piece, or 4 IN
under two neighbouring pixels. A tile of such pieces is one operand of a matrix product; three products, one for each
row of taps, make a 3x3 convolution. Two pixels at once (GROUP) read a third less and multiply by a matrix that is one
quarter zeros. ROW is the length of a piece, up to the next power of two. A program keeps the weights and goes through
several tiles. Pixel m of an (N, H, W) grid is (n H + h) W + w.
"""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253


@triton.jit  # type: ignore[untyped-decorator]
def conv_rows_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    moments,
    groups,
    height,
    width,
    in_height,
    in_width,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    tiles_each,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    FLIP: tl.constexpr,
    MOMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """y[m, o] = sum over r, s, i of x[pixel under tap (r, s) of m, i] weight[o, i, r, s]; FLIP turns the taps round.

    (height, width) is the grid of y in groups of GROUP pixels of a line. MOMENTS: also the mean of this program's part
    of y and the sum of squares around it, moments[program, 2, column].
    """
    k = tl.arange(0, ROW)
    j = tl.arange(0, GROUP * OUT)
    s = (k // IN)[:, None] - (j // OUT)[None, :] * STRIDE
    used = (s >= 0) & (s < 3)
    column = 2 - s if FLIP else s
    at = weight + (k % IN)[:, None] * stride_in + column * stride_s + (j % OUT)[None, :] * stride_out
    kind = x.dtype.element_ty
    top = tl.load(at + (2 * stride_r if FLIP else 0), mask=used, other=0.0).to(kind)
    middle = tl.load(at + stride_r, mask=used, other=0.0).to(kind)
    bottom = tl.load(at + (0 if FLIP else 2 * stride_r), mask=used, other=0.0).to(kind)
    first = tl.program_id(0) * tiles_each
    sums = tl.zeros((GROUP * OUT,), dtype=tl.float32)
    squares = tl.zeros((GROUP * OUT,), dtype=tl.float32)
    for tile in tl.range(first, first + tiles_each, num_stages=STAGES):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        line = m // width
        h = (line % height) * STRIDE
        w = (m % width) * (GROUP * STRIDE) - 1
        under = ((line // height) * in_height + h) * in_width + w
        ww = w[:, None] + (k // IN)[None, :]
        there = (m < groups)[:, None] & (k < (GROUP * STRIDE - STRIDE + 3) * IN)[None, :] & (ww >= 0) & (ww < in_width)
        piece = x + under[:, None] * IN + k[None, :]
        above = tl.load(piece - in_width * IN, mask=there & (h > 0)[:, None], other=0.0)
        here = tl.load(piece, mask=there, other=0.0)
        below = tl.load(piece + in_width * IN, mask=there & (h < in_height - 1)[:, None], other=0.0)
        total = tl.dot(above, top)
        total = tl.dot(here, middle, total)
        total = tl.dot(below, bottom, total)
        rounded = total.to(y.dtype.element_ty)
        tl.store(y + m[:, None] * (GROUP * OUT) + j[None, :], rounded, mask=(m < groups)[:, None])
        if MOMENTS:  # of the rounded values; they are 0 beyond the last group
            sums += tl.sum(rounded.to(tl.float32), axis=0)
            squares += tl.sum(rounded.to(tl.float32) * rounded.to(tl.float32), axis=0)
    if MOMENTS:
        mean = sums / tl.minimum(groups - first * BLOCK, tiles_each * BLOCK)
        to = moments + tl.program_id(0) * (2 * GROUP * OUT) + j
        tl.store(to, mean)
        tl.store(to + GROUP * OUT, squares - sums * mean)


@triton.jit  # type: ignore[untyped-decorator]
def conv_taps_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    moments,
    pixels,
    height,
    width,
    in_height,
    in_width,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    FLIP: tl.constexpr,
    MOMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The same tap by tap, for more channels than a row of taps should hold; FLIP is the transpose, strided or not."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    line = m // width
    h = line % height
    w = m % width
    image = (line // height) * in_height
    i = tl.arange(0, IN)
    o = tl.arange(0, OUT)
    at = weight + i[:, None] * stride_in + o[None, :] * stride_out
    total = tl.zeros((BLOCK, OUT), dtype=tl.float32)
    for tap in tl.range(9, num_stages=STAGES):
        r = tap // 3
        s = tap % 3
        if FLIP:
            up, left = h + 1 - r, w + 1 - s
            hh, ww = up // STRIDE, left // STRIDE
            there = (up >= 0) & (left >= 0) & (up % STRIDE == 0) & (left % STRIDE == 0)
        else:
            hh, ww = h * STRIDE + r - 1, w * STRIDE + s - 1
            there = (hh >= 0) & (ww >= 0)
        there = there & (m < pixels) & (hh < in_height) & (ww < in_width)
        a = tl.load(x + ((image + hh) * in_width + ww)[:, None] * IN + i[None, :], mask=there[:, None], other=0.0)
        b = tl.load(at + r * stride_r + s * stride_s)
        total = tl.dot(a, b.to(a.dtype), total)
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * OUT + o[None, :], rounded, mask=(m < pixels)[:, None])
    if MOMENTS:
        sums = tl.sum(rounded.to(tl.float32), axis=0)
        mean = sums / tl.minimum(pixels - tl.program_id(0) * BLOCK, BLOCK)
        to = moments + tl.program_id(0) * (2 * OUT) + o
        tl.store(to, mean)
        tl.store(to + OUT, tl.sum(rounded.to(tl.float32) * rounded.to(tl.float32), axis=0) - sums * mean)


@triton.jit  # type: ignore[untyped-decorator]
def join_moments_kernel(  # type: ignore[no-untyped-def]
    moments,
    mean,
    rstd,
    running_mean,
    running_variance,
    momentum,
    eps,
    groups,
    groups_each,
    programs,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Mean and 1 / deviation per channel from the moments of all programs (Chan et al. 1979), always in the same order.

    The running ones are moved as nn.BatchNorm2d does it.
    """
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, programs, AT_ONCE):
        p = first + tl.arange(0, AT_ONCE)
        count = tl.minimum(tl.maximum(groups - p * groups_each, 0), groups_each).to(tl.float32)[:, None]
        at = moments + (p * (2 * GROUP * OUT))[:, None] + o[None, :]
        for pixel in tl.static_range(GROUP):
            total += tl.sum(tl.load(at + pixel * OUT, mask=count > 0, other=0.0) * count, axis=0)
    centre = total / (groups * GROUP)
    around = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, programs, AT_ONCE):
        p = first + tl.arange(0, AT_ONCE)
        count = tl.minimum(tl.maximum(groups - p * groups_each, 0), groups_each).to(tl.float32)[:, None]
        at = moments + (p * (2 * GROUP * OUT))[:, None] + o[None, :]
        for pixel in tl.static_range(GROUP):
            off = tl.load(at + pixel * OUT, mask=count > 0, other=0.0) - centre[None, :]
            within = tl.load(at + (GROUP + pixel) * OUT, mask=count > 0, other=0.0)
            around += tl.sum(within + off * off * count, axis=0)
    tl.store(mean + o, centre)
    tl.store(rstd + o, 1 / tl.sqrt(around / (groups * GROUP) + eps))
    before = tl.load(running_mean + o)
    tl.store(running_mean + o, before + momentum * (centre - before))
    before = tl.load(running_variance + o)
    tl.store(running_variance + o, before + momentum * (around / (groups * GROUP - 1) - before))


@triton.jit  # type: ignore[untyped-decorator]
def transpose_by_two_kernel(  # type: ignore[no-untyped-def]
    dy,
    weight,
    dx,
    blocks,
    height,
    width,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The transpose of a convolution of stride 2, 2x2 pixels of dx at a time; (height, width) is the grid of dy.

    Block (h, w) of dx rests on dy at (h, w), (h, w+1), (h+1, w), (h+1, w+1): dx[2h + u, 2w + v] takes dy[h + q, w + t]
    times tap r = u + 1 - 2q, s = v + 1 - 2t. IN are the channels of dy, OUT those of dx.
    """
    k = tl.arange(0, 2 * IN)
    j = tl.arange(0, 4 * OUT)
    u = j // (2 * OUT)
    s = (j // OUT)[None, :] % 2 + 1 - 2 * (k // IN)[:, None]
    used = (s >= 0) & (s < 3)
    at = weight + (k % IN)[:, None] * stride_in + (j % OUT)[None, :] * stride_out + s * stride_s
    kind = dy.dtype.element_ty
    near = tl.load(at + (u + 1)[None, :] * stride_r, mask=used, other=0.0).to(kind)
    far = tl.load(at + (u - 1)[None, :] * stride_r, mask=used & (u == 1)[None, :], other=0.0).to(kind)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = (m // width) % height
    w = m % width
    there = (m < blocks)[:, None] & (w[:, None] + (k // IN)[None, :] < width)
    piece = dy + m[:, None] * IN + k[None, :]
    here = tl.load(piece, mask=there, other=0.0)
    below = tl.load(piece + width * IN, mask=there & (h < height - 1)[:, None], other=0.0)
    total = tl.dot(here, near)
    total = tl.dot(below, far, total)
    # Block m begins at pixel 4 width (m // width) + 2 (m % width) of dx; its second line lies 2 width pixels further.
    pixel = (4 * width * (m // width) + 2 * w)[:, None] + (u * 2 * width)[None, :]
    to = dx + pixel * OUT + (j % (2 * OUT))[None, :]
    tl.store(to, total.to(dx.dtype.element_ty), mask=(m < blocks)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradient_kernel(  # type: ignore[no-untyped-def]
    x,
    dy,
    sums,
    groups,
    height,
    width,
    in_height,
    in_width,
    tiles_each,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """sums[program, r, k, j] = sum over this program's groups m of x[under m in row r, k] dy[m, j].

    Program (p, r) of the grid does row r of the taps.
    """
    r = tl.program_id(1)
    k = tl.arange(0, ROW)
    j = tl.arange(0, GROUP * OUT)
    total = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each, num_stages=STAGES):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        line = m // width
        h = (line % height) * STRIDE + r - 1
        w = (m % width) * (GROUP * STRIDE) - 1
        under = ((line // height) * in_height + h) * in_width + w
        ww = w[:, None] + (k // IN)[None, :]
        row = (m < groups) & (h >= 0) & (h < in_height)
        there = row[:, None] & (k < (GROUP * STRIDE - STRIDE + 3) * IN)[None, :] & (ww >= 0) & (ww < in_width)
        a = tl.load(x + under[:, None] * IN + k[None, :], mask=there, other=0.0)
        g = tl.load(dy + m[:, None] * (GROUP * OUT) + j[None, :], mask=(m < groups)[:, None], other=0.0)
        total = tl.dot(tl.trans(a), g, total)
    to = sums + ((tl.program_id(0) * 3 + r) * ROW + k[:, None]) * (GROUP * OUT) + j[None, :]
    tl.store(to, total)


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradient_rows_kernel(  # type: ignore[no-untyped-def]
    x,
    dy,
    sums,
    groups,
    height,
    width,
    in_height,
    in_width,
    tiles_each,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUP: tl.constexpr,
    ROW: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The same with all three rows in one program, which reads dy once: for few channels."""
    k = tl.arange(0, ROW)
    j = tl.arange(0, GROUP * OUT)
    top = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    middle = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    bottom = tl.zeros((ROW, GROUP * OUT), dtype=tl.float32)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each, num_stages=STAGES):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        line = m // width
        h = (line % height) * STRIDE
        w = (m % width) * (GROUP * STRIDE) - 1
        under = ((line // height) * in_height + h) * in_width + w
        ww = w[:, None] + (k // IN)[None, :]
        there = (m < groups)[:, None] & (k < (GROUP * STRIDE - STRIDE + 3) * IN)[None, :] & (ww >= 0) & (ww < in_width)
        piece = x + under[:, None] * IN + k[None, :]
        g = tl.load(dy + m[:, None] * (GROUP * OUT) + j[None, :], mask=(m < groups)[:, None], other=0.0)
        above = tl.load(piece - in_width * IN, mask=there & (h > 0)[:, None], other=0.0)
        here = tl.load(piece, mask=there, other=0.0)
        below = tl.load(piece + in_width * IN, mask=there & (h < in_height - 1)[:, None], other=0.0)
        top = tl.dot(tl.trans(above), g, top)
        middle = tl.dot(tl.trans(here), g, middle)
        bottom = tl.dot(tl.trans(below), g, bottom)
    to = sums + (tl.program_id(0) * 3 * ROW + k[:, None]) * (GROUP * OUT) + j[None, :]
    tl.store(to, top)
    tl.store(to + ROW * GROUP * OUT, middle)
    tl.store(to + 2 * ROW * GROUP * OUT, bottom)


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
