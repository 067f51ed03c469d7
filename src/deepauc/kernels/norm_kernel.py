"""Triton kernels of the backward pass of batch normalisation and activation.

All tensors are pixels by channels: NHWC with N, H and W as one axis.
"""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253


@triton.jit  # type: ignore[untyped-decorator]
def before_activation(  # type: ignore[no-untyped-def]
    gradient,
    at,
    there,
    c,
    extra,
    activated,
    before,
    mean,
    rstd,
    gain,
    offset,
    EXTRA: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ELU: tl.constexpr,
):
    """(gradient before an ELU (alpha 1) or a ReLU, `before` - mean) of a tile, from the gradient after it.

    EXTRA: the gradient has a second part. The slope comes from the activation's result where ACTIVATED (there was a
    shortcut), else from what was normalised, so that one tensor less is read. c: the channels of the columns.
    """
    if EXTRA:
        gradient += tl.load(extra + at, mask=there, other=0.0).to(tl.float32)
    centred = tl.load(before + at, mask=there, other=0.0).to(tl.float32) - tl.load(mean + c)[None, :]
    if ACTIVATED:
        out = tl.load(activated + at, mask=there, other=0.0).to(tl.float32)
        slope = tl.where(out > 0, 1.0, out + 1.0) if ELU else tl.where(out > 0, 1.0, 0.0)
    else:
        out = centred * (tl.load(gain + c) * tl.load(rstd + c))[None, :] + tl.load(offset + c)[None, :]
        slope = tl.where(out > 0, 1.0, tl.exp(out)) if ELU else tl.where(out > 0, 1.0, 0.0)
    return gradient * slope, centred


@triton.jit  # type: ignore[untyped-decorator]
def norm_sums_kernel(  # type: ignore[no-untyped-def]
    gradient,
    result,
    sums,
    activated,
    before,
    mean,
    rstd,
    gain,
    offset,
    pixels,
    tiles_each,
    CHANNELS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """result: the gradient before the activation; sums[program, 2]: of it, and of it times what was normalised."""
    c = tl.arange(0, CHANNELS)
    plain = tl.zeros((CHANNELS,), dtype=tl.float32)
    times = tl.zeros((CHANNELS,), dtype=tl.float32)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        at = m[:, None] * CHANNELS + c[None, :]
        there = (m < pixels)[:, None]
        g = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        g, centred = before_activation(
            g, at, there, c, gradient, activated, before, mean, rstd, gain, offset, False, ACTIVATED, ELU
        )
        rounded = g.to(result.dtype.element_ty)
        tl.store(result + at, rounded, mask=there)
        plain += tl.sum(rounded.to(tl.float32), axis=0)
        times += tl.sum(rounded.to(tl.float32) * centred, axis=0)
    to = sums + tl.program_id(0) * (2 * CHANNELS) + c
    tl.store(to, plain)
    tl.store(to + CHANNELS, times * tl.load(rstd + c))


@triton.jit  # type: ignore[untyped-decorator]
def join_sums_kernel(  # type: ignore[no-untyped-def]
    sums,
    dgain,
    doffset,
    programs,
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds up sums (programs, 2, GROUP, CHANNELS), always in the same order: the gradients of the norm's parameters."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    plain = tl.zeros((BLOCK,), dtype=tl.float32)
    times = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, programs, AT_ONCE):
        p = first + tl.arange(0, AT_ONCE)
        known = (p < programs)[:, None]
        at = sums + (p * (2 * GROUP * CHANNELS))[:, None] + c[None, :]
        for pixel in tl.static_range(GROUP):
            plain += tl.sum(tl.load(at + pixel * CHANNELS, mask=known, other=0.0), axis=0)
            times += tl.sum(tl.load(at + (GROUP + pixel) * CHANNELS, mask=known, other=0.0), axis=0)
    tl.store(doffset + c, plain)
    tl.store(dgain + c, times)


@triton.jit  # type: ignore[untyped-decorator]
def norm_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient,
    before,
    mean,
    rstd,
    gain,
    dgain,
    doffset,
    result,
    pixels,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """result = gain rstd (gradient - (doffset + normalised dgain) / pixels): gradient of what was normalised."""
    c = tl.arange(0, CHANNELS)
    scale = tl.load(rstd + c)
    factor = scale * tl.load(gain + c)
    centre = tl.load(mean + c)
    plain = tl.load(doffset + c) / pixels
    times = tl.load(dgain + c) / pixels
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = m[:, None] * CHANNELS + c[None, :]
    there = (m < pixels)[:, None]
    g = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
    normalised = (tl.load(before + at, mask=there, other=0.0).to(tl.float32) - centre[None, :]) * scale[None, :]
    found = (g - (plain[None, :] + normalised * times[None, :])) * factor[None, :]
    tl.store(result + at, found.to(result.dtype.element_ty), mask=there)
