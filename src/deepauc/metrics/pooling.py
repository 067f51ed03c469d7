"""One score for each group (exam, patient, slide) from the scores of its rows, without training anew."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ScorePooling = Literal["max", "mean", "noisy-or"]


def pool_scores(scores: npt.ArrayLike, groups: npt.ArrayLike, how: ScorePooling) -> tuple[npt.NDArray[Any], Floats]:
    """One score per group of rows: the groups in order, (G,), and their scores, (G,) or (G, L).

    Args:
        scores: (N,) or (N, L).
        groups: (N,) the patient, exam or slide of each row.
        how: "max": the highest score of the group's rows. "mean": their mean. "noisy-or": 1 - Π_i (1 - p_i), the
            probability that at least one row is positive if rows are independent; scores must then be probabilities.
    """
    values, names = np.asarray(scores, dtype=np.float64), np.asarray(groups)
    if names.ndim != 1 or values.ndim not in (1, 2) or len(values) != len(names) or not len(names):
        raise ValueError(f"{values.shape} scores and {names.shape} groups: each row needs one group.")
    if how not in get_args(ScorePooling):
        raise ValueError(f"scores are pooled by {', '.join(get_args(ScorePooling))}, not {how!r}.")
    found, number_of = np.unique(names, return_inverse=True)
    columns = values.reshape(len(values), -1)
    if how == "max":
        pooled = np.full((len(found), columns.shape[1]), -np.inf)
        np.maximum.at(pooled, number_of, columns)
    elif how == "mean":
        pooled = _sums(columns, number_of) / np.bincount(number_of)[:, None]
    else:
        known = columns[~np.isnan(columns)]
        if ((known < 0) | (known > 1)).any():
            raise ValueError(
                "noisy-or takes probabilities, and these scores leave [0, 1]: pool a column of probabilities "
                "(deepauc predict --probability writes one), or pool by max or mean."
            )
        with np.errstate(divide="ignore"):  # log(1 - 1)
            pooled = -np.expm1(_sums(np.log1p(-columns), number_of))
    return found, pooled[:, 0] if values.ndim == 1 else pooled


def _sums(columns: Floats, number_of: npt.NDArray[np.int64]) -> Floats:
    return np.stack([np.bincount(number_of, column) for column in columns.T], axis=1)
