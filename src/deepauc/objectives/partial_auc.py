"""Partial AUC: the pairs that decide at high sensitivity, at a low false positive rate, or both.

For a surrogate that falls with h_i - h_j the hardest negatives are the same for every positive, and the hardest
positives for every negative: choosing them is one sort, and what is left is the sum over pairs of `pairwise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepauc.labels import scale_free
from deepauc.objectives.input_check import InputCheck, precise_dtype
from deepauc.objectives.late_labels import LateLabels
from deepauc.objectives.once import WithGradient
from deepauc.objectives.pairwise import (
    Class,
    PairwiseAUCLoss,
    Surrogate,
    checked_margin,
    exact_centre,
    known_rows,
    label_by_label,
    over_pairs,
    pairwise_auc_loss,
    reciprocal,
    stable_sort,
)

BEYOND = 8
"""The memory holds so many scores that this many of them lie beyond the quantile."""


class Limits(NamedTuple):
    """Which share of each class is chosen: the lowest positives, the highest negatives."""

    positives: float
    negatives: float

    @classmethod
    def of(cls, max_fpr: float, min_tpr: float) -> Limits:
        if not 0 < max_fpr <= 1:
            raise ValueError(f"max_fpr is {max_fpr}; it must lie in (0, 1].")
        if not 0 <= min_tpr < 1:
            raise ValueError(f"min_tpr is {min_tpr}; it must lie in [0, 1).")
        return cls(1 - min_tpr, max_fpr)


class Memory(NamedTuple):
    """The latest scores of each class and their weights, (L, K, 2), oldest first; weight 0 where there is none yet."""

    positives: Tensor
    negatives: Tensor


def partial_auc_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    surrogate: Surrogate = "squared_hinge",
    margin: float | Tensor = 1.0,
) -> Tensor:
    """Mean of l(margin - (h_i - h_j)) over pairs of the lowest positives i and highest negatives j; mean over labels.

    Of the n+ positives the lowest (1 - min_tpr) n+ take part, of the n- negatives the highest max_fpr n-, the row at
    the boundary with the fraction that is left for it; with weights, shares of each class's weight. l is as in
    `pairwise_auc_loss`, which this is at max_fpr = 1, min_tpr = 0. O(n log n).

    scores (N,) or (N, L), floating; labels 0/1 of the same shape, NaN where missing; weights (N,) or the scores' shape.
    Returns a scalar, float32 (float64 for double scores), 0 for a label without a pair. Once differentiable.
    """
    limits = Limits.of(max_fpr, min_tpr)
    return _loss(scores, labels, weights, limits, surrogate, margin, None)


class PartialAUCLoss(LateLabels, PairwiseAUCLoss):
    """Mean of a surrogate over the pairs that make up a partial AUC; the equation is with `partial_auc_loss`.

    A batch may be too small: of 2 positives, the lowest 20 % is less than one row. Then the loss places the batch's
    rows among the latest scores of their class, which it keeps (`state_dict` has them): a row takes part as far as it
    lies beyond the quantile of those and the batch together, and the sum over pairs is divided by the number expected,
    so that its mean over batches is right. Before anything is kept that is the batch's own quantile. Evaluation mode
    keeps nothing.

    Args:
        max_fpr: Only the highest-scored negatives count, this share of them.
        min_tpr: Only the lowest-scored positives count, a share of 1 - min_tpr. With `max_fpr` it is the two-way
            partial AUC.
        surrogate: "square", "squared_hinge", "hinge" or "logistic".
        margin: How far a positive's score should be above a negative's; one number, or one per label.
        num_labels: Number of labels; None takes it from the first batch.
    """

    positive_memory: Tensor
    negative_memory: Tensor
    per_label = ("positive_memory", "negative_memory")

    def __init__(
        self,
        *,
        max_fpr: float = 1.0,
        min_tpr: float = 0.0,
        surrogate: Surrogate = "squared_hinge",
        margin: float | Sequence[float] | Tensor = 1.0,
        num_labels: int | None = None,
    ) -> None:
        super().__init__(surrogate, margin)
        self.limits = Limits.of(max_fpr, min_tpr)
        self.max_fpr, self.min_tpr = float(max_fpr), float(min_tpr)
        self.input_check = InputCheck(soft=False, may_be_soft=False)
        for name, share in zip(self.per_label, self.limits, strict=True):
            kept = 0 if share == 1 else math.ceil(BEYOND / share - 1e-6)  # 1 - 0.8 is a little less than 0.2
            self.register_buffer(name, torch.zeros(num_labels or 0, kept, 2))

    def _value(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        memory = Memory(*self.per_label_buffers(scores))
        on_host = scores.device.type == "cpu" and not torch.compiler.is_compiling()
        needed = not on_host or _too_small(labels, weights, self.limits)
        kept = memory if needed else None
        loss = _loss(scores, labels, weights, self.limits, self.surrogate, self._margin_for(scores), kept)
        if self.training and needed and self.limits != (1, 1):
            with torch.no_grad():
                _remember(memory, scores, labels, weights, self.limits)
        return loss

    def extra_repr(self) -> str:
        margin = self.margin[0] if len(self.margin) == 1 else self.margin
        return f"max_fpr={self.max_fpr}, min_tpr={self.min_tpr}, surrogate={self.surrogate!r}, margin={margin}"


def _loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    limits: Limits,
    surrogate: Surrogate,
    margin: float | Tensor,
    memory: Memory | None,
) -> Tensor:
    if limits == (1, 1):
        return pairwise_auc_loss(scores, labels, weights, surrogate=surrogate, margin=margin)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    arguments = (labels, weights, limits, surrogate, margin, memory)
    loss: Tensor = WithGradient.apply(scores, _loss_and_gradient, *arguments)[0]
    return loss


def _loss_and_gradient(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    limits: Limits,
    surrogate: Surrogate,
    margin: float | Tensor,
    memory: Memory | None,
) -> tuple[Tensor, Tensor]:
    """Which rows are chosen does not change with a small step of the scores."""
    if scores.device.type == "cpu" and memory is None and not torch.compiler.is_compiling():
        return _selected(scores, labels, weights, limits, surrogate, margin)
    return _masked(scores, labels, weights, limits, surrogate, margin, memory)


def _selected(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    limits: Limits,
    surrogate: Surrogate,
    margin: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Loss and gradient, label by label, from the chosen rows of the batch alone; for the CPU."""

    def choose(h: Tensor, y: Tensor, w: Tensor | None) -> tuple[Class, Class, float]:
        negatives = _hardest(h, y == 0, w, limits.negatives, highest=True)
        positives = _hardest(h, y == 1, w, limits.positives, highest=False)
        return negatives, positives, float(len(negatives[0]) > 0 and len(positives[0]) > 0)

    return label_by_label(scores, labels, weights, surrogate, margin, choose)


