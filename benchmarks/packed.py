"""A packed set of 200,000 images of 64 x 64: time and memory to open it, and random batches against a plain memmap.

    python benchmarks/packed.py [folder for 2.4 GB, default: a temporary one]

Everything is in the page cache, so what is compared is the reader and not the disk; medians of interleaved runs.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from deepauc.data.packed.sets import open_packed, pack

COUNT, BATCH, BATCHES, ROUNDS = 200_000, 128, 100, 11

OPEN = """
import os, sys, time
from pathlib import Path
import deepauc.data.packed.sets as packed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before, start = resident(), time.perf_counter()
inputs = packed.open_packed(sys.argv[1], verify=sys.argv[2])
print(f"{time.perf_counter() - start:.3f} s, {(resident() - before) / 1e6:.1f} MB more")
"""


class MadeUp:
    """Images made as they are asked for."""

    shape, dtype = (64, 64, 3), np.dtype(np.uint8)

    def __len__(self) -> int:
        return COUNT

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(0).integers(0, 256, (1, *self.shape), dtype=np.uint8)
        return noise + indices.astype(np.uint8)[:, None, None, None]

    def digest(self) -> str:
        return "made up"


def main() -> None:
    parent = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    folder = parent / "packed-benchmark"
    try:
        start = time.perf_counter()
        pack(MadeUp(), folder)
        print(f"pack {COUNT:,} images (2.4 GB): {time.perf_counter() - start:.1f} s")
        for verify in ("quick", "full"):
            out = subprocess.run(
                [sys.executable, "-c", OPEN, str(folder), verify], check=True, capture_output=True, text=True
            )
            print(f"open, verify={verify}: {out.stdout.strip()}")

        packed = open_packed(folder)
        plain = np.load(folder / "inputs.npy", mmap_mode="r")
        batches = np.random.default_rng(1).integers(0, COUNT, (BATCHES, BATCH))
        times: dict[str, list[float]] = {"packed": [], "plain memmap": []}
        readers = {"packed": packed, "plain memmap": lambda rows: np.asarray(plain[rows])}
        for read in readers.values():  # pages in
            for rows in batches:
                read(rows)
        for _ in range(ROUNDS):
            for name, read in readers.items():
                start = time.perf_counter()
                for rows in batches:
                    read(rows)
                times[name].append(1e3 * (time.perf_counter() - start) / BATCHES)
        medians = {name: statistics.median(spent) for name, spent in times.items()}
        for name, milliseconds in medians.items():
            print(f"random batch of {BATCH}, {name}: {milliseconds:.3f} ms")
        print(f"ratio: {medians['packed'] / medians['plain memmap']:.2f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if len(sys.argv) == 1:
            os.rmdir(parent)


if __name__ == "__main__":
    main()
