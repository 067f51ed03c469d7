"""The fast engine's step for a GPU, warmed up and captured on one that is not there: it never waits for the device.

Every objective, optimizer and kind of network that a settings file can name; `fake_gpu` says what this can see.
"""

import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.kernels.dropout import drop_in_dense_layers
from deepauc.models.build import BagSpec, FactorySpec, MLPSpec, ResNet20Spec, SmallCNNSpec, ThumbnailSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.engine import trainer as trainer_module
from deepauc.training.engine.fast import fast_step
from deepauc.training.plain import MODELS, OBJECTIVES, OPTIMIZERS
from deepauc.training.recipe import Recipe, Stage, ViewObjectiveSpec
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import InterruptFlag
from deepauc.training.schedule import Steps

DEVICE = torch.device("cuda", 0)
RELEASED = PESGSpec(gamma=0.01, weight_decay=1e-4, reference="zero", alpha_step="closed", clip_value=1.0)
IMAGES = Augment(crop_padding=0, enlarged_crop=0.9)


def made_task(side=8, labels=1):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 120, (64, side, side, 3)).astype(np.uint8)
    y = np.arange(64)[:, None] % np.arange(3, 3 + labels) == 0
    return Task(
        name="any",
        kind="binary" if labels == 1 else "multilabel",
        source=ArrayInputs(images),
        labels=y.astype(np.float32).squeeze(1) if labels == 1 else y.astype(np.float32),
        label_names=tuple("abc"[:labels]),
        parts={"train": np.arange(40), "validation": np.arange(40, 52), "test": np.arange(52, 64)},
    )


@pytest.fixture
def capture(tmp_path, monkeypatch, fake_gpu):
    """Captures the first step of these stages, a run each; the kinds of units and what was launched in all."""
    monkeypatch.setattr(fast_step, "WARM_UP_STEPS", 1)
    for cached in (fast_step._INPUTS, fast_step._NETWORKS, fast_step._VALUES):
        monkeypatch.setattr(fast_step, next(n for n, v in vars(fast_step).items() if v is cached), {})

    def real(build):
        def built(*args, **options):
            with unset_fake_temporarily():
                return build(*args, **options)

        return built

    monkeypatch.setattr(trainer_module, "build_model", real(trainer_module.build_model))
    monkeypatch.setattr(Stage, "build_objective", real(Stage.build_objective))

    def run(*stages, model=None, task=None, **options):
        model = model or SmallCNNSpec(widths=(4, 8))
        task = task or made_task()
        with fake_gpu() as launched:
            trainers = []
            for number, stage in enumerate(stages):
                recipe = Recipe(model=model, stages=(stage,), **options)
                folder = RunFolder(tmp_path / str(number))
                trainers.append(trainer_module.Trainer(recipe, task, number, folder, DEVICE, InterruptFlag(), None))
            epochs = [next(trainer.epochs()) for trainer in trainers]
            engine = fast_step.FastEngine(trainers, compiled=False)
            engine._prepare(epochs)
        return [type(unit).__name__ for unit in engine._units], Counter(launched)

    return run


def stage_of(objective, optimizer=None, **options):
    views = objective.views if isinstance(objective, ViewObjectiveSpec) else 1
    return Stage(
        objective=objective,
        optimizer=optimizer or SGDSpec(),
        batch_size=16,
        views=views,
        **{"augment": IMAGES, "precision": "bfloat16", "epochs": 1, **options},
    )


PAIRS = [
    (objective, optimizer)
    for objective in OBJECTIVES
    for optimizer in OPTIMIZERS
    if optimizer not in (PESGSpec, PDSCASpec) or objective in (AUCMargin, AUCSquare)
]


@pytest.mark.parametrize(("objective", "optimizer"), PAIRS, ids=lambda one: one.__name__)
def test_every_objective_with_every_optimizer(capture, objective, optimizer):
    units, launched = capture(stage_of(objective(), optimizer(), precision="float32"))
    assert units == ["SingleStep"]
    assert launched["pesg_kernel"] == (2 if optimizer in (PESGSpec, PDSCASpec) else 0)  # warm-up and capture


