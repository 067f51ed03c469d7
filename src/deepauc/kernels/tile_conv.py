"""3x3 convolutions from C channels to C at stride 1 by kernels that read each tile of an image once (`tile.cuh`).

A tile and its border go to shared memory; nine taps are nine shifted readings of it. The kernels of
`small_conv_kernel`, which do all other forms, read the taps one row after the other from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deepauc.kernels import cuda_source

CONVOLUTION, WEIGHT_GRADIENT = (
    tuple(Path(__file__).with_name(file) for file in ("tile.cuh", own)) for own in ("tile_conv.cu", "tile_gradient.cu")
)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A block's tiles, `each` of them, its warps, and how many rows of 16 pixels a warp multiplies at a time.

    blocks: so many are to fit on a multiprocessor, which bounds the registers of a thread.
    """

    height: int
    width: int
    warps: int
    rows: int
    each: int
    blocks: int

    def shared(self, channels: int) -> int:
        """Bytes of the weights and of one tile, or two in turn."""
        tiles = min(self.each, 2) * (self.height + 2) * (self.width + 2)
        return 2 * (channels + 8) * (9 * channels + tiles)


@dataclass(frozen=True, kw_only=True)
class GradientTile:
    """A block's tiles, `each` of them; of the weight `outs` output channels, a warp has `taps` taps of 16 of these."""

    height: int
    width: int
    warps: int
    outs: int
    taps: int
    each: int
    blocks: int

    @property
    def parts(self) -> int:
        """How many warps share the pixels of the same taps and outputs."""
        return self.warps * self.taps * 16 // (9 * self.outs)

    def shared(self, channels: int) -> int:
        """Bytes of two tiles of x and dy in turn, and of what the parts join after that."""
        bordered = (self.height + 2) * (self.width + 2) * (channels + 8)
        joined = 4 * 9 * self.outs * channels if self.parts > 1 else 0
        return max(4 * (bordered + self.height * self.width * channels), joined)


# Measured on an H200 (benchmarks/tile_conv.py; results/speed.jsonl, tile_conv): the best of 24 runs side by side whose
# call alone is not much longer than by rows of taps.
CONV = {
    16: Tile(height=8, width=32, warps=4, rows=2, each=2, blocks=5),
    32: Tile(height=8, width=16, warps=4, rows=2, each=2, blocks=4),
}
GRADIENT = {
    16: GradientTile(height=8, width=32, warps=6, outs=16, taps=3, each=4, blocks=4),
    32: GradientTile(height=16, width=16, warps=6, outs=32, taps=3, each=2, blocks=2),
    64: GradientTile(height=8, width=8, warps=6, outs=32, taps=3, each=8, blocks=2),
}


def possible(device: torch.device) -> bool:
    """Whether there are such kernels on this device at all."""
    return device.type == "cuda" and cuda_source.available(_number(device))


def _fits(tile: Tile | GradientTile | None, shape: Sequence[int], device: torch.device) -> bool:
    return tile is not None and shape[2] % tile.height == shape[3] % tile.width == 0 and possible(device)


def conv_tile(channels: int, shape: tuple[int, ...], stride: int, device: torch.device) -> Tile | None:
    """The tile of a convolution from so many channels to this shape, if these kernels do it."""
    tile = CONV.get(channels) if stride == 1 and shape[1] == channels else None
    return tile if _fits(tile, shape, device) else None


def gradient_tile(x: Tensor, dy: Tensor, stride: int) -> GradientTile | None:
    """The tiles of the gradient of a weight, if these kernels do it."""
    tile = GRADIENT.get(x.shape[1]) if stride == 1 and dy.shape[1] == x.shape[1] else None
    return tile if _fits(tile, dy.shape, dy.device) else None


def convolve(
    x: Tensor, weight: Tensor, y: Tensor, sums: Tensor, tensors: list[Tensor], form: dict[str, bool], tile: Tile
) -> None:
    """y and sums of a convolution; `tensors` and `form` are those of a norm, FLIP and MOMENTS of `small_conv`."""
    used = zip(tensors, ("EXTRA", "ACTIVATED", "NORM"), strict=False)
    _require_bfloat16(x, y, *(image for image, name in used if form[name]))
    images, channelwise = [_aligned(t) for t in tensors[:3]], [t.float() for t in tensors[3:]]
    n, channels, height, width = y.shape
    tiles = n * (height // tile.height) * (width // tile.width)
    threads = 32 * tile.warps
    macros = {"C": channels, "TH": tile.height, "TW": tile.width, "THREADS": threads, "ROWS": tile.rows,
              "EACH": tile.each, "BLOCKS": tile.blocks, "HEIGHT": height, "WIDTH": width, **form}  # fmt: skip
    kernel = ("tile_conv", cuda_source.macros(macros), tile.shared(channels), _number(x.device))
    run = cuda_source.kernel(CONVOLUTION, *kernel)
    run((-(-tiles // tile.each), 1), threads, [_aligned(x), _by_taps(weight), y, sums, *images, *channelwise, tiles])


def weight_gradient(x: Tensor, dy: Tensor, weight: Tensor, tile: GradientTile) -> Tensor:
    """Sums of each block, (blocks, K, 3, 3, C): a weight's memory in channels_last."""
    _require_bfloat16(x, dy)
    n, channels, height, width = dy.shape
    tiles = n * (height // tile.height) * (width // tile.width)
    blocks, by_out = -(-tiles // tile.each), channels // tile.outs
    threads = 32 * tile.warps
    macros = {"C": channels, "TH": tile.height, "TW": tile.width, "THREADS": threads, "OUTS": tile.outs,
              "TAPS": tile.taps, "EACH": tile.each, "HEIGHT": height, "WIDTH": width, "JOINED": tile.parts > 1,
              "BLOCKS": tile.blocks}  # fmt: skip
    sums = torch.empty(blocks, weight.numel(), dtype=torch.float32, device=x.device)
    kernel = ("tile_weight_gradient", cuda_source.macros(macros), tile.shared(channels), _number(x.device))
    run = cuda_source.kernel(WEIGHT_GRADIENT, *kernel)
    run((blocks, by_out), threads, [_aligned(x), _aligned(dy), sums, tiles])
    return sums


def _require_bfloat16(*images: Tensor) -> None:
    """The kernels get addresses: they would take whatever lies there for bfloat16."""
    if wrong := {t.dtype for t in images} - {torch.bfloat16}:
        raise ValueError(f"small convolutions on a GPU are of bfloat16, not {wrong.pop()}: convert the images first.")


def _aligned(t: Tensor) -> Tensor:
    """Numbers are read 16 bytes at a time; a view into the middle of a buffer may begin elsewhere."""
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _by_taps(weight: Tensor) -> Tensor:
    """The float32 numbers weight[o, tap, i] in a row; of another type, as in a network that is all bfloat16, copied."""
    return _aligned(weight.float().contiguous(memory_format=torch.channels_last))


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
