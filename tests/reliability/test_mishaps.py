"""The small form of `make mishaps`, and that a command which goes on would be noticed."""

import json
import sys
from pathlib import Path

import pytest

from deepauc.training.predict import table as predict_table
from deepauc.training.run import own_files

RELIABILITY = Path(__file__).resolve().parents[2] / "reliability"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and devices as Linux and macOS have them")


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(RELIABILITY)
    module = pytest.importorskip("mishaps")
    return module, module.Mishaps(tmp_path, seed=3)


@pytest.mark.parametrize("name", ["non_regular_outputs", "extreme_numbers", "mixed_up_folders"])
def test_every_trial_survives(campaign, name):
    module, mishaps = campaign
    row = getattr(module, name)(mishaps, 12)
    assert (row.trials, row.survivors) == (12, 12)


def test_commands_that_go_on_are_found_out(campaign, monkeypatch):
    module, mishaps = campaign
    monkeypatch.setattr(own_files, "_digest", lambda path: "any")
    record = mishaps.place / "one" / "run.json"
    written = json.loads(record.read_text())
    record.write_text(json.dumps(written | {"sha256": dict.fromkeys(written["sha256"], "any")}))
    assert module.mixed_up_folders(mishaps, 8).survivors < 8
    write = predict_table.write_output

    def replace(path, content):
        """As it once was: whatever is there is taken away."""
        if path.is_relative_to(mishaps.place):
            path.unlink(missing_ok=True)
        write(path, content)

    monkeypatch.setattr(predict_table, "write_output", replace)
    monkeypatch.setattr(module, "SECONDS", 0.1)
    assert module.non_regular_outputs(mishaps, 12).survivors < 12
