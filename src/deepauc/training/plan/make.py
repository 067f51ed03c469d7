"""A recipe from the look of the data: a pure function with the reason for each of its decisions.

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
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import AdamWSpec
from deepauc.training.plan.bags import images_in_step, plan_bags
from deepauc.training.plan.cost import multiply_adds
from deepauc.training.plan.decision import ASKED, Decision, DeviceKind, Fact
from deepauc.training.plan.first_stage import Means, PlannedFirst, no_first_stage, plan_first_stage
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.last_stage import ADAMW_LR, LastStage, last_stage
from deepauc.training.plan.length import Length, budget_of, planned_epochs
from deepauc.training.plan.network import SMALLER, image_network, named_model, size_decision
from deepauc.training.plan.start import Start, network_decision, plan_start
from deepauc.training.plan.test_time import plan_copies
from deepauc.training.recipe import Precision, Recipe, Stage
from deepauc.training.schedule import Cosine, Steps
from deepauc.training.selection import own_measure

LARGEST_BATCH: dict[str, int] = {"cpu": 64, "cuda": 128}
STEPS_AN_EPOCH, LEAST_BATCH = 16, 16  # the batch is made small enough for so many steps, but no smaller
# Of a batch: positives, in both stages where the rows have fewer (results/plan.md), and negatives in the AUC stage.
LEAST_POSITIVES, LEAST_NEGATIVES = 1 / 4, 1 / 8
ENOUGH_TO_SELECT = 25  # of each class in validation, to choose an epoch by it
RATE = Decision(name="learning rate", value=ADAMW_LR, reason=("tried",))


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


def make_plan(
    fingerprint: Fingerprint,
    options: PlanOptions,
    device_kind: DeviceKind,
    *,
    folds: int = 1,
    spent: float | None = None,
) -> Plan:
    """Cross-entropy, then AUC-M on all layers behind a sigmoid (section 3.4 of the paper), sized to data and device.

    Before them, where it may be worth it and is affordable, a contrastive stage on the images alone. The AUC stage is
    there where cross-entropy leaves time for it. folds: so many networks are trained by this plan. spent: the share
    of the minutes that a ResNet20 takes, where that was measured; else it is reckoned.
    """
    if options.objective != "auc-margin" and options.auc_stage == "auto":
        options = replace(options, auc_stage="always")  # whoever names an objective wants it
    images_in_row = images_in_step(fingerprint.bags, options)
    batch = _batch(fingerprint, options, device_kind, images_in_row)
    budget = budget_of(options.minutes, device_kind, folds=folds)
    length = Length.of(fingerprint, batch=batch.size, positives=batch.quotas, budget=budget, images=images_in_row)
    options = _for_bags(fingerprint, options)
    start = plan_start(fingerprint.shape, options, device_kind)
    frozen = start is not None and start.frozen
    last = last_stage(options) if start is None else start.last_stage(last_stage(options))
    model, of_model = _model(fingerprint, options, device_kind, length, start, spent)
    epochs, of_length = planned_epochs(length, model, options, device_kind, frozen=frozen)
    images = len(fingerprint.shape) == 3
    precision: Precision = "bfloat16" if device_kind == "cuda" and images else "float32"
    means = _means(
        fingerprint, options, device_kind, length=length, model=model, epochs=epochs, folds=folds, spent=spent
    )
    before = plan_first_stage(fingerprint, options, device_kind, means=means, precision=precision)
    if fingerprint.bags is not None:
        before = PlannedFirst(decisions=(no_first_stage("bags"),))
    elif start is not None and options.first_stage == "auto":
        before = PlannedFirst(decisions=(no_first_stage("pretrained"),))
    copies, of_copies = plan_copies(fingerprint, options)
    in_step: int | None = None
    if fingerprint.bags is not None:
        model, in_step, of_bags = plan_bags(model, fingerprint.bags, options)
        of_model = [*of_model, *of_bags]
    if before.stage is not None:
        of_length = _after(before, of_length)

    def of(epochs: tuple[int, int], why: Decision, without_auc: Plan | None = None) -> Plan:
        auc = epochs[1] > 0
        keep, of_keep = _keep(fingerprint, last if auc else None)
        stages = _supervised(fingerprint, batch, epochs, last, keep=keep, precision=precision, start=start)
        stages = tuple(replace(stage, images_per_bag=in_step) for stage in stages)
        decisions = [*of_model, *batch.decisions(auc=auc), *before.decisions, of_length]
        decisions += [*([why, RATE if start is None else start.rate()] if not auc else last.decisions), *of_keep]
        if stages[0].augment is not None:
            decisions += [_augment_decision(stages[0].augment), *of_copies]
        return Plan(
            recipe=Recipe(
                model=model,
                stages=stages if before.stage is None else (before.stage, *stages),
                guard=auc and "validation" in fingerprint.rows,
                tta=copies,
                input_mean=None if start is None else start.mean,
                input_std=None if start is None else start.std,
                frozen=frozen,
            ),
            decisions=tuple(decisions),
            first_stage_may_go=before.stage is not None and options.first_stage == "auto",
            without_auc=without_auc,
        )

    may_go = options.auc_stage == "auto" and options.minutes is not None
    why = _why_alone(options, length)  # where `timing.fit_into` finds no time, it puts its own reason there
    return of(epochs, why, of((epochs[0], 0), why) if may_go else None)


def _for_bags(fingerprint: Fingerprint, options: PlanOptions) -> PlanOptions:
    """What bags leave of the options; a ValueError for what they cannot."""
    if fingerprint.bags is None:
        if options.pooling is not None or options.images_per_bag is not None:
            raise ValueError(
                "pooling and images per bag are for bags: name the bag column (--bag-column, in Python bag=)."
            )
        return options
    if options.first_stage == "contrastive":
        raise ValueError("a contrastive first stage compares images, and these rows are bags: leave first_stage out.")
    if options.backbone == "frozen":
        raise ValueError("a frozen backbone computes features of rows, and these are bags: set backbone trained.")
    return replace(options, backbone="trained") if options.pretrained else options


def _supervised(
    fingerprint: Fingerprint,
    batch: _Batch,
    epochs: tuple[int, int],
    last: LastStage,
    *,
    keep: Literal["last", "best"],
    precision: Precision,
    start: Start | None,
) -> tuple[Stage, ...]:
    """Cross-entropy and, where it has any epochs, the stage that trains the ranking."""
    frozen = start is not None and start.frozen
    augment = _augment(fingerprint.shape) if len(fingerprint.shape) == 3 and not frozen else None
    first = Stage(
        objective=CrossEntropy(),
        optimizer=AdamWSpec(lr=ADAMW_LR) if start is None else start.adamw,
        backbone_rate=1.0 if start is None else start.backbone_rate(),
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
        objective=last.objective,
        optimizer=last.optimizer,
        backbone_rate=1.0 if start is None else start.backbone_rate(last.optimizer),
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


def alone(*reason: str, **facts: Fact) -> Decision:
    """That there is no AUC stage, and why."""
    return Decision(name="stages", value=("cross-entropy",), reason=reason, rests_on=facts)


def _why_alone(options: PlanOptions, length: Length) -> Decision:
    if options.auc_stage == "none":
        return alone(*ASKED)
    return alone("no budget", "shared is worse", "more time", wanted=length.wanted[0])


def _augment_decision(augment: Augment) -> Decision:
    facts: dict[str, Fact] = {"rotation": augment.rotation}
    return Decision(name="augmentation", value=augment.crop_padding, reason=("careful",), rests_on=facts)


def _model(
    fingerprint: Fingerprint,
    options: PlanOptions,
    device_kind: DeviceKind,
    length: Length,
    start: Start | None,
    spent: float | None,
) -> tuple[ModelSpec, list[Decision]]:
    shape = fingerprint.shape
    if start is not None:
        size = size_decision((shape[0], shape[1]), fingerprint.file_sizes, device_kind, pretrained=True)
        return start.model, [size, network_decision(start, options), *start.decisions()]
    if len(shape) == 1:
        reason = ("numbers",) if options.model is None else ASKED
        return named_model(options.model or "mlp", shape), [Decision(name="network", value="mlp", reason=reason)]
    network = _network(shape, options, device_kind, length, spent)
    size = size_decision((shape[0], shape[1]), fingerprint.file_sizes, device_kind)
    return named_model(str(network.value), shape), [size, network]


def _network(
    shape: tuple[int, ...], options: PlanOptions, device_kind: DeviceKind, length: Length, spent: float | None
) -> Decision:
    """By name, for images."""
    if options.model is not None:
        return Decision(name="network", value=options.model, reason=ASKED)
    reckoned = length.cost(ResNet20Spec(), length.wanted) / length.budget
    share = reckoned if spent is None else spent
    return image_network(max(shape[:2]), device_kind, spent=share, measured=spent is not None)


def _means(
    fingerprint: Fingerprint,
    options: PlanOptions,
    device_kind: DeviceKind,
    *,
    length: Length,
    model: ModelSpec,
    epochs: tuple[int, int],
    folds: int,
    spent: float | None,
) -> Means:
    """What the two stages leave to one before them, and which options would leave it more."""
    shape, whole = fingerprint.shape, length.cost(model, length.wanted)

    def remedies(needed: float) -> tuple[str, ...]:
        minutes = math.ceil(folds * (whole + needed) / budget_of(1, device_kind))
        then = replace(length, budget=budget_of(minutes / folds, device_kind))
        later = None if spent is None else spent * length.budget / then.budget
        pairs = ((length, spent), (then, later))
        name, other = (_network(shape, options, device_kind, *pair).value for pair in pairs)
        enough = f"--minutes {minutes}" + ("" if name == other else f" --model {name}")
        if options.model is not None or device_kind != "cpu" or name == SMALLER:
            return (enough,)
        # The larger network was bought first: fewer minutes, with the smaller one, may have had this stage.
        smaller = named_model(SMALLER, shape)
        left = length.budget - length.cost(smaller, epochs)
        in_time = needed * multiply_adds(smaller, shape) / multiply_adds(model, shape) <= left
        return (enough, f"--model {SMALLER}") if in_time else (enough,)

    return Means(
        an_image=multiply_adds(model, shape),
        budget=length.budget,
        left=length.budget - length.cost(model, epochs),
        remedies=remedies,
    )


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Rows and positives of a batch in either stage (None: as they come), and why.

    share: of the rarest label's positives among the rows. wanted: positives, if there are as many.
    """

    size: int
    of_size: Decision
    quotas: tuple[int | None, int]
    share: float
    wanted: int
    positives: tuple[int, ...]

    def decisions(self, *, auc: bool) -> list[Decision]:
        """auc: there is an AUC stage."""
        name, facts = "positives per batch", dict[str, Fact](share=self.share, batch=self.size)
        if not auc and self.quotas[0] is None:
            return [self.of_size, Decision(name=name, value=None, reason=("as they come",), rests_on=facts)]
        facts["where"] = "the AUC stage" if self.quotas[0] is None else "both stages" if auc else "every batch"
        reason = ["share" if len(self.positives) == 1 else "rarest share"]
        if self.quotas[1] < self.wanted:
            reason, facts = [*reason, "few positives"], {**facts, "positives": min(self.positives)}
        elif self.share < LEAST_POSITIVES:
            reason, facts = [*reason, "too few"], {**facts, "plain": self.size * self.share}
        elif self.share > 1 - LEAST_NEGATIVES:
            reason, facts = [*reason, "too few negatives"], {**facts, "plain": self.size * (1 - self.share)}
        else:
            reason.append("same in each")
        return [self.of_size, Decision(name=name, value=self.quotas[1], reason=tuple(reason), rests_on=facts)]


