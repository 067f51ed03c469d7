"""Ctrl-C while the command is still importing, once and three times in a row, and readers of stdout that go away.

python reliability/signals.py
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from record import Row, write_record

SOURCE = Path(__file__).resolve().parent.parent / "src"
READY = "import os, deepauc_command; os.write(1, b'ready'); deepauc_command.run()"
SAID = b"deepauc: interrupted.\n"
COMMANDS = (["--help"], ["--version"], ["data", "list"], ["data", "list", "--json"], ["train", "--help"])


def start(words: list[str], *, stdout: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        [sys.executable, "-c", READY, *words], stdout=stdout, stderr=subprocess.PIPE, env=environment
    )


def interrupted(after: float, times: int) -> tuple[bool, bool]:
    """Whether it ended with 130 and one line, and whether the signal came too late, after the command was done."""
    process = start(["data", "list"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    os.read(process.stdout.fileno(), len(b"ready"))
    time.sleep(after)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, err = process.communicate(timeout=120)
    late = process.returncode == 0 and err == b""
    once = process.returncode in (130, -signal.SIGINT) and set(err.splitlines(keepends=True)) <= {SAID}
    return late or once, late


def unread(words: list[str], *, read_first: int) -> bool:
    """A reader that takes so many bytes and leaves: exit code 0, and nothing on stderr."""
    reading, writing = os.pipe()
    process = start(words, stdout=writing)
    os.close(writing)
    os.read(reading, len(b"ready") + read_first)
    os.close(reading)
    _, err = process.communicate(timeout=120)
    return process.returncode == 0 and err == b""


def main() -> int:
    """All classes, one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30, help="moments at which Ctrl-C comes, of each kind")
    parser.add_argument("--seconds", type=float, default=2.5, help="the moments lie within so many seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    began = time.monotonic()
    rows = []
    for times, what in ((1, "Ctrl-C during the import"), (3, "three Ctrl-C in a row during the import")):
        ends = [interrupted(moments.uniform(0, options.seconds), times) for _ in range(options.trials)]
        late = sum(was_late for _, was_late in ends)
        note = f"at moments within {options.seconds:g} s: exit code 130 and one line"
        note += f"; {late} of them after the command had ended" if late else ""
        rows.append(Row(what=what, trials=len(ends), survivors=sum(good for good, _ in ends), note=note))
    gone = [unread(words, read_first=first) for words in COMMANDS for first in (0, 1)]
    note = "at once, or after a byte: exit code 0 and nothing on stderr"
    rows.append(Row(what="a reader of stdout that goes away", trials=len(gone), survivors=sum(gone), note=note))
    holds = write_record(
        "signals",
        command="python reliability/signals.py",
        about="The installed command meets Ctrl-C before it is ready, and pipes that nobody reads.",
        rows=rows,
        seconds=time.monotonic() - began,
        out=options.out,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
