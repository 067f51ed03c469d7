"""Columns of text as arrays, and every cell that cannot be read as a Problem with its row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.table.compact import NumberColumn, TextColumn, parse_numbers
from deepauc.data.table.label_values import label_key
from deepauc.data.table.problems import MOST_ALIKE, MissingCode, Problem, ProblemKind, shown
from deepauc.data.task import Floats, single_precision_weights
from deepauc.labels import NO_NAME
from deepauc.names import one_form

# What a label may look like in a file. Nothing else is guessed at: "yes", "malignant" or 2 could mean anything.
LABELS = {"0": 0.0, "0.0": 0.0, "false": 0.0, "1": 1.0, "1.0": 1.0, "true": 1.0, "": math.nan, "nan": math.nan}
_PARTS = {
    "train": 0, "training": 0,
    "validation": 1, "valid": 1, "val": 1,
    "test": 2, "testing": 2,
}  # fmt: skip
NO_PART = -1
_TRUTH = {"true": "1", "false": "0"}  # what pandas writes of a column of 0 and 1 (get_dummies), and parquet holds
BLUR = 0.01  # of the standard deviation
_CODES = [sign * float("9" * digits) for sign in (-1, 1) for digits in (2, 3, 4, 5, 6)]  # by habit: not known
_NUMBERS = ("NaN feature", "bad weight", "no number")
EMPTY_FEATURE = "the cell is empty: fill it in, or leave the row out"


def parse_labels(
    cells: Sequence[str], lines: Sequence[int], column: str, *, positive: str | None = None
) -> tuple[Floats, list[Problem]]:
    """0, 1, or NaN for an empty cell, which is no problem: the row is unlabelled.

    positive: the value that is 1, whatever it looks like; any other is then 0.
    """
    if positive is not None:
        wanted, keys = label_key(positive), map(label_key, cells)
        return np.array([math.nan if key in ("", "nan") else key == wanted for key in keys], dtype=np.float32), []
    found = [LABELS.get(one_form(cell).lower()) for cell in cells]
    unknown = [row for row, value in enumerate(found) if value is None]
    remedy = "write 1 for the positive class, 0 for the negative one, nothing where it is not known"
    problems = _problems(unknown, cells, lines, column, "unknown label value", remedy)
    return np.array(found, dtype=np.float32), problems  # None is NaN


def parse_parts(
    cells: Sequence[str], lines: Sequence[int], column: str, *, unlabelled: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], list[Problem]]:
    """0 train, 1 validation, 2 test; -1 for a bad cell, and for an empty one, which an unlabelled row may have."""
    parts = np.array([_PARTS.get(one_form(cell).lower(), NO_PART) for cell in cells], dtype=np.int64)
    bad = [row for row in np.flatnonzero(parts == NO_PART).tolist() if not unlabelled[row] or one_form(cells[row])]
    return parts, _problems(bad, cells, lines, column, "bad split value", "write train, validation or test")


def parse_weights(cells: Sequence[str], lines: Sequence[int], column: str) -> tuple[Floats, list[Problem]]:
    """Finite numbers that are not negative."""
    weights, _ = parse_numbers(cells)
    bad = ~(np.isfinite(weights) & (weights >= 0))  # only their ratios matter: float32 need not hold them
    remedy = "a weight is a finite number that is not negative"
    problems = _problems(np.flatnonzero(bad), cells, lines, column, "bad weight", remedy, empty=EMPTY_FEATURE)
    return single_precision_weights(np.where(bad, 0, weights)), problems


def parse_features(
    cells: NumberColumn, lines: Sequence[int], column: str
) -> tuple[npt.NDArray[np.float64], list[Problem]]:
    """Finite numbers within the reach of float32; true is 1 and false is 0, as for labels. A bad one is 0.

    Where most cells have decimal commas, that is one problem of the column.
    """
    values, problems, with_comma = cells.values(), list[Problem](), list[str]()
    remedy = "a feature is a finite number, below 3.4e38"
    for rows, block in cells.texts:
        texts = block.cells()
        numbers, bad = parse_numbers([_TRUTH.get(cell.strip().lower(), cell) for cell in texts])
        values[rows] = np.where(bad, 0, numbers)
        wrong = np.flatnonzero(bad).tolist()
        with_comma += [texts[place] for place in wrong if _decimal_comma(texts[place])]
        problems += _problems(wrong, texts, lines[rows], column, "NaN feature", remedy, empty=EMPTY_FEATURE)
    if len(with_comma) > max(MOST_ALIKE, len(values) / 2):
        return values, [_commas(with_comma[0], column)]
    return values, problems


def too_close(values: npt.NDArray[np.float64], column: str) -> list[Problem]:
    """A problem where float32, which a network gets, blurs the differences between a feature's numbers."""
    if not len(values) or (values - values.astype(np.float32)).std() <= BLUR * values.std() or values.std() == 0:
        return []
    message = f"its numbers ({values.min():.10g} to {values.max():.10g}) differ too little for single precision: "
    message += "subtract the smallest one, or another round number, from all of them"
    return [Problem(None, column, "numbers too close", message)]