def _batch(fingerprint: Fingerprint, options: PlanOptions, device_kind: DeviceKind, images: float = 1.0) -> _Batch:
    """images: of a row."""
    rows = fingerprint.rows["train"]
    positives, negatives = fingerprint.positives["train"], fingerprint.negatives["train"]
    if not all(positives) or not all(negatives):
        raise ValueError("a label of the training part has one class only: nothing can be ranked.")
    side = max(fingerprint.shape[:2]) if len(fingerprint.shape) == 3 else 1
    most = LARGEST_BATCH[device_kind] if side <= 128 else 32
    most = max(LEAST_BATCH, int(most / images))
    batch = min(1 << int(math.log2(max(LEAST_BATCH, rows / STEPS_AN_EPOCH))), most, rows)
    reason: tuple[str, ...] = ("rows",)
    facts = dict[str, Fact](rows=rows, steps=rows // batch, least=LEAST_BATCH, most=most)
    if options.batch_size is not None:
        batch, reason, facts = min(options.batch_size, rows), ASKED, {}
    share = min(p / (p + n) for p, n in zip(positives, negatives, strict=True))
    wanted = round(batch * min(max(share, LEAST_POSITIVES), 1 - LEAST_NEGATIVES))
    quota = max(1, min(wanted, batch - 1, *positives))
    if batch - quota > min(negatives):  # so few that a batch would not be filled
        batch = min(negatives) + quota
        reason, facts = ("few negatives",), {"negatives": min(negatives)}
    in_both = share < LEAST_POSITIVES and len(positives) == 1  # with several labels the first stage has no run
    return _Batch(
        size=batch,
        of_size=Decision(name="batch size", value=batch, reason=reason, rests_on=facts),
        quotas=(quota if in_both else None, quota),
        share=share,
        wanted=wanted,
        positives=positives,
    )


def _after(before: PlannedFirst, of_length: Decision) -> Decision:
    """The length of the two stages with that of the one before them."""
    assert before.stage is not None
    assert isinstance(of_length.value, tuple)
    reason, facts = of_length.reason, dict(of_length.rests_on)
    if reason != ASKED:
        reason, facts = (*reason, "first stage"), {**facts, "first_steps": before.steps, "first_cost": before.cost}
    value = (before.stage.epochs, *of_length.value)
    return Decision(name=of_length.name, value=value, reason=reason, rests_on=facts)


def _keep(fingerprint: Fingerprint, last: LastStage | None) -> tuple[Literal["last", "best"], list[Decision]]:
    def decided(value: str, *reason: str, **facts: Fact) -> list[Decision]:
        return [Decision(name="selection", value=value, reason=reason, rests_on=facts)]

    if "validation" not in fingerprint.rows:
        return "last", decided("last epoch of the last stage", "no validation")
    fewest = min(*fingerprint.positives["validation"], *fingerprint.negatives["validation"])
    guard: tuple[str, ...] = () if last is None else ("guard",)
    facts = dict[str, Fact](fewest=fewest)
    if last is not None and (measure := own_measure(last.objective)) is not None:
        guard, facts = (*guard, "own metric"), {**facts, "metric": measure.name}
    if fewest < ENOUGH_TO_SELECT:
        return "last", decided("last epoch", "few", *guard, **facts)
    return "best", decided("best epoch on validation", "enough", *guard, **facts)


def _augment(shape: tuple[int, ...]) -> Augment:
    side = min(shape[:2])
    shift = min(max(1, side // 14), side - 1)  # never out of the picture: a batch of nothing makes BatchNorm explode
    return Augment(flip=False, crop_padding=shift, rotation=5.0, scale=(0.95, 1.05))


def _decay(epochs: int) -> Steps:
    milestones = {m for m in (epochs // 2, 3 * epochs // 4) if m >= 1}
    return Steps(milestones=tuple(sorted(milestones)))
