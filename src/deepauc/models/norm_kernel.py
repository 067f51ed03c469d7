"""Triton kernels of `conv_norm`'s backward pass: activation and batch normalisation, in two launches.

All tensors are pixels by channels: NHWC with N, H and W as one axis.
"""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253


@triton.jit  # type: ignore[untyped-decorator]
def before_activation(gradient, out, ELU: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient before an ELU (alpha 1) or a ReLU, from the one after it and its output."""
    slope = tl.where(out > 0, 1.0, out + 1.0) if ELU else tl.where(out > 0, 1.0, 0.0)
    return gradient * slope


@triton.jit  # type: ignore[untyped-decorator]
def norm_sums_kernel(  # type: ignore[no-untyped-def]
    gradient,
    out,
    y,
    mean,
    rstd,
    sums,
    pixels,
    tiles_each,
    CHANNELS: tl.constexpr,
    ELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """sums[program, 0] of the gradient before the activation, sums[program, 1] of it times the normalised y."""
    c = tl.arange(0, CHANNELS)
    centre = tl.load(mean + c)[None, :]
    scale = tl.load(rstd + c)[None, :]
    plain = tl.zeros((CHANNELS,), dtype=tl.float32)
    times = tl.zeros((CHANNELS,), dtype=tl.float32)
    first = tl.program_id(0) * tiles_each
    for tile in tl.range(first, first + tiles_each):
        m = tile * BLOCK + tl.arange(0, BLOCK)
        at = m[:, None] * CHANNELS + c[None, :]
        there = (m < pixels)[:, None]
        g = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        g = before_activation(g, tl.load(out + at, mask=there, other=0.0).to(tl.float32), ELU)
        normalised = (tl.load(y + at, mask=there, other=0.0).to(tl.float32) - centre) * scale
        plain += tl.sum(g, axis=0)
        times += tl.sum(g * normalised, axis=0)
    to = sums + tl.program_id(0) * (2 * CHANNELS) + c
    tl.store(to, plain)
    tl.store(to + CHANNELS, times)


@triton.jit  # type: ignore[untyped-decorator]
def norm_gradient_kernel(  # type: ignore[no-untyped-def]
    gradient,
    out,
    y,
    mean,
    rstd,
    weight,
    sums,
    dy,
    dresidual,
    dweight,
    dbias,
    pixels,
    programs,
    CHANNELS: tl.constexpr,
    ELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dy = weight rstd (g - (dbias + normalised dweight) / pixels), g the gradient before the activation.

    Every program adds up the sums of `norm_sums_kernel` for itself, always in the same order.
    """
    c = tl.arange(0, CHANNELS)
    p = tl.arange(0, PROGRAMS)
    found = sums + (p * (2 * CHANNELS))[:, None] + c[None, :]
    known = (p < programs)[:, None]
    plain = tl.sum(tl.load(found, mask=known, other=0.0), axis=0)
    times = tl.sum(tl.load(found + CHANNELS, mask=known, other=0.0), axis=0)
    if tl.program_id(0) == 0:
        tl.store(dbias + c, plain)
        tl.store(dweight + c, times)
    scale = tl.load(rstd + c)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = m[:, None] * CHANNELS + c[None, :]
    there = (m < pixels)[:, None]
    g = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
    g = before_activation(g, tl.load(out + at, mask=there, other=0.0).to(tl.float32), ELU)
    if RESIDUAL:
        tl.store(dresidual + at, g.to(dresidual.dtype.element_ty), mask=there)
    normalised = (tl.load(y + at, mask=there, other=0.0).to(tl.float32) - tl.load(mean + c)[None, :]) * scale[None, :]
    own = (plain[None, :] + normalised * times[None, :]) / pixels
    result = (g - own) * (tl.load(weight + c) * scale)[None, :]
    tl.store(dy + at, result.to(dy.dtype.element_ty), mask=there)
