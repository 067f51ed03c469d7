"""Packed runs: told to stop, every one of them goes on where it was; losses of one network share its program."""

import os
import signal
from dataclasses import replace

import pytest

from deepauc.data.augment.batch import Augment
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.fast import fast_step
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.engine.trainer import Trainer
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.checkpoint import load_state
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import Interrupted


def recipe(lr):
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=lr), epochs=2, batch_size=16)
    return Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(stage, stage))


@pytest.mark.parametrize("epochs", [1, 2])  # the middle of a stage and its end
def test_an_interrupt_saves_every_run_of_a_pack(image_task, tmp_path, monkeypatch, epochs):
    jobs = [Job(recipe=recipe(lr), task=image_task, seed=0, run_dir=tmp_path / str(lr)) for lr in (0.01, 0.03, 0.1)]
    alone = [
        train(
            job.recipe, image_task, seed=0, run_dir=tmp_path / f"alone {job.run_dir.name}", engine="fast", device="cpu"
        )
        for job in jobs
    ]
    end_epoch, steps = Trainer._end_epoch, 96 // 16 * epochs

    def rings(self, stage, epoch):
        if self.folder.path == jobs[1].run_dir and self.iteration == steps:  # the first run has had its turn
            os.kill(os.getpid(), signal.SIGINT)
        end_epoch(self, stage, epoch)

    monkeypatch.setattr(Trainer, "_end_epoch", rings)
    with pytest.raises(KeyboardInterrupt, match="saved"):
        train_together(jobs, device="cpu")
    monkeypatch.undo()
    saved = [load_state(job.run_dir / "checkpoint.safetensors") for job in jobs]
    done = [one["stage"] * 2 + one["iteration"] // 6 for one in saved]
    assert done == [epochs] * 3
    for run, single in zip(train_together(jobs, device="cpu"), alone, strict=True):
        assert (run.path / "scores.csv").read_bytes() == (single.path / "scores.csv").read_bytes()
        assert (run.path / "history.csv").read_bytes() == (single.path / "history.csv").read_bytes()


@pytest.mark.parametrize(
    ("call", "results_only"), [(3, False), (11, False), (3, True)], ids=["scores", "guard", "tuning"]
)  # 1 batch of train, 4 copies of validation, 4 of test, then the guard, with the first stage's weights
def test_an_interrupt_is_heard_while_copies_are_scored(image_task, tmp_path, monkeypatch, call, results_only):
    first = replace(recipe(0.1).stages[0], augment=Augment(brightness=0.3))
    copied = Recipe(model=recipe(0.1).model, stages=(first, replace(first, ema=0.9)), guard=not results_only, tta=4)
    several = [replace(copied, stages=(first, replace(copied.stages[1], optimizer=SGDSpec(lr=lr)))) for lr in (1, 2, 3)]

    def jobs(folder):
        return [
            Job(recipe=one, task=image_task, seed=0, run_dir=tmp_path / folder / str(i), results_only=results_only)
            for i, one in enumerate(several)
        ]

    whole = train_together(jobs("whole"), device="cpu")
    between, calls = Trainer._between_batches, []

    def rings(self, *step):
        if self.folder.path == tmp_path / "cut" / "1":
            calls.append(step)
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGINT)
        between(self, *step)

    monkeypatch.setattr(Trainer, "_between_batches", rings)
    with pytest.raises(Interrupted, match="saved"):
        train_together(jobs("cut"), device="cpu")
    assert len(calls) == call
    assert [RunFolder(job.run_dir).done for job in jobs("cut")] == [True, False, False]
    monkeypatch.setattr(FastEngine, "run_epoch", None)  # nothing is left to train
    for run, uncut in zip(train_together(jobs("cut"), device="cpu"), whole, strict=True):
        assert run.record.plain["results"]["auc"] == uncut.record.plain["results"]["auc"]
        for name in ("history.csv", *(() if results_only else ("scores.csv", "model.safetensors"))):
            assert (run.path / name).read_bytes() == (uncut.path / name).read_bytes()


def test_losses_and_augmentations_of_one_network_share_its_program(image_task, tmp_path, monkeypatch):
    made, make_network = [], fast_step.make_network

    def noted(*arguments, **options):
        made.append(make_network(*arguments, **options))
        return made[-1]

    for cache in ("_INPUTS", "_NETWORKS", "_VALUES"):
        monkeypatch.setattr(fast_step, cache, {})
    monkeypatch.setattr(fast_step, "make_network", noted)
    stage = recipe(0.1).stages[0]
    stages = [replace(stage, objective=loss) for loss in (CrossEntropy(), Focal(gamma=1.0), Focal(gamma=2.0))]
    stages.append(replace(stages[0], augment=Augment(brightness=0.3)))
    jobs = [
        Job(recipe=Recipe(model=recipe(0.1).model, stages=(one,)), task=image_task, seed=0, run_dir=tmp_path / str(i))
        for i, one in enumerate(stages)
    ]
    runs = train_together(jobs, device="cpu")
    assert (len(made), len(fast_step._VALUES), len(fast_step._INPUTS)) == (1, 3, 2)
    assert len({run.history[-1]["loss"] for run in runs}) == 4
