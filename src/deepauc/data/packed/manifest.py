"""The manifest of a packed set: which .npy files belong to it, what is in them, and how a changed one is noticed.

`manifest.json` holds {"manifest": {...}, "sha256": hash of that object}. Each file is recorded with its size, its
array's shape and type, and a SHA-256 for every chunk of CHUNK_BYTES. Nothing in it is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from deepauc.data.npy import Array, read_npy_header

MANIFEST_NAME = "manifest.json"
FORMAT, VERSION, SHARDED = "deepauc packed set", 1, 2  # version 2 has several files of inputs
CHUNK_BYTES = 1 << 23
_MAX_MANIFEST_BYTES = 1 << 28
_BUFFER_BYTES = 1 << 20
_MAX_NAME = 100  # of a file: a longer one is an error of the system, not a missing file


@dataclass(frozen=True)
class PackedFile:
    """One .npy file of the set."""

    name: str
    size: int  # bytes
    shape: tuple[int, ...]
    dtype: str  # NumPy's portable name, such as "|u1"
    chunks: tuple[str, ...]  # SHA-256 of each CHUNK_BYTES of the file


@dataclass(frozen=True)
class TaskFacts:
    """What a Task is beside its arrays."""

    name: str
    kind: str
    label_names: tuple[str, ...]
    group_column: str | None = None  # None: not known


@dataclass(frozen=True)
class Manifest:
    """Everything that `manifest.json` says."""

    source_digest: str
    inputs: tuple[PackedFile, ...]  # rows that follow one another
    columns: dict[str, PackedFile]  # the task's arrays, by name
    task: TaskFacts | None
    window: tuple[float, float] | None = None  # what deep grey of image files was mapped from, see `data.images.decode`
    feature_columns: tuple[str, ...] = ()  # empty: not known, or images


def write_array(
    folder: Path, name: str, blocks: Iterable[Array], *, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> PackedFile:
    """Write blocks of rows as one .npy file, through to the disk."""
    head = io.BytesIO()
    header = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(head, header)
    hashes = _ChunkHashes()
    with open(folder / name, "xb") as file:
        file.write(head.getvalue())
        hashes.update(head.getvalue())
        for block in blocks:
            content = np.ascontiguousarray(block, dtype=dtype).tobytes()
            file.write(content)
            hashes.update(content)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return PackedFile(name=name, size=size, shape=shape, dtype=dtype.str, chunks=hashes.finish())


class _ChunkHashes:
    """SHA-256 of each CHUNK_BYTES of what is fed in, whatever the pieces."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._sha, self._filled = hashlib.sha256(), 0

    def update(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            piece = rest[: CHUNK_BYTES - self._filled]
            self._sha.update(piece)
            self._filled += len(piece)
            rest = rest[len(piece) :]
            if self._filled == CHUNK_BYTES:
                self._close()

    def _close(self) -> None:
        self._done.append(self._sha.hexdigest())
        self._sha, self._filled = hashlib.sha256(), 0

    def finish(self) -> tuple[str, ...]:
        if self._filled:
            self._close()
        return tuple(self._done)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the last file of a set."""
    version = VERSION if len(manifest.inputs) == 1 else SHARDED
    said = asdict(manifest)
    for name in ("window", "feature_columns"):  # as sets that were written before there were any
        if not said[name]:
            del said[name]
    if manifest.task is not None and manifest.task.group_column is None:
        del said["task"]["group_column"]
    body = {"format": FORMAT, "version": version, "chunk_bytes": CHUNK_BYTES, **said}
    with open(folder / MANIFEST_NAME, "x", encoding="ascii") as file:
        json.dump({"manifest": body, "sha256": _hash_of(body)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; ValueError, naming the file, unless it is complete and unchanged."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise ValueError(
            f"{folder} is not a packed set: it has no {MANIFEST_NAME} (an interrupted `pack` leaves none)."
        )
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ValueError("it is too large")
        whole = _is(json.loads(path.read_bytes()), dict)
        body = _is(whole["manifest"], dict)
        if whole["sha256"] != _hash_of(body):
            raise ValueError("its own checksum is wrong")
        if (body["format"], body["chunk_bytes"]) != (FORMAT, CHUNK_BYTES) or body["version"] not in (VERSION, SHARDED):
            raise ValueError(f"it has version {body['version']!r}, and this deepauc reads versions up to {SHARDED}")
        return _parse(body)
    except (ValueError, KeyError, OSError, RecursionError, MemoryError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is damaged ({reason}). Pack the source again.") from None


def check_file(folder: Path, file: PackedFile, *, full: bool) -> int:
    """Hold a file against its record: size, header, first and last chunk, or with `full` every chunk.

    Gives the number of bytes of the .npy header. ValueError names a file that is missing, cut off or altered.
    """
    path = folder / file.name
    remedy = "Pack the source again."
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError(f"{path} is missing. {remedy}")
    try:
        with open(path, "rb", buffering=0) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.size:
                what = "cut off" if size < file.size else "altered"
                raise ValueError(f"{path} is {what}: it has {size} bytes instead of {file.size}. {remedy}")
            try:
                header = read_npy_header(opened)
            except ValueError as error:
                raise ValueError(f"{path} is altered: {error}. {remedy}") from None
            recorded = (file.shape, file.dtype, file.size, False)
            if (header.shape, header.dtype.str, header.file_bytes, header.fortran_order) != recorded:
                raise ValueError(f"{path} is altered: its header does not fit the manifest. {remedy}")
            last = len(file.chunks) - 1
            for number in range(last + 1) if full else sorted({0, last}):
                if _hash_chunk(opened, number) != file.chunks[number]:
                    start = number * CHUNK_BYTES
                    raise ValueError(f"{path} is altered in or after byte {start} (wrong checksum). {remedy}")
            return header.head_bytes
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}). {remedy}") from None


def _hash_chunk(file: io.FileIO, number: int) -> str:
    # Read, not mapped, through a small buffer: checking a set takes no memory of the process.
    file.seek(number * CHUNK_BYTES)
    sha, left = hashlib.sha256(), CHUNK_BYTES
    while left and (content := file.read(min(left, _BUFFER_BYTES))):
        sha.update(content)
        left -= len(content)
    return sha.hexdigest()


def _hash_of(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parse(body: dict[str, Any]) -> Manifest:
    inputs = tuple(_parse_file(entry) for entry in _is(body["inputs"], list))
    columns = {name: _parse_file(entry) for name, entry in _is(body["columns"], dict).items()}
    if not inputs or any(not file.shape or file.shape[0] == 0 for file in inputs):
        raise ValueError("it names no file of inputs, or an empty one")
    if len({(file.shape[1:], file.dtype) for file in inputs}) > 1:
        raise ValueError("its files of inputs differ in shape or type")
    names = [file.name for file in (*inputs, *columns.values())]
    if len(set(names)) != len(names):
        raise ValueError("it names a file twice")
    task = None
    if body["task"] is not None:
        facts = _is(body["task"], dict)
        group_column = facts.get("group_column")
        task = TaskFacts(
            name=_is(facts["name"], str),
            kind=_is(facts["kind"], str),
            label_names=tuple(_is(name, str) for name in _is(facts["label_names"], list)),
            group_column=None if group_column is None else _is(group_column, str),
        )
    window = None
    if body.get("window") is not None:
        low, high = _pair(body["window"])
        window = float(_is(low, int | float)), float(_is(high, int | float))
    digest = _is(body["source_digest"], str)
    features = tuple(_is(name, str) for name in _is(body.get("feature_columns", []), list))
    if features and inputs[0].shape[1:] != (len(features),):
        raise ValueError("the names of its feature columns do not fit its inputs")
    return Manifest(
        source_digest=digest, inputs=inputs, columns=columns, task=task, window=window, feature_columns=features
    )


def _parse_file(entry: object) -> PackedFile:
    fields = _is(entry, dict)
    name = _is(fields["name"], str)
    sound = name.isascii() and len(name) <= _MAX_NAME and "\\" not in name and "\0" not in name
    if not sound or Path(name).name != name or not name.endswith(".npy"):
        raise ValueError(f"{name[:80]!r} is not a file of this folder")
    file = PackedFile(
        name=name,
        size=_whole(fields["size"]),
        shape=tuple(_whole(side) for side in _is(fields["shape"], list)),
        dtype=_is(fields["dtype"], str),
        chunks=tuple(_is(chunk, str) for chunk in _is(fields["chunks"], list)),
    )
    if len(file.chunks) != -(-file.size // CHUNK_BYTES) or not file.chunks:
        raise ValueError(f"the checksums of {name!r} do not fit its size")
    return file


def _is(value: object, kind: type[Any] | UnionType) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {getattr(kind, '__name__', 'number')} is expected where there is {str(value)[:80]!r}")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"a whole number is expected where there is {str(value)[:80]!r}")
    return value


def _pair(value: object) -> list[Any]:
    pair: list[Any] = _is(value, list)
    if len(pair) != 2:
        raise ValueError("a pair of counts is expected")
    return pair
