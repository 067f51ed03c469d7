"""The stage that trains the ranking: by default the AUC margin loss with PESG, or the objective that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.plan.decision import Decision, Fact
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.recipe import ObjectiveSpec, OptimizerSpec

ADAMW_LR, PESG_LR = 0.002, 0.1
MARGIN, GAMMA, DECAY = 0.5, 0.002, 1e-4
# Moves as far in the long run as PESG's rate without momentum.
SGD = SGDSpec(lr=0.01, momentum=0.9, weight_decay=DECAY)
PESG = PESGSpec(lr=PESG_LR, gamma=GAMMA, weight_decay=DECAY)
PDSCA = PDSCASpec(lr=PESG_LR, gamma=GAMMA, weight_decay=DECAY)


@dataclass(frozen=True)
class LastStage:
    """What the stage minimises, how, and what the plan says of it."""

    objective: ObjectiveSpec
    optimizer: OptimizerSpec
    decisions: tuple[Decision, ...]


def last_stage(options: PlanOptions) -> LastStage:
    """For the objective of the options."""
    if options.objective == "auc-margin":
        return LastStage(AUCMargin(margin=MARGIN), PESG, _AUC_MARGIN)
    name, objective = _ASKED[options.objective]
    optimizer, by = (PDSCA, "PDSCA") if options.objective == "pdsca" else (SGD, "SGD with momentum 0.9")
    facts: dict[str, Fact] = {"optimizer": by}
    decisions = (
        Decision(name="stages", value=("cross-entropy", name), reason=("objective",)),
        Decision(name="learning rates", value=(ADAMW_LR, optimizer.lr), reason=("not tuned",), rests_on=facts),
        Decision(name="margin", value=MARGIN, reason=("reachable",)),
    )
    return LastStage(objective(options), optimizer, decisions)


def _partial_auc(options: PlanOptions) -> PartialAUC:
    max_fpr, min_tpr = options.max_fpr, options.min_tpr
    return PartialAUC(
        max_fpr=1.0 if max_fpr is None else max_fpr, min_tpr=0.0 if min_tpr is None else min_tpr, margin=MARGIN
    )


# By the option's name: what the plan calls it, and the objective.
_ASKED: Mapping[str, tuple[str, Callable[[PlanOptions], ObjectiveSpec]]] = {
    "all-pairs": ("all pairs", lambda _: PairwiseAUC(margin=MARGIN)),
    "partial-auc": ("partial AUC", _partial_auc),
    "average-precision": ("average precision", lambda _: AveragePrecision(margin=MARGIN)),
    "pdsca": ("AUC-M by PDSCA", lambda _: AUCMargin(margin=MARGIN)),
}
_AUC_MARGIN = (
    Decision(name="stages", value=("cross-entropy", "AUC-M"), reason=("both",)),
    Decision(name="learning rates", value=(ADAMW_LR, PESG_LR), reason=("paper",)),
    Decision(name="margin", value=MARGIN, reason=("within reach",)),
    Decision(name="gamma", value=GAMMA, reason=("middle",)),
)
