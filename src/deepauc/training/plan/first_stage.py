"""Whether a plan begins with a contrastive stage on the training images alone, and how long that is.

It learns features from all images, with labels or without, and so helps where positives are few. The rule: it comes
first where it may be worth it (few of a class, many images, small ones) and where the budget, after the stages that
need labels have theirs, still lasts for enough of it. Those stages are never shortened for it.

Measured: it raised the validation AUC with 202 positives of 20,202 photographs of 32 pixels (ResNet20, 100 and 300
epochs, mirrored views: results/best.md, levers `first` and `first_kind`) and with 888 of 8,888 (a small network, 50
epochs, not mirrored: results/plan.md). On four medical sets of 499 to 5,514 images of 28 and 32 pixels it did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from deepauc.data.augment.batch import Augment
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.standard import SGDSpec
from deepauc.training.plan.cost import TRAINING_FACTOR
from deepauc.training.plan.decision import ASKED, Decision, DeviceKind, Fact, replaced
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.recipe import Precision, Stage
from deepauc.training.schedule import Cosine

NAME = "first stage"  # of the decision
MOST_OF_RARER_CLASS = 1000  # it pays at 202 and 888 positives; with how many it stops paying is not measured
LEAST_IMAGES = 8000  # it pays at 8,888 and 20,202, at 5,514 and fewer it does not
LARGEST_SIDE = 64  # pixels; measured at 32. Larger ones go with another network (plan_network), which has no run
LEAST_EPOCHS = 50  # as few as were tried
MOST_EPOCHS: dict[str, int] = {"cpu": 100, "cuda": 300}  # both measured; 300 are better, for three times the time
LARGEST_BATCH: dict[str, int] = {"cpu": 256, "cuda": 512}  # 512: as measured; 256: as the study `plan` has it
MOST_PIXELS = 512 * 64 * 64  # of a batch, each view: for the GPU's memory
STEPS_AN_EPOCH, LEAST_BATCH = 10, 16  # the batch is made small enough for so many steps, but no smaller
LR_AT_512, WEIGHT_DECAY, TEMPERATURE, VIEWS = 0.5, 1e-4, 0.2, 2  # as measured; the rate in proportion to the batch
WARM_UP = 10  # the tenth of the steps over which the rate rises

# SimCLR's views for 32 pixels but for the mirror image: left and right may matter, as in a chest X-ray.
GREY_VIEWS = Augment(flip=False, crop_padding=0, resized_crop=(0.2, 1.0), brightness=0.4, contrast=0.4)
COLOUR_VIEWS = replace(GREY_VIEWS, saturation=0.4, hue=0.1, greyscale=0.2)


@dataclass(frozen=True, kw_only=True)
class Means:
    """Multiply-adds: of one image through the network, the whole budget, and what the other stages leave of it.

    remedies: the options of the command line that would allow so many multiply-adds, each by itself.
    """

    an_image: int
    budget: float
    left: float
    remedies: Callable[[float], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class PlannedFirst:
    """The stage, or None; the decisions about it, none for a table of numbers; its steps and multiply-adds."""

    stage: Stage | None = None
    decisions: tuple[Decision, ...] = ()
    steps: int = 0
    cost: float = 0.0


def plan_first_stage(
    fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind, *, means: Means, precision: Precision
) -> PlannedFirst:
    """Whether the stage comes first, and how long it is, by the constants above."""
    if len(fingerprint.shape) != 3:
        if options.first_stage == "contrastive":
            raise ValueError("a contrastive first stage compares views of images: for numbers leave first_stage out.")
        return PlannedFirst()
    if options.first_stage == "none":
        return PlannedFirst(decisions=(Decision(name=NAME, value="none", reason=ASKED),))
    batch = _batch(fingerprint, options, device_kind)
    steps = _images(fingerprint) // batch
    an_epoch = float(VIEWS * batch * steps * TRAINING_FACTOR * means.an_image)
    fitting, most = max(0, int(means.left / an_epoch)), MOST_EPOCHS[device_kind]
    if options.first_stage == "contrastive":
        epochs = options.epochs or (most if options.minutes else min(max(fitting, LEAST_EPOCHS), most))
        reason, facts = ASKED, dict[str, Fact]()
        if options.minutes is None and options.epochs is None and epochs > fitting:
            reason = (*ASKED, "over budget")
            facts = {"cost": epochs * an_epoch, "device": device_kind.upper(), "budget": means.budget}
    else:
        against = _against(fingerprint, options) or _cannot_be_paid(fitting, an_epoch, options, device_kind, means)
        if against is not None:
            return PlannedFirst(decisions=(against,))
        # With minutes as long as one would like: `timing.fit_into` looks at the clock.
        epochs = options.epochs or (most if options.minutes else min(fitting, most))
        reason, facts = ("few of a class",), {"rarer": _rarer(fingerprint), "images": _images(fingerprint)}
    stage = _stage(fingerprint, batch=batch, steps=steps, epochs=epochs, precision=precision)
    facts |= {"batch": batch, "lr": stage.optimizer.lr}
    return PlannedFirst(
        stage=stage,
        decisions=(
            Decision(name=NAME, value="contrastive", reason=reason, rests_on=facts),
            _views_decision(fingerprint),
        ),
        steps=epochs * steps,
        cost=epochs * an_epoch,
    )


def without_first_stage(decisions: tuple[Decision, ...], instead: Decision) -> tuple[Decision, ...]:
    """The decisions of a plan whose first stage is taken away again."""
    return replaced(tuple(one for one in decisions if one.name != "views"), instead)


def no_first_stage(*reason: str, **facts: Fact) -> Decision:
    """That there is none, and why."""
    return Decision(name=NAME, value="none", reason=reason, rests_on=facts)


def _images(fingerprint: Fingerprint) -> int:
    return fingerprint.rows["train"] + fingerprint.unlabelled


def _rarer(fingerprint: Fingerprint) -> int:
    return min(*fingerprint.positives["train"], *fingerprint.negatives["train"])


def _against(fingerprint: Fingerprint, options: PlanOptions) -> Decision | None:
    """Why it is not worth it, or not known to be."""
    rarer, images, side = _rarer(fingerprint), _images(fingerprint), max(fingerprint.shape[:2])
    if rarer > MOST_OF_RARER_CLASS:
        return no_first_stage("class is large", "anyway", rarer=rarer, most=MOST_OF_RARER_CLASS)
    if images < LEAST_IMAGES:
        return no_first_stage("few images", "anyway", images=images, least=LEAST_IMAGES)
    if side > LARGEST_SIDE:
        return no_first_stage("large images", "anyway", side=side, most=LARGEST_SIDE)
    if options.epochs is not None and options.epochs < LEAST_EPOCHS:
        return no_first_stage("few epochs", "anyway", epochs=options.epochs, needed=LEAST_EPOCHS)
    return None


def _cannot_be_paid(
    fitting: int, an_epoch: float, options: PlanOptions, device_kind: DeviceKind, means: Means
) -> Decision | None:
    needed = options.epochs or LEAST_EPOCHS
    if fitting >= needed:
        return None
    facts: dict[str, Fact] = {"fitting": fitting, "needed": needed}
    if options.minutes is None:
        facts |= {"device": device_kind.upper(), "budget": means.budget}
    else:
        facts["minutes"] = options.minutes
    reason = "no budget" if options.minutes is None else "no minutes"
    if options.epochs:
        return no_first_stage(reason, "anyway", **facts)
    return no_first_stage(reason, "would allow", "anyway", **facts, options=means.remedies(needed * an_epoch))


def _batch(fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind) -> int:
    images, (height, width, _) = _images(fingerprint), fingerprint.shape
    if options.batch_size is not None:
        return min(options.batch_size, images)
    most = min(LARGEST_BATCH[device_kind], MOST_PIXELS // (height * width))
    return min(max(LEAST_BATCH, min(_power_of_two(images / STEPS_AN_EPOCH), _power_of_two(most))), images)


def _power_of_two(value: float) -> int:
    """The largest that is no larger."""
    return 1 << max(0, math.floor(math.log2(max(value, 1))))


def _stage(fingerprint: Fingerprint, *, batch: int, steps: int, epochs: int, precision: Precision) -> Stage:
    return Stage(
        objective=Contrastive(temperature=TEMPERATURE),
        optimizer=SGDSpec(lr=LR_AT_512 * batch / 512, weight_decay=WEIGHT_DECAY),
        epochs=epochs,
        batch_size=batch,
        views=VIEWS,
        schedule=Cosine(warmup=epochs * steps // WARM_UP),
        augment=_views(fingerprint),
        precision=precision,
    )


def _views(fingerprint: Fingerprint) -> Augment:
    return GREY_VIEWS if fingerprint.shape[2] == 1 else COLOUR_VIEWS


def _views_decision(fingerprint: Fingerprint) -> Decision:
    grey = fingerprint.shape[2] == 1
    reason = ("ignored", "grey", "crop") if grey else ("ignored", "crop")
    return Decision(name="views", value="grey" if grey else "colour", reason=reason)
