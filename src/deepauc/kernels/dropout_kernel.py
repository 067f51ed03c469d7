"""The Triton kernel of `dropout`: hash, mask and scale of a tile."""

from __future__ import annotations

import triton  # noqa: TID253
import triton.language as tl  # noqa: TID253
from torch import Tensor

from deepauc.kernels.dropout import FIRST, SECOND, layer_offset, threshold

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def mix_word(x, FIRST: tl.constexpr, SECOND: tl.constexpr):  # type: ignore[no-untyped-def]
    """`dropout.mix` on uint32."""
    x = (x ^ (x >> 16)) * FIRST
    x = (x ^ (x >> 15)) * SECOND
    return x ^ (x >> 15)


@triton.jit(do_not_specialize=["offset"])  # type: ignore[untyped-decorator]
def drop_kernel(  # type: ignore[no-untyped-def]
    source,
    to,
    keys,
    elements,
    from_run,
    from_row,
    to_run,
    to_row,
    offset,
    limit,
    scale,
    CHANNELS: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """source, to: (R, pixels, CHANNELS), channels dense, may be one. elements: of one run."""
    run = tl.program_id(1)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = element < elements
    key = tl.load(keys + run)
    low = mix_word((key + offset).to(tl.uint32), FIRST, SECOND)
    high = mix_word((key >> 32).to(tl.uint32) ^ low, FIRST, SECOND)
    number = mix_word(mix_word(element.to(tl.uint32) ^ low, FIRST, SECOND) + high, FIRST, SECOND)
    row, channel = (element // CHANNELS).to(tl.int64), element % CHANNELS
    x = tl.load(source + run.to(tl.int64) * from_run + row * from_row + channel, mask=there, other=0.0)
    x = tl.where(number.to(tl.int64) >= limit, x.to(tl.float32) * scale, 0.0).to(to.dtype.element_ty)
    tl.store(to + run.to(tl.int64) * to_run + row * to_row + channel, x, mask=there)


def drop_rows(source: Tensor, to: Tensor, keys: Tensor, layer: int, rate: float) -> None:
    """Rows (R, pixels, C) into rows of the same shape, or in place: one launch."""
    runs, pixels, channels = source.shape
    offset = layer_offset(layer)
    drop_kernel[(triton.cdiv(pixels * channels, BLOCK), runs)](
        source,
        to,
        keys,
        pixels * channels,
        source.stride(0),
        source.stride(1),
        to.stride(0),
        to.stride(1),
        offset if offset < 2**31 else offset - 2**32,  # one type of number for all layers
        threshold(rate),
        1 / (1 - rate),
        CHANNELS=channels,
        FIRST=FIRST,
        SECOND=SECOND,
        BLOCK=BLOCK,
    )
