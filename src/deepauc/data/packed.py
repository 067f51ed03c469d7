"""Packed sets: inputs decoded once into one plain .npy file, memory-mapped by any number of processes at no cost.

A packed set is a folder of .npy files and a `manifest.json`. It is written beside its place and moved there when it is
complete, so a folder that exists is whole, and an interrupted `pack` leaves at most a hidden `.NAME.packing-*` folder
that nothing reads. Packing changes nothing: a packed task has the data hash of the task that was packed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from deepauc.data.packed_manifest import (
    MANIFEST_NAME,
    Manifest,
    PackedFile,
    TaskFacts,
    check_file,
    read_manifest,
    write_array,
    write_manifest,
)
from deepauc.data.task import Array, Indices, Inputs, Task

Progress = Callable[[int, int], None]  # rows done, rows in all
Verify = Literal["quick", "full"]

_BLOCK_BYTES = 1 << 25
_CLASS_ROWS = "class_rows"


class PackedInputs:
    """The inputs of a packed set, memory-mapped; made by `open_packed`. Pickled, it travels as its folder's name."""

    def __init__(self, folder: Path, manifest: Manifest, arrays: dict[str, Array], inputs: Array) -> None:
        self.folder = folder
        self._manifest = manifest
        self._columns = arrays
        self._inputs = inputs

    @property
    def shape(self) -> tuple[int, ...]:
        return self._inputs.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._inputs.dtype

    def __len__(self) -> int:
        return len(self._inputs)

    def __call__(self, indices: Indices) -> Array:
        return self._inputs[indices]

    def digest(self) -> str:
        """That of the inputs that were packed: packing changes no data hash."""
        return self._manifest.source_digest

    def __reduce__(self) -> tuple[Callable[[str], PackedInputs], tuple[str]]:
        return open_packed, (str(self.folder),)

    def class_rows(self, value: Literal[0, 1], *, label: int = 0) -> Indices:
        """The rows labelled 0 or 1, ascending; unlabelled, uncertain and soft rows are in neither."""
        facts = self._task_facts()
        if value not in (0, 1) or not 0 <= label < len(facts.class_counts):
            raise ValueError(
                f"value must be 0 or 1, and label below {len(facts.class_counts)}, not {value} and {label}."
            )
        start = sum(sum(counts) for counts in facts.class_counts[:label]) + value * facts.class_counts[label][0]
        return self._columns[_CLASS_ROWS][start : start + facts.class_counts[label][value]]

    def task(self) -> Task:
        """The Task that was packed, reading its inputs from here."""
        facts, columns = self._task_facts(), self._columns

        def under(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}

        return Task(
            name=facts.name,
            kind=facts.kind,  # type: ignore[arg-type]  # Task checks it
            source=self,
            labels=columns["labels"],
            label_names=facts.label_names,
            parts=under("part:"),
            groups=columns.get("groups"),
            metadata=under("metadata:"),
            weights=columns.get("weights"),
            ids=columns.get("ids"),
        )

    def _task_facts(self) -> TaskFacts:
        if self._manifest.task is None:
            raise ValueError(f"{self.folder} holds inputs without labels: pack a Task, not its inputs alone.")
        return self._manifest.task


