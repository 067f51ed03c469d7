"""Tables for people: markdown for files and pipes, rich for terminals. An AUC is always shown with three decimals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def auc_text(value: float, low: float | None = None, high: float | None = None) -> str:
    """`0.876`, or with its limits `0.876 [0.841, 0.904]`."""
    if low is None or high is None:
        return f"{value:.3f}"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def small_text(value: float, low: float | None = None, high: float | None = None) -> str:
    """As `auc_text`, but three digits of a value below 0.01, where three decimals would leave one: `0.00398`.

    For what shrinks with the share of positives: average precision, Brier score, calibration error, a probability.
    """
    decimals = min(2 - math.floor(math.log10(value)), 9) if 0 < value < 0.01 else 3
    shown = f"{value:.{decimals}f}"
    return shown if low is None or high is None else f"{shown} [{low:.{decimals}f}, {high:.{decimals}f}]"


def percent_text(value: float, low: float | None = None, high: float | None = None) -> str:
    """A share as per cent with one decimal: `9.6 %`, or with its limits `9.6 % [4.0, 8.1]`."""
    shown = f"{_no_minus_zero(100 * value, 1)} %"
    if low is None or high is None:
        return shown
    return f"{shown} [{_no_minus_zero(100 * low, 1)}, {_no_minus_zero(100 * high, 1)}]"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table, columns padded so that the source reads well too; the first column left, the others right."""
    _require_rectangle(header, rows)
    lines = [[_escaped(cell) for cell in line] for line in (header, *rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


def rich_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    """The same for a terminal."""
    from rich.table import Table
    from rich.text import Text

    _require_rectangle(header, rows)
    table = Table(title=title, title_justify="left")
    for column, name in enumerate(header):
        table.add_column(Text(name), justify="left" if column == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a bracket in a cell is no markup
    return table


def _require_rectangle(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells, the header {len(header)}: {list(row)}.")


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _no_minus_zero(value: float, digits: int) -> str:
    shown = f"{value:.{digits}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown
