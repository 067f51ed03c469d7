"""What millions of rows cost: a csv of numbers read into a task, and a label's part of the report made.

    python benchmarks/large_table.py [--rows 1000000 5000000] [--folder for 1.4 GB]   # writes results/large-table.json
    python benchmarks/large_table.py --table               # only writes results/large-table.md from that record

20 columns of numbers with eight decimals and a label; scores of 5 % positives with an AUC of .8, without and with
patients of three rows on average, thresholds from a fifth as many validation rows. Every figure comes from a process of
its own on one thread: seconds of processor time, and how far its memory has grown at most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepauc.data.table.read import read_table
from deepauc.reporting.evaluation.label import evaluate_label
from deepauc.reporting.evaluation.sample import Sample
from deepauc.text_tables import markdown_table
from deepauc.training.run.folder import code_text, surroundings

RESULTS = Path(__file__).parent.parent / "results"
COLUMNS, POSITIVE, SHIFT = 20, 0.05, 1.19
READ, REPORT, BY_PATIENT = "read", "report", "report by patient"
NAMES = [f"x{place}" for place in range(COLUMNS)]


def write_csv(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join([*NAMES, "target"]) + "\n")
        for start in range(0, rows, 10_000):
            for row in rng.normal(size=(min(10_000, rows - start), COLUMNS)).tolist():
                file.write(",".join(f"{value:.8f}" for value in row) + f",{int(row[0] > 1.5)}\n")


def sample(rows: int, rng: np.random.Generator, *, patients: bool) -> Sample:
    labels = (rng.random(rows) < POSITIVE).astype(np.float64)
    groups = np.array([f"p{number}" for number in rng.integers(0, rows // 3, rows)]) if patients else None
    return Sample(scores=rng.normal(size=rows) + SHIFT * labels - 1.5, labels=labels, groups=groups)


def measure(what: str, rows: int, path: Path) -> dict[str, Any]:
    """Seconds and bytes of one of the three, in this process, which does nothing else."""
    found: dict[str, Any] = {}
    if what == READ:
        before, start = _resident(), time.process_time()
        task, _ = read_table(path, label_columns=["target"], kind="binary", feature_columns=NAMES)
        assert len(task) == rows
        found["file_bytes"] = path.stat().st_size
    else:
        rng = np.random.default_rng(0)
        validation, test = (sample(n, rng, patients=what == BY_PATIENT) for n in (rows // 5, rows))
        before, start = _resident(), time.process_time()
        label = evaluate_label(test, name="target", part="test", validation=validation)
        found |= {"auc_samples": label.resamples.auc, "other_samples": label.resamples.others}
    seconds = time.process_time() - start
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"what": what, "rows": rows, "seconds": seconds, "bytes": most - before, **found}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_a_process(what: str, rows: int, path: Path) -> dict[str, Any]:
    arguments = [sys.executable, __file__, "--measure", what, "--rows", str(rows), "--folder", str(path.parent)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(arguments, env={**os.environ, **threads}, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(record: dict[str, Any]) -> str:
    header = ["what", "rows", "seconds", "memory, MB", "of the numbers in 64 bits", "bootstrap samples"]
    rows = []
    for one in record["measured"]:
        share = f"{one['bytes'] / (8 * COLUMNS * one['rows']):.1f} times" if one["what"] == READ else ""
        samples = "" if one["what"] == READ else f"{one['auc_samples']:,} and {one['other_samples']:,}"
        figures = [f"{one['rows']:,}", f"{one['seconds']:.0f}", f"{one['bytes'] / 1e6:.0f}"]
        rows.append([one["what"], *figures, share, samples])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return "\n".join(
        [
            "# What millions of rows cost",
            "",
            f"A csv of {COLUMNS} columns of numbers and a label, read into a task; and all that the report says of one",
            "label in one part, without and with patients of three rows on average. Seconds of processor time on one",
            "thread, and how far the memory of the process grew at most.",
            "Made by `python benchmarks/large_table.py`.",
            "",
            markdown_table(header, rows),
            "",
            f"{record['hardware']}; {versions}; {code_text(record)}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.measure:
        print(json.dumps(measure(options.measure, options.rows[0], options.folder / "large-table.csv")))
        return
    if not options.table:
        measured = []
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "large-table.csv"
            for rows in options.rows:
                write_csv(path, rows)
                for what in (READ, REPORT, BY_PATIENT):
                    measured.append(in_a_process(what, rows, path))
                    print(measured[-1], flush=True)
        record = {**surroundings(torch.device("cpu")), "measured": measured}
        (RESULTS / "large-table.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads((RESULTS / "large-table.json").read_text(encoding="utf-8"))
    (RESULTS / "large-table.md").write_text(table(record), encoding="utf-8")


if __name__ == "__main__":
    main()
