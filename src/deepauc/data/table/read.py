"""A user's table as a Task: a csv, parquet or DataFrame with image files or columns of numbers, checked in one pass.

`check_table` reports everything that is wrong, row by row, and raises only where there is no table to speak of (no
such file, no such column). `read_table` raises one TableError with the same list, or with `skip_bad` goes on without
the bad rows and says which. An empty label cell is no fault: the row is unlabelled and may be in train only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from deepauc.data.images.decode import ImageFileInputs, Window, as_size
from deepauc.data.splits import Leak, equal_sets, leak_between
from deepauc.data.table.cautions import NOT_UTF_8, few_of_a_class, label_cautions, shrinking_caution, type_of
from deepauc.data.table.columns import missing_code, parse_metadata
from deepauc.data.table.frame import Table
from deepauc.data.table.problems import LargestGroup, MissingCode, Problem, TableError, TableReport
from deepauc.data.table.scan import Mask, Scan, TableColumns, scan_table, told_once, whole_table_problems
from deepauc.data.task import PART_NAMES, Array, ArrayInputs, Indices, Inputs, Kind, Task
from deepauc.names import Alike, find_alike, one_form

Progress = Callable[[int, int], None]
Sizes = Mapping[tuple[int, int], int]  # (height, width) -> how many files
Size = int | tuple[int, int] | Callable[[Sizes], tuple[int, int] | None]


def check_table(
    table: Table,
    *,
    label_columns: Sequence[str],
    kind: Kind,
    image_column: str | None = None,
    image_root: str | Path | None = None,
    feature_columns: Sequence[str] = (),
    group_column: str | None = None,
    id_column: str | None = None,
    split_column: str | None = None,
    weight_column: str | None = None,
    positive: str | None = None,
    metadata_columns: Sequence[str] = (),
    category_columns: Sequence[str] = (),
    window: Window | None = None,
    allow_outside: bool = False,
    allow_duplicates: bool = False,
    progress: Progress | None = None,
) -> TableReport:
    """Everything there is to know before training on a table, faults included; options as in `read_table`."""
    columns = TableColumns(
        labels=_label_columns(label_columns, kind),
        positive=positive,
        image=image_column,
        features=tuple(feature_columns),
        group=group_column,
        id=id_column,
        split=split_column,
        weight=weight_column,
        metadata=tuple(metadata_columns),
        categories=tuple(category_columns),
    )
    scan = scan_table(
        table,
        columns,
        image_root=image_root,
        window=window,
        allow_outside=allow_outside,
        allow_duplicates=allow_duplicates,
        progress=progress,
    )
    everything = np.ones(len(scan.lines), dtype=bool)
    problems = told_once(scan.problems, whole_table_problems(scan, everything))
    return _report(scan, everything, problems=problems, skip_bad=False)


def read_table(
    table: Table,
    *,
    label_columns: Sequence[str],
    kind: Kind,
    image_column: str | None = None,
    image_root: str | Path | None = None,
    feature_columns: Sequence[str] = (),
    group_column: str | None = None,
    id_column: str | None = None,
    split_column: str | None = None,
    weight_column: str | None = None,
    positive: str | None = None,
    metadata_columns: Sequence[str] = (),
    category_columns: Sequence[str] = (),
    size: Size | None = None,
    window: Window | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
    allow_duplicates: bool = False,
    progress: Progress | None = None,
) -> tuple[Task, TableReport]:
    """A Task from a table, and the report of the pass that checked it; a TableError lists all that is wrong.

    Args:
        table: The path of a csv, tsv or parquet file, or a pandas DataFrame, which gives what its csv would.
        label_columns: The columns of labels.
        kind: "binary" (one column of labels) or "multilabel".
        image_column: The column of image files.
        image_root: The folder that image paths are relative to; by default the table's, and for a DataFrame the folder
            one is in.
        feature_columns: The columns of numbers, where there is no image.
        group_column: The column of patients.
        id_column: Names of rows of numbers, each its own, carried along and no input. Without it such rows are called
            by their lines (in a DataFrame by their places, from 0); images are always called by their files.
        split_column: The column of parts: train, validation (valid, val) or test. Without it every row is in train.
        weight_column: The column of weights.
        positive: The label that counts as positive where labels are not 0 and 1; all others are negative.
        metadata_columns: Kept for fusion and subgroups, as numbers where all are numbers. Without images and features
            they are the inputs, which `metadata_task` encodes.
        category_columns: As `metadata_columns`, but always text.
        size: (height, width), one side, or a function from {(height, width): number of files} to a size or None; needed
            where the files differ in size.
        window: The two values that deep grey is mapped from, instead of each image's own minimum and maximum.
        skip_bad: Leave out rows with a problem, which `report.skipped` names. Refused if they hold nine tenths of a
            label value.
        allow_outside: Accept image paths that leave `image_root`.
        allow_duplicates: Rows that repeat an earlier one, or its id, are no problem.
        progress: Called with (rows checked, rows in all).
    """
    columns = TableColumns(
        labels=_label_columns(label_columns, kind),
        positive=positive,
        image=image_column,
        features=tuple(feature_columns),
        group=group_column,
        id=id_column,
        split=split_column,
        weight=weight_column,
        metadata=tuple(metadata_columns),
        categories=tuple(category_columns),
    )
    scan = scan_table(
        table,
        columns,
        image_root=image_root,
        window=window,
        allow_outside=allow_outside,
        allow_duplicates=allow_duplicates,
        progress=progress,
    )
    keep, wanted_size, fatal = _kept(scan, size, skip_bad=skip_bad)
    if fatal or (scan.problems and not skip_bad):
        raise TableError(scan.name, told_once(scan.problems, fatal), every_row=scan.all_bad)
    rows = np.flatnonzero(keep)
    task = Task(
        name=_task_name(table),
        kind=kind,
        source=_source(scan, rows, wanted_size, window),
        labels=scan.labels[rows, 0] if kind == "binary" else scan.labels[rows],
        label_names=columns.labels,
        parts=_parts(scan, rows),
        groups=None if scan.groups is None else scan.groups[rows],
        group_column=columns.group,
        metadata=_metadata(scan, keep),
        weights=None if scan.weights is None else scan.weights[rows],
        ids=_ids(scan, keep),
    )
    return task, _report(scan, keep, problems=scan.problems, skip_bad=skip_bad, size=wanted_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableInputs:
    """Rows to predict: what a Task holds, less the labels."""

    source: Inputs
    ids: Array
    groups: Array | None
    metadata: Mapping[str, Array]
    report: TableReport


def read_inputs(
    table: Table,
    *,
    image_column: str | None = None,
    image_root: str | Path | None = None,
    feature_columns: Sequence[str] = (),
    group_column: str | None = None,
    id_column: str | None = None,
    metadata_columns: Sequence[str] = (),
    number_columns: Sequence[str] = (),
    size: Size | None = None,
    window: Window | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
    progress: Progress | None = None,
) -> TableInputs:
    """The inputs of a table that needs no labels, for prediction; the options of `read_table`. Rows may repeat.

    number_columns: those of the metadata in which a word is a problem.
    """
    columns = TableColumns(
        labels=(),
        image=image_column,
        features=tuple(feature_columns),
        group=group_column,
        id=id_column,
        metadata=tuple(metadata_columns),
        numbers=tuple(number_columns),
    )
    scan = scan_table(
        table,
        columns,
        image_root=image_root,
        window=window,
        allow_outside=allow_outside,
        allow_duplicates=True,
        progress=progress,
    )
    keep, wanted_size, fatal = _kept(scan, size, skip_bad=skip_bad)
    if not keep.any():
        raise ValueError(f"{scan.name}: all rows were left out because of problems, so there is nothing to predict.")
    if fatal or (scan.problems and not skip_bad):
        raise TableError(scan.name, told_once(scan.problems, fatal), every_row=scan.all_bad)
    rows = np.flatnonzero(keep)
    return TableInputs(
        source=_source(scan, rows, wanted_size, window),
        ids=_ids(scan, keep),
        groups=None if scan.groups is None else scan.groups[rows],
        metadata=_metadata(scan, keep),
        report=_report(scan, keep, problems=scan.problems, skip_bad=skip_bad),
    )


def _task_name(table: Table) -> str:
    return Path(table).name.split(".")[0] if isinstance(table, str | Path) else "table"


def _label_columns(names: Sequence[str], kind: Kind) -> tuple[str, ...]:
    if isinstance(names, str) or not names:
        raise ValueError("label_columns must name at least one column, as a list.")
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be 'binary' or 'multilabel', not {kind!r}.")
    if kind == "binary" and len(names) != 1:
        raise ValueError(f"a binary task has one label column, not {len(names)}; declare kind='multilabel'.")
    return tuple(names)


def _kept(scan: Scan, size: Size | None, *, skip_bad: bool) -> tuple[Mask, tuple[int, int] | None, list[Problem]]:
    """The rows to go on with, the size of their images, and what then still stands in the way."""
    bad_lines = scan.bad_lines if skip_bad else set()
    keep = ~np.isin(scan.lines, np.array(sorted(bad_lines), dtype=np.int64))
    fatal = whole_table_problems(scan, keep) if scan.columns.labels else []
    sizes = _sizes(scan, keep)
    wanted_size = _wanted_size(sizes, size)
    if sizes and wanted_size is None:
        message = f"the images have {len(sizes)} sizes; name the one to resize them to, size=(height, width)"
        fatal.append(Problem(row=None, column=scan.columns.image, kind="differing sizes", message=message))
    return keep, wanted_size, fatal


def _ids(scan: Scan, keep: Mask) -> Array:
    named = scan.columns.image or scan.columns.id
    if named is not None:
        return scan.cells.columns[named].rows(keep).names()
    lines = scan.lines[keep]
    return lines.astype(f"U{len(str(lines.max(initial=0)))}")


def _metadata(scan: Scan, keep: Mask) -> dict[str, Array]:
    found = {}
    for name in scan.columns.all_metadata:
        cells = scan.cells.pointed(name).rows(keep)
        found[name] = cells.names() if name in scan.columns.categories else parse_metadata(cells)
    return found


def _id(scan: Scan, row: int) -> str:
    named = scan.columns.image or scan.columns.id
    return str(scan.lines[row]) if named is None else one_form(scan.cells.columns[named][row])


def _parts(scan: Scan, rows: Indices) -> dict[str, Indices]:
    parts = {name: np.flatnonzero(scan.parts[rows] == number) for number, name in enumerate(PART_NAMES)}
    return {name: members for name, members in parts.items() if len(members)}


def _sizes(scan: Scan, keep: Mask) -> dict[tuple[int, int], int]:
    facts = [] if scan.images is None else [scan.images.facts[row] for row in np.flatnonzero(keep)]
    return dict(Counter(fact.size for fact in facts if fact is not None))


def _channels(scan: Scan, keep: Mask) -> int | None:
    facts = [] if scan.images is None else [scan.images.facts[row] for row in np.flatnonzero(keep)]
    return max((fact.channels for fact in facts if fact is not None), default=None)


def _wanted_size(sizes: Sizes, size: Size | None) -> tuple[int, int] | None:
    chosen = size(sizes) if callable(size) else size
    if chosen is not None:
        return as_size(chosen)
    return next(iter(sizes)) if len(sizes) == 1 else None


def _source(scan: Scan, rows: Indices, size: tuple[int, int] | None, window: Window | None) -> Inputs:
    if scan.features is not None:
        features = scan.features if len(rows) == len(scan.features) else scan.features[rows]  # no second copy
        return ArrayInputs(features, feature_columns=scan.columns.features)
    assert scan.images is not None
    assert size is not None
    paths = [path for row in rows if (path := scan.images.paths[row]) is not None]
    facts = [fact for row in rows if (fact := scan.images.facts[row]) is not None]
    return ImageFileInputs(
        paths,
        shape=(*size, max(fact.channels for fact in facts)),
        file_digests=[fact.file_digest for fact in facts],
        window=window,
    )


def _report(
    scan: Scan,
    keep: Mask,
    *,
    problems: Sequence[Problem],
    skip_bad: bool,
    size: tuple[int, int] | None = None,
) -> TableReport:
    rows = np.flatnonzero(keep)
    metadata = _metadata(scan, keep) if scan.columns.labels else {}
    lines, labels, names = scan.lines[rows], scan.labels[rows], scan.columns.labels
    identical = equal_sets(scan.digests[rows])

    def in_lines(sets: Iterable[Indices]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(int(line) for line in lines[where]) for where in sets)

    def disputed(where: Indices) -> bool:
        return bool(((labels[where] == 0).any(axis=0) & (labels[where] == 1).any(axis=0)).any())

    def shared(where: Indices) -> bool:
        return scan.groups is not None and len(set(scan.groups[rows[where]].tolist())) > 1

    positives, negatives = (
        {name: int((labels[:, place] == value).sum()) for place, name in enumerate(names)} for value in (1, 0)
    )
    return TableReport(
        path=scan.name,
        rows=len(scan.lines) + len(scan.cells.problems),
        labelled=int((~np.isnan(labels).all(axis=1)).sum()),
        unlabelled=int(scan.unlabelled[rows].sum()),
        positives=positives,
        negatives=negatives,
        parts={name: len(members) for name, members in _parts(scan, rows).items()},
        groups=None if scan.groups is None else len(np.unique(scan.groups[rows])),
        group_column=scan.columns.group,
        sizes=_sizes(scan, keep),
        channels=_channels(scan, keep),
        problems=tuple(problems),
        skipped=tuple(sorted(scan.bad_lines)) if skip_bad else (),
        duplicates=in_lines(identical),
        leaks=_leaks(scan, rows, identical),
        largest_group=None if scan.groups is None else largest_group(scan.groups[rows]),
        disputed=in_lines(filter(disputed, identical)),
        shared=in_lines(filter(shared, identical)),
        alike=_alike(scan, keep, metadata) if names else (),
        missing_codes=_missing_codes(scan, keep, metadata),
        metadata={name: type_of(column) for name, column in metadata.items() if len(column)},
        few=few_of_a_class(positives, negatives),
        cautions=(
            *(label_cautions(positives, negatives, grouped=scan.groups is not None) if names else ()),
            *_input_cautions(scan, keep, size),
        ),
    )


def _input_cautions(scan: Scan, keep: Mask, size: tuple[int, int] | None) -> tuple[str, ...]:
    shrinking = None if size is None else shrinking_caution(_sizes(scan, keep), size)
    return tuple(text for text in (shrinking, NOT_UTF_8 if scan.cells.latin_1 else None) if text is not None)


def _missing_codes(scan: Scan, keep: Mask, metadata: Mapping[str, Array]) -> tuple[MissingCode, ...]:
    columns = {name: column for name, column in metadata.items() if column.dtype.kind == "f"}
    if scan.features is not None:
        columns |= {name: scan.features[keep, place] for place, name in enumerate(scan.columns.features)}
    found = (missing_code(column, name) for name, column in columns.items())
    return tuple(one for one in found if one is not None)


def _alike(scan: Scan, keep: Mask, metadata: Mapping[str, Array]) -> tuple[Alike, ...]:
    """Patients, rows and categories that may be written in several ways; equal images are found by their pixels."""
    columns, found = scan.columns, list[Alike | None]()
    if scan.groups is not None:
        found.append(find_alike(scan.groups[keep].tolist(), what="group", column=columns.group))
    if columns.id is not None:
        found.append(find_alike(_ids(scan, keep).tolist(), what="id", column=columns.id))
    for name, column in metadata.items():
        if column.dtype.kind == "U":
            found.append(find_alike(column.tolist(), what="category", column=name))
    return tuple(one for one in found if one is not None)


def largest_group(groups: Array) -> LargestGroup | None:
    """The one with the most rows; rows without a name are of none."""
    names, counts = np.unique(groups[groups != ""], return_counts=True)
    place = int(counts.argmax()) if len(counts) else None
    return None if place is None else LargestGroup(name=str(names[place]), rows=int(counts[place]))


def _leaks(scan: Scan, rows: Indices, identical: Sequence[Indices]) -> tuple[Leak, ...]:
    """Patients and identical inputs in two parts, by the lines of the file."""
    owner, leaks = scan.parts[rows], list[Leak]()
    if scan.groups is not None:
        groups = scan.groups[rows]
        for where in equal_sets(groups):
            leaks += leak_between(where, owner, what="patient", name=str(groups[where[0]]))
    what: Literal["image", "features"] = "features" if scan.images is None else "image"
    for where in identical:
        name = " = ".join(_id(scan, row) for row in rows[where].tolist())
        leaks += leak_between(where, owner, what=what, name=name)
    return tuple(
        replace(
            leak, rows={part: tuple(int(scan.lines[rows[i]]) for i in places) for part, places in leak.rows.items()}
        )
        for leak in leaks
    )
