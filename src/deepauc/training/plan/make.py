"""A recipe from the look of the data: a pure function that says why for each of its decisions.

It sees counts, sizes and the kind of device, never a measured time, so the same table gives the same plan everywhere.
The length of training follows from a budget of multiply-adds. Where the user names minutes instead, the plan is as long
as one would like, and `timing.fit_into` cuts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from deepauc.data.augment.batch import Augment
from deepauc.models.build import ModelSpec, ResNet20Spec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.training.plan.cost import multiply_adds
from deepauc.training.plan.decision import Decision, DeviceKind
from deepauc.training.plan.first_stage import Means, plan_first_stage
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.length import Length, budget_of, planned_epochs
from deepauc.training.plan.network import SMALLER, image_network, named_model, size_decision
from deepauc.training.plan.test_time import plan_copies
from deepauc.training.recipe import Precision, Recipe, Stage
from deepauc.training.schedule import Cosine, Steps

__all__ = ["Fingerprint", "Plan", "PlanOptions", "make_plan"]

LARGEST_BATCH: dict[str, int] = {"cpu": 64, "cuda": 128}
STEPS_AN_EPOCH, LEAST_BATCH = 16, 16  # the batch is made small enough for so many steps, but no smaller
# Of a batch: positives, in both stages where the rows have fewer (results/plan.md), and negatives in the AUC stage.
LEAST_POSITIVES, LEAST_NEGATIVES = 1 / 4, 1 / 8
ENOUGH_TO_SELECT = 25  # of each class in validation, to choose an epoch by it
MARGIN, GAMMA = 0.5, 0.002


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A recipe, and the reasons for it.

    first_stage_may_go: the plan, not the user, has put a contrastive stage first, and it is left out where the minutes
    do not last for enough of it. without_auc: the plan for where they do not last for the AUC stage, if that may go.
    """

    recipe: Recipe
    decisions: tuple[Decision, ...]
    first_stage_may_go: bool = False
    without_auc: Plan | None = None


def make_plan(fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind) -> Plan:
    """Cross-entropy, then AUC-M on all layers behind a sigmoid (section 3.4 of the paper), sized to data and device.

    Before them, where it may be worth it and is affordable, a contrastive stage on the images alone. The AUC stage is
    there where cross-entropy leaves time for it.
    """
    batch = _batch(fingerprint, options, device_kind)
    budget = budget_of(options.minutes, device_kind)
    length = Length.of(fingerprint, batch=batch.size, positives=batch.quotas, budget=budget)
    model, of_model = _model(fingerprint, options, device_kind, length)
    epochs, of_length = planned_epochs(length, model, options, device_kind)
    images = len(fingerprint.shape) == 3
    precision: Precision = "bfloat16" if device_kind == "cuda" and images else "float32"
    means = _means(fingerprint, options, device_kind, length=length, model=model, epochs=epochs)
    before = plan_first_stage(fingerprint, options, device_kind, means=means, precision=precision)
    copies, of_copies = plan_copies(fingerprint, options)
    if before.stage is not None:
        of_length = _after(before.stage.epochs, before.length, of_length)

    def of(epochs: tuple[int, int], why: str, without_auc: Plan | None = None) -> Plan:
        auc = epochs[1] > 0
        keep, of_keep = _keep(fingerprint, auc=auc)
        stages = _supervised(fingerprint, batch, epochs, keep=keep, precision=precision)
        said = [
            *of_model,
            *batch.decisions(auc=auc),
            *before.decisions,
            of_length,
            *_stages_said(why, auc=auc),
            *of_keep,
        ]
        if stages[0].augment is not None:
            said += [_augment_said(stages[0].augment), *of_copies]
        return Plan(
            recipe=Recipe(
                model=model,
                stages=stages if before.stage is None else (before.stage, *stages),
                guard=auc and "validation" in fingerprint.rows,
                tta=copies,
            ),
            decisions=tuple(said),
            first_stage_may_go=before.stage is not None and options.first_stage == "auto",
            without_auc=without_auc,
        )

    may_go = options.auc_stage == "auto" and options.minutes is not None
    alone = of((epochs[0], 0), "") if may_go else None  # why is said by what has seen that there is no time
    return of(epochs, _why_alone(options, length), alone)


