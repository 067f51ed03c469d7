"""kill -9, for real: a training process is killed again and again at odd moments, and ends as if nothing had been."""

import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import sys
import numpy as np
from deepauc import Recipe, Stage, Task, train
from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.schedule import Cosine, Steps

generator = np.random.default_rng(0)
labels = (generator.random(160) < 0.3).astype(np.float32)
images = generator.integers(0, 200, (160, 12, 12, 1)).astype(np.uint8)
parts = {"train": np.arange(120), "validation": np.arange(120, 140), "test": np.arange(140, 160)}
task = Task(name="t", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)
views = Stage(objective=Contrastive(), optimizer=SGDSpec(), epochs=6, batch_size=16, views=2, schedule=Cosine(),
              augment=Augment(crop_padding=1, rotation=10, brightness=0.2), ema=0.9)
first = Stage(objective=CrossEntropy(), optimizer=AdamSpec(), epochs=6, batch_size=16, keep="best")
second = Stage(objective=AUCMargin(), epochs=6, batch_size=16, positives_per_batch=4,
               optimizer=PESGSpec(momentum=0.5, reference="zero", alpha_step="closed", clip_value=0.1),
               augment=Augment(crop_padding=1), schedule=Steps(milestones=(3,)), ema=0.9, reset_classifier=True)
print("ready", flush=True)
recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(views, first, second), guard=True)
train(recipe, task, seed=3, run_dir=sys.argv[1])
"""


def start(folder: Path) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().strip() == "ready", process.stderr.read()
    return process


def test_killed_again_and_again_it_ends_as_if_nothing_had_been(tmp_path):
    whole = start(tmp_path / "whole")
    began = time.monotonic()  # of training alone: imports may take any time beside it
    assert whole.wait() == 0, whole.stderr.read()
    length = time.monotonic() - began
    kills = 0
    for share in (0.1, 0.5, 0.25):  # of a whole run's time: at the start, between epochs, while writing
        process = start(tmp_path / "killed")
        time.sleep(share * length)
        process.kill()
        process.wait()
        kills += not (tmp_path / "killed" / "DONE").exists()
    last = start(tmp_path / "killed")
    assert last.wait() == 0, last.stderr.read()
    assert kills > 0
    for name in ("history.csv", "scores.csv", "model.safetensors", "bundle.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
