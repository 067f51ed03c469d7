"""The tables that come with medical downloads: the wanted columns, and one clear error for what is not as published."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.data.table.header import table_header
from deepauc.data.table.problems import shown
from deepauc.data.table.rows import read_rows
from deepauc.data.task import Array, Floats
from deepauc.names import one_form

_AGE = re.compile(r"(\d{1,4})(?:\.0+)?([YMD]?)")
_YEARS = {"": 1.0, "Y": 1.0, "M": 1 / 12, "D": 1 / 365.25}
_OLDEST = 150


class CsvColumns:
    """Named columns of text in one form, and the line of each row for messages."""

    def __init__(self, path: Path, columns: Mapping[str, Sequence[str]], lines: Sequence[int]) -> None:
        self.path = path
        self.columns = columns
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, name: str) -> Sequence[str]:
        return self.columns[name]

    def select(self, keep: npt.NDArray[np.bool_]) -> CsvColumns:
        """Only the rows where `keep` is true."""
        rows = np.flatnonzero(keep).tolist()
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        return CsvColumns(self.path, columns, [self.lines[row] for row in rows])

    def text(self, name: str) -> Array:
        return np.array(self.columns[name], dtype=str)

    def values(self, name: str, meaning: Mapping[str, float]) -> Floats:
        """TableRows through a table of all that may stand there; (N,) float32."""
        found = [meaning.get(cell) for cell in self.columns[name]]
        self.require([value is not None for value in found], name, f"expected {_listed(meaning)}")
        return np.array(found, dtype=np.float32)

    def one_of(self, name: str, allowed: Sequence[str]) -> Array:
        """Text that must be one of a few words."""
        self.require([cell in allowed for cell in self.columns[name]], name, f"expected {_listed(allowed)}")
        return self.text(name)

    def matching(self, name: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """Every cell as a full match of the pattern: what names a file can then not lead anywhere else."""
        found = [pattern.fullmatch(cell) for cell in self.columns[name]]
        self.require([match is not None for match in found], name, "the published table has no such value")
        return [match for match in found if match is not None]

    def ages(self, name: str) -> npt.NDArray[np.float64]:
        """Years, NaN where the cell is empty; `58`, `58.0`, `058Y`, `011M` and `004D` are read."""
        years, good = np.full(len(self), math.nan), np.ones(len(self), dtype=bool)
        for row, cell in enumerate(self.columns[name]):
            if match := _AGE.fullmatch(cell):
                years[row] = int(match[1]) * _YEARS[match[2]]
            else:
                good[row] = not cell
        self.require(good, name, "it must be an age in years, or empty")
        # NIH's table has a few ages above 400, typing errors of the clinic: they count as missing.
        return np.where(years > _OLDEST, math.nan, years)

    def require_distinct(self, name: str) -> None:
        """No cell of the column may occur twice."""
        first: dict[str, int] = {}
        good = [first.setdefault(cell, row) == row for row, cell in enumerate(self.columns[name])]
        self.require(good, name, "it occurs twice")

    def require(self, good: Sequence[bool] | npt.NDArray[np.bool_], name: str, message: str) -> None:
        """ValueError naming the first line where `good` is false."""
        bad = np.flatnonzero(~np.asarray(good, dtype=bool))
        if len(bad):
            cell, line = self.columns[name][int(bad[0])], self.lines[int(bad[0])]
            more = f" ({len(bad):,} such rows)" if len(bad) > 1 else ""
            raise ValueError(f"{self.path}, line {line}, {name}: {shown(cell)}: {message}{more}.")


def read_columns(path: Path, wanted: Sequence[str], *, optional: Sequence[str] = ()) -> CsvColumns:
    """Columns of a csv (also .gz) file, which must have all of `wanted`; those of `optional` that it has come too."""
    have = [name for name in optional if name in table_header(path)] if optional else []
    cells = read_rows(path, [*wanted, *have])
    if cells.problems:
        first = cells.problems[0]
        raise ValueError(f"{path}, line {first.row}: {first.message} ({len(cells.problems):,} such rows).")
    columns = {name: [one_form(cell) for cell in column] for name, column in cells.columns.items()}
    return CsvColumns(path, columns, cells.lines)


def one_part_each(groups: Array, parts: Mapping[str, npt.NDArray[np.int64]], *, where: str, what: str) -> None:
    """ValueError for a patient of two parts: the published division has none, so the files are not what they seem."""
    owner: dict[str, str] = {}
    for part, rows in parts.items():
        for group in np.unique(groups[rows]).tolist():
            if (other := owner.setdefault(group, part)) != part:
                raise ValueError(f"{where}: {what} {shown(group)} is in {other} and in {part}. Keep it in one part.")


def _listed(words: Mapping[str, float] | Sequence[str]) -> str:
    return ", ".join(repr(word) if word else "nothing" for word in words)
