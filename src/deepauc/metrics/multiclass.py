"""The AUROC for more than two classes: each against the rest, or the classes in pairs."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from deepauc.metrics.auroc import auroc_of
from deepauc.metrics.basis.columns import ArrayLike, Column, Floats, to_numpy

Average = Literal["ovr", "ovo"]


def multiclass_auroc(
    scores: ArrayLike, labels: ArrayLike, *, average: Average = "ovr", weights: ArrayLike | None = None
) -> float:
    """One number for more than two classes.

    `ovr`: the mean over classes k of the AUROC of column k, class k against all others (Provost & Domingos, 2000).
    `ovo`: Hand & Till's (2001) M = 1/(C(C - 1)) sum over i != j of A(i|j), `pairwise_auroc`; it does not change with
    the shares of the classes. Both are scikit-learn's macro averages, ties counting one half. For two classes both are
    the mean of the two columns' AUROC.

    Args:
        scores: (N, C) of C classes; they need not be probabilities.
        labels: (N,), class numbers 0 .. C - 1, NaN where missing.
        average: "ovr" or "ovo".
        weights: (N,), not negative.

    Examples:
        >>> scores = [[0.8, 0.1, 0.1], [0.3, 0.5, 0.2], [0.2, 0.2, 0.6], [0.4, 0.5, 0.1]]
        >>> round(multiclass_auroc(scores, [0, 1, 2, 0]), 4)
        0.9444
    """
    if average not in get_args(Average):
        raise ValueError(f"average must be 'ovr' or 'ovo', not {average!r}.")
    if average == "ovo":
        pairs = pairwise_auroc(scores, labels, weights=weights)
        return float(np.nanmean(pairs))
    table, classes, mass = _checked(scores, labels, weights)
    return float(
        np.mean([_column_auroc(table[:, k], classes == k, mass, f" of class {k}") for k in range(table.shape[1])])
    )


def pairwise_auroc(scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> Floats:
    """A(i|j) at [i, j], (C, C): the share of (row of class i, row of class j) that column i ranks so; NaN at i = j.

    Arguments as in `multiclass_auroc`. Low entries name the classes that are taken for one another.
    """
    table, classes, mass = _checked(scores, labels, weights)
    count = table.shape[1]
    result = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(count):
            if i != j:
                rows = (classes == i) | (classes == j)
                part = None if mass is None else mass[rows]
                result[i, j] = _column_auroc(table[rows, i], classes[rows] == i, part, f" of class {i} against {j}")
    return result


def _column_auroc(
    scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_], weights: Floats | None, where: str
) -> float:
    column = Column(np.ascontiguousarray(scores), positive, weights, None, where)
    return auroc_of(column)


def _checked(
    scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats | None]:
    """Scores (n, C), class numbers (n,) and weights (n,) of the labelled rows."""
    table, classes = to_numpy(scores), to_numpy(labels)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(f"scores have shape {table.shape}; they must be (N, C), one column per class, C at least 2.")
    if classes.shape != table.shape[:1]:
        remedy = " A one-hot table becomes class numbers with labels.argmax(1)." if classes.ndim == 2 else ""
        raise ValueError(
            f"labels have shape {classes.shape}; they must be ({len(table)},), one class number per row.{remedy}"
        )
    if table.dtype.kind not in "fiu" or classes.dtype.kind not in "fiub":
        raise ValueError(
            f"scores must be real numbers and labels class numbers, not {table.dtype} and {classes.dtype}: "
            "np.unique(labels, return_inverse=True)[1] numbers the names of classes."
        )
    mass = None if weights is None else to_numpy(weights).astype(np.float64)
    if mass is not None:
        if mass.shape != classes.shape:
            raise ValueError(f"weights have shape {mass.shape}; they must be {classes.shape}, one per row.")
        if not (np.isfinite(mass).all() and (mass >= 0).all()):
            raise ValueError("weights must be finite and not negative.")
    if classes.dtype.kind == "f" and (missing := np.isnan(classes)).any():
        table, classes = table[~missing], classes[~missing]
        mass = None if mass is None else mass[~missing]
    if not np.isfinite(table).all():
        raise ValueError("scores hold NaN or infinity. Drop those rows, or find out why the model gave no score.")
    bad = np.setdiff1d(classes, np.arange(table.shape[1]))
    if bad.size:
        shown = ", ".join(f"{value:g}" for value in bad[:5].astype(float))
        raise ValueError(
            f"labels must be class numbers 0 to {table.shape[1] - 1}, one per column of the scores (NaN where "
            f"missing), but hold {shown}."
        )
    return table, classes, mass
