"""Several files of inputs read as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepauc.data.npy import Array
from deepauc.data.task import Indices


class Shards:
    """Arrays that follow one another: row i of the whole is found in the array it falls into."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = tuple(arrays)
        self._starts = np.cumsum([0, *(len(array) for array in arrays)])
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *arrays[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._arrays[0].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Indices) -> Array:
        if len(self._arrays) == 1:
            return self._arrays[0][indices]
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"row numbers {rows.min()} to {rows.max()} are not all among {len(self)} rows.")
        rows = np.where(rows < 0, rows + len(self), rows)
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard):
            mine = shard == number
            found[mine] = self._arrays[number][rows[mine] - self._starts[number]]
        return found
