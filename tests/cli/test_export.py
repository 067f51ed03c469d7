"""`deepauc export`: ONNX that agrees with torch, a bundle that predicts, a card whose figures are the record's."""

import csv
import json
import re
import shutil
from dataclasses import replace
from importlib import util

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.main import run
from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.intervals import auroc_interval
from deepauc.models.build import MLPSpec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.reporting import export as export_module
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.model_card import model_card
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.output_file import write_atomically

NASTY = "t|a <b>`[x](y)"
needs_onnx = pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="ONNX is not installed: pip install 'deepauc[onnx]'",
)

RECIPE = (
    Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=16),
    Stage(objective=AUCMargin(), optimizer=PESGSpec(), epochs=1, batch_size=16, positives_per_batch=4),
)
PARTS = {"train": np.arange(40), "validation": np.arange(40, 60), "test": np.arange(60, 80)}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run on pictures that lie beside their table."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (80, 8, 8, 1), dtype=np.uint8)
    labels = (generator.random(80) < 0.4).astype(np.float32)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture[..., 0]).save(folder / f"{number}.png")
    task = Task(
        name="pictures",
        kind="binary",
        source=ArrayInputs(pictures),
        labels=labels,
        label_names=(NASTY,),
        parts=PARTS,
        ids=np.array([f"{n}.png" for n in range(80)]),
        groups=np.array([f"p{n // 2}" for n in range(80)]),
    )
    choices = [{"name": "network", "value": "small-cnn", "reason": "it is small"}]
    notes = {
        "command": "deepauc train --table x.csv",
        "plan": {"choices": choices},
        "leaks": {"image": 2},
        "data": {
            "table": str(folder / "table.csv"),
            "image_column": "file",
            "positive": "malignant",
            "feature_columns": [],
            "groups": 7,
            "positives": {NASTY: int(labels.sum())},
            "negatives": {NASTY: int((labels == 0).sum())},
        },
    }
    recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=RECIPE, guard=True)
    return train(recipe, task, seed=0, run_dir=folder / "run", notes=notes), task


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    generator = np.random.default_rng(0)
    features = (generator.normal(size=(80, 3)) * 40 + 7).astype(np.float32)
    task = Task(
        name="numbers",
        kind="multilabel",
        source=ArrayInputs(features),
        labels=np.stack([features[:, 0] > 9, features[:, 1] > 0], 1),
        label_names=("a", "b"),
        parts={"train": np.arange(80)},
    )
    recipe = Recipe(model=MLPSpec(hidden=(4,)), stages=RECIPE)
    return train(recipe, task, seed=0, run_dir=tmp_path_factory.mktemp("numbers") / "run"), task


@pytest.fixture
def deepauc(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as end:
            run(["export", *map(str, words)])
        return end.value.code, *capsys.readouterr()

    return call


@needs_onnx
@pytest.mark.parametrize("name", ["images", "numbers"])
def test_onnx_takes_the_inputs_as_they_are_and_agrees_with_torch(deepauc, request, tmp_path, name):
    import onnxruntime

    trained, task = request.getfixturevalue(name)
    code, text, errors = deepauc(trained.path, "--onnx", tmp_path / "m.onnx", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(text)["onnx"]
    assert found["max_difference"] <= found["tolerance"]
    assert found["copies"] == 0
    assert ("own table" in found["source"]) == (name == "images")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    for rows in (1, 5, 80):  # any number of rows
        (scores,) = session.run(["scores"], {"inputs": task.inputs(np.arange(rows))})
        expected = predict(trained, task, rows=np.arange(rows)).reshape(rows, -1)
        assert scores == pytest.approx(expected, abs=1e-4)
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["labels"]) == list(task.label_names)
    assert properties["notice"] == "not a medical device"
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx"}


@needs_onnx
def test_a_file_that_disagrees_is_not_kept(deepauc, images, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "TOLERANCE", -1.0)
    code, _, errors = deepauc(images[0].path, "--onnx", tmp_path / "m.onnx")
    assert code == 2
    assert "was not kept" in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("--card", "run.json"),
        ("--card", "scores.csv"),
        ("--card", "report.md"),
        ("--onnx", "model.safetensors"),
        ("--onnx", "new.onnx", "--card", "new.onnx"),
    ],
)
def test_no_file_of_the_run_is_lost(deepauc, images, tmp_path, words):
    folder = tmp_path / "run"
    shutil.copytree(images[0].path, folder)
    (folder / "report.md").write_text("the report")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, _, errors = deepauc(folder, *(word if word.startswith("--") else folder / word for word in words))
    assert code == 2
    assert errors.rstrip().endswith("name another file." if len(words) == 2 else "name two files.")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    for _ in range(2):  # a card may lie in the run's folder, and be made again
        assert deepauc(folder, "--card", folder / "README.md")[0] == 0


