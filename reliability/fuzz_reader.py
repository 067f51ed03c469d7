"""One of the package's readers as a fuzzer sees it: good files, and what must hold of any bytes in the place of one.

A reader gives a result or one ValueError; anything else (another exception, a hang, memory without bound) is a fault
and leaves `Reader.read_changed` as it is. `fuzz_mutations.py` and `fuzz_coverage.py` think of the bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def _as_it_is(content: bytes) -> bytes:
    return content


@dataclass(frozen=True, kw_only=True)
class Target:
    """A file to be changed. made: from the changed bytes to the file, so that checksums around them are right again."""

    name: str
    good: tuple[bytes, ...]
    made: Callable[[bytes], bytes] = _as_it_is


@dataclass(frozen=True, kw_only=True)
class Reader:
    """files: what else lies in the folder. read: of the folder, given the name of the changed file."""

    targets: tuple[Target, ...]
    read: Callable[[Path, str], object]
    files: dict[str, bytes]
    words: tuple[bytes, ...] = ()

    def lay_out(self, folder: Path) -> None:
        """The good files."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def read_changed(self, folder: Path, target: Target, content: bytes) -> bool:
        """Whether there was a result; False for a message. The folder is good again afterwards."""
        path = folder / target.name
        path.write_bytes(target.made(content))
        try:
            self.read(folder, target.name)
        except ValueError as error:
            if type(error) is not ValueError and type(error).__module__.partition(".")[0] != "deepauc":
                raise AssertionError(f"a {type(error).__name__} is no message of this package") from error
            if not str(error):
                raise AssertionError("an empty message") from error
            return False
        finally:
            if target.name in self.files:
                path.write_bytes(self.files[target.name])
        return True


NUMBERS = tuple(text.encode() for text in ("-1", "0", "1e400", "nan", "-inf", "9" * 400, "2.5", "18446744073709551616"))
CSV_WORDS = (b",", b'"', b"\n", b"\r", b"\t")
JSON_WORDS = (*NUMBERS, b"null", b"true", b"[", b"]", b"{}", b'""', b'"\\u0000"', b'"../x"', b"[" * 2000, b'{"a":' * 99)


def parquet(table: bytes) -> bytes:
    """A csv table in that form."""
    import pandas as pd

    buffer = io.BytesIO()
    pd.read_csv(io.BytesIO(table)).to_parquet(buffer)
    return buffer.getvalue()
