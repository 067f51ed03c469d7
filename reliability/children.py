"""Jobs in forked processes: they start in no time, report marks through a pipe, and can be killed for real."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Mark = Callable[[str], None]
Job = Callable[[Mark], None]

_NEW_NAMESPACES = 0x00020000 | 0x10000000  # CLONE_NEWNS | CLONE_NEWUSER


@dataclass(frozen=True)
class Ending:
    """How a child ended: its exit status (0 is good, -9 a kill) and the error it ended with."""

    status: int
    error: str

    @property
    def good(self) -> bool:
        return self.status == 0


class Child:
    """A forked process that runs one job. Fork before the first backward pass: autograd's threads do not survive it."""

    def __init__(self, job: Job) -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            _run(job, writer)
        os.close(writer)
        self._reader = reader
        self._rest = b""
        self._closed = False
        self.marks: list[str] = []

    def wait_for(self, mark: str, *, count: int = 1, seconds: float = 60) -> bool:
        """Wait until the child has set a mark so many times; False if it ends before."""
        until = time.monotonic() + seconds
        while self.marks.count(mark) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"no mark {mark!r} within {seconds} s")
            self._read(0.5)
            if self._closed and self.marks.count(mark) < count:
                return False
        return True

    def _read(self, seconds: float) -> bool:
        if self._closed or not select.select([self._reader], [], [], seconds)[0]:
            return False
        content = os.read(self._reader, 1 << 16)
        if not content:
            self._closed = True
            os.close(self._reader)
            return False
        *lines, self._rest = (self._rest + content).split(b"\n")
        self.marks += [line.decode() for line in lines]
        return True

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, *, seconds: float = 120) -> Ending:
        """The end of it; a child that hangs is killed and counts as ended by signal 9 with the error `hangs`."""
        until = time.monotonic() + seconds
        while not self._closed:
            self._read(0.2)
            if time.monotonic() > until:
                self.kill()
                os.waitpid(self.pid, 0)
                return Ending(-9, "hangs")
        _, status = os.waitpid(self.pid, 0)
        errors = [mark.removeprefix("error: ") for mark in self.marks if mark.startswith("error: ")]
        return Ending(os.waitstatus_to_exitcode(status), errors[-1] if errors else "")


def run(job: Job, *, seconds: float = 120) -> Ending:
    """One job from beginning to end."""
    return Child(job).wait(seconds=seconds)


def _run(job: Job, writer: int) -> None:
    def mark(text: str) -> None:
        os.write(writer, text.replace("\n", " ")[:2000].encode(errors="replace") + b"\n")

    status = 0
    try:
        job(mark)
    except BaseException as error:  # it is the parent who judges
        status = 1
        mark(f"error: {type(error).__name__}: {error}")
        if os.environ.get("CHAOS_TRACEBACKS"):
            traceback.print_exc()
    finally:
        os._exit(status)


def limit_memory(more_bytes: int) -> None:
    """Allow this process so many bytes of address space more than it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def own_mounts() -> None:
    """A mount namespace of this process's own; OSError where the system does not allow it."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACES) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of one's own on this system")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")


def mount(*arguments: str) -> None:
    """mount(8), in the namespace of `own_mounts`."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def can_mount() -> bool:
    """Whether a child can mount file systems of its own."""

    def attempt(mark: Mark) -> None:
        own_mounts()
        mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt" if Path("/mnt").is_dir() else "/tmp")

    return run(attempt).good
