"""On a CUDA device: the captured, compiled step against the plain loop, and packed runs against runs alone."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import FactorySpec, ResNet20Spec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.objectives.poly_view import PolyView
from deepauc.objectives.vicreg import VICReg
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def task():
    generator = np.random.default_rng(0)
    labels = (generator.random(1200) < 0.2).astype(np.float32)
    images = generator.integers(0, 160, (1200, 32, 32, 3)).astype(np.uint8)
    images[:, 8:14, 8:14] += (30 * labels).astype(np.uint8)[:, None, None, None]
    parts = {"train": np.arange(800), "validation": np.arange(800, 1000), "test": np.arange(1000, 1200)}
    return Task(name="s", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)


def recipe(margin=0.5, optimizer=None):
    first = Stage(objective=CrossEntropy(), optimizer=optimizer or SGDSpec(lr=0.02), epochs=2, batch_size=64)
    second = Stage(
        objective=AUCMargin(margin=margin), optimizer=PESGSpec(lr=0.05), epochs=3, batch_size=64,
        positives_per_batch=16, schedule=Steps(milestones=(2,)), augment=Augment(crop_padding=2), ema=0.9,
    )  # fmt: skip
    return Recipe(model=ResNet20Spec(), stages=(first, second))


@pytest.mark.parametrize("optimizer", [SGDSpec(lr=0.02), AdamSpec()])
def test_fast_follows_plain(tmp_path, optimizer):
    runs = [
        train(recipe(optimizer=optimizer), task(), seed=0, run_dir=tmp_path / e, device="cuda", engine=e)
        for e in ("plain", "fast")
    ]
    losses = [[float(row["loss"]) for row in run.history] for run in runs]
    np.testing.assert_allclose(*losses, rtol=0.1)
    aucs = [run.auc("test")["y"].value for run in runs]
    assert abs(aucs[0] - aucs[1]) < 0.05
    np.testing.assert_allclose(losses[0][0], losses[1][0], rtol=0.01)


def test_rates_by_layer_and_dropout_of_one_stage_fast_follow_plain(tmp_path):
    first, second = recipe().stages
    second = replace(second, backbone_rate=0.3, graded_rates=True, frozen_epochs=1, drop_rate=0.5)
    made = Recipe(model=ResNet20Spec(drop_rate=0.2), stages=(replace(first, drop_rate=0.0), second))
    runs = [train(made, task(), seed=0, run_dir=tmp_path / e, device="cuda", engine=e) for e in ("plain", "fast")]
    np.testing.assert_allclose(*([float(row["loss"]) for row in run.history] for run in runs), rtol=0.1)


BEYOND = {
    "partial AUC": Stage(objective=PartialAUC(min_tpr=0.8), optimizer=SGDSpec(lr=0.02), epochs=1),
    "average precision": Stage(objective=AveragePrecision(), optimizer=SGDSpec(lr=0.02), epochs=1),
    # 800 rows in batches of 64: epochs end between an inner and an outer step
    "PDSCA": Stage(objective=AUCMargin(), optimizer=PDSCASpec(lr=0.05, gamma=0.05), epochs=1),
}


@pytest.mark.parametrize("name", BEYOND)
def test_objectives_beyond_auroc_follow_plain_and_are_packed(tmp_path, name):
    """Their memory, and what PDSCA's two graphs begin with, are put back after the warm-up."""
    stage = replace(BEYOND[name], epochs=4, batch_size=64, positives_per_batch=8, schedule=Steps(milestones=(2,)))
    wanted = Recipe(model=ResNet20Spec(), stages=(stage,))
    plain, fast = (
        train(wanted, task(), seed=0, run_dir=tmp_path / e, device="cuda", engine=e) for e in ("plain", "fast")
    )
    jobs = [Job(recipe=wanted, task=task(), seed=s, run_dir=tmp_path / f"packed{s}") for s in (0, 1)]
    packed = train_together(jobs, device="cuda")[0]
    losses = [[float(row["loss"]) for row in run.history] for run in (plain, fast, packed)]
    np.testing.assert_allclose(losses[1][0], losses[0][0], rtol=0.01)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.1)
    np.testing.assert_allclose(losses[2], losses[1], rtol=0.05)


