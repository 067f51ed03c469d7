"""One optimizer step on the parameters of ResNet20 and DenseNet121: PESG, torch's SGD, LibAUC's PESG where importable.

    python benchmarks/pesg_step.py            one CPU thread; the record that README quotes:
    python benchmarks/run.py --only pesg_step --name pesg-step-cpu
    python benchmarks/pesg_step.py --gpu      eager, and captured in a CUDA graph; the kernel is checked first

Only `optimizer.step()` runs, on gradients that are there. Words moved a parameter at the least, reads and writes: SGD
3, with momentum 5, PESG 6 (v, g, v_ref, drift; v and drift written), with momentum 8. On the GPU that many bytes over
the speed of a device-to-device copy is the floor. Every contender steps through enough replicas of the network, one
after the other, that none finds its tensors in the L2 cache, as after a backward pass; "one replica" repeats the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from deepauc.models.resnet20 import ResNet20
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.optim.pesg import PESG
from pesg_kernel_check import Check, check_kernel
from timing import best_in_turn, one_thread, readable

Row = dict[str, Any]
Shapes = list[tuple[int, ...]]
Device = Literal["cpu", "cuda"]
BASELINE = "SGD fused, momentum .9"
COLD_BYTES = 400e6  # of parameters, gradients and state together: eight times the L2 cache of an H200
WORDS = {"SGD": (3, 5), "PESG": (6, 8), "LibAUC": (6, 8)}  # without and with momentum
ARRAYS = {3: 2, 5: 3, 6: 4, 8: 5}  # words moved -> arrays that hold them


def cpu_rows() -> list[Row]:
    """One row a network and contender: seconds, and the multiple of fused SGD with momentum."""
    rows: list[Row] = []
    with one_thread():
        for network, shapes in networks().items():
            made = {name: make(shapes, "cpu") for name, make in contenders().items()}
            jobs = {name: optimizer.step for name, optimizer in made.items() if optimizer is not None}
            seconds = best_in_turn(
                jobs, seconds=20.0, least=10
            )  # of minima: in 4 s a shared machine had too few quiet moments
            rows += [
                {
                    "network": network,
                    "tensors": len(shapes),
                    "parameters": count(shapes),
                    "contender": name,
                    "seconds": spent,
                    "over_fused_sgd": spent / seconds[BASELINE],
                }
                for name, spent in seconds.items()
            ]
    return rows


def gpu_checks() -> list[Check]:
    """What the times are worth nothing without; empty without CUDA."""
    return check_kernel() if torch.cuda.is_available() else []


def gpu_rows() -> list[Row]:
    """Eager and captured steps beside the floor; empty without CUDA."""
    if not torch.cuda.is_available():
        return []
    bandwidth = copy_bandwidth()
    print(f"device-to-device copy: {bandwidth / 1e12:.2f} TB/s, bytes read and written", flush=True)
    rows = []
    for network, shapes in networks().items():
        for name, make in contenders().items():
            row = _gpu_row(name, make, shapes, bandwidth)
            if row is not None:
                rows.append({"network": network, "tensors": len(shapes), "parameters": count(shapes), **row})
                rows[-1]["copy_bytes_per_second"] = bandwidth
            torch.cuda.empty_cache()
    return rows


def as_table(rows: list[Row]) -> str:
    """A markdown table of either kind of rows."""
    if "floor" not in rows[0]:
        lines = ["| network | optimizer | step | over fused SGD with momentum |", "|---|---|---:|---:|"]
        for row in rows:
            lines.append(
                f"| {row['network']} ({row['tensors']} tensors) | {row['contender']} | {readable(row['seconds'])} "
                f"| {row['over_fused_sgd']:.2f}x |"
            )
        return "\n".join(lines)
    lines = [
        "| network | optimizer | words | floor | graph | graph / floor | graph, one replica | eager |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        graph, warm = (readable(row[key]) if row[key] is not None else "-" for key in ("graph", "graph_one_replica"))
        ratio = f"{row['graph'] / row['floor']:.2f}x" if row["graph"] is not None else "-"
        lines.append(
            f"| {row['network']} ({row['tensors']} tensors) | {row['contender']} | {row['words']} "
            f"| {readable(row['floor'])} | {graph} | {ratio} | {warm} | {readable(row['eager'])} |"
        )
    return "\n".join(lines)


def networks() -> dict[str, Shapes]:
    """The shapes of the parameters, one output."""
    return {"ResNet20": [tuple(p.shape) for p in ResNet20().parameters()], "DenseNet121": densenet121_shapes()}


def densenet121_shapes() -> Shapes:
    """Growth 32, blocks of 6, 12, 24, 16 layers, bottlenecks of 128 channels (Huang et al. 2017); 364 tensors."""
    shapes: Shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for block, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            shapes += [(channels,), (channels,), (128, channels, 1, 1), (128,), (128,), (32, 128, 3, 3)]
            channels += 32
        if block < 3:
            shapes += [(channels,), (channels,), (channels // 2, channels, 1, 1)]
            channels //= 2
    return [*shapes, (channels,), (channels,), (1, channels), (1,)]


def count(shapes: Shapes) -> int:
    """Number of parameters."""
    return sum(torch.Size(shape).numel() for shape in shapes)


Maker = Callable[[Shapes, Device], torch.optim.Optimizer | None]


def contenders() -> dict[str, Maker]:
    """Name -> an optimizer on fresh parameters with gradients; None where LibAUC cannot be imported."""
    makers: dict[str, Maker] = {}
    for momentum, suffix in ((0.0, ""), (0.9, ", momentum .9")):
        makers[f"PESG{suffix}"] = lambda shapes, device, mu=momentum: _pesg(shapes, device, mu)  # type: ignore[misc]
        for form in ("fused", "foreach"):
            makers[f"SGD {form}{suffix}"] = lambda shapes, device, mu=momentum, form=form: torch.optim.SGD(  # type: ignore[misc]
                with_gradients(shapes, device), lr=1e-3, momentum=mu, weight_decay=1e-4, **{form: True}
            )
        makers[f"LibAUC PESG{suffix}"] = lambda shapes, device, mu=momentum: _libauc(shapes, device, mu)  # type: ignore[misc]
    return makers


def with_gradients(shapes: Shapes, device: Device) -> list[nn.Parameter]:
    """Random parameters with random gradients, seeded."""
    generator = torch.Generator(device).manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator, device=device)
    return parameters


def _pesg(shapes: Shapes, device: Device, momentum: float) -> PESG:
    objective = AUCMarginLoss(prior=0.1).to(device)
    optimizer = PESG(with_gradients(shapes, device), objective, lr=1e-3, weight_decay=1e-4, momentum=momentum)
    for parameter in objective.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    return optimizer


def _libauc(shapes: Shapes, device: Device, momentum: float) -> torch.optim.Optimizer | None:
    try:
        from libauc.losses import AUCMLoss
        from libauc.optimizers import PESG as TheirPESG
    except ImportError:
        return None
    loss = AUCMLoss(device=torch.device(device))
    for parameter in loss.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    return TheirPESG(
        with_gradients(shapes, device),
        loss_fn=loss,
        lr=1e-3,
        momentum=momentum,
        weight_decay=1e-4,
        epoch_decay=2e-3,
        device=torch.device(device),
    )


def _gpu_row(name: str, make: Maker, shapes: Shapes, bandwidth: float) -> Row | None:
    words = WORDS[name.split(maxsplit=1)[0].rstrip(",")][", momentum" in name]
    replicas = max(1, round(COLD_BYTES / (4 * count(shapes) * ARRAYS[words])))
    optimizers = [optimizer for _ in range(replicas) if (optimizer := make(shapes, "cuda")) is not None]
    if not optimizers:
        return None
    capturable = not name.startswith("LibAUC")  # it puts a new tensor behind every parameter
    return {
        "contender": name,
        "words": words,
        "floor": 4 * words * count(shapes) / bandwidth,
        "graph": captured_seconds(optimizers) if capturable else None,
        "graph_one_replica": captured_seconds(optimizers[:1] * 20) if capturable else None,
        "eager": eager_seconds(optimizers),
        "replicas": replicas,
    }


def captured_seconds(optimizers: list[torch.optim.Optimizer], *, runs: int = 7) -> float:
    """Seconds a step: all optimizers step once in one graph; the best of `runs` timings of many replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for optimizer in optimizers:
            optimizer.step()  # state is made, kernels are compiled
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for optimizer in optimizers:
            optimizer.step()
    replays = max(5, 2000 // len(optimizers))
    best = float("inf")
    for run in range(runs + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        if run:  # the first one warms up
            best = min(best, start.elapsed_time(end) / 1e3)
    return best / replays / len(optimizers)


def eager_seconds(optimizers: list[torch.optim.Optimizer], *, runs: int = 5) -> float:
    """Seconds a step as Python calls it, the device awaited at the end of each timing."""
    rounds = max(1, 20 // len(optimizers))
    best = float("inf")
    for run in range(runs + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            for optimizer in optimizers:
                optimizer.step()
        torch.cuda.synchronize()
        if run:
            best = min(best, time.perf_counter() - start)
    return best / rounds / len(optimizers)


def copy_bandwidth(size: int = 2**28, *, runs: int = 10, copies: int = 10) -> float:
    """Bytes a second of a device-to-device copy of 1 GiB, reads and writes both counted; best of `runs`."""
    source, target = torch.randn(size, device="cuda"), torch.empty(size, device="cuda")
    best = float("inf")
    for _ in range(runs + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(copies):
            target.copy_(source)
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return 2 * 4 * size * copies / best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    if parser.parse_args().gpu:
        for check in gpu_checks():
            print("holds" if check["holds"] else "FAILS", check["what"])
        print(as_table(gpu_rows()))
    else:
        print(as_table(cpu_rows()))
