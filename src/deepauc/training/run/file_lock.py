"""A lock on a file that goes with its process, however that ends: by `flock`, on Windows by a byte of the file."""

from __future__ import annotations

import sys
import time
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
