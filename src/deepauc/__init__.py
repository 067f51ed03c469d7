"""Deep AUC maximisation for imbalanced classification. This page is the list of public names."""

from deepauc.data.samplers import ClassQuotaSampler
from deepauc.data.task import Task
from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.auc_square import AUCSquareLoss
from deepauc.objectives.average_precision import AveragePrecisionLoss
from deepauc.objectives.baselines import FocalLoss
from deepauc.objectives.pairwise import PairwiseAUCLoss
from deepauc.objectives.partial_auc import PartialAUCLoss
from deepauc.objectives.score_norm import BatchScoreNorm
from deepauc.optim.pdsca import PDSCA
from deepauc.optim.pesg import PESG
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage

__all__ = [
    "PDSCA",
    "PESG",
    "AUCMarginLoss",
    "AUCSquareLoss",
    "AveragePrecisionLoss",
    "BatchScoreNorm",
    "ClassQuotaSampler",
    "FocalLoss",
    "PairwiseAUCLoss",
    "PartialAUCLoss",
    "Recipe",
    "Stage",
    "Task",
    "auroc",
    "auroc_interval",
    "compare_auroc",
    "predict",
    "train",
]
