"""Convolutions by tiles against those by rows of taps: one call alone and 24 side by side, for all tiles worth trying.

PYTHONPATH=src:benchmarks python3 benchmarks/tile_conv.py --json tile_conv.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

import deepauc.kernels.small_conv as small
import deepauc.kernels.tile_conv as tiles
from norm_backward import Tensors, tensors
from run import circumstances
from small_conv import microseconds

STREAMS = 24
Tile, GradientTile = tiles.Tile, tiles.GradientTile
CONVOLUTIONS = {
    16: [Tile(height=h, width=32, warps=w, rows=r, each=e, blocks=b) for h, w, r, e, b in
         ((8, 4, 1, 1, 6), (8, 4, 2, 1, 5), (8, 4, 1, 2, 6), (8, 4, 2, 2, 5), (8, 4, 2, 4, 5), (8, 8, 1, 2, 3),
          (16, 8, 2, 1, 2), (16, 8, 2, 2, 2), (4, 4, 1, 2, 6), (4, 4, 1, 4, 6))],
    32: [Tile(height=h, width=16, warps=w, rows=r, each=e, blocks=b) for h, w, r, e, b in
         ((16, 8, 2, 1, 2), (16, 8, 1, 1, 3), (16, 4, 2, 1, 4), (8, 4, 2, 1, 4), (8, 4, 2, 2, 4), (8, 4, 2, 4, 4),
          (8, 8, 1, 2, 3), (8, 8, 1, 4, 3))],
    64: [Tile(height=8, width=8, warps=4, rows=1, each=e, blocks=2) for e in (1, 2, 4)],
}  # fmt: skip
GRADIENTS = {
    16: [GradientTile(height=8, width=32, warps=w, outs=16, taps=t, each=e, blocks=b) for w, t, e, b in
         ((4, 9, 2, 4), (4, 9, 4, 4), (4, 9, 4, 3), (4, 9, 8, 4), (8, 9, 4, 2), (6, 3, 4, 4), (2, 9, 4, 4))],
    32: [GradientTile(height=h, width=16, warps=w, outs=32, taps=3, each=e, blocks=b) for h, w, e, b in
         ((8, 6, 2, 3), (8, 6, 4, 3), (8, 6, 8, 3), (8, 12, 4, 1), (16, 6, 2, 2), (16, 12, 2, 1), (16, 12, 4, 1))],
    64: [GradientTile(height=8, width=8, warps=w, outs=o, taps=t, each=e, blocks=b) for w, o, t, e, b in
         ((12, 64, 3, 2, 1), (12, 64, 3, 4, 1), (12, 64, 3, 8, 1), (6, 32, 3, 4, 2), (6, 32, 3, 8, 2),
          (18, 32, 1, 4, 1))],
}  # fmt: skip


def norm_gradient(t: Tensors, *, shortcut: bool) -> Tensor:
    activated, extra = (t.x, t.extra) if shortcut else (None, None)
    return small.small_conv_norm_gradient(t.dy, t.weight, 1, extra, activated, t.y, *t.norm, True)[0]


WORK: dict[str, Callable[[Tensors], Tensor]] = {
    "forward": lambda t: small.small_conv_with_moments(t.x, t.weight, 1)[0],
    "input": lambda t: norm_gradient(t, shortcut=False),
    "input, shortcut": lambda t: norm_gradient(t, shortcut=True),
    "weight": lambda t: small.small_conv_weight_gradient(t.x, t.dy, t.weight, 1),
}


def choose(kind: str, channels: int, tile: object) -> None:
    """Make the module use this tile, or none."""
    table: dict = tiles.GRADIENT if kind == "weight" else tiles.CONV
    table.pop(channels, None)
    if tile is not None:
        table[channels] = tile


def compiled(kind: str, channels: int, candidates: list) -> None:
    """All candidates at a time: the compiler works outside of Python."""
    one = tensors(channels)

    def build(tile: object) -> None:
        form = {"FLIP": kind != "forward", "MOMENTS": kind == "forward", "NORM": kind != "forward",
                "EXTRA": "shortcut" in kind, "ACTIVATED": "shortcut" in kind, "ELU": kind != "forward"}  # fmt: skip
        if kind == "weight":
            tiles.weight_gradient(one.x, one.dy, one.weight, tile)
        else:
            how = tile.each * tile.height * tile.width
            programs = -(-one.x.numel() // channels // how)
            sums = one.x.new_empty(programs, 2, 1, channels, dtype=torch.float32)
            norm = [one.extra, one.x, one.y, *one.norm]
            tiles.convolve(one.x, one.weight, torch.empty_like(one.x), sums, norm, form, tile)

    with ThreadPoolExecutor(12) as pool:
        for tile, work in [(tile, pool.submit(build, tile)) for tile in candidates]:
            if (problem := work.exception()) is not None:
                print(f"failed: {kind} {tile}: {str(problem)[:300]}", flush=True)
    torch.cuda.synchronize()


def measured(kind: str, channels: int) -> list[dict]:
    """The kernels of Triton first, then every tile."""
    candidates = (GRADIENTS if kind == "weight" else CONVOLUTIONS)[channels]
    compiled(kind, channels, candidates)
    sets = [tensors(channels) for _ in range(STREAMS)]
    rows: list[dict] = []
    exact = torch.empty(0)
    for tile in (None, *candidates):
        choose(kind, channels, tile)
        row = {"kind": kind, "channels": channels, "tile": None if tile is None else asdict(tile)}
        try:
            found = WORK[kind](sets[0]).float()
            exact = found if tile is None else exact
            row["error"] = float((found - exact).norm() / exact.norm())
            row["alone"], row["packed"] = (microseconds(lambda i: WORK[kind](sets[i]), n) for n in (1, STREAMS))
        except Exception as problem:
            print(f"failed: {row}: {str(problem)[:200]}", flush=True)
            continue
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--channels", nargs="+", type=int, default=[16, 32, 64])
    options = parser.parse_args()
    rows = []
    for channels in options.channels:
        for kind in WORK:
            for row in measured(kind, channels):
                rows.append(row)
                tile = " ".join(f"{k} {v}" for k, v in (row["tile"] or {"rows of taps": ""}).items())
                print(f"{channels} {kind:16s} alone {row['alone']:6.2f} packed {row['packed']:5.2f} "
                      f"off {row['error']:.1e}  {tile}", flush=True)  # fmt: skip
    if options.json is not None:
        record = {
            **circumstances(gpu=True),
            "unit": "microseconds a call, batch 128; packed: 24 side by side, per one",
            "rows": rows,
        }
        options.json.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
