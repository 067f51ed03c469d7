"""A lock on a file that goes with its process, however that ends: by `flock`, on Windows by a byte of the file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

LOOK_SECONDS = 0.5  # between two looks at a lock that another process holds
BEYOND = 1 << 30  # the byte that is locked on Windows, where nobody can read it: behind all that is ever written


def lock(file: IO[Any], *, until: float | None = None, every: float = LOOK_SECONDS) -> bool:
    """Wait until this open file is ours, which it is until it is closed. until: a wall-clock time; False: it passed."""
    while until is None or time.time() < until:
        if _taken(file):
            return True
        time.sleep(every)
    return False


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Make the folder, or take the one that is there, for this process alone; ValueError where another one has it.

    Nothing is written for it, and a folder that stays empty goes again. Windows and some file systems cannot lock a
    folder: there it is taken without.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = None if sys.platform == "win32" else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            _lock_folder(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
        if made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _lock_folder(descriptor: int, folder: Path) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another process is training in {folder}. Wait until it has ended, or choose another folder."
        ) from None
    except OSError:
        return


def _taken(file: IO[Any]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(BEYOND)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # another has it; Windows says the latter
        return False
    return True
