"""The AUC square loss (AUC-S) in min-max form, the paper's baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from deepauc.objectives.saddle_loss import SaddleLoss


class AUCSquareLoss(SaddleLoss):
    """min over w, a, b and max over alpha of F (Ying et al. 2016): the mean of (1 - h_i + h_j)^2 over all pairs.

    The margin is 1 and alpha is free; otherwise as `AUCMarginLoss`.

    Args:
        prior: Share of positives in the stream of samples that the loss sees; one number, or one per label.
        num_labels: Number of labels L; a, b and alpha have one entry for each.
        normalise: Divide by p(1 - p); False is Ying's form to the letter.
        soft_labels: Accept labels in [0, 1]; the prior is then their mean.
    """

    def __init__(
        self,
        *,
        prior: float | Sequence[float],
        num_labels: int = 1,
        normalise: bool = True,
        soft_labels: bool = False,
    ) -> None:
        super().__init__(
            prior=prior,
            margin=1.0,
            num_labels=num_labels,
            normalise=normalise,
            constrain_alpha=False,
            soft_labels=soft_labels,
        )

    def _settings(self) -> dict[str, tuple[float, ...]]:
        return {"prior": self.prior}


@dataclass(frozen=True, kw_only=True)
class AUCSquare:
    """`AUCSquareLoss` to be built once the prior is known."""

    normalise: bool = True
    soft_labels: bool = False
    bound: ClassVar[str] = "sigmoid"
    ranks: ClassVar[bool] = True  # only the order of its scores is trained

    def build(self, *, prior: Sequence[float]) -> AUCSquareLoss:
        return AUCSquareLoss(prior=prior, num_labels=len(prior), normalise=self.normalise, soft_labels=self.soft_labels)
