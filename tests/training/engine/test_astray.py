"""Training that went astray stops with its remedy in either engine; the fast one sees it at the end of the epoch."""

import numpy as np
import pytest
import torch

from deepauc.data.task import ArrayInputs, Task
from deepauc.labels import Diverged
from deepauc.models.build import MLPSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive, ViewLoss
from deepauc.optim.pesg import PESGSpec
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.history import EpochTally
from deepauc.training.run.interrupt import TrainingDiverged, TrainingStopped


@pytest.fixture(scope="module")
def rare():
    """Four positives in 4,000 rows of features: in a plain batch of 32 one of them weighs 31."""
    generator = np.random.default_rng(0)
    labels = np.zeros(4000, dtype=np.float32)
    labels[::1000] = 1
    features = (generator.normal(size=(4000, 8)) + labels[:, None]).astype(np.float32)
    parts = {"train": np.arange(4000)}
    return Task(
        name="rare", kind="binary", source=ArrayInputs(features), labels=labels, label_names=("y",), parts=parts
    )


def overshooting(**options):
    stage = Stage(objective=AUCMargin(), optimizer=PESGSpec(lr=0.1), batch_size=32, **options)
    return Recipe(model=MLPSpec(), stages=(stage,))


@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("length", [{"iterations": 450}, {"epochs": 4}])
def test_steps_that_overshoot_name_the_quota(rare, tmp_path, engine, length):
    with pytest.raises(TrainingStopped, match=r"overshoot.*1/\(N p\) = 31.*ClassQuotaSampler.*positives_per_batch"):
        train(overshooting(**length), rare, seed=0, run_dir=tmp_path / "run", device="cpu", engine=engine)
    assert not (tmp_path / "run" / "DONE").exists()


def test_a_packed_run_that_overshoots_is_named(rare, tmp_path):
    healthy = Stage(objective=AUCMargin(), optimizer=PESGSpec(lr=1e-4), batch_size=32, iterations=450)
    recipes = (Recipe(model=MLPSpec(), stages=(healthy,)), overshooting(iterations=450))
    jobs = [Job(recipe=r, task=rare, seed=0, run_dir=tmp_path / str(i)) for i, r in enumerate(recipes)]
    with pytest.raises(TrainingDiverged, match="overshoot") as error:
        train_together(jobs, device="cpu")
    assert error.value.run_dir == tmp_path / "1"


@pytest.mark.parametrize(
    ("objective", "remedy"),
    [
        (CrossEntropy().build(prior=(0.5,)), "lower lr, or set gradient_clip"),
        (Contrastive().build(prior=()), "the projections hold NaN or infinity"),
        (AUCMargin().build(prior=(0.5,)), "bound the scores before the loss"),
    ],
)
def test_a_loss_that_is_no_number_names_what_helps_it(objective, remedy):
    tally = EpochTally(on_views=isinstance(objective, ViewLoss))
    seen = torch.full((3, 4, 1), float("nan"))
    tally.add_epoch(seen[:, 0, 0], torch.zeros(3, 1), seen, torch.ones(3, 4, 1), objective)
    with pytest.raises(Diverged, match=remedy):
        tally.summary(objective)


def test_diagnose_says_what_is_wrong_with_scores():
    loss_fn = AUCMargin().build(prior=(0.5,))
    with pytest.raises(ValueError, match=r"scores hold NaN or infinity.*lower lr"):
        loss_fn.diagnose(torch.tensor([0.1, float("nan")]), torch.tensor([0.0, 1.0]))
    loss_fn.diagnose(torch.tensor([0.1, 0.2, float("nan")]), torch.tensor([0.0, 1.0, float("nan")]))


def test_labels_that_lack_different_classes_in_an_epoch_are_no_reason_to_stop():
    objective = AUCMargin().build(prior=(0.5, 0.5))
    tally = EpochTally()
    scores, labels = torch.rand(4, 2), torch.tensor([[1.0, 0.0]] * 4)
    tally.add(objective(scores, labels).detach(), scores, labels, objective)
    assert set(tally.summary(objective)) == {"loss", "alpha_zero_share"}
