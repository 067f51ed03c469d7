"""The names of a table's columns, and what separates them: no row is read."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def table_header(path: Path, *, latin_1: bool = False) -> list[str]:
    """The names of the columns. latin_1: also of a file that is not UTF-8, as tables are read."""
    if path.is_dir():
        inside = path / "scores.csv"
        hint = f"the file in it, {inside}" if inside.is_file() else "a file of scores"
        raise ValueError(f"{path} is a folder: name {hint}.")
    if not path.is_file():
        raise ValueError(f"{path} does not exist.")
    if is_parquet(path):
        with opened_parquet(path) as file:
            return list(file.schema_arrow.names)
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rb") as stream:
            line = stream.readline(1 << 20)
            first = line.decode("utf-8-sig") if not latin_1 else _decoded(line)
            return next(csv.reader([first], delimiter=separator_of(path, first)), [])
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8. Save the table as csv with UTF-8 encoding.") from None
    except (csv.Error, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetFile; a ValueError for one that cannot be read, inside the block too."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ValueError("parquet files need pyarrow: pip install 'deepauc[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # a footer, or a name in it, does not decode
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:  # Excel's, as in `data.table.rows`
        return line.decode("cp1252")


def separator_of(path: Path, first_line: str) -> str:
    """A tab in a .tsv; else a comma where the line with the column names has one, or a tab, or a semicolon."""
    note = first_line.strip().strip('"')
    if len(note) <= 5 and note.lower().startswith("sep="):
        raise ValueError(
            f"{path} begins with {note!r}, a note for Excel: delete that line; the next one names the columns."
        )
    if ".tsv" in [suffix.lower() for suffix in path.suffixes[-2:]]:
        return "\t"
    return next((mark for mark in ",\t;" if _parts(first_line, mark) > 1), ",")


def _parts(line: str, mark: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=mark), []))
    except csv.Error:  # told where the line is read in earnest
        return 0
