"""Inputs decoded once and kept in memory, where they fit: a file is then not decoded again in every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from deepauc.data.task import ArrayInputs, Inputs, Task, feature_columns

LARGEST = 1 << 31  # bytes
_CHUNK = 512


def fits_in_memory(source: Inputs) -> bool:
    """Whether all inputs together stay below LARGEST; a constant, so that a plan does not hang on free memory."""
    return len(source) * int(np.prod(source.shape)) * np.dtype(source.dtype).itemsize <= LARGEST


class InMemoryInputs(ArrayInputs):
    """All of other inputs as one array. The digest stays theirs, so a task's data hash does not change."""

    def __init__(self, source: Inputs, *, progress: Callable[[int, int], None] | None = None) -> None:
        self._own_digest = source.digest()
        self.window = getattr(source, "window", None)  # how files were decoded, which the bundle has to know
        array = np.empty((len(source), *source.shape), dtype=source.dtype)
        for start in range(0, len(source), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(source)))
            array[rows] = source(rows)
            if progress is not None:
                progress(start + len(rows), len(source))
        super().__init__(array, feature_columns=feature_columns(source))

    def digest(self) -> str:
        return self._own_digest


def kept_in_memory(task: Task, *, progress: Callable[[int, int], None] | None = None) -> Task:
    """The task with its inputs in memory where they fit, else as it is."""
    if not fits_in_memory(task.source):
        return task
    return replace(task, source=InMemoryInputs(task.source, progress=progress))
