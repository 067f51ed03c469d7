"""What epochs and stages are chosen by on validation: the AUC, or what the stage's objective is meant for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.task import Task
from deepauc.metrics.average_precision import average_precision
from deepauc.metrics.partial import Region, partial_auroc
from deepauc.objectives.average_precision import AveragePrecision
from deepauc.objectives.partial_auc import PartialAUC
from deepauc.training.recipe import ObjectiveSpec
from deepauc.training.scoring import labels_with_both_classes


@dataclass(frozen=True)
class Measure:
    """A metric of scores and labels (n,) besides the AUC. column: its name in the history."""

    name: str
    column: str
    of: Callable[[npt.NDArray[Any], npt.NDArray[Any]], Any]

    def mean(self, task: Task, part: str, scores: npt.NDArray[np.float32]) -> float:
        """Over the labels with both classes in this part; NaN without any. scores: of its labelled rows, (n, L)."""
        found = [float(self.of(h, y)) for _, h, y, _ in labels_with_both_classes(task, part, scores)]
        return float(np.mean(found)) if found else float("nan")


def own_measure(objective: ObjectiveSpec) -> Measure | None:
    """What the objective is meant for, where that is not the AUC."""
    if isinstance(objective, AveragePrecision):
        return Measure("average precision", "validation_ap", average_precision)
    if not isinstance(objective, PartialAUC):
        return None
    region = Region(max_fpr=objective.max_fpr, min_tpr=objective.min_tpr)
    if region == Region():
        return None

    def area(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Any:
        return partial_auroc(scores, labels, max_fpr=region.max_fpr, min_tpr=region.min_tpr)

    return Measure(f"partial AUC ({region})", "validation_partial_auc", area)
