"""One pass over a table: every column read, every image decoded once, every problem noted with its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.data.images.decode import ImageFacts, Window
from deepauc.data.splits import equal_sets
from deepauc.data.table.columns import (
    LABELS,
    NO_PART,
    comma_problems,
    id_problems,
    number_problems,
    parse_features,
    parse_groups,
    parse_labels,
    parse_metadata,
    parse_parts,
    parse_weights,
    too_close,
)
from deepauc.data.table.compact import TextColumn
from deepauc.data.table.frame import Table, name_of
from deepauc.data.table.image_files import ImageColumn, examine_column
from deepauc.data.table.label_values import value_problems
from deepauc.data.table.problems import Problem, ProblemKind
from deepauc.data.table.rows import TableRows, as_digests, read_rows, row_digest
from deepauc.data.task import PART_NAMES, Array, Floats, Indices
from deepauc.labels import NO_NAME
from deepauc.names import counted

Mask = npt.NDArray[np.bool_]
TRAIN = PART_NAMES.index("train")
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Which column of a table means what. Inputs are images or features; without either, the metadata are all there is.

    categories: metadata that are text, whatever they look like. numbers: those of the metadata that must be numbers;
    None, where metadata are the inputs: those that mostly are.
    """

    labels: tuple[str, ...]
    positive: str | None = None  # the label that is 1, where labels are not 0 and 1
    image: str | None = None
    features: tuple[str, ...] = ()
    group: str | None = None
    id: str | None = None
    split: str | None = None
    weight: str | None = None
    metadata: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    numbers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.image is not None and self.features) or not (self.image or self.features or self.all_metadata):
            raise ValueError("name either an image column or feature columns, not both.")
        if self.image is not None and self.id is not None:
            raise ValueError("rows of images are identified by their file names: leave out the id column.")
        single = [name for name in (self.image, self.group, self.id, self.split, self.weight) if name is not None]
        inputs = self.all_metadata if self.metadata_only else self.features
        counts = Counter([*inputs, *single, *self.labels])
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"column {twice[0]!r} is named for two purposes: name it for one.")
        if answers := set(self.labels) & set(self.all_metadata):
            raise ValueError(
                f"column {min(answers)!r} is a label, which would give the answer away: name it neither as metadata "
                "nor for the folds."
            )

    @property
    def all_metadata(self) -> tuple[str, ...]:
        return (*self.metadata, *self.categories)

    @property
    def metadata_only(self) -> bool:
        return self.image is None and not self.features

    def wanted(self) -> list[str]:
        """All of them, each once."""
        single = [self.group, self.id, self.split, self.weight]
        given = [self.image, *self.labels, *self.features, *single, *self.all_metadata]
        return list(dict.fromkeys(name for name in given if name is not None))

    def numbers_only(self) -> set[str]:
        """Columns whose text nobody asks for. Of a weight that is refused, or metadata, it is told or kept."""
        return set(self.features) - set(self.all_metadata)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A table's N rows as arrays; a cell that could not be read holds a neutral value and has its problem."""

    name: str  # of the table, in messages
    columns: TableColumns
    cells: TableRows
    metadata_cells: Mapping[str, TextColumn]  # with decimal points
    lines: Indices  # (N,) where each row starts in the file; in a DataFrame its place
    labels: Floats  # (N, L)
    unlabelled: Mask  # (N,) all label cells empty
    parts: Indices  # (N,) number of the part the row belongs in, or NO_PART
    images: ImageColumn | None
    features: Floats | None  # (N, F)
    blurred: Sequence[Problem]  # of whole columns of these
    groups: Array | None
    weights: Floats | None
    digests: Array  # (N,) equal for equal inputs
    problems: list[Problem]  # of single rows, in order of the rows

    @property
    def bad_lines(self) -> set[int]:
        return {problem.row for problem in self.problems if problem.row is not None}

    @property
    def all_bad(self) -> bool:
        return len(self.bad_lines) == len(self.lines)

    @property
    def facts(self) -> list[ImageFacts]:
        """What the images that can be decoded have shown."""
        return [] if self.images is None else [fact for fact in self.images.facts if fact is not None]

    @cached_property
    def ids(self) -> Array:
        """(N,) names of the rows: of their images, else by the column of ids, else their lines."""
        if (named := self.columns.image or self.columns.id) is not None:
            return self.cells.columns[named].names()
        return self.lines.astype(f"U{len(str(self.lines.max(initial=0)))}")

    @cached_property
    def metadata(self) -> dict[str, Array]:
        return {
            name: column.names() if name in self.columns.categories else parse_metadata(column)
            for name, column in self.metadata_cells.items()
        }

    def rows(self, keep: Mask) -> Scan:
        """Those where `keep`, (N,), is true. The problems remain those of all."""
        if keep.all():
            return self  # without a second copy of the features
        cells = {name: column.rows(keep) for name, column in self.cells.columns.items()}
        return replace(
            self,
            cells=replace(self.cells, columns=cells),
            metadata_cells={name: column.rows(keep) for name, column in self.metadata_cells.items()},
            lines=self.lines[keep],
            labels=self.labels[keep],
            unlabelled=self.unlabelled[keep],
            parts=self.parts[keep],
            images=None if self.images is None else self.images.rows(keep),
            features=None if self.features is None else self.features[keep],
            groups=None if self.groups is None else self.groups[keep],
            weights=None if self.weights is None else self.weights[keep],
            digests=self.digests[keep],
        )


