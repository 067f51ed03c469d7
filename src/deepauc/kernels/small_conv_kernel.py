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

from deepauc.kernels.norm_kernel import before_activation


@triton.jit  # type: ignore[untyped-decorator]
def store_sums(  # type: ignore[no-untyped-def]
    moments, sums, products, count, rstd, OUT: tl.constexpr, GROUP: tl.constexpr, NORM: tl.constexpr
):
    """This program's moments[2, column] from `count` values: mean, sum of squares around it; NORM: sums for a norm."""
    j = tl.arange(0, GROUP * OUT)
    to = moments + tl.program_id(0) * (2 * GROUP * OUT) + j
    if NORM:
        tl.store(to, sums)
        tl.store(to + GROUP * OUT, products * tl.load(rstd + j % OUT))
    else:
        mean = sums / count
        tl.store(to, mean)
        tl.store(to + GROUP * OUT, products - sums * mean)


@triton.jit  # type: ignore[untyped-decorator]
def conv_rows_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    moments,
    extra,
    activated,
    before,
    mean,
    rstd,
    gain,
    offset,
    groups,
    height: tl.constexpr,
    width: tl.constexpr,
    in_height: tl.constexpr,
    in_width: tl.constexpr,
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
    NORM: tl.constexpr,
    EXTRA: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ELU: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """y[m, o] = sum over r, s, i of x[pixel under tap (r, s) of m, i] weight[o, i, r, s]; FLIP turns the taps round.

    (height, width) is the grid of y in groups of GROUP pixels of a line. MOMENTS: also the mean of this program's part
    of y and the sum of squares around it, moments[program, 2, column]. NORM: y is the gradient of an activation; it
    goes on to that before the activation, and moments are this program's sums for the norm (`before_activation`).
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
    products = tl.zeros((GROUP * OUT,), dtype=tl.float32)
    for tile in tl.range(first, first + tiles_each, num_stages=STAGES):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        line = m // width
        h = (line % height) * STRIDE
        w = (m % width) * (GROUP * STRIDE) - 1
        under = ((line // height) * in_height + h) * in_width + w
        ww = w[:, None] + (k // IN)[None, :]
        there = (m < groups)[:, None] & (k < (GROUP * STRIDE - STRIDE + 3) * IN)[None, :] & (ww >= 0) & (ww < in_width)
        piece = x + under[:, None] * IN + k[None, :]
        upper, lower = there & (h > 0)[:, None], there & (h < in_height - 1)[:, None]
        above = tl.load(piece - in_width * IN, mask=upper, other=0.0)
        if AHEAD:
            here = tl.load(piece, mask=there, other=0.0)
            below = tl.load(piece + in_width * IN, mask=lower, other=0.0)
            total = tl.dot(above, top)
            total = tl.dot(here, middle, total)
            total = tl.dot(below, bottom, total)
        else:
            total = tl.dot(above, top)
            total = tl.dot(tl.load(piece, mask=there, other=0.0), middle, total)
            total = tl.dot(tl.load(piece + in_width * IN, mask=lower, other=0.0), bottom, total)
        to = m[:, None] * (GROUP * OUT) + j[None, :]
        inside = (m < groups)[:, None]
        if NORM:
            total, centred = before_activation(
                total, to, inside, j % OUT, extra, activated, before, mean, rstd, gain, offset, EXTRA, ACTIVATED, ELU
            )
        rounded = total.to(y.dtype.element_ty)
        tl.store(y + to, rounded, mask=inside)
        value = rounded.to(tl.float32)  # 0 beyond the last group
        if MOMENTS or NORM:
            sums += tl.sum(value, axis=0)
            products += tl.sum(value * (centred if NORM else value), axis=0)
    if MOMENTS or NORM:
        count = tl.minimum(groups - first * BLOCK, tiles_each * BLOCK)
        store_sums(moments, sums, products, count, rstd, OUT, GROUP, NORM)


@triton.jit  # type: ignore[untyped-decorator]
def conv_taps_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    moments,
    extra,
    activated,
    before,
    mean,
    rstd,
    gain,
    offset,
    pixels,
    height: tl.constexpr,
    width: tl.constexpr,
    in_height: tl.constexpr,
    in_width: tl.constexpr,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    FLIP: tl.constexpr,
    MOMENTS: tl.constexpr,
    NORM: tl.constexpr,
    EXTRA: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ELU: tl.constexpr,
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
    to = m[:, None] * OUT + o[None, :]
    inside = (m < pixels)[:, None]
    if NORM:
        total, centred = before_activation(
            total, to, inside, o, extra, activated, before, mean, rstd, gain, offset, EXTRA, ACTIVATED, ELU
        )
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + to, rounded, mask=inside)
    if MOMENTS or NORM:
        value = rounded.to(tl.float32)
        products = tl.sum(value * (centred if NORM else value), axis=0)
        count = tl.minimum(pixels - tl.program_id(0) * BLOCK, BLOCK)
        store_sums(moments, tl.sum(value, axis=0), products, count, rstd, OUT, 1, NORM)


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
    moments,
    extra,
    activated,
    before,
    mean,
    rstd,
    gain,
    offset,
    blocks,
    height: tl.constexpr,
    width: tl.constexpr,
    stride_out,
    stride_in,
    stride_r,
    stride_s,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    NORM: tl.constexpr,
    EXTRA: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The transpose of a convolution of stride 2, 2x2 pixels of dx at a time; (height, width) is the grid of dy.

    Block (h, w) of dx rests on dy at (h, w), (h, w+1), (h+1, w), (h+1, w+1): dx[2h + u, 2w + v] takes dy[h + q, w + t]
    times tap r = u + 1 - 2q, s = v + 1 - 2t. IN are the channels of dy, OUT those of dx. NORM as in `conv_rows_kernel`.
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
    to = pixel * OUT + (j % (2 * OUT))[None, :]
    inside = (m < blocks)[:, None]
    if NORM:
        total, centred = before_activation(
            total, to, inside, j % OUT, extra, activated, before, mean, rstd, gain, offset, EXTRA, ACTIVATED, ELU
        )
    rounded = total.to(dx.dtype.element_ty)
    tl.store(dx + to, rounded, mask=inside)
    if NORM:
        value = rounded.to(tl.float32)
        store_sums(moments, tl.sum(value, axis=0), tl.sum(value * centred, axis=0), 1, rstd, OUT, 4, NORM)