def _supervised(
    fingerprint: Fingerprint,
    batch: _Batch,
    epochs: tuple[int, int],
    *,
    keep: Literal["last", "best"],
    precision: Precision,
) -> tuple[Stage, ...]:
    """Cross-entropy and, where it has any epochs, AUC-M."""
    augment = _augment(fingerprint.shape) if len(fingerprint.shape) == 3 else None
    first = Stage(
        objective=CrossEntropy(),
        optimizer=AdamWSpec(lr=2e-3),
        epochs=epochs[0],
        schedule=Cosine(),
        positives_per_batch=batch.quotas[0],
        batch_size=batch.size,
        augment=augment,
        keep=keep,
        precision=precision,
    )
    if not epochs[1]:
        return (first,)
    second = Stage(
        objective=AUCMargin(margin=MARGIN),
        optimizer=PESGSpec(lr=0.1, gamma=GAMMA, weight_decay=1e-4),
        epochs=epochs[1],
        schedule=_decay(epochs[1]),
        positives_per_batch=batch.quotas[1],
        reset_classifier=True,
        batch_size=batch.size,
        augment=augment,
        keep=keep,
        precision=precision,
    )
    return first, second


def _why_alone(options: PlanOptions, length: Length) -> str:
    if options.auc_stage == "none":
        return "asked for"
    return (
        f"its {length.wanted[0]} epochs leave too little of the budget for an AUC stage; cut by the same share, both "
        "ranked worse on one set of five and alike on the others (results/plan.md); --minutes M has more time, "
        "--auc-stage always a share of this one"
    )


def _stages_said(why_alone: str, *, auc: bool) -> list[Decision]:
    if not auc:
        return [
            Decision(name="stages", value="cross-entropy alone", reason=why_alone),
            Decision(
                name="learning rate",
                value="0.002 (AdamW) along a cosine",
                reason="0.001 ranked as well, 0.005 worse (results/plan.md)",
            ),
        ]
    return [
        Decision(
            name="stages",
            value="cross-entropy, then AUC-M with a fresh last layer",
            reason="cross-entropy learns the features, the AUC margin loss then ranks with them (the paper, 3.4)",
        ),
        Decision(
            name="learning rates",
            value="0.002 (AdamW) along a cosine, then 0.1 (PESG), divided by 10 at half and three quarters",
            reason="0.1 and its steps are the paper's; scores pass a sigmoid first, as raw ones diverge at this rate",
        ),
        Decision(
            name="margin",
            value=f"{MARGIN:g}",
            reason="within reach of scores behind a sigmoid, whose class means are at most 1 apart, and in the paper's "
            "range; --tune N tries others on validation",
        ),
        Decision(
            name="gamma",
            value=f"{GAMMA:g}",
            reason="1/500, the middle of the paper's grid; --tune N tries others on validation",
        ),
    ]


def _augment_said(augment: Augment) -> Decision:
    return Decision(
        name="augmentation",
        value=f"shifts of {augment.crop_padding} pixel{'s' * (augment.crop_padding != 1)}, turns of "
        f"{augment.rotation:g} degrees, zoom by 5 %",
        reason="careful, since a table does not say what may be changed: no mirror image (left and right may "
        "matter, as in a chest X-ray), no colours; a config file can ask for more",
    )


def _model(
    fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind, length: Length
) -> tuple[ModelSpec, list[Decision]]:
    shape = fingerprint.shape
    if len(shape) == 1:
        reason = "a table of numbers needs no more" if options.model is None else "asked for"
        model = named_model(options.model or "mlp", shape)
        return model, [
            Decision(name="network", value="MLP, 64 and 32 hidden units, standardised inputs", reason=reason)
        ]
    name, reason = _network(shape, options, device_kind, length)
    network = Decision(name="network", value=name, reason=reason)
    return named_model(name, shape), [size_decision((shape[0], shape[1]), fingerprint.file_sizes, device_kind), network]


def _network(shape: tuple[int, ...], options: PlanOptions, device_kind: DeviceKind, length: Length) -> tuple[str, str]:
    """Name and reason, for images."""
    if options.model is not None:
        return options.model, "asked for"
    spent = length.cost(ResNet20Spec(), length.wanted) / length.budget
    return image_network(max(shape[:2]), device_kind, spent=spent)


