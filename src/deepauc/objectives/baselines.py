"""Cross-entropy and alpha-balanced focal loss: what an AUC objective has to beat, on the same terms.

Both take raw logits, (N,) or (N, L), 0/1 labels with NaN where missing, and sample weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepauc.labels import scale_free
from deepauc.objectives.input_check import InputCheck, numbers_of, prepare


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    pos_weight: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy on logits: the weighted mean over a label's entries, then the mean over labels.

    l = -q y log s(h) - (1 - y) log(1 - s(h)), with s the sigmoid and q the weight of positives (`pos_weight`).

    logits (N,) or (N, L), floating; targets the same shape and type, in [0, 1]; weights as logits, 0 where an entry
    does not count, or None; pos_weight a scalar or (L,); factor: of each label's loss, likewise. With neither weights
    nor factor this is torch's function, to the bit.
    """
    if weights is None:
        return F.binary_cross_entropy_with_logits(logits, targets, factor, pos_weight=pos_weight)
    share = _share(weights) if factor is None else _share(weights) * factor
    return F.binary_cross_entropy_with_logits(logits, targets, share, pos_weight=pos_weight, reduction="sum")


def focal(logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, alpha: float, gamma: float) -> Tensor:
    """Alpha-balanced focal loss (Lin et al. 2017, eq. 5): the weighted mean over a label's entries, then over labels.

    l = -alpha y (1 - s)^gamma log s - (1 - alpha)(1 - y) s^gamma log(1 - s), with s = sigmoid(h).

    Arguments as for `cross_entropy`. The powers are taken as exp(gamma log s): no 0^gamma, whose gradient is infinite
    for gamma < 1, and no 1 - s, which is 0 from a logit of 17 on in float32.
    """
    log_positive = F.logsigmoid(logits)
    log_negative = F.logsigmoid(-logits)
    positive = torch.exp(gamma * log_negative) * log_positive
    negative = torch.exp(gamma * log_positive) * log_negative
    losses = -(alpha * targets * positive + (1 - alpha) * (1 - targets) * negative)
    return losses.mean() if weights is None else (losses * _share(weights)).sum()


class LogitLoss(nn.Module):
    """A loss of logits, times `scale`, that checks what it is given. Use `CrossEntropyLoss` or `FocalLoss`."""

    def __init__(self, *, scale: float, soft_labels: bool) -> None:
        super().__init__()
        _require_scale(scale)
        self.scale = scale
        self.soft_labels = soft_labels
        self.input_check = InputCheck(soft=soft_labels)

    def forward(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            scores: Logits (N,) or (N, L).
            labels: Of the same shape: 0 or 1, NaN where missing.
            weights: Sample weights, (N,) or the scores' shape; only their ratios matter.
        """
        may_miss = self.input_check.before(scores, labels, weights)
        loss = self._value(*prepare(scores, labels, weights, may_miss=may_miss))
        return self.input_check.after(loss if self.scale == 1 else self.scale * loss, scores, labels, weights)

    def _value(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The mathematics, on checked input of one type, nothing missing."""
        raise NotImplementedError


class CrossEntropyLoss(LogitLoss):
    """Binary cross-entropy on logits with label smoothing, missing labels and sample weights.

    With nothing missing, no weights, no smoothing and scale 1, value and gradient are those of
    `torch.nn.functional.binary_cross_entropy_with_logits`.

    Args:
        label_smoothing: Smoothing by e turns a label y into y(1 - e) + e/2.
        pos_weight: Multiplies the positives' losses without entering the mean's denominator, as in torch; one number,
            or one per label.
        class_prior: Share p of positives, or one per label: positives weigh 1 - p and negatives p, as Theorem 1 weighs
            them in AUC-M.
        scale: Multiplies the loss.
        soft_labels: Accept labels in [0, 1].
    """

    pos_weight: Tensor | None
    factor: Tensor | None

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        pos_weight: float | Sequence[float] | None = None,
        class_prior: float | Sequence[float] | None = None,
        scale: float = 1.0,
        soft_labels: bool = False,
    ) -> None:
        super().__init__(scale=scale, soft_labels=soft_labels)
        _require_smoothing(label_smoothing)
        if class_prior is not None and pos_weight is not None:
            raise ValueError("class_prior and pos_weight both weigh the positives: give one of the two.")
        prior = None if class_prior is None else numbers_of(class_prior)
        if prior is not None:
            if prior.ndim > 1 or not ((prior > 0) & (prior < 1)).all():
                raise ValueError(
                    f"class_prior must lie strictly between 0 and 1, one number or one per label, not {class_prior}."
                )
            pos_weight = ((1 - prior) / prior).tolist()
        self.class_prior = None if prior is None else prior.tolist()
        self.register_buffer("factor", None if prior is None else prior.float(), persistent=False)
        factor = None if pos_weight is None else _checked_pos_weight(pos_weight)
        # float32, which every device has; double-precision scores meet the number that was asked for.
        self.register_buffer("pos_weight", None if factor is None else factor.float(), persistent=False)
        self._asked_for = None if factor is None else factor.tolist()
        self.label_smoothing = label_smoothing

    def _value(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        if self.label_smoothing:
            targets = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        pos_weight = factor = None
        if self.pos_weight is not None:
            if self.pos_weight.ndim == 1 and (logits.ndim == 1 or self.pos_weight.numel() not in (1, logits.shape[1])):
                raise ValueError(
                    f"pos_weight has {self.pos_weight.numel()} values for scores of shape {tuple(logits.shape)}: "
                    "give one number, or one per label."
                )
            exact = logits.dtype == torch.float64
            pos_weight = logits.new_tensor(self._asked_for) if exact else self.pos_weight.to(logits)
            if self.factor is not None:
                factor = logits.new_tensor(self.class_prior) if exact else self.factor.to(logits)
        return cross_entropy(logits, targets, weights, pos_weight=pos_weight, factor=factor)

    def extra_repr(self) -> str:
        weighing = f"pos_weight={self._asked_for}, class_prior={self.class_prior}, scale={self.scale}"
        return f"label_smoothing={self.label_smoothing}, {weighing}, soft_labels={self.soft_labels}"


class FocalLoss(LogitLoss):
    """Alpha-balanced focal loss on logits: positives weigh alpha, negatives 1 - alpha (see `focal`).

    With gamma = 0 and alpha = 1/2 it is half the cross-entropy.

    Args:
        alpha: Weight of the positives beside 1 - alpha of the negatives.
        gamma: How much less the rows count that are right already; 0 counts all alike.
        scale: Multiplies the loss.
        soft_labels: Accept labels in [0, 1].
    """

    def __init__(
        self, *, alpha: float = 0.25, gamma: float = 2.0, scale: float = 1.0, soft_labels: bool = False
    ) -> None:
        super().__init__(scale=scale, soft_labels=soft_labels)
        _require_focus(alpha, gamma)
        self.alpha, self.gamma = alpha, gamma

    def _value(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        return focal(logits, targets, weights, alpha=self.alpha, gamma=self.gamma)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, gamma={self.gamma}, scale={self.scale}, soft_labels={self.soft_labels}"


def _share(weights: Tensor) -> Tensor:
    """What each entry counts for: its share of its label's weight over the number of labels; 0 where that is 0."""
    weights = scale_free(weights)
    total = weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny)
    return weights / (total if total.ndim == 0 else total * len(total))


def _require_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), not {label_smoothing}.")


