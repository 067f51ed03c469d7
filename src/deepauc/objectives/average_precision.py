"""Average precision by SOAP (Qi, Luo, Xu, Ji & Yang, NeurIPS 2021): one moving estimate for each positive row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deepauc.labels import scale_free
from deepauc.objectives.input_check import InputCheck, prepare
from deepauc.objectives.late_labels import LateLabels
from deepauc.objectives.pairwise import require_finite_scores


def smoothed_average_precision(
    scores: Tensor, labels: Tensor, weights: Tensor | None = None, *, margin: float = 1.0
) -> Tensor:
    """AP with a smooth rank, of all rows at once: the mean over positives i of u+_i / u_i; mean over labels.

    u_i is the mean of l_ij = max(margin - (h_i - h_j), 0)^2 over all rows j, i too, and u+_i that of l_ij [y_j = 1].
    A label without a positive counts as 1. scores (N,) or (N, L); labels 0/1 of the same shape, NaN where missing;
    weights (N,) or the scores' shape. Differentiable; O(n+ n) time and memory.
    """
    h, y, w = _columns(scores, labels, weights)
    found = []
    for column in range(h.shape[1]):
        rows = (y[:, column] * w[:, column] > 0).nonzero().squeeze(1)
        own = _means(h[:, column], y[:, column], w[:, column], rows, margin)
        share = w[rows, column] / w[rows, column].sum().clamp(min=torch.finfo(w.dtype).tiny)
        found.append(1 - (share * (1 - own[:, 0] / own[:, 1])).sum())
    return torch.stack(found).mean()


class AveragePrecisionLoss(LateLabels):
    """1 - AP with a smooth rank, for batches: `smoothed_average_precision` from moving estimates of u+_i and u_i.

    AP is no mean over batches: each positive's precision is a quotient of means over all rows. So the loss keeps an
    estimate of the two means for every row of the training set: u <- (1 - memory) u + memory (mean over the batch),
    and the gradient of l_ij has the weight (u+_i - u_i [y_j = 1]) / u_i^2 over the batch's size. A row's first visit
    takes the batch's mean itself. A row that is in a batch several times has the mean of its updates.

    The value is the mean over the batch's positives of 1 - u+_i / u_i. AP depends on the share of positives: with a
    quota of positives in the batch it is that of the batch. Evaluation mode updates no estimate.

    Args:
        num_rows: Rows of the training set; `forward` takes each row's number, from 0.
        margin: Of the squared hinge.
        memory: Weight of the batch in the estimates; 1 keeps nothing, and is exact where a batch is the whole set.
        num_labels: Number of labels; None takes it from the first batch.
    """

    estimates: Tensor
    per_label = ("estimates",)

    def __init__(
        self, num_rows: int, *, margin: float = 1.0, memory: float = 0.9, num_labels: int | None = None
    ) -> None:
        super().__init__()
        if num_rows != int(num_rows) or num_rows < 1:
            raise ValueError(f"num_rows is the number of rows of the training set, not {num_rows}.")
        _require_options(margin, memory)
        self.num_rows, self.margin, self.memory = int(num_rows), float(margin), float(memory)
        self.input_check = InputCheck(soft=False, may_be_soft=False)
        # (u+, u) of each row; u = 0 before the first visit, and positive after it, since l_ii = margin^2
        self.register_buffer("estimates", torch.zeros(num_labels or 0, self.num_rows, 2))

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor, weights: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            scores: (N,) or (N, L).
            labels: Of the same shape: 0 or 1, NaN where missing.
            index: (N,), the number of each row in the training set, from 0 to num_rows - 1.
            weights: Sample weights, (N,) or the scores' shape.
        """
        self.input_check.before(scores, labels, weights)
        self._require_index(index, scores)
        require_finite_scores(scores, labels)
        h, y, w = _columns(scores, labels, weights)
        (estimates,) = self.per_label_buffers(scores)
        with torch.autocast(h.device.type, enabled=False):  # its matrix products would be of bfloat16
            losses = [
                _soap(h[:, k], y[:, k], w[:, k], index, estimates[k], self.margin, self.memory, update=self.training)
                for k in range(h.shape[1])
            ]
        return self.input_check.after(torch.stack(losses).mean(), scores, labels, weights)

    def extra_repr(self) -> str:
        return f"num_rows={self.num_rows}, margin={self.margin}, memory={self.memory}"

    def _require_index(self, index: Tensor, scores: Tensor) -> None:
        remedy = "give the number of each row in the training set"
        if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            what = f"a tensor of {index.dtype}" if isinstance(index, Tensor) else type(index).__name__
            raise ValueError(f"index must be a tensor of whole numbers, not {what}: {remedy}.")
        if index.shape != scores.shape[:1]:
            raise ValueError(f"index has shape {tuple(index.shape)} for {scores.shape[0]} scores: {remedy}, (N,).")
        if index.device.type != "cpu" or torch.compiler.is_compiling() or not len(index):
            return
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < 0 or high >= self.num_rows:
            raise ValueError(
                f"index runs from {low} to {high}, but the loss was made for rows 0 to {self.num_rows - 1}: {remedy}."
            )


