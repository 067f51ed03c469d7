"""Bytes that atheris (libFuzzer) thinks of, guided by the lines and branches of the reader that they reach.

    python reliability/fuzz_coverage.py READER [--runs 100000] [--seed 1]

It needs the extra `fuzz`. The first byte of an input chooses the file and whether its checksums are made right; good
files are where it starts from. Ends like libFuzzer: status 0 when all runs are done; on a fault it writes the input to
a file, names it, and ends with another status.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

import atheris
import torch  # not to be instrumented: nor is anything else that is not the package

with atheris.instrument_imports(include=["deepauc"]):
    from fuzz_readers import READERS, Reader

from fuzz_mutations import SECONDS, limit_memory, memory_folder

LONGEST = 4096


def inputs(reader: Reader) -> list[bytes]:
    """The good files, each with its number in front."""
    return [bytes([number]) + good for number, target in enumerate(reader.targets) for good in target.good]


def main() -> None:
    """One reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--place", help="for its files; by default a new folder in memory, which libFuzzer leaves there"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    reader = READERS[options.reader]()
    place = options.place or tempfile.mkdtemp(prefix="fuzz-", dir=memory_folder())
    folder, corpus, words = Path(place, "files"), Path(place, "corpus"), Path(place, "words")
    for part in (folder, corpus):
        part.mkdir()
    reader.lay_out(folder)
    for number, content in enumerate(inputs(reader)):
        (corpus / str(number)).write_bytes(content)
        one_input(reader, folder, content)
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in reader.words if len(word) <= 64)
    words.write_text("".join(f'"{word}"\n' for word in escaped), encoding="ascii")
    limit_memory()
    arguments = [
        sys.argv[0],
        f"-runs={options.runs}",
        f"-seed={options.seed}",
        f"-max_len={LONGEST}",
        f"-timeout={SECONDS}",
        "-rss_limit_mb=0",  # the address space is limited already
        *([f"-dict={words}"] if reader.words else []),
        str(corpus),
    ]
    atheris.Setup(arguments, lambda content: one_input(reader, folder, content))
    atheris.Fuzz()


def one_input(reader: Reader, folder: Path, content: bytes) -> None:
    """A result or a message; any other exception ends the campaign."""
    target = reader.targets[content[0] % len(reader.targets) if content else 0]
    reader.read_changed(folder, target, content[1:])


if __name__ == "__main__":
    main()
