"""Records of a set of studies in one file, a line a run; arrays in a second one beside it.

    NAME.jsonl   {"key": K, "value": {...}}                         what runs share: a recipe, a task, versions
                 {"study": ..., "run": ..., "recipe": K, ...}       a run; `time`: when this was written, Unix seconds
    NAME.npz     arrays by key; a line says {"array": K}

Lines may stand in any order and more than once, so git can merge two such files line by line. Keys are hashes of what
they name. Of several lines on one run the one with the latest time counts, of equal times the last one in the file; a
line without a time is older than all. A last line whose write was cut off does not count.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.training.run.file_lock import lock
from deepauc.training.run.output_file import write_atomically

# These entries of a run are objects: as a text they are keys.
SHARED = ("recipe", "config", "task", "versions", "source", "fixed", "first_stage", "selection")
LOCK_SECONDS = 0.01  # an append takes milliseconds


@dataclass(frozen=True)
class StoredArray:
    """An array of the file beside the records; `np.asarray` reads it. Equal to one of the same content elsewhere."""

    path: Path = field(compare=False)
    key: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        del copy
        arrays = _arrays_as_of(self.path, _stamp(self.path)) if self.path.exists() else {}
        if self.key not in arrays:
            raise ValueError(f"{self.path} does not have the scores of its records: get both files of one commit.")
        return np.asarray(arrays[self.key], dtype=dtype)


def dense_ranks(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers from 0 in the order of the scores, equal for equal ones; of several columns each by itself.

    AUCs, their intervals and paired tests are the same to the last digit; a mean of two models' scores is not.
    """
    from scipy.stats import rankdata

    ranks = rankdata(scores, method="dense", axis=0) - 1
    return ranks.astype(np.min_scalar_type(max(int(ranks.max(initial=0)), 256)))


def read_runs(path: Path) -> list[tuple[float, dict[str, Any]]]:
    """Times and runs in the order of their lines."""
    content = path.read_bytes() if path.exists() else b""
    lines = [
        parsed(line, f"{path}, line {number},")
        for number, line in enumerate(content[: whole(content)].split(b"\n"), start=1)
        if line.strip()
    ]
    shared = {line["key"]: line["value"] for line in lines if "key" in line}
    found = []
    for line in lines:
        if "key" in line:
            continue
        for name in SHARED:
            if isinstance(key := line.get(name), str):
                if key not in shared:
                    raise ValueError(f"{path} is damaged: the line of {name} {key} is missing.")
                line[name] = shared[key]
        found.append((float(line.pop("time", 0.0)), _with_arrays(line, path.with_suffix(".npz"))))
    return found


def read_named(path: Path) -> dict[str, dict[str, Any]]:
    """Records that have a `name` instead of a run, by it: the latest of each."""
    return {record["name"]: record for _, record in sorted(read_runs(path), key=lambda found: found[0])}


def append(path: Path, record: Mapping[str, Any], *, after: float = 0.0) -> float:
    """One more record, on the disk when this returns, and its time, which is later than `after`.

    Several processes may do so at once. What a write that was cut off has left at the end of the file goes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    when = max(round(time.time(), 3), round(after + 0.001, 3))
    shared, line, arrays = as_lines({**record, "time": when})
    with path.open("a+b") as file:
        lock(file, every=LOCK_SECONDS)
        file.seek(0)
        content = file.read()
        end = whole(content)
        if end < len(content):
            file.truncate(end)
        if arrays:  # before the line that names them
            _add_arrays(path.with_suffix(".npz"), arrays)
        new = [text for text in shared if text.encode() not in content]
        start = "" if content[:end][-1:] in (b"", b"\n") else "\n"
        file.write((start + "".join(f"{text}\n" for text in (*new, line))).encode())
        file.flush()
        os.fsync(file.fileno())
    return when


def as_lines(record: Mapping[str, Any]) -> tuple[list[str], str, dict[str, npt.NDArray[Any]]]:
    """Lines of what the record shares, its own line, and its arrays by key."""
    shared: list[str] = []
    line: dict[str, Any] = dict(record)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            entries = {inner: _array_reference(entry, arrays) for inner, entry in value.items()}
            line[name] = entries
            if name in SHARED and entries:
                text = _compact(entries)
                line[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
                shared.append(f'{{"key":"{line[name]}","value":{text}}}')
    return shared, _compact(line), arrays


def parsed(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is damaged ({error}). Delete what does not read as JSON.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} is damaged: it is not a record.")
    return found


def whole(content: bytes) -> int:
    """Bytes up to the end of the last whole line: what follows is the beginning of one whose write was cut off."""
    start = content.rfind(b"\n") + 1
    try:
        json.loads(content[start:])
    except ValueError:  # bytes that are no text are no record either
        return start
    return len(content)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _array_reference(value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if not isinstance(value, np.ndarray | StoredArray):
        return value
    plain = np.ascontiguousarray(value)
    key = hashlib.sha256(f"{plain.dtype.str} {plain.shape} ".encode() + plain.tobytes()).hexdigest()[:16]
    arrays[key] = plain
    return {"array": key}


def _with_arrays(line: dict[str, Any], path: Path) -> dict[str, Any]:
    for name, value in line.items():
        if isinstance(value, dict) and any(_is_reference(entry) for entry in value.values()):
            line[name] = {
                inner: StoredArray(path, entry["array"]) if _is_reference(entry) else entry
                for inner, entry in value.items()
            }
    return line


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"array"}


def _add_arrays(path: Path, new: Mapping[str, npt.NDArray[Any]]) -> None:
    before = _arrays(path) if path.exists() else {}
    if not new.keys() <= before.keys():
        content = io.BytesIO()
        np.savez_compressed(content, **{**before, **new})  # type: ignore[arg-type]  # names are keys
        write_atomically(path, content.getvalue())


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    with np.load(path) as found:
        return {key: found[key] for key in found.files}


def _stamp(path: Path) -> tuple[int, ...]:
    """Another one after each write, which makes a new file: two may have the same time."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=4)
def _arrays_as_of(path: Path, stamp: tuple[int, ...]) -> dict[str, npt.NDArray[Any]]:
    del stamp
    return _arrays(path)
