"""From scores and labels as they come (NumPy, torch, lists; (N,) or (N, L)) to one checked column a label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.labels import (
    ONE_CLASS,
    require_groups,
    require_plain_tensor,
    require_valid_arrays,
    scale_free_array,
    shape_message,
)

ArrayLike = npt.ArrayLike | Tensor
Floats = npt.NDArray[np.float64]
FloatOrArray = float | Floats


@dataclass(frozen=True)
class Column:
    """One label's labelled rows."""

    scores: npt.NDArray[Any]  # (n,) finite, in the type they came in
    positive: npt.NDArray[np.bool_]  # (n,)
    weights: Floats | None  # (n,)
    groups: npt.NDArray[np.intp] | None  # (n,) numbers 0 .. G - 1
    where: str  # "" or " in column 3", for messages

    @property
    def positives(self) -> int:
        return int(np.count_nonzero(self.positive))

    @property
    def negatives(self) -> int:
        return self.positive.size - self.positives

    def shares(self) -> Floats:
        """Each row's share of the total weight, (n,)."""
        rows = self.scores.size
        if rows == 0:
            raise ValueError(f"no row is labelled{self.where}.")
        if self.weights is None:
            return np.full(rows, 1.0 / rows)
        weights = scale_free_array(self.weights)
        total = weights.sum()
        if not total > 0:
            raise ValueError(f"all weights are 0{self.where}.")
        return weights / total

    def with_classes_apart(self) -> Column:
        """The same, each class's weights scaled by themselves: for what no factor of a whole class changes."""
        if self.weights is None:
            return self
        weights = np.empty_like(self.weights)
        for rows in (self.positive, ~self.positive):
            weights[rows] = scale_free_array(self.weights[rows])
        return replace(self, weights=weights)

    def require_both_classes(self, what: str) -> None:
        """Raise ValueError unless both classes are there, with some weight."""
        if self.positives == 0 or self.negatives == 0:
            message = ONE_CLASS.format(what=what, where=self.where, positives=self.positives, negatives=self.negatives)
            raise ValueError(message)
        weights = self.weights
        if weights is not None and not (weights[self.positive].any() and weights[~self.positive].any()):
            raise ValueError(f"{what} needs weight on both classes{self.where}; one class has weights of 0 only.")


@dataclass(frozen=True)
class Columns:
    """Checked inputs; iterating gives one `Column` a label."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    weights: npt.NDArray[Any] | None
    groups: npt.NDArray[np.intp] | None
    complete: bool  # no label is missing

    def __iter__(self) -> Iterator[Column]:
        if self.scores.ndim == 1:
            yield self._column(self.scores, self.labels, self.weights, "")
            return
        for j in range(self.scores.shape[1]):
            weights = self.weights if self.weights is None or self.weights.ndim == 1 else self.weights[:, j]
            yield self._column(self.scores[:, j], self.labels[:, j], weights, f" in column {j}")

    def _column(
        self, scores: npt.NDArray[Any], labels: npt.NDArray[Any], weights: npt.NDArray[Any] | None, where: str
    ) -> Column:
        positive = labels if labels.dtype == np.bool_ else labels == 1
        groups = self.groups
        if not self.complete:
            labelled = ~np.isnan(labels)
            scores, positive = scores[labelled], positive[labelled]
            weights = None if weights is None else weights[labelled]
            groups = None if groups is None else np.unique(groups[labelled], return_inverse=True)[1]
        return Column(
            scores=np.ascontiguousarray(scores),
            positive=np.ascontiguousarray(positive),
            weights=None if weights is None else np.ascontiguousarray(weights, dtype=np.float64),
            groups=groups,
            where=where,
        )

    @property
    def count(self) -> int:
        """How many labels there are."""
        return 1 if self.scores.ndim == 1 else int(self.scores.shape[1])

    def collect(self, values: Sequence[float]) -> FloatOrArray:
        """A float for (N,) inputs, an array (L,) for (N, L) inputs."""
        return float(values[0]) if self.scores.ndim == 1 else np.array(values, dtype=np.float64)


def read_columns(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, groups: ArrayLike | None = None
) -> Columns:
    """Check scores and labels (N,) or (N, L), weights (N,) or (N, L), groups (N,); ValueError names the remedy."""
    score_array, label_array = to_numpy(scores, "scores"), to_numpy(labels, "labels")
    weight_array = None if weights is None else to_numpy(weights, "weights")
    complete = _plain_and_complete(score_array, label_array)
    if not complete or weight_array is not None:
        require_valid_arrays(score_array, label_array, weight_array)
    return Columns(
        scores=score_array,
        labels=label_array,
        weights=weight_array,
        groups=None if groups is None else group_numbers(groups, len(score_array)),
        complete=complete or not np.isnan(label_array).any(),
    )


def read_probabilities(
    probabilities: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, groups: ArrayLike | None = None
) -> Columns:
    """The same for what must be probabilities: anything outside [0, 1] is refused, never squashed."""
    columns = read_columns(probabilities, labels, weights=weights, groups=groups)
    if columns.scores.size and (columns.scores.min() < 0 or columns.scores.max() > 1):
        raise ValueError(
            f"probabilities must lie in [0, 1], but span {columns.scores.min():g} to {columns.scores.max():g}. "
            "A network's raw scores become probabilities with fit_temperature or fit_isotonic, fitted on another part."
        )
    return columns


def to_numpy(values: ArrayLike, name: str = "values") -> npt.NDArray[Any]:
    """A NumPy array in native byte order, of the same numbers (bfloat16, which NumPy lacks, becomes float32).

    Masked entries are NaN, missing: NumPy itself would hand out what lies under the mask.
    """
    if isinstance(values, Tensor):
        require_plain_tensor(name, values, unsigned=True)
        values = values.detach().resolve_neg()
        if values.dtype == torch.bfloat16:
            values = values.float()
        return values.cpu().numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        if values.dtype.kind not in "biuf":
            raise ValueError(f"masked entries of type {values.dtype} cannot be skipped: drop those rows first.")
        precise = np.promote_types(values.dtype, np.float32)
        values = np.where(np.ma.getmaskarray(values), np.nan, values.data).astype(precise)
    array = np.asarray(values)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def group_numbers(groups: ArrayLike, rows: int) -> npt.NDArray[np.intp]:
    """Patients of any type (N,), numbered 0 .. G - 1."""
    array = to_numpy(groups)
    if array.shape != (rows,):
        raise ValueError(
            f"groups have shape {array.shape}; they must be ({rows},), one group (patient) per row of the scores."
        )
    return np.unique(require_groups(groups, array), return_inverse=True)[1]


def _plain_and_complete(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> bool:
    """Whether everything is valid and no label is missing, in as few passes as possible; says nothing about why not."""
    if shape_message(scores.shape, labels.shape) is not None:
        return False
    if scores.dtype.kind not in "fiu" or labels.dtype.kind not in "bfiu":
        return False
    if labels.dtype.kind != "b" and np.count_nonzero(labels) != np.count_nonzero(labels == 1):
        return False  # something that is neither 0 nor 1: an invalid value or NaN
    return scores.dtype.kind != "f" or bool(np.isfinite(scores).all())
