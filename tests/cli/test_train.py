"""`deepauc train` as a user types it: one csv in, a run folder out; again, interrupted, changed, with faults."""

import csv
import io
import json
import re
import sys
import time
import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import rich
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from deepauc.cli.console import Output
from deepauc.cli.main import run
from deepauc.cli.options import parse_size
from deepauc.data.task import ArrayInputs, Task
from deepauc.pipeline import job
from deepauc.pipeline import tune as pipeline_tune
from deepauc.training.config import read_settings
from deepauc.training.engine.loop import train
from deepauc.training.plain import from_plain
from deepauc.training.plan.timing import measure_pace
from deepauc.training.prepare.in_memory import InMemoryInputs
from deepauc.training.recipe import Recipe

IMAGES = ("--image-column", "file", "--label-column", "target", "--model", "small-cnn")  # for speed
NUMBERS = ("--feature-column", "x", "--label-column", "target")


def write_images(folder, count=120, seed=0):
    """Pictures of a bright spot or none, two to a patient, and their table."""
    generator = np.random.default_rng(seed)
    labels = generator.random(count) < 0.35
    (folder / "images").mkdir(parents=True)
    rows = []
    for number, label in enumerate(labels):
        picture = generator.integers(0, 150, (8, 8)).astype(np.uint8)
        picture[2:5, 2:5] += np.uint8(60 * label)
        name = f"images/{number}.png"
        Image.fromarray(picture).save(folder / name)
        rows.append({"file": name, "target": int(label), "patient_id": f"p{number // 2}"})
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_table):
    folder = tmp_path_factory.mktemp("data")
    rows = write_images(folder)
    write_table(folder / "data.csv", rows)
    parts = ["train"] * 80 + ["val"] * 20 + ["test"] * 20
    write_table(folder / "split.csv", [{**row, "split": part} for row, part in zip(rows, parts, strict=True)])
    return folder


@pytest.fixture
def deepauc(deepauc):
    """`deepauc train`."""
    return partial(deepauc, "train")


