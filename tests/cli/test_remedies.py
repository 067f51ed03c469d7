"""Mistakes of a first day: each ends in one line that names the remedy, and nothing of the user's is lost."""

import csv
import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from deepauc.cli.main import run
from deepauc.pipeline import outcome
from deepauc.training.predict.table import predict_table
from deepauc.training.run.bundle import Bundle

COLUMNS = ("--image-column", "file", "--label-column", "target")


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """Forty pictures in a folder with a blank and an umlaut, and their rows."""
    folder = tmp_path_factory.mktemp("Klinik Süd")
    (folder / "Bilder neu").mkdir()
    generator = np.random.default_rng(0)
    rows = []
    for number in range(40):
        name, positive = f"Bilder neu/{number}.png", number % 4 == 0
        picture = generator.integers(0, 100, (8, 8)) + 60 * positive
        Image.fromarray(picture.astype(np.uint8)).save(folder / name)
        rows.append({"file": name, "target": int(positive), "patient": f"p{number}"})
    return folder, rows


@pytest.fixture(scope="module")
def trained(clinic, tmp_path_factory, write_table):
    """A short run on the forty pictures."""
    folder, rows = clinic
    out = tmp_path_factory.mktemp("runs") / "first"
    table = write_table(folder / "all.csv", rows)
    words = ["--table", str(table), *COLUMNS, "--model", "small-cnn", "--epochs", "1", "--out", str(out), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "write_report", lambda *_, **__: (out / "report.html").write_text(""))
        with pytest.raises(SystemExit) as end:
            run(["train", *words, "--folds", "0"])
    assert end.value.code == 0
    return table, out


def test_what_predict_would_destroy_is_refused(deepauc, trained, tmp_path):
    table, out = trained
    for place in (table, out / "scores.csv", out / "run.json", out / "baseline" / "scores.csv"):
        before = place.read_bytes()
        code, text, errors = deepauc("predict", out, "--table", table, "--out", place)
        assert (code, text) == (2, "")  # refused before a row is scored
        assert "would be lost: name another file" in errors
        assert place.read_bytes() == before
    code, text, errors = deepauc("predict", out, "--table", table, "--out", tmp_path / "nowhere" / "s.csv")
    assert (code, text) == (2, "")
    assert "in an existing folder" in errors
    again = tmp_path / "s.csv"
    again.write_text("scores of yesterday")
    assert deepauc("predict", out, "--table", table, "--out", again)[0] == 0
    assert again.read_text().startswith("id,score\n")


def test_predict_says_how_many_rows_the_run_has_learnt_from(deepauc, clinic, trained, tmp_path, write_table):
    folder, rows = clinic
    table, out = trained
    with (out / "scores.csv").open(newline="") as file:
        held_out = {row["id"] for row in csv.DictReader(file) if row["part"] == "test"}
    assert 0 < len(held_out) < 40
    code, text, _ = deepauc("predict", out, "--table", table, "--out", tmp_path / "s.csv")
    assert code == 0
    assert f"{40 - len(held_out)} rows" in text
    code, text, _ = deepauc("predict", out, "--table", table, "--out", tmp_path / "s.csv", "--json")
    assert json.loads(text)["rows_seen_in_training"] == 40 - len(held_out)
    new = write_table(folder / "new.csv", [row for row in rows if row["file"] in held_out])
    assert "Caution" not in deepauc("predict", out, "--table", new, "--out", tmp_path / "s.csv")[1]


@pytest.mark.parametrize("name", ["gpu", "meta", "mps", "cuda:99"])
def test_a_device_that_is_not_there(deepauc, trained, tmp_path, name):
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is there")
    table, out = trained
    for words in (
        ("predict", out, "--table", table, "--out", tmp_path / "s.csv"),
        ("train", "--table", table, *COLUMNS, "--out", tmp_path / "run"),
    ):
        code, text, errors = deepauc(*words, "--device", name)
        assert (code, text) == (2, "")
        assert errors.startswith(f"deepauc: --device {name}: ")
        assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_rows_with_a_problem_can_be_left_out_and_that_is_said(deepauc, clinic, trained, tmp_path, write_table):
    folder, rows = clinic
    _, out = trained
    (folder / "Bilder neu" / "cut.png").write_bytes((folder / "Bilder neu" / "0.png").read_bytes()[:60])
    bad = write_table(folder / "bad.csv", [*rows, {"file": "Bilder neu/cut.png", "target": 1, "patient": "p99"}])
    for words in (
        ("train", "--table", bad, *COLUMNS, "--out", tmp_path / "run"),
        ("predict", out, "--table", bad, "--out", tmp_path / "s.csv"),
        ("data", "pack", bad, *COLUMNS, "--out", tmp_path / "set"),
    ):
        code, text, errors = deepauc(*words)
        assert code == 2
        assert "42   file    unreadable image  'Bilder neu/cut.png': the file is damaged or cut short" in text
        assert errors == "deepauc: correct this row, or leave it out with --skip-bad.\n"
    one_class = write_table(folder / "one.csv", [{**row, "target": "" if row["target"] else 0} for row in rows])
    assert "--skip-bad" not in deepauc("train", "--table", one_class, *COLUMNS, "--out", tmp_path / "run")[2]
    lost = write_table(folder / "lost.csv", [{**row, "file": f"lost/{row['file']}"} for row in rows])
    _, text, errors = deepauc("train", "--table", lost, *COLUMNS, "--out", tmp_path / "run")
    assert "Is it the right column, and the right folder?" in text
    assert errors == f"deepauc: correct these {len(rows)} rows. Every row has a problem.\n"