def _hardest(h: Tensor, of_class: Tensor, w: Tensor | None, share: float, *, highest: bool) -> Class:
    """Of a class the rows that take part, their scores, and their masses, whose sum is 1; nothing without weight.

    On the host NumPy finds them in a fraction of torch's time.
    """
    precise = precise_dtype(h.device.type)
    rows = torch.from_numpy(np.flatnonzero(of_class.numpy()))
    own = h.index_select(0, rows)
    if w is None:
        wanted = share * len(rows)
        whole = min(int(wanted), len(rows))
        if whole < len(rows):
            at = _outermost(own if highest else -own, whole + 1)
            rows, own = rows.index_select(0, at), own.index_select(0, at)
        mass = torch.full((len(rows),), 1 / max(wanted, share), dtype=precise)
        if len(rows) > whole:
            mass[own.argmin() if highest else own.argmax()] *= wanted - whole
        return rows, own.to(precise), mass
    wide = torch.promote_types(w.dtype, precise)
    mass = scale_free(w.index_select(0, rows).to(wide)).to(precise)
    total = share * mass.sum()
    if share < 1:
        own, order = torch.sort(own, descending=highest, stable=True)
        rows, mass = rows.index_select(0, order), mass.index_select(0, order)
        mass = torch.minimum((total - (mass.cumsum(0) - mass)).clamp_(min=0), mass)
    held = mass.nonzero().squeeze(1)
    return rows.index_select(0, held), own.index_select(0, held).to(precise), mass.index_select(0, held) / total


def _outermost(values: Tensor, count: int) -> Tensor:
    """Places of the `count` highest values; of equal ones at the end the first."""
    found = values.numpy()
    last = np.partition(found, len(found) - count)[len(found) - count]
    at = np.flatnonzero(found >= last)
    if len(at) > count:
        tied = np.flatnonzero(found[at] == last)
        at = np.delete(at, tied[count - len(at) :])
    return torch.from_numpy(at)


def _masked(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    limits: Limits,
    surrogate: Surrogate,
    margin: float | Tensor,
    memory: Memory | None,
) -> tuple[Tensor, Tensor]:
    """Loss and gradient of all labels at once, without the host ever looking at a tensor."""
    h, u, v = _masses(scores, labels, weights)
    w = scale_free(u + v, dim=1)
    centre = exact_centre((w * h).sum(1, keepdim=True) * reciprocal(w.sum(1, keepdim=True)))
    u, v = _chosen(h, u, v, limits, memory)
    a = h - centre
    t = a + (margin.unsqueeze(1) if isinstance(margin, Tensor) else margin)
    value, slope_t, slope_a = over_pairs(t, v, a, u, surrogate, scores.dtype)
    gradient = slope_t.add_(slope_a).div_(len(h)).to(scores.dtype)
    return value.mean().to(scores.dtype), gradient.T.reshape(scores.shape)


