"""The small form of `make chaos`: some kills and the damaged files; every trial survives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "reliability" / "chaos.py"
SOME = ("epoch", "checkpoint", "packing", "study", "damaged_checkpoint", "changed_pictures")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and killed the way Linux has it")
def test_what_was_killed_or_damaged_ends_as_if_nothing_had_been(tmp_path):
    command = [sys.executable, str(PROGRAM), "--kills", "4", "--only", *SOME, "--out", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    rows = json.loads((tmp_path / "reliability.json").read_text())["chaos"]["rows"]
    assert sum(row["trials"] for row in rows) >= 8
    assert all(row["trials"] == row["survivors"] for row in rows)
