"""Placements and the (clustered) DeLong covariance: what every analytic interval and test on AUROC rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.columns import Column, Floats

ROUNDING = 1e-15  # placements are multiples of 1/(2n): a smaller standard error is rounding, not spread


@dataclass(frozen=True)
class Placements:
    """How each sample of one class stands against the other class, for one or several score columns (K, ·).

    v10[k, i] is the share of negatives below positive i, v01[k, j] the share of positives above negative j, a tie
    counting one half; both average to the AUROC. Patients are numbers, or None where every sample is its own.
    """

    v10: Floats  # (K, m)
    v01: Floats  # (K, n)
    positive_groups: npt.NDArray[np.intp] | None  # (m,)
    negative_groups: npt.NDArray[np.intp] | None  # (n,)

    @property
    def auc(self) -> Floats:
        """The K areas, (K,)."""
        return self.v10.mean(axis=1)

    def contrast(self, c: npt.ArrayLike) -> Placements:
        """The placements of the linear combination c @ auc, as one column."""
        row = np.atleast_2d(np.asarray(c, dtype=np.float64))
        return Placements(row @ self.v10, row @ self.v01, self.positive_groups, self.negative_groups)


def placements(columns: list[Column], what: str) -> Placements:
    """Placements of several score columns over the same labelled rows, by sorting: O(K n log n)."""
    first = columns[0]
    first.require_both_classes(what)
    positive = first.positive
    v10, v01 = [], []
    for column in columns:
        of_positives, of_negatives = column.scores[positive], column.scores[~positive]
        v10.append(_share_below(of_negatives, of_positives))
        v01.append(1.0 - _share_below(of_positives, of_negatives))
    groups = first.groups
    return Placements(
        np.array(v10),
        np.array(v01),
        None if groups is None else groups[positive],
        None if groups is None else groups[~positive],
    )


def variance(placed: Placements, where: str = "") -> float:
    """The variance of one AUROC (or of one contrast of several).

    Without groups DeLong, DeLong & Clarke-Pearson (1988): S10/m + S01/n, the sample variances of the placements.
    With groups Obuchowski (1997), eq. 4: S10 and S01 over the patients' sums, plus 2 S11/(mn) for patients who hold
    both classes; with one sample a patient the two are equal.
    """
    theta = float(placed.auc[0])
    a, b = placed.v10[0] - theta, placed.v01[0] - theta
    m, n = a.size, b.size
    if placed.positive_groups is None or placed.negative_groups is None:
        if min(m, n) < 2:
            raise ValueError(
                f"an interval or test on AUROC needs at least two positives and two negatives{where}; there are "
                f"{m} and {n}."
            )
        total = float(a @ a / (m - 1) / m + b @ b / (n - 1) / n)
        return total if total > ROUNDING**2 else 0.0
    of_positives, of_negatives = patient_sums(placed)
    with_positives = np.unique(placed.positive_groups).size
    with_negatives = np.unique(placed.negative_groups).size
    if min(with_positives, with_negatives) < 2:
        raise ValueError(
            "an interval or test on AUROC needs at least two groups (patients) with a positive and two with a negative"
            f"{where}; there are {with_positives} and {with_negatives}."
        )
    patients = of_positives.size
    s10 = with_positives / (with_positives - 1) * (of_positives @ of_positives) / m
    s01 = with_negatives / (with_negatives - 1) * (of_negatives @ of_negatives) / n
    s11 = patients / (patients - 1) * (of_positives @ of_negatives)
    apart = float(s10 / m + s01 / n)
    together = apart + float(2 * s11 / (m * n))
    return together if together > ROUNDING * apart else 0.0  # patients may cancel their own two halves


def patient_sums(placed: Placements) -> tuple[Floats, Floats]:
    """Centred placements of the first column summed over each patient's positives and negatives, both (G,)."""
    assert placed.positive_groups is not None
    assert placed.negative_groups is not None
    theta = float(placed.auc[0])
    count = 1 + int(max(placed.positive_groups.max(), placed.negative_groups.max()))
    of_positives = np.bincount(placed.positive_groups, placed.v10[0] - theta, minlength=count)
    of_negatives = np.bincount(placed.negative_groups, placed.v01[0] - theta, minlength=count)
    return of_positives.astype(np.float64), of_negatives.astype(np.float64)


def influence(placed: Placements) -> Floats:
    """What one sample (one patient, with groups) adds to the first column's AUROC: sums to 0, (m + n,) or (G,)."""
    m, n = placed.v10.shape[1], placed.v01.shape[1]
    if placed.positive_groups is None:
        theta = float(placed.auc[0])
        return np.concatenate([(placed.v10[0] - theta) / m, (placed.v01[0] - theta) / n])
    of_positives, of_negatives = patient_sums(placed)
    return of_positives / m + of_negatives / n


def independent_pairs(column: Column) -> int:
    """The most (positive, negative) pairs that share no sample and, with groups, no patient."""
    if column.groups is None:
        return min(column.positives, column.negatives)
    has_positive = np.unique(column.groups[column.positive])
    has_negative = np.unique(column.groups[~column.positive])
    patients = np.union1d(has_positive, has_negative).size
    return min(has_positive.size, has_negative.size, patients // 2)


def _share_below(others: npt.NDArray[np.generic], values: npt.NDArray[np.generic]) -> Floats:
    """The share of `others` below each value, a tie counting one half."""
    ordered, order = np.sort(others), np.argsort(values)
    queries = values[order]  # ascending queries walk through `ordered` once, which the cache likes
    shares = np.empty(values.size)
    shares[order] = np.searchsorted(ordered, queries, side="left") + np.searchsorted(ordered, queries, side="right")
    return shares / (2.0 * ordered.size)
