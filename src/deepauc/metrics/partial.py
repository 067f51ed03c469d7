"""The part of the area under the ROC curve where a screening or a triage would work."""

from __future__ import annotations

import numpy as np

from deepauc.metrics.basis.columns import ArrayLike, FloatOrArray, Floats, read_columns
from deepauc.metrics.curves import roc_of


def partial_auroc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    standardise: bool = False,
    weights: ArrayLike | None = None,
) -> FloatOrArray:
    """The area between the ROC curve and the line TPR = `min_tpr`, over false positive rates up to `max_fpr`.

    A = ∫_0^max_fpr max(TPR(f) - min_tpr, 0) df: one-way with one of the limits, two-way with both; ties are straight
    pieces of the curve. It spans [0, max_fpr (1 - min_tpr)]. `standardise` gives McClish's (1989) form
    (1 + (A - A_chance) / (A_max - A_chance)) / 2, which is 1/2 for a coin and 1 for a perfect ranking (scikit-learn's
    `roc_auc_score(max_fpr=...)`). (N,) gives a float, (N, L) an array (L,).

    Examples:
        >>> scores, labels = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
        >>> partial_auroc(scores, labels, max_fpr=0.5)
        0.25
        >>> partial_auroc(scores, labels, max_fpr=0.5, standardise=True)
        0.6666666666666666
    """
    if not 0 < max_fpr <= 1:
        raise ValueError(f"max_fpr is {max_fpr}; it must lie in (0, 1].")
    if not 0 <= min_tpr < 1:
        raise ValueError(f"min_tpr is {min_tpr}; it must lie in [0, 1).")
    columns = read_columns(scores, labels, weights=weights)
    values = []
    for column in columns:
        curve = roc_of(column)
        area = _area(curve.fpr, curve.tpr, max_fpr, min_tpr)
        if standardise:
            diagonal = np.array([0.0, 1.0])
            chance, most = _area(diagonal, diagonal, max_fpr, min_tpr), max_fpr * (1 - min_tpr)
            area = (1 + (area - chance) / (most - chance)) / 2
        values.append(area)
    return columns.collect(values)


def _area(fpr: Floats, tpr: Floats, max_fpr: float, min_tpr: float) -> float:
    """The sum over straight pieces, each cut at f = max_fpr and where it passes min_tpr."""
    left, right = fpr[:-1], np.minimum(fpr[1:], max_fpr)
    low, rise = tpr[:-1] - min_tpr, np.diff(tpr)
    run = np.diff(fpr)
    inside = (run > 0) & (left < max_fpr)
    left, right, low, rise, run = (a[inside] for a in (left, right, low, rise, run))
    end = low + rise * (right - left) / run
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where((low < 0) & (end > 0), -low / (end - low), 0.0)  # share of the piece that lies below
    return float(((right - left) * (1 - crossing) * (np.maximum(low, 0) + np.maximum(end, 0)) / 2).sum())
