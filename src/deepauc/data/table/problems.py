"""What is wrong with a table: every problem at once, with the row it is in, and what the check has counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from deepauc.data.splits import Leak
from deepauc.names import Alike, counted, group_word

ProblemKind = Literal[
    "missing file",
    "unreadable image",
    "constant image",
    "decompression bomb",
    "path leaves folder",
    "unknown label value",
    "label value left out",
    "NaN feature",
    "numbers too close",
    "no number",
    "bad weight",
    "bad split value",
    "missing group",
    "missing id",
    "duplicate id",
    "wrong number of fields",
    "cell too long",
    "duplicate row",
    "patient in two splits",
    "one class only",
    "no labelled row",
    "differing sizes",
]


_OF_FILES = frozenset({"missing file", "unreadable image", "constant image", "decompression bomb"})
_CELL = re.compile(r"""^('[^']*'|"[^"]*"): """)  # a cell, such as a file name, as `shown` quotes it
_POINT = re.compile(r"(?<=; write a decimal point), \S+$")  # and the same cell as a number
MOST_PADDING = 40  # letters that a column of a plain table is padded to: a long list of rows stands out
MOST_ALIKE = 5  # rows with one and the same message that have a line each
SUSPICIOUS_SHARE = 0.1  # of a table's rows, which one patient seldom has
_NOBODY = frozenset({"unknown", "na", "n/a", "nan", "none", "null", "?", "-", "0"})


@dataclass(frozen=True)
class Problem:
    """One fault. `row` is the line in the file (the header is line 1), in a DataFrame the place of the row, from 0.

    It is None where the whole table is meant.
    """

    row: int | None
    column: str | None
    kind: ProblemKind
    message: str


class TableError(ValueError):
    """A table that cannot be used as it is; `problems` holds all that is wrong, `str()` shows it as a plain table.

    every_row: no row is without a problem, so leaving those out would leave nothing.
    """

    def __init__(self, path: str, problems: Sequence[Problem], *, every_row: bool = False) -> None:
        super().__init__(path, problems)
        self.path = path
        self.problems = tuple(problems)
        self.every_row = every_row

    def __str__(self) -> str:
        return f"{self.path}: {kinds_text(self.problems)}\n{format_problems(self.problems)}"


@dataclass(frozen=True, kw_only=True)
class LargestGroup:
    """The patient with the most rows."""

    name: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class MissingCode:
    """A number such as -999 that several rows of a column hold, far from all the others: it may mean `not known`."""

    column: str
    value: float
    rows: int
    others: tuple[float, float]  # the smallest and the largest

    def __str__(self) -> str:
        low, high = self.others
        return (
            f"column {self.column!r}: {self.rows:,} rows hold {self.value:g}, the others {low:g} to {high:g}. "
            "It counts as a number. If it means that the value is unknown, fill in the value, or leave out these rows."
        )


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """What one pass over a table has found. Row numbers are those of `Problem`."""

    path: str
    rows: int
    labelled: int
    unlabelled: int
    positives: Mapping[str, int]  # label -> rows
    negatives: Mapping[str, int]
    parts: Mapping[str, int]  # part -> rows
    groups: int | None  # patients
    sizes: Mapping[tuple[int, int], int]  # (height, width) of the image files -> how many
    channels: int | None
    problems: tuple[Problem, ...]
    skipped: tuple[int, ...]  # rows that were left out because of a problem
    duplicates: tuple[tuple[int, ...], ...]  # rows whose inputs are identical, under whatever name
    leaks: tuple[Leak, ...]  # patients and identical inputs in two parts
    largest_group: LargestGroup | None = None
    group_column: str | None = None
    disputed: tuple[tuple[int, ...], ...] = ()  # those of `duplicates` whose labels differ
    shared: tuple[tuple[int, ...], ...] = ()  # those of `duplicates` that several patients have
    alike: tuple[Alike, ...] = ()  # names that may be one patient's, row's or category's
    missing_codes: tuple[MissingCode, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)  # column -> how it was read
    few: tuple[str, ...] = ()  # labels with too few rows of a class for an AUC to be a headline
    cautions: tuple[str, ...] = ()  # no faults, but worth knowing before training

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        word = group_word(self.group_column)
        lines = [
            f"{self.path}: {counted(self.rows, 'row')}, {self.labelled:,} labelled, {self.unlabelled:,} unlabelled"
        ]
        for name, positives in self.positives.items():
            known = positives + self.negatives[name]
            share = f" ({positives / known:.2%})" if known else ""
            lines.append(f"label {name}: {positives:,} positive{share}, {self.negatives[name]:,} negative")
        if self.parts:
            lines.append("parts: " + ", ".join(f"{part} {rows:,}" for part, rows in self.parts.items()))
        if self.groups is not None:
            lines.append(f"groups: {self.groups:,}{self._largest_group_text()}")
        if self.sizes:
            (height, width), most = max(self.sizes.items(), key=lambda item: item[1])
            lines.append(
                f"images: {counted(len(self.sizes), 'size')}, most often {height} x {width} ({most:,}), "
                f"{'grey' if self.channels == 1 else 'colour'}"
            )
        if self.sizes:  # numbers repeat by chance, pictures do not
            shared, disputed = set(self.shared), set(self.disputed)
            lines += [
                f"identical images: rows {', '.join(map(str, rows))}"
                f"{f' (of several {word}s)' * (rows in shared)}"
                f"{' WITH DIFFERENT LABELS' * (rows in disputed)}"
                for rows in self.duplicates
            ]
        named = {"patient": word, "image": "image"}
        lines += [f"leak: {named[leak.what]}{str(leak)[len(leak.what) :]}" for leak in self.leaks if leak.what in named]
        if same := sum(leak.what == "features" for leak in self.leaks):
            lines.append(f"identical features in two parts: {counted(same, 'set')} of rows")
        lines += [f"metadata {name}: read as {how}" for name, how in self.metadata.items()]
        lines += [
            f"caution: {text}"
            for text in (*(alike.text(word) for alike in self.alike), *self.missing_codes, *self.cautions)
        ]
        if self.skipped:
            lines.append(f"rows left out because of a problem: {', '.join(map(str, self.skipped))}")
        lines.append(format_problems(self.problems) if self.problems else "no problems")
        return "\n".join(lines)

    def _largest_group_text(self) -> str:
        """The patient with the most rows, where that is worth a look: `unknown` is not one patient."""
        largest = self.largest_group
        if largest is None or largest.rows < 2:
            return ""
        text = f"; the largest is {shown(largest.name)}, with {largest.rows:,} rows"
        if largest.name.lower() not in _NOBODY and largest.rows < max(10, SUSPICIOUS_SHARE * self.rows):
            return text
        return f"{text}. If that is not one {group_word(self.group_column)}, give each of its rows its own name"


