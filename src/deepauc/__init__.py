"""Deep AUC maximisation for imbalanced classification. This page is the list of public names."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepauc.data.samplers import ClassQuotaSampler
    from deepauc.data.task import Task
    from deepauc.metrics.auroc import auroc
    from deepauc.metrics.comparison import compare_auroc
    from deepauc.metrics.intervals import auroc_interval
    from deepauc.objectives.auc_margin import AUCMarginLoss
    from deepauc.objectives.auc_square import AUCSquareLoss
    from deepauc.objectives.baselines import FocalLoss
    from deepauc.objectives.pairwise import PairwiseAUCLoss
    from deepauc.objectives.score_norm import BatchScoreNorm
    from deepauc.optim.pesg import PESG
    from deepauc.training.loop import train
    from deepauc.training.predict import predict
    from deepauc.training.recipe import Recipe, Stage

__all__ = [
    "PESG",
    "AUCMarginLoss",
    "AUCSquareLoss",
    "BatchScoreNorm",
    "ClassQuotaSampler",
    "FocalLoss",
    "PairwiseAUCLoss",
    "Recipe",
    "Stage",
    "Task",
    "auroc",
    "auroc_interval",
    "compare_auroc",
    "predict",
    "train",
]

_HOMES = {
    "PESG": "optim.pesg",
    "AUCMarginLoss": "objectives.auc_margin",
    "AUCSquareLoss": "objectives.auc_square",
    "BatchScoreNorm": "objectives.score_norm",
    "ClassQuotaSampler": "data.samplers",
    "FocalLoss": "objectives.baselines",
    "PairwiseAUCLoss": "objectives.pairwise",
    "Recipe": "training.recipe",
    "Stage": "training.recipe",
    "Task": "data.task",
    "auroc": "metrics.auroc",
    "auroc_interval": "metrics.intervals",
    "compare_auroc": "metrics.comparison",
    "predict": "training.predict",
    "train": "training.loop",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for: torch takes seconds, and `deepauc --help` does not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepauc' has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(f"deepauc.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
