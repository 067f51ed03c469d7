"""A pandas DataFrame as rows of text, each cell what `to_csv` writes: it is then read as that csv would be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pandas as pd

Table: TypeAlias = "str | Path | pd.DataFrame"

BLOCK_ROWS = 1 << 12  # turned into text at a time: a Python string takes some fifty bytes beside its text


def frame_of(table: Table) -> pd.DataFrame | None:
    """The DataFrame, None for the path of a file; a ValueError if it is neither."""
    if isinstance(table, str | Path):
        return None
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"a table is the path of a file or a pandas DataFrame, not {type(table).__name__}.")
    return table


def name_of(table: Table) -> str:
    """What messages call it."""
    return str(table) if isinstance(table, str | Path) else "the DataFrame"


def text_rows(frame: pd.DataFrame) -> Iterator[Sequence[str]]:
    """Every row as text. Missing cells (NaN, None, NaT, pd.NA) are empty; the index is no column."""
    columns = [_block_by_block(frame.iloc[:, place]) for place in range(frame.shape[1])]
    for start in range(0, len(frame), BLOCK_ROWS):
        block = [_text(column.iloc[start : start + BLOCK_ROWS]).tolist() for column in columns]
        yield from zip(*block, strict=True)


def _block_by_block(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column whose text does not depend on how many of its rows are looked at."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):  # astype gives numbers and dates among them another text
        texts = [*_text(pd.Series(column.cat.categories)), ""]  # the last is that of code -1, a missing cell
        return pd.Series([texts[code] for code in column.cat.codes], dtype=object)
    # Dates have a time of day in every row if any row has one.
    return _text(column) if column.dtype.kind in "mM" else column


def _text(column: pd.Series[Any]) -> pd.Series[Any]:
    """`astype` alone would write "nan" and "<NA>"."""
    return column.astype(str).astype(object).where(column.notna(), "")
