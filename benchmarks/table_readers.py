"""Why `data/table/rows.py` rests on Python's csv module: the same reading by it, by pandas and by pyarrow.

    python benchmarks/table_readers.py [--rows 1000000]    # writes results/table-readers.json and .md

The same work by each: 20 columns of numbers in 64 bits, the text of a label, a digest of every row (to find rows that
repeat). Seconds of processor time on one thread and how far the memory grew, each in a process of its own. Then what
each makes of faulty files: a good reader names the line, or at least refuses.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.table.compact import TextBlock
from deepauc.data.table.rows import read_rows, row_digest
from deepauc.text_tables import markdown_table
from deepauc.training.run.folder import code_text, surroundings
from large_table import NAMES, RESULTS, _resident, write_csv

READERS = ("csv", "pandas", "pyarrow")
BLOCK_ROWS = 8192
FAULTS = {
    "a row with too few fields": b"a,b,c\n1,2,3\n4,5\n6,7,8\n",
    "a row with too many": b"a,b,c\n1,2,3\n4,5,6,7\n6,7,8\n",
    "too few, after a cell with a line break": b'a,b,c\n1,"x\ny",3\n4,5\n6,7,8\n',
    "too few, after an empty line": b"a,b,c\n\n1,2,3\n4,5\n6,7,8\n",
    "a quotation mark without its second": b'a,b,c\n1,"2,3\n4,5,6\n',
    "text after a closing quotation mark": b'a,b,c\n1,"2"x,3\n4,5,6\n',
    "a NUL byte": b"a,b,c\n1,2\0,3\n4,5,6\n",
    "two columns of one name": b"a,a,c\n1,2,3\n4,5,6\n",
    "a line of 20 MB": b"a,b,c\n1," + b"9" * 20_000_000 + b",3\n4,5,6\n",
}


def blocks(reader: str, path: Path) -> Iterator[list[list[str]]]:
    """Columns of text, block by block."""
    if reader == "pandas":
        import pandas as pd

        with pd.read_csv(path, dtype=str, keep_default_na=False, chunksize=BLOCK_ROWS) as frames:
            for frame in frames:
                yield [frame[name].tolist() for name in frame]
    else:
        import pyarrow as pa
        from pyarrow import csv

        text = csv.ConvertOptions(column_types={name: pa.string() for name in [*NAMES, "target"]})
        for batch in csv.open_csv(path, read_options=csv.ReadOptions(use_threads=False), convert_options=text):
            yield [column.to_pylist() for column in batch.columns]


def measure(reader: str, path: Path) -> dict[str, Any]:
    before, start = _resident(), time.process_time()
    if reader == "csv":
        rows = len(read_rows(path, [*NAMES, "target"], numbers=NAMES))
    else:
        numbers: list[list[Any]] = [[] for _ in NAMES]
        labels, digests = [], bytearray()
        for *features, target in blocks(reader, path):
            for kept, cells in zip(numbers, features, strict=True):
                kept.append(np.fromiter(map(float, cells), dtype=np.float64, count=len(cells)))
            labels.append(TextBlock(target))
            for row in zip(*features, target, strict=True):
                digests += row_digest("\0".join(row).encode())
        rows = sum(map(len, labels))
    seconds = time.process_time() - start
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"reader": reader, "rows": rows, "seconds": seconds, "bytes": most - before}


def told(reader: str, content: bytes, folder: Path) -> str:
    """What the reader makes of a faulty file: which line it names, whether it refuses, or that it says nothing."""
    path = folder / "faulty.csv"
    path.write_bytes(content)
    try:
        if reader == "csv":
            named = [f"names line {problem.row}" for problem in read_rows(path, ["a", "c"]).problems]
        elif reader == "pandas":
            import pandas as pd

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, on_bad_lines="warn")
            named = [f"names {' '.join(str(one.message).split()[1:3]).rstrip(':')}" for one in caught]
        else:
            from pyarrow import csv

            bad: list[int] = []
            options = csv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=lambda row: bad.append(row.number) or "skip"
            )
            csv.read_csv(io.BytesIO(content), read_options=csv.ReadOptions(use_threads=False), parse_options=options)
            named = [f"names line {number}" for number in bad]
    except ValueError as error:
        return "refuses, with the line" if "line" in str(error) else "refuses"
    return ", ".join(named) or "says nothing"


def page(record: dict[str, Any]) -> str:
    seconds = [
        [one["reader"], f"{one['rows']:,}", f"{one['seconds']:.1f}", f"{one['bytes'] / 1e6:.0f}"]
        for one in record["measured"]
    ]
    faults = [[what, *(said[reader] for reader in READERS)] for what, said in record["faults"].items()]
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return "\n".join(
        [
            "# Readers of csv files",
            "",
            f"{len(NAMES)} columns of numbers, the text of a label and a digest of every row: by `data/table/rows.py`",
            "on Python's csv module; by pandas' C parser and by pyarrow in its place. Seconds of processor time on one",
            "thread, and how far the memory of the process grew. Made by `python benchmarks/table_readers.py`.",
            "",
            markdown_table(["reader", "rows", "seconds", "memory, MB"], seconds),
            "",
            "What each says of a faulty file, where a bad row can be told from a good one at all:",
            "",
            markdown_table(["fault", *READERS], faults),
            "",
            f"{record['hardware']}; {versions}; {code_text(record)}.",
            "",
        ]
    )


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], Path(options.measure[1]))))
        return
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large-table.csv"
        write_csv(path, options.rows)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        for reader in READERS:
            arguments = [sys.executable, __file__, "--measure", reader, str(path)]
            done = subprocess.run(arguments, env={**os.environ, **threads}, check=True, capture_output=True, text=True)
            measured.append(json.loads(done.stdout))
            print(measured[-1], flush=True)
        faults = {
            what: {reader: told(reader, content, Path(folder)) for reader in READERS}
            for what, content in FAULTS.items()
        }
    record = surroundings(torch.device("cpu"))
    record["versions"] |= {name: version(name) for name in ("pandas", "pyarrow")}
    record |= {"measured": measured, "faults": faults}
    (RESULTS / "table-readers.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "table-readers.md").write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
