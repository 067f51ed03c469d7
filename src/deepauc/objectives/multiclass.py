"""AUC objectives for more than two classes, as the multi-label AUC margin loss on columns made from class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.diagnosis import Diagnosis
from deepauc.objectives.input_check import InputCheck, numbers_of, require_tensors


class MulticlassAUCLoss(nn.Module):
    """Class numbers (N,) become 0/1 columns, which an `AUCMarginLoss` of its own, `columns`, takes as labels.

    What PESG asks for (primal_parameters, dual_parameters, project_) is that loss's; any torch optimizer over
    `parameters()` ascends in alpha, too. Use `OneVsRestAUCLoss` or `OneVsOneAUCLoss`.
    """

    def __init__(self, *, num_classes: int, columns: AUCMarginLoss) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.columns = columns
        bad = f"labels must be class numbers 0 to {num_classes - 1} (NaN where missing)."
        # The device's fourth flag is the loss's own: here it stands for class numbers out of range.
        self.input_check = InputCheck(soft=False, ran_away=f"In one of the last batches {bad}")

    def forward(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            scores: (N, C), bounded (torch.sigmoid).
            labels: (N,), class numbers 0 .. C - 1; integers, or floating with NaN where missing.
            weights: (N,); the prior is then the weighted share.
        """
        require_tensors(scores, labels, weights)
        bad = self._bad_labels(scores, labels)
        h, y = self.pose(scores, labels)
        loss: Tensor = self.columns(h, y, weights)
        if scores.device.type == "cpu" or torch.compiler.is_compiling():
            return loss
        return self.input_check.after(loss, h, y, None, ran_away=bad.any())

    def pose(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The multi-label problem (N, L): scores and their 0/1 labels, NaN where a row does not count."""
        raise NotImplementedError

    def diagnose(
        self, scores: Tensor, labels: Tensor, weights: Tensor | None = None, *, decay: float = 0.0
    ) -> Diagnosis:
        """`AUCMarginLoss.diagnose` of the columns: tuples of L numbers."""
        require_tensors(scores, labels, weights)
        self._bad_labels(scores, labels)
        self.input_check.read()
        h, y = self.pose(scores, labels)
        return self.columns.diagnose(h, y, weights, decay=decay)

    def primal_parameters(self) -> list[nn.Parameter]:
        """What PESG descends in besides the network: a and b of the columns."""
        return self.columns.primal_parameters()

    def dual_parameters(self) -> list[nn.Parameter]:
        """alpha of the columns."""
        return self.columns.dual_parameters()

    def project_(self) -> None:
        """alpha <- [alpha]_+ where the loss asks for it."""
        self.columns.project_()

    def closed_ascent_(self, lr: float | Tensor) -> None:
        """`AUCMarginLoss.closed_ascent_` of the columns."""
        self.columns.closed_ascent_(lr)

    def _bad_labels(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Mask of class numbers out of range; on the CPU an error at once."""
        if scores.ndim != 2 or scores.shape[1] != self.num_classes:
            raise ValueError(
                f"scores have shape {tuple(scores.shape)}; they must be (N, {self.num_classes}), one column per class."
            )
        if labels.shape != scores.shape[:1]:
            remedy = " A one-hot table becomes class numbers with labels.argmax(1)." if labels.ndim == 2 else ""
            raise ValueError(
                f"labels have shape {tuple(labels.shape)}; they must be ({len(scores)},), "
                f"one class number per row.{remedy}"
            )
        known = labels == labels  # noqa: PLR0124  (NaN is missing)
        bad = known & ~((labels >= 0) & (labels < self.num_classes))
        if labels.is_floating_point():
            bad = bad | (known & (labels != labels.floor()))
        if scores.device.type == "cpu" and not torch.compiler.is_compiling() and bad.any():
            shown = ", ".join(f"{value:g}" for value in sorted(set(labels[bad].tolist()))[:5])
            raise ValueError(
                f"labels must be class numbers 0 to {self.num_classes - 1} (NaN where missing), but hold {shown}."
            )
        return bad


class OneVsRestAUCLoss(MulticlassAUCLoss):
    """Mean over classes k of AUC-M of column k, class k against all others.

    Args:
        prior: Shares of the C classes in the stream of samples, adding up to 1.
        margin: How far apart the means of a class and of the others should be; one number, or one per class.
        normalise: As in `AUCMarginLoss`.
    """

    def __init__(
        self, *, prior: Sequence[float], margin: float | Sequence[float] = 1.0, normalise: bool = True
    ) -> None:
        shares = _shares(prior)
        columns = AUCMarginLoss(prior=shares, margin=margin, num_labels=len(shares), normalise=normalise)
        super().__init__(num_classes=len(shares), columns=columns)

    def pose(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return scores, _one_hot(scores, labels)


class OneVsOneAUCLoss(MulticlassAUCLoss):
    """Mean over ordered pairs i != j of AUC-M of column i on the rows of classes i and j: Hand & Till's (2001) M.

    M = 1/(C(C - 1)) sum over i != j of A(i|j). It weighs a pair of rare classes like one of common ones; the cost of a
    step is that of C(C - 1) labels. Each pair's mean is over its rows in the batch; one without any contributes 0.

    Args:
        prior: Shares of the C classes in the stream of samples, adding up to 1; the pair (i, j) has p_i/(p_i + p_j).
        margin: How far apart the class means of a pair should be.
        normalise: As in `AUCMarginLoss`.
    """

    first: Tensor
    second: Tensor

    def __init__(self, *, prior: Sequence[float], margin: float = 1.0, normalise: bool = True) -> None:
        shares = _shares(prior)
        pairs = [(i, j) for i in range(len(shares)) for j in range(len(shares)) if i != j]
        of_pairs = [shares[i] / (shares[i] + shares[j]) for i, j in pairs]
        columns = AUCMarginLoss(prior=of_pairs, margin=margin, num_labels=len(pairs), normalise=normalise)
        super().__init__(num_classes=len(shares), columns=columns)
        self.register_buffer("first", torch.tensor([i for i, _ in pairs]), persistent=False)
        self.register_buffer("second", torch.tensor([j for _, j in pairs]), persistent=False)

    def pose(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        one_hot = _one_hot(scores, labels)
        is_first = one_hot[:, self.first]
        in_pair = (is_first == 1) | (one_hot[:, self.second] == 1)
        return scores[:, self.first], torch.where(in_pair, is_first, torch.nan)


def _one_hot(scores: Tensor, labels: Tensor) -> Tensor:
    """(N, C) of the scores' precision, rows of NaN where the label is missing."""
    classes = torch.arange(scores.shape[1], device=labels.device)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    known = labels == labels  # noqa: PLR0124  (NaN)
    return torch.where(known.unsqueeze(1), (labels.unsqueeze(1) == classes).to(dtype), torch.nan)


def _shares(prior: Sequence[float] | Any) -> list[float]:
    shares: list[float] = numbers_of(prior).reshape(-1).tolist()
    if len(shares) < 2 or not all(0 < p < 1 for p in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            "prior must hold the share of every class in the stream of samples, positive and adding up to 1, for "
            f"example torch.bincount(labels) / len(labels), not {prior}."
        )
    return shares
