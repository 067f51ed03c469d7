"""The wanted columns of a table, each row with its line number: text as it is, or numbers where asked.

The parser of csv files is Python's own csv module. pandas and pyarrow were measured in its place (`python
benchmarks/table_readers.py`, results/table-readers.md): neither keeps the list of problems. pandas fills a row that
has too few fields with empty cells and says nothing, which here would be a missing label; after a line break in a cell
or an empty line pyarrow names the wrong line; both read a NUL byte, text after a closing quotation mark and two columns
of one name without a word. Nor is there much to gain: a million rows of 20 numbers take 4.5 s this way, 5.8 s with
pandas' C parser in blocks and 3.3 s with pyarrow, of 10 s for the whole check, in 301, 348 and 307 MB.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import hashlib
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deepauc.data.table.compact import NumberColumn, TextBlock, TextColumn, rows_of_block
from deepauc.data.table.frame import Table, frame_of, name_of, text_rows
from deepauc.data.table.header import is_parquet, opened_parquet, separator_of
from deepauc.data.table.problems import Problem

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 50_000_000
MAX_LINE_CHARACTERS = 1 << 24
MAX_TABLE_CHARACTERS = 1 << 32  # a small .gz or .parquet can hold any amount of text
MAX_CELL_CHARACTERS = 1000  # of a column that is used: an array of text is as wide, row by row, as its longest cell
PARQUET_ROWS = 256  # read at a time: a dictionary makes few bytes of a long text that many rows share
DIGEST_BYTES = 16
Digests = npt.NDArray[np.bytes_]
_WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(?:\.\d{3})+\s*")
_FEW_COLUMNS = 6  # below which two lines of a note may have as many separators as a row


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """Columns of equal length; `lines[i]` is where row i starts in the file.

    The header is line 1; parquet has none, but its rows are numbered from 2 on too, as in the csv of the same table.
    Rows of a DataFrame have their places, from 0, as `iloc` counts them.
    """

    columns: Mapping[str, TextColumn]
    number_columns: Mapping[str, NumberColumn]
    lines: Sequence[int]
    digests: Digests  # of the whole row, unwanted columns too: equal for rows that repeat another
    problems: list[Problem] = field(default_factory=list)  # rows that are left out: wrong number of fields, too long
    decimal_commas: bool = False  # the file is separated by semicolons, as where 0.5 is written 0,5
    latin_1: bool = False  # the file is no UTF-8

    def __len__(self) -> int:
        return len(self.lines)

    def pointed(self, name: str) -> TextColumn:
        """The text of a column that may hold numbers, with decimal points; what is no number is left as it is."""
        if not self.decimal_commas:
            return self.columns[name]
        _Points().note(name, self.columns[name])
        return self.columns[name].changed(_with_point)

    def numbers(self, name: str) -> NumberColumn:
        """A column that is to hold numbers, whether or not it was read as such."""
        if name in self.number_columns:
            return self.number_columns[name]
        return NumberColumn(block.cells() for block in self.pointed(name).blocks)


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if _WITH_COMMA.fullmatch(cell) else cell


class _Points:
    """Refuses 1.234 beside 0,5: a point between thousands, which would be read as a decimal one."""

    def __init__(self) -> None:
        self.comma: tuple[str, str] | None = None  # a column, and one of its cells
        self.thousands: tuple[str, str] | None = None

    def note(self, name: str, cells: Iterable[str]) -> None:
        """Further cells of a column; ValueError once there are both."""
        for cell in cells:
            if self.comma is None and "," in cell and _WITH_COMMA.fullmatch(cell):
                self.comma = name, cell
            elif self.thousands is None and "." in cell and _THOUSANDS.fullmatch(cell):
                self.thousands = name, cell
        if self.comma is not None and self.thousands is not None:
            (name, cell), (other, number) = self.thousands, self.comma
            raise ValueError(
                f"column {name!r} has {cell.strip()!r}, and column {other!r} has {number.strip()!r}: is the point a "
                f"thousands separator? Then write {cell.strip().replace('.', '')}, or {cell.strip().replace('.', ',')}."
            )


def read_rows(table: Table, wanted: Sequence[str], *, numbers: Collection[str] = ()) -> TableRows:
    """Read a .csv, .tsv (both also .gz) or .parquet file, or a DataFrame; a ValueError says in one line why it cannot.

    numbers: those of the wanted columns of which only the numbers are needed; of the others the text is kept. A .csv
    may also be separated by semicolons, as Excel writes it in many countries, or by tabs: see `separator_of`.
    """
    frame = frame_of(table)
    cells = _read_file(Path(table), wanted, numbers) if frame is None else _read_frame(frame, wanted, numbers)
    if not cells.lines and not cells.problems:
        raise ValueError(f"{name_of(table)} has a header but no rows.")
    return cells


def _read_file(path: Path, wanted: Sequence[str], numbers: Collection[str]) -> TableRows:
    if path.is_dir():
        packed = " A packed set is for `deepauc train --packed`, or for Python (open_packed)."
        remedy = packed if (path / "manifest.json").exists() else ""
        raise ValueError(f"{path} is a folder: name the table in it.{remedy}")
    if not path.is_file():
        raise ValueError(f"{path} does not exist.")
    read = _read_parquet if is_parquet(path) else _read_csv
    try:
        return read(path, wanted, numbers)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None


def _read_csv(path: Path, wanted: Sequence[str], numbers: Collection[str]) -> TableRows:
    try:
        return _read_text(path, wanted, numbers, encoding="utf-8-sig")
    except UnicodeDecodeError:  # Excel writes Windows' own characters unless told otherwise
        return replace(_read_text(path, wanted, numbers, encoding="cp1252"), latin_1=True)


def _read_text(path: Path, wanted: Sequence[str], numbers: Collection[str], *, encoding: str) -> TableRows:
    with _open_text(path, encoding) as stream:
        text = _lines(stream, path)
        first = next(text, "")
        delimiter = separator_of(path, first)
        reader = csv.reader(chain([first], text), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if not any(name.strip() for name in header):
                raise ValueError(f"{path} is empty; its first line must name the columns.")
            found = _Rows(_places(header, wanted, path), numbers, decimal_commas=delimiter == ";")
            end = reader.line_num
            for row in reader:
                start, end = end + 1, reader.line_num
                if not any(row):
                    continue  # an empty line, or one of separators alone, as below a sheet
                if len(row) < len(header) or any(row[len(header) :]):  # empty fields at the end do no harm
                    message = f"{len(row)} fields under {len(header)} column names"
                    if len(row) > len(header) and delimiter == ",":
                        message += ": write a decimal point, and put a text with a comma into quotation marks"
                    found.problems.append(
                        Problem(start, None, "wrong number of fields", message),
                    )
                    continue
                if end > start and found.swallowed(row[: len(header)], delimiter):
                    message = f"a cell ends in line {end} and looks like several rows: is a quotation mark missing?"
                    found.problems.append(
                        Problem(start, None, "wrong number of fields", message),
                    )
                    continue
                if len(found.lines) >= MAX_ROWS:
                    raise ValueError(f"{path} has more than {MAX_ROWS:,} rows.")
                found.add(row[: len(header)], start)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}. Is a quotation mark missing?") from None
    return found.cells()


class _Rows:
    """Rows as they are read: what `TableRows` keeps of them, made compact block by block."""

    def __init__(self, places: Mapping[str, int], numbers: Collection[str], *, decimal_commas: bool = False) -> None:
        self.places = places
        self.decimal_commas = decimal_commas
        self.points = _Points()
        self.pick = _picker(list(places.values()))
        self.text: dict[str, list[TextBlock]] = {name: [] for name in places if name not in numbers}
        self.numbers = {name: NumberColumn() for name in places if name in numbers}
        self.block_rows = rows_of_block(len(places))
        self.block: list[Sequence[str]] = []  # rows that are not compact yet, of the wanted columns
        self.lines = array("q")
        self.digests = bytearray()
        self.problems: list[Problem] = []

    def add(self, row: Sequence[str], line: int) -> None:
        whole = "\0".join(row)
        if len(whole) > MAX_CELL_CHARACTERS and max(map(len, row)) > MAX_CELL_CHARACTERS:
            for name, place in self.places.items():
                if len(row[place]) > MAX_CELL_CHARACTERS:
                    message = f"a cell of {len(row[place]):,} characters; {MAX_CELL_CHARACTERS:,} is the most"
                    self.problems.append(Problem(line, name, "cell too long", message))
                    return
        self.lines.append(line)
        self.digests += row_digest(whole.encode())
        self.block.append(self.pick(row))
        if len(self.block) >= self.block_rows:
            self._compact()

    def _compact(self) -> None:
        if not self.block:
            return
        for name, cells in zip(self.places, zip(*self.block, strict=True), strict=True):
            if name in self.text:
                self.text[name].append(TextBlock(cells))
            else:
                if self.decimal_commas:
                    self.points.note(name, cells)
                self.numbers[name].add([_with_point(cell) for cell in cells] if self.decimal_commas else cells)
        self.block = []

    def swallowed(self, row: Sequence[str], delimiter: str) -> bool:
        """Whether a cell of several lines looks like rows: a used one with a separator, or any that has whole lines."""
        last = len(row) - 1
        for place, cell in enumerate(row):
            counts = [line.count(delimiter) for line in cell.splitlines()]
            if len(counts) < 2:
                continue
            if sum(counts) and place in self.places.values():
                return True
            fits = counts[0] == last - place and counts[-1] == place and all(one == last for one in counts[1:-1])
            if fits and (len(counts) > 2 or len(row) >= _FEW_COLUMNS):
                return True
        return False

    def cells(self) -> TableRows:
        self._compact()
        return TableRows(
            columns={name: TextColumn(blocks) for name, blocks in self.text.items()},
            number_columns=self.numbers,
            lines=self.lines,
            digests=as_digests(self.digests),
            problems=self.problems,
            decimal_commas=self.decimal_commas,
        )


def _picker(places: Sequence[int]) -> Callable[[Sequence[str]], Sequence[str]]:
    """A row's cells at these places; `itemgetter` is the fast way, but gives no tuple for a single one."""
    return itemgetter(*places) if len(places) > 1 else lambda row: [row[place] for place in places]


