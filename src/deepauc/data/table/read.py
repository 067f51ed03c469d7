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
from typing import get_args

import numpy as np

from deepauc.data.images.decode import ImageFileInputs, Window, as_size
from deepauc.data.splits import equal_sets, leaks_of
from deepauc.data.table.cautions import (
    NOT_UTF_8,
    few_of_a_class,
    label_cautions,
    name_cautions,
    shrinking_caution,
    type_of,
)
from deepauc.data.table.columns import missing_code
from deepauc.data.table.frame import Table
from deepauc.data.table.problems import LargestGroup, MissingCode, Problem, TableError, TableReport
from deepauc.data.table.scan import TRAIN, Scan, TableColumns, scan_table, told_once, whole_table_problems
from deepauc.data.task import PART_NAMES, Array, ArrayInputs, Indices, Inputs, Kind, Task
from deepauc.names import Alike, find_alike

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
    problems = told_once(scan.problems, whole_table_problems(scan, np.ones(len(scan.lines), dtype=bool)))
    return replace(_report(scan, scan), problems=tuple(problems))


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
    kept, wanted_size, fatal = _kept(scan, size, skip_bad=skip_bad)
    if fatal or (scan.problems and not skip_bad):
        raise TableError(scan.name, told_once(scan.problems, fatal), every_row=scan.all_bad)
    task = Task(
        name=_task_name(table),
        kind=kind,
        source=_source(kept, wanted_size, window),
        labels=kept.labels[:, 0] if kind == "binary" else kept.labels,
        label_names=columns.labels,
        parts=_parts(kept),
        groups=kept.groups,
        group_column=columns.group,
        metadata=kept.metadata,
        weights=kept.weights,
        ids=kept.ids,
    )
    return task, _report(scan, kept, skip_bad=skip_bad, size=wanted_size)


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
    kept, wanted_size, fatal = _kept(scan, size, skip_bad=skip_bad)
    if not len(kept.lines):
        raise ValueError(f"{scan.name}: all rows were left out because of problems, so there is nothing to predict.")
    if fatal or (scan.problems and not skip_bad):
        raise TableError(scan.name, told_once(scan.problems, fatal), every_row=scan.all_bad)
    return TableInputs(
        source=_source(kept, wanted_size, window),
        ids=kept.ids,
        groups=kept.groups,
        metadata=kept.metadata,
        report=_report(scan, kept, skip_bad=skip_bad),
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


def _kept(scan: Scan, size: Size | None, *, skip_bad: bool) -> tuple[Scan, tuple[int, int] | None, list[Problem]]:
    """The rows to go on with, the size of their images, and what then still stands in the way."""
    bad_lines = scan.bad_lines if skip_bad else set()
    keep = ~np.isin(scan.lines, np.array(sorted(bad_lines), dtype=np.int64))
    fatal = whole_table_problems(scan, keep) if scan.columns.labels else []
    kept = scan.rows(keep)
    sizes = _sizes(kept)
    wanted_size = _wanted_size(sizes, size)
    if sizes and wanted_size is None:
        message = f"the images have {len(sizes)} sizes; name the one to resize them to, size=(height, width)"
        fatal.append(Problem(None, scan.columns.image, "differing sizes", message))
    return kept, wanted_size, fatal


def _parts(kept: Scan) -> dict[str, Indices]:
    parts = {name: np.flatnonzero(kept.parts == number) for number, name in enumerate(PART_NAMES)}
    return {name: members for name, members in parts.items() if len(members)}


def _sizes(kept: Scan) -> dict[tuple[int, int], int]:
    return dict(Counter(fact.size for fact in kept.facts))


def _wanted_size(sizes: Sizes, size: Size | None) -> tuple[int, int] | None:
    chosen = size(sizes) if callable(size) else size
    if chosen is not None:
        return as_size(chosen)
    return next(iter(sizes)) if len(sizes) == 1 else None


def _source(kept: Scan, size: tuple[int, int] | None, window: Window | None) -> Inputs:
    if kept.features is not None:
        return ArrayInputs(kept.features, feature_columns=kept.columns.features)
    assert kept.images is not None
    assert size is not None
    return ImageFileInputs(
        [path for path in kept.images.paths if path is not None],
        shape=(*size, max(fact.channels for fact in kept.facts)),
        file_digests=[fact.file_digest for fact in kept.facts],
        window=window,
    )


def _report(scan: Scan, kept: Scan, *, skip_bad: bool = False, size: tuple[int, int] | None = None) -> TableReport:
    """Of the rows that were kept; problems and the number of rows are of all."""
    columns, groups, labels = scan.columns, kept.groups, kept.labels
    metadata = kept.metadata if columns.labels else {}
    identical = equal_sets(kept.digests)

    def in_lines(sets: Iterable[Indices]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(kept.lines[where].tolist()) for where in sets)

    def disputed(where: Indices) -> bool:
        return bool(((labels[where] == 0).any(axis=0) & (labels[where] == 1).any(axis=0)).any())

    def shared(where: Indices) -> bool:
        return groups is not None and len(set(groups[where].tolist())) > 1

    positives, negatives = (
        {name: int((labels[:, place] == value).sum()) for place, name in enumerate(columns.labels)} for value in (1, 0)
    )
    sizes = _sizes(kept)
    cautions = list(label_cautions(positives, negatives, grouped=groups is not None)) if columns.labels else []
    cautions += name_cautions({name: column[kept.parts == TRAIN] for name, column in metadata.items()})
    if size is not None and (shrinking := shrinking_caution(sizes, size)) is not None:
        cautions.append(shrinking)
    if scan.cells.latin_1:
        cautions.append(NOT_UTF_8)
    return TableReport(
        path=scan.name,
        rows=len(scan.lines) + len(scan.cells.problems),
        labelled=int((~np.isnan(labels).all(axis=1)).sum()),
        unlabelled=int(kept.unlabelled.sum()),
        positives=positives,
        negatives=negatives,
        parts={name: len(members) for name, members in _parts(kept).items()},
        groups=None if groups is None else len(np.unique(groups)),
        group_column=columns.group,
        sizes=sizes,
        channels=max((fact.channels for fact in kept.facts), default=None),
        problems=tuple(scan.problems),
        skipped=tuple(sorted(scan.bad_lines)) if skip_bad else (),
        duplicates=in_lines(identical),
        leaks=leaks_of(
            kept.parts,
            kept.lines,
            groups=groups,
            identical=identical,
            images=kept.images is not None,
            names=kept.ids,
        ),
        largest_group=None if groups is None else largest_group(groups),
        disputed=in_lines(filter(disputed, identical)),
        shared=in_lines(filter(shared, identical)),
        alike=_alike(kept) if columns.labels else (),
        missing_codes=_missing_codes(kept, metadata),
        metadata={name: type_of(column) for name, column in metadata.items() if len(column)},
        few=few_of_a_class(positives, negatives),
        cautions=tuple(cautions),
    )


def _missing_codes(kept: Scan, metadata: Mapping[str, Array]) -> tuple[MissingCode, ...]:
    columns = {name: column for name, column in metadata.items() if column.dtype.kind == "f"}
    if kept.features is not None:
        columns |= {name: kept.features[:, place] for place, name in enumerate(kept.columns.features)}
    found = (missing_code(column, name) for name, column in columns.items())
    return tuple(one for one in found if one is not None)


def _alike(kept: Scan) -> tuple[Alike, ...]:
    """Patients, rows and categories that may be written in several ways; equal images are found by their pixels."""
    columns, found = kept.columns, list[Alike | None]()
    if kept.groups is not None:
        found.append(find_alike(kept.groups.tolist(), what="group", column=columns.group))
    if columns.id is not None:
        found.append(find_alike(kept.ids.tolist(), what="id", column=columns.id))
    for name, column in kept.metadata.items():
        if column.dtype.kind == "U":
            found.append(find_alike(column.tolist(), what="category", column=name))
    return tuple(one for one in found if one is not None)


def largest_group(groups: Array) -> LargestGroup | None:
    """The one with the most rows; rows without a name are of none."""
    names, counts = np.unique(groups[groups != ""], return_counts=True)
    place = int(counts.argmax()) if len(counts) else None
    return None if place is None else LargestGroup(name=str(names[place]), rows=int(counts[place]))
