"""A Task as png files and one csv table: for people to look at, for other programs, and for `read_table`."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from deepauc.data.packed.place import work_folder
from deepauc.data.task import PART_NAMES, Array, Indices, Task

Progress = Callable[[int, int], None]  # rows done, rows in all
TABLE_NAME = "table.csv"
FILE, TARGET, GROUP, SPLIT, WEIGHT, ID = "file", "target", "patient_id", "split", "weight", "id"
_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, in the words that `read_table` takes."""

    table: Path
    label_columns: tuple[str, ...]
    group_column: str | None
    weight_column: str | None
    metadata_columns: tuple[str, ...]
    parts: dict[str, int]  # part -> rows
    image_column: str = FILE
    split_column: str = SPLIT


def export_task(
    task: Task,
    folder: str | os.PathLike[str],
    *,
    parts: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write PART/ROW.png, lossless, and table.csv into a new folder; all of it or nothing.

    The table's columns: file, target (several labels: one column each, by name), patient_id where there are groups,
    split, then weight, id and metadata where there are any. Rows keep their order; rows in no part stay out.
    """
    place = Path(os.path.realpath(folder))  # a link stays, and leads to what was written
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ValueError(f"{place} exists already. Choose a new folder.")
    rows, owner = _rows(task, parts)
    _require_pictures(task, rows)
    columns = _columns(task, rows, owner)
    with work_folder(place) as work:
        _write_pictures(task, rows, columns[FILE], work, progress)
        with open(work / TABLE_NAME, "w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        if place.exists():  # and empty: Windows renames onto nothing that is there
            place.rmdir()
        os.rename(work, place)
    return Exported(
        table=place / TABLE_NAME,
        label_columns=_label_columns(task),
        group_column=None if task.groups is None else GROUP,
        weight_column=None if task.weights is None else WEIGHT,
        metadata_columns=tuple(task.metadata),
        parts=dict(Counter(columns[SPLIT])),
    )


def _rows(task: Task, parts: Sequence[str] | None) -> tuple[Indices, Indices]:
    """The rows of these parts, ascending, and for each the number of its part."""
    owner = np.full(len(task), -1, dtype=np.int64)
    for name in task.parts if parts is None else parts:
        members = task.part(name)  # refuses a name that is no part
        owner[members] = PART_NAMES.index(name)
    rows = np.flatnonzero(owner >= 0)
    if not len(rows):
        raise ValueError(f"task {task.name!r} has no rows to export.")
    return rows, owner[rows]


def _require_pictures(task: Task, rows: Indices) -> None:
    shape = task.source.shape
    if len(shape) != 3 or shape[2] not in (1, 3):
        raise ValueError(f"only grey and colour images can be exported; one input here has shape {tuple(shape)}.")
    labels = task.labels[rows]
    if not (np.isnan(labels) | np.isin(labels, (0, 1))).all():
        raise ValueError(
            "uncertain (-1) and soft labels cannot be written to a table of 0 and 1. Resolve them first, with "
            "deepauc.data.uncertain.resolve."
        )


def _label_columns(task: Task) -> tuple[str, ...]:
    return (TARGET,) if task.kind == "binary" else task.label_names


def _columns(task: Task, rows: Indices, owner: Indices) -> dict[str, list[str]]:
    digits = len(str(len(task) - 1))
    labels = task.labels[rows].reshape(len(rows), task.num_labels)
    made: list[tuple[str, list[str]]] = [
        (FILE, [f"{PART_NAMES[part]}/{row:0{digits}d}.png" for row, part in zip(rows, owner, strict=True)]),
        *((name, _label_cells(labels[:, place])) for place, name in enumerate(_label_columns(task))),
    ]
    if task.groups is not None:
        made.append((GROUP, _cells(task.groups[rows])))
    made.append((SPLIT, [PART_NAMES[part] for part in owner]))
    for name, column in ((WEIGHT, task.weights), (ID, task.ids), *task.metadata.items()):
        if column is None:
            continue
        if column.ndim != 1:
            raise ValueError(f"{name} has shape {column.shape}; a table has one cell per row.")
        made.append((name, _cells(column[rows])))
    if twice := [name for name, count in Counter(name for name, _ in made).items() if count > 1]:
        raise ValueError(f"two columns of the table would be named {twice[0]!r}. Rename the label or the metadata.")
    return dict(made)


def _label_cells(labels: Array) -> list[str]:
    return ["" if np.isnan(label) else str(int(label)) for label in labels]


def _cells(column: Array) -> list[str]:
    """Text; an empty cell for NaN. Floats have as many digits as it takes to read the same number again."""
    missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), dtype=bool)
    return ["" if nothing else str(value) for value, nothing in zip(column, missing, strict=True)]


def _write_pictures(task: Task, rows: Indices, files: Sequence[str], folder: Path, progress: Progress | None) -> None:
    for part in {os.path.dirname(file) for file in files}:
        (folder / part).mkdir()
    for start in range(0, len(rows), _BATCH):
        pictures: npt.NDArray[np.uint8] = task.inputs(rows[start : start + _BATCH])
        for file, pixels in zip(files[start : start + _BATCH], pictures, strict=True):
            Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(folder / file)
        if progress is not None:
            progress(start + len(pictures), len(rows))
