"""Backward pass of convolution, norm and activation: the norm's sums in the convolution's kernel or apart, measured.

One layer and one residual block, alone and with 24 side by side, each with its own tensors; then launches that only
tell with so many: tiles a program of the weight's gradient, and convolutions that leave room for more of them on a
multiprocessor (smaller tiles, rows of taps loaded in turn).

PYTHONPATH=src:benchmarks python3 benchmarks/norm_backward.py --json norm_backward.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import deepauc.kernels.small_conv as small
from deepauc.kernels.norm_gradient import norm_gradients, norm_sums
from run import circumstances
from small_conv import microseconds

BATCH, STREAMS, WORKERS = 128, 24, 8
SIZES = {16: 32, 32: 16, 64: 8}


@dataclass(frozen=True)
class Tensors:
    """Of one layer: activations, a convolution's weight, and a norm's mean, 1 / deviation, gain and offset."""

    x: Tensor
    y: Tensor
    dy: Tensor
    extra: Tensor
    weight: Tensor
    norm: tuple[Tensor, Tensor, Tensor, Tensor]


def tensors(channels: int) -> Tensors:
    size = SIZES[channels]
    images = [
        torch.randn(BATCH, channels, size, size, device="cuda", dtype=torch.bfloat16).contiguous(
            memory_format=torch.channels_last
        )
        for _ in range(4)
    ]
    weight = torch.randn(channels, channels, 3, 3, device="cuda").contiguous(memory_format=torch.channels_last)
    zero, one = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
    return Tensors(*images, weight, (zero, one, one, zero))


def layer(t: Tensors, dy: Tensor, *, inside: bool, shortcut: bool) -> Tensor:
    """From a convolution's gradient to that of the convolution below; shortcut: it ends and begins there."""
    activated, extra = (t.x, t.extra) if shortcut else (None, None)
    small.small_conv_weight_gradient(t.x, dy, t.weight, 1)
    if inside:
        g, sums = small.small_conv_norm_gradient(dy, t.weight, 1, extra, activated, t.y, *t.norm, True)
    else:
        g = small.small_conv_input_gradient(dy, t.weight, 1, *t.x.shape[2:])
        g, sums = norm_sums(g if extra is None else g + extra, activated, t.y, *t.norm, True)
    return norm_gradients(g, t.y, *t.norm[:3], sums)[0]


def block(t: Tensors, *, inside: bool) -> Tensor:
    """Two layers, with the shortcut's gradient added."""
    return layer(t, layer(t, t.dy, inside=inside, shortcut=False), inside=inside, shortcut=True)


WORK: dict[str, Callable[[Tensors], object]] = {
    "layer, sums apart": lambda t: layer(t, t.dy, inside=False, shortcut=False),
    "layer, sums in conv": lambda t: layer(t, t.dy, inside=True, shortcut=False),
    "block, sums apart": lambda t: block(t, inside=False),
    "block, sums in conv": lambda t: block(t, inside=True),
    "weight gradient": lambda t: small.small_conv_weight_gradient(t.x, t.dy, t.weight, 1),
    "forward": lambda t: small.small_conv_with_moments(t.x, t.weight, 1),
}
MAIN, CONVOLUTIONS = list(WORK)[:4], ["forward", "block, sums in conv"]
TRIED = {  # convolutions
    16: [
        small.Launch(block=64, warps=4, stages=1, tiles=2),
        small.Launch(block=64, warps=4, stages=1, tiles=2, ahead=False),
        small.Launch(block=64, warps=4, stages=1, tiles=4, ahead=False),
        small.Launch(block=128, warps=8, stages=1, tiles=1, ahead=False),
        small.Launch(block=128, warps=8, stages=1, tiles=2, ahead=False),
    ],
    32: [
        small.Launch(block=64, warps=4, stages=1, tiles=2, ahead=False),
        small.Launch(block=64, warps=4, stages=1, tiles=2, pair=False, ahead=False),
        small.Launch(block=64, warps=4, stages=1, tiles=4, pair=False, ahead=False),
        small.Launch(block=64, warps=8, stages=1, tiles=4, pair=False, ahead=False),
    ],
    64: [small.Launch(block=64, warps=4, stages=1, form="taps")],
}


