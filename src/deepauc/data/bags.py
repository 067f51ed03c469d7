"""Bags: several rows of a table (the images of an exam, a patient, a slide) under one label, as the rows of a Task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.counter import fixed_permutation
from deepauc.data.splits import equal_sets, joined
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
            raise ValueError("each bag needs at least one image: leave out empty bags.")
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


class BagColumn:
    """Which bag each row is in, by a column of their names; bags come in the order of their first rows.

    names: (N,). ids: (B,) the bags. members, starts: as `BagInputs` has them. row_name: of a row, for messages.
    """

    def __init__(self, names: npt.ArrayLike, *, column: str = "bag", row_name: Callable[[int], str] = str) -> None:
        cells = in_one_form(np.asarray(names).astype(str))
        if (empty := np.flatnonzero(cells == "")).size:
            raise ValueError(
                f"column {column!r} is empty in {len(empty):,} row{'s' * (len(empty) != 1)} (the first: "
                f"{row_name(int(empty[0]))[:60]}). Name the bag of each row, or leave these rows out."
            )
        found, first, sorted_number = np.unique(cells, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        self.column, self.ids, self.number_of = column, found[order], rank[sorted_number]
        self.members = np.argsort(self.number_of, kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(self.number_of))])

    def of_images(self, images: Inputs) -> BagInputs:
        """The rows of a table of images, in these bags."""
        return BagInputs(images, self.members, self.starts)

    def agreed(self, values: Array, what: str) -> Array:
        """(B,) what all rows of a bag have, of values (N,); ValueError, with the bags, where rows differ."""
        own = values[self.members[self.starts[:-1]]]
        wrong = values != own[self.number_of]
        if values.dtype.kind == "f":
            wrong &= ~(np.isnan(values) & np.isnan(own[self.number_of]))  # an empty cell agrees with another
        if wrong.any():
            raise ValueError(self._disagree(np.unique(self.number_of[wrong]), what))
        return np.asarray(own)

    def stated(self, values: Array, what: str, *, silent: npt.NDArray[np.bool_]) -> Array:
        """(B,) what the rows of a bag have that are not silent; of a bag that is silent in all, what it has there."""
        own = values[self.members[self.starts[:-1]]].copy()
        own[self.number_of[~silent]] = values[~silent]
        wrong = ~silent & (values != own[self.number_of])
        if wrong.any():
            raise ValueError(self._disagree(np.unique(self.number_of[wrong]), what))
        return np.asarray(own)

    def _disagree(self, bags: Indices, what: str) -> str:
        shown = ", ".join(str(bag)[:60] for bag in self.ids[bags[:NAMED]]) + (", ..." if len(bags) > NAMED else "")
        return (
            f"the rows of {len(bags):,} bag{'s' * (len(bags) != 1)} (column {self.column!r}: {shown}) differ in their "
            f"{what}, but a bag has only one. Correct these rows, or name a column with another name for each bag."
        )


def bag_task(task: Task, bags: npt.ArrayLike, *, column: str = "bag") -> Task:
    """The task whose rows are bags, in the order of their first rows.

    Labels, weights, patients, metadata and part are the bag's: rows of one bag must agree in them. A row without a
    label says nothing of its bag.

    Args:
        task: The task whose rows are images.
        bags: (N,) the bag of each row.
        column: What the bags are called in messages.
    """
    names = np.asarray(bags)
    if names.shape != (len(task),):
        raise ValueError(f"bags of shape {names.shape} for {len(task)} rows: name the bag of each row.")
    ids = task.ids
    of = BagColumn(names, column=column, row_name=lambda row: str(row if ids is None else ids[row]))
    part_of = np.full(len(task), "", dtype="U10")
    for part, rows in task.parts.items():
        part_of[rows] = part
    bag_parts = of.stated(part_of, "part", silent=part_of == "")  # unlabelled rows of a held-out part are in none
    labels = np.stack(
        [
            of.stated(values, f"label {name!r}", silent=np.isnan(values))
            for name, values in zip(task.label_names, task.labels.reshape(len(task), -1).T, strict=True)
        ],
        axis=1,
    )
    return replace(
        task,
        source=of.of_images(task.source),
        labels=labels[:, 0] if task.kind == "binary" else labels,
        parts={part: np.flatnonzero(bag_parts == part) for part in task.parts},
        groups=None if task.groups is None else of.agreed(task.groups, task.group_column or "group"),
        metadata={name: of.agreed(values, name) for name, values in task.metadata.items()},
        weights=None if task.weights is None else of.agreed(task.weights, "weight"),
        ids=of.ids,
    )


def linked_bags(source: BagInputs, linked: Array) -> Array:
    """(B,) a name for what holds bags together by their images; linked: (N,) of images, equal for those that do.

    Bags that share an identical image, directly or through others, have one name.
    """
    bag_of = np.repeat(np.arange(len(source)), source.sizes)
    sets = (bag_of[where] for where in equal_sets(linked[source.members]))
    return joined(len(source), sets).astype("S16")
