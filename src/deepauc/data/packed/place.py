"""Where a set of files is built and how it gets to its place: whole, at once, and never over something else."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deepauc.data.packed.manifest import MANIFEST_NAME

STALE_SECONDS = 60  # a work folder that nobody holds and that is older was left by a process that died
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def require_free(place: Path, *, overwrite: bool) -> None:
    """ValueError unless nothing is there, or a packed set that may be replaced."""
    if not os.path.lexists(place):
        return
    if not (place / MANIFEST_NAME).is_file():
        raise ValueError(f"{place} exists and is not a packed set: choose another folder.")
    if not overwrite:
        raise ValueError(f"{place} exists already. Open it with open_packed, or pass overwrite=True.")
    others = sorted(one.name for one in place.iterdir() if one.name != MANIFEST_NAME and one.suffix != ".npy")
    if others:
        raise ValueError(
            f"{place} holds files that are not part of a packed set and would be lost ({', '.join(others[:3])}"
            f"{', ...' if len(others) > 3 else ''}): move it away first."
        )


@contextmanager
def work_folder(place: Path) -> Iterator[Path]:
    """A hidden folder beside the place, removed if anything goes wrong; what dead processes left there goes too."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(place)
    work = Path(tempfile.mkdtemp(prefix=_prefix(place), dir=place.parent))
    try:
        with _opened(work) as held:
            if held is not None:
                _lock(held)
            work.chmod(0o755)  # others may read it, unlike a temporary folder
            yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def move_into_place(work: Path, place: Path, *, overwrite: bool) -> None:
    """Put a complete folder in its place. A set that is there is exchanged for it in one step where Linux can."""
    sync_folder(work)
    require_free(place, overwrite=overwrite)  # again: packing may have taken hours
    old = None
    if not place.exists():
        os.rename(work, place)
    elif _exchanged(work, place):
        old = work
    else:
        old = work.with_name(f"{work.name}-old")
        os.rename(place, old)  # processes that have it open keep what they mapped; Windows refuses as long as they do
        os.rename(work, place)
    sync_folder(place.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """A folder's list of files, through to the disk."""
    with _opened(folder) as descriptor:
        if descriptor is not None:
            os.fsync(descriptor)


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """The folder's descriptor; None on Windows, which opens no folders: nothing to hold there, nor to be waited for."""
    descriptor = None
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _prefix(place: Path) -> str:
    return f".{place.name}.packing-"


def _lock(descriptor: int) -> bool:
    """Hold a folder for as long as this process lives; False where another holds it, or nothing can be held."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _remove_stale(place: Path) -> None:
    for left in place.parent.glob(f"{_prefix(place)}*"):
        with suppress(OSError), _opened(left) as descriptor:
            if descriptor is None:  # nobody can tell whether it is held
                continue
            old = time.time() - os.fstat(descriptor).st_mtime > STALE_SECONDS
            if old and _lock(descriptor):
                shutil.rmtree(left, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders at once, so that there is a complete set at every moment; False where that cannot be."""
    try:
        exchange = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(exchange(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
