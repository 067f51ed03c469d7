"""Deep AUC maximisation for imbalanced classification. This page is the list of public names.

A loss ends in `Loss`; without that word it is the spec that a `Stage` takes: `AUCMarginLoss`, `AUCMargin`. The spec of
an optimizer or a network ends in `Spec`: `PESG`, `PESGSpec`. A schedule and `Augment` are used as they are.
"""

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import bag_task
from deepauc.data.samplers import ClassQuotaSampler
from deepauc.data.splits import split_by_fractions
from deepauc.data.table.read import read_table
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.auroc import auroc
from deepauc.metrics.average_precision import average_precision, average_precision_interval
from deepauc.metrics.calibration import brier_score, calibration_intervals, expected_calibration_error
from deepauc.metrics.comparison import Comparison, compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.metrics.multiclass import multiclass_auroc
from deepauc.metrics.operating_points import operating_point
from deepauc.metrics.partial import compare_partial_auroc, partial_auroc, partial_auroc_interval
from deepauc.metrics.recalibration import fit_temperature
from deepauc.metrics.streaming import distributed_auroc
from deepauc.models.average import AverageSpec, OnFeaturesSpec, OnPicturesSpec
from deepauc.models.bags import BagNetwork, Bags, BagSpec
from deepauc.models.build import FactorySpec, MLPSpec, ResNet20Spec, SmallCNNSpec, ThumbnailSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin, AUCMarginLoss
from deepauc.objectives.auc_square import AUCSquare, AUCSquareLoss
from deepauc.objectives.average_precision import AveragePrecision, AveragePrecisionLoss
from deepauc.objectives.baselines import CrossEntropy, CrossEntropyLoss, Focal, FocalLoss
from deepauc.objectives.contrastive import (
    Contrastive,
    ContrastiveLoss,
    SupervisedContrastive,
    SupervisedContrastiveLoss,
)
from deepauc.objectives.multiclass import OneVsOneAUCLoss, OneVsRestAUCLoss
from deepauc.objectives.pairwise import PairwiseAUC, PairwiseAUCLoss
from deepauc.objectives.partial_auc import PartialAUC, PartialAUCLoss
from deepauc.objectives.poly_view import PolyView, PolyViewLoss
from deepauc.objectives.score_norm import BatchScoreNorm
from deepauc.objectives.vicreg import VICReg, VICRegLoss
from deepauc.optim.pdsca import PDSCA, PDSCASpec
from deepauc.optim.pesg import PESG, PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, SGDSpec
from deepauc.pipeline.fit import fit
from deepauc.pipeline.model import Model, load
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.run import Run
from deepauc.training.schedule import Constant, Cosine, Cyclic, Steps

__all__ = [
    "PDSCA",
    "PESG",
    "AUCMargin",
    "AUCMarginLoss",
    "AUCSquare",
    "AUCSquareLoss",
    "AdamSpec",
    "AdamWSpec",
    "ArrayInputs",
    "Augment",
    "AveragePrecision",
    "AveragePrecisionLoss",
    "AverageSpec",
    "BagNetwork",
    "BagSpec",
    "Bags",
    "BatchScoreNorm",
    "ClassQuotaSampler",
    "Comparison",
    "Constant",
    "Contrastive",
    "ContrastiveLoss",
    "Cosine",
    "CrossEntropy",
    "CrossEntropyLoss",
    "Cyclic",
    "Estimate",
    "FactorySpec",
    "Focal",
    "FocalLoss",
    "MLPSpec",
    "Model",
    "OnFeaturesSpec",
    "OnPicturesSpec",
    "OneVsOneAUCLoss",
    "OneVsRestAUCLoss",
    "PDSCASpec",
    "PESGSpec",
    "PairwiseAUC",
    "PairwiseAUCLoss",
    "PartialAUC",
    "PartialAUCLoss",
    "PolyView",
    "PolyViewLoss",
    "Recipe",
    "ResNet20Spec",
    "Run",
    "SGDSpec",
    "SmallCNNSpec",
    "Stage",
    "Steps",
    "SupervisedContrastive",
    "SupervisedContrastiveLoss",
    "Task",
    "ThumbnailSpec",
    "TimmSpec",
    "VICReg",
    "VICRegLoss",
    "auroc",
    "auroc_interval",
    "average_precision",
    "average_precision_interval",
    "bag_task",
    "brier_score",
    "calibration_intervals",
    "compare_auroc",
    "compare_partial_auroc",
    "distributed_auroc",
    "expected_calibration_error",
    "fit",
    "fit_temperature",
    "load",
    "multiclass_auroc",
    "operating_point",
    "partial_auroc",
    "partial_auroc_interval",
    "predict",
    "read_table",
    "split_by_fractions",
    "train",
]