def test_without_the_extra_the_remedy_is_named(deepauc, images, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    code, _, errors = deepauc(images[0].path, "--onnx", tmp_path / "m.onnx", "--bundle", tmp_path / "model")
    assert code == 2
    assert "pip install 'deepauc[onnx]'" in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "model").exists()  # where it could not be written again


def test_the_bundle_predicts_what_the_run_does(deepauc, images, tmp_path):
    trained, task = images
    code, text, _ = deepauc(trained.path, "--bundle", tmp_path / "bundle")
    assert code == 0
    assert str(tmp_path / "bundle" / "model.safetensors") in text
    assert {path.name for path in (tmp_path / "bundle").iterdir()} == {"model.safetensors", "bundle.json"}
    assert (predict(tmp_path / "bundle", task) == predict(trained, task)).all()
    code, _, errors = deepauc(trained.path, "--bundle", tmp_path / "bundle")
    assert code == 2
    assert "not empty" in errors


def test_a_bundle_that_a_full_disk_stopped_can_be_written_again(deepauc, images, tmp_path, monkeypatch):
    def full(path, content):
        if path.name == "bundle.json":
            raise OSError(28, "No space left on device", str(path))
        write_atomically(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(export_module, "write_atomically", full)
        assert deepauc(images[0].path, "--bundle", tmp_path / "bundle")[0] == 2
    assert deepauc(images[0].path, "--bundle", tmp_path / "bundle")[0] == 0


def test_card_and_bundle_carry_the_operating_points_and_cautions_of_the_report(deepauc, images, tmp_path):
    trained, _ = images
    findings = evaluate_run(trained.path)
    cautions = [text for label in findings.labels for text in label.cautions]
    assert cautions  # this run has some
    assert deepauc(trained.path, "--bundle", tmp_path / "bundle")[0] == 0
    bundle, card = Bundle.load(tmp_path / "bundle"), model_card(trained.path)
    assert all(any(text in one for one in bundle.cautions) for text in cautions)
    for label in findings.labels:
        points = (*label.operating_points, *label.sensitivity_points)
        asked = [f"specificity {row.asked_specificity}" for row in label.operating_points]
        asked += [f"sensitivity {row.asked_sensitivity}" for row in label.sensitivity_points]
        assert bundle.thresholds[label.name] == {name: row.threshold for name, row in zip(asked, points, strict=True)}
        for row in points:
            assert f"{row.threshold:.6g}" in card
            assert f"{row.true_positives:,}, {row.false_negatives:,}" in card
    assert deepauc(tmp_path / "bundle", "--bundle", tmp_path / "again")[0] == 0
    assert Bundle.load(tmp_path / "again").cautions == bundle.cautions


def test_an_exported_bundle_of_numbers_knows_its_columns(deepauc, numbers, tmp_path, capsys):
    trained, task = numbers
    copied = shutil.copytree(trained.path, tmp_path / "run")
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(record | {"data": {"feature_columns": ["x", "y", "z"]}}))
    assert deepauc(copied, "--bundle", tmp_path / "bundle")[0] == 0
    assert deepauc(tmp_path / "bundle", "--bundle", tmp_path / "again")[0] == 0  # a copy of a copy, too
    rows = task.inputs(np.arange(5))
    lines = [",".join(f"{row[place]:.9g}" for place in (2, 0, 1)) for row in rows]
    (tmp_path / "new.csv").write_text("\n".join(["z,x,y", *lines]) + "\n")

    def predicted(*words):
        with pytest.raises(SystemExit) as end:
            run(["predict", str(tmp_path / "again"), "--table", str(tmp_path / "new.csv"), *words])
        return end.value.code, capsys.readouterr().err

    assert predicted("--out", str(tmp_path / "scores.csv"))[0] == 0
    with (tmp_path / "scores.csv").open(newline="") as file:
        scores = [[float(row["score:a"]), float(row["score:b"])] for row in csv.DictReader(file)]
    assert scores == pytest.approx(predict(trained, task, rows=np.arange(5)), abs=1e-6)
    swapped = [word for name in "yxz" for word in ("--feature-column", name)]
    code, errors = predicted("--out", str(tmp_path / "wrong.csv"), *swapped)
    assert code == 2
    assert "x, y, z, in this order" in errors
    assert not (tmp_path / "wrong.csv").exists()


