"""Bags: several rows of a table (the images of an exam, a patient, a slide) under one label, as the rows of a Task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.counter import fixed_permutation
from deepauc.data.task import Array, Indices, Inputs, Task, feature_columns
from deepauc.names import in_one_form

NAMED = 5  # bags in a message


class BagInputs:
    """Inputs of bags: `images` of any source, those of bag b being the rows `members[starts[b]:starts[b + 1]]` of it.

    shape, dtype: of one image. A call gives all images of these bags, one bag after the other: more than these rows.
    """

    def __init__(self, images: Inputs, members: npt.ArrayLike, starts: npt.ArrayLike) -> None:
        self.images = images
        self.members, self.starts = np.asarray(members, dtype=np.int64), np.asarray(starts, dtype=np.int64)
        self.sizes = np.diff(self.starts)
        if not len(self.sizes) or (self.sizes < 1).any() or self.starts[-1] != len(self.members):
            raise ValueError("each bag needs at least one image: leave out the bags without any.")
        self.window = getattr(images, "window", None)
        self.feature_columns = feature_columns(images)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.images.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.images.dtype

    def __len__(self) -> int:
        return len(self.sizes)

    def of_bag(self, bag: int) -> Indices:
        """The rows of `images` that a bag holds."""
        return self.members[self.starts[bag] : self.starts[bag + 1]]

    def of_bags(self, bags: Indices) -> Indices:
        """Those of several, one bag after the other."""
        return np.concatenate([self.of_bag(int(bag)) for bag in bags])

    def drawn(self, bag: int, most: int | None, *, key: int) -> Indices:
        """At most so many of a bag's rows, drawn by the key, in their order."""
        rows = self.of_bag(bag)
        if most is None or len(rows) <= most:
            return rows
        return rows[np.sort(fixed_permutation(len(rows), seed=key >> 1, stream="images of a bag")[:most])]

    def __call__(self, indices: Indices) -> Array:
        return self.images(self.of_bags(indices))

    def select(self, rows: Indices) -> BagInputs:
        """Some of the bags, in the order given."""
        return BagInputs(self.images, self.of_bags(rows), np.concatenate([[0], np.cumsum(self.sizes[rows])]))

    def digest(self) -> str:
        sha = hashlib.sha256(b"bags " + self.images.digest().encode())
        for part in (self.members, self.starts):
            sha.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
        return sha.hexdigest()


def image_rows(source: Inputs, rows: Indices) -> tuple[Inputs, Indices]:
    """What these rows of a task are images of: of bags the images in them, of images themselves."""
    return (source.images, source.of_bags(rows)) if isinstance(source, BagInputs) else (source, rows)


def bag_task(task: Task, bags: npt.ArrayLike, *, column: str = "bag") -> Task:
    """The task whose rows are bags, in the order of their first rows; bags: (N,) the bag of each row.

    Labels, weights, patients, metadata and part are the bag's: rows of one bag must agree in them. A row without a
    label says nothing of its bag. column: what the bags are called in messages.
    """
    names = in_one_form(np.asarray(bags).astype(str))
    if len(names) != len(task):
        raise ValueError(f"{len(names)} bags are named for {len(task)} rows: name one for each.")
    if (empty := np.flatnonzero(names == "")).size:
        raise ValueError(
            f"column {column!r} is empty in {len(empty):,} row{'s' * (len(empty) != 1)} (the first: row "
            f"{_row_name(task, int(empty[0]))}). Name the bag of each row, or leave these rows out."
        )
    found, first, number_of = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    number_of = rank[number_of]
    members = np.argsort(number_of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(number_of))])
    ids = found[order]
    leading = members[starts[:-1]]  # the first row of each bag

    def agreed(values: Array, what: str) -> Array:
        of_bag = values[leading][number_of]
        wrong = values != of_bag
        if values.dtype.kind == "f":
            wrong &= ~(np.isnan(values) & np.isnan(of_bag))  # an empty cell agrees with another
        if wrong.any():
            raise ValueError(_disagree(ids[np.unique(number_of[wrong])], what, column))
        return np.asarray(values[leading])

    part_of = np.full(len(task), "", dtype="U10")
    for part, rows in task.parts.items():
        part_of[rows] = part
    bag_parts = agreed(part_of, "part")
    labels = np.stack(
        [
            _label(values, number_of, ids, name, column)
            for name, values in zip(task.label_names, task.labels.reshape(len(task), -1).T, strict=True)
        ],
        axis=1,
    )
    return replace(
        task,
        source=BagInputs(task.source, members, starts),
        labels=labels[:, 0] if task.kind == "binary" else labels,
        parts={part: np.flatnonzero(bag_parts == part) for part in task.parts},
        groups=None if task.groups is None else agreed(task.groups, task.group_column or "group"),
        metadata={name: agreed(values, name) for name, values in task.metadata.items()},
        weights=None if task.weights is None else agreed(task.weights, "weight"),
        ids=ids,
    )


def linked_bags(source: BagInputs, linked: Array) -> Array:
    """(B,) a name for what holds bags together by their images; linked: (N,) of images, equal for those that do.

    Bags that share an identical image, directly or through others, have one name.
    """
    owner = np.arange(len(source))

    def root(bag: int) -> int:
        while owner[bag] != bag:
            owner[bag] = owner[owner[bag]]
            bag = int(owner[bag])
        return bag

    seen: dict[Any, int] = {}
    for bag in range(len(source)):
        for value in linked[source.of_bag(bag)].tolist():
            owner[root(bag)] = root(seen.setdefault(value, bag))
    return np.array([root(bag) for bag in range(len(source))]).astype("S16")


def _label(
    values: npt.NDArray[np.float32], number_of: Indices, ids: Array, name: str, column: str
) -> npt.NDArray[np.float32]:
    """(B,) the label that a bag's rows state; NaN where none does."""
    known = ~np.isnan(values)
    low = np.full(len(ids), np.inf, dtype=np.float32)
    high = np.full(len(ids), -np.inf, dtype=np.float32)
    np.minimum.at(low, number_of[known], values[known])
    np.maximum.at(high, number_of[known], values[known])
    if (low < high).any():
        raise ValueError(_disagree(ids[low < high], f"label {name!r}", column))
    return np.where(np.isfinite(low), low, np.float32(np.nan))


def _disagree(bags: Sequence[Any] | Array, what: str, column: str) -> str:
    shown = ", ".join(str(bag)[:60] for bag in bags[:NAMED]) + (", ..." if len(bags) > NAMED else "")
    several = len(bags) != 1
    return (
        f"the rows of {len(bags):,} bag{'s' * several} (column {column!r}: {shown}) differ in their {what}, and a bag "
        "has one. Mend these rows, or name the column that tells these bags apart."
    )


def _row_name(task: Task, row: int) -> str:
    return str(row) if task.ids is None else str(task.ids[row])[:60]