def scan_table(
    table: Table,
    columns: TableColumns,
    *,
    image_root: str | Path | None,
    window: Window | None,
    allow_outside: bool,
    allow_duplicates: bool,
    progress: Callable[[int, int], None] | None,
) -> Scan:
    """Read and check everything; a ValueError only where there is no table to speak of."""
    cells = read_rows(table, columns.wanted(), numbers=columns.numbers_only())
    lines, text, problems = cells.lines, cells.columns, list(cells.problems)

    labels = np.empty((len(lines), len(columns.labels)), dtype=np.float32)
    for place, name in enumerate(columns.labels):
        labels[:, place], found = parse_labels(text[name], lines, name, positive=columns.positive)
        problems += found
    unlabelled = np.asarray(np.isnan(labels).all(axis=1)) & ~_in_rows(lines, problems)

    groups = weights = None
    if columns.group is not None:
        groups, found = parse_groups(text[columns.group], lines, columns.group)
        problems += found
    if columns.id is not None:
        problems += id_problems(text[columns.id], lines, columns.id, may_repeat=allow_duplicates)
    if columns.weight is not None:
        weights, found = parse_weights(cells.pointed(columns.weight), lines, columns.weight)
        problems += found
    parts = np.full(len(lines), TRAIN, dtype=np.int64)
    if columns.split is not None:
        given, found = parse_parts(text[columns.split], lines, columns.split, unlabelled=unlabelled)
        problems += found
        parts = _parts_of_unlabelled(given, unlabelled, groups)

    metadata = {name: cells.pointed(name) for name in columns.all_metadata}
    if columns.image is not None:
        images = examine_column(
            text[columns.image],
            lines,
            columns.image,
            folder=_image_folder(table, image_root),
            allow_outside=allow_outside,
            window=window,
            progress=progress,
        )
        inputs = _image_inputs(images)
    elif columns.features:
        inputs = _feature_inputs(cells, columns.features, progress=progress)
    else:
        inputs = _metadata_inputs(cells, metadata.values())
    problems += inputs.problems
    declared = columns.numbers is not None
    commas = [
        problem
        for name in (columns.metadata if columns.labels and not cells.decimal_commas else ())
        for problem in comma_problems(text[name], name)
    ]
    for name in columns.numbers or (columns.metadata if columns.metadata_only and not declared else ()):
        problems += number_problems(metadata[name], lines, name, declared=declared)

    scan = Scan(
        name=name_of(table),
        columns=columns,
        cells=replace(cells, number_columns={}),  # `features` has them, in half the room
        metadata_cells=metadata,
        lines=np.array(lines, dtype=np.int64),
        labels=labels,
        unlabelled=unlabelled,
        parts=parts,
        images=inputs.images,
        features=inputs.features,
        blurred=[*inputs.blurred, *commas],
        groups=groups,
        weights=weights,
        digests=inputs.digests,
        problems=problems,
    )
    if not allow_duplicates:
        problems += [*_repeated_rows(scan, inputs.identity), *_files_of_one_name(scan)]
    problems += _patients_in_two_parts(scan)
    problems.sort(key=lambda problem: problem.row or 0)
    return scan


