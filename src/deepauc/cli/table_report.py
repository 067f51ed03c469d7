"""What the commands say of a table of the user's: its summary, and all that is wrong with it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NoReturn

import typer

from deepauc.cli.console import Output, printable
from deepauc.data.table.columns import EMPTY_FEATURE
from deepauc.data.table.problems import Problem, TableError, TableReport, collapsed, kinds_text
from deepauc.data.table.rows import MissingColumnError
from deepauc.names import counted

OTHER_NAMES = "If columns have other names here, give them: --image-column, --label-column, --group-column."
MOST_ALIKE = 20  # problems of one kind in one column that a terminal shows
_NOT_BY_SKIPPING = ("no labelled row", "one class only", "unknown label value", "label value left out")


def report_record(report: TableReport) -> dict[str, Any]:
    sizes = [{"height": size[0], "width": size[1], "files": count} for size, count in report.sizes.items()]
    return {"ok": report.ok} | asdict(report) | {"sizes": sizes}


def show_summary(output: Output, report: TableReport) -> None:
    """Everything but the problems, which have a table of their own."""
    leaks = tuple(replace(leak, name=printable(leak.name)) for leak in report.leaks)
    largest = report.largest_group and replace(report.largest_group, name=printable(report.largest_group.name))
    text = str(replace(report, path=printable(report.path), leaks=leaks, largest_group=largest, problems=()))
    output.result(text if report.ok else text.removesuffix("no problems").rstrip())


@contextmanager
def columns_as_trained(output: Output, *, may_skip: bool) -> Iterator[None]:
    """A table is read here whose columns are a run's: bad rows are told, and how to name a column that is missing."""
    try:
        yield
    except MissingColumnError as error:
        raise ValueError(f"{error} {OTHER_NAMES}") from None
    except TableError as error:
        refuse(output, error, may_skip=may_skip)


def refuse(output: Output, error: TableError, *, may_skip: bool) -> NoReturn:
    """All problems of a table, also as JSON."""
    output.record({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
    refuse_table(output, error.problems, may_skip=may_skip, every_row=error.every_row)


def refuse_table(
    output: Output,
    problems: Sequence[Problem],
    *,
    may_skip: bool = False,
    every_row: bool = False,
    skip: str = "--skip-bad",
) -> NoReturn:
    """All problems in one table (in a terminal the first of each kind, where they are many), then exit code 2.

    may_skip: one could go on without these rows, by `skip`, which is said, unless they are every row of the table.
    """
    alike = Counter((one.column, one.kind) for one in problems)
    for one in problems:
        if one.row is None:  # that says it for all rows
            alike.pop((one.column, one.kind), None)
    terminal = sys.stdout.isatty()
    lines, seen = collapsed(problems, most_ranges=4 if terminal else None), Counter[tuple[str, str]]()
    shown = []
    for line in lines:
        seen[line[1:3]] += 1
        if seen[line[1:3]] <= MOST_ALIKE or not terminal:
            shown.append(line)
    output.columns(("row", "column", "kind", "message"), shown)
    if len(shown) < len(lines):
        output.result(f"{len(lines) - len(shown):,} more of the same kinds; add | cat to the command to see them all.")
    text = Counter(one.column for one in problems if one.kind == "NaN feature" and one.message != EMPTY_FEATURE)
    for (column, kind), count in alike.items():
        if not column or count <= MOST_ALIKE:
            continue
        if kind == "NaN feature":
            output.result(f"column {column!r}: {_feature_remedy(text[column], count - text[column])}")
        elif kind == "path leaves folder":
            output.result(
                f"column {column!r}: {kind} in {count:,} rows. If these are your images, add --allow-outside."
            )
        else:
            right = "the right column, and the right folder" if kind == "missing file" else "the right column"
            output.result(f"column {column!r}: {kind} in {count:,} rows. Is it {right}?")
    output.result(kinds_text(problems))
    rows = {one.row for one in problems if one.row is not None}
    if may_skip and (named := [repr(column) for column, count in text.items() if count > MOST_ALIKE]):
        typer.echo(f"deepauc: turn {', '.join(named)} into numbers, or leave out --feature-column for it.", err=True)
    elif may_skip and rows and not any(one.row is None and one.kind in _NOT_BY_SKIPPING for one in problems):
        these, them = ("this row", "it") if len(rows) == 1 else (f"these {len(rows):,} rows", "them")
        outside = all(one.kind == "path leaves folder" for one in problems)
        mend = f"{'add --allow-outside for' if outside else 'correct'} {these}"
        less = ". Every row has a problem" if every_row else f", or leave {them} out with {skip}"
        typer.echo(f"deepauc: {mend}{less}.", err=True)
    raise typer.Exit(2)


def _feature_remedy(text: int, empty: int) -> str:
    """What to do with a feature column that has so many bad cells that no row is to blame."""
    remedies = []
    if text:
        remedies.append(
            f"not a number in {counted(text, 'row')}. Is it the right column? Turn categories into columns of 0 and 1, "
            "one per category (pandas.get_dummies), and name those. Or use --metadata-column, which takes categories."
        )
    if empty:
        remedies.append(
            f"empty in {counted(empty, 'row')}. Fill them in (with the median, say), or leave out the column."
        )
    return " Also ".join(remedies)
