"""Partial AUC, average precision and PDSCA as stages: both engines, resume to the bit, what chooses the epoch."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from deepauc.data.augment.batch import Augment
from deepauc.metrics.auroc import auroc
from deepauc.metrics.partial import partial_auroc
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.optim.pdsca import PDSCA, PDSCASpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import can_be_fast, train
from deepauc.training.recipe import Recipe, Stage

MODEL = SmallCNNSpec(widths=(4, 8))
COMMON = {"epochs": 5, "batch_size": 16, "positives_per_batch": 4}
STAGES = {
    "partial AUC": Stage(objective=PartialAUC(max_fpr=0.05, min_tpr=0.8), optimizer=SGDSpec(lr=0.05), **COMMON),
    "average precision": Stage(objective=AveragePrecision(memory=0.5), optimizer=SGDSpec(lr=0.05), **COMMON),
    # 32 rows of validation; 5 steps an epoch, so that epochs end between an inner and an outer step
    "PDSCA": Stage(objective=AUCMargin(), optimizer=PDSCASpec(lr=0.05), **{**COMMON, "positives_per_batch": 3}),
}
TWO_LOSSES = "the fast engine captures one kind of step"


def recipe(name, **options):
    return Recipe(model=MODEL, stages=(replace(STAGES[name], **options),))


def files(run):
    return {p.name: p.read_bytes() for p in sorted(run.path.iterdir()) if p.name != "run.json"}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("task", ["image_task", "multilabel_task"])
def test_it_learns_and_resumes_to_the_bit(name, task, tmp_path, request):
    task = request.getfixturevalue(task)
    several = task.num_labels > 1
    whole = train(recipe(name, epochs=5 if several else 30), task, seed=1, run_dir=tmp_path / "whole")
    if not several:
        assert whole.auc("test")["spot"].value > 0.85
        return
    for wanted in (3, 8, 16):
        steps = 0

        def press(progress, wanted=wanted):
            nonlocal steps
            steps += 1
            if steps == wanted:
                os.kill(os.getpid(), signal.SIGINT)

        folder = tmp_path / str(wanted)
        with pytest.raises(KeyboardInterrupt, match="the same command"):
            train(recipe(name), task, seed=1, run_dir=folder, progress=press)
        assert files(train(recipe(name), task, seed=1, run_dir=folder)) == files(whole)


@pytest.mark.parametrize("name", ["partial AUC", "average precision"])
def test_the_fast_engine_gives_the_same(name, multilabel_task, tmp_path):
    """Memory and estimates are restored after the warm-up, and updated in place."""
    plain, fast = (
        train(recipe(name), multilabel_task, seed=1, run_dir=tmp_path / engine, engine=engine)
        for engine in ("plain", "fast")
    )
    np.testing.assert_allclose(fast.scores("test")[0], plain.scores("test")[0], rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(fast.history, plain.history, strict=True):
        assert float(mine["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-3)


def test_the_fast_engine_refuses_two_kinds_of_steps(image_task, tmp_path):
    assert not can_be_fast(recipe("PDSCA"))
    with pytest.raises(ValueError, match=TWO_LOSSES):
        train(recipe("PDSCA"), image_task, seed=1, run_dir=tmp_path, engine="fast")
    with pytest.raises(ValueError, match="leave ema out"):
        recipe("PDSCA", ema=0.9)


def test_pdsca_is_judged_by_its_own_weights(image_task, tmp_path, monkeypatch):
    """Validation and what is saved are of w, although epochs end between an inner and an outer step."""
    held = []
    put = PDSCA.weights_in_place
    monkeypatch.setattr(PDSCA, "weights_in_place", lambda self: held.append(self.outer_next) or put(self))
    run = train(recipe("PDSCA", epochs=3), image_task, seed=1, run_dir=tmp_path)
    assert held.count(True) >= 1
    scores, labels = run.scores("validation")
    assert float(run.history[-1]["validation_auc"]) == pytest.approx(float(auroc(scores, labels)))


def test_the_epoch_and_the_stage_are_chosen_by_the_objectives_own_metric(image_task, tmp_path):
    first = Stage(objective=AUCMargin(), optimizer=SGDSpec(lr=0.02), keep="best", **{**COMMON, "epochs": 2})
    last = replace(STAGES["partial AUC"], objective=PartialAUC(min_tpr=0.6), keep="best", epochs=6)
    run = train(Recipe(model=MODEL, stages=(first, last), guard=True), image_task, seed=3, run_dir=tmp_path)
    assert not any(row["validation_partial_auc"] for row in run.history[:2])
    areas = [float(row["validation_partial_auc"]) for row in run.history[2:]]
    guard = run.record.results.guard
    assert guard.chosen_by == "partial AUC (TPR above 0.6)"
    assert guard.own_values[1] == pytest.approx(max(areas))
    assert guard.winner == max(guard.own_values, key=lambda number: (guard.own_values[number], number))
    scores, labels = run.scores("validation")
    kept = partial_auroc(scores, labels, min_tpr=0.6)
    assert kept == pytest.approx(guard.own_values[guard.winner]) == pytest.approx(max(guard.own_values.values()))


def test_patience_goes_by_the_objectives_own_metric(image_task, tmp_path):
    stage = replace(STAGES["average precision"], epochs=40, patience=2)
    run = train(Recipe(model=MODEL, stages=(stage,)), image_task, seed=3, run_dir=tmp_path)
    values = [float(row["validation_ap"]) for row in run.history]
    assert len(values) < 40
    assert values.index(max(values)) == len(values) - 3


def test_mixup_is_refused_where_labels_must_be_hard():
    with pytest.raises(ValueError, match="PartialAUC takes hard ones only, so leave mixup out"):
        replace(STAGES["partial AUC"], augment=Augment(mixup=0.2))
    with pytest.raises(ValueError, match="set soft_labels=True"):
        replace(STAGES["PDSCA"], augment=Augment(mixup=0.2))
