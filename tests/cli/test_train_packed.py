"""`deepauc train --packed`: the run of the table that was packed, to the bit; its split, its leaks, its errors."""

import csv
import hashlib
import json
import shutil
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.main import run
from deepauc.data.packed.sets import open_packed, pack
from deepauc.data.table.read import read_table
from deepauc.data.task import ArrayInputs
from deepauc.training.prepare import packed as prepare_packed

FILES = ("--image-column", "file", "--label-column", "target")
NUMBERS = (
    "--label-column", "label", "--feature-column", "amount", "--feature-column", "age", "--group-column", "account"
)  # fmt: skip
SHORT = ("--model", "small-cnn", "--epochs", 1)


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def record(folder):
    return json.loads((folder / "run.json").read_text())


def task_of(folder, table="split.csv", split="split", **options):
    return read_table(
        folder / table,
        label_columns=["target"],
        kind="binary",
        image_column="file",
        group_column="patient_id",
        split_column=split,
        **options,
    )[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_table):
    """Pictures of a bright spot or none, two to a patient: a table without parts and one with, both packed."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    (folder / "images").mkdir()
    rows = []
    for number in range(120):
        label = int(generator.random() < 0.35)
        picture = generator.integers(0, 150, (8, 8)).astype(np.uint8)
        picture[2:5, 2:5] += np.uint8(60 * label)
        Image.fromarray(picture).save(folder / "images" / f"{number}.png")
        weight = 1 + number % 3
        rows.append(
            {"file": f"images/{number}.png", "target": label, "patient_id": f"p{number // 2}", "weight": weight}
        )
    rows[5]["target"] = ""
    parts = ["train"] * 80 + ["val"] * 20 + ["test"] * 20
    write_table(folder / "data.csv", rows)
    write_table(folder / "split.csv", [{**row, "split": part} for row, part in zip(rows, parts, strict=True)])
    columns = (*FILES, "--group-column", "patient_id", "--weight-column", "weight")
    for table, more in (("data", ()), ("split", ("--split-column", "split"))):
        words = ("data", "pack", folder / f"{table}.csv", *columns, *more, "--out", folder / table)
        with pytest.raises(SystemExit) as end:
            run(list(map(str, words)))
        assert end.value.code == 0
    return folder


@pytest.mark.parametrize(("name", "more"), [("split", ("--split-column", "split")), ("data", ())])
@pytest.mark.parametrize("fits", [True, False])
def test_the_run_is_that_of_the_table_to_the_bit(deepauc, no_report, data, tmp_path, monkeypatch, name, more, fits):
    columns = (*FILES, "--group-column", "patient_id", "--weight-column", "weight", *more)
    asked = (*SHORT, "--tune", 2, "--first-stage", "contrastive")
    assert deepauc("train", "--table", data / f"{name}.csv", *columns, *asked, "--out", tmp_path / "table")[0] == 0
    if not fits:
        monkeypatch.setattr("deepauc.training.prepare.in_memory.LARGEST", 0)
    code, text, errors = deepauc("train", "--packed", data / name, *asked, "--out", tmp_path / "packed")
    assert (code, errors) == (0, "")
    for line in ("Data: 120 rows, 119 labelled, 1 unlabelled", "patients: 60", "images: 8 x 8 (120), grey"):
        assert line in text
    table, packed = (record(tmp_path / run_) for run_ in ("table", "packed"))
    assert packed["identity"] == table["identity"]
    assert read(tmp_path / "packed" / "scores.csv") == read(tmp_path / "table" / "scores.csv")
    for file in ("model.safetensors", "bundle.json"):
        assert (tmp_path / "packed" / file).read_bytes() == (tmp_path / "table" / file).read_bytes()
    assert (packed["data"]["split"] is None) == (name == "split")
    assert packed["leaks"] == {}
    assert packed["data"]["unlabelled_rows"] == table["data"]["unlabelled_rows"]
    assert packed["data"]["table"] is None
    assert packed["data"]["packed"] == {
        "path": str(data / name),
        "digest": open_packed(data / name).digest(),
        "images": True,
        "named_rows": True,
    }
    if name == "data":
        split = packed["plan"]["choices"][0]["rests_on"]
        assert (split["source"], split["shares"]) == ("packed set", {"train": 0.7, "validation": 0.15, "test": 0.15})


@pytest.fixture(scope="module")
def numbers(tmp_path_factory, write_table):
    """Two numbers and accounts, packed now, and as before a set had names of columns."""
    folder = tmp_path_factory.mktemp("numbers")
    generator = np.random.default_rng(1)
    rows = [
        {"label": int(x > 0.3), "amount": f"{x:.6f}", "age": f"{y:.6f}", "account": f"k{number // 2}"}
        for number, (x, y) in enumerate(generator.normal(size=(160, 2)))
    ]
    write_table(folder / "rows.csv", rows)
    words = ("data", "pack", folder / "rows.csv", *NUMBERS, "--out", folder / "rows")
    with pytest.raises(SystemExit) as end:
        run(list(map(str, words)))
    assert end.value.code == 0
    shutil.copytree(folder / "rows", folder / "before")
    manifest = folder / "before" / "manifest.json"
    body = json.loads(manifest.read_text())["manifest"]
    assert body.pop("feature_columns") == ["amount", "age"]
    assert body["task"].pop("group_column") == "account"
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    manifest.write_text(json.dumps({"manifest": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    return folder


def test_columns_are_called_as_in_the_table(deepauc, numbers, tmp_path):
    ways = {"table": ("--table", numbers / "rows.csv", *NUMBERS), "packed": ("--packed", numbers / "rows")}
    said, cards = {}, {}
    for name, words in ways.items():
        code, said[name], _ = deepauc("train", *words, "--epochs", 1, "--out", tmp_path / name)
        assert code == 0
        assert deepauc("export", tmp_path / name, "--bundle", tmp_path / f"{name}-bundle")[0] == 0
        assert deepauc("export", tmp_path / name, "--card", tmp_path / "card.md")[0] == 0
        cards[name] = (tmp_path / "card.md").read_text()
        (tmp_path / "card.md").unlink()
    table, packed = (record(tmp_path / name)["data"] for name in ways)
    assert packed["feature_columns"] == table["feature_columns"] == ["amount", "age"]
    assert packed["group_column"] == table["group_column"] == "account"
    for text in said.values():
        assert "groups (account): 80" in text
        assert text.count("patient") == 1  # not for decisions about patients, at the end
    assert "groups (account): 80" in cards["packed"]
    assert "Groups (account)" in (tmp_path / "packed" / "report.html").read_text(encoding="utf-8")
    bundles = [(tmp_path / f"{name}-bundle" / "bundle.json").read_bytes() for name in ways]
    assert bundles[0] == bundles[1]

    scores = [tmp_path / f"{name}.csv" for name in ways]
    for name, file in zip(ways, scores, strict=True):
        assert deepauc("predict", tmp_path / name, "--table", numbers / "rows.csv", "--out", file)[0] == 0
    assert read(scores[0]) == read(scores[1])
    for folder in ("packed", "packed-bundle"):
        words = ("--table", numbers / "rows.csv", "--feature-column", "age", "--feature-column", "amount")
        code, _, errors = deepauc("predict", tmp_path / folder, *words, "--out", tmp_path / "none.csv")
        assert code == 2
        assert "was trained on the columns amount, age, in this order" in errors


def test_a_set_from_before_there_were_names_is_trained_on_without_them(deepauc, no_report, numbers, tmp_path):
    code, text, _ = deepauc("train", "--packed", numbers / "before", "--epochs", 1, "--out", tmp_path / "run")
    assert code == 0
    assert "patients: 80" in text
    data = record(tmp_path / "run")["data"]
    assert (data["feature_columns"], data["group_column"]) == ([], None)
    words = ("predict", tmp_path / "run", "--table", numbers / "rows.csv", "--out", tmp_path / "scores.csv")
    code, _, errors = deepauc(*words)
    assert code == 2
    assert "name them (its 2 columns in order, --feature-column)" in errors
    assert deepauc(*words, "--feature-column", "amount", "--feature-column", "age")[0] == 0


def test_interrupted_it_goes_on_and_another_set_is_refused(deepauc, no_report, data, tmp_path, interrupt_at):
    words = ("train", "--packed", data / "split", "--model", "small-cnn", "--epochs", 2)
    assert deepauc(*words, "--out", tmp_path / "whole")[0] == 0
    interrupt_at(8)
    out = tmp_path / "run"
    code, _, errors = deepauc(*words, "--out", out)
    assert code == 130
    assert "the same command" in errors
    table = ("--table", data / "split.csv", "--image-column", "file")
    code, _, errors = deepauc("predict", out, *table, "--out", tmp_path / "scores.csv")
    assert code == 2
    assert "holds an unfinished run: run its command again to finish it" in errors
    task = open_packed(data / "split").task()
    images = task.inputs(np.arange(120))
    images[60, 0, 0] += 1
    pack(replace(task, source=ArrayInputs(images)), tmp_path / "other")
    code, _, errors = deepauc("train", "--packed", tmp_path / "other", *words[3:], "--out", out)
    assert code == 2
    assert "holds another run (different data)" in errors
    assert not (out / "DONE").exists()
    shutil.copytree(data / "split", tmp_path / "moved")  # the same rows, wherever they lie
    code, text, _ = deepauc("train", "--packed", tmp_path / "moved", *words[3:], "--out", out)
    assert code == 0
    assert "Resuming the unfinished run" in text
    assert read(out / "scores.csv") == read(tmp_path / "whole" / "scores.csv")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_leaks_are_found_and_a_split_that_is_made_has_none(deepauc, no_report, data, tmp_path, monkeypatch):
    """Two pictures of train again in test, of other patients, one with another label; one patient in two parts."""
    task = task_of(data)
    images, labels, groups = task.inputs(np.arange(120)), task.labels.copy(), task.groups.copy()
    images[100], images[101] = images[7], images[9]
    labels[[100, 7, 101, 9]] = 1, 0, 1, 1
    groups[110] = groups[0]

    whole = replace(task, source=ArrayInputs(images), labels=labels, groups=groups)
    pack(whole.with_parts({**task.parts, "train": task.part("train")[:-3]}), tmp_path / "torn")
    pack(whole.with_parts({"train": np.arange(120)}), tmp_path / "whole")
    told = []
    look = prepare_packed.input_digests
    monkeypatch.setattr(
        prepare_packed,
        "input_digests",
        lambda source, progress: look(source, progress=lambda *step: told.append(step)),
    )
    out = tmp_path / "run"
    code, text, _ = deepauc("train", "--packed", tmp_path / "torn", *SHORT, "--out", out)
    assert code == 0
    assert told == [(120, 120)]  # one pass over the rows
    for count in ("in no part: 3 ", "LEAK: 1 patient", "LEAK: 2 identical images", "2 sets, 1 WITH DIFFERENT LABELS"):
        assert count in text
    assert record(out)["leaks"] == {"patient": 1, "image": 2}
    assert record(out)["data"]["sets_of_identical_inputs"] == 2

    code, text, _ = deepauc("train", "--packed", tmp_path / "whole", *SHORT, "--out", tmp_path / "made")
    assert code == 0
    assert "in no part" not in text
    assert record(tmp_path / "made")["leaks"] == {}
    part = {row["id"]: row["part"] for row in read(tmp_path / "made" / "scores.csv")}
    assert part["images/100.png"] == part["images/7.png"]
    assert part["images/101.png"] == part["images/9.png"]


def test_print_config_is_the_run(deepauc, no_report, data, tmp_path):
    code, text, errors = deepauc("train", "--packed", data / "split", *SHORT, "--print-config")
    assert (code, errors) == (0, "")
    settings = tomllib.loads(text)["data"]
    assert settings["packed"] == str(data / "split")
    assert "image_size" not in settings
    assert "# image size: 8 x 8\n" in text
    (tmp_path / "run.toml").write_text(text)
    assert deepauc("train", "--config", tmp_path / "run.toml", "--out", tmp_path / "a")[0] == 0
    assert deepauc("train", "--packed", data / "split", *SHORT, "--out", tmp_path / "b")[0] == 0
    assert read(tmp_path / "a" / "scores.csv") == read(tmp_path / "b" / "scores.csv")


def test_parts_of_another_run_by_name_both_ways(deepauc, no_report, data, tmp_path):
    table = ("--table", data / "data.csv", *FILES, *SHORT)
    assert deepauc("train", "--packed", data / "split", *SHORT, "--out", tmp_path / "first")[0] == 0
    assert (
        deepauc(
            "train", "--packed", data / "data", "--split-of", tmp_path / "first", *SHORT, "--out", tmp_path / "second"
        )[0]
        == 0
    )
    assert deepauc("train", *table, "--split-of", tmp_path / "first", "--out", tmp_path / "third")[0] == 0
    first, *others = (
        [(r["id"], r["part"]) for r in read(tmp_path / n / "scores.csv")] for n in ("first", "second", "third")
    )
    assert others == [first, first]
    words = ("train", "--packed", data / "split", "--split-of", tmp_path / "first", "--out", tmp_path / "fourth")
    code, _, errors = deepauc(*words)
    assert code == 2
    assert "pack the table without its split column" in errors


def test_a_table_is_predicted_and_shown_as_by_a_run_of_a_table(deepauc, data, tmp_path):
    out, scores = tmp_path / "run", tmp_path / "scores.csv"
    assert deepauc("train", "--packed", data / "split", *SHORT, "--out", out)[0] == 0
    code, text, _ = deepauc("predict", out, "--table", data / "split.csv", "--image-column", "file", "--out", scores)
    assert code == 0
    assert "Caution." in text
    assert "99 rows" in " ".join(text.split())
    found = {row["id"]: float(row["score"]) for row in read(scores)}
    own = {row["id"]: float(row["score"]) for row in read(out / "scores.csv")}
    assert len(own) == 119
    assert all(found[name] == pytest.approx(score, abs=1e-5) for name, score in own.items())
    code, _, errors = deepauc("predict", out, "--table", data / "split.csv", "--out", tmp_path / "none.csv")
    assert code == 2
    assert "name them (--image-column)" in errors

    code, _, errors = deepauc("predict", out, "--table", data / "split", *FILES[:2], "--out", tmp_path / "none.csv")
    assert code == 2
    assert "is a folder: name the table in it. A packed set is for `deepauc train --packed`" in errors

    code, _, errors = deepauc("report", out, "--thumbnails")
    assert code == 2
    assert "trained on a packed set, not on a table" in errors
    code, _, errors = deepauc("report", out, "--thumbnails", "--table", data / "split.csv")
    assert code == 2
    assert "trained on a packed set, which has no columns: name that of the images" in errors
    words = ("--thumbnails", "--table", data / "split.csv", "--image-column", "file", "--cases", 1)
    assert deepauc("report", out, *words, "--out", tmp_path / "page")[0] == 0
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "now get another score" not in page  # the files are those that were packed
    assert "Rows of the packed set" in page
    assert deepauc("export", out, "--card", tmp_path / "card.md")[0] == 0
    assert "packed set" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--packed", "split", "--table", "split.csv", *FILES), "--table and --packed both say"),
        (("--packed", "split", *FILES, "--skip-bad"), "Leave out --image-column, --label-column, --skip-bad."),
        (("--packed", "split", "--image-size", "8"), "Leave out --image-size."),
        (("--packed", "split", "--allow-outside", "--group-column", "x"), "Leave out --group-column, --allow-outside."),
        (("--config", "both.toml"), "Leave out --split-column."),
        (("--config", "parts.toml"), "the packed set has parts of its own: leave out [split]."),
        (("--packed", "images"), "is not a packed set"),
        (("--packed", "nowhere"), "is not a packed set"),
        (("--packed", "split.csv"), "is a file, not a packed set: name a table with --table"),
        (("--table", "split"), "is a packed set: name it with --packed, without any columns"),
        (("--packed", "tests-only"), "has no training part (its parts: test)"),
        (("--packed", "inputs-only"), "holds inputs without labels"),
        (("--packed", "numbers", "--split-of", "anything"), "have none, or numbers that may be lines"),
        ((), "--packed DIR"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(deepauc, data, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(data)
    (data / "both.toml").write_text("[data]\npacked = 'split'\nsplit_column = 'split'\n")
    (data / "parts.toml").write_text("[data]\npacked = 'split'\n[split]\ntrain = 0.6\nvalidation = 0.25\n")
    if not (data / "inputs-only").exists():
        task = task_of(data)
        pack(task.with_parts({"test": np.arange(100, 120)}), data / "tests-only")
        pack(task.source, data / "inputs-only")
        numbered = replace(task, ids=np.arange(120).astype(str), parts={"train": np.arange(120)})
        pack(numbered, data / "numbers")
    code, _, errors = deepauc("train", *words, "--out", tmp_path / "run")
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [(), ("--minutes", 1), ("--tune", 2), ("--first-stage", "contrastive")])
def test_uncertain_labels_are_refused_before_the_plan_is_told(deepauc, data, tmp_path, words):
    """As in CheXpert. The file with the plan is still printed: that is where they are decided about."""
    if not (data / "uncertain").exists():
        task = task_of(data)
        pack(task.with_labels(np.where(np.arange(120) == 7, -1, task.labels)), data / "uncertain")
    code, text, errors = deepauc("train", "--packed", data / "uncertain", *words, "--out", tmp_path / "run")
    assert (code, text) == (2, f"Reading {data / 'uncertain'}\n")
    assert len(errors.splitlines()) == 1
    assert "the training labels hold uncertain entries (-1)" in errors
    assert not (tmp_path / "run").exists()


def test_uncertain_labels_that_are_decided_about_are_trained_with(deepauc, no_report, data, tmp_path):
    task = task_of(data)
    pack(task.with_labels(np.where(np.arange(120) == 7, -1, task.labels)), tmp_path / "set")
    code, text, _ = deepauc("train", "--packed", tmp_path / "set", *SHORT, "--print-config")
    assert code == 0
    stage = "[[recipe.stages]]\n"
    (tmp_path / "c.toml").write_text(text.replace(stage, f'{stage}uncertain = "ignore"\n'))
    assert deepauc("train", "--config", tmp_path / "c.toml", "--out", tmp_path / "run")[0] == 0