def _means(
    fingerprint: Fingerprint,
    options: PlanOptions,
    device_kind: DeviceKind,
    *,
    length: Length,
    model: ModelSpec,
    epochs: tuple[int, int],
) -> Means:
    """What the two stages leave to one before them, and which options would leave it more."""
    shape, whole = fingerprint.shape, length.cost(model, length.wanted)

    def remedy(needed: float) -> str:
        minutes = math.ceil((whole + needed) / budget_of(1, device_kind))
        then = replace(length, budget=budget_of(minutes, device_kind))
        name, other = (_network(shape, options, device_kind, one)[0] for one in (length, then))
        enough = f"--minutes {minutes}" + ("" if name == other else f" --model {name}")
        if options.model is not None or device_kind != "cpu" or name == SMALLER:
            return enough
        # The larger network was bought first: fewer minutes, with the smaller one, may have had this stage.
        smaller = named_model(SMALLER, shape)
        left = length.budget - length.cost(smaller, epochs)
        in_time = needed * multiply_adds(smaller, shape) / multiply_adds(model, shape) <= left
        return f"{enough} or --model {SMALLER}" if in_time else enough

    leaves = f"the {device_kind.upper()} budget of {length.budget:.0e} multiply-adds leaves"
    return Means(
        an_image=multiply_adds(model, shape),
        left=length.budget - length.cost(model, epochs),
        leaves=leaves if options.minutes is None else f"{options.minutes:g} minutes are reckoned to leave",
        remedy=remedy,
    )


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Rows and positives of a batch in either stage (None: as they come), and why.

    share: of the rarest label's positives among the rows. wanted: positives, if there are as many.
    """

    size: int
    why_size: str
    quotas: tuple[int | None, int]
    share: float
    wanted: int
    positives: tuple[int, ...]

    def decisions(self, *, auc: bool) -> list[Decision]:
        """auc: there is an AUC stage."""
        size = Decision(name="batch size", value=str(self.size), reason=self.why_size)
        if not auc and self.quotas[0] is None:
            why = f"{self.share:.1%} of the rows are positive, and cross-entropy takes them as they are"
            return [size, Decision(name="positives per batch", value="as they come", reason=why)]
        stages = "the AUC stage" if self.quotas[0] is None else "both stages" if auc else "every one"
        value = f"{self.quotas[1]} of {self.size}, in {stages}"
        why = _why_so_many(self.share, self.size, self.quotas[1], self.wanted, self.positives)
        return [size, Decision(name="positives per batch", value=value, reason=why)]


def _batch(fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind) -> _Batch:
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
    wanted = round(batch * min(max(share, LEAST_POSITIVES), 1 - LEAST_NEGATIVES))
    quota = max(1, min(wanted, batch - 1, *positives))
    if batch - quota > min(negatives):  # so few that a batch would not be filled
        batch = min(negatives) + quota
        reason = f"there are only {min(negatives):,} negatives"
    in_both = share < LEAST_POSITIVES and len(positives) == 1  # with several labels the first stage has no run
    quotas = (quota if in_both else None, quota)
    return _Batch(size=batch, why_size=reason, quotas=quotas, share=share, wanted=wanted, positives=positives)


def _why_so_many(share: float, batch: int, quota: int, wanted: int, positives: tuple[int, ...]) -> str:
    why = f"{share:.1%} of the rows are positive"
    if len(positives) > 1:
        why += " for the rarest label; batch by batch the labels take turns"
    if quota < wanted:
        return f"{why}; there are only {min(positives):,}, and none should be twice in a batch"
    if share < LEAST_POSITIVES:
        return f"{why}: a plain batch would hold {batch * share:.1f}, too few to learn from and to rank against"
    if share > 1 - LEAST_NEGATIVES:
        return f"{why}: a plain batch would hold {batch * (1 - share):.1f} negatives, too few to rank against"
    return f"{why}: that share, but the same in every batch"


def _after(epochs: int | None, steps: str, of_length: Decision) -> Decision:
    """The length of the two stages with that of the one before them."""
    reason = of_length.reason if of_length.reason == "asked for" else f"{of_length.reason}; before them {steps}"
    return replace(of_length, value=f"{epochs} + {of_length.value}", reason=reason)


def _keep(fingerprint: Fingerprint, *, auc: bool) -> tuple[Literal["last", "best"], list[Decision]]:
    if "validation" not in fingerprint.rows:
        return "last", [
            Decision(name="selection", value="last epoch of the last stage", reason="there is no validation part")
        ]
    classes = (*fingerprint.positives["validation"], *fingerprint.negatives["validation"])
    guard = "; the AUC stage is kept only if it is not worse there than cross-entropy" if auc else ""
    if min(classes) < ENOUGH_TO_SELECT:
        few = f"validation has {min(classes)} rows of a class, too few to tell one epoch from the next"
        return "last", [Decision(name="selection", value="last epoch", reason=f"{few}{guard}")]
    many = f"validation has at least {min(classes):,} rows of each class, so its AUC can choose (and is a little too "
    many += "good for that reason; the test part is not looked at)"
    return "best", [Decision(name="selection", value="best epoch on validation", reason=f"{many}{guard}")]


def _augment(shape: tuple[int, ...]) -> Augment:
    side = min(shape[:2])
    shift = min(max(1, side // 14), side - 1)  # never out of the picture: a batch of nothing makes BatchNorm explode
    return Augment(flip=False, crop_padding=shift, rotation=5.0, scale=(0.95, 1.05))


def _decay(epochs: int) -> Steps:
    milestones = {m for m in (epochs // 2, 3 * epochs // 4) if m >= 1}
    return Steps(milestones=tuple(sorted(milestones)))
