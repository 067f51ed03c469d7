"""Good files, changed at random by a seeded generator, and given to their reader: many inputs in little time.

    python reliability/fuzz_mutations.py READER [--inputs 90000] [--seed 0]

Prints one line of JSON: inputs, how many of them were read as if nothing had been, and the first fault, if any.
The process may have MEMORY bytes more than after its imports, and SECONDS for each input; files lie in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from fuzz_readers import READERS, Reader

MEMORY = 1 << 30
SECONDS = 20
MOST_CHANGES = 4
LONGEST = 1 << 16
NUMBERS = (0, 1, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


class Hangs(BaseException):
    """An input takes longer than SECONDS; no reader catches this."""


def changed(content: bytes, others: Sequence[bytes], words: Sequence[bytes], draw: random.Random) -> bytes:
    """One to MOST_CHANGES of: bits and bytes, numbers and words put in, spans left out, doubled, moved, spliced."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, MOST_CHANGES))):
        place = draw.randint(0, len(found))
        length = min(draw.choice((1, 1, 2, 4, 8, 16, 64)), len(found) - place)
        kind = draw.randrange(10)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << draw.randrange(8)
        elif kind == 1 and place < len(found):
            found[place] = draw.randrange(256)
        elif kind == 2:
            width = draw.choice("BHIQ")
            number = struct.pack(draw.choice("<>") + width, draw.choice(NUMBERS) % (1 << 8 * struct.calcsize(width)))
            found[place : place + len(number)] = number
        elif kind == 3:
            found[place:place] = draw.randbytes(draw.randint(1, 8))
        elif kind == 4:
            del found[place : place + length]
        elif kind == 5:
            found[place:place] = found[place : place + length] * draw.choice((1, 2, 9))
        elif kind == 6:
            some = found[place : place + length]
            del found[place : place + length]
            there = draw.randint(0, len(found))
            found[there:there] = some
        elif kind == 7 and words:
            word = draw.choice(words)
            found[place : place + draw.choice((0, len(word), length))] = word
        elif kind == 8:
            other = draw.choice(others)
            start = draw.randint(0, len(other))
            found[place : place + length] = other[start : start + draw.randint(0, 64)]
        elif kind == 9 and draw.randrange(4) == 0:
            del found[place:]
    return bytes(found[:LONGEST])


@contextmanager
def guarded(seconds: int = SECONDS):
    """An alarm instead of a hang; its own for every input."""

    def ring(*_: object) -> None:
        raise Hangs(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def campaign(reader: Reader, inputs: int, *, seed: int, folder: Path) -> dict[str, object]:
    """So many inputs, or up to the first fault."""
    draw, read = random.Random(seed), 0
    others = [good for target in reader.targets for good in target.good]
    reader.lay_out(folder)
    for number in range(inputs):
        target = draw.choice(reader.targets)
        content = changed(draw.choice(target.good), others, reader.words, draw)
        try:
            with guarded():
                read += reader.read_changed(folder, target, content)
        except (Exception, Hangs):
            fault = {"file": target.name, "bytes": content.hex(), "error": traceback.format_exc()}
            return {"inputs": number + 1, "read": read, "fault": fault}
    return {"inputs": inputs, "read": read, "fault": None}


def memory_folder() -> str | None:
    """Where files cost no disk, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    """One reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--inputs", type=int, default=90_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # remarks of decoders on what was done to the files
    reader = READERS[options.reader]()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory_folder()) as place:
        reader.lay_out(Path(place))
        for target in reader.targets:  # imports what the reader imports on its way, before memory is limited
            for good in target.good:
                reader.read_changed(Path(place), target, good)
        limit_memory()
        found = campaign(reader, options.inputs, seed=options.seed, folder=Path(place))
    print(json.dumps(found))
    return 0 if found["fault"] is None else 1


if __name__ == "__main__":
    sys.exit(main())
