"""Losses and optimizers that the loop has never heard of: what they offer is used, in both engines."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine import loop
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps

ENGINES = ("plain", "fast")
MODEL = SmallCNNSpec(widths=(4, 8))


def trained(task, folder, engine, **options):
    settings = {"optimizer": SGDSpec(lr=0.01), "epochs": 2, "batch_size": 16, "positives_per_batch": 4, **options}
    recipe = Recipe(model=MODEL, stages=(Stage(**settings),), alpha_curve=True)
    return train(recipe, task, seed=1, run_dir=folder, engine=engine, device="cpu")


class NotingLoss(nn.Module):
    """Cross-entropy that writes down which rows it was given, with what labels."""

    seen: ClassVar[list] = []

    def __init__(self, num_rows):
        super().__init__()
        self.num_rows = num_rows

    def forward(self, scores, labels, index, weights=None):
        self.seen.append((index.tolist(), labels.reshape(-1).tolist(), self.num_rows, weights is None))
        return nn.functional.binary_cross_entropy_with_logits(scores, labels)


@dataclass(frozen=True)
class Noting:
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "none"
    needs_index: ClassVar[bool] = True

    def build(self, *, prior, num_rows):
        return NotingLoss(num_rows)


@pytest.mark.parametrize(("engine", "options"), [("plain", {}), ("plain", {"accumulate": 2}), ("fast", {})])
def test_a_loss_that_asks_is_given_the_rows(image_task, tmp_path, monkeypatch, engine, options):
    monkeypatch.setattr(NotingLoss, "seen", seen := [])
    run = trained(image_task, tmp_path / "run", engine, objective=Noting(), **options)
    assert len(seen) == 2 * int(run.history[0]["iteration"]) > 0
    for rows, labels, num_rows, unweighted in seen:
        assert len(rows) == 16
        assert set(rows) <= set(range(96))
        assert image_task.labels[rows].tolist() == labels
        assert (num_rows, unweighted) == (160, True)


def test_average_precision_trains_alike_in_both_engines_and_goes_on_to_the_bit(image_task, tmp_path, monkeypatch):
    settings = {"objective": AveragePrecision(), "epochs": 3}
    plain, fast = (trained(image_task, tmp_path / engine, engine, **settings) for engine in ENGINES)
    np.testing.assert_allclose(plain.scores("test")[0], fast.scores("test")[0], rtol=1e-3, atol=1e-4)
    epochs, run_epoch = [], loop.run_epoch

    def cut(trainer, epoch):
        epochs.append(epoch)
        if len(epochs) == 3:
            raise RuntimeError("power cut")
        run_epoch(trainer, epoch)

    monkeypatch.setattr(loop, "run_epoch", cut)
    with pytest.raises(RuntimeError, match="power cut"):
        trained(image_task, tmp_path / "cut", "plain", **settings)
    monkeypatch.setattr(loop, "run_epoch", run_epoch)
    again = trained(image_task, tmp_path / "cut", "plain", **settings)
    for name in ("scores.csv", "history.csv", "model.safetensors"):
        assert (again.path / name).read_bytes() == (plain.path / name).read_bytes()


class Renewing(torch.optim.SGD):
    """SGD with a reference that it never uses."""

    renewed = 0

    def new_stage(self, lr_factor=0.1):
        assert lr_factor == 1
        type(self).renewed += 1


@dataclass(frozen=True)
class RenewingSpec:
    lr: float = 0.01

    def build(self, parameters, objective):
        return Renewing([*parameters, *objective.parameters()], lr=self.lr)


class OwnDualLoss(nn.Module):
    """A min-max loss that is none of the package's: all it has are the methods."""

    def __init__(self, prior):
        super().__init__()
        self.inner = AUCMarginLoss(prior=prior, num_labels=len(prior))

    def forward(self, scores, labels, weights=None):
        return self.inner(scores, labels, weights)

    def dual_parameters(self):
        return self.inner.dual_parameters()

    def project_(self):
        self.inner.project_()

    def require_healthy(self, loss, scores, *, batch):
        self.inner.require_healthy(loss, scores, batch=batch)

    def diagnose(self, scores, labels):
        return self.inner.diagnose(scores, labels)


@dataclass(frozen=True)
class OwnDual:
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "sigmoid"

    def build(self, *, prior):
        return OwnDualLoss(prior)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimizer_and_a_loss_of_ones_own_have_all_that_the_packages_have(image_task, tmp_path, monkeypatch, engine):
    monkeypatch.setattr(Renewing, "renewed", 0)
    own = trained(
        image_task, tmp_path / "own", engine, objective=OwnDual(), optimizer=RenewingSpec(), epochs=3,
        schedule=Steps(milestones=(1, 2)),
    )  # fmt: skip
    assert Renewing.renewed == 2
    assert {"alpha_zero_share", "A_M", "alpha_optimal"} <= set(own.history[-1])
    assert (own.path / "alpha.csv").is_file()
