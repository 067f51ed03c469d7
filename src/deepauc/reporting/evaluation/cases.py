"""The rows that a run is most wrong about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepauc.reporting.evaluation.findings import Case
from deepauc.training.run.scores import Floats, Scores


def find_cases(table: Scores, count: int, *, within_folds: bool = False) -> tuple[Case, ...]:
    """The highest-scored negatives and lowest-scored positives of each label, `count` of each.

    within_folds: those that are ranked above most positives (below most negatives) of their own fold, since scores of
    different networks are not compared.
    """
    found = []
    for number, label in enumerate(table.label_names):
        scores, labels = table.scores[:, number], table.labels[:, number]
        if not (count and np.isfinite(scores).all() and {0.0, 1.0} <= set(labels.tolist())):
            continue
        folds = table.folds if within_folds else None
        for value, kind, sign in ((0, "negative with a high score", -1), (1, "positive with a low score", 1)):
            rows = np.flatnonzero(labels == value)
            shares = _wrong_sides(sign * scores, labels, rows, folds)
            keys = (sign * scores[rows],) if folds is None else (sign * scores[rows], -shares)
            for place in np.lexsort(keys)[:count]:
                row, share = rows[place], float(shares[place])
                shown = str(row) if table.ids is None else str(table.ids[row])
                fold = None if folds is None else str(folds[row])
                found.append(
                    Case(id=shown, label=label, kind=kind, score=float(scores[row]), wrong_side_of=share, fold=fold)
                )
    return tuple(found)


def _wrong_sides(
    signed: Floats, labels: Floats, rows: npt.NDArray[np.intp], folds: npt.NDArray[np.str_] | None
) -> Floats:
    """Of each row the share of the other class, of its fold where there are folds, that lies above it."""
    found = np.zeros(len(rows))
    for fold in [None] if folds is None else np.unique(folds[rows]).tolist():
        mine = np.ones(len(rows), dtype=bool) if folds is None else folds[rows] == fold
        other = labels == 1 - labels[rows[0]]
        others = np.sort(signed[other if folds is None else other & (folds == fold)])
        if others.size:
            found[mine] = 1 - np.searchsorted(others, signed[rows[mine]], side="right") / others.size
    return found
