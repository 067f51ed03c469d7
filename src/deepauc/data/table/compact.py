"""Columns of a table, kept block by block in little more room than their text or their numbers take.

A Python string takes some fifty bytes beside its text, and an array of text is as wide in every row as its longest
cell: neither is a place for millions of rows. NumPy's StringDType was tried in their place (NumPy 2.4): it takes 16
bytes for a cell as short as `1`, so that reading a million rows of an id, a patient, a label and 20 numbers took 270 MB
instead of 213, in the same 4.8 s.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from deepauc.names import one_form

Floats = npt.NDArray[np.float64]

BLOCK_CELLS = 1 << 14  # held as Python strings at a time: few enough for a processor's cache
BLOCK_ROWS = (64, 1 << 13)  # at least, at most: a block's own cost, and how soon it is compact
LARGEST = float(np.finfo(np.float32).max)


def rows_of_block(columns: int) -> int:
    """How many rows of so many columns are read before they are made compact."""
    fewest, most = BLOCK_ROWS
    return max(fewest, min(most, BLOCK_CELLS // max(1, columns)))


class TextBlock:
    """Some cells in UTF-8, one after the other, and where each ends."""

    __slots__ = ("content", "ends")

    def __init__(self, cells: Sequence[str]) -> None:
        joined = "".join(cells)
        self.content = joined.encode()
        sizes = map(len, cells) if joined.isascii() else (len(cell.encode()) for cell in cells)
        # 32 bits suffice: no cell of a table has more than 1,000 characters.
        self.ends = np.cumsum(np.fromiter(sizes, dtype=np.uint32, count=len(cells)), dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        return self.content[start : int(self.ends[row])].decode()

    def cells(self) -> list[str]:
        text, places = self.content.decode(), pairwise([0, *self.ends.tolist()])
        if len(text) == len(self.content):
            return [text[a:b] for a, b in places]
        return [self.content[a:b].decode() for a, b in places]


class TextColumn(Sequence[str]):
    """A column's cells, as they stand in the file."""

    def __init__(self, blocks: Sequence[TextBlock]) -> None:
        self.blocks = blocks
        self._ends = list(accumulate(map(len, blocks)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks:
            yield from block.cells()

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[one] for one in range(len(self))[row]]
        row = range(len(self))[row]  # counts from the end too, and knows where the column ends
        place = bisect_right(self._ends, row)
        return self.blocks[place][row - self._ends[place] + len(self.blocks[place])]

    def changed(self, change: Callable[[str], str]) -> TextColumn:
        """Every cell through a function."""
        return TextColumn([TextBlock([change(cell) for cell in block.cells()]) for block in self.blocks])

    def rows(self, keep: npt.NDArray[np.bool_]) -> TextColumn:
        """Those cells where `keep`, (N,), is true."""
        if keep.all():
            return self
        kept, start = [], 0
        for block in self.blocks:
            inside = keep[start : start + len(block)].tolist()
            kept.append(TextBlock([cell for cell, wanted in zip(block.cells(), inside, strict=True) if wanted]))
            start += len(block)
        return TextColumn(kept)

    def names(self) -> npt.NDArray[Any]:
        """An array of text (N,), each cell in its one form: names of patients, rows, categories."""
        if not len(self):
            return np.empty(0, dtype=str)
        return np.concatenate([np.array(list(map(one_form, block.cells())), dtype=str) for block in self.blocks])


class NumberColumn:
    """A column that is to hold numbers, and the text of its blocks in which a cell is none that float32 can hold."""

    def __init__(self, blocks: Iterable[Sequence[str]] = ()) -> None:
        self._values = array("d")
        self.texts: list[tuple[slice, TextBlock]] = []  # with the rows they are
        for cells in blocks:
            self.add(cells)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, cells: Sequence[str]) -> None:
        """A further block."""
        numbers, bad = parse_numbers(cells)
        if bad.any():
            self.texts.append((slice(len(self), len(self) + len(cells)), TextBlock(cells)))
            numbers = np.full(len(cells), np.nan)
        self._values.frombytes(numbers.tobytes())

    def values(self) -> Floats:
        """(N,), NaN in the rows of `texts`."""
        return np.array(self._values, dtype=np.float64)


def parse_numbers(cells: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Numbers, NaN where a cell is none, and where there is none that float32 can hold."""
    numbers: Callable[[str], float] = _number if "_" in "".join(cells) else float  # which takes 1_000 for a number
    try:
        values = np.fromiter(map(numbers, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        values = np.fromiter(map(_number, cells), dtype=np.float64, count=len(cells))
    with np.errstate(invalid="ignore"):
        return values, ~(np.abs(values) <= LARGEST)


def _number(cell: str) -> float:
    try:
        return math.nan if "_" in cell else float(cell)
    except ValueError:
        return math.nan
