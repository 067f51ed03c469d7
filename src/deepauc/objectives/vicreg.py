"""VICReg (Bardes et al. 2022): features of two views agree, spread out, and do not repeat each other; no negatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from deepauc.objectives.contrastive import ViewLoss

EPSILON = 1e-4
"""Added to a variance under the root, as in the paper: the slope stays finite where a feature is constant."""


def vicreg(first: Tensor, second: Tensor, *, invariance: float, variance: float, covariance: float) -> Tensor:
    """invariance * s(Z, Z') + variance * (v(Z) + v(Z')) + covariance * (c(Z) + c(Z')), as in the paper's algorithm 1.

    s: mean squared difference of the two views, over features too. v: mean over features of max(0, 1 - sqrt(Var + e)).
    c: sum of the squared covariances of different features over D. Variances with N - 1, in float32 at least.

    first, second: projections (N, D), row i of both from image i.
    """
    dtype = torch.promote_types(first.dtype, torch.float32)
    first, second = first.to(dtype), second.to(dtype)
    loss = invariance * F.mse_loss(first, second)
    for view in (first, second):
        centred = view - view.mean(0)
        spread = centred.square().sum(0) / (len(view) - 1)
        loss = loss + variance * (1 - (spread + EPSILON).sqrt()).clamp(min=0).mean()
        with torch.autocast(view.device.type, enabled=False):
            together = centred.T @ centred / (len(view) - 1)
        loss = loss + covariance * (together.square().sum() - together.diagonal().square().sum()) / view.shape[1]
    return loss


class VICRegLoss(ViewLoss):
    """VICReg of two views; the equation is with `vicreg`. Labels are not looked at.

    Args:
        invariance: Weight of the squared distance between the two views.
        variance: Weight of the hinge that keeps each feature's deviation above 1.
        covariance: Weight of the squared covariances between features.
    """

    def __init__(self, *, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> None:
        super().__init__()
        self.invariance, self.variance, self.covariance = _checked(invariance, variance, covariance)

    def value(self, first: Tensor, second: Tensor, labels: Tensor | None) -> Tensor:
        return vicreg(first, second, invariance=self.invariance, variance=self.variance, covariance=self.covariance)

    def extra_repr(self) -> str:
        return f"invariance={self.invariance}, variance={self.variance}, covariance={self.covariance}"


def _checked(*weights: float) -> tuple[float, ...]:
    if not all(weight >= 0 and math.isfinite(weight) for weight in weights):
        raise ValueError(f"the weights of VICReg's terms must be finite and not negative, not {weights}.")
    return weights


@dataclass(frozen=True, kw_only=True)
class VICReg:
    """`VICRegLoss` as the objective of a stage on two views; neither labels nor prior enter."""

    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0
    views: ClassVar[int] = 2
    uses_labels: ClassVar[bool] = False
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        _checked(self.invariance, self.variance, self.covariance)

    def build(self, *, prior: Sequence[float]) -> VICRegLoss:
        return VICRegLoss(invariance=self.invariance, variance=self.variance, covariance=self.covariance)
