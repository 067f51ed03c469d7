"""Does an objective beat cross-entropy on its own metric? Partial AUC, AP, compositional training, AUC-M, all pairs.

    deepauc study run experiments/objectives.py objectives --device cuda           # see docs/reproduce.md
    deepauc study run experiments/objectives.py objectives-cpu --data DIR          # PathMNIST alone, a small network
    deepauc study table experiments/objectives.py objectives

ResNet20 on C10, C2 and PathMNIST with 1 % positives, five training sets each. All objectives have the same epochs,
batches (128, of which 16 are positives), augmentation and schedule, and the same number of tuning runs: four learning
rates on the same training sets. Each is tuned by its own metric on validation. Cross-entropy is tuned four times, once
by each metric, from the same runs; an objective is compared with the cross-entropy that was tuned by its metric.
`ce_auc_m` is cross-entropy for half of the epochs, then AUC-M.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.task import Task
from deepauc.metrics.average_precision import average_precision
from deepauc.metrics.partial import partial_auroc
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.studies.sources import BenchmarkSource, TaskSource
from deepauc.studies.study import AUC, Metric, Study, StudySet
from deepauc.training.recipe import ObjectiveSpec, OptimizerSpec, Precision, Recipe, Stage
from deepauc.training.run.run import Run
from deepauc.training.schedule import Steps
from experiments.benchmarks.recipes import Network, named, network_of
from experiments.clinical.tasks import MedicalSource

Objective = Literal["ce", "auc_m", "ce_auc_m", "pairs", "fpr", "tpr", "ap", "pdsca"]
MAX_FPR, MIN_TPR = 0.3, 0.8
MEASURES: Mapping[str, Metric] = {
    "fpr": partial(partial_auroc, max_fpr=MAX_FPR),
    "tpr": partial(partial_auroc, min_tpr=MIN_TPR),
    "ap": average_precision,
}
OWN: Mapping[str, str] = {
    **dict.fromkeys(("ce", "auc_m", "ce_auc_m", "pairs", "pdsca"), AUC),
    **{name: name for name in MEASURES},
}
LEARNING_RATES = (0.01, 0.03, 0.1, 0.3)
QUOTA, MOMENTUM, WEIGHT_DECAY = 16, 0.9, 1e-4

_Trained = tuple[ObjectiveSpec, Callable[..., OptimizerSpec]]
_AUC_M: _Trained = (AUCMargin(), PESGSpec)
_TRAINED: Mapping[str, tuple[_Trained, ...]] = {
    "ce": ((CrossEntropy(), SGDSpec),),
    "auc_m": (_AUC_M,),
    "ce_auc_m": ((CrossEntropy(), SGDSpec), _AUC_M),
    "pairs": ((PairwiseAUC(), SGDSpec),),
    "fpr": ((PartialAUC(max_fpr=MAX_FPR), SGDSpec),),
    "tpr": ((PartialAUC(min_tpr=MIN_TPR), SGDSpec),),
    "ap": ((AveragePrecision(), SGDSpec),),
    "pdsca": ((AUCMargin(), PDSCASpec),),
}


@dataclass(frozen=True, kw_only=True)
class PathSource(MedicalSource):
    """PathMNIST with 1 % tumours in train; no test score is kept, the measures are enough."""

    dataset: str = "pathmnist"

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        return {}


def objective_recipe(
    *,
    objective: Objective,
    lr: float = 0.1,
    network: Network = "R",
    epochs: int = 40,
    batch_size: int = 128,
    quota: int = QUOTA,
    augmented: bool = True,
    precision: Precision = "bfloat16",
) -> Recipe:
    """One stage, or two of half the length; the rate is divided by ten after a half and three quarters of each.

    quota: positives in a batch; 0 draws batches from all rows alike.
    """
    trained = _TRAINED[objective]
    length = epochs // len(trained)
    stages = tuple(
        Stage(
            objective=loss,
            optimizer=optimizer(lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
            epochs=length,
            batch_size=batch_size,
            positives_per_batch=quota or None,
            schedule=Steps(milestones=tuple(sorted({m for m in (length // 2, 3 * length // 4) if m >= 1}))),
            augment=Augment() if augmented else None,
            precision=precision,
        )
        for loss, optimizer in trained
    )
    return Recipe(model=network_of(network), stages=stages)


METHODS = {name: named(name, objective_recipe, "objective", objective=name) for name in _TRAINED}


def cell(name: str, task: TaskSource, *, sets: int, fixed: Mapping[str, Any] | None = None) -> list[Study]:
    """All objectives on one task, tuned on as many training sets; cross-entropy again by each further metric."""
    wanted = [(objective, objective, OWN[objective]) for objective in METHODS]
    wanted += [(f"ce_by_{measure}", "ce", measure) for measure in MEASURES]
    return [
        Study(
            name=f"{name}-{row}",
            task=task,
            method=METHODS[objective],
            fixed=fixed or {},
            grid={"lr": LEARNING_RATES},
            tuning_seeds=tuple(range(sets)),
            measures=MEASURES,
            chosen_by=measure,
            group=name,
        )
        for row, objective, measure in wanted
    ]


def objectives() -> StudySet:
    """Validation has 25, 10 and 119 positives of a training set: tuning is on 2, 5 and 2 of them."""
    return StudySet(
        name="objectives",
        title="Does an objective beat cross-entropy on its own metric? ResNet20, 1 % positives",
        studies=(
            *cell("C10-1", BenchmarkSource(benchmark="C10", imratio=0.01), sets=2),
            *cell("C2-1", BenchmarkSource(benchmark="C2", imratio=0.01), sets=5),
            *cell("path-1", PathSource(size=32), sets=2),
        ),
    )


def on_a_cpu() -> StudySet:
    """The same menu with a small network on the smallest of the tasks."""
    fixed = {"network": "S", "epochs": 10, "augmented": False, "precision": "float32"}
    return StudySet(
        name="objectives-cpu",
        title="Does an objective beat cross-entropy on its own metric? A small network on PathMNIST with 1 % tumours",
        studies=tuple(cell("path-1", PathSource(), sets=1, fixed=fixed)),
    )
