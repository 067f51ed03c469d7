"""`deepauc study`: list, run, status, table; one line and exit code 2 for bad input."""

import json

import pytest

from deepauc.cli.main import run

TINY = ["--configs", "2", "--tune-epochs", "1", "--set", "epochs=1", "--seeds", "0,1", "--device", "cpu"]


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run(["study", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_list(capsys):
    code, out, _ = call(capsys, "list", "--json")
    assert code == 0
    found = json.loads(out)
    assert {"paper-tables", "ablations", "toy", "smoke"} <= set(found)
    assert "C10-R-1-paper-auc_m" in found["paper-tables"]["cells"]


def test_run_status_and_table(capsys, tmp_path):
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    cells = ["--cells", "digits-S-10-paper-auc_m,digits-S-10-paper-ce"]
    code, out, _ = call(capsys, "run", "smoke", *cells, *TINY, *places)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("smoke: 2 studies, 4 tuning runs and 4 final runs")
    assert len(lines) == 1 + 8 + 1  # one line a run
    assert lines[-1].startswith("8 runs recorded")
    code, out, _ = call(capsys, "run", "smoke", *cells, *TINY, *places, "--json")
    assert (code, json.loads(out)["done"]) == (0, 0)
    code, out, _ = call(capsys, "status", "smoke", "--results", tmp_path / "results", "--json")
    status = {one["study"]: one for one in json.loads(out)["smoke"]}
    assert (status["digits-S-10-paper-ce"]["final"], status["digits-S-10-paper-ce"]["other"]) == (2, 0)
    code, out, _ = call(capsys, "table", "smoke", "--results", tmp_path / "results")
    assert code == 0
    assert (tmp_path / "results" / "smoke.md").read_text().startswith("# Smoke")
    record = json.loads((tmp_path / "results" / "smoke" / "digits-S-10-paper-ce-0.json").read_text())
    assert record["cut"] == {"configs": "2 of 4", "epochs": 1, "tune_epochs": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "smokee"], "did you mean 'smoke'"),
        (["table", "smokee"], "did you mean 'smoke'"),
        (["status", "smokee"], "did you mean 'smoke'"),
        (["run", "smoke", "--cells", "digits-S-10-paper-cf"], "did you mean"),
        (["run", "smoke", "--set", "epoch=3"], "did you mean 'epochs'"),
        (["run", "smoke", "--set", "epochs"], "KEY=VALUE"),
        (["run", "smoke", "--set", "lr=0.1"], "lr is set in two"),
        (["run", "smoke", "--seeds", "0,x"], "whole numbers"),
        (["run", "smoke", "--seeds", "0,0"], "distinct"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, message):
    places = ["--results", tmp_path]
    code, _, err = call(capsys, *arguments, *places)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_failed_run_is_told_and_the_exit_code_is_1(capsys, tmp_path):
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    wild = ["--cells", "digits-S-10-paper-auc_m", "--set", "bound=none", "--set", "weight_decay=1e30"]
    code, out, _ = call(capsys, "run", "smoke", *wild, *TINY, *places)
    assert code == 1
    assert "Failed: digits-S-10-paper-auc_m tuning" in out


@pytest.mark.parametrize("command", ["list", "run", "status", "table"])
def test_help_fits_one_screen(capsys, command):
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 80
