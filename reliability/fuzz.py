"""Every reader of the package against odd and hostile files: a message or a result, never a crash, a hang or no memory.

    python reliability/fuzz.py [--examples 100000] [--only READER ...] [--out FOLDER]

The inputs are those of the hypothesis tests that `make test` runs too, more of them: `--examples` for each reader,
shared by its tests. Each reader runs in a process of its own with MEMORY bytes of address space more than it has after
its imports, and may take an hour. Writes results/reliability/fuzz.json; the exit code is 1 if any input was too much.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from record import Row, earlier_rows, write_record

ROOT = Path(__file__).resolve().parent.parent
READERS = {
    "csv and parquet tables": ["tests/data/test_table_fuzz.py", "-k", "not pictures"],
    "pictures": ["tests/data/test_table_fuzz.py", "-k", "pictures"],
    "TOML settings": ["tests/training/test_config_fuzz.py"],
    "TFRecord": ["tests/data/medical/test_tfrecord_fuzz.py"],
    "npz sheets": ["tests/data/test_sheets.py"],
    "packed sets": ["tests/data/test_packed.py"],
    "scores": ["tests/reporting/test_scores_file_fuzz.py"],
    "bundles": ["tests/training/test_bundle_fuzz.py"],
    "checkpoints": ["tests/training/test_checkpoint_fuzz.py"],
}
MEMORY = 8 << 30
SECONDS = 3600
_COUNTS = re.compile(r"- (\d+) passing(?: examples)?, (\d+) failing")


def fuzz(reader: str, examples: int) -> Row:
    """One reader's tests with so many inputs in all; how many were really run is read off hypothesis's report."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "hypothesis"]
    command += ["--hypothesis-show-statistics", "--durations=0", *READERS[reader]]
    began = time.monotonic()
    try:
        found = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"DEEPAUC_FUZZ_EXAMPLES": str(examples)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            timeout=SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(what=reader, trials=examples, survivors=0, note=f"not done after {SECONDS} s")
    counts = [(int(passing), int(failing)) for passing, failing in _COUNTS.findall(found.stdout)]
    passing, failing = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    note = f"{time.monotonic() - began:.0f} s"
    if found.returncode != 0 or not counts:
        note += "; " + " ".join(found.stdout.split())[-400:]
        failing = max(failing, 1)
    return Row(what=reader, trials=passing + failing, survivors=passing, note=note)


def main() -> int:
    """All readers, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000, help="inputs for each reader")
    parser.add_argument("--only", nargs="+", choices=READERS, default=list(READERS), metavar="READER")
    parser.add_argument("--out", type=Path, help="folder of the record instead of results/reliability")
    options = parser.parse_args()
    rows = {row.what: row for row in earlier_rows("fuzz", options.out) if row.what not in options.only}
    seconds = {}
    for reader in options.only:
        began = time.monotonic()
        rows[reader] = fuzz(reader, options.examples)
        seconds[reader] = time.monotonic() - began
        holds = write_record(  # after each: a campaign of hours may be stopped
            "fuzz",
            command="make fuzz",
            about="Odd, damaged and hostile files given to every reader by hypothesis: a message or a result is "
            "expected. The trials are the inputs.",
            rows=[rows[name] for name in READERS if name in rows],
            seconds=sum(seconds.values()),
            out=options.out,
        )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
