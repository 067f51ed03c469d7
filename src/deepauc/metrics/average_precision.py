"""Average precision: the area under the precision-recall steps."""

from __future__ import annotations

import numpy as np

from deepauc.metrics.columns import ArrayLike, FloatOrArray, read_columns
from deepauc.metrics.curves import cumulative


def average_precision(scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> FloatOrArray:
    """AP = Σ_k (R_k - R_{k-1}) P_k over descending distinct scores, tied samples taken together.

    Its chance level is the share of positives, not one half. (N,) gives a float, (N, L) an array (L,).
    """
    columns = read_columns(scores, labels, weights=weights)
    values = []
    for column in columns:
        column.require_both_classes("average precision")
        c = cumulative(column)
        recall = c.true_positives / c.true_positives[-1]
        precision = c.true_positives / (c.true_positives + c.false_positives)
        values.append(float(np.diff(recall, prepend=0.0) @ precision))
    return columns.collect(values)