def _checked_pos_weight(pos_weight: float | Sequence[float]) -> Tensor:
    factor = numbers_of(pos_weight)
    if factor.ndim > 1 or not (factor.isfinite().all() and (factor > 0).all()):
        raise ValueError(f"pos_weight must be one positive number, or one per label, not {pos_weight}.")
    return factor


def _require_focus(alpha: float, gamma: float) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], not {alpha}: it is the weight of positives beside negatives.")
    if not (gamma >= 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma must be finite and not negative, not {gamma}.")


def _require_scale(scale: float) -> None:
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale must be positive and finite, not {scale}: it multiplies the loss.")


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """`CrossEntropyLoss` as a stage's objective.

    Args:
        prior_weights: Positives weigh 1 - p and negatives p, p being the share of positives in the stage's batches.
            Without it the prior does not enter.
    """

    label_smoothing: float = 0.0
    pos_weight: float | tuple[float, ...] | None = None
    prior_weights: bool = False
    scale: float = 1.0
    soft_labels: bool = False
    bound: ClassVar[str] = "none"
    gives_probabilities: ClassVar[bool] = True  # the sigmoid of a score is one

    def __post_init__(self) -> None:
        _require_smoothing(self.label_smoothing)
        _require_scale(self.scale)
        if self.pos_weight is not None:
            _checked_pos_weight(self.pos_weight)
            if self.prior_weights:
                raise ValueError("prior_weights and pos_weight both weigh the positives: give one of the two.")

    def build(self, *, prior: Sequence[float]) -> CrossEntropyLoss:
        return CrossEntropyLoss(
            label_smoothing=self.label_smoothing,
            pos_weight=self.pos_weight,
            class_prior=_one_or_each(prior) if self.prior_weights else None,
            scale=self.scale,
            soft_labels=self.soft_labels,
        )


def _one_or_each(prior: Sequence[float]) -> float | Sequence[float]:
    """Of one label a number: its scores may be (N,)."""
    return prior[0] if len(prior) == 1 else prior


@dataclass(frozen=True, kw_only=True)
class Focal:
    """`FocalLoss` as a stage's objective; the prior does not enter."""

    alpha: float = 0.25
    gamma: float = 2.0
    scale: float = 1.0
    soft_labels: bool = False
    bound: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        _require_focus(self.alpha, self.gamma)
        _require_scale(self.scale)

    def build(self, *, prior: Sequence[float]) -> FocalLoss:
        return FocalLoss(alpha=self.alpha, gamma=self.gamma, scale=self.scale, soft_labels=self.soft_labels)