def row_digest(content: bytes) -> bytes:
    """16 bytes, equal for equal contents."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def as_digests(content: bytearray) -> Digests:
    """Digests that were written one after the other, as an array of them."""
    return np.frombuffer(content, dtype=f"S{DIGEST_BYTES}") if content else np.empty(0, dtype=f"S{DIGEST_BYTES}")


def _open_text(path: Path, encoding: str) -> IO[str]:
    errors = "strict" if encoding == "utf-8-sig" else "replace"  # a few bytes mean nothing in Windows-1252
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding=encoding, errors=errors, newline="")
    return open(path, encoding=encoding, errors=errors, newline="")


def _lines(stream: IO[str], path: Path) -> Iterator[str]:
    """The lines of a text, refusing what would fill the memory or is no text."""
    total = number = 0
    while line := stream.readline(MAX_LINE_CHARACTERS):
        number += 1
        total += len(line)
        if len(line) == MAX_LINE_CHARACTERS:
            raise _too_much_text(f"{path}, line {number}", MAX_LINE_CHARACTERS, "line")
        if total > MAX_TABLE_CHARACTERS:
            raise _too_much_text(f"{path}, line {number}", MAX_TABLE_CHARACTERS, "table")
        if "\0" in line:
            raise ValueError(
                f"{path}, line {number} holds a NUL byte: this is not a text file. Save the table as UTF-8 csv."
            )
        yield line


def _too_much_text(where: str, limit: int, what: str) -> ValueError:
    return ValueError(
        f"{where}: the text is too long (a {what} may have {limit:,} characters). Leave out columns that are not "
        "used, or divide the table."
    )


class MissingColumnError(ValueError):
    """A column that was asked for by a name that the table does not have."""


def _places(header: Sequence[str], wanted: Sequence[str], path: Path | str) -> dict[str, int]:
    """Where the wanted columns stand; a ValueError names all that are not there, each with the nearest one there is."""
    missing = [name for name in wanted if name not in header]
    if missing:
        near = {name: difflib.get_close_matches(name, header, n=1, cutoff=0.5) for name in missing}
        # One column is not what several names were meant to be: a set of 0/1 columns that is missing as a whole.
        meant = Counter(match for matches in near.values() for match in matches)
        near = {name: [match for match in matches if meant[match] == 1] for name, matches in near.items()}
        first, *others = missing
        hint = f"Did you mean {near[first][0]!r}?" if near[first] else f"It has: {', '.join(map(repr, header[:30]))}."
        if others:
            known = (f"{name!r} (did you mean {near[name][0]!r}?)" if near[name] else repr(name) for name in others)
            hint += f" Also missing: {', '.join(known)}."
        raise MissingColumnError(f"{path} has no column {first!r}. {hint}")
    for name in wanted:
        if header.count(name) > 1:
            raise ValueError(f"{path} has {header.count(name)} columns named {name!r}; give each its own name.")
    return {name: header.index(name) for name in wanted}


def _read_parquet(path: Path, wanted: Sequence[str], numbers: Collection[str]) -> TableRows:
    with opened_parquet(path) as file:
        if file.metadata.num_rows > MAX_ROWS:
            raise ValueError(f"{path} has more than {MAX_ROWS:,} rows.")
        places = _places(list(file.schema_arrow.names), wanted, path)
        found, total, line = _Rows(places, numbers), 0, 1
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            for row in zip(*([_text(value) for value in column.to_pylist()] for column in batch.columns), strict=True):
                total, line = total + sum(map(len, row)), line + 1
                if total > MAX_TABLE_CHARACTERS:
                    raise _too_much_text(str(path), MAX_TABLE_CHARACTERS, "table")
                found.add(row, line)
    return found.cells()


def _text(value: Any) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else str(value)


def _read_frame(frame: pd.DataFrame, wanted: Sequence[str], numbers: Collection[str]) -> TableRows:
    header, name = [str(column) for column in frame.columns], name_of(frame)
    if indexed := [column for column in wanted if column in frame.index.names and column not in header]:
        raise ValueError(f"{indexed[0]!r} is the index of {name}, not a column: call reset_index() first.")
    if len(frame) > MAX_ROWS:
        raise ValueError(f"{name} has more than {MAX_ROWS:,} rows.")
    found = _Rows(_places(header, wanted, name), numbers)
    try:
        for line, row in enumerate(text_rows(frame)):
            found.add(row, line)
        return found.cells()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds text that UTF-8 cannot write: {error.reason}.") from None
