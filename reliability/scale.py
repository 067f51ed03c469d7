"""Packed sets of 10,000 to 1,000,000 small images: time and memory to pack, open and read them, in one file and many.

    python reliability/scale.py [--out FOLDER]

Opening and reading happen in a fresh process. A trial holds if opening takes under a second and under 100 MB more than
the process had, and a random batch of 256 comes in under 50 ms. Writes results/reliability.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import Row, write_record

from deepauc.data.packed.sets import pack
from deepauc.data.task import ArrayInputs, Task

SIZES = (10_000, 100_000, 1_000_000)
SHAPE = (8, 8, 1)
SHARDS = 16
OPEN_SECONDS, OPEN_BYTES, BATCH_SECONDS = 1.0, 100e6, 0.05

MEASURE = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from deepauc.data.packed.sets import open_packed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before, start = resident(), time.perf_counter()
inputs = open_packed(sys.argv[1])
opened, opened_bytes = time.perf_counter() - start, resident() - before
start = time.perf_counter()
task = inputs.task()
task_seconds, task_bytes = time.perf_counter() - start, resident() - before
rng = np.random.default_rng(0)
batches = rng.integers(0, len(inputs), (200, 256))
times = []
for rows in batches:
    start = time.perf_counter()
    inputs(rows)
    times.append(time.perf_counter() - start)
print(json.dumps({"open_s": opened, "open_bytes": opened_bytes, "task_s": task_seconds, "task_bytes": task_bytes,
                  "batch_s": float(np.median(times))}))
"""


def measure(rows: int, *, shards: int) -> tuple[Row, dict[str, Any]]:
    """One set, packed, opened and read."""
    images = np.random.default_rng(0).integers(0, 256, (rows, *SHAPE), dtype=np.uint8)
    task = Task(
        name="scale",
        kind="binary",
        source=ArrayInputs(images),
        labels=np.arange(rows) % 50 == 0,
        label_names=("rare",),
        parts={"train": np.arange(rows)},
        groups=np.char.add("patient ", (np.arange(rows) // 3).astype(str)),
    )
    with tempfile.TemporaryDirectory(prefix="scale-") as place:
        start = time.perf_counter()
        pack(task, Path(place) / "set", shard_bytes=None if shards == 1 else images.nbytes // shards + 1)
        packed_s = time.perf_counter() - start
        command = [sys.executable, "-c", MEASURE, str(Path(place) / "set")]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    figures = {"rows": rows, "files": shards, "pack_s": packed_s, **found}
    holds = found["open_s"] < OPEN_SECONDS and found["open_bytes"] < OPEN_BYTES and found["batch_s"] < BATCH_SECONDS
    note = (
        f"packed in {packed_s:.2f} s, opened in {1e3 * found['open_s']:.0f} ms and {found['open_bytes'] / 1e6:.1f} MB; "
        f"as a Task with its labels and patients {found['task_s']:.2f} s and {found['task_bytes'] / 1e6:.0f} MB; "
        f"256 random images in {1e3 * found['batch_s']:.2f} ms"
    )
    where = "one file" if shards == 1 else f"{shards} files"
    return Row(what=f"{rows:,} images of 8 x 8 in {where}", trials=1, survivors=int(holds), note=note), figures


def main() -> int:
    """All sizes, in one file and in several."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the record instead of results")
    options = parser.parse_args()
    began = time.monotonic()
    found = [measure(rows, shards=shards) for rows in SIZES for shards in (1, SHARDS)]
    holds = write_record(
        "scale",
        command="python reliability/scale.py",
        about="Packed sets of many small images: what they cost to open and to read.",
        rows=[row for row, _ in found],
        seconds=time.monotonic() - began,
        out=options.out,
        figures=[figures for _, figures in found],
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