TRIED_WEIGHT = {  # fewer programs, fewer sums: at 64 channels four times the bytes of x and dy
    16: [
        small.Launch(block=64, warps=4, stages=2, tiles=16),
        small.Launch(block=64, warps=8, stages=1, tiles=8),
        small.Launch(block=64, warps=8, stages=2, tiles=16),
        small.Launch(block=32, warps=8, stages=2, tiles=32),
    ],
    32: [
        small.Launch(block=32, warps=4, stages=2, tiles=16, pair=False, form="row"),
        small.Launch(block=32, warps=4, stages=2, tiles=32, pair=False, form="row"),
        small.Launch(block=64, warps=8, stages=2, tiles=8, pair=False, form="row"),
    ],
    64: [
        small.Launch(block=64, warps=8, stages=2, tiles=8, pair=False, form="row"),
        small.Launch(block=64, warps=8, stages=2, tiles=16, pair=False, form="row"),
        small.Launch(block=32, warps=8, stages=2, tiles=16, pair=False, form="row"),
    ],
}


@dataclass(frozen=True)
class Case:
    """Work on so many channels, with its own launch (None: as set)."""

    channels: int
    work: str
    launch: small.Launch | None = None

    def set(self) -> Callable[[], None]:
        """Make the module use it; gives what undoes that."""
        table = small.GRADIENT if self.work == "weight gradient" else small.CONV
        before = table[self.channels]
        table[self.channels] = self.launch or before
        return lambda: table.update({self.channels: before})

    def described(self) -> str:
        how = self.launch
        if how is None:
            return "as set"
        rows = "" if how.form == "taps" or self.work == "weight gradient" else ", ahead" if how.ahead else ", in turn"
        pair = "pair" if how.pair else "one"
        return f"{how.block} x {how.tiles}, {how.warps} w, {how.stages} st, {how.form}, {pair}{rows}"


def cases() -> list[Case]:
    found = []
    for channels in SIZES:
        found += [Case(channels, work) for work in MAIN]
        found += [Case(channels, "weight gradient", how) for how in (None, *TRIED_WEIGHT[channels])]
        found += [Case(channels, work, how) for work in CONVOLUTIONS for how in (None, *TRIED[channels])]
    return list(dict.fromkeys(found))


def compile_some(work: list[Case]) -> None:
    """In a process of its own: fills Triton's cache."""
    for case in work:
        undo = case.set()
        WORK[case.work](tensors(case.channels))
        torch.cuda.synchronize()
        undo()


def measured(case: Case, sets: list[Tensors]) -> dict:
    undo = case.set()
    work = WORK[case.work]
    work(sets[0])
    alone, packed = (microseconds(lambda i: work(sets[i]), n, repeats=r) for n, r in ((1, 10), (STREAMS, 4)))
    undo()
    print(f"{case.channels:3} {case.work:20} {case.described():40} {alone:8.2f} {packed:8.2f}", flush=True)
    return {"channels": case.channels, "work": case.work, "launch": case.described(), "alone": alone, "packed": packed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = cases()
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        pool.map(compile_some, [work[i::WORKERS] for i in range(WORKERS)])
    print(f"{'ch':>3} {'work':20} {'launch':40} {'alone':>8} {'x' + str(STREAMS):>8}  us", flush=True)
    rows = []
    for channels in SIZES:
        sets = [tensors(channels) for _ in range(STREAMS)]
        rows += [measured(case, sets) for case in work if case.channels == channels]
    if options.json is not None:
        record = {
            **circumstances(gpu=True),
            "unit": f"microseconds, batch {BATCH}; packed: {STREAMS} side by side, per one",
            "rows": rows,
        }
        options.json.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