def content(folder):
    """Every file with its bytes and the time it was written."""
    return {p.relative_to(folder): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def scores(folder):
    with (folder / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_from_one_csv_to_a_report_and_again_nothing_changes(deepauc, data, tmp_path):
    out = tmp_path / "runs" / "first"
    words = ("--table", data / "data.csv", *IMAGES[:4], "--group-column", "patient_id", "--out", out, "--epochs", 12)
    code, text, errors = deepauc(*words)
    assert (code, errors) == (0, "")
    names = {path.name for path in out.iterdir()}
    assert {"run.json", "history.csv", "scores.csv", "model.safetensors", "report.html", "DONE", "baseline"} <= names

    record = json.loads((out / "run.json").read_text())
    choices = record["plan"]["choices"]
    assert {"parts", "image size", "network", "positives per batch", "epochs", "margin", "selection"} <= {
        choice["name"] for choice in choices
    }
    for choice in choices:
        assert f"{choice['name']}: {choice['value']}" in text
        assert f"\n    {choice['reason']}\n" in text
    assert record["leaks"] == {}
    assert record["data"]["split"] == {"train": 0.7, "validation": 0.15, "test": 0.15, "seed": 0}
    assert record["data"]["image_column"] == "file"
    assert record["command"].startswith(f"deepauc train --table {data / 'data.csv'} --image-column file")
    assert "--epochs 12" in record["command"]
    assert [stage["objective"]["type"] for stage in record["recipe"]["stages"]] == ["CrossEntropy", "AUCMargin"]
    assert record["recipe"]["guard"]

    rows = scores(out)
    by_part = {part: [row for row in rows if row["part"] == part] for part in ("train", "validation", "test")}
    assert [len(part) for part in by_part.values()] == [84, 18, 18]
    patients = [{row["group"] for row in part} for part in by_part.values()]
    assert not patients[0] & patients[1]
    assert not patients[0] & patients[2]
    assert not patients[1] & patients[2]
    assert record["results"]["auc"]["test"]["target"][0] > 0.8
    for place in (
        "validation AUC",
        "Scoring all rows\nWriting the report\n",
        "AUC with 95 % intervals",
        f"Report: {out / 'report.html'}",
        "Not a medical device",
        # By its number, as in the lines of progress: "first stage" is the plan's word for one without labels.
        "cross-entropy (stage 1)" if record["results"]["guard"]["winner"] else "AUC-M (not kept)",
    ):
        assert place in text
    assert "about" in text
    assert "left" in text
    html = (out / "report.html").read_text()
    assert "cross-entropy" in html
    assert record["identity"]["data"] in html

    before = content(out)
    code, text, errors = deepauc(*words)
    assert (code, errors) == (0, "")
    assert "is finished: nothing was changed" in text
    assert content(out) == before


def test_the_baseline_is_the_run_of_cross_entropy_alone(deepauc, no_report, data, tmp_path):
    out = tmp_path / "run"
    assert (
        deepauc("--table", data / "split.csv", *IMAGES, "--split-column", "split", "--out", out, "--epochs", 2)[0] == 0
    )
    record = json.loads((out / "run.json").read_text())
    recipe = from_plain(record["recipe"])
    rows = scores(out)
    images = np.stack(
        [np.asarray(Image.open(data / row["file"])) for row in csv.DictReader((data / "split.csv").open())]
    )
    task = Task(
        name="split",
        kind="binary",
        source=ArrayInputs(images),
        labels=np.array([float(row["label"]) for row in rows], dtype=np.float32),
        label_names=("target",),
        parts={"train": np.arange(80), "validation": np.arange(80, 100), "test": np.arange(100, 120)},
    )
    alone = train(Recipe(model=recipe.model, stages=recipe.stages[:1]), task, seed=0, run_dir=tmp_path / "alone")
    expected = [row["score"] for row in scores(alone.path)]
    assert [row["score"] for row in scores(out / "baseline")] == expected
    baseline = json.loads((out / "baseline" / "run.json").read_text())
    assert baseline["identity"]["recipe"] == alone.record.plain["identity"]["recipe"]
    assert baseline["results"]["auc"] == alone.record.plain["results"]["auc"]
    assert (out / "baseline" / "bundle.json").read_bytes() == (alone.path / "bundle.json").read_bytes()
    assert record["data"]["split"] is None


def test_interrupted_it_is_saved_and_the_same_command_goes_on(deepauc, no_report, data, tmp_path, interrupt_at):
    words = ("--table", data / "data.csv", *IMAGES, "--epochs", 2)
    assert deepauc(*words, "--out", tmp_path / "whole")[0] == 0
    interrupt_at(8)
    out = tmp_path / "run"
    code, _, errors = deepauc(*words, "--out", out)
    assert code == 130
    assert len(errors.splitlines()) == 1
    assert "saved" in errors
    assert "the same command" in errors
    assert not (out / "DONE").exists()
    code, text, _ = deepauc(*words, "--out", out)
    assert code == 0
    assert "Resuming the unfinished run" in text
    assert scores(out) == scores(tmp_path / "whole")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_another_recipe_seed_or_other_data_is_refused(deepauc, no_report, data, tmp_path):
    words = ("--table", data / "data.csv", *IMAGES, "--out", tmp_path / "run")
    assert deepauc(*words, "--epochs", 1)[0] == 0
    before = content(tmp_path / "run")
    for other in (("--epochs", 2), ("--epochs", 1, "--seed", 1), ("--epochs", 1, "--group-column", "patient_id")):
        code, _, errors = deepauc(*words, *other)
        assert code == 2
        assert "holds another run (different" in errors
        assert len(errors.splitlines()) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    code, _, errors = deepauc(*words[:-1], tmp_path / "mine", "--epochs", 1)
    assert code == 2
    assert "not empty" in errors
    assert content(tmp_path / "run") == before


def test_a_printed_plan_takes_pretrained_weights_and_copies_by_an_edit(deepauc, no_report, data, tmp_path):
    """As docs/csv.md says: all else stays as it was planned, and what is missing on this machine is named."""
    words = ("--table", data / "split.csv", *IMAGES[:4], "--split-column", "split", "--epochs", 1)
    _, text, _ = deepauc(*words, "--model", "test_resnet", "--image-size", 32, "--print-config")
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    planned = read_settings(plan)
    assert text.count("pretrained = false\n") == text.count("tta = 0\n") == 1
    plan.write_text(text.replace("pretrained = false", "pretrained = true"))
    asked = replace(planned.recipe.model, pretrained=True)
    assert read_settings(plan) == replace(planned, recipe=replace(planned.recipe, model=asked))

    weights = tmp_path / "model.safetensors"
    with torch.random.fork_rng():
        network = timm.create_model("test_resnet")
    save_file(network.state_dict(), weights)
    edited = text.replace("pretrained = false", f"weights = '{weights}'").replace("tta = 0", "tta = 2")
    plan.write_text(edited)
    assert deepauc("--config", plan, "--out", tmp_path / "run")[0] == 0
    recipe = from_plain(json.loads((tmp_path / "run" / "run.json").read_text())["recipe"])
    expected = replace(planned.recipe, model=replace(planned.recipe.model, weights=str(weights)), tta=2)
    assert recipe == expected

    plan.write_text(edited.replace("model.safetensors", "nowhere.safetensors"))
    code, _, errors = deepauc("--config", plan, "--out", tmp_path / "other")
    assert code == 2
    assert "nowhere.safetensors" in errors
    assert not (tmp_path / "other").exists()


def test_print_config_is_the_run(deepauc, no_report, data, tmp_path):
    words = ("--table", data / "data.csv", *IMAGES, "--group-column", "patient_id", "--epochs", 1, "--seed", 3)
    code, text, errors = deepauc(*words, "--print-config")
    assert (code, errors) == (0, "")
    settings = tomllib.loads(text)
    assert settings["seed"] == 3
    assert settings["data"]["image_size"] == [8, 8]
    assert "# network: small-cnn\n#   " in text  # a line below it, the reason
    (tmp_path / "run.toml").write_text(text)
    assert deepauc("--config", tmp_path / "run.toml", "--out", tmp_path / "a")[0] == 0
    assert deepauc(*words, "--out", tmp_path / "b")[0] == 0
    a, b = (json.loads((tmp_path / name / "run.json").read_text()) for name in "ab")
    assert a["identity"] == b["identity"]
    assert scores(tmp_path / "a") == scores(tmp_path / "b")
    code, _, errors = deepauc("--config", tmp_path / "run.toml", "--out", tmp_path / "a", "--epochs", 2)
    assert code == 2
    assert "change epochs in the recipe itself" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--table"),
        (("--table", "data.csv"), "--label-column"),
        (("--table", "data.csv", "--label-column", "target"), "--image-column"),
        (("--table", "none.csv", *IMAGES), "does not exist"),
        (("--table", "data.csv", "--image-column", "fil", "--label-column", "target"), "file"),
        (("--table", "data.csv", *IMAGES, "--image-size", "8x"), "HEIGHTxWIDTH"),
        (("--table", "data.csv", *IMAGES, "--device", "gpu"), "write cpu, cuda"),
        (("--table", "data.csv", *IMAGES, "--device", "cuda:7"), "no such GPU"),
        (("--table", "data.csv", *IMAGES, "--device", "mps"), "there is no such device on this machine; write cpu"),
        (("--table", "data.csv", *IMAGES, "--model", "resnet2"), "Did you mean"),
        (("--table", "data.csv", *IMAGES, "--model", "densenet121"), "The smallest images it takes are 29 x 29"),
        (("--table", "data.csv", *IMAGES, "--model", "densenet121", "--epochs", "1"), "it takes are 29 x 29"),
        (("--table", "data.csv", *IMAGES, "--tune", "99"), "pairs of margin and gamma"),
        (("--table", "data.csv", *IMAGES, "--first-stage", "simclr"), "one of auto, none, contrastive, not 'simclr'"),
        (("--config", "bad.toml"), "did you mean 'label_columns'?"),
        (("--config", "split.toml", *IMAGES, "--split-column", "split"), "leave out [split], or the split column"),
        (("--table", "split.csv", *NUMBERS, "--image-size", "16"), "there are no images to resize"),
        (("--seed", "-1"), "--seed"),
        (("--table", "data.csv", *IMAGES, "--print-config", "--json"), "leave out one of the two"),
        (("--table", "data.csv", *IMAGES, "--print-config", "--tensorboard"), "only prints a config file"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(deepauc, data, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(data)
    (data / "bad.toml").write_text("[data]\nlabel_colums = ['target']\n")
    (data / "split.toml").write_text("[data]\ntable = 'split.csv'\n[split]\ntrain = 0.6\nvalidation = 0.25\n")
    code, _, errors = deepauc(*words, "--out", tmp_path / "run")
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("network", ["small-cnn", "resnet20"])
def test_images_of_one_pixel_are_enough_for_a_network_of_ours(deepauc, no_report, data, tmp_path, network):
    words = ("--table", data / "data.csv", *IMAGES[:4], "--model", network, "--image-size", 1, "--epochs", 2)
    code, _, errors = deepauc(*words, "--out", tmp_path / "run")
    assert (code, errors) == (0, "")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["recipe"]["stages"][0]["augment"]["crop_padding"] == 0


def test_without_a_folder_it_asks_for_one_before_it_reads(deepauc, data):
    code, text, errors = deepauc("--table", data / "data.csv", *IMAGES)
    assert code == 2
    assert "--out" in errors
    assert text == ""


def test_a_table_with_faults_is_one_readable_table(deepauc, no_report, data, tmp_path, write_table):
    with (data / "data.csv").open() as file:
        rows = list(csv.DictReader(file))
    rows[3]["target"], rows[7]["file"] = "maybe", "images/nowhere.png"
    bad = write_table(data / "bad.csv", rows)
    code, text, _ = deepauc("--table", bad, *IMAGES, "--out", tmp_path / "run", "--epochs", 1)
    assert code == 2
    assert re.search(r"^5 +target +unknown label value +'maybe'", text, re.MULTILINE)
    assert re.search(r"^9 +file +missing file", text, re.MULTILINE)
    assert not (tmp_path / "run").exists()
    code, text, _ = deepauc("--table", bad, *IMAGES, "--out", tmp_path / "run", "--epochs", 1, "--json")
    assert code == 2
    assert len(json.loads(text)["problems"]) == 2
    code, text, _ = deepauc("--table", bad, *IMAGES, "--out", tmp_path / "run", "--epochs", 1, "--skip-bad")
    assert code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["skipped_rows"] == [5, 9]


def test_numbers_instead_of_images_and_json(deepauc, no_report, tmp_path, write_table):
    generator = np.random.default_rng(0)
    labels = generator.random(300) < 0.3
    rows = [
        {"x": f"{generator.normal() * 50 + 90 * y:.3f}", "z": f"{generator.normal():.3f}", "sick": int(y)}
        for y in labels
    ]
    table = write_table(tmp_path / "numbers.csv", rows)
    words = ("--table", table, "--feature-column", "x", "--feature-column", "z", "--label-column", "sick")
    code, text, errors = deepauc(*words, "--out", tmp_path / "run", "--epochs", 12, "--json")
    assert (code, errors) == (0, "")
    found = json.loads(text)
    assert found["state"] == "trained"
    assert found["auc"]["test"]["sick"][0] > 0.75
    assert found["baseline_auc"]["test"]["sick"]
    assert found["plan"]["choices"][1]["value"].startswith("MLP")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["feature_columns"] == ["x", "z"]
    code, text, _ = deepauc(*words, "--out", tmp_path / "run", "--epochs", 12, "--quiet")
    assert code == 0
    assert "Plan" not in text
    assert re.search(r"sick +0\.\d{3} \[", text)


def test_rows_of_numbers_keep_their_ids(deepauc, no_report, tmp_path, write_table):
    generator = np.random.default_rng(0)
    rows = [
        {
            "payment": 70_000 + number,
            "x": f"{generator.normal() + (number % 4 == 0):.3f}",
            "fraud": int(number % 4 == 0),
        }
        for number in range(80)
    ]
    table, out = write_table(tmp_path / "payments.csv", rows), tmp_path / "run"
    words = ("--table", table, "--feature-column", "x", "--label-column", "fraud", "--id-column", "payment")
    code, _, errors = deepauc(*words, "--out", out, "--epochs", 1)
    assert (code, errors) == (0, "")
    with (out / "scores.csv").open() as file:
        known = {row["id"]: row["part"] for row in csv.DictReader(file)}
    assert set(known) == {str(row["payment"]) for row in rows}
    assert json.loads((out / "run.json").read_text())["data"]["id_column"] == "payment"
    code, text, _ = deepauc(*words, "--print-config", "--epochs", 1)
    assert 'id_column = "payment"' in text

    columns = ("--id-column", "payment", "--out", tmp_path / "scores.csv")
    with pytest.raises(SystemExit) as end:
        run(list(map(str, ("predict", out, "--table", table, *columns, "--json"))))
    assert end.value.code == 0
    with (tmp_path / "scores.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(row["payment"]) for row in rows]


def test_groups_that_are_no_patients_are_called_groups(deepauc, tmp_path, write_table):
    """From the first line of `train` to the report and the card."""
    generator = np.random.default_rng(0)
    rows = [
        {
            "account": f"a{number // 2}",
            "x": f"{generator.normal() + (number % 8 < 2):.3f}",
            "fraud": int(number % 8 < 2),
        }
        for number in range(320)
    ]
    table, out = write_table(tmp_path / "payments.csv", rows), tmp_path / "run"
    words = ("--feature-column", "x", "--label-column", "fraud", "--group-column", "account")
    code, said, _ = deepauc("--table", table, *words, "--out", out, "--epochs", 1)
    assert code == 0
    assert "groups (account): 160" in said
    with pytest.raises(SystemExit):
        run(["export", str(out), "--card", str(out / "card.md")])
    report, card = ((out / name).read_text(encoding="utf-8") for name in ("report.md", "card.md"))
    for text in ("clustered by group", "160 groups", "Groups (account)"):
        assert text in report
    assert "[by group]" in card
    assert "- groups (account): 160" in card
    for line in (said + report + card).splitlines():  # a warning of what deepauc is not, and this test's own folder
        assert not re.search(r"\bpatients?\b", line) or re.search("[Mm]edical device|cleared for", line), line


def test_images_are_called_by_their_files(deepauc, data, tmp_path):
    code, _, errors = deepauc(
        "--table", data / "data.csv", *IMAGES, "--id-column", "patient", "--out", tmp_path / "run"
    )
    assert code == 2
    assert not (tmp_path / "run").exists()
    assert errors == "deepauc: an id column is for feature columns: the ids of images are their file names.\n"


def test_several_labels_with_empty_cells_and_a_split_without_validation(
    deepauc, no_report, data, tmp_path, write_table
):
    generator = np.random.default_rng(1)
    with (data / "data.csv").open() as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row["other"] = "" if number % 7 == 0 else int(generator.random() < 0.4)
        row["target"] = "" if number % 14 == 0 else row["target"]  # both empty: unlabelled
        row["part"] = "test" if number % 14 and number >= 90 else "train"
        row["importance"] = 1 + number % 3
    table = write_table(data / "several.csv", rows)
    words = ("--table", table, *IMAGES, "--label-column", "other", "--split-column", "part")
    code, text, errors = deepauc(
        *words, "--weight-column", "importance", "--out", tmp_path / "run", "--epochs", 1, "--image-size", "9x8"
    )
    assert (code, errors) == (0, "")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["task"]["shape"] == [9, 8, 1]
    assert record["task"]["rows"]["test"] == sum(1 for n in range(90, 120) if n % 14)
    assert record["task"]["rows"]["validation"] > 0
    assert record["data"]["unlabelled"] == 9
    assert set(record["results"]["auc"]["test"]) == {"target", "other"}
    assert "LEAK" not in text
    assert "take turns" in text


def test_it_says_how_many_unlabelled_rows_join_a_first_stage_and_why_others_do_not(
    deepauc, no_report, data, tmp_path, write_table
):
    with (data / "split.csv").open() as file:
        rows = list(csv.DictReader(file))
    rows[2]["target"] = rows[4]["target"] = ""  # of train
    rows[110]["target"] = ""  # marked as test, its patient is there too
    rows.append({**rows[0], "file": "images/copy.png", "target": "", "split": "", "patient_id": "p55"})  # in test
    (data / "images" / "copy.png").write_bytes((data / rows[6]["file"]).read_bytes())
    rows.append({**rows[0], "file": "images/own.png", "target": "", "split": "test", "patient_id": "nobody"})
    Image.fromarray(np.full((8, 8), 77, np.uint8)).save(data / "images" / "own.png")
    table = write_table(data / "unlabelled.csv", rows)
    words = ("--table", table, *IMAGES, "--group-column", "patient_id", "--split-column", "split", "--epochs", 1)
    code, text, errors = deepauc(*words, "--print-config")
    assert (code, errors) == (0, "")
    assert "# unlabelled rows: 0 of 5 " in text
    first = """[[recipe.stages]]
epochs = 1
batch_size = 32
views = 2
objective = { type = "Contrastive" }
optimizer = { type = "SGDSpec", lr = 0.1 }
augment = { crop_padding = 1 }

"""
    (tmp_path / "views.toml").write_text(text.replace("[[recipe.stages]]", f"{first}[[recipe.stages]]", 1))
    code, text, errors = deepauc("--config", tmp_path / "views.toml", "--out", tmp_path / "run", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(text)
    expected = {"rows": 5, "may_join": 2, "of_held_out_patient": 2, "held_out": 1, "joined": 2}
    assert found["unlabelled"] == expected
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["data"]["unlabelled_rows"] == expected
    (told,) = [choice for choice in record["plan"]["choices"] if choice["name"] == "unlabelled rows"]
    assert told["value"].startswith("2 of 5 ")
    with (tmp_path / "run" / "history.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["unlabelled_rows"] == "2"  # what the stage itself has counted


def test_minutes_cut_the_plan_and_a_run_that_goes_on_is_planned_at_the_old_pace(
    deepauc, no_report, data, tmp_path, monkeypatch
):
    measured = []

    def pace(recipe, task, *, seed, device):
        began = time.monotonic()
        measured.append(measure_pace(recipe, task, seed=seed, device=device))  # really; then as on a slow machine
        took = time.monotonic() - began
        assert all(0 < seconds < took for seconds in (*measured[-1].step, *measured[-1].end, measured[-1].row))
        return replace(measured[-1], step=(0.2, 0.2), end=(0.0, 0.0), row=0.0)

    monkeypatch.setattr(job, "measure_pace", pace)
    words = ("--table", data / "data.csv", *IMAGES, "--out", tmp_path / "run")
    code, _, errors = deepauc(*words, "--minutes", 0.01)
    assert code == 2
    assert re.search(r"0.01 minutes are not enough: one epoch of each stage takes about \d+ s here", errors)
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    code, text, errors = deepauc(*words, "--minutes", 0.1)
    assert (code, errors) == (0, "")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (count,) = [stage["epochs"] for stage in record["recipe"]["stages"]]
    steps = record["plan"]["pace"]["per_epoch"]
    assert 0.2 * count * steps[0] <= 0.9 * 6 < 0.2 * (count + 1) * steps[0]
    assert re.search(rf"epochs: {count}\n", text)
    facts = {choice["name"]: choice["rests_on"] for choice in record["plan"]["choices"]}
    assert (facts["epochs"]["minutes"], facts["epochs"]["wanted"]) == (0.1, [100])
    assert (facts["stages"]["minutes"], facts["stages"]["needed"]) == (0.1, 3)
    code, text, _ = deepauc(*words[:-2], "--minutes", 0.1, "--auc-stage", "always", "--print-config")
    assert code == 0
    counts = [int(n) for n in re.search(r"# epochs: (\d+) \+ (\d+)\n", text).groups()]
    assert 0.2 * np.dot(counts, steps) <= 0.9 * 6 < 0.2 * np.dot([n + 1 for n in counts], steps)
    before = content(tmp_path / "run")
    assert len(measured) == 3
    code, text, _ = deepauc(*words, "--minutes", 0.1)
    assert code == 0
    assert "is finished: nothing was changed" in text
    assert len(measured) == 3  # read from the run's folder
    code, _, errors = deepauc(*words, "--minutes", 0.2)
    assert code == 2
    assert "another run" in errors
    assert content(tmp_path / "run") == before
    code, _, errors = deepauc(*words, "--minutes", 1, "--epochs", 1)
    assert code == 2
    assert "give one of them" in errors


def test_identical_images_stay_together_and_are_a_leak_where_the_table_parts_them(
    deepauc, no_report, data, tmp_path, write_table
):
    folder = tmp_path / "data"
    rows = write_images(folder, count=100)
    for number in range(0, 40, 2):  # twenty pictures twice, under two names
        (folder / rows[number + 1]["file"]).write_bytes((folder / rows[number]["file"]).read_bytes())
        rows[number + 1]["target"] = rows[number]["target"]
        rows[number + 1]["patient_id"] = f"q{number}"
    table = write_table(folder / "data.csv", rows)
    code, text, _ = deepauc("--table", table, *IMAGES, "--out", tmp_path / "run", "--epochs", 1)
    assert code == 0
    assert "identical images: 20 sets" in text
    assert "LEAK" not in text
    part = {row["id"]: row["part"] for row in scores(tmp_path / "run")}
    assert all(part[rows[n]["file"]] == part[rows[n + 1]["file"]] for n in range(0, 40, 2))
    torn = [{**row, "part": ("train", "test")[n % 2] if n < 60 else "val"} for n, row in enumerate(rows)]
    table = write_table(folder / "torn.csv", torn)
    words = ("--table", table, *IMAGES, "--split-column", "part", "--out", tmp_path / "torn", "--epochs", 1)
    code, text, _ = deepauc(*words)
    assert code == 0
    assert "LEAK: 20 " in text
    assert json.loads((tmp_path / "torn" / "run.json").read_text())["leaks"] == {"image": 20}


def test_tuning_is_on_validation_recorded_and_not_done_twice(deepauc, no_report, data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    words = ("--table", data / "data.csv", *IMAGES, "--out", out, "--epochs", 2)
    seen = []
    tune = pipeline_tune.tune
    monkeypatch.setattr(pipeline_tune, "tune", lambda *a, **k: seen.append(k["pairs"]) or tune(*a, **k))
    code, text, errors = deepauc(*words, "--tune", 3)
    assert (code, errors) == (0, "")
    record = json.loads((out / "run.json").read_text())
    trials = record["plan"]["tuning"]["trials"]
    best = max(trials, key=lambda trial: trial["validation_auc"])
    last = record["recipe"]["stages"][-1]
    assert (last["objective"]["margin"], last["optimizer"]["gamma"]) == (best["margin"], best["gamma"])
    assert len({(trial["margin"], trial["gamma"]) for trial in trials}) == 3
    assert f"tuned: margin {best['margin']:g}" in text
    assert not (out / ".tuning").exists()
    before = content(out)
    code, text, _ = deepauc(*words, "--tune", 3)
    assert code == 0
    assert "finished" in text
    assert len(seen) == 1
    code, _, errors = deepauc(*words, "--tune", 2)
    assert code == 2
    assert "different pairs" in errors
    code, _, errors = deepauc(*words, "--tune", 3, "--seed", 1)
    assert code == 2
    assert "different seed" in errors
    assert content(out) == before


def test_a_loss_that_is_no_number_is_one_line_and_exit_code_1(deepauc, data, tmp_path):
    code, text, _ = deepauc("--table", data / "data.csv", *IMAGES, "--epochs", 1, "--print-config")
    assert code == 0
    (tmp_path / "wild.toml").write_text(
        text.replace("lr = 0.1", "lr = 1e9").replace('bound = "auto"', 'bound = "none"')
    )
    code, _, errors = deepauc("--config", tmp_path / "wild.toml", "--out", tmp_path / "run")
    assert code == 1
    assert "sigmoid" in errors
    assert len(errors.splitlines()) == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def drawn(monkeypatch):
    """A terminal of so many columns in place of stdout; what was written to it, a line at a time, less its codes."""
    rich.get_console()  # made where there was no terminal, as another part of the program may have done

    def make(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        return lambda: re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()))

    return make


TIME = r" (\d:\d\d:\d\d|-:--:--)$"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (80, r"stage \d of 2 \((cross-entropy|AUC-M)\) .* % validation AUC 0\.\d{3}"),
        (60, r"stage \d/2 .* % AUC 0\.\d{3}"),
    ],
    ids=["80", "60"],
)
def test_a_terminal_gets_a_bar_with_validation_auc_and_time(no_report, data, tmp_path, drawn, columns, words):
    call = ("train", "--table", data / "data.csv", *IMAGES, "--out", tmp_path / "run", "--epochs", 12, "--tune", 2)
    lines = drawn(columns)
    with pytest.raises(SystemExit) as end:
        run(list(map(str, call)))
    assert end.value.code == 0
    bars = [line for line in lines() if "━" in line and " % " in line]
    assert any(re.search(words + TIME, bar) for bar in bars)
    for title in ("stage ", "Tuning: 2 settings "):
        begun = [bar for bar in bars if bar.startswith(title) and "   0 % " not in bar]
        assert begun
        assert all(re.search(TIME, bar) and len(bar) <= columns for bar in begun)
    assert any(line.startswith("tuning, margin 0.5, gamma 0.002: done") for line in lines())
    assert not any("epoch 1 of" in line for line in lines())


def test_a_long_name_with_brackets_leaves_the_bar_its_time(drawn):
    lines = drawn(60)
    with Output().progress(f"Reading {'clinic/' * 20}[/b] scans.csv") as advance:
        advance(7, 10)
    assert any(re.fullmatch(r"Reading clin…\S*/\[/b] scans.csv ━.* 70 %  " + TIME.strip(), line) for line in lines())


def test_images_in_memory_are_those_of_the_files(data):
    class Source:
        shape, dtype = (2, 2, 1), np.dtype(np.uint8)

        def __len__(self):
            return 1300

        def __call__(self, rows):
            return np.broadcast_to((rows % 251).astype(np.uint8)[:, None, None, None], (len(rows), 2, 2, 1))

        def digest(self):
            return "its own"

    told = []
    found = InMemoryInputs(Source(), progress=lambda done, total: told.append((done, total)))
    rows = np.array([1299, 0, 700])
    assert (found(rows) == Source()(rows)).all()
    assert (len(found), found.shape, found.digest()) == (1300, (2, 2, 1), "its own")
    assert told[-1] == (1300, 1300)


def test_a_set_too_large_for_memory_gives_the_same_run(deepauc, no_report, data, tmp_path, monkeypatch):
    words = ("--table", data / "data.csv", *IMAGES, "--epochs", 1)
    assert deepauc(*words, "--out", tmp_path / "a")[0] == 0
    monkeypatch.setattr("deepauc.training.prepare.in_memory.LARGEST", 0)
    assert deepauc(*words, "--out", tmp_path / "b")[0] == 0
    a, b = (json.loads((tmp_path / name / "run.json").read_text())["identity"] for name in "ab")
    assert a == b
    assert scores(tmp_path / "a") == scores(tmp_path / "b")


def test_one_core_is_left_to_others_unless_told_otherwise(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        with job.cpu_threads(torch.device("cpu")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with job.cpu_threads(torch.device("cpu")):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("text", "size"), [("64", (64, 64)), ("224x320", (224, 320)), ("8X9", (8, 9))])
def test_sizes(text, size):
    assert parse_size(text, option="--size") == size


@pytest.mark.parametrize("text", ["", "x", "8x", "8x8x8", "-8", "0", "8.5", "²"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="HEIGHTxWIDTH"):
        parse_size(text, option="--size")


def test_what_needs_no_table_is_refused_before_one_is_read(deepauc, data, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    code, out, errors = deepauc("--table", data / "data.csv", *IMAGES[:4], "--out", tmp_path / "mine")
    assert (code, out) == (2, "")
    assert "is not empty and is not a run" in errors
    code, out, errors = deepauc(*IMAGES[:4], "--out", tmp_path / "new")
    assert (code, out) == (2, "")
    assert "--table data.csv" in errors
