"""The small form of the campaign of extreme pictures: every trial survives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "reliability" / "decoding.py"


def test_no_picture_comes_out_constant_without_a_word(tmp_path):
    pytest.importorskip("pydicom")
    command = [sys.executable, str(PROGRAM), "--trials", "100", "--out", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    rows = json.loads((tmp_path / "reliability.json").read_text())["decoding"]["rows"]
    assert all(row["trials"] == row["survivors"] == 100 for row in rows)
