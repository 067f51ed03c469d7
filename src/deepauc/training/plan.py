"""A recipe from the look of the data: a pure function that says why for each of its choices.

It sees counts, sizes and the kind of device, never a measured time, so the same table gives the same plan everywhere.
The length of training follows from a budget of multiply-adds. Where the user names minutes instead, the plan is as long
as one would like, and `timing.fit_into` cuts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deepauc.data.augment import Augment
from deepauc.data.task import Task
from deepauc.models.build import ModelSpec, ResNet20Spec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.training.choice import Choice, DeviceKind
from deepauc.training.cost import TRAINING_FACTOR, multiply_adds
from deepauc.training.plan_network import Sizes, image_network, named_model, size_choice
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Steps

# One busy CPU core does 1e10 of these multiply-adds a second, two free ones 2e10 to 3e10: three to seven minutes.
BUDGET: dict[str, float] = {"cpu": 4e12, "cuda": 1e16}
BUDGET_MINUTES = 5  # what the budget is taken for where minutes choose the network
STEPS = (2000, 1000)  # of the two stages, where the budget allows: features take longer to learn than to rank with
LARGEST_BATCH: dict[str, int] = {"cpu": 64, "cuda": 128}
LEAST_EPOCHS, MOST_EPOCHS = 3, (50, 25)
STEPS_AN_EPOCH, LEAST_BATCH = 16, 16  # the batch is made small enough for so many steps, but no smaller
LEAST_SHARE = 1 / 8  # of either class in a batch of the AUC stage
ENOUGH_TO_SELECT = 25  # of each class in validation, to choose an epoch by it
MARGIN, GAMMA = 0.5, 0.002


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What the user decides; None leaves it to the plan. epochs: of each stage. model: see `named_model`.

    minutes: how long one is willing to wait for training, on the machine it runs on.
    """

    model: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be positive, not {self.minutes:g}.")
        if self.minutes is not None and self.epochs is not None:
            raise ValueError("epochs and minutes both say how long training takes: give one of them.")
        for name, least in (("epochs", 1), ("batch_size", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}.")


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """All that a plan may know of the data. Counts are of labelled rows, by part; positives and negatives by label."""

    rows: Mapping[str, int]
    positives: Mapping[str, tuple[int, ...]]
    negatives: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...]  # of one input: (H, W, C) or (F,)
    file_sizes: Sizes
    groups: int | None

    @classmethod
    def of(cls, task: Task, *, file_sizes: Sizes | None = None) -> Fingerprint:
        labels = task.labels.reshape(len(task), task.num_labels)
        parts = {part: labels[task.labelled(part)] for part in task.parts}
        return cls(
            rows={part: len(values) for part, values in parts.items()},
            positives={part: tuple(map(int, (values == 1).sum(0))) for part, values in parts.items()},
            negatives={part: tuple(map(int, (values == 0).sum(0))) for part, values in parts.items()},
            shape=tuple(task.source.shape),
            file_sizes=dict(file_sizes or {}),
            groups=None if task.groups is None else len(set(task.groups.tolist())),
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A recipe, and the reasons for it."""

    recipe: Recipe
    choices: tuple[Choice, ...]


def make_plan(fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind) -> Plan:
    """Cross-entropy, then AUC-M on all layers behind a sigmoid (section 3.4 of the paper), sized to data and device."""
    images = len(fingerprint.shape) == 3
    batch, positives, of_batch = _batch(fingerprint, options, device_kind)
    budget = BUDGET[device_kind] * (1 if options.minutes is None else options.minutes / BUDGET_MINUTES)
    length = _Length.of(fingerprint, batch=batch, positives=positives, budget=budget)
    model, choices = _model(fingerprint, options, device_kind, length)
    augment = _augment(fingerprint.shape) if images else None
    epochs, of_length = _epochs(length, model, options, device_kind)
    choices += [*of_batch, of_length]
    keep, of_keep = _keep(fingerprint)
    precision: Literal["float32", "bfloat16"] = "bfloat16" if device_kind == "cuda" and images else "float32"
    first = Stage(
        objective=CrossEntropy(),
        optimizer=AdamWSpec(lr=2e-3),
        epochs=epochs[0],
        schedule=Cosine(),
        batch_size=batch,
        augment=augment,
        keep=keep,
        precision=precision,
    )
    second = Stage(
        objective=AUCMargin(margin=MARGIN),
        optimizer=PESGSpec(lr=0.1, gamma=GAMMA, weight_decay=1e-4),
        epochs=epochs[1],
        schedule=_decay(epochs[1]),
        positives_per_batch=positives,
        reset_classifier=True,
        batch_size=batch,
        augment=augment,
        keep=keep,
        precision=precision,
    )
    choices += [
        Choice(
            name="stages",
            value="cross-entropy, then AUC-M with a fresh last layer",
            reason="cross-entropy learns the features, the AUC margin loss then ranks with them (the paper, 3.4)",
        ),
        Choice(
            name="learning rates",
            value="0.002 (AdamW) along a cosine, then 0.1 (PESG), divided by 10 at half and three quarters",
            reason="0.1 and its steps are the paper's; scores pass a sigmoid first, as raw ones diverge at this rate",
        ),
        Choice(
            name="margin",
            value=f"{MARGIN:g}",
            reason="within reach of scores behind a sigmoid, whose class means are at most 1 apart, and in the paper's "
            "range; --tune N tries others on validation",
        ),
        Choice(
            name="gamma",
            value=f"{GAMMA:g}",
            reason="1/500, the middle of the paper's grid; --tune N tries others on validation",
        ),
        *of_keep,
    ]
    if augment is not None:
        choices.append(
            Choice(
                name="augmentation",
                value=f"shifts of {augment.crop_padding} pixels, turns of {augment.rotation:g} degrees, zoom by 5 %",
                reason="careful, since a table does not say what may be changed: no mirror image (left and right may "
                "matter, as in a chest X-ray), no colours; a config file can ask for more",
            )
        )
    guard = "validation" in fingerprint.rows
    return Plan(recipe=Recipe(model=model, stages=(first, second), guard=guard), choices=tuple(choices))


@dataclass(frozen=True, kw_only=True)
class _Length:
    """Steps an epoch of the two stages, the epochs one would like, and how many multiply-adds there are to spend."""

    shape: tuple[int, ...]
    batch: int
    steps: tuple[int, int]
    wanted: tuple[int, int]
    budget: float

    @classmethod
    def of(cls, fingerprint: Fingerprint, *, batch: int, positives: int, budget: float) -> _Length:
        negatives = fingerprint.negatives["train"]
        steps = (fingerprint.rows["train"] // batch, sum(n // (batch - positives) for n in negatives))
        first, second = (
            min(max(math.ceil(of_stage / s), LEAST_EPOCHS), most)
            for of_stage, s, most in zip(STEPS, steps, MOST_EPOCHS, strict=True)
        )
        return cls(shape=fingerprint.shape, batch=batch, steps=steps, wanted=(first, second), budget=budget)

    def cost(self, model: ModelSpec, epochs: tuple[int, int]) -> float:
        """Multiply-adds of so many epochs."""
        a_step = TRAINING_FACTOR * self.batch * multiply_adds(model, self.shape)
        return float(a_step * sum(e * s for e, s in zip(epochs, self.steps, strict=True)))


def _model(
    fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind, length: _Length
) -> tuple[ModelSpec, list[Choice]]:
    shape = fingerprint.shape
    if len(shape) == 1:
        reason = "a table of numbers needs no more" if options.model is None else "asked for"
        model = named_model(options.model or "mlp", shape)
        return model, [Choice(name="network", value="MLP, 64 and 32 hidden units, standardised inputs", reason=reason)]
    if options.model is not None:
        name, reason = options.model, "asked for"
    else:
        spent = length.cost(ResNet20Spec(), length.wanted) / length.budget
        name, reason = image_network(max(shape[:2]), device_kind, spent=spent)
    network = Choice(name="network", value=name, reason=reason)
    return named_model(name, shape), [size_choice((shape[0], shape[1]), fingerprint.file_sizes, device_kind), network]


def _batch(fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind) -> tuple[int, int, list[Choice]]:
    """Batch size, positives in a batch of the AUC stage."""
    rows = fingerprint.rows["train"]
    positives, negatives = fingerprint.positives["train"], fingerprint.negatives["train"]
    if not all(positives) or not all(negatives):
        raise ValueError("a label of the training part has one class only: nothing can be ranked.")
    side = max(fingerprint.shape[:2]) if len(fingerprint.shape) == 3 else 1
    most = LARGEST_BATCH[device_kind] if side <= 128 else 32
    batch = 1 << int(math.log2(max(LEAST_BATCH, rows / STEPS_AN_EPOCH)))
    batch, reason = (
        min(batch, most, rows),
        f"{rows:,} rows: {LEAST_BATCH} at least, {most} at most, else {STEPS_AN_EPOCH} steps a pass",
    )
    if options.batch_size is not None:
        batch, reason = min(options.batch_size, rows), "asked for"
    share = min(p / (p + n) for p, n in zip(positives, negatives, strict=True))
    wanted = round(batch * min(max(share, LEAST_SHARE), 1 - LEAST_SHARE))
    quota = max(1, min(wanted, batch - 1, *positives))
    if batch - quota > min(negatives):  # so few that a batch would not be filled
        batch = min(negatives) + quota
        reason = f"there are only {min(negatives):,} negatives"
    why = f"{share:.1%} of the rows are positive"
    if len(positives) > 1:
        why += " for the rarest label; batch by batch the labels take turns"
    if quota < wanted:
        why += f"; there are only {min(positives):,}, and none should be twice in a batch"
    elif share < LEAST_SHARE:
        why += f": a plain batch would hold {batch * share:.1f}, too few to rank against"
    elif share > 1 - LEAST_SHARE:
        why += f": a plain batch would hold {batch * (1 - share):.1f} negatives, too few to rank against"
    else:
        why += ": that share, but the same in every batch"
    return (
        batch,
        quota,
        [
            Choice(name="batch size", value=str(batch), reason=reason),
            Choice(name="positives per batch", value=f"{quota} of {batch}, in the AUC stage", reason=why),
        ],
    )


def _epochs(
    length: _Length, model: ModelSpec, options: PlanOptions, device_kind: DeviceKind
) -> tuple[tuple[int, int], Choice]:
    """Of the two stages: what one would like, as far as the budget goes."""
    if options.epochs is not None:
        asked = (options.epochs, options.epochs)
        return asked, Choice(name="epochs", value=f"{options.epochs} + {options.epochs}", reason="asked for")
    shrink = min(1.0, length.budget / length.cost(model, length.wanted)) if options.minutes is None else 1.0
    first, second = (max(LEAST_EPOCHS, int(e * shrink)) for e in length.wanted)
    planned = length.cost(model, (first, second))
    reason = f"{first * length.steps[0]:,} + {second * length.steps[1]:,} steps, {planned:.1e} multiply-adds"
    if options.minutes is not None:
        reason += f", before they are cut to {options.minutes:g} minutes"
    elif planned > length.budget:
        reason += f": over the {device_kind.upper()} budget of {length.budget:.0e}, but fewer passes would teach little"
    elif shrink < 1:
        reason += f": what the {device_kind.upper()} budget of {length.budget:.0e} allows"
    return (first, second), Choice(name="epochs", value=f"{first} + {second}", reason=reason)


def _keep(fingerprint: Fingerprint) -> tuple[Literal["last", "best"], list[Choice]]:
    if "validation" not in fingerprint.rows:
        return "last", [
            Choice(name="selection", value="last epoch of the last stage", reason="there is no validation part")
        ]
    classes = (*fingerprint.positives["validation"], *fingerprint.negatives["validation"])
    guard = "the AUC stage is kept only if it is not worse there than cross-entropy"
    if min(classes) < ENOUGH_TO_SELECT:
        few = f"validation has {min(classes)} rows of a class, too few to tell one epoch from the next"
        return "last", [Choice(name="selection", value="last epoch", reason=f"{few}; {guard}")]
    many = f"validation has at least {min(classes):,} rows of each class, so its AUC can choose (and is a little too "
    many += "good for that reason; the test part is not looked at)"
    return "best", [Choice(name="selection", value="best epoch on validation", reason=f"{many}; {guard}")]


def _augment(shape: tuple[int, ...]) -> Augment:
    side = min(shape[:2])
    shift = min(max(1, side // 14), side - 1)  # never out of the picture: a batch of nothing makes BatchNorm explode
    return Augment(flip=False, crop_padding=shift, rotation=5.0, scale=(0.95, 1.05))


def _decay(epochs: int) -> Steps:
    milestones = {m for m in (epochs // 2, 3 * epochs // 4) if m >= 1}
    return Steps(milestones=tuple(sorted(milestones)))
