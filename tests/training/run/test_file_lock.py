"""One holder at a time, here and as Windows locks; waiting ends with the time or with the holder."""

import fcntl
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from deepauc.training.run import file_lock
from deepauc.training.run.file_lock import lock, sole_user


@pytest.fixture(params=["here", "windows"])
def system(request, monkeypatch):
    """windows: no fcntl; msvcrt as documented, locking bytes from where the file stands, PermissionError where held."""
    monkeypatch.setattr(file_lock, "LOOK_SECONDS", 0.02)
    flock, both = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
    if request.param == "windows":

        def locking(descriptor, mode, count):
            assert (mode, count) == (2, 1)
            assert os.lseek(descriptor, 0, os.SEEK_CUR) == file_lock.BEYOND
            try:
                flock(descriptor, both)
            except BlockingIOError:
                raise PermissionError(13, "Permission denied") from None

        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
        monkeypatch.setitem(sys.modules, "fcntl", None)


def test_one_holds_it_until_it_is_closed(tmp_path, system):
    path = tmp_path / "lock"
    with path.open("ab") as one, path.open("ab") as other:
        assert lock(one)
        one.truncate(0)
        one.write(b"held")
        one.flush()
        assert path.read_bytes() == b"held"  # where it was locked is not where it is written
        assert not lock(other, until=time.time() + 0.1)
        threading.Timer(0.1, one.close).start()
        assert lock(other)
    assert path.read_bytes() == b"held"


def test_a_folder_has_one_user(tmp_path):
    folder = tmp_path / "runs" / "first"
    with sole_user(folder):
        with pytest.raises(ValueError, match="another process is training in"), sole_user(folder):
            pass
        assert folder.is_dir()
        (folder / "run.json").touch()
    with sole_user(folder):  # free again
        assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_a_folder_that_stays_empty_goes(tmp_path):
    with sole_user(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
    with sole_user(tmp_path):
        pass
    assert tmp_path.exists()


def test_a_folder_that_cannot_be_locked_is_taken_without(tmp_path, monkeypatch):
    def refuse(descriptor, mode):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with sole_user(tmp_path), sole_user(tmp_path):
        pass
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with sole_user(tmp_path), sole_user(tmp_path):
        pass
