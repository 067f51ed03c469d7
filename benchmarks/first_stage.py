"""A contrastive first stage on one GPU: 25,253 images of 32x32, batch 512, two views, bfloat16.

ResNet20, or DenseNet121 with `--network D`. The set has the size of C10 at 1 %; its pixels are random, which costs the
same as real ones. Printed: seconds of a run from the call of `train` to DONE, compilation and capture included and also
apart, and of several packed.

    PYTHONPATH=src python3 benchmarks/first_stage.py --epochs 100 --packed 1 4 --json first_stage.json
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
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine
from experiments.benchmarks.recipes import network_of
from run import circumstances

AUGMENT = Augment(
    crop_padding=0, resized_crop=(0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, greyscale=0.2
)


def recipe(network: str, epochs: int, batch: int) -> Recipe:
    stage = Stage(
        objective=Contrastive(temperature=0.2),
        optimizer=SGDSpec(lr=0.5, weight_decay=1e-4),
        epochs=epochs,
        batch_size=batch,
        views=2,
        schedule=Cosine(warmup=10 * (25_253 // batch)),
        augment=AUGMENT,
        precision="bfloat16",
    )
    return Recipe(model=network_of(network), stages=(stage,))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("R", "D", "S"), default="R")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=25_253)
    parser.add_argument("--packed", type=int, nargs="+", default=[1])
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    images = np.random.default_rng(0).integers(0, 256, (options.images, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(options.images) % 100 == 0).astype(np.float32)
    task = Task(
        name="C10-like",
        kind="binary",
        source=ArrayInputs(images),
        labels=labels,
        label_names=("y",),
        parts={"train": np.arange(options.images)},
    )
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = []
    for packed in options.packed:
        seconds = {}
        # One epoch costs what has to be compiled and captured; the difference is what the others cost.
        for epochs in (1, options.epochs):
            with tempfile.TemporaryDirectory() as folder:
                stage = recipe(options.network, epochs, options.batch)
                jobs = [
                    Job(recipe=stage, task=task, seed=seed, run_dir=Path(folder) / str(seed)) for seed in range(packed)
                ]
                began = time.perf_counter()
                runs = train_together(jobs, device=device)
                seconds[epochs] = time.perf_counter() - began
                loss = float(runs[0].history[-1]["loss"])
        row = {
            "network": options.network,
            "packed": packed,
            "epochs": options.epochs,
            "batch": options.batch,
            "seconds": seconds[options.epochs],
            "seconds_of_one_epoch": seconds[1],
            "seconds_a_run": seconds[options.epochs] / packed,
            "loss": loss,
        }
        found.append(row)
        print(json.dumps(row))
    if options.json is not None:
        record = {**circumstances(gpu=torch.device(device).type == "cuda"), "rows": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
