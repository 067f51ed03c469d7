"""Ctrl-C at any moment, and a reader that goes away: the installed command, in a process of its own."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepauc.data.packed.sets import open_packed

COMMAND = [sys.executable, "-m", "deepauc_command"]
SOURCE = Path(__file__).resolve().parents[2] / "src"
# A shell starts what is in its background with Ctrl-C ignored, these tests perhaps among it: children hear it again.
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
READY = "import os, deepauc_command; os.write(1, b'ready'); deepauc_command.run()"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes are others there")


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}


def interrupted(words, *, after, times=1, code=HEARING + READY):
    """Exit code and stderr of a command that gets Ctrl-C so many seconds after its first line has run."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 5) == b"ready"
    time.sleep(after)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.decode()


@pytest.mark.parametrize("times", [1, 3])
def test_interrupted_during_the_import(times):
    for after in (0.02, 0.2, 0.5):
        assert interrupted(["--version"], after=after, times=times) == (130, "deepauc: interrupted.\n")


def test_interrupted_three_times_at_work_there_is_no_traceback():
    at_work = """
import os, time, deepauc_command, deepauc.cli.main as main
def wait():
    try:
        os.write(1, b"ready")
        time.sleep(60)
    finally:
        time.sleep(0.05)
main.app.command()(wait)
deepauc_command.run()
"""
    for times in (1, 3):
        code, err = interrupted(["wait"], after=0.1, times=times, code=HEARING + at_work)
        assert code in (130, -signal.SIGINT)  # both are 130 to a shell; the second in the interpreter's last moments
        assert set(err.splitlines()) == {"deepauc: interrupted."}


def test_an_ignored_ctrl_c_stays_ignored():
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{READY}"
    assert interrupted(["--version"], after=0.05, code=ignoring) == (0, "")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["data", "list"], ["data", "list", "--json"], ["data"]])
def test_a_reader_that_has_gone_is_no_fault(words):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 0


def test_the_work_goes_on_without_a_reader(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("age,ill,score\n" + "\n".join(f"{n},{int(n % 3 == 0)},{n % 7}" for n in range(60)))
    out = tmp_path / "packed"
    words = ["data", "pack", str(table), "--out", str(out), "--feature-column", "age", "--label-column", "ill"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(out.iterdir())


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(tmp_path, closed):
    table = tmp_path / "t.csv"
    table.write_text("age,ill\n" + "\n".join(f"{n},{int(n % 3 == 0)}" for n in range(60)))
    words = [
        "data",
        "pack",
        str(table),
        "--out",
        str(tmp_path / "p"),
        "--feature-column",
        "age",
        "--label-column",
        "ill",
    ]
    line = f"{shlex.join([*COMMAND, *words])} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"\n") is (closed == "2>&-")
    assert open_packed(tmp_path / "p", verify="full").shape == (1,)