def test_the_card_holds_the_records_figures_and_how_to_make_them_again(deepauc, images, tmp_path):
    trained, _ = images
    code, _, errors = deepauc(trained.path, "--card", tmp_path / "README.md", "--quiet")
    assert (code, errors) == (0, "")
    card = (tmp_path / "README.md").read_text()
    with (trained.path / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"]
    scores, labels = (np.array([float(row[c]) for row in rows]) for c in ("score", "label"))
    again = auroc_interval(scores, labels)
    assert f"{again.value:.3f} [{again.low:.3f}, {again.high:.3f}]" in card
    assert f"`deepauc evaluate {trained.path.name}/scores.csv --part test`" in card
    assert "Not a medical device" in card
    assert "small-cnn (it is small)" in card
    assert "`deepauc train --table x.csv`" in card
    assert "2 identical images" in card
    assert "more likely positive (malignant)" in card
    assert trained.record.plain["identity"]["data"] in card
    front = card.split("---")[1]
    assert "library_name: deepauc" in front
    assert f"value: {again.value:.4f}" in front
    clustered = auroc_interval(scores, labels, groups=np.array([row["group"] for row in rows]))
    assert f"{clustered.value:.3f} [{clustered.low:.3f}, {clustered.high:.3f}]" in card
    assert (clustered.low, clustered.high) != (again.low, again.high)
    # What comes from the data is text and nothing else.
    body = card.split("---", 2)[2]
    assert "<b>" not in body
    assert "[x](y)" not in body.replace("\\[x\\](y)", "")
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in body.splitlines() if line.startswith("| test")]
    assert cells
    assert set(cells) <= {3, 6}


def cells(line):
    """Of a row of a pipe table, as CommonMark reads it: a pipe ends a cell unless an odd number of \\ stands before."""
    return re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]


@pytest.mark.parametrize("name", ["a|b", "a\\|b", "`x` ~~y~~ $z$", "<img src=x>", "# t\n\n| a | b |", "\u202eevil\x07"])
def test_names_are_text_in_the_card_whatever_they_are(images, tmp_path, name):
    folder = shutil.copytree(images[0].path, tmp_path / "run `b` | <i>")
    record = json.loads((folder / "run.json").read_text())
    record["task"] |= {"labels": [name], "name": name}
    record["leaks"] = {name: 1}
    record["identity"]["data"] = f"`{name}"
    del record["sha256"]
    (folder / "run.json").write_text(json.dumps(record))
    bundle = json.loads((folder / "bundle.json").read_text())
    bundle["label_names"], bundle["thresholds"] = [name], {name: {name: 0.5}}
    (folder / "bundle.json").write_text(json.dumps(bundle))
    card, plain = model_card(folder), model_card(images[0].path)
    body = card.split("---", 2)[2]
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert {len(cells(line)) for line in rows} <= {2, 3, 4, 5, 7}
    assert [len(cells(line)) for line in rows if line.startswith("| test")] == [5, 2]
    assert sum(line.startswith("#") for line in body.splitlines()) == sum(
        line.startswith("#") for line in plain.split("---", 2)[2].splitlines()
    )
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", body.replace("\\`", ""), flags=re.DOTALL)
    assert "`" not in outside
    assert "<" not in outside
    assert not re.search(r"(?<!\\)[~$]", outside)
    assert all(letter.isprintable() or letter == "\n" for letter in body)


