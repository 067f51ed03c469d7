"""Images in several files, one after the other, read from the disk when asked for."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepauc.data.task import Indices

_BLOCK_BYTES = 1 << 24


class StoredImages:
    """Inputs, uint8 (H, W, C): row i of the whole is found in the file it falls into.

    counts: images of each file. A subclass reads them: `read` gives those from `low` to `high` of one file.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, shape: tuple[int, ...], counts: Sequence[int]) -> None:
        self.shape, self.counts = shape, tuple(counts)
        self._starts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __call__(self, indices: Indices) -> npt.NDArray[np.uint8]:
        rows = np.arange(len(self))[indices]
        # In the order of the files, and neighbours at once: whole chunks are unpacked.
        wanted, places = np.unique(rows, return_inverse=True)
        read = np.empty((len(wanted), *self.shape), dtype=np.uint8)
        edges = np.flatnonzero((np.diff(wanted) != 1) | np.isin(wanted[1:], self._starts)) + 1
        start = 0
        for run in np.split(wanted, edges) if len(wanted) else []:
            number = int(np.searchsorted(self._starts, run[0], side="right")) - 1
            low = int(run[0] - self._starts[number])
            read[start : start + len(run)] = self.read(number, low, low + len(run))
            start += len(run)
        return read[places]

    def read(self, number: int, low: int, high: int) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256(f"{self.dtype.name}{(len(self), *self.shape)}".encode())  # as `ArrayInputs` writes it
        rows = max(1, _BLOCK_BYTES // math.prod(self.shape))
        for number, count in enumerate(self.counts):
            for low in range(0, count, rows):
                sha.update(self.read(number, low, min(low + rows, count)).tobytes())
        return sha.hexdigest()

    def digest(self) -> str:
        """SHA-256 of all pixels; the first call reads every image."""
        return self._digest
