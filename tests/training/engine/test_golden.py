"""A refactor must leave this run's losses alone: the trajectory under a fixed seed, written down once.

To write it anew after a change that is meant to change it:
DEEPAUC_WRITE_GOLDEN=1 pytest tests/training/engine/test_golden.py
"""

import csv
import json
import os
from pathlib import Path

import pytest

from deepauc.data.augment.batch import Augment
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps

GOLDEN = Path(__file__).parents[2] / "golden" / "training_run.json"
COLUMNS = ("loss", "A_M", "gap", "a", "b", "alpha", "validation_auc")

RECIPE = Recipe(
    model=SmallCNNSpec(widths=(4, 8)),
    stages=(
        Stage(objective=CrossEntropy(label_smoothing=0.05), optimizer=SGDSpec(lr=0.02), epochs=3, batch_size=16),
        Stage(
            objective=AUCMargin(margin=0.6),
            optimizer=PESGSpec(lr=0.05, gamma=0.01, weight_decay=1e-4),
            epochs=4,
            batch_size=16,
            positives_per_batch=4,
            reset_classifier=True,
            schedule=Steps(milestones=(2,)),
            augment=Augment(crop_padding=1, rotation=5, brightness=0.1),
        ),
    ),
    alpha_curve=True,
)


def test_the_run_is_the_one_written_down(image_task, tmp_path):
    run = train(RECIPE, image_task, seed=7, run_dir=tmp_path / "run", device="cpu")
    found = {name: [float(row[name]) for row in run.history if row[name]] for name in COLUMNS}
    with (run.path / "alpha.csv").open() as file:
        found["alpha of each step"] = [float(row["alpha0"]) for row in csv.DictReader(file)]
    if os.environ.get("DEEPAUC_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert found.keys() == golden.keys()
    for name, values in golden.items():
        # Processors round differently: a part in a thousand after seven epochs, not to the bit.
        assert found[name] == pytest.approx(values, rel=2e-3, abs=2e-3), name
