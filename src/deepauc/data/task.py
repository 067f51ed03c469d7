"""A `Task`: inputs, labels, parts and patients of one classification problem, declared and never inferred."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from deepauc.labels import require_groups, scale_free_array
from deepauc.names import counted, in_one_form

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Kind = Literal["binary", "multilabel"]

PART_NAMES = ("train", "validation", "test")
UNCERTAIN = -1.0  # CheXpert's mark; `data.uncertain.resolve` turns it into a label
_DIGEST_CHUNK_BYTES = 1 << 24


@runtime_checkable
class Inputs(Protocol):
    """What a Task reads its images or features from."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (H, W, C) for uint8 images, (F,) for float32 features."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __call__(self, indices: Indices) -> Array:
        """The inputs of these rows, (n, H, W, C) uint8 or (n, F) float32."""

    def digest(self) -> str:
        """SHA-256 (hex) of the content: equal inputs in equal order have equal digests, on every machine."""


@runtime_checkable
class SelectsRows(Protocol):
    """Inputs that make a selection of themselves: bags, whose rows are several inputs each."""

    def select(self, rows: Indices) -> Inputs: ...


class ArrayInputs:
    """Inputs that lie in one array, in memory or memory-mapped.

    Args:
        array: (N, H, W[, C]) uint8 or (N, F) float.
        feature_columns: What the F features are called, where that is known; no part of the digest.
    """

    def __init__(self, array: Array, *, feature_columns: Sequence[str] = ()) -> None:
        if array.dtype == np.uint8 and array.ndim == 3:
            array = array[..., None]
        elif np.issubdtype(array.dtype, np.floating) and array.ndim == 2:
            array = array.astype(np.float32, copy=False)
        if not _is_input(array.shape[1:], array.dtype):
            raise ValueError(
                f"inputs of shape {array.shape} and type {array.dtype} are neither images, uint8 (N, H, W, C), "
                "nor features, float32 (N, F)."
            )
        if feature_columns and (array.ndim != 2 or len(feature_columns) != array.shape[1]):
            raise ValueError(f"{len(feature_columns)} feature columns do not fit inputs of shape {array.shape}.")
        self.array = array
        self.feature_columns = tuple(feature_columns)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __call__(self, indices: Indices) -> Array:
        return np.asarray(self.array[indices])

    @cached_property
    def _digest(self) -> str:
        # Chunk by chunk: a memory-mapped set larger than memory has a digest too.
        sha = hashlib.sha256(f"{self.dtype.name}{self.array.shape}".encode())
        row_bytes = max(1, int(np.prod(self.shape)) * self.dtype.itemsize)
        step = max(1, _DIGEST_CHUNK_BYTES // row_bytes)
        for start in range(0, len(self), step):
            sha.update(_canonical(self.array[start : start + step]))
        return sha.hexdigest()

    def digest(self) -> str:
        return self._digest


class SelectedInputs:
    """Some rows of other inputs, in the order given."""

    def __init__(self, source: Inputs, rows: Indices) -> None:
        self.source = source
        self.rows = np.asarray(rows, dtype=np.int64)
        self.window = getattr(source, "window", None)  # of image files, see `data.images.decode`
        self.feature_columns = feature_columns(source)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, indices: Indices) -> Array:
        return self.source(self.rows[indices])

    def digest(self) -> str:
        return hashlib.sha256(self.source.digest().encode() + _canonical(self.rows)).hexdigest()