OPTIONS = {
    "closed form": stage_of(AUCMargin(), RELEASED, bound="l2"),
    "closed form, norms free": stage_of(AUCMargin(), replace(RELEASED, decay_norms=False, momentum=0.9)),
    "no pull": stage_of(AUCMargin(constrain_alpha=False), replace(RELEASED, gamma=0.0, weight_decay=0.01)),
    "backbone rate": stage_of(AUCMargin(), RELEASED, backbone_rate=0.1),
    "backbone rate, Adam": stage_of(CrossEntropy(), AdamSpec(decay_norms=False), backbone_rate=0.1),
    "backbone rate, SGD": stage_of(CrossEntropy(), SGDSpec(clip_value=1.0), backbone_rate=0.1),
    "graded and frozen": stage_of(
        AUCMargin(), replace(RELEASED, momentum=0.9), backbone_rate=0.1, graded_rates=True, epochs=2, frozen_epochs=1
    ),
    "graded and frozen, Adam": stage_of(
        CrossEntropy(), AdamSpec(), backbone_rate=0.1, graded_rates=True, epochs=2, frozen_epochs=1
    ),
    "frozen, SGD": stage_of(CrossEntropy(), SGDSpec(clip_value=1.0), epochs=2, frozen_epochs=1),
    "clipped SGD": stage_of(CrossEntropy(prior_weights=True, scale=1 / 3), SGDSpec(clip_value=1.0, decay_norms=False)),
    "clipped SGD without momentum": stage_of(Focal(scale=0.1), SGDSpec(clip_value=1.0, momentum=0.0)),
    "weights": stage_of(CrossEntropy(pos_weight=3.0, label_smoothing=0.1), AdamSpec()),
    "mixup": stage_of(AUCMargin(soft_labels=True), RELEASED, augment=Augment(mixup=0.3), bound="rms"),
    "average and clip": stage_of(AUCMargin(), RELEASED, ema=0.9, gradient_clip=1.0, positives_per_batch=4),
    "milestones": stage_of(AUCMargin(), RELEASED, schedule=Steps(milestones=(1,))),
    "surrogate": stage_of(PairwiseAUC(surrogate="logistic"), SGDSpec(), bound="none"),
    "partial": stage_of(PartialAUC(max_fpr=0.3, min_tpr=0.5), SGDSpec()),
    "average precision": stage_of(AveragePrecision(), SGDSpec(), precision="float32"),
    "in turns": stage_of(AUCMargin(), PDSCASpec(momentum=0.9), precision="bfloat16"),
    "no augmentation": stage_of(AUCMargin(), RELEASED, augment=None, precision="float32"),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("labels", [1, 3])
def test_options(capture, name, labels):
    capture(OPTIONS[name], task=made_task(labels=labels))


def test_sample_weights(capture):
    task = replace(made_task(), weights=np.linspace(0.5, 2, 64))
    capture(stage_of(AUCMargin(), RELEASED), stage_of(CrossEntropy()), task=task)


def of_ones_own(in_channels, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_outputs))


KINDS = {
    "ResNet20Spec": ResNet20Spec(start="xavier", norm_momentum=0.01),
    "MLPSpec": MLPSpec(hidden=(8,)),
    "SmallCNNSpec": SmallCNNSpec(widths=(4, 8)),
    "ThumbnailSpec": ThumbnailSpec(),
    "FactorySpec": FactorySpec(factory="nets:of_ones_own"),
}


@pytest.mark.parametrize("kind", [one.__name__ for one in MODELS if one not in (TimmSpec, BagSpec)])  # bags: plain loop
def test_every_kind_of_network(capture, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])
    features = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    task = replace(made_task(), source=ArrayInputs(features)) if kind == "MLPSpec" else made_task()
    augment = None if kind == "MLPSpec" else IMAGES
    capture(stage_of(AUCMargin(), RELEASED, augment=augment), model=KINDS[kind], task=task)


