"""The same samples in two files of scores, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from deepauc.names import counted
from deepauc.training.run.scores import Scores, Strings


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairing:
    """Two score tables row by row, and how the rows found each other."""

    a: Scores
    b: Scores
    how: str


def pair_rows(a: Scores, b: Scores, *, common: bool = False) -> Pairing:
    """The same samples of two tables, in the order of `a`: joined on ids where both have them, else row by row.

    `common` keeps the samples that both have; without it a sample that only one of them has is an error. Labels must
    agree. Labels are matched by name (a single one whatever its name).
    """
    b = _same_labels(a, b)
    if a.ids is None or b.ids is None or (len(a) == len(b) and bool((a.ids == b.ids).all())):
        if len(a) != len(b):
            raise ValueError(
                f"{a.source} has {len(a)} rows and {b.source} has {len(b)}: give both an id column (--id-column), or "
                "the same rows in the same order."
            )
        how = "row by row: the ids are the same in the same order"
        if a.ids is None or b.ids is None:
            how = "row by row: without ids in both files the same order is assumed, and the labels agree"
        pairing = Pairing(a=a, b=b, how=how)
    else:
        pairing = _joined(a, b, a.ids, b.ids, common=common)
    _require_equal_labels(pairing)
    return pairing


def _joined(a: Scores, b: Scores, ids_a: Strings, ids_b: Strings, *, common: bool) -> Pairing:
    for table, ids in ((a, ids_a), (b, ids_b)):
        values, counts = np.unique(ids, return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"{table.source}: the id {str(values[counts > 1][0])[:60]!r} is in several rows, so rows cannot be "
                "joined on it. Name a unique column with --id-column, or choose one --part."
            )
    both, rows_a, rows_b = np.intersect1d(ids_a, ids_b, assume_unique=True, return_indices=True)
    lonely = len(a) + len(b) - 2 * len(both)
    if not len(both) or (lonely and not common):
        raise ValueError(
            f"ids in both files: {len(both):,}; only in {a.source}: {len(a) - len(both):,}; only in {b.source}: "
            f"{len(b) - len(both):,}. Compare the same samples, or keep the common ones with deepauc compare "
            "--common."
        )
    order = np.argsort(rows_a, kind="stable")
    kept = f" ({counted(lonely, 'row')} in one file only left out)" if lonely else ""
    return Pairing(a=a.rows(rows_a[order]), b=b.rows(rows_b[order]), how=f"joined on {counted(len(both), 'id')}{kept}")


def _same_labels(a: Scores, b: Scores) -> Scores:
    if len(a.label_names) == len(b.label_names) == 1 or a.label_names == b.label_names:
        return replace(b, label_names=a.label_names)
    if set(a.label_names) != set(b.label_names):
        raise ValueError(
            f"{a.source} has the labels {', '.join(a.label_names)}, {b.source} has {', '.join(b.label_names)}: "
            "choose the same ones with --label-column and --score-column."
        )
    order = [b.label_names.index(name) for name in a.label_names]
    return replace(b, label_names=a.label_names, labels=b.labels[:, order], scores=b.scores[:, order])


def _require_equal_labels(pairing: Pairing) -> None:
    a, b = pairing.a, pairing.b
    differ = ~((a.labels == b.labels) | (np.isnan(a.labels) & np.isnan(b.labels))).all(axis=1)
    if differ.any():
        first = int(np.flatnonzero(differ)[0])
        raise ValueError(
            f"the labels differ in {int(differ.sum())} of {len(a)} rows (first: line {a.lines[first]} of {a.source}, "
            f"line {b.lines[first]} of {b.source}): these are not the same samples. Give both files the same ids."
        )
