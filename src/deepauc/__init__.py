"""Deep AUC maximisation for imbalanced classification. This page is the list of public names."""

from deepauc.data.samplers import ClassQuotaSampler
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.auc_square import AUCSquareLoss
from deepauc.optim.pesg import PESG

__all__ = [
    "PESG",
    "AUCMarginLoss",
    "AUCSquareLoss",
    "ClassQuotaSampler",
]
