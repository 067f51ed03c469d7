"""`deepauc serve` as a user types it: one address, one line for what is wrong, an end by Ctrl-C."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra serve is not installed: pip install 'deepauc[serve]'")

SOURCE = Path(__file__).resolve().parents[2] / "src"
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def test_it_prints_an_address_serves_it_and_ends_by_ctrl_c(run_folders):
    process = subprocess.Popen(
        [sys.executable, "-c", HEARING + "import deepauc_command; deepauc_command.run()", "serve", run_folders / "auc"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        address = process.stdout.readline().split()[-1]
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address.split("?")[0], timeout=60)
        assert refused.value.code == 403
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = opener.open(address, timeout=60).read().decode()
        assert "Not a medical device" in page
    finally:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "Stopped." in out


@pytest.fixture
def no_waiting(monkeypatch):
    from deepauc.serve.server import LocalServer

    monkeypatch.setattr(LocalServer, "run", lambda self: None)
    monkeypatch.setattr("logging.disable", lambda level: None)


@pytest.mark.usefixtures("no_waiting")
def test_json_is_the_address(deepauc, run_folders):
    code, out, err = deepauc("serve", run_folders / "auc", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["address"].startswith(f"http://127.0.0.1:{found['port']}/?token=")


@pytest.mark.usefixtures("no_waiting")
def test_a_port_in_use_is_told_in_one_line(deepauc, run_folders):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = deepauc("serve", run_folders / "auc", "--port", taken.getsockname()[1])
    assert code == 2
    assert "name another with --port" in err
    assert len(err.splitlines()) == 1


def test_no_option_opens_it_to_others(deepauc, run_folders):
    code, _, err = deepauc("serve", run_folders / "auc", "--host", "0.0.0.0")
    assert code == 2
    assert "--host" in err


def test_what_is_no_run_is_told_in_one_line(deepauc, tmp_path):
    code, out, err = deepauc("serve", tmp_path)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_a_missing_extra_is_named(deepauc, run_folders, monkeypatch):
    monkeypatch.setattr("deepauc.cli.serve.find_spec", lambda name: None)
    code, _, err = deepauc("serve", run_folders / "auc")
    assert code == 2
    assert "pip install 'deepauc[serve]'" in err
