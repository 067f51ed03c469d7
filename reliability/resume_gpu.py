"""A deterministic run on a GPU, killed with kill -9, goes on to the same bytes: the campaign `resume-gpu`.

    PYTHONPATH=src python3 reliability/resume_gpu.py

Cross-entropy, then AUC-M, bfloat16, averaged weights, the plain engine; a kill after about 55, 70 and 85 % of the time
that the run left alone takes. Compared: network, scores of all parts, test AUC of each epoch.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from record import Row, write_record

COMPARED = ("model.safetensors", "scores.csv", "test_curve.csv")
SHARES = (0.55, 0.7, 0.85)


def train_here(folder: str) -> None:
    """In a process of its own: made-up images of 32 pixels, 47 steps an epoch, 3 + 4 epochs."""
    from deepauc.data.augment.batch import Augment
    from deepauc.data.task import ArrayInputs, Task
    from deepauc.models.build import ResNet20Spec
    from deepauc.objectives.auc_margin import AUCMargin
    from deepauc.objectives.baselines import CrossEntropy
    from deepauc.optim.pesg import PESGSpec
    from deepauc.optim.standard import SGDSpec
    from deepauc.training.engine import trainer
    from deepauc.training.engine.loop import train
    from deepauc.training.recipe import Recipe, Stage

    trainer.CHECKPOINT_SECONDS = 0.2  # so that a kill falls between checkpoints inside an epoch too
    generator = np.random.default_rng(0)
    labels = (generator.random(4000) < 0.1).astype(np.float32)
    images = generator.integers(0, 160, (4000, 32, 32, 3)).astype(np.uint8)
    images[:, 8:14, 8:14] += (30 * labels).astype(np.uint8)[:, None, None, None]
    parts = {"train": np.arange(3000), "validation": np.arange(3000, 3500), "test": np.arange(3500, 4000)}
    task = Task(name="s", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)
    common = {"batch_size": 64, "precision": "bfloat16", "augment": Augment(), "positives_per_batch": 8, "ema": 0.9}
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=3, **common)
    second = Stage(objective=AUCMargin(), optimizer=PESGSpec(lr=0.05), epochs=4, **common)
    recipe = Recipe(model=ResNet20Spec(), stages=(first, second), deterministic=True, test_curve=True)
    train(recipe, task, seed=0, run_dir=folder, device="cuda", engine="plain")


def started(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(folder)])


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in COMPARED]


def main() -> int:
    began = time.monotonic()
    epochs, same = [], 0
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        if started(whole).wait() != 0:
            return 1
        seconds = time.monotonic() - began
        for share in SHARES:
            folder = Path(place) / str(share)
            process = started(folder)
            time.sleep(share * seconds)
            process.kill()
            process.wait()
            history = folder / "history.csv"
            epochs.append(len(history.read_text().splitlines()) - 1 if history.exists() else 0)
            same += started(folder).wait() == 0 and digests(folder) == digests(whole)
    device, after = torch.cuda.get_device_name(), ", ".join(map(str, epochs))
    note = f"{device}; killed after {after} of 7 epochs; {', '.join(COMPARED)} equal to the byte"
    row = Row(what="kill -9 of a deterministic run on a GPU", trials=len(SHARES), survivors=same, note=note)
    about = "Cross-entropy, then AUC-M, in bfloat16 with averaged weights on a GPU: killed, and run again to its end."
    command = "PYTHONPATH=src python3 reliability/resume_gpu.py"
    held = write_record("resume-gpu", command=command, about=about, rows=[row], seconds=time.monotonic() - began)
    return 0 if held else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train_here(sys.argv[1])
    else:
        sys.exit(main())
