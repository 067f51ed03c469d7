"""From a packed set to what a run trains on: its task as packed, its rows looked through once for identical inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.packed.sets import open_packed
from deepauc.data.splits import equal_sets, input_digests
from deepauc.data.table.cautions import few_of_a_class, label_cautions
from deepauc.data.table.problems import TableReport
from deepauc.data.table.read import largest_group
from deepauc.data.task import Array, Indices, Task
from deepauc.names import Alike, find_alike
from deepauc.training.config import DataSettings
from deepauc.training.prepare.in_memory import kept_in_memory
from deepauc.training.run.record import PackedData


def require_only_packed(data: DataSettings) -> None:
    """ValueError where settings describe a table too."""
    if data.table is not None:
        raise ValueError("--table and --packed both say where the rows come from: leave one of them out.")
    of_a_table = [
        "--" + field.name.removesuffix("s").replace("_", "-")
        for field in fields(data)
        if field.name not in ("packed", "split_of") and getattr(data, field.name) != field.default
    ]
    if of_a_table:
        raise ValueError(
            f"--packed: labels, groups, parts, weights and image size were fixed when the set was packed. Leave out "
            f"{', '.join(of_a_table)}."
        )


def read_packed(
    folder: str, *, progress: Callable[[int, int], None] | None
) -> tuple[Task, TableReport, Array, PackedData]:
    """The task, what a table's check would say of it, a digest of each row's input, and what to record."""
    if Path(folder).is_file():
        raise ValueError(f"{folder} is a file, not a packed set: name a table with --table.")
    task = open_packed(folder).task()
    if not len(task.parts.get("train", ())):
        there = ", ".join(task.parts) or "none"
        raise ValueError(f"{folder} has no training part (its parts: {there}): pack a set that has one.")
    task = kept_in_memory(task, progress=progress)
    digests = input_digests(task.source, progress=progress)
    record = PackedData(
        path=folder,
        digest=task.source.digest(),
        images=len(task.source.shape) == 3,
        named_rows=task.ids is not None and not all(name.isdigit() for name in task.ids.tolist()),
    )
    return task, _report(folder, task, equal_sets(digests)), digests, record


def label_counts(task: Task) -> dict[str, Any]:
    """Entries of a `TableReport` that follow from the labels and parts of a task."""
    labels = task.labels.reshape(len(task), task.num_labels)
    unlabelled = int(np.isnan(labels).all(axis=1).sum())
    positives, negatives = (
        {name: int((column == value).sum()) for name, column in zip(task.label_names, labels.T, strict=True)}
        for value in (1, 0)
    )
    return {
        "rows": len(task),
        "labelled": len(task) - unlabelled,
        "unlabelled": unlabelled,
        "positives": positives,
        "negatives": negatives,
        "parts": {name: len(rows) for name, rows in task.parts.items()},
        "few": few_of_a_class(positives, negatives),
        "cautions": label_cautions(positives, negatives, grouped=task.groups is not None),
    }


def _report(folder: str, task: Task, identical: list[Indices]) -> TableReport:
    """Counts as of a table; rows are numbered as packed, from 0."""
    labels, shape = task.labels.reshape(len(task), task.num_labels), task.source.shape

    def disputed(where: Indices) -> bool:
        return bool(((labels[where] == 0).any(axis=0) & (labels[where] == 1).any(axis=0)).any())

    return TableReport(
        path=folder,
        groups=None if task.groups is None else len(np.unique(task.groups)),
        group_column=task.group_column,
        sizes={(shape[0], shape[1]): len(task)} if len(shape) == 3 else {},
        channels=shape[2] if len(shape) == 3 else None,
        problems=(),
        skipped=(),
        duplicates=tuple(tuple(where.tolist()) for where in identical),
        leaks=(),  # of the parts as they are trained on: `prepare` looks for them
        largest_group=None if task.groups is None else largest_group(task.groups),
        disputed=tuple(tuple(where.tolist()) for where in identical if disputed(where)),
        alike=_alike(task),
        **label_counts(task),
    )


def _alike(task: Task) -> tuple[Alike, ...]:
    """Patients, and rows of numbers, that may be written in several ways."""
    found = []
    if task.groups is not None:
        found.append(find_alike(task.groups.tolist(), what="group", column=task.group_column))
    if task.ids is not None and len(task.source.shape) == 1:
        found.append(find_alike(task.ids.tolist(), what="id"))
    return tuple(one for one in found if one is not None)