def feature_columns(source: Inputs) -> tuple[str, ...]:
    """What the features of these inputs are called, in order; nothing where that is not known, or they are images."""
    return tuple(getattr(source, "feature_columns", ()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One classification problem: what goes in, what is to be told, and who is in which part.

    There are N rows and L labels. Rows of the training part may have soft labels, in [0, 1]. A row without any label is
    unlabelled: it may be in train, never in validation or test.

    Args:
        name: What reports call it.
        kind: "binary", or "multilabel".
        source: The inputs, such as `ArrayInputs`.
        labels: (N,) for binary, (N, L) for multilabel: 0 and 1, NaN where missing, -1 where uncertain
            (`data.uncertain.resolve` decides).
        label_names: One per label.
        parts: Row numbers of train, validation and test, disjoint; any may be absent, and a row need not be in one.
        groups: (N,) the patient of each row.
        group_column: What the table calls them, for messages; no part of the data hash.
        metadata: Columns of (N, ...).
        weights: (N,) finite, not negative.
        ids: (N,) file names or row numbers.
    """

    name: str
    kind: Kind
    source: Inputs
    labels: Floats
    label_names: tuple[str, ...]
    parts: Mapping[str, Indices]
    groups: Array | None = None
    group_column: str | None = None
    metadata: Mapping[str, Array] = field(default_factory=dict)
    weights: Floats | None = None
    ids: Array | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be 'binary' or 'multilabel', not {self.kind!r}.")
        if not _is_input(self.source.shape, np.dtype(self.source.dtype)):
            raise ValueError(
                f"one input has shape {tuple(self.source.shape)} and type {self.source.dtype}; images are uint8 "
                "(H, W, C), features are float32 (F,)."
            )
        rows = len(self.source)
        set_ = object.__setattr__  # frozen for others; here the fields get their one canonical form
        set_(self, "label_names", tuple(self.label_names))
        set_(self, "labels", _checked_labels(self.labels, kind=self.kind, names=self.label_names, rows=rows))
        set_(self, "parts", _checked_parts(self.parts, rows=rows))
        for name in ("groups", "ids"):
            column = getattr(self, name)
            if name == "groups" and column is not None:
                require_groups(column, np.asarray(column))
            set_(self, name, None if column is None else _frozen(in_one_form(_column(column, name, rows).astype(str))))
        metadata = {str(name): in_one_form(_column(one, str(name), rows)) for name, one in self.metadata.items()}
        set_(self, "metadata", {name: _frozen(column.copy()) for name, column in metadata.items()})
        if self.weights is not None:
            weights = _column(self.weights, "weights", rows).astype(np.float64)
            if not (np.isfinite(weights).all() and (weights >= 0).all()):
                raise ValueError("weights must be finite and not negative.")
            set_(self, "weights", _frozen(single_precision_weights(weights)))
        self._check_labelled()

    def _check_labelled(self) -> None:
        unlabelled = self._unlabelled
        if unlabelled.all():
            raise ValueError("no labelled row is left: give at least one row a label of 0 or 1.")
        for part, rows in self.parts.items():
            if part == "train":
                if len(rows) and unlabelled[rows].all():
                    raise ValueError("no labelled row is left in the training part.")
                continue
            if (count := int(unlabelled[rows].sum())) > 0:
                raise ValueError(
                    f"the {part} part has unlabelled rows: {count} (the first is row "
                    f"{int(rows[unlabelled[rows]][0])}). Unlabelled rows may be in train only."
                )
            soft = self.labels[rows]
            if ((soft > 0) & (soft < 1)).any():
                raise ValueError(f"the {part} part holds soft labels. Only the training part may; use 0 and 1 here.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @cached_property
    def _unlabelled(self) -> npt.NDArray[np.bool_]:
        return np.asarray(np.isnan(self.labels.reshape(len(self.labels), self.num_labels)).all(axis=1))

    def inputs(self, indices: npt.ArrayLike) -> Array:
        """The rows' inputs: (n, H, W, C) uint8 images or (n, F) float32 features."""
        return self.source(np.asarray(indices, dtype=np.int64))

    def part(self, name: str) -> Indices:
        """Row numbers of a part; a ValueError names the parts there are."""
        if name not in self.parts:
            there = ", ".join(self.parts) or "none"
            raise ValueError(f"task {self.name!r} has no {name} part (it has: {there}).")
        return self.parts[name]

    def labelled(self, part: str = "train") -> Indices:
        """Rows of the part that have at least one label (an uncertain one counts)."""
        rows = self.part(part)
        return rows[~self._unlabelled[rows]]

    def unlabelled(self, part: str = "train") -> Indices:
        """Rows of the part that have no label at all."""
        rows = self.part(part)
        return rows[self._unlabelled[rows]]

    def positive_share(self, part: str = "train") -> npt.NDArray[np.float64]:
        """Per label, the mean of the known labels in the part, of shape (L,); NaN where none is known."""
        labels = self.labels[self.part(part)].reshape(-1, self.num_labels).astype(np.float64)
        known = labels >= 0  # neither missing (NaN) nor uncertain (-1)
        count = known.sum(axis=0)
        share = np.where(known, labels, 0.0).sum(axis=0) / np.maximum(count, 1)
        return np.where(count > 0, share, np.nan)

    def with_parts(self, parts: Mapping[str, Indices]) -> Task:
        """The same rows in other parts."""
        return replace(self, parts=parts)

    def with_labels(self, labels: Array) -> Task:
        """The same rows with other labels of the same shape."""
        return replace(self, labels=np.asarray(labels, dtype=np.float32))

    def subset(self, rows: npt.ArrayLike) -> Task:
        """Only these rows, in this order; parts are renumbered, and a part that loses all its rows is dropped."""
        kept = np.asarray(rows, dtype=np.int64)
        position = np.full(len(self), -1, dtype=np.int64)
        position[kept] = np.arange(len(kept))
        if len(np.unique(kept)) != len(kept):
            raise ValueError("subset: a row is given twice. Name each row once.")
        parts = {name: np.sort(position[part][position[part] >= 0]) for name, part in self.parts.items()}
        source = self.source
        return replace(
            self,
            source=source.select(kept) if isinstance(source, SelectsRows) else SelectedInputs(source, kept),
            labels=self.labels[kept],
            parts={name: part for name, part in parts.items() if len(part)},
            groups=None if self.groups is None else self.groups[kept],
            metadata={name: column[kept] for name, column in self.metadata.items()},
            weights=None if self.weights is None else self.weights[kept],
            ids=None if self.ids is None else self.ids[kept],
        )

    @cached_property
    def _data_hash(self) -> str:
        sha = hashlib.sha256()

        def add(name: str, content: bytes) -> None:
            sha.update(f"{name}:{len(content)}:".encode())  # framed, so that no two tasks run into each other
            sha.update(content)

        add("kind", self.kind.encode())
        add("source", self.source.digest().encode())
        add("label_names", _canonical(np.array(self.label_names, dtype=str)))
        add("labels", _canonical(self.labels))
        for part in sorted(self.parts):
            add(f"part {part}", _canonical(self.parts[part]))
        for name, column in (("groups", self.groups), ("weights", self.weights)):
            if column is not None:
                add(name, _canonical(column))
        for name in sorted(self.metadata):
            add(f"metadata {name}", _canonical(self.metadata[name]))
        return sha.hexdigest()

    def data_hash(self) -> str:
        """SHA-256 over all that a result can depend on; the names of the task and of its rows are left out."""
        return self._data_hash


def _is_input(shape: Sequence[int], dtype: np.dtype[Any]) -> bool:
    return (len(shape) == 3 and dtype == np.uint8) or (len(shape) == 1 and dtype == np.float32)


def single_precision_weights(weights: npt.NDArray[np.float64]) -> Floats:
    """As float32; scaled where they would leave its reach, since their ratios are all that counts."""
    within = 2.0**-100 < weights.max(initial=0.0) < 2.0**100
    return (weights if within else scale_free_array(weights)).astype(np.float32)


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _column(values: Any, name: str, rows: int) -> Array:
    column = np.asarray(values)
    if column.ndim == 0 or len(column) != rows:
        raise ValueError(f"{name} has shape {column.shape}; there are {rows} inputs, and each needs one entry.")
    return column


def _checked_labels(labels: Array, *, kind: Kind, names: tuple[str, ...], rows: int) -> Floats:
    values = np.asarray(labels)
    if not (np.issubdtype(values.dtype, np.number) or values.dtype == np.bool_):
        raise ValueError(f"labels must be numbers, not {values.dtype}. Map the class names to 0 and 1.")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"label_names must be distinct and not empty, not {names!r}.")
    if kind == "binary" and len(names) != 1:
        raise ValueError(f"a binary task has one label name, not {len(names)}. Declare kind='multilabel' for several.")
    expected = (rows,) if kind == "binary" else (rows, len(names))
    if values.shape != expected:
        raise ValueError(
            f"labels have shape {values.shape}, but a {kind} task of {counted(rows, 'row')} and "
            f"{counted(len(names), 'label')} needs {expected}."
        )
    floats = values.astype(np.float32)
    bad = ~(((floats >= 0) & (floats <= 1)) | np.isnan(floats) | (floats == UNCERTAIN))
    if bad.any():
        shown = ", ".join(f"{v:g}" for v in np.unique(floats[bad])[:5])
        raise ValueError(
            f"labels must be 0 or 1 (NaN where missing, -1 where uncertain, in [0, 1] where soft), but hold {shown}. "
            "Name the positive class, for example (labels == 3), or give one 0/1 column per class."
        )
    return _frozen(floats)


def _checked_parts(parts: Mapping[str, Array], *, rows: int) -> dict[str, Indices]:
    owner = np.full(rows, -1, dtype=np.int8)
    checked: dict[str, Indices] = {}
    for name, indices in parts.items():
        if name not in PART_NAMES:
            raise ValueError(f"{name!r} is not a part; the parts are {', '.join(PART_NAMES)}.")
        part = np.asarray(indices)
        if part.ndim != 1 or not (np.issubdtype(part.dtype, np.integer) or part.size == 0):
            raise ValueError(f"the {name} part must be a flat array of row numbers.")
        part = part.astype(np.int64)
        if part.size and (part.min() < 0 or part.max() >= rows):
            raise ValueError(f"the {name} part holds a row number outside 0 to {rows - 1}.")
        if len(np.unique(part)) != len(part):
            raise ValueError(f"the {name} part holds a row twice.")
        if (taken := owner[part] >= 0).any():
            row = int(part[taken][0])
            raise ValueError(f"row {row} is in {name} and in {PART_NAMES[owner[row]]}; parts must be disjoint.")
        owner[part] = PART_NAMES.index(name)
        checked[name] = _frozen(part)
    return checked


def _canonical(array: Array) -> bytes:
    """Bytes that are the same on every machine: little-endian numbers, one NaN, strings framed as UTF-8."""
    array = np.asarray(array)
    if array.dtype.kind in "biuf":
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), array.dtype.type(np.nan), array) + array.dtype.type(0)  # -0 is 0
        return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    encoded = [str(value).encode(errors="surrogatepass") for value in array.ravel()]
    lengths = np.array([len(value) for value in encoded], dtype="<i8").tobytes()
    return lengths + b"".join(encoded)
