"""What a recipe can turn besides its loss: mixup with soft labels, quota, EMA, cosine, bounds, affine, colour, cutout.

Each in both engines, and each by its definition.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.score_norm import BatchScoreNorm, BatchScoreRMSNorm
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine import ema
from deepauc.training.engine.loop import train
from deepauc.training.engine.step import bounded
from deepauc.training.engine.stream import Stream
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine

MODEL = SmallCNNSpec(widths=(4, 8))
EVERYTHING = Augment(
    crop_padding=1, rotation=15, translation=0.2, scale=(0.8, 1.15), brightness=0.4, contrast=0.4, saturation=0.4,
    hue=0.1, greyscale=0.2, coarse_dropout=1, hole_size=0.5, mixup=0.4,
)  # fmt: skip


def stage(**options):
    defaults = {"objective": AUCMargin(soft_labels=True), "optimizer": PESGSpec(lr=0.1), "epochs": 3, "batch_size": 16}
    return Stage(**{**defaults, "positives_per_batch": 4, "augment": EVERYTHING, "schedule": Cosine(), **options})


@pytest.fixture
def colour_task(image_task):
    grey = image_task.source.array
    noise = np.random.default_rng(5).integers(0, 40, (160, 8, 8, 3))
    return replace(image_task, source=ArrayInputs((grey + noise).astype(np.uint8)))


@pytest.mark.parametrize(
    ("objective", "optimizer", "bound"),
    [
        (AUCMargin(soft_labels=True), PESGSpec(lr=0.1, weight_decay=1e-3), "sigmoid"),
        (AUCMargin(soft_labels=True, margin=0.3), PESGSpec(lr=0.05, momentum=0.5), "rms"),
        (AUCSquare(soft_labels=True), PESGSpec(lr=0.1), "l2"),
        (AUCMargin(soft_labels=True), SGDSpec(lr=0.05), "sigmoid"),
        *(
            (PairwiseAUC(soft_labels=True, surrogate=s), SGDSpec(lr=0.05), "sigmoid")
            for s in ("squared_hinge", "logistic")
        ),
        (PairwiseAUC(soft_labels=True, margin=0.5), SGDSpec(lr=0.02), "rms"),
        (CrossEntropy(soft_labels=True), SGDSpec(lr=0.05, weight_decay=1e-3), "none"),
    ],
)
def test_fast_equals_plain_with_all_of_them(colour_task, tmp_path, objective, optimizer, bound):
    made = stage(objective=objective, optimizer=optimizer, bound=bound, ema=0.9)
    runs = [
        train(Recipe(model=MODEL, stages=(made,)), colour_task, seed=1, run_dir=tmp_path / e, engine=e, device="cpu")
        for e in ("plain", "fast")
    ]
    np.testing.assert_allclose(runs[0].scores("test")[0], runs[1].scores("test")[0], rtol=2e-3, atol=5e-4)
    for column in ("loss", "validation_auc", *(("A_M", "alpha") if "alpha" in runs[0].history[0] else ())):
        mine, theirs = ([float(row[column]) for row in run.history] for run in runs)
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=1e-3, err_msg=column)


@pytest.mark.parametrize("quota", [None, 2, 4, 8])
@pytest.mark.parametrize("uncertain", [None, "smooth_ones", "smooth_zeros"])
def test_the_prior_is_the_mean_soft_label_that_the_loss_sees(image_task, quota, uncertain):
    """After smoothing, quota and mixup; over 300 epochs, to three standard errors."""
    labels = image_task.labels.copy()
    if uncertain is not None:
        labels[:20] = -1
    task = image_task.with_labels(labels)
    stream = Stream(task, stage(positives_per_batch=quota, uncertain=uncertain), seed=2, number=0)
    means, mixed_share = [], 0.0
    for epoch in range(300):
        changes, seen = stream.changes(epoch), torch.from_numpy(stream.labels[stream.table(epoch)])
        for step in range(stream.per_epoch):
            _, mixed = EVERYTHING.mix(torch.zeros(16, 1), seen[step], changes[step])
            means.append(mixed.mean().item())
            mixed_share += ((mixed > 0.05) & (mixed < 0.5)).float().mean().item()
    assert mixed_share > 0  # labels are soft, indeed
    error = np.std(means) / np.sqrt(len(means))
    assert np.mean(means) == pytest.approx(stream.prior[0], abs=3 * error + 1e-4)


@pytest.mark.parametrize("shape", [(16,), (16, 3)])
def test_bounds_are_the_modules_one_would_write(shape):
    scores = 5 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bounded(scores, "l2"), BatchScoreNorm()(scores))
    assert torch.equal(bounded(scores, "rms"), BatchScoreRMSNorm()(scores))
    assert torch.equal(bounded(scores, "sigmoid"), torch.sigmoid(scores))
    torch.testing.assert_close(bounded(scores, "rms").square().mean(0), torch.ones(shape[1:]))


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_ema_is_the_average_of_the_weights_after_each_step(image_task, tmp_path, monkeypatch, engine):
    """avg_t = d avg_(t-1) + (1 - d) w_t, from the weights the stage starts with; the stage ends with it."""
    trail = []
    update = ema.WeightAverage.update

    def watch(self, model):
        if not trail:
            trail.append([t.clone() for t in self.average])  # the start
        update(self, model)
        trail.append([p.detach().clone() for p in model.parameters()])

    monkeypatch.setattr(ema.WeightAverage, "update", watch)
    made = stage(ema=0.8, augment=None, objective=AUCMargin())
    run = train(
        Recipe(model=MODEL, stages=(made,)), image_task, seed=1, run_dir=tmp_path / "a", engine=engine, device="cpu"
    )
    average = [t.double() for t in trail[0]]
    for weights in trail[1:]:
        average = [0.8 * a + 0.2 * w.double() for a, w in zip(average, weights, strict=True)]
    from safetensors.torch import load_file

    from deepauc.models.build import build_model

    names = [name for name, _ in build_model(MODEL, in_channels=1, num_outputs=1, seed=0).named_parameters()]
    saved = load_file(run.path / "model.safetensors")
    assert len(trail) == 1 + int(run.history[-1]["iteration"])
    for name, mean in zip(names, average, strict=True):
        torch.testing.assert_close(saved[name].double(), mean, rtol=1e-5, atol=1e-6)


def test_a_missing_label_mixed_with_anything_is_missing(multilabel_task):
    made = stage(positives_per_batch=None)
    stream = Stream(multilabel_task, made, seed=0, number=0)
    labels = torch.from_numpy(stream.labels[stream.table(0)[0]])
    labels[3, 0] = torch.nan
    _, mixed = EVERYTHING.mix(torch.zeros(16, 1), labels, stream.changes(0)[0])
    missing_before, missing = labels.isnan().sum(0), mixed.isnan().sum(0)
    assert missing_before[0] >= 1
    assert missing_before[0] < missing[0] <= 2 * missing_before[0]  # its own row, and the one whose partner it is
