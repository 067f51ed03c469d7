"""Folds of cross-validation: how many, which row is in which, and the Task of each fold.

A fold is what one network is judged on and never saw. Patients, and identical images, stay whole; every fold has its
share of positives as far as patients allow. The folds have a seed of their own.

The unit of all counts below is what cannot be torn apart: a row, or with groups a patient (see `splits.inseparable`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deepauc.data.splits import fold_numbers, has_both_classes, held_out_task, pool_rows, split_by_fractions
from deepauc.data.task import Array, Indices, Task
from deepauc.labels import NO_NAME
from deepauc.names import counted, find_alike, group_word, one_form

AUTO_FOLDS = 5
AUTO_BELOW = 200  # units of the rarer class, from which on a test part of 15 % has 30 of them
MOST_FOLDS = 50  # of a table's own column: each is a training of its own
VALIDATION_AT_LEAST = 20  # units of either class, below which nothing is chosen on a validation part
_UNEVEN = 1.5  # times its share of the rarer class, from which on a fold is worth a caution


@dataclass(frozen=True, kw_only=True)
class Folds:
    """Which fold holds each row out, and what a reader of the result should know about them."""

    number: Indices  # (N,) 0 to len(names) - 1; -1 for rows that are never held out: unlabelled ones, the test part
    names: tuple[str, ...]
    cautions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)


def auto_folds(task: Task, *, together: Array | None = None) -> int:
    """Five where the rarer class has fewer than 200 units, never more than it has, else 0: one split will do.

    0 also where the task has a validation part of its own. Several labels: the median of their rarer classes decides.
    """
    if "validation" in task.parts:
        return 0
    rows = task.labelled("train")
    count = rarer_class(task.labels[rows], _of(_units(task, together), rows))
    return min(AUTO_FOLDS, count) if 2 <= count < AUTO_BELOW else 0


def rarer_class(labels: Array, groups: Array | None = None) -> int:
    """Units (rows, or groups that hold one) of the rarer class; of several labels the median."""
    columns = labels.reshape(len(labels), -1)
    counts = [
        min(_count(known, groups) for known in (columns[:, j] > 0.5, columns[:, j] == 0))
        for j in range(columns.shape[1])
    ]
    return sorted(counts)[(len(counts) - 1) // 2]


def deal_folds(task: Task, *, folds: int, seed: int = 0, together: Array | None = None) -> Folds:
    """The labelled rows of train (and validation, if there is one) in so many folds, stratified, units whole.

    together: (N,) what must not be torn apart, as `splits.inseparable` gives it; the task's groups by default.
    """
    word = _word(task)
    task = _one_pool(task, together)
    pool, _ = pool_rows(task, (), taken=("validation",))
    labels, groups = task.labels[pool], _of(task.groups, pool)
    _require_enough(labels, groups, folds, word)
    number = np.full(len(task), -1, dtype=np.int64)
    number[pool] = fold_numbers(labels, folds=folds, seed=seed, groups=groups)
    names = tuple(str(fold + 1) for fold in range(folds))
    return Folds(number=number, names=names, cautions=_uneven(labels, groups, number[pool], names, word))


def given_folds(task: Task, values: npt.ArrayLike, *, column: str, together: Array | None = None) -> Folds:
    """The table's own folds, such as sites: values (N,), one name for each row; rows of a test part need none.

    column: what the table calls it, for messages.
    """
    word = _word(task)
    task = _one_pool(task, together)
    pool, _ = pool_rows(task, (), taken=("validation",))
    cells = np.array([_name(cell) for cell in np.asarray(values, dtype=object).tolist()])
    if len(cells) != len(task):
        raise ValueError(f"{column} has {len(cells)} values for {len(task)} rows.")
    if empty := int((cells[pool] == "").sum()):
        rows = "1 labelled row has" if empty == 1 else f"{empty} labelled rows have"
        raise ValueError(f"{rows} no fold in the column {column}. Fill in a fold for every row.")
    numbers_first = sorted(set(cells[pool].tolist()), key=lambda name: (len(name) if name.isdigit() else 99, name))
    names = np.array(numbers_first)
    codes = np.argmax(cells[pool][:, None] == names, axis=1)
    if not 2 <= len(names) <= MOST_FOLDS:
        raise ValueError(
            f"the column {column} has {counted(len(names), 'different value')}; folds need 2 to {MOST_FOLDS}, because "
            "each fold is trained separately. Is it the right column?"
        )
    groups = _of(task.groups, pool)
    _require_whole(groups, codes, names, column, word)
    labels = task.labels[pool]
    alike = find_alike(names.tolist(), what="fold", column=column)
    cautions = [] if alike is None else [alike.text().replace("column", "Column", 1)]
    for code, name in enumerate(names):
        if not has_both_classes(labels[codes != code]):
            raise ValueError(
                f"fold {name} of the column {column} holds all rows of a class, so none is left to train on. Divide it."
            )
        if not has_both_classes(labels[codes == code]):
            cautions.append(f"Fold {name} holds one class only. It has no AUC and does not count in the mean.")
    if not any(has_both_classes(labels[codes == code]) for code in range(len(names))):
        raise ValueError(f"no fold of the column {column} holds both classes, so no AUC can be measured.")
    number = np.full(len(task), -1, dtype=np.int64)
    number[pool] = codes
    return Folds(number=number, names=tuple(names.tolist()), cautions=tuple(cautions))


def fold_task(
    task: Task, folds: Folds, fold: int, *, validation: float = 0.15, seed: int = 0, together: Array | None = None
) -> Task:
    """The task of one network: the fold as test part, the other folds as train, and perhaps a validation part.

    validation: the fraction of the other folds that becomes the validation part, if that part holds at least 20 units
    of either class; otherwise there is none, and the length of training must be fixed beforehand. Rows of a test part
    of the whole task are in no part: only the finished model is judged on them.
    """
    whole = _one_pool(task, together)
    pool, others = np.flatnonzero(folds.number >= 0), whole.part("train")
    others = others[folds.number[others] < 0]
    held = {"test": folds.number[pool] == fold}
    parts = dict(held_out_task(whole.with_parts({"train": whole.part("train")}), pool, others, held).parts)
    inner = _with_validation(whole.with_parts({"train": parts["train"]}), validation, seed)
    return task.with_parts({**parts, **({} if inner is None else inner.parts)})


def _with_validation(task: Task, fraction: float, seed: int) -> Task | None:
    labelled = task.labelled("train")
    if fraction * rarer_class(task.labels[labelled], _of(task.groups, labelled)) < VALIDATION_AT_LEAST / 2:
        return None  # far from enough, and the split below may have nothing to deal
    split = split_by_fractions(task, fractions={"train": 1 - fraction, "validation": fraction}, seed=seed)
    rows = split.part("validation")
    if rarer_class(task.labels[rows], _of(task.groups, rows)) < VALIDATION_AT_LEAST:
        return None
    return split


def _one_pool(task: Task, together: Array | None) -> Task:
    """The same with rows of validation in train, and in the place of patients what must not be torn apart."""
    train = np.sort(np.concatenate([task.part("train"), task.parts.get("validation", np.empty(0, dtype=np.int64))]))
    parts = {name: rows for name, rows in task.parts.items() if name != "validation"}
    return replace(task, parts={**parts, "train": train}, groups=_units(task, together))


def _units(task: Task, together: Array | None) -> Array | None:
    return task.groups if together is None else together


def _of(column: Array | None, rows: Indices) -> Array | None:
    return None if column is None else column[rows]


def _word(task: Task) -> str:
    """What a unit is called."""
    return "row" if task.groups is None else group_word(task.group_column)


def _name(cell: object) -> str:
    """A cell of a fold column as text; pandas reads whole numbers as floats where one is missing."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    text = one_form(str(cell))
    return "" if text in NO_NAME else text


