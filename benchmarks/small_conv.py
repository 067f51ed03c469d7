"""The small convolutions' launch settings, measured: one call alone and eight side by side, against cuDNN.

PYTHONPATH=src:benchmarks python3 benchmarks/small_conv.py --json small_conv.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from dataclasses import asdict
from pathlib import Path

import torch

import deepauc.kernels.small_conv as small
from run import circumstances

BATCH, STREAMS, REPEATS = 128, 8, 10
SHAPES = {  # name: channels in, out, size in, stride
    "stem": (3, 16, 32, 1),
    "16": (16, 16, 32, 1),
    "32": (32, 32, 16, 1),
    "64": (64, 64, 8, 1),
    "16-32": (16, 32, 32, 2),
    "32-64": (32, 64, 16, 2),
}
KINDS = ("forward", "input", "weight")


def settings(shape: str, kind: str) -> list[small.Launch]:
    """Launches to try."""
    channels = SHAPES[shape][0] if kind != "input" else SHAPES[shape][1]
    strided = SHAPES[shape][3] > 1
    if shape == "stem" and kind == "input":
        return []
    if kind == "weight":
        forms = [("rows", True), ("row", True), ("row", False)] if channels < 64 else [("row", True), ("row", False)]
        return [
            small.Launch(block=block, warps=warps, stages=stages, tiles=tiles, pair=pair, form=form)
            for (form, pair), block, warps, stages, tiles in itertools.product(
                forms, (32, 64, 128), (4, 8), (2,), (4, 8, 16)
            )
            if not (strided and pair)
        ]
    found = []
    for block, warps, stages in itertools.product((64, 128, 256), (4, 8), (1, 2)):
        if channels <= 32 and not (strided and kind == "input"):
            found += [
                small.Launch(block=block, warps=warps, stages=stages, tiles=tiles, pair=not strided)
                for tiles in ((1, 2, 4) if stages == 1 else (4, 8))
                if block * channels * stages <= 128 * 32
            ]
        if channels >= 16 and (strided or channels == 64):
            found.append(small.Launch(block=block, warps=warps, stages=stages, form="taps"))
    return found


def tensors(shape: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input, weight and output gradient of a shape."""
    channels, out, size, stride = SHAPES[shape]
    make = {"device": "cuda", "dtype": torch.bfloat16}
    last = torch.channels_last
    x = torch.randn(BATCH, channels, size, size, **make).contiguous(memory_format=last)
    weight = torch.randn(out, channels, 3, 3, device="cuda").contiguous(memory_format=last)
    dy = torch.randn(BATCH, out, size // stride, size // stride, **make).contiguous(memory_format=last)
    return x, weight, dy


def call(shape: str, kind: str, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    stride = SHAPES[shape][3]
    if kind == "forward":
        return small.small_conv(x, weight, stride)
    if kind == "input":
        return small.small_conv_input_gradient(dy, weight, stride, x.shape[2], x.shape[3])
    return small.small_conv_weight_gradient(x, dy, weight, stride)


def reference(shape: str, kind: str, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    mask = [kind == "input", kind == "weight", False]
    stride = [SHAPES[shape][3]] * 2
    weight = weight.to(torch.bfloat16)
    if kind == "forward":
        return torch.nn.functional.conv2d(x, weight, stride=stride, padding=1)
    both = torch.ops.aten.convolution_backward(dy, x, weight, None, stride, [1, 1], [1, 1], False, [0, 0], 1, mask)
    return both[0] if kind == "input" else both[1]


def choose(shape: str, kind: str, launch: small.Launch) -> None:
    """Make the module use this launch."""
    channels, out, _, stride = SHAPES[shape]
    if kind == "weight":
        small.GRADIENT[channels] = launch
    else:
        (small.CONV if stride == 1 else small.STRIDED)[channels if kind == "forward" else out] = launch


def microseconds(work, streams: int, repeats: int = REPEATS) -> float:
    """A call's time in a graph of many; streams > 1: side by side, each with its own tensors."""
    side = [torch.cuda.Stream() for _ in range(streams)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for i, stream in enumerate(side):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for _ in range(repeats):
                    work(i)
        for stream in side:
            main.wait_stream(stream)
    best = float("inf")
    for _ in range(5):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        best = min(best, 1e3 * start.elapsed_time(stop) / repeats / streams)
    return best


def compile_some(work: list) -> None:
    """In a process of its own: fills Triton's cache."""
    for shape, kind, launch in work:
        choose(shape, kind, launch)
        try:
            call(shape, kind, *tensors(shape))
            torch.cuda.synchronize()
        except Exception:  # reported where it is measured
            continue


def measured(shape: str, kind: str) -> list[dict]:
    """cuDNN and every launch, the best packed one first."""
    sets = [tensors(shape) for _ in range(STREAMS)]
    exact = reference(shape, kind, *sets[0]).float()
    alone, packed = (microseconds(lambda i: reference(shape, kind, *sets[i]), n) for n in (1, STREAMS))
    rows = []
    for launch in settings(shape, kind):
        choose(shape, kind, launch)
        row = {"shape": shape, "kind": kind, **asdict(launch)}
        try:
            row["error"] = float((call(shape, kind, *sets[0]).float() - exact).norm() / exact.norm())
            row["alone"], row["packed"] = (microseconds(lambda i: call(shape, kind, *sets[i]), n) for n in (1, STREAMS))
        except Exception as problem:  # too much shared memory, for one
            print(f"failed: {row}: {str(problem)[:90]}", flush=True)
            torch.cuda.synchronize()
            continue
        rows.append(row)
    rows.sort(key=lambda row: row["packed"])
    return [{"shape": shape, "kind": kind, "form": "cudnn", "alone": alone, "packed": packed}, *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    options = parser.parse_args()
    work = [(s, k, launch) for s in options.shapes for k in KINDS for launch in settings(s, k)]
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        pool.map(compile_some, [work[i::12] for i in range(12)])
    rows = []
    for shape, kind in itertools.product(options.shapes, KINDS):
        if settings(shape, kind):
            found = measured(shape, kind)
            rows += found
            for row in [*found[:3], min(found[1:], key=lambda row: row["alone"])]:
                print({name: round(v, 2) if isinstance(v, float) else v for name, v in row.items()}, flush=True)
    if options.json is not None:
        record = {**circumstances(gpu=True), "unit": "microseconds a call, batch 128", "rows": rows}
        options.json.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
