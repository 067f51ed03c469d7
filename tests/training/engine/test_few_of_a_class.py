"""One positive row in a part, or the positives of one patient: an AUC without an interval is no reason to stop."""

import numpy as np
import pytest

from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.auroc import auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.models.build import MLPSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.scoring import part_auc


def task(labels, groups=None):
    generator = np.random.default_rng(0)
    return Task(
        name="few",
        kind="binary",
        source=ArrayInputs(generator.normal(size=(len(labels), 3)).astype(np.float32)),
        labels=np.asarray(labels, dtype=np.float32),
        label_names=("target",),
        parts={"train": np.arange(20), "validation": np.arange(20, len(labels))},
        groups=groups,
    )


@pytest.mark.parametrize("rare", [0, 1])
def test_one_row_of_a_class_says_nothing(rare):
    labels = [0, 1] * 10 + [rare] + [1 - rare] * 9
    scores = np.random.default_rng(1).normal(size=(10, 1)).astype(np.float32)
    found = part_auc(task(labels), "validation", scores)["target"]
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.value == auroc(scores[:, 0], labels[20:])


def test_two_rows_of_a_class_have_their_interval():
    labels = [0, 1] * 10 + [1, 1] + [0] * 8
    scores = np.random.default_rng(1).normal(size=(10, 1)).astype(np.float32)
    assert part_auc(task(labels), "validation", scores)["target"] == auroc_interval(scores[:, 0], labels[20:])


@pytest.mark.parametrize(
    ("held_out", "patients", "tested"),
    [
        ([1] + [0] * 9, None, False),
        ([1] * 3 + [0] * 7, ["a"] * 3 + [f"b{number}" for number in range(7)], False),  # of one patient
        ([1] * 3 + [0] * 7, ["a", "a", "c"] + [f"b{number}" for number in range(7)], True),
    ],
)
def test_a_run_of_two_stages_ends_whatever_validation_holds(tmp_path, held_out, patients, tested):
    groups = None if patients is None else np.array([f"t{number}" for number in range(20)] + patients)
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=10)
    last = Stage(objective=AUCMargin(), optimizer=PESGSpec(), epochs=1, batch_size=10, positives_per_batch=3)
    recipe = Recipe(model=MLPSpec(hidden=(4,)), stages=(first, last), guard=True)
    run = train(recipe, task([0, 1] * 10 + held_out, groups), seed=0, run_dir=tmp_path / "run")
    results = run.record.plain["results"]
    assert set(results["guard"]["last_minus_stage"]) == ({"0"} if tested else set())
    assert 0 <= results["auc"]["validation"]["target"][0] <= 1


def test_images_of_one_patient_are_not_as_many_patients():
    """As the report has it; run.json and `train --json` must not say something else."""
    labels = [0, 1] * 10 + [1] * 6 + [0] * 6
    patients = np.array([f"t{number}" for number in range(20)] + [f"p{number // 3}" for number in range(12)])
    scores = np.repeat([0.4, 0.2, 0.3, 0.1], 3)[:, None].astype(np.float32)  # a patient's images are alike
    found = part_auc(task(labels, patients), "validation", scores)["target"]
    assert found == auroc_interval(scores[:, 0], labels[20:], groups=patients[20:])
    alone = part_auc(task(labels), "validation", scores)["target"]
    assert found.high - found.low > alone.high - alone.low
    of_one = patients.copy()
    of_one[20:26] = "p0"
    found = part_auc(task(labels, of_one), "validation", scores)["target"]
    assert (found.value, found.low, found.high) == (alone.value, 0.0, 1.0)


def test_uncertain_labels_in_validation_are_no_reason_to_stop(tmp_path):
    """-1 is for a stage's policy to decide; the guard's paired test goes by the labels that are known."""
    labels = [0, 1] * 10 + [1, 0, -1, 1, 0, 0, -1, 1, 0, 0]
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=10)
    last = Stage(objective=AUCMargin(), optimizer=PESGSpec(), epochs=1, batch_size=10)
    recipe = Recipe(model=MLPSpec(hidden=(4,)), stages=(first, last), guard=True)
    run = train(recipe, task(labels), seed=0, run_dir=tmp_path / "run")
    test = run.record.plain["results"]["guard"]["last_minus_stage"]["0"]
    aucs = run.record.plain["results"]["guard"]["validation_auc"]
    assert test["difference"] == pytest.approx(aucs["1"] - aucs["0"])