def pack(
    source: Task | Inputs,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PackedInputs:
    """Decode every input once and write them, with all a Task has, as a packed set; all of it or nothing.

    overwrite: replace a packed set that is there; any other folder is never touched.
    """
    place = Path(os.path.abspath(folder))
    inputs = source.source if isinstance(source, Task) else source
    if len(inputs) == 0:
        raise ValueError("there are no inputs to pack.")
    _require_free(place, overwrite=overwrite)
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}.packing-", dir=place.parent))
    try:
        work.chmod(0o755)  # others may read it, unlike a temporary folder
        file = write_array(
            work,
            "inputs.npy",
            _blocks(inputs, progress),
            shape=(len(inputs), *inputs.shape),
            dtype=np.dtype(inputs.dtype).newbyteorder("<"),
        )
        columns, facts = _write_task(work, source) if isinstance(source, Task) else ({}, None)
        digest = inputs.digest()
        write_manifest(work, Manifest(source_digest=digest, inputs=(file,), columns=columns, task=facts))
        _sync_folder(work)
        _move_into_place(work, place, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return open_packed(place)


def open_packed(
    folder: str | os.PathLike[str], *, verify: Verify = "quick", source: Task | Inputs | None = None
) -> PackedInputs:
    """Open a packed set. A file that is missing, cut off or altered is a ValueError that names it.

    verify: "quick" looks at the manifest and at each file's size, header, first and last 8 MiB; "full" reads it all.
    source: what was packed; if it has changed since (another digest), that is an error too.
    """
    if verify not in get_args(Verify):
        raise ValueError(f"verify must be 'quick' or 'full', not {verify!r}.")
    place = Path(os.path.abspath(folder))
    manifest = read_manifest(place)
    full = verify == "full"
    rows = manifest.inputs[0].shape[0]
    inputs = _map(place, manifest.inputs[0], full=full)
    images = inputs.dtype == np.uint8 and inputs.ndim == 4
    if not images and not (inputs.dtype == np.float32 and inputs.ndim == 2):
        raise ValueError(f"{place / manifest.inputs[0].name} holds neither images nor features. Pack the source again.")
    columns = {name: _map(place, file, full=full) for name, file in manifest.columns.items()}
    packed = PackedInputs(place, manifest, columns, inputs)
    _check_columns(place, manifest, columns, rows=rows)
    if source is not None:
        origin = source.source if isinstance(source, Task) else source
        if origin.digest() != packed.digest():
            raise ValueError(f"the source of {place} has changed since it was packed. Pack it again.")
    return packed


def _map(folder: Path, file: PackedFile, *, full: bool) -> Array:
    head_bytes = check_file(folder, file, full=full)
    if 0 in file.shape:  # nothing to map
        return np.empty(file.shape, dtype=np.dtype(file.dtype))
    mapped = np.memmap(folder / file.name, mode="r", dtype=np.dtype(file.dtype), offset=head_bytes, shape=file.shape)
    return mapped.view(np.ndarray)  # the same pages without the subclass's cost at each access


def _check_columns(folder: Path, manifest: Manifest, columns: dict[str, Array], *, rows: int) -> None:
    """A manifest that is well formed can still be wrong: what a Task does not check is checked here."""
    facts = manifest.task
    if facts is None:
        return
    class_rows = columns.get(_CLASS_ROWS)
    if (
        "labels" not in columns
        or class_rows is None
        or class_rows.dtype != np.int64
        or class_rows.shape != (sum(map(sum, facts.class_counts)),)
        or len(facts.class_counts) != len(facts.label_names)
    ):
        raise ValueError(f"{folder / MANIFEST_NAME} is damaged (labels or their index are missing). Pack again.")
    if any(counts[0] + counts[1] > rows for counts in facts.class_counts):
        raise ValueError(f"{folder / MANIFEST_NAME} is damaged (more labels than rows). Pack again.")


def _blocks(inputs: Inputs, progress: Progress | None) -> Iterator[Array]:
    rows = len(inputs)
    row_bytes = max(1, int(np.prod(inputs.shape)) * np.dtype(inputs.dtype).itemsize)
    step = max(1, _BLOCK_BYTES // row_bytes)
    for start in range(0, rows, step):
        block = inputs(np.arange(start, min(start + step, rows)))
        if block.shape != (min(step, rows - start), *inputs.shape) or block.dtype != inputs.dtype:
            raise ValueError(
                f"the inputs {start} and following came as {block.dtype} {block.shape}, "
                f"not as {inputs.dtype} (n, {', '.join(map(str, inputs.shape))})."
            )
        yield block
        if progress is not None:
            progress(start + len(block), rows)


def _write_task(folder: Path, task: Task) -> tuple[dict[str, PackedFile], TaskFacts]:
    class_rows, counts = _index_classes(task)
    arrays: dict[str, Array] = {"labels": task.labels, _CLASS_ROWS: class_rows}
    for name, column in (("groups", task.groups), ("weights", task.weights), ("ids", task.ids)):
        if column is not None:
            arrays[name] = column
    arrays |= {f"part:{name}": rows for name, rows in task.parts.items()}
    arrays |= {f"metadata:{name}": column for name, column in task.metadata.items()}
    files = {}
    for number, (name, array) in enumerate(arrays.items()):
        plain = array.astype(str) if array.dtype.kind not in "biufSU" else array
        plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
        files[name] = write_array(folder, f"column-{number:03d}.npy", [plain], shape=plain.shape, dtype=plain.dtype)
    facts = TaskFacts(name=task.name, kind=task.kind, label_names=task.label_names, class_counts=counts)
    return files, facts


def _index_classes(task: Task) -> tuple[Indices, tuple[tuple[int, int], ...]]:
    labels = task.labels.reshape(len(task), task.num_labels)
    found = [[np.flatnonzero(labels[:, label] == value) for value in (0, 1)] for label in range(task.num_labels)]
    rows = np.concatenate([rows for pair in found for rows in pair]).astype(np.int64)
    return rows, tuple((len(negatives), len(positives)) for negatives, positives in found)


def _require_free(place: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(place):
        return
    if not (place / MANIFEST_NAME).is_file():
        raise ValueError(f"{place} is there and is no packed set. Choose another folder.")
    if not overwrite:
        raise ValueError(f"{place} is there already. Open it with open_packed, or pass overwrite=True.")


def _move_into_place(work: Path, place: Path, *, overwrite: bool) -> None:
    _require_free(place, overwrite=overwrite)  # again: packing may have taken hours
    old = None
    if place.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{place.name}.packing-", dir=place.parent))
        os.rename(place, old)  # onto the empty folder; processes that have it open keep what they mapped
    os.rename(work, place)
    _sync_folder(place.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
