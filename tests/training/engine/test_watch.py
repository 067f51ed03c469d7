"""What a run may log and read besides: training AUC and weights each epoch, inputs as they are, weighted losses."""

import csv

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.metrics.auroc import auroc
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine import loop, trainer
from deepauc.training.engine.loop import train
from deepauc.training.plain import from_plain, recipe_hash, to_plain
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

CROPPED = Augment(crop_padding=0, enlarged_crop=0.875)


def stage(objective=None, **options):
    defaults = {"optimizer": SGDSpec(lr=0.05, clip_value=0.1, decay_norms=False, weight_decay=0.01)}
    common = {"epochs": 3, "batch_size": 16, "augment": CROPPED}
    return Stage(objective=objective or CrossEntropy(), **{**defaults, **common, **options})


def recipe(*stages, **options):
    return Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=stages, **options)


OBJECTIVES = {
    "weighted": CrossEntropy(prior_weights=True, scale=3.0),
    "focal": Focal(scale=0.5),
    "auc": AUCMargin(),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_both_engines_give_the_same(image_task, tmp_path, name):
    optimizer = {"optimizer": PESGSpec(lr=0.05)} if name == "auc" else {}
    made = recipe(stage(OBJECTIVES[name], **optimizer), standardise=False, watch=True)
    plain, fast = (
        train(made, image_task, seed=0, run_dir=tmp_path / engine, engine=engine, device="cpu")
        for engine in ("plain", "fast")
    )
    np.testing.assert_allclose(plain.scores("test")[0], fast.scores("test")[0], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(plain.history, fast.history, strict=True):
        for column in ("loss", "train_auc", "weight_square"):
            np.testing.assert_allclose(float(mine[column]), float(theirs[column]), rtol=1e-4)


def test_the_history_is_of_the_scores_that_the_loss_saw(image_task, tmp_path, monkeypatch):
    seen, squares = [], []
    step = loop.backward_whole_batch

    def noting(model, batch, *rest):
        loss, scores = step(model, batch, *rest)
        seen.append((scores.clone(), batch.labels.squeeze(1)))
        return loss, scores

    end = trainer.Trainer._end_epoch

    def ending(self, *arguments):
        weights = [p for p in self.trained.parameters() if p.ndim > 1]
        squares.append(sum(float((p.detach() ** 2).sum()) for p in weights))
        end(self, *arguments)

    monkeypatch.setattr(loop, "backward_whole_batch", noting)
    monkeypatch.setattr(trainer.Trainer, "_end_epoch", ending)
    train(recipe(stage(), watch=True), image_task, seed=0, run_dir=tmp_path / "run", engine="plain", device="cpu")
    rows = list(csv.DictReader((tmp_path / "run" / "history.csv").open()))
    assert len(rows) == 3
    for epoch, row in enumerate(rows):
        scores, labels = (torch.cat(x) for x in zip(*seen[6 * epoch : 6 * epoch + 6], strict=True))
        assert float(row["train_auc"]) == pytest.approx(auroc(scores, labels))
        assert float(row["weight_square"]) == pytest.approx(squares[epoch], rel=1e-5)


def test_inputs_as_they_are_are_recorded_for_predict(image_task, tmp_path):
    run = train(recipe(stage(), standardise=False), image_task, seed=0, run_dir=tmp_path / "run", device="cpu")
    bundle = Bundle.load(run.path)
    assert (bundle.preprocessing.mean, bundle.preprocessing.std) == ((0.0,), (1.0,))
    images = torch.from_numpy(image_task.inputs(image_task.part("test")))
    model = bundle.network(run.path).eval()
    with torch.no_grad():
        scores = model(images.permute(0, 3, 1, 2) / 255).squeeze(1)
    np.testing.assert_allclose(Run(run.path).scores("test")[0], scores.numpy(), rtol=1e-4, atol=1e-5)


def test_defaults_leave_the_name_of_a_run_as_it_was():
    """The hash of a recipe of before these options, which every record of it carries."""
    old = Recipe(
        model=SmallCNNSpec(widths=(4, 8)),
        stages=(
            Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=3, augment=Augment()),
            Stage(objective=Focal(), optimizer=SGDSpec(), epochs=1),
        ),
    )
    assert recipe_hash(old) == "c3d9933f3d132fb98e5f2c55fddfb75638d661be323f908bd4d9a1e6551d0363"
    new = recipe(stage(CrossEntropy(prior_weights=True, scale=0.3)), standardise=False, watch=True)
    assert from_plain(to_plain(new)) == new
