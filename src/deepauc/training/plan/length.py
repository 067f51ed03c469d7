"""How long the two supervised stages of a plan are: as many steps as one would like, as far as the budget goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepauc.models.build import ModelSpec
from deepauc.training.plan.cost import TRAINING_FACTOR, multiply_adds
from deepauc.training.plan.decision import ASKED, Decision, DeviceKind, Fact
from deepauc.training.plan.inputs import AucStage, Fingerprint, PlanOptions

# A free CPU core does 2e10 to 4e10 of these multiply-adds a second, a busy one 1e10: four to fourteen minutes. Half of
# the budget, the steps and the most epochs ranked worse on five sets and alike on small tables (results/plan.md).
BUDGET: dict[str, float] = {"cpu": 8e12, "cuda": 1e16}
# Budgets of one split for all folds together: about a quarter of an hour of a free core. Networks of 60 % of the
# length, which three budgets would give to five folds, were worse than one split (results/folds.md).
FOLDS_BUDGET = 4.5
BUDGET_MINUTES = 10  # what the budget is taken for where minutes choose the network
STEPS = (4000, 2000)  # of the two stages, where the budget allows: features take longer to learn than to rank with
LEAST_EPOCHS, MOST_EPOCHS = 3, (100, 50)


def budget_of(minutes: float | None, device_kind: DeviceKind, *, folds: int = 1) -> float:
    """Multiply-adds that these minutes are reckoned to allow; without any, the usual ones.

    folds: so many networks are trained. Without minutes, on a CPU, they share FOLDS_BUDGET times the usual budget.
    """
    if minutes is not None:
        return BUDGET[device_kind] * minutes / BUDGET_MINUTES
    share = min(1.0, FOLDS_BUDGET / folds) if device_kind == "cpu" else 1.0
    return BUDGET[device_kind] * share


@dataclass(frozen=True, kw_only=True)
class Length:
    """Steps an epoch of the two stages, the epochs one would like, and how many multiply-adds there are to spend."""

    shape: tuple[int, ...]
    batch: int
    steps: tuple[int, int]
    wanted: tuple[int, int]
    budget: float
    images: float = 1.0  # of a row: bags have several

    @classmethod
    def of(
        cls,
        fingerprint: Fingerprint,
        *,
        batch: int,
        positives: tuple[int | None, int],
        budget: float,
        images: float = 1.0,
    ) -> Length:
        """positives: of a batch in either stage; None: as they come."""
        negatives = fingerprint.negatives["train"]
        steps = tuple(
            fingerprint.rows["train"] // batch if quota is None else sum(n // (batch - quota) for n in negatives)
            for quota in positives
        )
        first, second = (
            min(max(math.ceil(of_stage / s), LEAST_EPOCHS), most)
            for of_stage, s, most in zip(STEPS, steps, MOST_EPOCHS, strict=True)
        )
        return cls(
            shape=fingerprint.shape,
            batch=batch,
            steps=(steps[0], steps[1]),
            wanted=(first, second),
            budget=budget,
            images=images,
        )

    def cost(self, model: ModelSpec, epochs: tuple[int, int]) -> float:
        """Multiply-adds of so many epochs."""
        a_step = TRAINING_FACTOR * self.batch * self.images * multiply_adds(model, self.shape)
        return float(a_step * sum(e * s for e, s in zip(epochs, self.steps, strict=True)))


def planned_epochs(
    length: Length, model: ModelSpec, options: PlanOptions, device_kind: DeviceKind, *, frozen: bool = False
) -> tuple[tuple[int, int], Decision]:
    """Of the two stages: what one would like, as far as the budget goes. 0 for the second: there is none.

    frozen: the last layer alone is trained, which costs next to nothing beside the features.
    """
    if options.epochs is not None:
        asked = (options.epochs, 0 if options.auc_stage == "none" else options.epochs)
        return asked, Decision(name="epochs", value=_stages(asked), reason=ASKED)
    uncut = (sum(length.wanted), 0) if options.auc_stage == "none" else length.wanted
    if frozen:
        of_head = _stages((uncut[0] * length.steps[0], uncut[1] * length.steps[1]))
        return uncut, Decision(name="epochs", value=_stages(uncut), reason=("frozen",), rests_on={"steps": of_head})
    epochs = uncut if options.minutes is not None else _affordable(length, model, options.auc_stage)
    planned = length.cost(model, epochs)
    steps = (epochs[0] * length.steps[0], epochs[1] * length.steps[1])
    reason: list[str] = ["steps"]
    facts: dict[str, Fact] = {"steps": _stages(steps), "cost": planned}
    if options.minutes is not None:
        reason, facts = [*reason, "before minutes"], {**facts, "minutes": options.minutes}
    elif planned > length.budget or epochs != uncut:
        reason.append("over budget" if planned > length.budget else "budget")
        facts |= {"device": device_kind.upper(), "budget": length.budget}
    return epochs, Decision(name="epochs", value=_stages(epochs), reason=tuple(reason), rests_on=facts)


def _affordable(length: Length, model: ModelSpec, auc_stage: AucStage) -> tuple[int, int]:
    """The epochs that the budget lasts for, but at least a few.

    Cross-entropy has all its own before the AUC stage has any: cut by the same share, both ranked worse on one set of
    five and alike on the others (results/plan.md). Fewer than LEAST_EPOCHS were not tried.
    """
    an_epoch = length.cost(model, (1, 0)), length.cost(model, (0, 1))
    if auc_stage == "always":
        shrink = min(1.0, length.budget / length.cost(model, length.wanted))
        return max(LEAST_EPOCHS, int(length.wanted[0] * shrink)), max(LEAST_EPOCHS, int(length.wanted[1] * shrink))
    first = sum(length.wanted) if auc_stage == "none" else length.wanted[0]
    first = min(first, max(LEAST_EPOCHS, int(length.budget / an_epoch[0])))
    if auc_stage == "none":
        return first, 0
    second = min(length.wanted[1], int((length.budget - first * an_epoch[0]) / an_epoch[1]))
    return first, second if second >= LEAST_EPOCHS else 0


def _stages(counts: tuple[int, int]) -> tuple[int, ...]:
    """Without a second stage that has nothing."""
    return counts if counts[1] else counts[:1]