def _soap(
    h: Tensor, y: Tensor, w: Tensor, index: Tensor, estimates: Tensor, margin: float, memory: float, *, update: bool
) -> Tensor:
    """One label's loss, with SOAP's gradient; `estimates` (num_rows, 2) are updated in place.

    On the CPU the positives are picked out; elsewhere every row is taken for one, with weight 0 where it is none, so
    that the host need not look.
    """
    positive = y * w > 0
    on_host = h.device.type == "cpu" and not torch.compiler.is_compiling()
    rows = positive.nonzero().squeeze(1) if on_host else torch.arange(len(h), device=h.device)
    counts, at = positive.index_select(0, rows), index.index_select(0, rows)
    means = _means(h, y, w, rows, margin)  # (P, 2)
    with torch.no_grad():
        # Of a row that is there several times, augmented each time, the mean.
        alike = ((at.unsqueeze(1) == at) & counts).to(means.dtype)
        own = alike @ means / alike.sum(1, keepdim=True).clamp(min=1)
        before = estimates.index_select(0, at).to(means.dtype)
        u = torch.where(before[:, 1:] > 0, before + memory * (own - before), own)
        if memory == 1:
            u = own
        if update:
            estimates.index_copy_(0, at, torch.where(counts.unsqueeze(1), u, before).to(estimates.dtype))
        share = torch.where(counts, w.index_select(0, rows), 0)
        share = share / share.sum().clamp(min=torch.finfo(share.dtype).tiny)
        u_positive, u_all = u.unbind(1)
        u_all = torch.where(counts, u_all, 1)
        value = (share * (1 - u_positive / u_all)).sum()
        # f(u+, u) = -u+ / u: its slopes, for which the means stand in for the estimates
        slopes = torch.stack([-1 / u_all, u_positive / u_all.square()], 1) * share.unsqueeze(1)
    moving = torch.where(counts.unsqueeze(1), slopes * means, 0).sum()
    return value + (moving - moving.detach())


def _means(h: Tensor, y: Tensor, w: Tensor, rows: Tensor, margin: float) -> Tensor:
    """Weighted means over all rows j of l_ij [y_j = 1] and of l_ij, for each of `rows`, (P, 2)."""
    l = (margin - (h.index_select(0, rows).unsqueeze(1) - h)).clamp(min=0).square()  # noqa: E741  (the paper's letter)
    weights = torch.stack([w * y, w], 1) / w.sum().clamp(min=torch.finfo(w.dtype).tiny)
    return l @ weights


def _columns(scores: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    h, y, w = prepare(scores, labels, weights, may_miss=True)
    assert w is not None  # may_miss makes them
    w = w if weights is None else scale_free(w)
    if h.ndim == 1:
        return h.unsqueeze(1), y.unsqueeze(1), w.unsqueeze(1)
    return h, y, w


def _require_options(margin: float, memory: float) -> None:
    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"margin must be positive and finite, not {margin}.")
    if not 0 < memory <= 1:
        raise ValueError(f"memory is the batch's weight in the estimates, above 0 and at most 1, not {memory}.")


@dataclass(frozen=True, kw_only=True)
class AveragePrecision:
    """`AveragePrecisionLoss` as a stage's objective; the prior does not enter."""

    margin: float = 1.0
    memory: float = 0.9
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "sigmoid"
    ranks: ClassVar[bool] = True  # only the order of its scores is trained
    needs_index: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_options(self.margin, self.memory)

    def build(self, *, prior: Sequence[float], num_rows: int | None = None) -> AveragePrecisionLoss:
        """num_rows: of the training set, never left out; optional in the signature alone, as other specs lack it."""
        if num_rows is None:
            raise ValueError("AveragePrecision keeps an estimate for each row: give num_rows, the number of rows.")
        return AveragePrecisionLoss(num_rows, margin=self.margin, memory=self.memory, num_labels=len(prior))
