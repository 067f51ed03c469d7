"""Packed sets: inputs decoded once into plain .npy files, memory-mapped by any number of processes at no cost.

A packed set is a folder of .npy files and a `manifest.json`. It is written beside its place and moved there when it is
complete, so a folder that exists is whole, and an interrupted `pack` leaves at most a hidden `.NAME.packing-*` folder
that nothing reads. Packing changes nothing: a packed task has the data hash of the task that was packed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from deepauc.data.npy import require_unicode
from deepauc.data.packed.manifest import (
    MANIFEST_NAME,
    Manifest,
    PackedFile,
    TaskFacts,
    check_file,
    read_manifest,
    write_array,
    write_manifest,
)
from deepauc.data.packed.place import move_into_place, require_free, work_folder
from deepauc.data.task import Array, Indices, Inputs, Task, feature_columns

Progress = Callable[[int, int], None]  # rows done, rows in all
Verify = Literal["quick", "full"]

_BLOCK_BYTES = 1 << 25


class PackedInputs:
    """The inputs of a packed set, memory-mapped; made by `open_packed`. Pickled, it travels as its folder's name.

    arrays: files of inputs that follow one another; row i of the whole is found in the one it falls into.
    """

    def __init__(self, folder: Path, manifest: Manifest, columns: dict[str, Array], arrays: Sequence[Array]) -> None:
        self.folder = folder
        self._manifest = manifest
        self._columns = columns
        self._arrays = tuple(arrays)
        self._starts = np.cumsum([0, *map(len, arrays)])
        self.shape: tuple[int, ...] = arrays[0].shape[1:]
        self.dtype = arrays[0].dtype
        self.window = manifest.window
        self.feature_columns = manifest.feature_columns

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __call__(self, indices: Indices) -> Array:
        if len(self._arrays) == 1:
            return self._arrays[0][indices]
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"row numbers {rows.min()} to {rows.max()} are outside 0 to {len(self) - 1}.")
        rows = np.where(rows < 0, rows + len(self), rows)
        found = np.empty((len(rows), *self.shape), dtype=self.dtype)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers):
            mine = numbers == number
            found[mine] = self._arrays[number][rows[mine] - self._starts[number]]
        return found

    def digest(self) -> str:
        """That of the inputs that were packed: packing changes no data hash."""
        return self._manifest.source_digest

    def __reduce__(self) -> tuple[Callable[[str], PackedInputs], tuple[str]]:
        return open_packed, (str(self.folder),)

    def task(self) -> Task:
        """The Task that was packed, reading its inputs from here."""
        facts, columns = self._manifest.task, self._columns
        if facts is None:
            raise ValueError(f"{self.folder} holds inputs without labels: pack a Task, not its inputs alone.")
        for name, column in columns.items():
            try:
                require_unicode(column)
            except ValueError as error:
                raise ValueError(f"{self.folder}, column {name!r}: {error}. Pack the source again.") from None

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
            group_column=facts.group_column,
            metadata=under("metadata:"),
            weights=columns.get("weights"),
            ids=columns.get("ids"),
        )


def pack(
    source: Task | Inputs,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    shard_bytes: int | None = None,
) -> PackedInputs:
    """Decode every input once and write them, with all a Task has, as a packed set; all of it or nothing.

    overwrite: replace a packed set that is there; any other folder is never touched. shard_bytes: begin another file
    of inputs wherever one would grow beyond this; whoever reads the set sees no difference.
    """
    place = Path(os.path.realpath(folder))  # a link stays, and leads to what was written
    inputs = source.source if isinstance(source, Task) else source
    if len(inputs) == 0:
        raise ValueError("the task has no rows, so there is nothing to pack.")
    if shard_bytes is not None and shard_bytes < 1:
        raise ValueError(f"shard_bytes must be at least 1, not {shard_bytes}.")
    require_free(place, overwrite=overwrite)
    with work_folder(place) as work:
        files = _write_inputs(work, inputs, progress, shard_bytes)
        columns, facts = _write_task(work, source) if isinstance(source, Task) else ({}, None)
        digest = inputs.digest()
        manifest = Manifest(
            source_digest=digest,
            inputs=files,
            columns=columns,
            task=facts,
            window=getattr(inputs, "window", None),
            feature_columns=feature_columns(inputs),
        )
        write_manifest(work, manifest)
        move_into_place(work, place, overwrite=overwrite)
    return open_packed(folder)


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
    arrays = [_map(place, file, full=full) for file in manifest.inputs]
    images, features = ((arrays[0].dtype, arrays[0].ndim) == (np.dtype(kind), n) for kind, n in (("u1", 4), ("f4", 2)))
    if not (images or features):
        raise ValueError(f"{place / manifest.inputs[0].name} holds neither images nor features. Pack the source again.")
    columns = {name: _map(place, file, full=full) for name, file in manifest.columns.items()}
    packed = PackedInputs(place, manifest, columns, arrays)
    if manifest.task is not None and "labels" not in columns:
        raise ValueError(f"{place / MANIFEST_NAME} is damaged (labels are missing). Pack again.")
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


def _write_inputs(
    folder: Path, inputs: Inputs, progress: Progress | None, shard_bytes: int | None
) -> tuple[PackedFile, ...]:
    rows, dtype = len(inputs), np.dtype(inputs.dtype).newbyteorder("<")
    row_bytes = max(1, int(np.prod(inputs.shape)) * dtype.itemsize)
    a_shard = rows if shard_bytes is None else max(1, shard_bytes // row_bytes)
    step = max(1, _BLOCK_BYTES // row_bytes)
    files = []
    for number, start in enumerate(range(0, rows, a_shard)):
        stop = min(start + a_shard, rows)
        name = "inputs.npy" if a_shard >= rows else f"inputs-{number:05d}.npy"
        blocks = _blocks(inputs, progress, start, stop, step)
        files.append(write_array(folder, name, blocks, shape=(stop - start, *inputs.shape), dtype=dtype))
    return tuple(files)


def _blocks(inputs: Inputs, progress: Progress | None, start: int, stop: int, step: int) -> Iterator[Array]:
    for first in range(start, stop, step):
        last = min(first + step, stop)
        block = inputs(np.arange(first, last))
        if block.shape != (last - first, *inputs.shape) or block.dtype != inputs.dtype:
            raise ValueError(
                f"the inputs {first} and following came as {block.dtype} {block.shape}, "
                f"not as {inputs.dtype} (n, {', '.join(map(str, inputs.shape))})."
            )
        yield block
        if progress is not None:
            progress(last, len(inputs))


def _write_task(folder: Path, task: Task) -> tuple[dict[str, PackedFile], TaskFacts]:
    arrays: dict[str, Array] = {"labels": task.labels}
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
    facts = TaskFacts(name=task.name, kind=task.kind, label_names=task.label_names, group_column=task.group_column)
    return files, facts
