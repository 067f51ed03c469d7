"""The area under the ROC curve, exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepauc.labels import ONE_CLASS, require_plain_tensor, scale_free, shape_message
from deepauc.metrics.basis.columns import ArrayLike, Column, FloatOrArray, read_columns
from deepauc.metrics.basis.pair_counts import twice_concordant


def auroc(scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> FloatOrArray:
    """The share of (positive, negative) pairs in the right order, a tie counting one half.

    AUC = (#{s_i > s_j} + #{s_i = s_j}/2) / (n+ n-) over positives i and negatives j (Mann & Whitney, 1947); with
    weights each pair counts w_i w_j. Pairs are counted in integers, so without weights the value is the correctly
    rounded quotient, whatever the scores' scale or order. Scores are taken as they are: any real type, no sigmoid.

    Args:
        scores: (N,) or (N, L); NumPy, torch or lists. A CUDA tensor is worked on where it lies.
        labels: The same shape: 0/1, NaN where missing (dropped for that label alone).
        weights: (N,) or (N, L), not negative.

    Returns:
        A float for (N,), an array (L,) for (N, L).

    Raises:
        ValueError: NaN or infinite scores, other labels, or a label with one class only.

    Examples:
        >>> auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        0.75
        >>> auroc([[0.1, 0.9], [0.4, 0.2], [0.8, 0.3]], [[0, 1], [0, 0], [1, float("nan")]])
        array([1., 1.])
    """
    if isinstance(scores, Tensor) and scores.is_cuda:
        return _auroc_on_device(scores, labels, weights)
    columns = read_columns(scores, labels, weights=weights)
    return columns.collect([auroc_of(column) for column in columns])


def auroc_of(column: Column) -> float:
    """The AUROC of one checked column."""
    column.require_both_classes("AUROC")
    if column.weights is None:
        pairs = column.positives * column.negatives
        return twice_concordant(column.scores, column.positive) / (2 * pairs)  # Python integers: no overflow
    column = column.with_classes_apart()
    assert column.weights is not None
    positive, negative = column.positive, ~column.positive
    order = np.argsort(column.scores[negative])
    ordered = column.scores[negative][order]
    up_to = np.concatenate([[0.0], np.cumsum(column.weights[negative][order])])
    queries = column.scores[positive]
    below = up_to[np.searchsorted(ordered, queries, side="left")]
    not_above = up_to[np.searchsorted(ordered, queries, side="right")]
    of_positives = column.weights[positive]
    return float(of_positives @ (below + not_above) / (2 * of_positives.sum() * up_to[-1]))


def _auroc_on_device(scores: Tensor, labels: ArrayLike, weights: ArrayLike | None) -> FloatOrArray:
    """The same by sorting on the device; whatever looks wrong there is judged, and refused, by `read_columns`."""
    for name, given in (("scores", scores), ("labels", labels), ("weights", weights)):
        if isinstance(given, Tensor):
            require_plain_tensor(name, given)
    scores = scores.detach()
    labels = torch.as_tensor(labels, device=scores.device).detach()
    weights = None if weights is None else torch.as_tensor(weights, device=scores.device).detach()
    plain = scores.dtype != torch.bool and weights is None
    if not plain or shape_message(tuple(scores.shape), tuple(labels.shape)) is not None:
        read_columns(scores, labels, weights=weights)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if scores.dim() == 1:
        return _column_on_device(scores, labels, weights, "")
    by_label = [
        _column_on_device(
            scores[:, j].contiguous(),
            labels[:, j],
            weights if weights is None or weights.dim() == 1 else weights[:, j],
            f" in column {j}",
        )
        for j in range(scores.shape[1])
    ]
    return np.array(by_label)


def _column_on_device(scores: Tensor, labels: Tensor, weights: Tensor | None, where: str) -> float:
    is_positive, is_negative = labels == 1, labels == 0
    positives, negatives = scores[is_positive], scores[is_negative]
    n_positive, n_negative = positives.numel(), negatives.numel()
    if n_positive + n_negative < scores.numel():
        read_columns(scores, labels)  # some labels are missing, which is fine, or wrong
    if n_positive == 0 or n_negative == 0:
        raise ValueError(ONE_CLASS.format(what="AUROC", where=where, positives=n_positive, negatives=n_negative))
    if weights is not None:
        return _weighted_on_device(positives, negatives, weights[is_positive], weights[is_negative], where)
    swap = n_positive > n_negative  # look the smaller class up in the larger one
    queries, ordered = (part.sort().values for part in ((negatives, positives) if swap else (positives, negatives)))
    small = ordered.numel() < 2**31
    below = torch.searchsorted(ordered, queries, out_int32=small).sum(dtype=torch.int64)
    not_above = torch.searchsorted(ordered, queries, right=True, out_int32=small).sum(dtype=torch.int64)
    ends = torch.stack([ordered[0], ordered[-1], queries[0], queries[-1]])  # infinities, and NaN behind them
    finite, first, second = torch.stack([torch.isfinite(ends).all().long(), below, not_above]).tolist()
    if not finite:
        read_columns(scores, labels)
    twice, pairs = first + second, n_positive * n_negative
    return (2 * pairs - twice if swap else twice) / (2 * pairs)


def _weighted_on_device(
    positives: Tensor, negatives: Tensor, of_positives: Tensor, of_negatives: Tensor, where: str
) -> float:
    ordered, order = negatives.sort()
    of_positives, of_negatives = (scale_free(of_class.double()) for of_class in (of_positives, of_negatives))
    up_to = torch.nn.functional.pad(of_negatives[order].cumsum(0), (1, 0))
    below = up_to[torch.searchsorted(ordered, positives)]
    not_above = up_to[torch.searchsorted(ordered, positives, right=True)]
    right, total = (of_positives @ (below + not_above)).item() / 2, (of_positives.sum() * up_to[-1]).item()
    if total == 0:
        raise ValueError(f"AUROC needs weight on both classes{where}; one class has weights of 0 only.")
    return right / total
