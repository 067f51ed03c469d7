"""The AUC margin loss (AUC-M), the paper's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from deepauc.objectives.saddle_loss import SaddleLoss, require_margin


class AUCMarginLoss(SaddleLoss):
    """The AUC margin loss: min over w, a, b and max over alpha >= 0 of F_M (Theorem 1).

    At the optimal a, b and alpha it is the variances of both classes plus [m - mean+ + mean-]_+^2.

    Bound the scores (torch.sigmoid, BatchScoreNorm): raw ones diverge at the usual learning rates.

    Args:
        prior: Share of positives in the stream of samples that the loss sees (`ClassQuotaSampler.prior`, or
            `labels.mean()` for plain shuffling); one number, or one per label.
        margin: How far apart the class means should be, in units of the scores: behind a sigmoid at most 1 is in reach.
            One number, or one per label.
        num_labels: Number of labels L; a, b and alpha have one entry for each.
        normalise: Divide by p(1 - p), so that the optimal value is A_M itself; False is Theorem 1 to the letter.
        constrain_alpha: False leaves alpha free, which gives the square loss with a tunable margin.
        soft_labels: Accept labels in [0, 1]; the prior is then their mean.
    """


@dataclass(frozen=True, kw_only=True)
class AUCMargin:
    """`AUCMarginLoss` to be built once the prior is known."""

    margin: float | tuple[float, ...] = 1.0
    normalise: bool = True
    constrain_alpha: bool = True
    soft_labels: bool = False
    bound: ClassVar[str] = "sigmoid"  # what a stage puts before the loss unless it says otherwise
    ranks: ClassVar[bool] = True  # only the order of its scores is trained

    def __post_init__(self) -> None:
        require_margin(self.margin)

    def build(self, *, prior: Sequence[float]) -> AUCMarginLoss:
        return AUCMarginLoss(
            prior=prior,
            margin=self.margin,
            num_labels=len(prior),
            normalise=self.normalise,
            constrain_alpha=self.constrain_alpha,
            soft_labels=self.soft_labels,
        )
