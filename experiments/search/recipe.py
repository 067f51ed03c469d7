"""`best`: one recipe for few positives, as a function of all its levers; every loss chooses from the same menu.

A first stage on views of the training images alone, which the paper has not, kept by hash and shared by all second
stages of one training set; then, if asked for, cross-entropy; then the loss itself on bounded scores. Which setting of
the levers is `best` is not written here: `levers` declares how it is chosen, and the records of that study say
what it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from deepauc.data.augment.batch import Augment
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.objectives.pairwise import Pairwise
from deepauc.objectives.poly_view import PolyView
from deepauc.objectives.vicreg import VICReg
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.recipe import Bound, ObjectiveSpec, OptimizerSpec, Precision, Recipe, Stage, ViewObjectiveSpec
from deepauc.training.schedule import Cosine, Schedule, Steps
from experiments.benchmarks.recipes import Network, network_of

Loss = Literal["auc_m", "auc_s", "pairwise", "ce"]
FirstStage = Literal["none", "simclr", "vicreg", "supcon", "polyview"]
ScheduleName = Literal["cosine", "steps"]

TITLES = {"auc_m": "AUC-M", "auc_s": "AUC-S", "pairwise": "all pairs, squared hinge", "ce": "CE"}

# Views as SimCLR's for 32 x 32: a crop of a fifth or more of the area, colours jittered, a fifth of them grey.
VIEWS = Augment(
    crop_padding=0, resized_crop=(0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, greyscale=0.2
)
# VICReg's terms are some hundred times NT-Xent's. None of these was tuned.
FIRST_LR = {"simclr": 0.5, "supcon": 0.5, "vicreg": 0.02, "polyview": 0.5}
FIRST_WEIGHT_DECAY = 1e-4
CE_FIRST_LR, CE_FIRST_MOMENTUM = 0.03, 0.9
PLACED = 0.3  # the rate of dropout layers before a stage sets its own


def best(
    *,
    loss: Loss = "auc_m",
    first_stage: FirstStage = "simclr",
    first_epochs: int = 100,
    first_batch: int = 512,
    first_lr: float | None = None,
    first_warmup: int | None = None,
    temperature: float = 0.2,
    epochs: int = 20,
    ema: float = 0.0,
    positives: int = 32,
    affine: bool = True,
    colour: bool = True,
    cutout: bool = True,
    mixup: float = 0.0,
    schedule: ScheduleName = "cosine",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 1e-3,
    gamma: float = 0.0,
    margin: float = 1.0,
    bound: Bound = "sigmoid",
    smoothing: float = 0.0,
    ce_first: int = 0,
    batch_size: int = 128,
    network: Network = "R",
    precision: Precision = "bfloat16",
    tta: int = 0,
    scale: float = 1.0,
    dropout: float | None = None,
    frozen_epochs: int = 0,
    lower_rate: float = 1.0,
    draw: int = 0,
) -> Recipe:
    """First stage, cross-entropy for `ce_first` epochs, then `loss` for `epochs`; 0 (or "none") leaves a part out.

    positives: in each batch; 0 is plain shuffling. mixup: alpha of its Beta. ema: share of the old average kept in a
    step. supcon has a quarter of positives in its batches. first_warmup: iterations over which the first stage's
    learning rate rises; by default four an epoch, about a tenth of the stage at 40 to 50 steps an epoch. tta: copies of
    an image that a final score is the mean of. scale: of the last stage's loss, by the optimizer: s times the loss at
    rate lr and decay d takes the steps of the loss at rate s lr and decay d / s (gamma likewise). dropout: of that
    stage alone; a number (0 too) gives the network layers for it, the same for every rate, so that all of them share
    a first stage. frozen_epochs: of that stage, in which the last layer alone moves. lower_rate: of the lowest layers,
    as a share of lr; the others' lie in between. draw: which random numbers that stage has; from 1 on it also begins
    with another classifier. Arguments that a loss has no use for are not looked at: gamma is PESG's (auc_m, auc_s),
    margin is for auc_m and pairwise, bound for all but ce, smoothing for ce. first_lr: None is that of `FIRST_LR`.
    """
    if loss not in get_args(Loss):
        raise ValueError(f"loss must be one of {', '.join(get_args(Loss))}, not {loss!r}.")
    if loss == "ce" and ce_first:
        raise ValueError("cross-entropy before cross-entropy is only a longer training: set epochs, and ce_first=0.")
    if not (ce_first >= 0 and positives >= 0):
        raise ValueError(f"ce_first and positives must not be negative, not {ce_first} and {positives}; 0 is none.")
    augment = _augment(affine=affine, colour=colour, cutout=cutout, mixup=mixup)
    soft = mixup > 0

    def supervised(
        objective: ObjectiveSpec, optimizer: OptimizerSpec, length: int, *, bound: Bound, ema: float, fresh: bool
    ) -> Stage:
        return Stage(
            objective=objective,
            optimizer=optimizer,
            epochs=length,
            batch_size=batch_size,
            positives_per_batch=positives or None,
            schedule=_schedule(schedule, length),
            augment=augment,
            bound=bound,
            reset_classifier=fresh,
            ema=ema or None,
            precision=precision,
        )

    stages = []
    if first_stage != "none":
        stages.append(_views(first_stage, first_epochs, first_batch, first_lr, first_warmup, temperature, precision))
    if ce_first:
        optimizer = SGDSpec(lr=CE_FIRST_LR, momentum=CE_FIRST_MOMENTUM, weight_decay=weight_decay)
        objective = CrossEntropy(soft_labels=soft)
        stages.append(supervised(objective, optimizer, ce_first, bound="none", ema=0.0, fresh=False))
    stages.append(
        supervised(
            _objective(loss, margin=margin, smoothing=smoothing, soft=soft),
            PESGSpec(lr=lr * scale, gamma=gamma / scale, weight_decay=weight_decay / scale, momentum=momentum)
            if loss in ("auc_m", "auc_s")
            else SGDSpec(lr=lr * scale, momentum=momentum, weight_decay=weight_decay / scale),
            epochs,
            bound="none" if loss == "ce" else bound,
            ema=ema,
            fresh=ce_first > 0,  # 3.4: the classifier that cross-entropy has trained is not the AUC loss's start
        )
    )
    if dropout is not None:
        stages = [replace(stage, drop_rate=0.0) for stage in stages]
    stages[-1] = replace(
        stages[-1],
        drop_rate=dropout,
        frozen_epochs=frozen_epochs,
        backbone_rate=lower_rate,
        graded_rates=lower_rate != 1,
        place=len(stages) - 1 + draw if draw else None,
        reset_classifier=stages[-1].reset_classifier or draw > 0,
    )
    model = network_of(network, drop_rate=0.0 if dropout is None else PLACED)
    return Recipe(model=model, stages=tuple(stages), tta=tta)


def _objective(loss: Loss, *, margin: float, smoothing: float, soft: bool) -> ObjectiveSpec:
    if loss == "auc_m":
        return AUCMargin(margin=margin, soft_labels=soft)
    if loss == "auc_s":
        return AUCSquare(soft_labels=soft)
    if loss == "pairwise":
        return Pairwise(surrogate="squared_hinge", margin=margin, soft_labels=soft)
    return CrossEntropy(label_smoothing=smoothing, soft_labels=soft)


def _views(
    kind: FirstStage,
    epochs: int,
    batch: int,
    lr: float | None,
    warmup: int | None,
    temperature: float,
    precision: Precision,
) -> Stage:
    if kind not in get_args(FirstStage):
        raise ValueError(f"first_stage must be one of {', '.join(get_args(FirstStage))}, not {kind!r}.")
    objectives: dict[str, ViewObjectiveSpec] = {
        "simclr": Contrastive(temperature=temperature),
        # Of the positives alone: with both classes drawn together everything was one point after 20 to 40 steps.
        "supcon": SupervisedContrastive(temperature=temperature, classes="positives"),
        "vicreg": VICReg(),
        "polyview": PolyView(temperature=temperature),
    }
    return Stage(
        objective=objectives[kind],
        optimizer=SGDSpec(lr=FIRST_LR[kind] if lr is None else lr, weight_decay=FIRST_WEIGHT_DECAY),
        epochs=epochs,
        batch_size=batch,
        positives_per_batch=max(1, batch // 4) if kind == "supcon" else None,
        views=objectives[kind].views,
        schedule=Cosine(warmup=4 * epochs if warmup is None else warmup),
        augment=VIEWS,
        precision=precision,
    )


def _augment(*, affine: bool, colour: bool, cutout: bool, mixup: float) -> Augment:
    """Flips and shifts of 4 pixels always; the rest as asked for."""
    return Augment(
        rotation=15.0 if affine else 0.0,
        scale=(0.8, 1.15) if affine else (1.0, 1.0),
        translation=0.2 if affine else 0.0,
        brightness=0.4 if colour else 0.0,
        contrast=0.4 if colour else 0.0,
        saturation=0.4 if colour else 0.0,
        hue=0.1 if colour else 0.0,
        coarse_dropout=1 if cutout else 0,
        hole_size=0.25 if cutout else 0.2,
        mixup=mixup,
    )


def _schedule(name: ScheduleName, epochs: int) -> Schedule:
    if name not in get_args(ScheduleName):
        raise ValueError(f"schedule must be 'cosine' or 'steps', not {name!r}.")
    if name == "cosine":
        return Cosine()
    return Steps(milestones=tuple(sorted({m for m in (epochs // 2, 3 * epochs // 4) if m >= 1})))
