"""A whole training step on one GPU: ours alone and packed, plain, CE + fused SGD, and LibAUC 2.0.1 where importable.

The set has the size of C10 at 1 % (25,253 images of 32x32, 253 positives, batch 128, 197 steps an epoch); its pixels
are random with a signal, which costs the same as real ones. A step's time is an epoch's over its steps, tables
included.

    PYTHONPATH=src:benchmarks python3 benchmarks/fast_step.py --json fast-step.json
    PYTHONPATH=src:benchmarks python3 benchmarks/fast_step.py --objectives --json objectives-step.json
    PYTHONPATH=src:benchmarks python3 benchmarks/fast_step.py --objectives --device cpu --images 260   # a trial

--objectives: every objective beside cross-entropy, alone and packed. Every second step of PDSCA is an inner one: its
time is the mean of both kinds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.kernels import tile_conv
from deepauc.models.build import ResNet20Spec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.claim import claim_folder
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.loop import run_epoch
from deepauc.training.engine.trainer import Trainer
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import code_text
from deepauc.training.run.interrupt import InterruptFlag
from run import circumstances

CUDA = torch.device("cuda")
MODELS = {
    "ResNet20": ResNet20Spec(activation="elu"),
    "DenseNet121": TimmSpec(name="densenet121", activation="elu"),
    "DenseNet121-dropout": TimmSpec(name="densenet121", activation="elu", proj_drop_rate=0.3),
    "DenseNet121-small-stem": TimmSpec(name="densenet121", activation="elu", small_stem=True),
    "ResNet18-small-stem": TimmSpec(name="resnet18", small_stem=True),
}

OBJECTIVES = {
    "CE": CrossEntropy(),
    "all pairs": PairwiseAUC(),
    "partial AUC, FPR <= .3": PartialAUC(max_fpr=0.3),
    "partial AUC, TPR >= .8": PartialAUC(min_tpr=0.8),
    "partial AUC, both": PartialAUC(max_fpr=0.3, min_tpr=0.8),
    "AP": AveragePrecision(),
}


def c10_like(size: int = 32, negatives: int = 25_000, positives: int = 253) -> Task:
    """As many images as C10 at 1 % has."""
    generator = np.random.default_rng(0)
    labels = (np.arange(negatives + positives) < positives).astype(np.float32)
    images = generator.integers(0, 200, (len(labels), size, size, 3), dtype=np.uint8)
    images[:positives, :8, :8] += 50
    parts = {"train": np.arange(len(labels))}
    return Task(
        name="C10-like", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts
    )


def recipe(model: str, loss: str, *, precision: str = "bfloat16", augment: bool = True, batch: int = 128) -> Recipe:
    """AUC-M + BSN + PESG, AUC-M + PDSCA, or another loss + SGD with momentum, over plain batches."""
    common = {"epochs": 1000, "batch_size": batch, "precision": precision, "augment": Augment() if augment else None}
    if loss == "AUC-M":
        stage = Stage(objective=AUCMargin(), optimizer=PESGSpec(weight_decay=1e-4), bound="l2", **common)
    elif loss == "PDSCA":
        stage = Stage(objective=AUCMargin(), optimizer=PDSCASpec(weight_decay=1e-4), **common)
    else:
        stage = Stage(objective=OBJECTIVES[loss], optimizer=SGDSpec(weight_decay=1e-4), **common)
    return Recipe(model=MODELS[model], stages=(stage,))


def epoch_seconds(
    recipes: list[Recipe],
    task: Task,
    *,
    engine: str,
    epochs: int,
    compiled: bool = True,
    stacked: bool | None = None,
    device: torch.device = CUDA,
) -> dict:
    """Best of some epochs after one that warms up; the start-up beside it."""
    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        trainers = [
            Trainer(r, task, i, claim_folder(r, task, seed=i, run_dir=Path(folder) / str(i), device=device), device,
                    InterruptFlag(), None)
            for i, r in enumerate(recipes)
        ]  # fmt: skip
        waiting = [trainer.epochs() for trainer in trainers]
        began = time.perf_counter()
        fast = FastEngine(trainers, compiled=compiled, stacked=stacked) if engine == "fast" else None
        times = []
        for number in range(epochs + 1):
            work = [next(epoch) for epoch in waiting]
            synchronise()
            start = time.perf_counter()
            if fast is not None:
                fast.run_epoch(work)
            else:
                for trainer, epoch in zip(trainers, work, strict=True):
                    run_epoch(trainer, epoch)
            synchronise()
            times.append(time.perf_counter() - start)
            if number == 0:
                start_up = time.perf_counter() - began
        steps = trainers[0].stream.per_epoch
    best = min(times[1:])
    result = {
        "runs": len(recipes),
        "step_ms": 1e3 * best / steps,
        "step_ms_a_run": 1e3 * best / steps / len(recipes),
        "start_up_s": start_up,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0,
        "images_a_second": trainers[0].stream.batch_size * steps * len(recipes) / best,
    }
    del trainers, waiting, fast
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return result


def libauc_step(model_name: str, task: Task, steps: int = 40) -> dict | None:
    """LibAUC 2.0.1's AUCMLoss and PESG in a plain loop in float32, data already on the GPU."""
    try:
        from libauc.losses import AUCMLoss
        from libauc.optimizers import PESG as TheirPESG
    except ImportError:
        return None
    torch.manual_seed(0)
    model = MODELS[model_name].build(in_channels=3, num_outputs=1).cuda()
    loss_fn = AUCMLoss()
    optimizer = TheirPESG(model.parameters(), loss_fn=loss_fn, lr=0.1, margin=1.0, epoch_decay=0.002, weight_decay=1e-4)
    images = torch.from_numpy(task.source.array).cuda()
    labels = torch.from_numpy(task.labels.copy()).cuda()
    times = []
    for _ in range(steps):
        rows = torch.randint(len(labels), (128,), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        x = images[rows].permute(0, 3, 1, 2).float() / 255
        loss = loss_fn(torch.sigmoid(model(x)), labels[rows].unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {"runs": 1, "step_ms": 1e3 * float(np.median(times[5:])), "step_ms_a_run": 1e3 * float(np.median(times[5:]))}


def gpu_rows(
    cases: list[str], *, deadline: float, device: torch.device = CUDA, images: int | None = None
) -> list[dict]:
    """Each case is MODEL/LOSS/ENGINE/RUNS, ENGINE one of fast, streams, plain, libauc.

    streams: the fast engine with a stream for every run, kernels not shared; -uncompiled behind either: without
    torch.compile. The short `uncompiled` is fast-uncompiled.
    """
    task = c10_like() if images is None else c10_like(negatives=images, positives=max(images // 100, 1))
    rows: list[dict] = []
    began = time.perf_counter()
    for case in cases:
        if time.perf_counter() - began > deadline:
            print(f"not run for lack of time: {case}", flush=True)
            continue
        model, loss, engine, runs = case.split("/")
        try:
            if engine == "libauc":
                found = libauc_step(model, task)
            else:
                epochs = 3 if model == "ResNet20" else 1
                found = epoch_seconds(
                    [recipe(model, loss)] * int(runs),
                    task,
                    engine="plain" if engine == "plain" else "fast",
                    epochs=1 if engine == "plain" else epochs,
                    compiled="uncompiled" not in engine,
                    stacked=False if engine.startswith("streams") else None,
                    device=device,
                )
        except Exception as error:  # a case that fails must not cost the others
            print(f"failed: {case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        if found is not None:
            rows.append({"model": model, "loss": loss, "engine": engine, **found})
            print(json.dumps(rows[-1]), flush=True)
    return rows


CASES = [
    "ResNet20/AUC-M/libauc/1",
    "ResNet20/AUC-M/fast/1",
    "ResNet20/CE/fast/1",
    "ResNet20/AUC-M/fast/8",
    "ResNet20/AUC-M/fast/24",
    "ResNet20/CE/fast/24",
    "DenseNet121/AUC-M/libauc/1",
    "DenseNet121/AUC-M/fast/1",
    "DenseNet121/CE/fast/1",
    "DenseNet121/AUC-M/fast/20",
    "DenseNet121/CE/fast/20",
    "DenseNet121/AUC-M/streams-uncompiled/1",
    "DenseNet121/AUC-M/streams-uncompiled/4",
]
# Cross-entropy first and last: what it drifts by in between is no objective's.
OBJECTIVE_CASES = [f"ResNet20/{loss}/fast/{runs}" for runs in (1, 24) for loss in (*OBJECTIVES, "AUC-M", "PDSCA", "CE")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--objectives", action="store_true", help="the cases of all objectives beside cross-entropy")
    parser.add_argument("--device", type=torch.device, default=CUDA, help="cpu: a trial, whose times say nothing")
    parser.add_argument("--images", type=int, help="negatives of the set, for a trial")
    parser.add_argument("--deadline", type=float, default=400.0, help="seconds after which no case is started")
    parser.add_argument("--rows", action="store_true", help="small convolutions by rows of taps, not by tiles")
    parser.add_argument("--json", type=Path, help="the record; rows of the same code in it are kept")
    options = parser.parse_args()
    record = {**circumstances(gpu=options.device.type == "cuda"), "rows": []}
    if options.json is not None and options.json.exists():
        before = json.loads(options.json.read_text())
        record["rows"] = before["rows"] if code_text(before) == code_text(record) else []
    if options.rows:
        tile_conv.CONV.clear()
        tile_conv.GRADIENT.clear()
    cases = OBJECTIVE_CASES if options.objectives else options.cases
    for row in gpu_rows(cases, deadline=options.deadline, device=options.device, images=options.images):
        record["rows"].append({**row, "engine": row["engine"] + "-rows"} if options.rows else row)
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