def test_packed_follow_alone(tmp_path):
    jobs = [
        Job(recipe=recipe(m), task=task(), seed=s, run_dir=tmp_path / f"{m}{s}") for m in (0.3, 1.0) for s in (0, 1)
    ]
    packed = train_together(jobs, device="cuda")
    for i, (job, run) in enumerate(zip(jobs, packed, strict=True)):
        alone = train(job.recipe, job.task, seed=job.seed, run_dir=tmp_path / f"alone{i}", device="cuda", engine="fast")
        mine, theirs = ([float(row["loss"]) for row in r.history] for r in (run, alone))
        np.testing.assert_allclose(mine, theirs, rtol=0.05)
        np.testing.assert_allclose(run.scores("test")[0], alone.scores("test")[0], atol=0.3)


def test_images_through_the_feed(tmp_path, monkeypatch):
    there = train(recipe(), task(), seed=0, run_dir=tmp_path / "there", device="cuda", engine="fast")
    monkeypatch.setattr("deepauc.training.engine.fast.feed.SHARE_OF_FREE_MEMORY", 0)
    fed = train(recipe(), task(), seed=0, run_dir=tmp_path / "fed", device="cuda", engine="fast")
    mine, theirs = ([float(row["loss"]) for row in r.history] for r in (fed, there))
    np.testing.assert_allclose(mine, theirs, rtol=0.05)


STRONG = {"rotation": 15, "scale": (0.8, 1.15), "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "objective", [Contrastive(), SupervisedContrastive(), VICReg(), PolyView(views=3)], ids=lambda o: type(o).__name__
)
def test_views_fast_follows_plain(tmp_path, objective, precision):
    stage = Stage(
        objective=objective, optimizer=SGDSpec(lr=0.02, weight_decay=1e-4), epochs=3, batch_size=128,
        augment=Augment(greyscale=0.2, coarse_dropout=1, **STRONG), schedule=Cosine(warmup=4), precision=precision,
        ema=0.9, gradient_clip=1.0, views=objective.views,
    )  # fmt: skip
    made = Recipe(model=ResNet20Spec(), stages=(stage, recipe().stages[1]))
    runs = [train(made, task(), seed=0, run_dir=tmp_path / e, device="cuda", engine=e) for e in ("plain", "fast")]
    losses = [[float(row["loss"]) for row in run.history if row["stage"] == "0"] for run in runs]
    np.testing.assert_allclose(*losses, rtol=0.05)
    np.testing.assert_allclose(losses[0][0], losses[1][0], rtol=0.01)


def test_views_packed_follow_alone(tmp_path):
    stage = Stage(
        objective=Contrastive(), optimizer=SGDSpec(lr=0.02), epochs=2, batch_size=128, views=2,
        augment=Augment(**STRONG), precision="bfloat16",
    )  # fmt: skip
    made = Recipe(model=ResNet20Spec(), stages=(stage,))
    jobs = [Job(recipe=made, task=task(), seed=s, run_dir=tmp_path / str(s)) for s in (0, 1, 2)]
    for job, run in zip(jobs, train_together(jobs, device="cuda"), strict=True):
        alone = train(made, job.task, seed=job.seed, run_dir=tmp_path / f"alone{job.seed}", device="cuda")
        mine, theirs = ([float(row["loss"]) for row in r.history] for r in (run, alone))
        np.testing.assert_allclose(mine, theirs, rtol=0.05)


