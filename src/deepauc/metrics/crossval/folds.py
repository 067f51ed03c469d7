"""The AUROC of cross-validation: each fold judged by itself, then the mean over folds, with intervals.

Every fold has a network of its own, and scores of different networks have no common scale. A pair of rows is therefore
only ever compared within its fold. With m_f positives and n_f negatives in fold f, P = Σ_f m_f n_f, and A_f the AUROC
within the fold, the figure is the pair-weighted mean

    A = Σ_f (m_f n_f / P) A_f,

the share of all within-fold pairs in the right order. A fold that lacks a class has no pair and does not count. The
figure judges the single networks of the folds, not their average, and it holds for these folds.

Its variance is DeLong's with the placements centred on A over all folds, so that a fold with a single positive is no
obstacle; with groups (patients) it is Obuchowski's clustered one. Limits are A ± t·se on the logit scale, with
t's degrees of freedom one less than the rows (patients) of the rarer class. This rule was chosen by measurement
(`results/fold-intervals.md`, by `benchmarks/fold_intervals.py`): over 54 simulated cases with 15 to 200 positives the
lowest coverage of its 95 % intervals is .913, against .869 with each fold's own DeLong variance, which has no answer
for a fold with a single positive, .831 without the logit, and .771 with a bootstrap within folds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.columns import ArrayLike, Column, Columns, FloatOrArray, Floats, read_columns, to_numpy
from deepauc.metrics.basis.delong import Placements, independent_pairs, placements, variance
from deepauc.metrics.basis.pair_counts import twice_concordant
from deepauc.metrics.comparison import Comparison
from deepauc.metrics.intervals import Estimate, limits_without_variance, logit_limits, require_interval_options

Codes = npt.NDArray[np.intp]


@dataclass(frozen=True)
class FoldEstimate(Estimate[FloatOrArray]):
    """The mean AUROC over folds with its limits and its standard error; arrays (L,) for (N, L) inputs."""

    standard_error: FloatOrArray


@dataclass(frozen=True)
class FoldComparison(Comparison):
    """A(a) - A(b) over the same folds, with its paired standard error."""

    standard_error: FloatOrArray


def labels_with_pairs(labels: ArrayLike, folds: ArrayLike) -> npt.NDArray[np.bool_]:
    """(L,), or (1,) for (N,): whether some fold holds a positive and a negative of the label, as an AUROC needs."""
    columns = to_numpy(labels, "labels").reshape(len(to_numpy(labels)), -1)
    array = to_numpy(folds, "folds")
    parts = [columns[array == fold] for fold in np.unique(array)]
    return np.any([(part == 1).any(axis=0) & (part == 0).any(axis=0) for part in parts], axis=0)


def fold_auroc(scores: ArrayLike, labels: ArrayLike, folds: ArrayLike) -> FloatOrArray:
    """The pair-weighted mean of the AUROCs within the folds; a float, or an array (L,).

    No fold with both classes: ValueError.

    Args:
        scores: (N,) or (N, L); they are compared within a fold only.
        labels: The same shape: 0/1, NaN where missing.
        folds: (N,) the fold of each row, by any names.

    >>> fold_auroc([0.9, 0.1, 7.0, 8.0], [1, 0, 1, 0], ["a", "a", "b", "b"])
    0.5
    """
    columns = read_columns(scores, labels)
    codes = fold_codes(folds, columns)
    return columns.collect([_read([column], codes[rows], rows).value for column, rows in _with_rows(columns)])


def fold_auroc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    folds: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    average: bool = False,
) -> FoldEstimate:
    """`fold_auroc` with its interval, clustered by patient where `groups` (N,) names them.

    A perfect ranking gets the exact limit of `auroc_interval`, over the pairs of all folds that share no row (patient).
    Where a class has a single row (patient) nothing can be said: the limits are 0 and 1, the standard error infinite.

    Args:
        average: One figure for all labels, their mean; what a patient adds to several labels is then counted together.
    """
    require_interval_options(level)
    columns = read_columns(scores, labels, groups=groups)
    codes = fold_codes(folds, columns)
    read = [_read([column], codes[rows], rows) for column, rows in _with_rows(columns)]
    if average:
        se, units, pairs = _of_mean(read, columns), min(one.units for one in read), min(one.pairs for one in read)
        value = float(np.mean([one.value for one in read]))
        return FoldEstimate(value, *_limits(value, se, units, pairs, level), se)
    found = []
    for one in read:
        se = one.standard_error
        found.append((one.value, *_limits(one.value, se, one.units, one.pairs, level), se))
    return FoldEstimate(*(columns.collect(values) for values in zip(*found, strict=True)))


def compare_fold_auroc(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    labels: ArrayLike,
    folds: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    average: bool = False,
) -> FoldComparison:
    """The paired difference of two candidates' `fold_auroc` on the same rows and folds: difference ± t·se.

    Two candidates that rank all pairs alike differ by 0 with certainty. Options as in `compare_auroc` and
    `fold_auroc_interval`.
    """
    require_interval_options(level)
    columns = read_columns(scores_a, labels, groups=groups)
    others = read_columns(scores_b, labels, groups=groups)
    codes = fold_codes(folds, columns)
    read = [
        _read([a, b], codes[rows], rows, contrast=(1.0, -1.0))
        for (a, rows), (b, _) in zip(_with_rows(columns), _with_rows(others), strict=True)
    ]
    found = []
    for ones in [read] if average else [[one] for one in read]:
        difference = float(np.mean([one.value for one in ones]))
        se, units = (_of_mean(ones, columns) if average else ones[0].standard_error), min(one.units for one in ones)
        low, high = -1.0, 1.0
        if se == 0 and difference != 0:  # a perfect ranking against a constant one: the exact limits of both
            pairs = min(one.pairs for one in ones)
            (low_a, high_a), (low_b, high_b) = (
                limits_without_variance(float(np.mean([one.aucs[k] for one in ones])), pairs, level) for k in (0, 1)
            )
            low, high = low_a - high_b, high_a - low_b
        elif not math.isinf(se):
            half = _t_quantile(level, units) * se
            low, high = max(difference - half, low), min(difference + half, high)
        found.append((difference, low, high, _p_value(difference, se, units), se))
    if average:
        return FoldComparison(*found[0])
    return FoldComparison(*(columns.collect(values) for values in zip(*found, strict=True)))


@dataclass(frozen=True)
class _Read:
    """One label over its folds."""

    value: float  # the figure, or the difference of two
    aucs: Floats  # (K,) of the candidates
    placed: Placements  # whose mean is the value and whose `variance` is its variance
    rows: tuple[Codes, Codes]  # of positives and negatives, among all N
    units: int  # rows (patients) of the rarer class
    pairs: int  # that share no row (patient)
    where: str

    @property
    def standard_error(self) -> float:
        return math.sqrt(variance(self.placed, self.where)) if self.units > 1 else math.inf


def _read(candidates: list[Column], codes: Codes, rows: Codes, *, contrast: tuple[float, ...] = (1.0,)) -> _Read:
    """Placements of all folds as those of one sample: centred on the mean A and scaled by the fold's share of pairs.

    v10'_i = A + M (n_f / P) (v10_i - A) for the M positives of all folds that count, v01' likewise. Their mean is A,
    and `variance` of them is M/(M - 1) Σ_f (n_f/P)² Σ_i (v10_i - A)² + the same for the negatives.
    """
    first = candidates[0]
    parts = [list(fold_parts(column, codes)) for column in candidates]
    if not parts[0]:
        raise ValueError(
            f"no fold holds a positive and a negative{first.where}, so there is no pair to compare: use fewer folds."
        )
    fold_of = np.isin(codes, [fold for fold, _ in parts[0]])
    counted = [np.flatnonzero(fold_of & of_class) for of_class in (first.positive, ~first.positive)]
    m, n = (np.bincount(codes[of], minlength=int(codes.max()) + 1) for of in counted)
    total = int(m @ n)
    right = [sum(twice_concordant(part.scores, part.positive) for _, part in of) for of in parts]
    mean = np.array([twice / (2 * total) for twice in right])[:, None]  # of integers: a perfect ranking is 1 exactly
    v10, v01 = np.empty((len(candidates), counted[0].size)), np.empty((len(candidates), counted[1].size))
    for k, of_candidate in enumerate(parts):
        for fold, part in of_candidate:
            placed = placements([part], "AUROC")
            v10[k, codes[counted[0]] == fold], v01[k, codes[counted[1]] == fold] = placed.v10[0], placed.v01[0]
    to_positives, to_negatives = n[codes[counted[0]]] / total, m[codes[counted[1]]] / total
    groups: tuple[Codes | None, Codes | None] = (None, None)
    if first.groups is not None:
        both = np.unique(first.groups[fold_of], return_inverse=True)[1]
        positive = first.positive[fold_of]
        groups = (both[positive], both[~positive])
    scaled = Placements(
        mean + counted[0].size * to_positives * (v10 - mean),
        mean + counted[1].size * to_negatives * (v01 - mean),
        *groups,
    )
    units = [len(of) if g is None else np.unique(g).size for of, g in zip(counted, groups, strict=True)]
    return _Read(
        value=float(np.dot(contrast, mean[:, 0])),
        aucs=mean[:, 0],
        placed=scaled.contrast(contrast),
        rows=(rows[counted[0]], rows[counted[1]]),
        units=min(units),
        pairs=sum(independent_pairs(part) for _, part in parts[0]),
        where=first.where,
    )


def fold_parts(column: Column, codes: Codes) -> Iterator[tuple[int, Column]]:
    """The folds that hold both classes, each as a column of its own."""
    for fold in np.unique(codes):
        rows = codes == fold
        part = Column(
            scores=column.scores[rows],
            positive=column.positive[rows],
            weights=None,
            groups=None if column.groups is None else np.unique(column.groups[rows], return_inverse=True)[1],
            where=column.where,
        )
        if part.positives and part.negatives:
            yield int(fold), part


def _of_mean(read: Sequence[_Read], columns: Columns) -> float:
    """The standard error of the mean over labels: their own ones, correlated by what each row (patient) adds."""
    each = np.array([one.standard_error for one in read])
    if len(each) == 1 or np.isinf(each).any():
        return float(each.max())
    added = np.zeros((len(read), len(columns.scores)))
    for of_label, one in zip(added, read, strict=True):
        for rows, values in zip(one.rows, (one.placed.v10[0], one.placed.v01[0]), strict=True):
            of_label[rows] = (values - one.value) / rows.size
    if columns.groups is not None:
        added = np.array([np.bincount(columns.groups, of_label) for of_label in added])
    size = np.sqrt((added**2).sum(axis=1, keepdims=True))
    unit = added / np.where(size > 0, size, 1.0)
    return math.sqrt(max(float(each @ (unit @ unit.T) @ each), 0.0)) / len(read)


def _limits(value: float, se: float, units: int, pairs: int, level: float) -> tuple[float, float]:
    if math.isinf(se):
        return 0.0, 1.0
    if se == 0 or value in (0.0, 1.0):
        return limits_without_variance(value, pairs, level)
    return logit_limits(value, se, _t_quantile(level, units))


def _t_quantile(level: float, units: int) -> float:
    from scipy import stats

    return float(stats.t.ppf((1 + level) / 2, units - 1))


def _p_value(difference: float, se: float, units: int) -> float:
    """Of the paired t; 1 where nothing is known of the variance or the two do not differ."""
    from scipy import stats

    if difference == 0 or math.isinf(se):
        return 1.0
    return 0.0 if se == 0 else float(2 * stats.t.sf(abs(difference) / se, units - 1))


def _with_rows(columns: Columns) -> Iterator[tuple[Column, Codes]]:
    """Each label's column beside the row numbers it was taken from: rows without that label are not in it."""
    labels = columns.labels.reshape(len(columns.labels), -1)
    for j, column in enumerate(columns):
        yield column, np.arange(len(labels)) if columns.complete else np.flatnonzero(~np.isnan(labels[:, j]))


def fold_codes(folds: ArrayLike, columns: Columns) -> Codes:
    """Folds of any type (N,), numbered in the order of their names; a patient in two of them is refused."""
    array, rows = to_numpy(folds, "folds"), len(columns.scores)
    if array.shape != (rows,) or rows == 0:
        raise ValueError(f"folds have shape {array.shape}; they must be ({rows},): one fold for each row.")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"folds are missing in {int(np.isnan(array).sum())} rows; leave these rows out.")
    codes = np.unique(array, return_inverse=True)[1]
    if columns.groups is not None:
        highest, lowest = np.zeros(rows, dtype=np.intp), np.full(rows, codes.max())
        np.maximum.at(highest, columns.groups, codes)
        np.minimum.at(lowest, columns.groups, codes)
        if count := int((highest > lowest).sum()):
            who = "1 group (patient) is" if count == 1 else f"{count} groups (patients) are"
            raise ValueError(f"{who} in more than one fold; keep each in one, or the folds leak into each other.")
    return codes