def _count(rows: npt.NDArray[np.bool_], groups: Array | None) -> int:
    return int(rows.sum()) if groups is None else len(np.unique(groups[rows]))


def _require_enough(labels: Array, groups: Array | None, folds: int, word: str) -> None:
    if folds < 2:
        raise ValueError(f"folds is {folds}; cross-validation needs at least 2 (0 means one split).")
    columns = labels.reshape(len(labels), -1)
    counts = {
        kind: max(_count(known[:, j], groups) for j in range(columns.shape[1]))
        for kind, known in (("positive", columns > 0.5), ("negative", columns == 0))
    }
    kind, most = min(counts.items(), key=lambda item: item[1])  # the rarer class: its number is one that both allow
    if most < folds:
        one = f"{kind} row" if word == "row" else f"{word} with a {kind} label"
        several = f"{kind} rows" if word == "row" else f"{word}s with a {kind} label"
        there = f"there is 1 {one}" if most == 1 else f"there are {most} {several}"
        remedy = "Label more rows." if most < 2 else "Use folds=2." if most == 2 else f"Use folds={most} or fewer."
        raise ValueError(f"{folds} folds need a {one} each, and {there}. {remedy}")


def _require_whole(groups: Array | None, codes: Indices, names: Array, column: str, word: str) -> None:
    if groups is None:
        return
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    torn = np.flatnonzero(codes != codes[first][unit])
    if not len(torn):
        return
    row, count = torn[0], len(np.unique(unit[torn]))
    pair = f"{names[codes[first[unit[row]]]]} and {names[codes[row]]}"
    who = "identical images" if word == "row" else f"{word} {groups[row]}, or an identical image,"
    more = "" if count == 1 else f" ({count} such cases)"
    raise ValueError(
        f"the column {column} puts {who} into the folds {pair}{more}. "
        "Keep them in one fold; otherwise a network is judged on rows that it was trained on."
    )


def _uneven(labels: Array, groups: Array | None, number: Indices, names: tuple[str, ...], word: str) -> tuple[str, ...]:
    """A caution where a fold has far more than its share of the rarer class, as whole patients can make it."""
    columns = labels.reshape(len(labels), -1)
    if groups is None or word == "row" or columns.shape[1] > 1:
        return ()
    rare = min((columns[:, 0] > 0.5, columns[:, 0] == 0), key=lambda known: int(known.sum()))
    what = "positive" if bool(columns[np.flatnonzero(rare)[0], 0] > 0.5) else "negative"
    by_fold = np.bincount(number[rare], minlength=len(names))
    of_units = np.unique(groups[rare], return_counts=True)[1]
    if by_fold.max() <= _UNEVEN * by_fold.mean() or by_fold.max() - by_fold.mean() < 2:
        return ()
    counts = ", ".join(str(count) for count in by_fold)
    largest = int(of_units.max())
    return (
        f"The folds hold {counts} {what} rows: one {word} alone has {largest} of {int(rare.sum())}. The AUC over folds "
        f"then depends mostly on a few {word}s.",
    )