def test_a_card_without_held_out_rows_gives_no_figures(deepauc, numbers, tmp_path):
    assert deepauc(numbers[0].path, "--card", tmp_path / "card.md")[0] == 0
    card = (tmp_path / "card.md").read_text()
    assert "metrics:" not in card
    assert "pipeline_tag: tabular-classification" in card


def test_bad_words(deepauc, images, tmp_path):
    path = images[0].path
    for words, message in (
        ((path,), "--onnx FILE, --bundle DIR or --card FILE"),
        ((tmp_path / "none", "--card", tmp_path / "c.md"), "no finished run"),
        ((tmp_path, "--bundle", tmp_path / "b"), "no trained network"),
        ((path, "--card", tmp_path / "no" / "c.md"), "in an existing folder"),
        ((path, "--onnx", tmp_path), "in an existing folder"),
    ):
        code, _, errors = deepauc(*words)
        assert code == 2
        assert message in errors
        assert len(errors.splitlines()) == 1


def test_what_is_exported_says_that_scores_are_means_over_copies(images, deepauc, tmp_path):
    plain, task = images
    (_, last) = RECIPE
    stages = (replace(last, augment=Augment(crop_padding=1)),)
    recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=stages, tta=2)
    copied = train(recipe, task, seed=0, run_dir=tmp_path / "run", notes={"data": plain.record.plain["data"]})
    assert deepauc(copied.path, "--bundle", tmp_path / "bundle")[0] == 0
    np.testing.assert_array_equal(predict(tmp_path / "bundle", task), predict(copied, task, tta=2))
    said = "2 augmented copies"
    assert said in model_card(copied.path)
    assert said not in model_card(plain.path)
    properties = [export_module._properties(Bundle.load(run.path))["scores"] for run in (copied, plain)]
    assert ["2 augmented copies" in text for text in properties] == [True, False]


@needs_onnx
@pytest.mark.parametrize(
    "augment",
    [
        Augment(flip=False, crop_padding=1, rotation=5.0, scale=(0.95, 1.05)),  # as planned
        Augment(crop_padding=3, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, coarse_dropout=1),
        Augment(crop_padding=0, resized_crop=(0.2, 1.0), greyscale=0.2),
    ],
)
def test_an_onnx_file_makes_the_copies_of_its_run(images, deepauc, tmp_path, augment):
    import onnxruntime

    plain, task = images
    recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(replace(RECIPE[1], augment=augment),), tta=3)
    copied = train(recipe, task, seed=0, run_dir=tmp_path / "run", notes={"data": plain.record.plain["data"]})
    code, text, _ = deepauc(copied.path, "--onnx", tmp_path / "file.onnx")
    assert (code, "3 augmented copies" in " ".join(text.split())) == (0, True)
    session = onnxruntime.InferenceSession(str(tmp_path / "file.onnx"), providers=["CPUExecutionProvider"])
    for rows in (np.arange(1), task.labelled("test")):
        theirs = session.run(["scores"], {"inputs": task.inputs(rows)})[0][:, 0]
        np.testing.assert_allclose(theirs, predict(copied, task, rows=rows), atol=1e-4)
        assert np.abs(theirs - predict(copied, task, rows=rows, tta=0)).max() > 1e-3
