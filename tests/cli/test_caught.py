"""What `train` and `data check` catch before a training, from the command line."""

import json
import subprocess
import sys

import pytest

WORDS = ("--label-column", "y", "--feature-column", "f")


def table(folder, labels):
    path = folder / "t.csv"
    path.write_text("f,y\n" + "".join(f"{row * 0.37 % 5},{label}\n" for row, label in enumerate(labels)))
    return path


def test_skip_bad_does_not_lose_a_class(deepauc, tmp_path):
    path = table(tmp_path, (["0"] * 8 + ["1", "2"]) * 8)
    code, text, errors = deepauc("train", "--table", path, *WORDS, "--skip-bad", "--out", tmp_path / "run")
    assert code == 2
    assert "label value left out" in text
    assert "--skip-bad" not in errors
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("how", ["option", "file"])
def test_train_with_a_positive_value(deepauc, no_report, tmp_path, how):
    path = table(tmp_path, (["benign"] * 3 + ["malignant"]) * 20)
    settings = tmp_path / "settings.toml"
    settings.write_text('[data]\npositive = "malignant"\n')
    named = ("--positive", "malignant") if how == "option" else ("--config", settings)
    code, _, errors = deepauc(
        "train", "--table", path, *WORDS, *named, "--epochs", "1", "--out", tmp_path / "run", "--quiet"
    )
    assert code == 0, errors
    data = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    assert (data["positive"], data["positives"]) == ("malignant", {"y": 20})


def test_few_rows_of_a_class_are_a_flag_in_the_record(deepauc, no_report, tmp_path):
    path = table(tmp_path, (["0"] * 9 + ["1"]) * 7)
    code, text, errors = deepauc("train", "--table", path, *WORDS, "--epochs", "1", "--out", tmp_path / "run")
    assert code == 0, errors
    assert "only 7 positive rows" in text
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["few"] == ["y"]


def test_a_reader_that_stops_early_is_no_fault(tmp_path):
    path = tmp_path / "t.csv"
    names = [f"m{number}" for number in range(3000)]
    path.write_text(",".join([*names, "y"]) + "\n" + "".join(",".join(["1"] * 3000 + [str(y)]) + "\n" for y in (0, 1)))
    words = [word for name in names for word in ("--metadata-column", name)]
    command = [sys.executable, "-m", "deepauc_command", "data", "check", path, "--label-column", "y", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert "Traceback" not in errors
    assert errors.strip() in ("", "Checking t.csv")
