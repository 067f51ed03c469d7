"""The Triton kernel of `pesg_fused`; imported only on a machine that has a CUDA device and Triton."""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253


@triton.jit  # type: ignore[untyped-decorator]
def pesg_kernel(  # type: ignore[no-untyped-def]
    addresses,
    blocks,
    sizes,
    lr,
    gamma,
    weight_decay,
    momentum,
    clip,
    count,
    LR_ON_DEVICE: tl.constexpr,
    PROXIMAL: tl.constexpr,
    MOMENTUM: tl.constexpr,
    CLIP: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program i updates block i of `blocks`: (tensor number, first element). Arithmetic in float32."""
    row = tl.program_id(0)
    tensor = tl.load(blocks + 2 * row)
    start = tl.load(blocks + 2 * row + 1)
    size = tl.load(sizes + tensor)
    value_at = tl.load(addresses + tensor).to(tl.pointer_type(DTYPE))
    gradient_at = tl.load(addresses + count + tensor).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        value_at = tl.multiple_of(value_at, 16)
        gradient_at = tl.multiple_of(gradient_at, 16)
    offsets = tl.multiple_of(start, BLOCK) + tl.arange(0, BLOCK)
    inside = offsets < size
    v = tl.load(value_at + offsets, mask=inside).to(tl.float32)
    d = tl.load(gradient_at + offsets, mask=inside).to(tl.float32)
    if CLIP:  # NaN stays NaN, as in torch
        d = tl.where(d > clip, clip, tl.where(d < -clip, -clip, d))
    if PROXIMAL:
        reference_at = tl.load(addresses + 2 * count + tensor).to(tl.pointer_type(tl.float32))
        drift_at = tl.load(addresses + 3 * count + tensor).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            reference_at = tl.multiple_of(reference_at, 16)
            drift_at = tl.multiple_of(drift_at, 16)
        reference = tl.load(reference_at + offsets, mask=inside)
        d += gamma * (v - reference)
    d += weight_decay * v
    if MOMENTUM:
        momentum_at = tl.load(addresses + 4 * count + tensor).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            momentum_at = tl.multiple_of(momentum_at, 16)
        d += momentum * tl.load(momentum_at + offsets, mask=inside)
        tl.store(momentum_at + offsets, d, mask=inside)
    rate = lr
    if LR_ON_DEVICE:
        rate = tl.load(lr)
    stored = (v - rate * d).to(DTYPE)
    tl.store(value_at + offsets, stored, mask=inside)
    if PROXIMAL:
        drift = tl.load(drift_at + offsets, mask=inside)
        tl.store(drift_at + offsets, drift + (stored.to(tl.float32) - reference), mask=inside)
