"""Bootstrap replicates: sort once, then resample counts instead of scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.columns import Column, Floats

Indices = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int64]

CHUNK = 1 << 17  # numbers drawn at a time: they stay in the cache, and memory stays bounded
DRAWS_PER_CELL = 24  # one cell of a multinomial costs as much as this many single draws


def resampled_auroc(column: Column, *, n_resamples: int, rng: np.random.Generator) -> Floats:
    """AUROC of `n_resamples` bootstrap samples, (n_resamples,).

    Without groups each class is resampled on its own, so the class counts stay. With groups whole patients are drawn
    with replacement; the few samples in which a class is missing are drawn again.
    """
    if column.groups is not None:
        return _of_patients(column, column.groups, n_resamples, rng)
    return _of_samples(column, n_resamples, rng)


def _of_samples(column: Column, n_resamples: int, rng: np.random.Generator) -> Floats:
    ranks = np.unique(column.scores, return_inverse=True)[1]
    few, many = ranks[column.positive], ranks[~column.positive]
    if few.size > many.size:  # AUC(x, y) = AUC(-y, -x): the smaller class takes the positives' part
        few, many = -many, -few
    values, value_of = np.unique(np.sort(few), return_inverse=True)  # in order, so that memory is read in order below
    # Cell 2i lies below the i-th distinct value of `few` (above the one before it), cell 2i + 1 on it.
    cells = np.sort(np.searchsorted(values, many, side="left") + np.searchsorted(values, many, side="right"))
    occupied, sizes = np.unique(cells, return_counts=True)
    by_cell = occupied.size * DRAWS_PER_CELL < many.size
    units = occupied if by_cell else cells  # what is counted: cells of `many`, or its samples one by one
    below = np.searchsorted(units, 2 * value_of, side="right")  # units below each sample of `few`
    not_above = np.searchsorted(units, 2 * value_of + 1, side="right")
    tied = np.flatnonzero(below != not_above)

    replicates = np.empty(n_resamples)
    rows_at_once = max(1, CHUNK // max(units.size, few.size))
    for start in range(0, n_resamples, rows_at_once):
        rows = min(rows_at_once, n_resamples - start)
        counts = rng.multinomial(many.size, sizes / many.size, size=rows) if by_cell else _counts(rng, rows, many.size)
        up_to = _running_totals(counts)
        twice_below = 2 * up_to.take(below, axis=1)
        if tied.size:
            twice_below[:, tied] += up_to.take(not_above[tied], axis=1) - up_to.take(below[tied], axis=1)
        drawn = rng.integers(0, few.size, size=(rows, few.size))
        if rows > 1:
            drawn += few.size * np.arange(rows)[:, None]
        replicates[start : start + rows] = twice_below.ravel().take(drawn).sum(axis=1)
    return replicates / (2.0 * few.size * many.size)


def _of_patients(column: Column, groups: Indices, n_resamples: int, rng: np.random.Generator) -> Floats:
    patients = int(groups.max()) + 1
    order = np.argsort(column.scores, kind="stable")
    positive = column.positive[order]
    scores, groups = column.scores[order], groups[order]
    negatives = scores[~positive]
    below = np.searchsorted(negatives, scores[positive], side="left")
    not_above = np.searchsorted(negatives, scores[positive], side="right")
    of_positives, of_negatives = groups[positive], groups[~positive]

    replicates = np.empty(n_resamples)
    rows_at_once = max(1, CHUNK // max(scores.size, patients))
    done = 0
    while done < n_resamples:
        counts = _counts(rng, min(rows_at_once, n_resamples - done), patients)
        weights = counts.take(of_positives, axis=1)
        up_to = _running_totals(counts.take(of_negatives, axis=1))
        pairs = weights.sum(axis=1) * up_to[:, -1]
        both = pairs > 0
        twice = (weights * (up_to.take(below, axis=1) + up_to.take(not_above, axis=1))).sum(axis=1)
        found = twice[both] / (2.0 * pairs[both])
        replicates[done : done + found.size] = found
        done += found.size
    return replicates


def _counts(rng: np.random.Generator, rows: int, n: int, draw_as: type[np.integer[Any]] = np.int64) -> Counts:
    """How often each of n things is drawn in n draws with replacement, (rows, n); int32 is drawn twice as fast."""
    drawn: npt.NDArray[np.integer[Any]] = rng.integers(0, n, size=(rows, n), dtype=draw_as)
    if rows > 1:
        drawn += n * np.arange(rows, dtype=draw_as)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


def _running_totals(counts: Counts) -> Counts:
    """Cumulative sums along each row with a leading 0."""
    totals = np.zeros((counts.shape[0], counts.shape[1] + 1), dtype=np.int64)
    np.cumsum(counts, axis=1, out=totals[:, 1:])
    return totals


def resampled_weights(column: Column, *, n_resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """How often each row occurs in a bootstrap sample drawn as in `resampled_auroc`: one (n,) array a sample."""
    positive = np.flatnonzero(column.positive)
    negative = np.flatnonzero(~column.positive)
    done = 0
    while done < n_resamples:
        if column.groups is None:
            weights = np.empty(column.positive.size)
            weights[positive] = _counts(rng, 1, positive.size)[0]
            weights[negative] = _counts(rng, 1, negative.size)[0]
        else:
            weights = _counts(rng, 1, int(column.groups.max()) + 1)[0][column.groups].astype(np.float64)
            if not (weights[positive].any() and weights[negative].any()):
                continue
        done += 1
        yield weights


def require_resamplable(column: Column, what: str, *, stratified: bool) -> None:
    """Raise ValueError unless each class has two rows (two patients, with groups) to draw from."""
    column.require_both_classes(what)
    have, of = (column.positives, column.negatives), "positives and two negatives"
    if column.groups is not None:
        if stratified:
            raise ValueError(
                "stratified=True draws rows within each class, groups draw whole groups: leave one of the two out."
            )
        of = "groups (patients) with a positive and two with a negative"
        positive = column.positive
        have = (np.unique(column.groups[positive]).size, np.unique(column.groups[~positive]).size)
    if min(have) < 2:
        raise ValueError(f"{what} needs at least two {of}{column.where}; there are {have[0]} and {have[1]}.")


def canonical_order(column: Column) -> Indices:
    """Rows by rising score, then class, then patient: what is drawn does not change with the order they came in."""
    keys = [column.positive, column.scores]
    return np.lexsort(keys if column.groups is None else [column.groups, *keys])


def resampled_counts(
    column: Column, *, stratified: bool, n_resamples: int, rng: np.random.Generator
) -> Iterator[Counts]:
    """How often each row, in `canonical_order`, occurs in bootstrap samples: blocks (b, n) of `n_resamples` in all.

    Rows are drawn with replacement from all rows (`stratified`: within each class, whose counts then stay; with groups:
    whole patients). Samples in which a class is missing are drawn again.
    """
    order = canonical_order(column)
    positive = column.positive[order]
    positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
    groups = None if column.groups is None else column.groups[order]
    units = order.size if groups is None else int(groups.max()) + 1
    rows_at_once = max(1, CHUNK // order.size)
    done = 0
    while done < n_resamples:
        rows = min(rows_at_once, n_resamples - done)
        if stratified:
            counts = np.empty((rows, order.size), dtype=np.int64)
            for members in (positives, negatives):
                counts[:, members] = _counts(rng, rows, members.size, np.int32)
        else:
            counts = _counts(rng, rows, units, np.int32)
            if groups is not None:
                counts = counts.take(groups, axis=1)
            of_positives = counts.take(positives, axis=1).sum(axis=1)
            both = (of_positives > 0) & (of_positives < counts.sum(axis=1))
            counts = counts if both.all() else counts[both]
        done += len(counts)
        yield counts
