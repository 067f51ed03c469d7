"""Triton kernels of the stacked layers: batch normalisation with activation run by run, and the taps of a convolution.

Tensors are runs by pixels by channels: NHWC with N, H and W as one axis, a run being `pixels` rows in a row. Where an
argument ends in `_row` or `_run` it is the distance between two rows or two runs. Sums are always taken in the same
order.
"""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253

SIZES = ["height", "width", "from_height", "from_width"]  # one form of a kernel for all of these: fewer to compile


@triton.jit  # type: ignore[untyped-decorator]
def activated(z, ACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Nothing (0), ReLU (1) or ELU with alpha 1 (2); what is not a number stays so."""
    if ACT == 1:
        z = tl.where(z < 0, 0.0, z)
    if ACT == 2:
        z = tl.where(z < 0, tl.exp(tl.minimum(z, 0.0)) - 1.0, z)
    return z


@triton.jit  # type: ignore[untyped-decorator]
def before_activation(gradient, z, ACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient before the activation, from the one after it and what went into it."""
    if ACT == 1:
        gradient = tl.where(z > 0, gradient, 0.0)
    if ACT == 2:
        gradient = tl.where(z > 0, gradient, gradient * tl.exp(tl.minimum(z, 0.0)))
    return gradient


@triton.jit
def keep_moments(  # type: ignore[no-untyped-def]
    centre, variance, rstd, mean_to, rstd_to, running_mean, running_var, run, c, there, channels, running_run,
    pixels, momentum,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps) for the backward pass; the running ones moved, the variance unbiased."""
    at = run * channels + c
    tl.store(mean_to + at, centre, mask=there)
    tl.store(rstd_to + at, rstd, mask=there)
    own = run * running_run + c
    old_mean = tl.load(running_mean + own, mask=there, other=0.0)
    old_var = tl.load(running_var + own, mask=there, other=0.0)
    unbiased = variance * pixels / tl.maximum(pixels - 1, 1)
    tl.store(running_mean + own, old_mean + momentum * (centre - old_mean), mask=there)
    tl.store(running_var + own, old_var + momentum * (unbiased - old_var), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def norm_whole_kernel(  # type: ignore[no-untyped-def]
    x, weight, bias, running_mean, running_var, out, mean, rstd,
    pixels, channels, x_row, weight_run, running_run, momentum, eps,
    ACT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """act((x - mean) rstd weight + bias) of all pixels of a run in one program: they are few."""
    run = tl.program_id(1)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    p = tl.arange(0, BLOCK_P)
    there = (p < pixels)[:, None] & known[None, :]
    row = (run * pixels + p).to(tl.int64)[:, None]
    v = tl.load(x + row * x_row + c[None, :], mask=there, other=0.0).to(tl.float32)
    centre = tl.sum(v, axis=0) / pixels
    away = tl.where(there, v - centre[None, :], 0.0)
    variance = tl.sum(away * away, axis=0) / pixels
    scale = 1.0 / tl.sqrt(variance + eps)
    keep_moments(
        centre, variance, scale, mean, rstd, running_mean, running_var, run, c, known, channels, running_run,
        pixels, momentum,
    )  # fmt: skip
    w = tl.load(weight + run * weight_run + c, mask=known, other=0.0)
    b = tl.load(bias + run * weight_run + c, mask=known, other=0.0)
    z = activated(away * (scale * w)[None, :] + b[None, :], ACT)
    tl.store(out + row * channels + c[None, :], z.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["tiles_each"])  # type: ignore[untyped-decorator]
def norm_moments_kernel(  # type: ignore[no-untyped-def]
    x, moments, pixels, channels, x_row, tiles_each, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """moments[run, program, 0] the mean of the program's pixels, moments[run, program, 1] the squares around it."""
    program = tl.program_id(0)
    run = tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    centre = tl.zeros((BLOCK_C,), dtype=tl.float32)
    spread = tl.zeros((BLOCK_C,), dtype=tl.float32)
    first = program * tiles_each
    for tile in tl.range(first, first + tiles_each):
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        there = (p < pixels)[:, None] & known[None, :]
        row = (run * pixels + p).to(tl.int64)[:, None]
        v = tl.load(x + row * x_row + c[None, :], mask=there, other=0.0).to(tl.float32)
        before = (tl.minimum(tile * BLOCK_P, pixels) - tl.minimum(first * BLOCK_P, pixels)).to(tl.float32)
        here = tl.minimum(tl.maximum(pixels - tile * BLOCK_P, 0), BLOCK_P).to(tl.float32)
        both = tl.maximum(before + here, 1.0)
        own = tl.sum(v, axis=0) / tl.maximum(here, 1.0)
        away = tl.where(there, v - own[None, :], 0.0)
        step = own - centre
        centre += step * (here / both)
        spread += tl.sum(away * away, axis=0) + step * step * (before * here / both)
    to = moments + ((run * tl.num_programs(0) + program) * 2) * channels + c
    tl.store(to, centre, mask=known)
    tl.store(to + channels, spread, mask=known)


@triton.jit(do_not_specialize=["tiles_each", "programs"])  # type: ignore[untyped-decorator]
def norm_apply_kernel(  # type: ignore[no-untyped-def]
    x, moments, weight, bias, running_mean, running_var, out, mean, rstd,
    pixels, channels, x_row, weight_run, running_run, momentum, eps, tiles_each, programs,
    ACT: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """act((x - mean) rstd weight + bias): every program joins the moments of `norm_moments_kernel` for itself."""
    run = tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    s = tl.arange(0, PROGRAMS)
    found = moments + ((run * programs + s) * 2 * channels)[:, None] + c[None, :]
    joined = (s < programs)[:, None] & known[None, :]
    each = tiles_each * BLOCK_P
    count = tl.minimum(tl.maximum(pixels - s * each, 0), each).to(tl.float32)[:, None]
    means = tl.load(found, mask=joined, other=0.0)
    centre = tl.sum(means * count, axis=0) / pixels
    away = tl.where(joined, means - centre[None, :], 0.0)
    spread = tl.load(found + channels, mask=joined, other=0.0) + count * away * away
    variance = tl.sum(spread, axis=0) / pixels
    scale = 1.0 / tl.sqrt(variance + eps)
    if tl.program_id(0) == 0:
        keep_moments(
            centre, variance, scale, mean, rstd, running_mean, running_var, run, c, known, channels, running_run,
            pixels, momentum,
        )  # fmt: skip
    w = tl.load(weight + run * weight_run + c, mask=known, other=0.0)
    b = tl.load(bias + run * weight_run + c, mask=known, other=0.0)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each):
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        there = (p < pixels)[:, None] & known[None, :]
        row = (run * pixels + p).to(tl.int64)[:, None]
        v = tl.load(x + row * x_row + c[None, :], mask=there, other=0.0).to(tl.float32)
        z = activated((v - centre[None, :]) * (scale * w)[None, :] + b[None, :], ACT)
        tl.store(out + row * channels + c[None, :], z.to(out.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def norm_whole_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient, x, weight, bias, mean, rstd, dx, dweight, dbias,
    pixels, channels, gradient_row, x_row, weight_run, dx_row,
    ACT: tl.constexpr, ADD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx = weight rstd (g - (dbias + normalised dweight) / pixels), g the gradient before the activation.

    ADD: to what dx holds already.
    """
    run = tl.program_id(1)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    p = tl.arange(0, BLOCK_P)
    there = (p < pixels)[:, None] & known[None, :]
    row = (run * pixels + p).to(tl.int64)[:, None]
    at = run * channels + c
    scale = tl.load(rstd + at, mask=known, other=0.0)
    w = tl.load(weight + run * weight_run + c, mask=known, other=0.0)
    b = tl.load(bias + run * weight_run + c, mask=known, other=0.0)
    v = tl.load(x + row * x_row + c[None, :], mask=there, other=0.0).to(tl.float32)
    normalised = (v - tl.load(mean + at, mask=known, other=0.0)[None, :]) * scale[None, :]
    g = tl.load(gradient + row * gradient_row + c[None, :], mask=there, other=0.0).to(tl.float32)
    g = tl.where(there, before_activation(g, normalised * w[None, :] + b[None, :], ACT), 0.0)
    plain = tl.sum(g, axis=0)
    times = tl.sum(g * normalised, axis=0)
    tl.store(dbias + at, plain, mask=known)
    tl.store(dweight + at, times, mask=known)
    own = (plain[None, :] + normalised * times[None, :]) / pixels
    result = (g - own) * (w * scale)[None, :]
    to = dx + row * dx_row + c[None, :]
    if ADD:
        result += tl.load(to, mask=there, other=0.0).to(tl.float32)
    tl.store(to, result.to(dx.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["tiles_each"])  # type: ignore[untyped-decorator]
def norm_sums_kernel(  # type: ignore[no-untyped-def]
    gradient, x, weight, bias, mean, rstd, sums,
    pixels, channels, gradient_row, x_row, weight_run, tiles_each,
    ACT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """sums[run, program, 0] of the gradient before the activation, sums[run, program, 1] of it times normalised x."""
    program = tl.program_id(0)
    run = tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    at = run * channels + c
    centre = tl.load(mean + at, mask=known, other=0.0)
    scale = tl.load(rstd + at, mask=known, other=0.0)
    w = tl.load(weight + run * weight_run + c, mask=known, other=0.0)
    b = tl.load(bias + run * weight_run + c, mask=known, other=0.0)
    plain = tl.zeros((BLOCK_C,), dtype=tl.float32)
    times = tl.zeros((BLOCK_C,), dtype=tl.float32)
    first = program * tiles_each
    for tile in tl.range(first, first + tiles_each):
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        there = (p < pixels)[:, None] & known[None, :]
        row = (run * pixels + p).to(tl.int64)[:, None]
        v = tl.load(x + row * x_row + c[None, :], mask=there, other=0.0).to(tl.float32)
        normalised = (v - centre[None, :]) * scale[None, :]
        g = tl.load(gradient + row * gradient_row + c[None, :], mask=there, other=0.0).to(tl.float32)
        g = tl.where(there, before_activation(g, normalised * w[None, :] + b[None, :], ACT), 0.0)
        plain += tl.sum(g, axis=0)
        times += tl.sum(g * normalised, axis=0)
    to = sums + ((run * tl.num_programs(0) + program) * 2) * channels + c
    tl.store(to, plain, mask=known)
    tl.store(to + channels, times, mask=known)


@triton.jit(do_not_specialize=["tiles_each", "programs"])  # type: ignore[untyped-decorator]
def norm_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient, x, weight, bias, mean, rstd, sums, dx, dweight, dbias,
    pixels, channels, gradient_row, x_row, weight_run, dx_row, tiles_each, programs,
    ACT: tl.constexpr, ADD: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """As `norm_whole_gradient_kernel`: every program adds up the sums of `norm_sums_kernel` for itself."""
    run = tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    s = tl.arange(0, PROGRAMS)
    found = sums + ((run * programs + s) * 2 * channels)[:, None] + c[None, :]
    joined = (s < programs)[:, None] & known[None, :]
    plain = tl.sum(tl.load(found, mask=joined, other=0.0), axis=0)
    times = tl.sum(tl.load(found + channels, mask=joined, other=0.0), axis=0)
    at = run * channels + c
    if tl.program_id(0) == 0:
        tl.store(dbias + at, plain, mask=known)
        tl.store(dweight + at, times, mask=known)
    centre = tl.load(mean + at, mask=known, other=0.0)
    scale = tl.load(rstd + at, mask=known, other=0.0)
    w = tl.load(weight + run * weight_run + c, mask=known, other=0.0)
    b = tl.load(bias + run * weight_run + c, mask=known, other=0.0)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each):
        p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
        there = (p < pixels)[:, None] & known[None, :]
        row = (run * pixels + p).to(tl.int64)[:, None]
        v = tl.load(x + row * x_row + c[None, :], mask=there, other=0.0).to(tl.float32)
        normalised = (v - centre[None, :]) * scale[None, :]
        g = tl.load(gradient + row * gradient_row + c[None, :], mask=there, other=0.0).to(tl.float32)
        g = before_activation(g, normalised * w[None, :] + b[None, :], ACT)
        own = (plain[None, :] + normalised * times[None, :]) / pixels
        result = (g - own) * (w * scale)[None, :]
        to = dx + row * dx_row + c[None, :]
        if ADD:
            result += tl.load(to, mask=there, other=0.0).to(tl.float32)
        tl.store(to, result.to(dx.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def under_tap(i, tap, size, STRIDE: tl.constexpr, PADDING: tl.constexpr, INVERSE: tl.constexpr):  # type: ignore[no-untyped-def]
    """(place, whether it is there) that output i sees under a tap, or, inverse, that sees input i under it."""
    if INVERSE:
        far = i + PADDING - tap
        place = far // STRIDE
        there = (far >= 0) & (place * STRIDE == far) & (place < size)
    else:
        place = i * STRIDE + tap - PADDING
        there = (place >= 0) & (place < size)
    return place, there


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def spread_kernel(  # type: ignore[no-untyped-def]
    x, columns, rows, height, width, from_height, from_width, x_row, channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, INVERSE: tl.constexpr, TAPS_LAST: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """columns[pixel, (channel, tap)] = x[what the pixel sees under the tap, channel], 0 beyond the edge.

    TAPS_LAST: the columns are ordered by channel, then by tap; otherwise by tap, then by channel.
    """
    j = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if TAPS_LAST:
        tap = j % (KERNEL * KERNEL)
        c = j // (KERNEL * KERNEL)
    else:
        tap = j // channels
        c = j % channels
    m = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    image = m // (height * width)
    i = (m // width) % height
    k = m % width
    a, in_height = under_tap(i[:, None], (tap // KERNEL)[None, :], from_height, STRIDE, PADDING, INVERSE)
    b, in_width = under_tap(k[:, None], (tap % KERNEL)[None, :], from_width, STRIDE, PADDING, INVERSE)
    across = channels * (KERNEL * KERNEL)
    to = (m < rows)[:, None] & (j < across)[None, :]
    place = ((image[:, None] * from_height + a) * from_width + b).to(tl.int64)
    v = tl.load(x + place * x_row + c[None, :], mask=to & in_height & in_width, other=0.0)
    tl.store(columns + m.to(tl.int64)[:, None] * across + j[None, :], v, mask=to)


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def gather_kernel(  # type: ignore[no-untyped-def]
    columns, y, rows, height, width, from_height, from_width, y_row, channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, INVERSE: tl.constexpr, TAPS_LAST: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y[pixel, channel] = sum over taps of columns[what the pixel sees under the tap, (channel, tap)]."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    m = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    image = m // (height * width)
    i = (m // width) % height
    k = m % width
    to = (m < rows)[:, None] & (c < channels)[None, :]
    across = channels * (KERNEL * KERNEL)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for tap in tl.static_range(0, KERNEL * KERNEL):
        a, in_height = under_tap(i, tap // KERNEL, from_height, STRIDE, PADDING, INVERSE)
        b, in_width = under_tap(k, tap % KERNEL, from_width, STRIDE, PADDING, INVERSE)
        place = ((image * from_height + a) * from_width + b).to(tl.int64)
        at = (c * (KERNEL * KERNEL) + tap) if TAPS_LAST else (tap * channels + c)
        seen = to & (in_height & in_width)[:, None]
        total += tl.load(columns + place[:, None] * across + at[None, :], mask=seen, other=0.0).to(tl.float32)
    tl.store(y + m.to(tl.int64)[:, None] * y_row + c[None, :], total.to(y.dtype.element_ty), mask=to)