def test_images_beside_the_tables_folder_are_a_matter_of_an_option(deepauc, clinic, tmp_path, write_table):
    """Neither the column nor the rows are wrong: `--allow-outside` is what helps."""
    folder, rows = clinic
    elsewhere = tmp_path / "tables"
    elsewhere.mkdir()
    table = write_table(
        elsewhere / "t.csv", [{**row, "file": os.path.relpath(folder / row["file"], elsewhere)} for row in rows]
    )
    words = ("train", "--table", table, *COLUMNS, "--out", tmp_path / "run")
    code, text, errors = deepauc(*words)
    assert code == 2
    assert "; --allow-outside permits it (in Python, image_root= names" in text
    assert (
        f"column 'file': path leaves folder in {len(rows)} rows. If these are your images, add --allow-outside." in text
    )
    assert errors == f"deepauc: add --allow-outside for these {len(rows)} rows. Every row has a problem.\n"
    assert "path leaves folder" not in deepauc(*words, "--allow-outside", "--print-config")[1]


def test_categories_and_many_empty_cells_are_a_matter_of_the_column(deepauc, tmp_path, write_table):
    """Of 40 rows with text `--skip-bad` would leave nothing: what helps is said of the column."""
    rows = [
        {
            "amount": number,
            "country": "DE" if number % 3 else "FR",
            "score": "" if number < 30 else 1,
            "fraud": number % 2,
        }
        for number in range(40)
    ]
    table = write_table(tmp_path / "t.csv", rows)
    words = ["--table", table, "--label-column", "fraud", "--feature-column", "amount", "--out", tmp_path / "run"]
    code, text, errors = deepauc("train", *words, "--feature-column", "country", "--feature-column", "score")
    assert code == 2
    assert "column 'country': not a number in 40 rows. Is it the right column?" in text
    assert "pandas.get_dummies" in text
    assert "column 'score': empty in 30 rows. Fill them in" in text
    assert errors.strip() == "deepauc: turn 'country' into numbers, or leave out --feature-column for it."
    code, text, errors = deepauc("train", *words, "--feature-column", "score")
    assert code == 2
    assert "or leave them out with --skip-bad" in errors


def test_a_label_of_words_is_a_matter_of_the_column(deepauc, tmp_path, write_table):
    rows = [{"amount": number, "ill": "yes" if number % 3 else "no"} for number in range(40)]
    words = ("--label-column", "ill", "--feature-column", "amount")
    table = write_table(tmp_path / "t.csv", rows)
    for command in (("data", "check", table, *words), ("train", "--table", table, *words, "--out", tmp_path / "run")):
        code, text, errors = deepauc(*command)
        assert code == 2
        assert "holds 2 values: 'yes' in 26 rows, 'no' in 14 rows" in text
        assert "--skip-bad" not in errors
    code, text, _ = deepauc("data", "check", table, *words, "--positive", "yes")  # as it says
    assert (code, "26 positive" in text) == (0, True)


def test_a_table_without_its_option(deepauc, trained):
    table, _ = trained
    code, _, errors = deepauc("train", table, *COLUMNS)
    assert code == 2
    assert errors.endswith(": name the table with --table.\n")


def test_the_check_names_its_options_and_no_parts_that_nobody_made(deepauc, trained):
    table, _ = trained
    code, _, errors = deepauc("data", "check", table, "--label-column", "target")
    assert code == 2
    assert "--image-column" in errors
    code, text, _ = deepauc("data", "check", table, *COLUMNS)
    assert code == 0
    assert "parts:" not in text


def test_a_folder_of_a_run_in_place_of_its_scores(deepauc, trained, tmp_path):
    _, out = trained
    code, _, errors = deepauc("evaluate", out)
    assert (code, errors) == (2, f"deepauc: {out} is a folder: name the file in it, {out / 'scores.csv'}.\n")
    assert "is a folder: name a file of scores." in deepauc("evaluate", tmp_path)[2]