def kinds_text(problems: Sequence[Problem]) -> str:
    """`3 problems: missing file (2), one class only (1)`."""
    kinds = Counter(one.kind for one in problems)
    each = ", ".join(kinds) if len(kinds) == 1 else ", ".join(f"{kind} ({n:,})" for kind, n in kinds.items())
    return f"{counted(len(problems), 'problem')}: {each}"


def format_problems(problems: Sequence[Problem]) -> str:
    """One line per problem under a line of headings; nothing is cut off."""
    cells = [("row", "column", "kind", "message"), *collapsed(problems)]
    widths = [min(MOST_PADDING, max(len(row[i]) for row in cells)) for i in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]) for row in cells
    )


def collapsed(problems: Sequence[Problem], *, most_ranges: int | None = None) -> list[tuple[str, str, str, str]]:
    """(rows, column, kind, message), in order; a message that more than five rows share is one line with their count.

    Names of image files do not tell messages apart, and neither do cells that have not more than five rows each: the
    first one is shown. most_ranges: of row numbers on such a line; None: all.
    """
    exact = [(one.column or "-", one.kind, one.message) for one in problems]
    often = Counter(exact)
    keys = [
        key if one.kind not in _OF_FILES and often[key] > MOST_ALIKE else (*key[:2], _without_cell(one.message))
        for one, key in zip(problems, exact, strict=True)
    ]
    rows: dict[tuple[str, str, str], list[int]] = {}
    for one, key in zip(problems, keys, strict=True):
        rows.setdefault(key, []).extend([] if one.row is None else [one.row])
    lines: list[tuple[str, str, str, str]] = []
    told = set()
    for one, key, itself in zip(problems, keys, exact, strict=True):
        if len(rows[key]) <= MOST_ALIKE:
            lines.append(("-" if one.row is None else str(one.row), *key[:2], one.message))
        elif key not in told:
            told.add(key)
            shared = often[itself] == len(rows[key])
            message = one.message if shared else _CELL.sub(lambda found: f"{found[1]}, ...: ", one.message)
            lines.append((_ranges(rows[key], most_ranges), *key[:2], f"{message} ({len(rows[key]):,} rows)"))
    return lines


def _without_cell(message: str) -> str:
    return _POINT.sub("", _CELL.sub("", message))


def _ranges(numbers: Sequence[int], most: int | None) -> str:
    """`2-40, 43`, or the first so many of these."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found[:most])
    return text + (", ..." if most is not None and len(found) > most else "")


def shown(cell: str) -> str:
    """A cell in a message: quoted, control characters escaped, no longer than a line has room for."""
    return repr(cell if len(cell) <= 60 else cell[:57] + "...")
