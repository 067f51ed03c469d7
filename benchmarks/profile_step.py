"""Which kernels a step of the fast engine spends its time in: launches and microseconds a step, the largest first.

PYTHONPATH=src:benchmarks python3 benchmarks/profile_step.py DenseNet121/AUC-M/20 ResNet20/AUC-M/24
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deepauc.training.engine.claim import claim_folder
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.trainer import Trainer
from deepauc.training.run.interrupt import InterruptFlag
from fast_step import c10_like, recipe

SHOWN = 22


def profiled(case: str) -> list[str]:
    """Case: MODEL/LOSS/RUNS. One epoch of 20 steps, after one that compiles and captures."""
    model, loss, runs = case.split("/")
    device, task, made = torch.device("cuda"), c10_like(negatives=2500, positives=60), recipe(model, loss)
    with tempfile.TemporaryDirectory() as folder:
        trainers = []
        for seed in range(int(runs)):
            place = claim_folder(made, task, seed=seed, run_dir=Path(folder) / str(seed), device=device)
            trainers.append(Trainer(made, task, seed, place, device, InterruptFlag(), None))
        waiting = [trainer.epochs() for trainer in trainers]
        engine = FastEngine(trainers)
        engine.run_epoch([next(epochs) for epochs in waiting])
        work = [next(epochs) for epochs in waiting]
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            engine.run_epoch(work)
            torch.cuda.synchronize()
    steps = trainers[0].stream.per_epoch
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in found.events():
        if event.device_type.name == "CUDA":
            totals[event.name][0] += 1 / steps
            totals[event.name][1] += event.time_range.elapsed_us() / steps
    launches, busy = (sum(column) for column in zip(*totals.values(), strict=True))
    largest = sorted(totals.items(), key=lambda item: -item[1][1])[:SHOWN]
    head = f"{case}: {launches:.0f} kernels and {busy / 1e3:.3f} ms of them a step"
    return [head, *(f"{us:9.1f} us {count:7.1f} x  {name[:100]}" for name, (count, us) in largest)]


def main() -> None:
    for case in sys.argv[1:]:
        print("\n".join(profiled(case)), flush=True)


if __name__ == "__main__":
    main()
