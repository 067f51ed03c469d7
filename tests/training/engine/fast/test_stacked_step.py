"""Runs that share one network's kernels, in the CPU form, against runs alone; which runs do."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.models.build import ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.engine.fast import fast_step, stacked_step
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.fast.stacked_step import StackedStep, worth_stacking
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Steps
from tests.training.watched import power_cut_at

MODEL = SmallCNNSpec(widths=(4, 8))


OLD = PESGSpec(lr=0.1, gamma=0.01)
NEW = PESGSpec(lr=0.1, gamma=0.01, reference="zero", alpha_step="closed", clip_value=0.05)


def recipe(margin=0.5, *, epochs=2, optimizer=None, first=None, pesg=OLD):
    common = {"batch_size": 16, "gradient_clip": 5.0}
    optimizer = optimizer or SGDSpec(lr=0.05)
    first = first or Stage(objective=CrossEntropy(), optimizer=optimizer, epochs=epochs, schedule=Cosine(), **common)
    second = Stage(
        objective=AUCMargin(margin=margin), optimizer=pesg, iterations=12,
        positives_per_batch=4, reset_classifier=True, schedule=Steps(milestones=(4,), unit="iterations"),
        augment=Augment(crop_padding=1), ema=0.9, keep="best", **common,
    )  # fmt: skip
    return Recipe(model=MODEL, stages=(first, second), alpha_curve=True)


@pytest.fixture
def calls(monkeypatch):
    """Stacks on a CPU too; how many runs each step had."""
    monkeypatch.setattr(fast_step, "worth_stacking", lambda trainer, stage: True)
    found = []
    step = StackedStep.__call__
    monkeypatch.setattr(StackedStep, "__call__", lambda self: (found.append(len(self.steps)), step(self))[1])
    return found


def assert_alike(run, alone):
    np.testing.assert_allclose(run.scores("test")[0], alone.scores("test")[0], rtol=1e-3, atol=1e-3)
    for mine, theirs in zip(run.history, alone.history, strict=True):
        np.testing.assert_allclose(float(mine["loss"]), float(theirs["loss"]), rtol=1e-3)
    alphas = [np.loadtxt(r.path / "alpha.csv", delimiter=",", skiprows=1) for r in (run, alone)]
    np.testing.assert_allclose(*alphas, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Stage 1 starts from trained weights:UserWarning")
def test_stacked_runs_equal_runs_alone_and_resume(image_task, tmp_path, calls):
    made = [recipe(0.3, pesg=NEW), recipe(1.0, optimizer=AdamSpec()), recipe(0.5, epochs=3)]  # the third ends later
    jobs = [Job(recipe=r, task=image_task, seed=i, run_dir=tmp_path / str(i)) for i, r in enumerate(made)]
    with power_cut_at(4):
        train_together(jobs, device="cpu")
    runs = train_together(jobs, device="cpu")
    assert set(calls) == {1, 3}
    calls.clear()
    for i, (job, run) in enumerate(zip(jobs, runs, strict=True)):
        alone = train(job.recipe, image_task, seed=i, run_dir=tmp_path / f"alone{i}", engine="plain")
        assert_alike(run, alone)
    assert not calls


def test_a_stage_on_views_and_images_that_do_not_fit(image_task, tmp_path, calls, monkeypatch):
    monkeypatch.setattr("deepauc.training.engine.fast.feed.HOST_BYTES", 0)
    first = Stage(
        objective=Contrastive(), optimizer=SGDSpec(lr=0.02), epochs=2, batch_size=16, views=2,
        augment=Augment(crop_padding=1), projection=(8, 8),
    )  # fmt: skip
    made = recipe(first=first)
    jobs = [Job(recipe=made, task=image_task, seed=seed, run_dir=tmp_path / str(seed)) for seed in (0, 1)]
    runs = train_together(jobs, device="cpu")
    assert set(calls) == {2}
    for job, run in zip(jobs, runs, strict=True):
        alone = train(made, image_task, seed=job.seed, run_dir=tmp_path / f"alone{job.seed}", engine="plain")
        assert_alike(run, alone)


def test_what_cannot_be_stacked_is_said(image_task, tmp_path, calls):
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(), epochs=1, batch_size=16)
    made = Recipe(model=TimmSpec(name="test_efficientnet"), stages=(stage,))  # convolutions in groups
    with pytest.raises(ValueError, match="cannot be stacked"):
        train(made, image_task, seed=0, run_dir=tmp_path / "a", engine="fast", device="cpu")


@pytest.mark.parametrize(
    ("spec", "device", "precision", "size", "worth"),
    [
        (TimmSpec(name="densenet121"), "cuda", "bfloat16", 32, True),
        (TimmSpec(name="densenet121", small_stem=True, activation="elu"), "cuda", "bfloat16", 32, True),
        (TimmSpec(name="densenet121"), "cuda", "float32", 32, False),
        (TimmSpec(name="densenet121"), "cpu", "bfloat16", 32, False),
        (TimmSpec(name="densenet121"), "cuda", "bfloat16", 96, True),
        (TimmSpec(name="densenet121"), "cuda", "bfloat16", 97, False),
        (TimmSpec(name="densenet121", drop_rate=0.1), "cuda", "bfloat16", 32, False),
        (TimmSpec(name="densenet121", proj_drop_rate=0.1), "cuda", "bfloat16", 32, True),
        (TimmSpec(name="resnet18"), "cuda", "bfloat16", 32, True),
        (ResNet20Spec(), "cuda", "bfloat16", 32, False),  # its own kernels are faster
    ],
)
def test_which_runs_are_stacked(spec, device, precision, size, worth):
    with torch.device("meta"):
        network = spec.build(in_channels=3, num_outputs=1)
    source = SimpleNamespace(shape=(size, size, 3))
    trainer = SimpleNamespace(
        trained=network, device=torch.device(device), task=SimpleNamespace(source=source), recipe=None
    )
    assert worth_stacking(trainer, SimpleNamespace(precision=precision)) is worth


@pytest.mark.parametrize("there", [True, False])
def test_without_triton_nothing_is_compiled_or_stacked(monkeypatch, there):
    """As on Windows: what is left on a GPU are torch's own kernels, in a graph."""
    for module in (fast_step, stacked_step):
        monkeypatch.setattr(module, "has_triton", lambda: there)
    monkeypatch.setattr(fast_step.FastEngine, "_place_images", lambda engine: None)
    with torch.device("meta"):
        model = TimmSpec(name="resnet18").build(in_channels=3, num_outputs=1)
    task = SimpleNamespace(source=SimpleNamespace(shape=(32, 32, 3)))
    trainer = SimpleNamespace(device=torch.device("cuda"), task=task, trained=model)
    assert fast_step.FastEngine([trainer]).compiled is there
    assert worth_stacking(trainer, SimpleNamespace(precision="bfloat16")) is there