def _image_folder(table: Table, image_root: str | Path | None) -> Path:
    """Where the paths of images begin: at the table, and a DataFrame lies nowhere but where one is."""
    if image_root is not None:
        return Path(image_root)
    return Path(table).parent if isinstance(table, str | Path) else Path()


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """One of the two: images, or features. identity: equal for rows that are one row written twice."""

    images: ImageColumn | None = None
    features: Floats | None = None  # (N, F)
    blurred: Sequence[Problem] = ()
    digests: Array  # (N,) equal for equal inputs
    identity: Array  # (N,)
    problems: Sequence[Problem]


def _image_inputs(images: ImageColumn) -> _Inputs:
    return _Inputs(
        images=images,
        # A file that was not found or not decoded equals no other.
        digests=_digests(
            str(row).encode() if fact is None else fact.pixel_digest for row, fact in enumerate(images.facts)
        ),
        identity=_digests((path or str(row)).encode(errors="surrogatepass") for row, path in enumerate(images.paths)),
        problems=images.problems,
    )


def _feature_inputs(
    cells: TableRows, columns: Sequence[str], *, progress: Callable[[int, int], None] | None
) -> _Inputs:
    lines, problems, blurred = cells.lines, list[Problem](), list[Problem]()
    features = np.empty((len(lines), len(columns)), dtype=np.float32)
    for place, name in enumerate(columns):
        values, found = parse_features(cells.numbers(name), lines, name)
        features[:, place] = values
        problems += found
        blurred += [] if found else too_close(values, name)
        if progress is not None:
            progress((place + 1) * len(lines) // len(columns), len(lines))
    bad = _in_rows(lines, [problem for problem in problems if problem.kind == "NaN feature"])
    digests = _digests(
        str(row).encode() if bad[row] else one  # a row that could not be read equals no other
        for row, one in enumerate(_rows_of_bytes(features))
    )
    return _Inputs(features=features, blurred=blurred, digests=digests, identity=cells.digests, problems=problems)


def _metadata_inputs(cells: TableRows, columns: Iterable[TextColumn]) -> _Inputs:
    """Rows without a feature of their own: what is made of the metadata follows from the training part."""
    digests = _digests(repr(row).encode() for row in zip(*columns, strict=True))
    features = np.empty((len(cells), 0), dtype=np.float32)
    return _Inputs(features=features, digests=digests, identity=cells.digests, problems=())


def whole_table_problems(scan: Scan, keep: Mask) -> list[Problem]:
    """Problems of the rows to be kept that no single row has: nothing labelled, one class only, ..."""
    labels, of_values = scan.labels[keep], _label_values(scan, keep)
    if np.isnan(labels).all():
        message = "no labelled row is left: give at least one row of each class a label"
        left = [] if of_values else [Problem(None, None, "no labelled row", message)]
        return [*of_values, *scan.blurred, *left]
    told = {problem.column for problem in of_values}
    one_class = [problem for problem in _one_class(scan, keep, "the table") if problem.column not in told]
    problems: list[Problem] = [*of_values, *scan.blurred, *one_class]
    if scan.columns.split is not None:
        for number, name in enumerate(PART_NAMES):
            found = _one_class(scan, keep & (scan.parts == number), f"the {name} part")
            # A rare label may be missing from a part that only evaluates, as long as another can be evaluated.
            if len(found) == len(scan.columns.labels) or number == TRAIN:
                problems += [p for p in found if all(p.column != other.column for other in problems)]
    if scan.weights is not None:
        unread = [one for one in scan.problems if one.kind == "bad weight"]  # they stand as 0
        keep = keep & ~_in_rows(scan.lines, unread)
    if scan.weights is not None and keep.any() and not (scan.weights[keep] > 0).any():
        problems.append(Problem(None, scan.columns.weight, "bad weight", "every weight is 0"))
    return problems


def told_once(rows: Sequence[Problem], whole: Sequence[Problem]) -> list[Problem]:
    """All problems, less those of rows whose label value a problem of the whole column explains.

    A value that a single row holds stays: it may be a typing error.
    """
    kind: ProblemKind = "unknown label value"
    explained = {one.column for one in whole if one.kind == kind}
    alike = Counter((one.column, one.message) for one in rows if one.kind == kind)
    mine = [one for one in rows if one.column not in explained or alike[one.column, one.message] <= 1]
    return [*mine, *whole]


def _label_values(scan: Scan, keep: Mask) -> list[Problem]:
    unknown = {problem.column for problem in scan.problems if problem.kind == "unknown label value"}
    found = []
    for name in scan.columns.labels:
        if name in unknown or scan.columns.positive is not None or not keep.all():
            cells = scan.cells.columns[name]
            found += value_problems(cells, name, known=LABELS, positive=scan.columns.positive, keep=keep)
    return found


def _one_class(scan: Scan, rows: Mask, place: str) -> list[Problem]:
    if not rows.any():
        return []
    positives, negatives = (scan.labels[rows] == 1).sum(axis=0), (scan.labels[rows] == 0).sum(axis=0)
    there = [
        f"{counted(int(p), 'positive')} and {counted(int(n), 'negative')}"
        for p, n in zip(positives, negatives, strict=True)
    ]
    return [
        Problem(None, scan.columns.labels[label], "one class only", f"{place} has {there[label]}; both are needed")
        for label in np.flatnonzero((positives == 0) | (negatives == 0))
    ]


def _parts_of_unlabelled(given: Indices, unlabelled: Mask, groups: Array | None) -> Indices:
    """Unlabelled rows are in no validation or test part; without a split of their own they join train.

    They do not where their patient is held out: the pictures of a test patient teach nobody.
    """
    parts = given.copy()
    parts[unlabelled & (given > TRAIN)] = NO_PART
    joins = unlabelled & (given == NO_PART)
    if groups is not None:
        joins &= ~np.isin(groups, groups[given > TRAIN])
    parts[joins] = TRAIN
    return parts


def _repeated_rows(scan: Scan, identity: Array) -> list[Problem]:
    problems = []
    for first, *others in equal_sets(identity):
        for row in others:
            same = np.array_equal(scan.labels[row], scan.labels[first], equal_nan=True)
            what = "the same row" if scan.images is None else "the same image"
            message = f"{what} as in row {scan.lines[first]}{'' if same else ', with another label'}"
            line, column = int(scan.lines[row]), scan.columns.image
            problems.append(Problem(line, column, "duplicate row", message))
    return problems


def _files_of_one_name(scan: Scan) -> list[Problem]:
    """Different image files whose names are the same in one form: a row is called by its file."""
    if scan.images is None or scan.columns.image is None:
        return []
    cells = scan.cells.columns[scan.columns.image]
    names, problems = cells.names(), list[Problem]()
    if (names == np.array([cell.strip() for cell in cells], dtype=str)).all():
        return []  # no name was changed; a file that is named twice is a repeated row
    for first, *others in equal_sets(names):
        for row in others:
            if scan.images.paths[row] != scan.images.paths[first]:
                message = f"its name looks like that of another file, in row {scan.lines[first]}: rename one of them"
                line, column = int(scan.lines[row]), scan.columns.image
                problems.append(Problem(line, column, "duplicate id", message))
    return problems


def _patients_in_two_parts(scan: Scan) -> list[Problem]:
    """A problem for each row that would have to go: train gives way to validation, and both to test."""
    problems: list[Problem] = []
    for where in [] if scan.groups is None else equal_sets(scan.groups):
        last = where[np.argmax(scan.parts[where])]
        name = str(scan.groups[last]) if scan.groups is not None else ""
        for row in where if name not in NO_NAME else ():  # an empty name is a problem of its own
            if NO_PART < scan.parts[row] < scan.parts[last]:
                here, there = PART_NAMES[scan.parts[row]], PART_NAMES[scan.parts[last]]
                message = f"{name} is in {here} here and in {there} in row {scan.lines[last]}"
                line, column = int(scan.lines[row]), scan.columns.group
                problems.append(Problem(line, column, "patient in two splits", message))
    return problems


def _in_rows(lines: Sequence[int] | Indices, problems: Iterable[Problem]) -> Mask:
    rows = [problem.row for problem in problems if problem.row is not None]
    return np.isin(np.array(lines, dtype=np.int64), np.array(rows, dtype=np.int64))


def _digests(contents: Iterable[bytes]) -> Array:
    found = bytearray()
    for content in contents:
        found += row_digest(content)
    return as_digests(found)


def _rows_of_bytes(features: Floats) -> Iterator[bytes]:
    """The numbers of each row, (N, F), as bytes; minus zero is zero."""
    width = features.itemsize * features.shape[1]
    for start in range(0, len(features), _ROWS_AT_ONCE):
        content = (features[start : start + _ROWS_AT_ONCE] + np.float32(0)).tobytes()
        for place in range(0, len(content), width):
            yield content[place : place + width]
