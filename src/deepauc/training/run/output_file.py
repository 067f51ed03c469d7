"""Where every file is written: replaced whole, a link's target and never the link, pipes and devices as they are."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from tempfile import TemporaryFile

from deepauc.data.packed.place import sync_folder

_STDOUT = frozenset({"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})
_OPEN_FILES = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")  # links to what some process has open already
_MOST_LINKS = 40  # in a row, as Linux has it
_LONGEST_NAME = 255


def is_stdout(path: Path) -> bool:
    """Whether a user who names this file means the standard output."""
    return str(path) in _STDOUT


def require_output(path: Path, option: str) -> None:
    """ValueError where no file can be written, said before the work, which may take long."""
    if is_stdout(path):
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder: name a file in an existing folder.")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: name a file in an existing folder.")
    target = _replaceable(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{option} {path} cannot be written to: name another file, or change its permissions.")
    if target is not None and not target.parent.is_dir():
        raise ValueError(f"{option} {path} is a link to {target}: name a file in an existing folder.")
    if target is not None and not os.access(target.parent, os.W_OK):
        raise ValueError(f"{option} {path}: the folder {target.parent} cannot be written to: choose another folder.")


def require_output_folder(path: Path) -> None:
    """ValueError where no folder can be made, or nothing can be written into it."""
    there = next(place for place in (path, *path.parents, Path()) if os.path.lexists(place))
    if not there.exists():
        raise ValueError(f"{there} is a link to a folder that does not exist: name another folder, or make that one.")
    if not there.is_dir():
        below = "" if there == path else f", so there is no folder {path}"
        raise ValueError(f"{there} is a file{below}: name a folder, which is made if it does not exist.")
    if any(len(os.fsencode(name)) > _LONGEST_NAME for name in path.parts):
        raise ValueError(f"{path} has a name of more than {_LONGEST_NAME} bytes: choose a shorter one.")
    try:
        TemporaryFile(dir=there).close()  # permissions alone do not tell: /proc, a read-only disk
    except OSError as error:
        raise ValueError(f"{there} cannot be written to ({error.strerror}): choose another folder.") from None


def write_output(path: Path, content: bytes) -> None:
    """To the file that a user has named; `-` is the standard output."""
    if not is_stdout(path):
        write_atomically(path, content)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def write_atomically(path: Path, content: bytes) -> None:
    """The file is either the old one or the new one, whatever happens: a full disk, a kill, a power cut.

    A file that is replaced hands its permissions on. A link stays, and its target is written. A pipe or a device is
    written to, and never replaced; a folder is a ValueError.
    """
    target = _replaceable(path)
    if target is None:
        _write_into(path, content)
        return
    temporary = target.with_name(f".{target.name[:50]}.{os.getpid()}.part")  # a name may have 255 bytes, not more
    try:
        with temporary.open("wb") as file:
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(
            error.errno, f"could not write ({error.strerror}); what was saved before is untouched", str(path)
        ) from error
    sync_folder(target.parent)


def _replaceable(path: Path) -> Path | None:
    """The regular or new file at the end of the links; None where the bytes must go into what is there."""
    target = path
    for _ in range(_MOST_LINKS):
        if os.path.abspath(target).startswith(_OPEN_FILES):
            return None
        if not target.is_symlink():
            break
        target = target.parent / os.readlink(target)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder: name a file.")
    return target if stat.S_ISREG(mode) else None


def _write_into(path: Path, content: bytes) -> None:
    try:
        with path.open("ab", buffering=0) as file:  # what the standard error is redirected to is not cut off
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
    except OSError as error:
        raise OSError(error.errno, f"could not write ({error.strerror})", str(path)) from error