def test_networks_that_share_their_kernels(capture):
    """The releases' DenseNet121, AUC-M by PESG beside CE by clipped SGD: one unit, the dropout inside it."""
    network = TimmSpec(name="densenet121", activation="elu", proj_drop_rate=0.3, norm_momentum=0.01, start="xavier")
    both = stage_of(AUCMargin(), RELEASED, bound="l2"), stage_of(CrossEntropy(), SGDSpec(clip_value=1.0))
    units, launched = capture(*both, model=network, task=made_task(side=32))
    assert units == ["StackedStep"]
    assert launched["drop_kernel"] == 2 * 2 * 58  # dense layers, in either direction; warm-up and capture
    assert launched["pesg_kernel"] == 2


def dense_net(in_channels, num_outputs):
    from timm.models.densenet import DenseNet

    model = DenseNet(growth_rate=16, block_config=(2, 2), bn_size=2, num_classes=num_outputs, in_chans=in_channels)
    drop_in_dense_layers(model, 0.3)
    return model


@pytest.mark.parametrize("rate", [None, 0.1, 0.0])
def test_dropout_of_a_stage(capture, monkeypatch, rate):
    """Runs with another rate are another unit; without any no mask is made."""
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])
    stages = [stage_of(CrossEntropy(), drop_rate=one) for one in (0.2, rate)]
    units, launched = capture(*stages, model=FactorySpec(factory="nets:dense_net"), task=made_task(side=32))
    assert units == ["StackedStep"] * 2
    assert launched["drop_kernel"] == 2 * 2 * 4 * (1 if rate == 0 else 2)


def test_the_small_resnet_shares_its_kernels(capture):
    stage = stage_of(AUCMargin(), PESGSpec(), backbone_rate=0.1, graded_rates=True)
    network = TimmSpec(name="resnet18", small_stem=True)
    units, launched = capture(stage, stage, model=network, task=made_task(side=32))
    assert units == ["StackedStep"]
    assert launched["pesg_kernel"] == 2 * 2 * 5  # two runs, warm-up and capture, four quarters and the rest


def test_pretrained_layers_that_are_trained_on(capture):
    """Groups with rates of their own, inputs normalised as the weights expect."""
    network, inputs = TimmSpec(name="tf_efficientnet_lite0"), {"input_mean": (0.5,) * 3, "input_std": (0.5,) * 3}
    stage = stage_of(AUCMargin(), PESGSpec(), backbone_rate=0.1)
    units, launched = capture(stage, model=network, task=made_task(side=32), **inputs)
    assert units == ["SingleStep"]  # depthwise convolutions are not stacked
    assert launched["pesg_kernel"] == 2 * 2  # the backbone, the rest; warm-up and capture


@dataclass(frozen=True)
class Faulty:
    """A loss with one of the faults that a graph cannot hold."""

    fault: str
    bound: ClassVar[str] = "none"
    soft_labels: ClassVar[bool] = False

    def build(self, *, prior):
        return FaultyLoss(self.fault)


class FaultyLoss(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, scores, labels, weights=None):
        if self.fault == "item":
            return scores.mean() * scores.mean().item()
        if self.fault == "branch":
            return scores.mean() if labels.sum() > 0 else scores.sum()
        if self.fault == "mask":
            return scores[labels > 0].mean()
        if self.fault == "host":
            return (scores - scores.detach().cpu().mean().to(scores.device)).mean()
        if self.fault == "constant":
            return (scores * torch.tensor([2.0, 3.0], device=scores.device).sum()).mean()
        return scores.mean()


@pytest.mark.parametrize("fault", ["item", "branch", "mask", "host", "constant"])
def test_what_a_graph_cannot_hold_is_seen(capture, fault):
    with pytest.raises(Exception) as raised:
        capture(stage_of(Faulty(fault)))
    assert type(raised.value).__name__ in ("NotInAGraph", "DynamicOutputShapeException")


def test_a_loss_without_a_fault_passes(capture):
    capture(stage_of(Faulty("")))
