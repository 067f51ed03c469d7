"""The paper's medical recipes (sections 4.2 and 4.3; D5 to D8): four losses as methods, the settings as arguments.

CE and focal loss are one stage by Adam. The AUC losses are two (section 3.4): CE by Adam, then PESG on all layers with
a fresh classifier. `CHEXPERT`, `MELANOMA`, `DDSM` and `PCAM` hold what the paper prints; a stand-in takes one of these
and changes the length, and where nothing pretrained is at hand the learning rates it tries (`studies`).

What the paper leaves open, and what is done here: the optimizer of the melanoma CE (Adam), how far augmentations go
(`AUGMENTS`), augmentation of DDSM+ and PatchCamelyon (flips), the bound on the scores (a sigmoid), whether its networks
start from ImageNet (`pretrained`; a learning rate of 1e-5 for two epochs makes no sense otherwise).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from deepauc.data.augment.batch import Augment
from deepauc.data.uncertain import Choice
from deepauc.models.build import MLPSpec, ModelSpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec
from deepauc.training.recipe import Bound, Precision, Recipe, Stage
from deepauc.training.schedule import Constant, Cosine, Cyclic, Steps, Unit
from experiments.benchmarks.recipes import Loss, named

Changes = Literal["none", "flip", "small", "chest", "skin"]
Uncertain = Choice | Mapping[str, Choice] | None

AUGMENTS: Mapping[str, Augment | None] = {
    "none": None,
    "flip": Augment(flip=True, vertical_flip=True, crop_padding=0),
    # 28 px: what a hand-held probe or a child before a detector may do
    "small": Augment(flip=True, crop_padding=2, rotation=10, scale=(0.9, 1.1)),
    # D5: rotation, translation, scaling; the strengths are LibAUC's
    "chest": Augment(flip=False, crop_padding=0, rotation=15, translation=0.05, scale=(0.95, 1.05), fill=0.5),
    # D6: flip, rotate, scale, shear, coarse dropout
    "skin": Augment(
        flip=True,
        vertical_flip=True,
        crop_padding=0,
        rotation=180,
        translation=0.05,
        scale=(0.9, 1.1),
        shear=5,
        coarse_dropout=8,
        hole_size=0.1,
    ),
}
_NETWORKS: Mapping[str, ModelSpec] = {
    "R": ResNet20Spec(),
    "D": TimmSpec(name="densenet121", activation="elu"),
    "S": SmallCNNSpec(),
    "M": MLPSpec(hidden=(256, 128)),
}

CHEXPERT: Mapping[str, Any] = {
    "lr": 1e-5,
    "weight_decay": 1e-5,
    "epochs": 2,
    "batch_size": 32,
    "augment": "chest",
    "auc_lr": 0.1,
    "auc_weight_decay": 0.0,
    "auc_epochs": 2,
    "gamma": 1 / 500,
    "margin": 0.8,
    "milestones": (2000, 8000),
    "unit": "iterations",
    "factor": 1 / 3,
}
MELANOMA: Mapping[str, Any] = {
    "lr": 3e-5,
    "cycle": 8,
    "weight_decay": 1e-5,
    "epochs": 16,
    "batch_size": 256,
    "augment": "skin",
    "auc_lr": 0.01,
    "auc_weight_decay": 1e-5,
    "auc_epochs": 35,
    "gamma": 1 / 500,
    "milestones": (10, 20, 30),
    "factor": 0.5,
}
DDSM: Mapping[str, Any] = {
    "network": "D",
    "weight_decay": 1e-5,
    "epochs": 5,
    "batch_size": 32,
    "augment": "flip",
    "auc_weight_decay": 0.0,
    "auc_epochs": 1,
}
PCAM: Mapping[str, Any] = {**DDSM, "batch_size": 64}

LEARNING_RATES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
AUC_LEARNING_RATES = (1e-1, 1e-2, 1e-3)
GAMMAS = (1 / 300, 1 / 500, 1 / 800)
MARGINS = (0.3, 0.5, 0.7, 1.0)
FOCAL = {"focal_alpha": (0.25, 0.5, 0.75), "focal_gamma": (1.0, 2.0, 5.0)}


def network_of(network: str, *, pretrained: bool = False) -> ModelSpec:
    """R (ResNet20) and D (DenseNet121), both with ELU, S (a small CNN), M (two layers, 256 and 128, for metadata);
    any other name is timm's, with the network's own activation: densenet169, tf_efficientnet_b5, ...
    """
    if network not in _NETWORKS:
        return TimmSpec(name=network, pretrained=pretrained)
    if pretrained and network != "D":
        raise ValueError(f"there are no published weights for {network!r}: leave pretrained out.")
    return TimmSpec(name="densenet121", pretrained=True) if pretrained else _NETWORKS[network]


def medical_recipe(
    *,
    loss: Loss,
    network: str = "D",
    pretrained: bool = False,
    lr: float = 1e-3,
    weight_decay: float = 1e-5,
    epochs: int = 5,
    batch_size: int = 32,
    cycle: int = 0,
    cosine: bool = False,
    augment: Changes = "flip",
    uncertain: Uncertain = None,
    precision: Precision = "bfloat16",
    accumulate: int = 1,
    focal_alpha: float = 0.25,
    focal_gamma: float = 2.0,
    margin: float = 1.0,
    auc_lr: float = 0.1,
    gamma: float = 1 / 500,
    auc_weight_decay: float = 0.0,
    auc_epochs: int = 1,
    milestones: tuple[int, ...] = (),
    unit: Unit = "epochs",
    factor: float = 0.1,
    bound: Bound = "sigmoid",
    hard: Uncertain = None,
    alone: bool = False,
) -> Recipe:
    """Cross-entropy or focal loss by Adam; the AUC losses by PESG on all layers after such a cross-entropy.

    cycle: epochs of a cycle from lr to 8 lr and back (D6); 0 keeps lr as it is. From margin on the arguments are of the
    AUC stage, whose classifier is fresh and whose rate falls by `factor` at each milestone. hard: what becomes of
    uncertain labels there. alone: the last stage only, with a fresh classifier, for another run's network.
    """
    if augment not in AUGMENTS:
        raise ValueError(f"augment must be one of {', '.join(AUGMENTS)}, not {augment!r}.")
    if cycle and cosine:
        raise ValueError("cycle and cosine are two schedules: set one of them.")
    soft = any(choice.startswith("smooth") for choice in _choices(uncertain))
    shared: dict[str, Any] = {"batch_size": batch_size, "augment": AUGMENTS[augment]}
    shared |= {"precision": precision, "accumulate": accumulate}
    first = Stage(
        objective=Focal(alpha=focal_alpha, gamma=focal_gamma, soft_labels=soft)
        if loss == "focal"
        else CrossEntropy(soft_labels=soft),
        optimizer=AdamSpec(lr=lr, weight_decay=weight_decay),
        epochs=epochs,
        schedule=Cyclic(period=cycle) if cycle else Cosine() if cosine else Constant(),
        uncertain=uncertain,
        **shared,
    )
    last = Stage(
        objective=AUCMargin(margin=margin) if loss == "auc_m" else AUCSquare(),
        optimizer=PESGSpec(lr=auc_lr, gamma=gamma, weight_decay=auc_weight_decay),
        epochs=auc_epochs,
        schedule=Steps(milestones=tuple(milestones), factor_each=factor, unit=unit) if milestones else Constant(),
        bound=bound,
        reset_classifier=True,
        uncertain=hard,
        **shared,
    )
    model = network_of(network, pretrained=pretrained)
    stages = (first,) if loss in ONE_STAGE else (first, last)
    return Recipe(model=model, stages=(replace(stages[-1], reset_classifier=True),) if alone else stages)


def _choices(uncertain: Uncertain) -> tuple[Choice, ...]:
    return (uncertain,) if isinstance(uncertain, str) else tuple((uncertain or {}).values())


ONE_STAGE = ("ce", "focal")
LOSSES: tuple[Loss, ...] = get_args(Loss)
_FOCAL = ("focal_alpha", "focal_gamma")
_AUC = ("auc_lr", "gamma", "auc_weight_decay", "auc_epochs", "milestones", "unit", "factor", "bound", "hard")
_UNUSED = {
    "ce": (*_FOCAL, *_AUC, "margin"),
    "focal": (*_AUC, "margin"),
    "auc_s": (*_FOCAL, "margin"),
    "auc_m": _FOCAL,
}
METHODS: Mapping[str, Callable[..., Recipe]] = {
    loss: named(loss, medical_recipe, "loss", *_UNUSED[loss], loss=loss) for loss in LOSSES
}


def arguments(loss: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that a loss has a use for."""
    return {name: value for name, value in settings.items() if name not in _UNUSED[loss]}
