"""What the commands say: rich in a terminal, plain lines elsewhere, one JSON object where that was asked for."""

from __future__ import annotations

import io
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from deepauc.data.table.problems import MOST_PADDING
from deepauc.text_tables import markdown_table, rich_table

if TYPE_CHECKING:
    from rich.progress import Progress

BESIDE_A_TITLE = 30  # columns: percentage, time left, the blanks between, and some of the bar
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
BEGINNING = 12  # of a title that is too long: "Reading" and the first letters of the path


@dataclass(frozen=True, kw_only=True)
class Output:
    """quiet: results only, no explanations. as_json: nothing but the JSON object.

    aside: all of it on stderr, since stdout is the file that the command writes.
    """

    quiet: bool = False
    as_json: bool = False
    aside: bool = False

    @classmethod
    def beside(cls, files: Sequence[Path | None], *, quiet: bool, as_json: bool) -> Output:
        """That of a command that writes these files; ValueError where stdout would be one of them and the JSON too."""
        from deepauc.training.run.output_file import is_stdout

        aside = any(path is not None and is_stdout(path) for path in files)
        if aside and as_json:
            raise ValueError("--json and the file would both go to standard output: name a file, or leave out --json.")
        return cls(quiet=quiet, as_json=as_json, aside=aside)

    def say(self, text: str = "") -> None:
        """An explanation or a sign of progress."""
        if not (self.quiet or self.as_json):
            self._write(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str) -> None:
        """A table: drawn in a terminal, in markdown elsewhere, where a drawn one would be cut to the width."""
        if self.quiet or self.as_json:
            return
        header, rows = [printable(name) for name in header], [[printable(cell) for cell in row] for row in rows]
        if self._in_terminal():
            from rich.console import Console

            Console().print(rich_table(header, rows, title=title))
        else:
            self._write(f"{title}\n\n{markdown_table(header, rows)}\n")

    def columns(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """In a terminal a table that folds what is too wide; elsewhere one line a row. Nothing is cut off."""
        if self.as_json:
            return
        lines = [[printable(cell) for cell in row] for row in (header, *rows)]
        if self._in_terminal():
            from rich import box
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text

            drawn = Table(box=box.SIMPLE_HEAD)
            for name in lines[0]:
                drawn.add_column(Text(name), overflow="fold")
            for row in lines[1:]:
                drawn.add_row(*map(Text, row))  # Text: a bracket in a cell is no markup
            Console().print(drawn)
            return
        widths = [min(MOST_PADDING, max(len(line[place]) for line in lines)) for place in range(len(header) - 1)]
        for line in lines:
            self.result("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]))

    def result(self, text: str) -> None:
        """What the command was run for."""
        if not self.as_json:
            self._write(text)

    def record(self, record: dict[str, Any]) -> None:
        """The machine-readable result, printed where it was asked for."""
        if self.as_json:
            self._write(json.dumps(record, indent=2))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """A bar in a terminal; elsewhere one line that the work has begun."""
        if self.quiet or self.as_json or not self._in_terminal():
            self.say(title)
            yield lambda _done, _total: None
            return
        with progress_bar() as bar:
            task = bar.add_task(_shortened(title, bar.console.width - BESIDE_A_TITLE), total=None, said="")
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def _in_terminal(self) -> bool:
        return not self.aside and sys.stdout.isatty()

    def _write(self, text: str) -> None:
        stream = sys.stderr if self.aside else sys.stdout
        try:
            stream.write(harmless(text) + "\n")
            stream.flush()
        except BrokenPipeError:
            _drop(stream)  # the work goes on: a run is more than what it says


def progress_bar() -> Progress:
    """A bar of one line, gone at its end: description, bar, percentage, the task's `said`, time left.

    The bar gives way to the words, down to nothing; where they alone are wider than the terminal, rich cuts all of
    them, the time left first. So whoever adds a task keeps its words short.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),  # it may hold a file's name, with brackets
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[said]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        transient=True,
        console=Console(),  # rich's own may be of another time, without a terminal
    )


def _shortened(text: str, room: int) -> str:
    """The text with dots for its middle where it is longer than this: a path says most at its end."""
    room = max(room, 2 * BEGINNING)
    return text if len(text) <= room else f"{text[:BEGINNING]}…{text[BEGINNING + 1 - room :]}"


def printable(text: str) -> str:
    """One line whatever a table holds: control characters, such as a terminal would obey, are shown as escapes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def harmless(text: str) -> str:
    """The text with control characters, but for tabs and ends of lines, as escapes: a name may come from a table."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def speak_of_anything() -> None:
    """Letters that stdout's encoding lacks, as a pipe's on Windows lacks Greek ones, appear as escapes: no error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # stderr does so by itself


def write_file(text: str) -> None:
    """What stdout is redirected into a file for, in UTF-8 whatever the system's encoding: so it will be read."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors)
    sys.stdout.write(text)


def stdout_is_open() -> bool:
    """Whether anybody still reads stdout; after `| head` nobody does, and what is still written is dropped."""
    try:
        sys.stdout.flush()
        poll = select.poll()
        poll.register(sys.stdout, 0)
        gone = any(event & select.POLLERR for _, event in poll.poll(0))
    except BrokenPipeError:
        gone = True
    except (OSError, ValueError, AttributeError):  # no file behind it, or a system without poll
        gone = False
    if gone:
        _drop(sys.stdout)
    return not gone


def _drop(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
