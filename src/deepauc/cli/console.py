"""What the commands say: rich in a terminal, plain lines elsewhere, one JSON object where that was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deepauc.reporting.tables import markdown_table, rich_table


@dataclass(frozen=True, kw_only=True)
class Output:
    """quiet: results only, no explanations. as_json: nothing but the JSON object."""

    quiet: bool = False
    as_json: bool = False

    def say(self, text: str = "") -> None:
        """An explanation or a sign of progress."""
        if not (self.quiet or self.as_json):
            _write(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str) -> None:
        """A table: drawn in a terminal, in markdown elsewhere, where a drawn one would be cut to the width."""
        if self.quiet or self.as_json:
            return
        if sys.stdout.isatty():
            from rich.console import Console

            Console().print(rich_table(header, rows, title=title))
        else:
            _write(f"{title}\n\n{markdown_table(header, rows)}\n")

    def result(self, text: str) -> None:
        """What the command was run for."""
        if not self.as_json:
            _write(text)

    def record(self, record: dict[str, Any]) -> None:
        """The machine-readable result, printed where it was asked for."""
        if self.as_json:
            _write(json.dumps(record, indent=2))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """A bar in a terminal; elsewhere one line that the work has begun."""
        if self.quiet or self.as_json or not sys.stdout.isatty():
            self.say(title)
            yield lambda _done, _total: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(
            transient=True, console=Console()
        ) as bar:  # rich's own may be of another time, without a terminal
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
