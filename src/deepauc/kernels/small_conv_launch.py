"""How the kernels of `small_conv` are launched, by measurement, and what rests on that."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from deepauc.kernels import tile_conv

TWO_BLOCK = 64
REGISTERS = 128  # a thread, so that two programs of 8 warps share a multiprocessor
AHEAD_BYTES = 110_592  # of shared memory for loads ahead of 16 channels; all other programs take 98,304 or less


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a kernel is launched: groups of pixels a tile, warps, loads in flight, tiles a program, and the form.

    pair: two pixels a group. form: rows of taps, or tap by tap; of the weight's gradient: all rows of taps in one
    program, or one. ahead: the rows are loaded before the first product, which takes more shared memory.
    """

    block: int
    warps: int
    stages: int
    tiles: int = 1
    pair: bool = True
    form: Literal["rows", "taps", "row", "tiles"] = "rows"
    ahead: bool = True


# By measurement on an H200 (benchmarks/small_conv.py), for one run alone and for many side by side.
CONV = {
    1: Launch(block=128, warps=4, stages=1),
    3: Launch(block=128, warps=4, stages=1),
    16: Launch(block=256, warps=8, stages=1),
    32: Launch(block=64, warps=4, stages=1, tiles=2),
    64: Launch(block=128, warps=8, stages=1, form="taps"),
}
STRIDED = {
    1: Launch(block=128, warps=4, stages=1, pair=False),
    3: Launch(block=128, warps=4, stages=1, pair=False),
    16: Launch(block=128, warps=4, stages=1, form="taps"),
    32: Launch(block=64, warps=4, stages=1, form="taps"),
    64: Launch(block=128, warps=8, stages=1, form="taps"),
}
GRADIENT = {
    1: Launch(block=64, warps=4, stages=2, tiles=4),
    3: Launch(block=64, warps=4, stages=2, tiles=4),
    16: Launch(block=64, warps=4, stages=2, tiles=8),
    32: Launch(block=32, warps=4, stages=2, tiles=8, pair=False, form="row"),
    64: Launch(block=64, warps=8, stages=2, tiles=4, pair=False, form="row"),
}


def launch_tag(device: torch.device) -> str:
    """Names these settings: what torch has compiled and kept on a disk rests on the shapes that follow from them.

    Also whether there are tiles on this device: a machine that shares the disk may lack their compiler.
    """
    from deepauc.kernels import norm_gradient

    tables = (CONV, STRIDED, GRADIENT, TWO_BLOCK, norm_gradient.TILE, norm_gradient.PROGRAMS)
    tiles = (tile_conv.CONV, tile_conv.GRADIENT, tile_conv.possible(device))
    return f"deepauc {zlib.crc32(repr((tables, tiles)).encode()):08x}"


@cache
def has_room(device: torch.device) -> bool:
    """For loads ahead: GPUs for desktops (sm_86, 89, 120) have 99 KB a program. The sums are the same without."""
    if device.type != "cuda":
        return True
    found = torch.cuda.get_device_properties(device)
    return getattr(found, "shared_memory_per_block_optin", 0) >= AHEAD_BYTES  # not stated by ROCm, which has 64 KB
