"""Every reader of the package against odd and hostile files: a message or a result, never a crash, a hang or no memory.

    python reliability/fuzz.py [--examples 100000] [--only READER ...] [--out FOLDER]

Three ways to think of inputs, each in a process of its own with a limit on memory and time: the hypothesis tests that
`make test` runs too, which know the structure of a file, for a tenth of `--examples`; good files changed at random
(`fuzz_mutations.py`) for the rest; and, where atheris is installed, `--examples` more that follow the coverage of the
reader (`fuzz_coverage.py`). Every input goes through the reader. Writes results/reliability.json; the exit code is
1 if any input was too much.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from record import Row, earlier_rows, write_record

from deepauc.training.run.folder import git_commit

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
READERS = {
    "csv and parquet tables": ["tests/data/table/test_table_fuzz.py", "-k", "not pictures"],
    "pictures": ["tests/data/table/test_table_fuzz.py", "-k", "pictures"],
    "TOML settings": ["tests/training/test_config_fuzz.py"],
    "TFRecord": ["tests/data/datasets/medical/test_tfrecord_fuzz.py"],
    "npz sheets": ["tests/data/datasets/test_sheets.py"],
    "packed sets": ["tests/data/packed/test_packed.py"],
    "scores": ["tests/training/run/test_scores_fuzz.py"],
    "bundles": ["tests/training/run/test_bundle_fuzz.py"],
    "checkpoints": ["tests/training/run/test_checkpoint_fuzz.py"],
}
BY_HYPOTHESIS = 0.1  # of the inputs: one costs many times what a changed file does
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files there wait for no disk
MEMORY = 8 << 30
SECONDS = 3600
_COUNTS = re.compile(r"- (\d+) passing(?: examples)?, (\d+) failing")
_ENDED = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+) ft: \d+ corp: (\d+)", re.MULTILINE)
_BEGUN = re.compile(r"^#\d+\s+INITED\s+cov: (\d+)", re.MULTILINE)
_LAST = re.compile(r"^#(\d+)\s", re.MULTILINE)


def fuzz(reader: str, examples: int) -> Row:
    """So many inputs in all; how many were really run is read off the reports of those who ran them."""
    wanted = int(BY_HYPOTHESIS * examples)
    tests, failing, drawn, test_seconds = by_hypothesis(reader, wanted)
    began = time.monotonic()
    ended = run([str(HERE / "fuzz_mutations.py"), reader, "--inputs", str(examples - tests - failing)])
    lines = ended.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        found = {"inputs": 1, "read": 0, "fault": {"error": f"ended with {ended.returncode}: {ended.stderr[-400:]}"}}
    faulty = found["fault"] is not None
    note = (
        f"{tests:,} by hypothesis in {test_seconds:.0f} s; {found['inputs']:,} changed files in "
        f"{time.monotonic() - began:.0f} s, {found['read']:,} of them still readable"
    )
    if failing:
        note += f"; {drawn}"
    if faulty:
        note += f"; {' '.join(found['fault']['error'].split())[-400:]}"
    trials = tests + failing + found["inputs"]
    return Row(what=reader, trials=trials, survivors=trials - failing - faulty, note=note)


def by_hypothesis(reader: str, examples: int) -> tuple[int, int, str, float]:
    """Passing and failing inputs of the tests, the end of what they say, and the seconds they took."""
    command = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "hypothesis"]
    command += ["--hypothesis-show-statistics", "--durations=0", *READERS[reader]]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        found = run([*command, "--basetemp", f"{place}/tests"], DEEPAUC_FUZZ_EXAMPLES=str(examples))
    counts = [(int(passing), int(failing)) for passing, failing in _COUNTS.findall(found.stdout)]
    passing, failing = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    bad = found.returncode != 0 or not counts
    said = f"ended with {found.returncode}: {' '.join((found.stdout + found.stderr).split())[-400:]}"
    return passing, max(failing, int(bad)), said, time.monotonic() - began


def guided(reader: str, runs: int) -> Row:
    """Inputs that atheris has found to reach something new, and their descendants."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:  # an input that is too much is written here
        command = [str(HERE / "fuzz_coverage.py"), reader, "--runs", str(runs), "--place", place]
        ended = run(command, cwd=Path(place))
    done, first = _ENDED.search(ended.stderr), _BEGUN.search(ended.stderr)
    what = f"{reader}, guided by coverage"
    if ended.returncode != 0 or done is None or first is None:
        trials = max([int(number) for number in _LAST.findall(ended.stderr)], default=1)
        note = f"ended with {ended.returncode}: {' '.join((ended.stderr + ended.stdout).split())[-600:]}"
        return Row(what=what, trials=trials, survivors=trials - 1, note=note)
    note = (
        f"{time.monotonic() - began:.0f} s; {first[1]} places of the package reached by good files, {done[2]} in the "
        f"end; {done[3]} inputs that reached something new"
    )
    return Row(what=what, trials=int(done[1]), survivors=int(done[1]), note=note)


def run(command: list[str], *, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, in limited memory and time; what takes longer has ended with status 124."""
    try:
        return subprocess.run(
            [sys.executable, *command],
            cwd=cwd,
            env=os.environ | environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            timeout=SECONDS,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {SECONDS} s")


def main() -> int:
    """All readers, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000, help="inputs for each reader and way")
    parser.add_argument("--only", nargs="+", choices=READERS, default=list(READERS), metavar="READER")
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    if find_spec("atheris") is None:
        print("atheris is not installed (extra `fuzz`): nothing is guided by coverage.")
    order = [what for reader in READERS for what in (reader, f"{reader}, guided by coverage")]
    rows = {row.what: row for row in earlier_rows("fuzz", options.out) if row.what in order}
    began = time.monotonic()
    for reader in options.only:
        git_commit.cache_clear()  # a campaign is long: the code may have changed since it began
        new = [fuzz(reader, options.examples)]
        if find_spec("atheris") is not None:
            new.append(guided(reader, options.examples))
        rows |= {row.what: row for row in new}
        write_record(  # after each: a campaign may be stopped
            "fuzz",
            command="make fuzz",
            about="Odd, damaged and hostile files given to every reader: a message or a result is expected. The trials "
            "are the inputs; each went through the reader.",
            rows=[rows[what] for what in order if what in rows],
            seconds=time.monotonic() - began,
            out=options.out,
        )
    return 0 if all(row.holds for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
