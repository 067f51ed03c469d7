"""The settings of the authors' first releases as one method of a study, with every one of them an argument.

What the paper does not say, the releases do (LibAUC 1.0.2 and 1.0.6, 2021): Theorem 1 with its factor p(1 - p); PESG's
reference at the origin, so that gamma is a weight decay until the first renewal; alpha stepped in closed form; every
element of a gradient clipped to +-1, for CE and focal too; DenseNet121 with dropout .3 behind every dense layer, batch
norm momentum .01 and Xavier's start, ResNet20 with Xavier's start; images in [0, 1], of which a random window of 30 of
32 pixels is enlarged. ELU and batch score normalisation are the paper's.
"""

from __future__ import annotations

from typing import Literal, get_args

from deepauc.data.augment.batch import Augment
from deepauc.models.activations import ActivationName
from deepauc.models.build import ModelSpec, ResNet20Spec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.optim.pesg import AlphaStep, PESGSpec, Reference
from deepauc.optim.standard import SGDSpec
from deepauc.training.recipe import Bound, ObjectiveSpec, OptimizerSpec, Precision, Recipe, Stage
from deepauc.training.schedule import Steps
from experiments.benchmarks.recipes import Loss, named

Network = Literal["R", "D"]
Start = Literal["he", "xavier"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
CROP = 30 / 32


def released(
    *,
    loss: Loss,
    network: Network = "D",
    margin: float = 1.0,
    gamma: float = 1 / 500,
    focal_alpha: float = 0.25,
    focal_gamma: float = 2.0,
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 1e-4,
    decay: float | None = None,
    decay_by: Literal["decay", "pull"] = "decay",
    decay_norms: bool = True,
    clip_value: float | None = 1.0,
    reference: Reference = "zero",
    alpha_step: AlphaStep = "closed",
    constrain_alpha: bool = True,
    normalise: bool = False,
    bound: Bound = "l2",
    scale: float = 1.0,
    prior_weights: bool = False,
    dropout: float = 0.3,
    norm_momentum: float = 0.01,
    start: Start = "xavier",
    activation: ActivationName = "elu",
    standardised: bool = False,
    positives: int = 0,
    epochs: int = 100,
    batch_size: int = 128,
    precision: Precision = "bfloat16",
    watch: bool = False,
) -> Recipe:
    """The releases' column, `loss` for one hundred epochs, the learning rate divided by ten at 50 % and 75 %.

    gamma, reference, alpha_step, normalise, constrain_alpha and bound are for the AUC losses, margin for auc_m, scale
    for ce and focal, prior_weights for ce, dropout and norm_momentum for DenseNet121: the others do not look at them.
    standardised: images lose mean and deviation, and are cropped with a padding of 4 pixels. positives: of a batch of
    128, in smaller ones the same share; 0 is plain shuffling. decay: in place of weight_decay and gamma one decay, by
    weight decay or (AUC losses) by PESG's pull to the origin, gamma being `decay`: that is `fair`.
    """
    if decay_by not in ("decay", "pull"):
        raise ValueError(f"decay_by must be 'decay' or 'pull', not {decay_by!r}.")
    if decay is not None:
        pulled = decay_by == "pull" and loss in ("auc_s", "auc_m")
        gamma, weight_decay = (decay, 0.0) if pulled else (0.0, decay)
    if loss not in LOSSES or network not in get_args(Network):
        raise ValueError(f"loss must be one of {', '.join(LOSSES)} and network R or D, not {loss!r} and {network!r}.")
    objective: ObjectiveSpec
    optimizer: OptimizerSpec
    if loss in ("auc_s", "auc_m"):
        objective = (
            AUCSquare(normalise=normalise)
            if loss == "auc_s"
            else AUCMargin(margin=margin, normalise=normalise, constrain_alpha=constrain_alpha)
        )
        optimizer = PESGSpec(
            lr=lr,
            gamma=gamma,
            weight_decay=weight_decay,
            momentum=momentum,
            reference=reference,
            alpha_step=alpha_step,
            clip_value=clip_value,
            decay_norms=decay_norms,
        )
    else:
        objective = (
            CrossEntropy(scale=scale, prior_weights=prior_weights)
            if loss == "ce"
            else Focal(alpha=focal_alpha, gamma=focal_gamma, scale=scale)
        )
        optimizer = SGDSpec(
            lr=lr, momentum=momentum, weight_decay=weight_decay, clip_value=clip_value, decay_norms=decay_norms
        )
    stage = Stage(
        objective=objective,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=batch_size,
        positives_per_batch=positives * batch_size // 128 or None,
        schedule=Steps(milestones=tuple(sorted({m for m in (epochs // 2, 3 * epochs // 4) if m >= 1}))),
        augment=Augment() if standardised else Augment(crop_padding=0, enlarged_crop=CROP),
        bound=bound if loss in ("auc_s", "auc_m") else "auto",
        precision=precision,
    )
    model = _network(network, dropout, norm_momentum, start, activation)
    return Recipe(model=model, stages=(stage,), standardise=standardised, watch=watch)


fair = named("fair", released, "gamma", "weight_decay", decay=1e-4)


def _network(
    network: Network, dropout: float, norm_momentum: float, start: Start, activation: ActivationName
) -> ModelSpec:
    if network == "R":
        return ResNet20Spec(activation=activation, start=start)
    return TimmSpec(
        name="densenet121",
        activation="elu" if activation == "elu" else None,
        proj_drop_rate=dropout,
        norm_momentum=norm_momentum,
        start="xavier" if start == "xavier" else None,
    )