@pytest.mark.parametrize(
    ("objective", "bound"),
    [
        (AUCMargin(soft_labels=True, margin=0.3), "rms"),
        (PairwiseAUC(soft_labels=True), "sigmoid"),
        (PairwiseAUC(soft_labels=True, surrogate="logistic"), "sigmoid"),
    ],
)
def test_mixup_with_soft_labels_fast_follows_plain(tmp_path, objective, bound):
    stage = Stage(
        objective=objective, optimizer=SGDSpec(lr=0.02, momentum=0.0), epochs=3, batch_size=64, positives_per_batch=16,
        augment=Augment(mixup=0.4, coarse_dropout=1, **STRONG), schedule=Cosine(), ema=0.9, bound=bound,
    )  # fmt: skip
    made = Recipe(model=ResNet20Spec(), stages=(stage,))
    runs = [train(made, task(), seed=0, run_dir=tmp_path / e, device="cuda", engine=e) for e in ("plain", "fast")]
    np.testing.assert_allclose(*([float(row["loss"]) for row in run.history] for run in runs), rtol=0.05)


def with_dropout(in_channels, num_outputs):
    layers = nn.Flatten(), nn.Linear(32 * 32 * in_channels, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, num_outputs)
    return nn.Sequential(*layers)


@pytest.fixture
def captured(monkeypatch):
    """How many runs each captured graph has."""
    counts, capture = [], FastEngine._captured
    monkeypatch.setattr(FastEngine, "_captured", lambda self, units: counts.append(len(units)) or capture(self, units))
    return counts


def test_packed_runs_without_dropout_share_a_graph(tmp_path, captured):
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.02), epochs=1, batch_size=64, precision="bfloat16")
    made = Recipe(model=ResNet20Spec(), stages=(stage,))
    train_together([Job(recipe=made, task=task(), seed=s, run_dir=tmp_path / str(s)) for s in (0, 1, 2)], device="cuda")
    assert captured == [3]


def test_dropout_of_packed_runs_is_that_of_runs_alone(tmp_path, monkeypatch, captured):
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.02), epochs=2, batch_size=64)
    made = Recipe(model=FactorySpec(factory="nets:with_dropout"), stages=(stage,))
    jobs = [Job(recipe=made, task=task(), seed=s, run_dir=tmp_path / str(s)) for s in (0, 1)]
    packed = train_together(jobs, device="cuda")
    assert captured == [1, 1]
    for job, run in zip(jobs, packed, strict=True):
        alone = train(made, job.task, seed=job.seed, run_dir=tmp_path / f"alone{job.seed}", device="cuda")
        np.testing.assert_allclose(run.scores("test")[0], alone.scores("test")[0], atol=1e-4)


def test_copies_are_scored_on_the_device_as_on_the_cpu(tmp_path):
    """Images that lie on the device, changed by the training augmentation; packed, and read back by `predict`."""
    changed = Augment(crop_padding=2, coarse_dropout=1, **STRONG)
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.02), epochs=2, batch_size=64, augment=changed)
    made = Recipe(model=ResNet20Spec(), stages=(stage,), tta=4)
    jobs = [Job(recipe=made, task=task(), seed=s, run_dir=tmp_path / str(s)) for s in (0, 1)]
    for run in train_together(jobs, device="cuda"):
        rows = np.arange(1000, 1200)
        for device in ("cuda", "cpu"):
            found = predict(run, task(), rows=rows, device=device)
            np.testing.assert_allclose(run.scores("test")[0], found, atol=0.02)
        assert np.abs(run.scores("test")[0] - predict(run, task(), rows=rows, tta=0)).max() > 0.02


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="only one CUDA device")
def test_on_a_device_that_is_not_current(tmp_path):
    runs = [
        train(recipe(), task(), seed=0, run_dir=tmp_path / d, device=d, engine="fast") for d in ("cuda:0", "cuda:1")
    ]
    np.testing.assert_allclose(*([float(row["loss"]) for row in run.history] for run in runs), rtol=0.05)