def missing_code(values: npt.NDArray[np.floating[Any]], column: str) -> MissingCode | None:
    """-999 or the like where several rows hold it, and it is farther from all the others than they are from each other.

    values: (N,), NaN where there is none.
    """
    coded = np.isin(values, _CODES)
    others = values[~coded & ~np.isnan(values)]
    if not coded.any() or len(others) < 2:
        return None
    low, high = float(others.min()), float(others.max())
    found, counts = np.unique(values[coded], return_counts=True)
    for value, rows in zip(found.tolist(), counts.tolist(), strict=True):
        if rows > 1 and max(low - value, value - high) > high - low > 0:
            return MissingCode(column=column, value=value, rows=rows, others=(low, high))
    return None


def parse_groups(cells: TextColumn, lines: Sequence[int], column: str) -> tuple[npt.NDArray[Any], list[Problem]]:
    """Names in one form; an empty one could be anybody's."""
    groups = cells.names()
    remedy = "name the patient or group (for an unknown patient, any unique name will do)"
    unknown = np.flatnonzero(np.isin(groups, NO_NAME))
    return groups, _problems(
        unknown, cells, lines, column, "missing group", remedy, empty=f"the cell is empty: {remedy}"
    )


def id_problems(cells: Sequence[str], lines: Sequence[int], column: str, *, may_repeat: bool) -> list[Problem]:
    """Rows without a name, and, unless they may repeat, those with the name of an earlier one."""
    first: dict[str, int] = {}
    problems = []
    for cell, line in zip(cells, lines, strict=True):
        name = one_form(cell)
        if not name:
            message = "the cell is empty: give every row a name of its own"
            problems.append(Problem(line, column, "missing id", message))
        elif first.setdefault(name, line) != line and not may_repeat:
            message = f"{shown(name)} is also the id of row {first[name]}: ids must be unique (name what "
            message += "several rows share with --group-column)"
            problems.append(Problem(line, column, "duplicate id", message))
    return problems


def parse_metadata(cells: TextColumn) -> npt.NDArray[Any]:
    """float64 with NaN for empty cells if every other cell is a number, else text."""
    values, bad = parse_numbers(cells)
    empty = np.array([not cell.strip() for cell in cells], dtype=bool)
    if (bad & ~empty).any() or empty.all():
        return cells.names()
    return np.where(empty, np.nan, values)


def number_problems(cells: Sequence[str], lines: Sequence[int], column: str, *, declared: bool) -> list[Problem]:
    """Cells of a column of numbers that are none; empty ones are no problem: the value is not known.

    declared: it is one. Else it is where most of its cells are numbers: a typing error among ages would make them all
    categories.
    """
    empty = np.array([not cell.strip() for cell in cells], dtype=bool)
    bad = parse_numbers(cells)[1] & ~empty
    if not declared and 2 * bad.sum() >= (~empty).sum():
        return []
    remedy = "leave it empty where the value is not known"
    if not declared:
        remedy = f"most cells of the column are numbers; {remedy}, or read all as categories (--category-column)"
    return _problems(np.flatnonzero(bad), cells, lines, column, "no number", remedy)


def comma_problems(cells: Sequence[str], column: str) -> list[Problem]:
    """A column of numbers with decimal commas, which would be taken for as many categories."""
    example = ""
    for cell in filter(str.strip, cells):
        if _decimal_comma(cell):
            example = example or cell
        elif parse_numbers([cell])[1].any():
            return []
    return [_commas(example, column)] if example else []


def _commas(example: str, column: str) -> Problem:
    message = f"its numbers have decimal commas, such as {shown(example)}: write decimal points, or separate the "
    message += "columns of the file by semicolons"
    return Problem(None, column, "no number", message)


def _problems(
    rows: Iterable[int],
    cells: Sequence[str],
    lines: Sequence[int],
    column: str,
    kind: ProblemKind,
    remedy: str,
    *,
    empty: str | None = None,
) -> list[Problem]:
    """One for each of these rows; `empty` is what is said of an empty cell instead."""
    found = []
    for row in rows:
        comma = _decimal_comma(cells[row]) if kind in _NUMBERS else ""
        said = f"{shown(cells[row])}: {remedy}{comma}"
        found.append(Problem(lines[row], column, kind, said if empty is None or one_form(cells[row]) else empty))
    return found


def _decimal_comma(cell: str) -> str:
    """The remedy, if a comma is all that keeps this cell from being a number."""
    with_point = cell.strip().replace(",", ".", 1)
    if "," not in cell or parse_numbers([with_point])[1].any():
        return ""
    return f"; write a decimal point, {with_point}"
