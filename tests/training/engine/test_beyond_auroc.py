"""Partial AUC, average precision and PDSCA as stages: both engines, resume to the bit, what chooses the epoch."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.metrics.auroc import auroc
from deepauc.metrics.partial import partial_auroc
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.optim.pdsca import PDSCA, PDSCASpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.fast import fast_step
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import can_be_fast, train
from deepauc.training.engine.trainer import Trainer
from deepauc.training.recipe import Recipe, Stage
from tests.training.watched import ctrl_c_at

MODEL = SmallCNNSpec(widths=(4, 8))
COMMON = {"epochs": 5, "batch_size": 16, "positives_per_batch": 4}
STAGES = {
    "partial AUC": Stage(objective=PartialAUC(max_fpr=0.05, min_tpr=0.8), optimizer=SGDSpec(lr=0.05), **COMMON),
    "average precision": Stage(objective=AveragePrecision(memory=0.5), optimizer=SGDSpec(lr=0.05), **COMMON),
    # 32 rows of validation; 5 steps an epoch, so that epochs end between an inner and an outer step
    "PDSCA": Stage(objective=AUCMargin(), optimizer=PDSCASpec(lr=0.05), **{**COMMON, "positives_per_batch": 3}),
}


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
        folder = tmp_path / str(wanted)
        with pytest.raises(KeyboardInterrupt, match="the same command"):
            train(recipe(name), task, seed=1, run_dir=folder, progress=ctrl_c_at(wanted))
        assert files(train(recipe(name), task, seed=1, run_dir=folder)) == files(whole)


@pytest.mark.parametrize("name", STAGES)
def test_the_fast_engine_gives_the_same(name, multilabel_task, tmp_path):
    """Memory and estimates are restored after the warm-up, and updated in place."""
    plain, fast = (
        train(recipe(name), multilabel_task, seed=1, run_dir=tmp_path / engine, engine=engine)
        for engine in ("plain", "fast")
    )
    np.testing.assert_allclose(fast.scores("test")[0], plain.scores("test")[0], rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(fast.history, plain.history, strict=True):
        assert float(mine["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-3)


def test_in_both_engines_pdscas_losses_really_take_turns(image_task, tmp_path, monkeypatch):
    """Inner and outer updates alternate, and each is of the gradients of its own loss: alpha has one in outer steps."""
    for engine in ("plain", "fast"):
        seen = []
        for kind in ("_inner", "_outer"):
            step = getattr(PDSCA, kind)

            def noted(self, kind=kind, step=step, seen=seen):
                seen.append((kind, self.objective.alpha.grad is not None))
                step(self)

            monkeypatch.setattr(PDSCA, kind, noted)
        train(recipe("PDSCA", epochs=3), image_task, seed=1, run_dir=tmp_path / engine, engine=engine)
        monkeypatch.undo()
        assert len(seen) > 12
        assert seen == [("_inner", False), ("_outer", True)] * (len(seen) // 2) + [("_inner", False)] * (len(seen) % 2)


def test_pdsca_is_packed_with_others(image_task, tmp_path):
    recipes = [recipe("PDSCA"), recipe("partial AUC", positives_per_batch=3), recipe("PDSCA", batch_size=16)]
    jobs = [Job(recipe=r, task=image_task, seed=s, run_dir=tmp_path / str(s)) for s, r in enumerate(recipes)]
    for job, packed in zip(jobs, train_together(jobs, device="cpu"), strict=True):
        alone = train(job.recipe, image_task, seed=job.seed, run_dir=tmp_path / f"alone{job.seed}", engine="fast")
        assert files(packed) == files(alone)


class Replayed:
    """A CUDA graph in small: what was launched under the host's state at capture is launched again, whatever that is
    by then."""

    def __init__(self, units):
        self.units, self.optimizers = units, [step.optimizer for unit in units for step in unit.steps]
        self.turns = [optimizer.outer_next for optimizer in self.optimizers if isinstance(optimizer, PDSCA)]
        for optimizer in self.optimizers:
            if isinstance(optimizer, PDSCA):
                optimizer.pass_turn()  # as its step does while it is captured

    def replay(self):
        taking = [optimizer for optimizer in self.optimizers if isinstance(optimizer, PDSCA)]
        now = [optimizer.outer_next for optimizer in taking]
        assert now == self.turns  # the engine has chosen the graph of this turn
        for unit in self.units:
            unit()
        for optimizer in taking:
            optimizer.pass_turn()  # a graph's replay changes nothing on the host


@pytest.fixture
def captured(monkeypatch):
    """The engine captures, replays and restores on a CPU, as on a GPU but for the graph itself."""
    still = SimpleNamespace(wait_stream=lambda _: None)
    for name, value in {
        "Stream": lambda *_: still,
        "current_stream": lambda *_: still,
        "stream": lambda _: nullcontext(),
        "device": lambda _: nullcontext(),
        "get_rng_state": lambda _: torch.zeros(1),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(FastEngine, "_captured", lambda self, units: Replayed(units))
    monkeypatch.setattr(fast_step, "programs_named_by_launch", lambda _: nullcontext())
    init, made = FastEngine.__init__, []

    def capturing(self, *args, **options):
        init(self, *args, **options)
        self.captures, self._draws = True, False
        made.append(self)

    monkeypatch.setattr(FastEngine, "__init__", capturing)
    return made


@pytest.mark.parametrize("reference", ["start", "zero"])
@pytest.mark.parametrize("rows", [16, 48])
def test_what_pdscas_warm_up_left_does_not_count(rows, reference, image_task, tmp_path, captured, monkeypatch):
    """u and z begin with their first values, the reference at w, from between two steps too.

    48 rows are one step an epoch: it goes on between the very first two steps, of the plain engine, which has no
    reference by then.
    """
    optimizer = PDSCASpec(lr=0.05, gamma=0.5, reference=reference, momentum=0.5)
    length = {"batch_size": rows, "epochs": 3 if rows == 16 else 9}
    wanted = recipe("PDSCA", optimizer=optimizer, **length)
    other = recipe("PDSCA", optimizer=replace(optimizer, inner_lr=0.3), **length)
    plain = [
        train(r, image_task, seed=1, run_dir=tmp_path / f"p{n}", engine="plain") for n, r in enumerate((wanted, other))
    ]
    fast = train(wanted, image_task, seed=1, run_dir=tmp_path / "fast", engine="fast")
    assert [len(engine._graphs) for engine in captured] == [2]
    np.testing.assert_allclose(fast.scores("test")[0], plain[0].scores("test")[0], rtol=1e-5, atol=1e-6)
    assert np.abs(plain[1].scores("test")[0] - plain[0].scores("test")[0]).max() > 1e-3

    save, saved = Trainer._save, []
    monkeypatch.setattr(Trainer, "_save", lambda self: (save(self), saved.append(self.optimizer.outer_next)))

    def stop(progress):
        if progress.epoch == 0:
            os.kill(os.getpid(), signal.SIGINT)

    engine = "fast" if rows == 16 else "plain"
    with pytest.raises(KeyboardInterrupt):
        train(wanted, image_task, seed=1, run_dir=tmp_path / "cut", engine=engine, progress=stop)
    assert saved[-1]  # an epoch has an odd number of steps: it ends after an inner one
    again = train(wanted, image_task, seed=1, run_dir=tmp_path / "cut", engine="fast")
    if engine == "fast":
        assert files(again) == files(fast)
    np.testing.assert_allclose(again.scores("test")[0], fast.scores("test")[0], rtol=1e-5, atol=1e-6)


def test_pdsca_refuses_an_average_of_all_its_weights():
    assert can_be_fast(recipe("PDSCA"))
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
