"""The fast engine in its CPU form against the plain loop; packed runs against runs alone; images that do not fit."""

import csv
import gc
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.engine.fast.feed import HostFeed
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.fast.run_step import RunStep, Snapshot
from deepauc.training.engine.loop import train
from deepauc.training.engine.trainer import Trainer
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import InterruptFlag
from deepauc.training.schedule import Cosine, Steps
from tests.training.watched import power_cut_at

MODEL = SmallCNNSpec(widths=(4, 8))


OLD = PESGSpec(lr=0.1, gamma=0.01)
NEW = PESGSpec(lr=0.1, gamma=0.01, reference="zero", alpha_step="closed", clip_value=0.05)


def recipe(margin=0.5, optimizer=OLD, **options):
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=2, batch_size=16, schedule=Cosine())
    second = Stage(
        objective=AUCMargin(margin=margin),
        optimizer=optimizer,
        iterations=20,  # six steps an epoch: the last one is cut short
        batch_size=16,
        positives_per_batch=4,
        reset_classifier=True,
        schedule=Steps(milestones=(8, 15), unit="iterations"),  # in the middle of epochs
        augment=Augment(crop_padding=1),
        ema=0.9,
        gradient_clip=5.0,
    )
    return Recipe(model=MODEL, stages=(first, second), alpha_curve=True, **options)


def columns(run, name):
    with (run.path / name).open() as file:
        rows = list(csv.DictReader(file))
    return {k: np.array([float(row[k] or "nan") for row in rows]) for k in rows[0]}


def assert_alike(one, two):
    np.testing.assert_allclose(one.scores("test")[0], two.scores("test")[0], rtol=1e-3, atol=1e-4)
    for name in ("history.csv", "alpha.csv"):
        mine, theirs = columns(one, name), columns(two, name)
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_allclose(mine[key], theirs[key], rtol=1e-3, atol=2e-4, err_msg=key)


def test_fast_equals_plain(image_task, tmp_path):
    plain = train(recipe(), image_task, seed=1, run_dir=tmp_path / "plain", engine="plain")
    told = []
    fast = train(
        recipe(), image_task, seed=1, run_dir=tmp_path / "fast", engine="fast", device="cpu", progress=told.append
    )
    assert_alike(fast, plain)
    assert [p.iteration for p in told] == [6, 12, 6, 12, 18, 20]  # once an epoch


@pytest.mark.filterwarnings("ignore:Stage 1 starts from trained weights:UserWarning")
def test_fast_equals_plain_with_the_options_of_the_first_releases(image_task, tmp_path):
    made = [
        train(recipe(optimizer=NEW), image_task, seed=1, run_dir=tmp_path / engine, engine=engine, device="cpu")
        for engine in ("plain", "fast")
    ]
    assert_alike(*made)
    other = train(recipe(), image_task, seed=1, run_dir=tmp_path / "other", engine="plain")
    assert np.abs(columns(made[0], "alpha.csv")["alpha0"] - columns(other, "alpha.csv")["alpha0"]).max() > 1e-3


@pytest.mark.parametrize("reference", ["start", "zero"])
def test_what_warm_up_made_begins_where_the_reference_does(image_task, tmp_path, reference):
    """A captured step is tried before it counts: whatever state came of that is put back."""
    stage = Stage(objective=AUCMargin(), optimizer=replace(OLD, reference=reference), epochs=1, batch_size=16)
    trainer = Trainer(
        Recipe(model=MODEL, stages=(stage,)),
        image_task,
        1,
        RunFolder(tmp_path),
        torch.device("cpu"),
        InterruptFlag(),
        None,
    )
    next(trainer.epochs())
    step = RunStep(trainer, stage)
    before = Snapshot(step)
    weight = next(trainer.trained.parameters())
    start = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    step.lr.fill_(0.5)
    trainer.optimizer.step()
    before.restore()
    assert torch.equal(weight, start)
    state = trainer.optimizer.state[weight]
    assert torch.equal(state["reference"], start if reference == "start" else torch.zeros_like(start))
    assert not state["drift"].any()


@pytest.mark.parametrize(
    ("objective", "optimizer"),
    [
        (AUCMargin(), NEW),
        (AUCMargin(), SGDSpec(momentum=0.0)),
        (PairwiseAUC(), AdamSpec()),
        (CrossEntropy(soft_labels=True), SGDSpec(lr=0.01)),
    ],
)
def test_other_objectives_several_labels_and_weights(multilabel_task, tmp_path, objective, optimizer):
    task = replace(multilabel_task, weights=np.linspace(0.5, 2, 160))
    augment = Augment(mixup=0.3, crop_padding=1) if objective.soft_labels else None
    stage = Stage(objective=objective, optimizer=optimizer, epochs=2, batch_size=16, augment=augment)
    made = [
        train(Recipe(model=MODEL, stages=(stage,)), task, seed=1, run_dir=tmp_path / e, engine=e, device="cpu")
        for e in ("plain", "fast")
    ]
    np.testing.assert_allclose(made[0].scores("test")[0], made[1].scores("test")[0], rtol=1e-3, atol=1e-4)