def test_one_positive_in_a_held_out_part_is_said_before_training_and_stops_nothing(
    deepauc, no_report, clinic, tmp_path, write_table
):
    folder, rows = clinic
    parts = ["train"] * 30 + ["validation"] * 5 + ["test"] * 5  # one of four is positive
    table = write_table(folder / "parts.csv", [{**row, "split": part} for row, part in zip(rows, parts, strict=True)])
    words = ("--table", table, *COLUMNS, "--group-column", "patient", "--split-column", "split", "--epochs", 1)
    code, text, errors = deepauc("train", *words, "--model", "small-cnn", "--out", tmp_path / "run")
    assert (code, errors) == (0, "")
    assert text.count("1 positive for") == 2  # validation and test
    assert text.rindex("1 positive for") < text.index("stage 1 of 2")
    found = json.loads((tmp_path / "run" / "run.json").read_text())["results"]
    assert found["auc"]["test"]["target"][1:] == [0.0, 1.0]
    assert found["guard"]["last_minus_stage"] == {}


def test_a_misspelt_network_leaves_the_folder_to_the_next_try(deepauc, no_report, trained, tmp_path):
    table, _ = trained
    words = ("train", "--table", table, *COLUMNS, "--epochs", 1, "--out", tmp_path / "run")
    code, _, errors = deepauc(*words, "--model", "densnet121")
    assert code == 2
    assert "Did you mean densenet121" in errors
    assert not (tmp_path / "run").exists()
    assert deepauc(*words, "--model", "small-cnn")[0] == 0


def test_another_run_is_not_said_to_go_on(deepauc, trained, tmp_path):
    table, _ = trained
    words = ("train", "--table", table, *COLUMNS, "--epochs", 1, "--model", "small-cnn", "--out", tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"identity": {"recipe": "a", "data": "b", "seed": 0}}))
    code, text, errors = deepauc(*words)
    assert code == 2
    assert "holds another run (different recipe, data)" in errors
    assert "Resuming" not in text
    assert (tmp_path / "run" / "run.json").exists()


def test_an_interrupted_command_says_so(deepauc, trained, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    table, out = trained
    monkeypatch.setattr("deepauc.training.predict.table.predict", interrupt)
    code, _, errors = deepauc("predict", out, "--table", table, "--out", tmp_path / "s.csv")
    assert (code, errors) == (130, "deepauc: interrupted.\n")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("deepauc.cli.data.check_table", interrupt)  # a command of a group
    assert deepauc("data", "check", table, *COLUMNS)[::2] == (130, "deepauc: interrupted.\n")


@pytest.mark.parametrize(("runs", "copies"), [(1, 0), (1, 3), (2, 0), (2, 2)])
def test_progress_of_a_prediction_ends_when_the_last_row_is_scored(trained, monkeypatch, runs, copies):
    table, out = trained
    told, networks = [], []
    original = Bundle.network
    monkeypatch.setattr(Bundle, "network", lambda *words: networks.append(len(told)) or original(*words))
    options = {"image_column": "file", "tta": copies, "device": "cpu"}
    predict_table([out] * runs, table, **options, progress=lambda *step: told.append(step))
    total = 40 * (1 + runs * max(1, copies))
    assert {of for _, of in told} == {total}
    done = [step for step, _ in told]
    assert done == sorted(done)
    assert done[-1] == total
    assert done[networks[0] - 1] == 40  # before the first network is asked, the rows have been read


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"part\ntrain\n", b'id,part\n"a\x00b', b"id,part\n" + b"9" * 200_000 + b",train\n"]
)
def test_a_damaged_file_of_scores_withholds_no_prediction(deepauc, trained, tmp_path, content):
    table, out = trained
    shutil.copytree(out, tmp_path / "run")
    (tmp_path / "run" / "scores.csv").write_bytes(content)
    code, text, errors = deepauc("predict", tmp_path / "run", "--table", table, "--out", tmp_path / "s.csv")
    assert (code, errors) == (0, "")
    assert text.count("Caution") == 1
    assert "scores.csv is not the file that this run wrote" in text
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 41


def test_another_hospitals_columns_have_other_names(deepauc, trained, clinic, tmp_path, write_table):
    _, out = trained
    folder, rows = clinic
    there = [{"path": row["file"], "diagnosis": row["target"]} for row in rows]
    table = write_table(folder / "south.csv", there)
    for command in (("evaluate", out, "--table", table), ("predict", out, "--table", table, "--out", tmp_path / "s")):
        code, _, errors = deepauc(*command)
        assert code == 2
        assert "--image-column" in errors
    words = ("--image-column", "path", "--label-column", "diagnosis")
    assert deepauc("evaluate", out, "--table", table, *words)[0] == 0