def _masses(scores: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and the masses of positives and negatives, all (L, N); 0 where a label is missing."""
    h, y, w = known_rows(scores, labels, weights)
    return h, w * y, w * (1 - y)


def _chosen(h: Tensor, u: Tensor, v: Tensor, limits: Limits, memory: Memory | None) -> tuple[Tensor, Tensor]:
    """The masses of the rows that take part, over what their class is expected to have: each sums to 1, or nearly.

    One sort of the batch and of what is kept; that counts only for a class with less than a row beyond its quantile.
    """
    rows = h.shape[1]
    scores, positive, negative = [h], [u], [v]
    if memory is not None:
        for kept, mass, other, share in (
            (memory.positives, positive, negative, limits.positives),
            (memory.negatives, negative, positive, limits.negatives),
        ):
            if share < 1:
                earlier, weight = kept.to(h.dtype).unbind(2)
                scores.append(earlier)
                mass.append(weight * _small(mass[0], share))
                other.append(torch.zeros_like(weight))
    order = stable_sort(torch.cat(scores, 1))[1]
    found = []
    for mass, share, from_below in ((positive, limits.positives, True), (negative, limits.negatives, False)):
        m = scale_free(torch.cat(mass, 1), dim=1)
        own = m[:, :rows]
        expected = share * own.sum(1, keepdim=True)
        if share < 1:
            ordered = m.gather(1, order)
            up_to = ordered.cumsum(1)
            total = up_to[:, -1:]
            before = up_to - ordered if from_below else total - up_to
            taken = torch.minimum((share * total - before).clamp(min=0), ordered)
            own = torch.empty_like(m).scatter_(1, order, taken)[:, :rows]
        found.append(own * reciprocal(expected))
    return found[0], found[1]


def _small(mass: Tensor, share: float) -> Tensor:
    """Whether less than one row of a class, masses (L, N), lies beyond its quantile, (L, 1)."""
    return (mass > 0).sum(1, keepdim=True) * share < 1 - 1e-9


def _too_small(labels: Tensor, weights: Tensor | None, limits: Limits) -> bool:
    """Whether a class of a label is; looks at the values."""
    for value, share in ((1, limits.positives), (0, limits.negatives)):
        if share < 1:
            of_class = labels == value
            if weights is not None:
                of_class &= (weights if weights.ndim == labels.ndim else weights.unsqueeze(1)) > 0
            if bool((torch.count_nonzero(of_class, dim=0) * share < 1 - 1e-9).any()):
                return True
    return False


def _remember(memory: Memory, scores: Tensor, labels: Tensor, weights: Tensor | None, limits: Limits) -> None:
    """The batch's scores into the memory of each class that was too small, the oldest out."""
    h, u, v = _masses(scores.detach(), labels, weights)
    for kept, mass, share in ((memory.positives, u, limits.positives), (memory.negatives, v, limits.negatives)):
        if share == 1:
            continue
        size = kept.shape[1]
        every = torch.cat([kept, torch.stack([h, mass], 2).to(kept.dtype)], 1)
        held = every[:, :, 1] > 0
        from_end = held.flip(1).cumsum(1).flip(1)  # 1 for the latest
        place = torch.where(held & (from_end <= size), size - from_end, size)  # one place more, for what is let go
        latest = kept.new_zeros(len(kept), size + 1, 2).scatter(1, place.unsqueeze(2).expand_as(every), every)
        kept.copy_(torch.where(_small(mass, share).unsqueeze(2), latest[:, :size], kept))


@dataclass(frozen=True, kw_only=True)
class PartialAUC:
    """`PartialAUCLoss` as a stage's objective; the prior does not enter."""

    max_fpr: float = 1.0
    min_tpr: float = 0.0
    surrogate: Surrogate = "squared_hinge"
    margin: float | tuple[float, ...] = 1.0
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "sigmoid"
    ranks: ClassVar[bool] = True  # only the order of its scores is trained

    def __post_init__(self) -> None:
        Limits.of(self.max_fpr, self.min_tpr)
        checked_margin(self.surrogate, self.margin)

    def build(self, *, prior: Sequence[float]) -> PartialAUCLoss:
        return PartialAUCLoss(
            max_fpr=self.max_fpr,
            min_tpr=self.min_tpr,
            surrogate=self.surrogate,
            margin=self.margin,
            num_labels=len(prior),
        )
