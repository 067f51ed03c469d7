"""What is written to: files are replaced whole, links, pipes and devices stay what they are."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from deepauc.pipeline.train import folder_state
from deepauc.training.run import output_file
from deepauc.training.run.output_file import require_output, require_output_folder, write_atomically, write_output

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and devices as Linux and macOS have them")


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "target").write_bytes(b"old")
    (tmp_path / "deep" / "second").symlink_to("target")  # relative to its own folder
    (tmp_path / "first").symlink_to("deep/second")
    write_atomically(tmp_path / "first", b"new")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "deep" / "second").is_symlink()
    assert (tmp_path / "deep" / "target").read_bytes() == b"new"
    (tmp_path / "ahead").symlink_to("deep/not-yet")
    write_atomically(tmp_path / "ahead", b"new")
    assert (tmp_path / "deep" / "not-yet").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["ahead", "deep", "first"]
    assert sorted(os.listdir(tmp_path / "deep")) == ["not-yet", "second", "target"]


def test_a_pipe_is_written_to(tmp_path):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    content = bytes(range(256)) * 1000  # more than a pipe holds at once
    write_atomically(pipe, content)
    reader.join(20)
    assert found == [content]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_is_written_to(tmp_path):
    (tmp_path / "nowhere").symlink_to("/dev/null")
    write_atomically(tmp_path / "nowhere", b"new")
    assert (tmp_path / "nowhere").is_symlink()
    assert os.listdir(tmp_path) == ["nowhere"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that Linux has")
def test_a_device_that_takes_nothing_is_an_error(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="could not write"):
        write_atomically(tmp_path / "full", b"new")


def test_what_stands_for_an_open_file_is_added_to_it(tmp_path):
    """A shell's `2> log`, and /dev/stderr named as the output: the log is neither replaced nor cut off."""
    log = tmp_path / "log"
    with log.open("wb") as opened:
        opened.write(b"before\n")
        opened.flush()
        write_atomically(type(log)(f"/dev/fd/{opened.fileno()}"), b"new\n")
        assert os.fstat(opened.fileno()).st_ino == log.stat().st_ino
    assert log.read_bytes() == b"before\nnew\n"


def test_a_folder_is_refused_in_one_line(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(ValueError, match="is a folder: name a file"):
            write_atomically(path, b"new")
        with pytest.raises(ValueError, match=r"--out .* is a folder: name a file"):
            require_output(path, "--out")
    with pytest.raises(ValueError, match="name a file in an existing folder"):
        require_output(tmp_path / "none" / "file", "--out")
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, mode):
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "f").chmod(mode)
    write_atomically(tmp_path / "f", b"new")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_file_that_is_protected_is_refused(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path / "f")  # as root everything may be written
    with pytest.raises(ValueError, match="cannot be written to: name another file"):
        require_output(tmp_path / "f", "--out")
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(ValueError, match="cannot be written to: choose another folder"):
        require_output(tmp_path / "new", "--out")


@pytest.mark.parametrize(("name", "into_file"), [("-", True), ("/dev/stdout", False), ("/dev/stdout", True)])
def test_stdout_is_written_to_whatever_it_is(tmp_path, name, into_file):
    program = f"""
from pathlib import Path
from deepauc.training.run.output_file import write_output
print("before")
write_output(Path({name!r}), b"new" + bytes([10, 255, 10]))
print("after")
"""
    out = (tmp_path / "out").open("wb") if into_file else subprocess.PIPE
    ended = subprocess.run([sys.executable, "-c", program], stdout=out, check=True, cwd=tmp_path)
    text = (tmp_path / "out").read_bytes() if into_file else ended.stdout
    assert text == b"before\nnew\n\xff\nafter\n"
    assert os.path.exists("/dev/stdout")
    assert os.listdir(tmp_path) == (["out"] if into_file else [])


def test_write_output_writes_files_too(tmp_path):
    write_output(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_link_that_leads_nowhere_is_told_before_the_work(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "missing" / "file")
    with pytest.raises(ValueError, match="missing/file: name a file in an existing folder"):
        require_output(link, "--out")
    with pytest.raises(ValueError, match="link is a link to a folder that does not exist: name another folder"):
        require_output_folder(link)
    require_output_folder(tmp_path / "new")
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("below", ["x", "x/y"])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(tmp_path, monkeypatch, below):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="file is a file, so there is no folder"):
        require_output_folder(tmp_path / "file" / below)
    with pytest.raises(ValueError, match="has a name of more than 255 bytes"):
        require_output_folder(tmp_path / ("n" * 256) / below)

    def refuse(*, dir):  # root may write everywhere
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(output_file, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"cannot be written to \(Permission denied"):
        require_output_folder(tmp_path / below)
    (tmp_path / "run").mkdir()
    for name in ("run.json", "DONE"):
        with pytest.raises(ValueError, match="run cannot be written to"):
            folder_state(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(b"")
    assert folder_state(tmp_path / "run") == "finished"  # nothing needs to be written there


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_the_longest_name_there_can_be(tmp_path, name):
    write_atomically(tmp_path / name, b"x")
    assert os.listdir(tmp_path) == [name]