def test_packed_runs_equal_runs_alone_and_resume(image_task, tmp_path):
    jobs = [
        Job(recipe=recipe(margin), task=image_task, seed=seed, run_dir=tmp_path / f"{margin}-{seed}")
        for margin in (0.3, 1.0)
        for seed in (1, 2)
    ]
    alone = [
        train(job.recipe, image_task, seed=job.seed, run_dir=tmp_path / f"alone{i}", engine="fast", device="cpu")
        for i, job in enumerate(jobs)
    ]
    with power_cut_at(4):
        train_together(jobs, device="cpu")
    for run, single in zip(train_together(jobs, device="cpu"), alone, strict=True):
        assert (run.path / "scores.csv").read_bytes() == (single.path / "scores.csv").read_bytes()
        assert (run.path / "history.csv").read_bytes() == (single.path / "history.csv").read_bytes()
    before = (jobs[0].run_dir / "run.json").stat().st_mtime_ns
    train_together(jobs, device="cpu")
    assert (jobs[0].run_dir / "run.json").stat().st_mtime_ns == before


def test_runs_of_different_length_go_on_without_each_other(image_task, tmp_path):
    def ce(epochs):
        stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=epochs, batch_size=16)
        return Recipe(model=MODEL, stages=(stage,))

    jobs = [Job(recipe=ce(e), task=image_task, seed=0, run_dir=tmp_path / str(e)) for e in (1, 3)]
    short, long = train_together(jobs, device="cpu")
    assert len(short.history) == 1
    assert len(long.history) == 3


def test_images_that_do_not_fit_come_through_the_feed(image_task, tmp_path, monkeypatch):
    there = train(recipe(), image_task, seed=1, run_dir=tmp_path / "there", engine="fast", device="cpu")
    monkeypatch.setattr("deepauc.training.engine.fast.feed.HOST_BYTES", 0)
    fed = train(recipe(), image_task, seed=1, run_dir=tmp_path / "fed", engine="fast", device="cpu")
    assert (fed.path / "scores.csv").read_bytes() == (there.path / "scores.csv").read_bytes()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_no_thread_is_left_of_a_run_that_is_broken_off(image_task, tmp_path, monkeypatch, stop):
    monkeypatch.setattr("deepauc.training.engine.fast.feed.HOST_BYTES", 0)
    taken = []

    def first_two(feed, take=HostFeed.next):
        taken.append(feed)
        if len(taken) == 3:  # in the middle of an epoch of six batches, with more read ahead than are taken
            time.sleep(0.2)
            raise stop("broken off")
        take(feed)

    monkeypatch.setattr(HostFeed, "next", first_two)
    before = set(threading.enumerate())
    with pytest.raises(stop, match="broken off") as error:
        train(recipe(), image_task, seed=1, run_dir=tmp_path / "a", engine="fast", device="cpu")
    (reader,) = set(threading.enumerate()) - before
    taken.clear()
    del error  # its frames hold the run, and with it the feed
    gc.collect()
    reader.join(timeout=10)
    assert not reader.is_alive()
    assert set(threading.enumerate()) == before


def test_batches_come_in_their_order_however_fast_they_are_taken(image_task):
    feed = HostFeed(image_task, 16, torch.device("cpu"))
    table = np.random.default_rng(0).integers(0, len(image_task), (60, 16))
    feed.start(table[:20])
    feed.next()
    feed.start(table)  # another epoch before the first is over
    for number, rows in enumerate(table):
        if number % 7 == 0:
            time.sleep(0.003)  # so that the reader is now ahead, now behind
        feed.next()
        np.testing.assert_array_equal(feed.staged.numpy(), image_task.inputs(rows))


def test_a_reading_error_reaches_the_caller(image_task, tmp_path, monkeypatch):
    monkeypatch.setattr("deepauc.training.engine.fast.feed.HOST_BYTES", 0)
    inputs = type(image_task.source).__call__

    def broken(self, rows):
        if len(rows) == 16:
            raise OSError("the disk is gone")
        return inputs(self, rows)

    monkeypatch.setattr(type(image_task.source), "__call__", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        train(recipe(), image_task, seed=1, run_dir=tmp_path / "a", engine="fast", device="cpu")


def test_accumulation_is_refused(image_task, tmp_path):
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(), epochs=1, batch_size=16, accumulate=2)
    with pytest.raises(ValueError, match="accumulate=1"):
        train(Recipe(model=MODEL, stages=(stage,)), image_task, seed=0, run_dir=tmp_path / "a", engine="fast",
              device="cpu")  # fmt: skip
