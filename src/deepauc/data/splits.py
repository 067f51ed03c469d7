"""Splits that keep a patient in one part and the share of positives alike in all, and a search for leaks.

Labels decide the strata: 0 and 1 of a binary task; for several labels, the rarest label a row is positive for.
Unlabelled rows and outside data are never held out: they stay in train, except where their patient is held out.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepauc.data.counter import fixed_permutation
from deepauc.data.task import PART_NAMES, Array, Indices, Inputs, Task

Progress = Callable[[int, int], None]  # (done, total)


def k_fold(task: Task, *, folds: int = 5, seed: int = 0, outside: npt.ArrayLike = ()) -> tuple[Task, ...]:
    """The training part split into folds: one Task for each, the fold as validation part and the rest as train.

    With groups no patient is in train and validation (scikit-learn's StratifiedGroupKFold). Other options as in
    `split_by_fractions`.

    Args:
        folds: How many.
    """
    pool, others = pool_rows(task, outside, taken=("validation",))
    number = fold_numbers(
        task.labels[pool], folds=folds, seed=seed, groups=None if task.groups is None else task.groups[pool]
    )
    return tuple(held_out_task(task, pool, others, {"validation": number == fold}) for fold in range(folds))


def split_by_fractions(
    task: Task, *, fractions: Mapping[str, float], seed: int = 0, outside: npt.ArrayLike = ()
) -> Task:
    """The training part split into parts of these fractions of the labelled rows, stratified and group-disjoint.

    Without groups every stratum is cut to the nearest integer; with groups whole patients are dealt out so that every
    stratum comes close to its fraction.

    Args:
        task: The task whose training part is split.
        fractions: Such as {"train": 0.7, "validation": 0.15, "test": 0.15}.
        seed: Of the split.
        outside: Rows of the training part that are only ever trained on, such as another clinic's images.
    """
    names = [name for name in PART_NAMES if name in fractions]
    if "train" not in names or len(names) != len(fractions) or len(names) < 2:
        raise ValueError(f"fractions must name train and at least one of validation and test, not {list(fractions)}.")
    shares = np.array([fractions[name] for name in names], dtype=np.float64)
    if not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"fractions must be positive and add up to 1, not {dict(fractions)}.")
    pool, others = pool_rows(task, outside, taken=names[1:])
    strata = _strata(task.labels[pool])
    if task.groups is None:
        number = _cut_rows(strata, shares, seed=seed)
    else:
        number = _deal_groups(strata, task.groups[pool], shares, seed=seed)
    if task.num_labels == 1:
        number = _both_classes_everywhere(
            number, strata, None if task.groups is None else task.groups[pool], len(names)
        )
    for index, name in enumerate(names):
        _require_both_classes(
            task.labels[pool[number == index]],
            f"the {name} part",
            "Label more rows of that class, or give the part a larger fraction (`[split]` of a settings file).",
        )
    return held_out_task(task, pool, others, {name: number == index for index, name in enumerate(names) if index})


def inseparable(groups: Array | None, digests: Array | None) -> Array | None:
    """(N,) what must not be torn apart: patients, joined with those they share an identical input with.

    digests: of the inputs, as `input_digests` gives them; None where no two are known to be identical.
    """
    if digests is None:
        return groups
    groups = np.arange(len(digests)).astype(str) if groups is None else groups
    names, codes = np.unique(groups, return_inverse=True)
    return np.asarray(names[joined(len(names), (codes[rows] for rows in equal_sets(digests)))[codes]])


def joined(count: int, sets: Iterable[Indices]) -> Indices:
    """(count,) for each of 0 to count - 1 the one that stands for all it is joined with, by a set or through others."""
    owner = np.arange(count)

    def root(one: int) -> int:
        while owner[one] != one:
            owner[one] = owner[owner[one]]
            one = int(owner[one])
        return one

    for first, *others in sets:
        for other in others:
            owner[root(other)] = root(first)
    return np.array([root(one) for one in range(count)], dtype=np.int64)


def trainable_rows(task: Task) -> Indices:
    """Rows of the training part that training may look at: all but unlabelled ones of a held-out patient.

    A table's own split may put an unlabelled image into train whose patient is in validation or test. What is learned
    from it without labels would still be learned from that patient.
    """
    rows = task.part("train")
    if task.groups is None:
        return rows
    held_out = [task.groups[task.parts[name]] for name in task.parts if name != "train"]
    if not held_out:
        return rows
    unlabelled = np.isin(rows, task.unlabelled("train"))
    return rows[~(unlabelled & np.isin(task.groups[rows], np.concatenate(held_out)))]


def fold_numbers(labels: Array, *, folds: int, seed: int, groups: Array | None = None) -> Indices:
    """For each labelled row, (N,) or (N, L), the fold (0 to folds - 1) that holds it out; (N,)."""
    strata = _strata(np.asarray(labels))
    if not 2 <= folds <= len(strata):
        raise ValueError(f"folds must lie between 2 and the {len(strata)} labelled rows, not {folds}.")
    if groups is None:
        number = np.empty(len(strata), dtype=np.int64)
        order = fixed_permutation(len(strata), seed=seed, stream="folds")
        # Strata one after the other, dealt like cards: each stratum, and the whole, differ by at most one row a fold.
        number[order[np.argsort(strata[order], kind="stable")]] = np.arange(len(strata)) % folds
    else:
        number = _group_fold_numbers(strata, np.asarray(groups), folds=folds, seed=seed)
    for fold in range(folds):
        _require_both_classes(labels[number == fold], f"fold {fold + 1} of {folds}", "Use fewer folds.")
    return number


def _group_fold_numbers(strata: Indices, groups: Array, *, folds: int, seed: int) -> Indices:
    from sklearn.model_selection import StratifiedGroupKFold

    names, codes = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        raise ValueError(f"{folds} folds need at least as many groups; there are {len(names)}. Use fewer folds.")
    # Our own shuffle: scikit-learn takes groups in the order of their codes.
    codes = fixed_permutation(len(names), seed=seed, stream="folds")[codes]
    number = np.empty(len(strata), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a rare label of many with fewer rows than folds
        splitter = StratifiedGroupKFold(n_splits=folds, shuffle=False)
        for fold, (_, held_out) in enumerate(splitter.split(strata, strata, codes)):
            number[held_out] = fold
    return number


def pool_rows(task: Task, outside: npt.ArrayLike, *, taken: Iterable[str]) -> tuple[Indices, Indices]:
    """Rows of the training part that may be held out, and those that may not."""
    for name in taken:
        if name in task.parts:
            raise ValueError(f"task {task.name!r} has a {name} part already: remove it from the parts to split again.")
    train = task.part("train")
    outside_rows = np.asarray(outside, dtype=np.int64).reshape(-1)
    if not np.isin(outside_rows, train).all():
        raise ValueError("outside: some of these rows are not in the training part.")
    labelled = task.labelled("train")
    pool = np.sort(labelled[~np.isin(labelled, outside_rows)])
    if not len(pool):
        raise ValueError("no row has a label, so none can be held out: label some rows.")
    return pool, np.sort(train[~np.isin(train, pool)])


def held_out_task(task: Task, pool: Indices, others: Indices, held: Mapping[str, npt.NDArray[np.bool_]]) -> Task:
    """These rows of the pool held out, the others trained on, save unlabelled ones of a patient who is held out."""
    out = np.logical_or.reduce(list(held.values()))
    if task.groups is not None:
        others = others[~np.isin(task.groups[others], task.groups[pool[out]])]
    train = np.sort(np.concatenate([pool[~out], others]))
    return task.with_parts({**task.parts, "train": train, **{name: pool[mask] for name, mask in held.items()}})


def _strata(labels: Array) -> Indices:
    """One number a row: 0 and 1 for binary labels; for (N, L), 0 without a positive label, else 1 + the rarest one."""
    positive = labels.reshape(len(labels), -1) > 0.5  # missing and uncertain labels count as not positive
    by_rarity = np.argsort(positive.sum(axis=0), kind="stable")
    first = positive[:, by_rarity].argmax(axis=1)
    return np.where(positive.any(axis=1), by_rarity[first] + 1, 0).astype(np.int64)


def has_both_classes(labels: Array) -> bool:
    """Whether some column of labels (N,) or (N, L) has a positive and a negative."""
    return bool(((labels > 0.5).any(axis=0) & (labels == 0).any(axis=0)).any())


def _require_both_classes(labels: Array, where: str, remedy: str) -> None:
    if not has_both_classes(labels):
        raise ValueError(
            f"{where} would hold {int((labels > 0.5).sum())} positive and {int((labels == 0).sum())} negative "
            f"labels, and AUC needs both. {remedy}"
        )


def _cut_rows(strata: Indices, shares: npt.NDArray[np.float64], *, seed: int) -> Indices:
    number = np.empty(len(strata), dtype=np.int64)
    order = fixed_permutation(len(strata), seed=seed, stream="fractions")
    carry = np.zeros(len(shares))
    for stratum in np.unique(strata):
        rows = order[strata[order] == stratum]
        target = len(rows) * shares + carry  # what rounding took from a part in one stratum it gets in the next
        counts = _round_to_total(target, len(rows))
        carry = target - counts
        number[rows] = np.repeat(np.arange(len(shares)), counts)
    return number


def _both_classes_everywhere(number: Indices, strata: Indices, groups: Array | None, parts: int) -> Indices:
    """A part without a class gets a row of it, or the smallest patient with one, from the part that has most of them.

    Of 3 positives 70 : 15 : 15 gives train two and one part none; without this such a table could not be trained on.
    """
    number = number.copy()
    missing = [(s, p) for s in np.unique(strata) for p in range(parts) if not ((strata == s) & (number == p)).any()]
    if not missing:
        return number
    units = np.arange(len(number)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(units)
    for stratum, part in missing:
        held = (np.unique(units[(strata == stratum) & (number == other)]) for other in range(parts))
        most = max(held, key=len)
        if len(most) > 1:
            number[units == most[np.argmin(sizes[most])]] = part
    return number


def _round_to_total(target: npt.NDArray[np.float64], total: int) -> Indices:
    """Integers next to `target` that add up to `total`: the largest remainders are rounded up."""
    counts = np.maximum(np.floor(target + 1e-9), 0).astype(np.int64)
    while counts.sum() < total:
        counts[np.argmax(target - counts)] += 1
    while counts.sum() > total:
        counts[np.argmin(np.where(counts > 0, target - counts, math.inf))] -= 1
    return counts


def _deal_groups(strata: Indices, groups: Array, shares: npt.NDArray[np.float64], *, seed: int) -> Indices:
    """Deal whole groups to parts, greedily: each to the part that it brings closest to its share of every stratum.

    With c[p, s] the share of stratum s that part p holds so far and f[p] its fraction, the sum over parts and strata
    of (c - f)² / f is kept small. Large groups come first, in random order among those of about one size.
    """
    names, codes = np.unique(groups, return_inverse=True)
    if len(names) < len(shares):
        raise ValueError(
            f"{len(shares)} parts need at least as many groups (patients), and the table has {len(names)}. "
            "Is it the right column?"
        )
    counts = np.zeros((len(names), int(strata.max()) + 1))
    np.add.at(counts, (codes, strata), 1.0)
    weights = counts / np.maximum(counts.sum(axis=0), 1.0)
    order = fixed_permutation(len(names), seed=seed, stream="fractions")
    size = np.frexp(weights.sum(axis=1))[1]  # the power of two below it
    order = order[np.argsort(-size[order], kind="stable")]
    held = np.zeros((len(shares), counts.shape[1]))
    part = np.empty(len(names), dtype=np.int64)
    for group in order:
        weight = weights[group]
        change = (weight * (weight + 2 * (held - shares[:, None]))).sum(axis=1) / shares
        part[group] = np.argmin(change)
        held[part[group]] += weight
    return part[codes]


LeakKind = Literal["patient", "image", "features"]


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A patient, or one and the same input, found in more than one part."""

    what: LeakKind
    name: str
    rows: Mapping[str, tuple[int, ...]]  # part -> row numbers

    def __str__(self) -> str:
        places = "; ".join(f"{part}: {', '.join(map(str, rows))}" for part, rows in self.rows.items())
        return f"{self.what} {self.name} is in {len(self.rows)} parts ({places})"


def check_leaks(
    task: Task, *, progress: Progress | None = None, batch: int = 256, digests: Array | None = None
) -> tuple[Leak, ...]:
    """Every patient, and every input with the same bytes (images: pixels), that is in two or more parts.

    digests: of all rows, as `input_digests` gives them; without them the inputs of all parts are read.
    """
    owner = np.full(len(task), -1, dtype=np.int64)
    for part, rows in task.parts.items():
        owner[rows] = PART_NAMES.index(part)
    rows = np.flatnonzero(owner >= 0)
    return leaks_of(
        owner[rows],
        rows,
        groups=None if task.groups is None else task.groups[rows],
        identical=equal_sets(
            input_digests(task.source, rows, progress=progress, batch=batch) if digests is None else digests[rows]
        ),
        images=len(task.source.shape) == 3,
        names=rows.astype(str) if task.ids is None else task.ids[rows],
    )


def leaks_of(
    owner: Indices, numbers: Indices, *, groups: Array | None, identical: Sequence[Indices], images: bool, names: Array
) -> tuple[Leak, ...]:
    """The leaks among n rows that messages know by these numbers and names, each (n,).

    owner: (n,) the number of the row's part, or -1. identical: sets of positions with identical inputs.
    """
    sets: list[tuple[LeakKind, Indices, str]] = []
    if groups is not None:
        sets += [("patient", where, str(groups[where[0]])) for where in equal_sets(groups)]
    sets += [("image" if images else "features", where, " = ".join(names[where])) for where in identical]
    leaks = []
    for what, where, name in sets:
        parts = [part for part in np.unique(owner[where]) if part >= 0]
        if len(parts) > 1:
            places = {PART_NAMES[part]: tuple(numbers[where[owner[where] == part]].tolist()) for part in parts}
            leaks.append(Leak(what=what, name=name, rows=places))
    return tuple(leaks)


def input_digests(
    source: Inputs, rows: Indices | None = None, *, progress: Progress | None = None, batch: int = 256
) -> Array:
    """(n,) a digest of each of these rows, or of all; equal for equal bytes. Inputs are read a batch at a time."""
    rows = np.arange(len(source)) if rows is None else rows
    digests = np.empty(len(rows), dtype="S16")
    for start in range(0, len(rows), batch):
        chunk = rows[start : start + batch]
        for offset, item in enumerate(source(chunk)):
            # Hex of 8 bytes: "S" strings of NumPy drop trailing NULs, and 64 bits tell millions of images apart.
            digests[start + offset] = hashlib.blake2b(item.tobytes(), digest_size=8).hexdigest().encode()
        if progress is not None:
            progress(start + len(chunk), len(rows))
    return digests


def equal_sets(values: npt.NDArray[Any]) -> list[Indices]:
    """Positions that share a value with another one, set by set, in order of the first position."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))
    several = np.flatnonzero(np.diff(edges) > 1)  # only these are made sets of: most values occur once
    return sorted((order[edges[i] : edges[i + 1]] for i in several), key=lambda where: int(where[0]))
