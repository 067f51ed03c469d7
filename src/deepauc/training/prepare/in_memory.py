"""Inputs decoded once and kept in memory, where they fit: a file is then not decoded again in every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from deepauc.data.task import Array, Indices, Inputs, Task, feature_columns

LARGEST = 1 << 31  # bytes
_CHUNK = 512


def fits_in_memory(source: Inputs) -> bool:
    """Whether all inputs together stay below LARGEST; a constant, so that a plan does not hang on free memory."""
    return len(source) * int(np.prod(source.shape)) * np.dtype(source.dtype).itemsize <= LARGEST


class InMemoryInputs:
    """All of other inputs as one array. The digest stays theirs, so a task's data hash does not change."""

    def __init__(self, source: Inputs, *, progress: Callable[[int, int], None] | None = None) -> None:
        self._digest = source.digest()
        self.window = getattr(source, "window", None)  # how files were decoded, which the bundle has to know
        self.feature_columns = feature_columns(source)
        self._array = np.empty((len(source), *source.shape), dtype=source.dtype)
        for start in range(0, len(source), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(source)))
            self._array[rows] = source(rows)
            if progress is not None:
                progress(start + len(rows), len(source))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __len__(self) -> int:
        return len(self._array)

    def __call__(self, indices: Indices) -> Array:
        return self._array[indices]

    def digest(self) -> str:
        return self._digest


def kept_in_memory(task: Task, *, progress: Callable[[int, int], None] | None = None) -> Task:
    """The task with its inputs in memory where they fit, else as it is."""
    if not fits_in_memory(task.source):
        return task
    return replace(task, source=InMemoryInputs(task.source, progress=progress))
