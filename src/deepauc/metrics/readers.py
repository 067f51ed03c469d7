"""Human readers beside the model: whose operating point lies under its ROC curve?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.columns import ArrayLike, Floats, read_columns, to_numpy
from deepauc.metrics.curves import roc_of


@dataclass(frozen=True)
class ReadersBeaten:
    """For each label how many readers the model beats, and the mean over labels: NRBC in the paper's Table 3.

    A label that nobody has read is not in the mean, which is NaN where there is no other.
    """

    per_label: npt.NDArray[np.int64]  # (L,)
    readers: npt.NDArray[np.int64]  # (L,) how many there are
    mean: float


def readers_beaten(scores: ArrayLike, labels: ArrayLike, reader_fpr: ArrayLike, reader_tpr: ArrayLike) -> ReadersBeaten:
    """Count the readers whose point (FPR, TPR) lies strictly under the model's ROC curve, straight between its points.

    Scores and labels as in `auroc`.

    Args:
        reader_fpr: (R,) for (N,) scores, (R, L) for (N, L); NaN where a reader did not read a label.
        reader_tpr: Of the same shape.

    Examples:
        >>> beaten = readers_beaten([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], reader_fpr=[0.5, 0.0], reader_tpr=[0.5, 1.0])
        >>> beaten.mean
        1.0
    """
    columns = read_columns(scores, labels)
    fpr, tpr = (_reader_rates(rates, columns.count) for rates in (reader_fpr, reader_tpr))
    if fpr.shape != tpr.shape:
        raise ValueError(f"reader_fpr has shape {fpr.shape} but reader_tpr has shape {tpr.shape}; give both the same.")
    beaten, readers = [], []
    for j, column in enumerate(columns):
        present = ~(np.isnan(fpr[:, j]) | np.isnan(tpr[:, j]))
        height = roc_of(column).tpr_at(fpr[present, j])
        beaten.append(np.count_nonzero(tpr[present, j] < height))
        readers.append(np.count_nonzero(present))
    read = [count for count, there in zip(beaten, readers, strict=True) if there]
    return ReadersBeaten(np.array(beaten), np.array(readers), float(np.mean(read)) if read else math.nan)


def _reader_rates(rates: ArrayLike, labels_count: int) -> Floats:
    array = to_numpy(rates).astype(np.float64)
    if array.ndim == 1 and labels_count == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != labels_count:
        raise ValueError(f"reader rates have shape {array.shape}; they must be (R,), or (R, {labels_count}) by label.")
    if ((array < 0) | (array > 1)).any():
        raise ValueError("reader rates must lie in [0, 1] (NaN where a reader did not read).")
    return array
