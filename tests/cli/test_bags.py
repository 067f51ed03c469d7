"""Rows of one exam under one label, as a user types it: training, scores, report, examples, export, and refusals."""

import csv
import json
from importlib import util

import numpy as np
import pytest
from PIL import Image

import deepauc as library
from deepauc.metrics.auroc import auroc
from deepauc.models.bags import BagSpec
from deepauc.models.build import AverageSpec
from deepauc.training.run.bundle import Bundle

SHORT = ("--epochs", 2, "--auc-stage", "always", "--model", "small-cnn", "--batch-size", 16)
COLUMNS = ("--image-column", "file", "--label-column", "ill", "--group-column", "patient", "--bag-column", "exam")
EXAMS, IMAGES = 90, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_table):
    """Exams of one to five images; of an ill one a single image shows it. A patient has two exams."""
    folder, generator, rows = tmp_path_factory.mktemp("bags"), np.random.default_rng(0), []
    for exam in range(EXAMS):
        ill, size = int(exam % 3 == 0), int(generator.integers(1, 2 * IMAGES))
        shows = generator.integers(size)
        for view in range(size):
            image = generator.normal(80, 20, (12, 12))
            image[3:8, 3:8] += 90 * (ill and view == shows)
            name = f"e{exam}-{view}.png"
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / name)
            rows.append({"file": name, "ill": ill, "exam": f"E{exam}", "patient": f"P{exam // 2}"})
    order = generator.permutation(len(rows))  # images of an exam need not stand together
    write_table(folder / "data.csv", [rows[i] for i in order])
    return folder


@pytest.fixture(scope="module")
def run(folder, write_table):
    from deepauc.cli.main import run as command

    words = [
        "train",
        "--table",
        folder / "data.csv",
        *COLUMNS,
        *SHORT,
        "--folds",
        0,
        "--out",
        folder / "run",
        "--quiet",
    ]
    with pytest.raises(SystemExit) as end:
        command(list(map(str, words)))
    assert end.value.code == 0
    return folder / "run"


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_of_the_run_is_an_exam_and_a_patient_is_in_one_part(run):
    rows = read(run / "scores.csv")
    assert sorted(row["id"] for row in rows) == sorted(f"E{exam}" for exam in range(EXAMS))
    parts = {}
    for row in rows:
        parts.setdefault(row["group"], set()).add(row["part"])
    assert all(len(own) == 1 for own in parts.values())
    record = json.loads((run / "run.json").read_text())
    assert (record["data"]["bag_column"], record["data"]["rows"]) == ("exam", EXAMS)
    assert record["data"]["positives"] == {"ill": EXAMS // 3}
    assert record["data"]["images"] > EXAMS
    assert {choice["name"] for choice in record["plan"]["choices"]} >= {"pooling", "images per bag"}
    assert "data:image" not in (run / "report.html").read_text(encoding="utf-8")


def test_predict_scores_whole_exams_as_the_run_did(deepauc, run, folder):
    out = folder / "new.csv"
    code, _, err = deepauc("predict", run, "--table", folder / "data.csv", "--label-column", "ill", "--out", out)
    assert (code, err) == (0, "")
    known = {row["id"]: row for row in read(run / "scores.csv")}
    rows = read(out)
    assert len(rows) == EXAMS
    for row in rows:
        assert float(row["score"]) == pytest.approx(float(known[row["id"]]["score"]), abs=1e-5)
        assert row["label"] == known[row["id"]]["label"]


def test_evaluate_judges_exams_of_a_table(deepauc, run, folder):
    code, said, err = deepauc("evaluate", run, "--table", folder / "data.csv", "--json")
    assert (code, err) == (0, "")
    (label,) = json.loads(said)["labels"]
    assert (label["rows"], label["positives"]) == (EXAMS, EXAMS // 3)
    words = (
        "evaluate",
        run,
        "--table",
        folder / "data.csv",
        "--group-column",
        "patient",
        "--per-group",
        "max",
        "--json",
    )
    code, said, err = deepauc(*words)
    assert (code, err) == (0, "")
    (label,) = json.loads(said)["labels"]
    assert label["rows"] == EXAMS // 2  # patients
    assert label["thresholds"] == []  # those of training are for exams


def test_examples_show_the_images_that_decided(deepauc, run, folder, tmp_path):
    code, _, err = deepauc("report", run, "--examples", "--out", tmp_path, "--json")
    assert (code, err) == (0, "")
    page = (tmp_path / "examples.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") > 6
    assert "data:image" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    model, bundle = Bundle.load(run).network(run), Bundle.load(run)
    assert isinstance(bundle.model, BagSpec)
    assert model.pooling == "smooth-max"


def test_an_exported_bundle_needs_the_column_and_scores_alike(deepauc, run, folder, tmp_path):
    assert deepauc("export", run, "--bundle", tmp_path / "bundle")[0] == 0
    words = ("predict", tmp_path / "bundle", "--table", folder / "data.csv", "--image-column", "file")
    code, _, err = deepauc(*words, "--out", tmp_path / "a.csv")
    assert code == 2
    assert "--bag-column" in err
    code, _, err = deepauc(*words, "--bag-column", "exam", "--out", tmp_path / "a.csv")
    assert (code, err) == (0, "")
    scores = {row["id"]: float(row["score"]) for row in read(run / "scores.csv")}
    for row in read(tmp_path / "a.csv"):
        assert float(row["score"]) == pytest.approx(scores[row["id"]], abs=1e-5)


@pytest.mark.skipif(any(util.find_spec(n) is None for n in ("onnx", "onnxruntime", "onnxscript")), reason="no ONNX")
def test_an_onnx_file_takes_the_images_of_one_exam(deepauc, run, folder, tmp_path):
    import onnxruntime

    code, _, err = deepauc("export", run, "--onnx", tmp_path / "net.onnx")
    assert (code, err) == (0, "")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    scores = {row["id"]: float(row["score"]) for row in read(run / "scores.csv")}
    for exam in ("E0", "E1", "E2", "E7"):
        files = [row["file"] for row in read(folder / "data.csv") if row["exam"] == exam]
        images = np.stack([np.asarray(Image.open(folder / name))[..., None] for name in files])
        (found,) = session.run(None, {"inputs": images})
        assert found.shape == (1, 1)
        assert found.item() == pytest.approx(scores[exam], abs=1e-4)


def test_serve_and_single_rows_say_what_to_do_instead(deepauc, run, folder):
    code, _, err = deepauc("serve", run)
    assert code == 2
    assert "deepauc predict" in err


def test_one_score_per_group_without_training_anew(deepauc, run, folder, tmp_path):
    """The exams of a patient, pooled from the run's scores: by hand, and by the commands."""
    rows = read(run / "scores.csv")
    code, said, err = deepauc("evaluate", run / "scores.csv", "--per-group", "max", "--part", "train", "--json")
    assert (code, err) == (0, "")
    own = [row for row in rows if row["part"] == "train"]
    patients = sorted({row["group"] for row in own})
    pooled = [max(float(row["score"]) for row in own if row["group"] == name) for name in patients]
    labels = [max(int(row["label"]) for row in own if row["group"] == name) for name in patients]
    found = json.loads(said)["results"][0]
    assert found["counts"]["rows"] == len(patients)
    assert found["auc"]["delong"]["value"] == pytest.approx(auroc(pooled, labels), abs=1e-12)
    other = tmp_path / "other.csv"
    other.write_text(
        (run / "scores.csv").read_text().replace(",1,", ",1,-")
    )  # of some positives the score is turned round
    turned = [row for row in read(other) if row["part"] == "train"]
    words = ("compare", run / "scores.csv", other, "--per-group", "mean", "--part", "train", "--json")
    code, said, err = deepauc(*words)
    assert (code, err) == (0, "")
    (pair,) = json.loads(said)["labels"]
    for name, table in (("auc", own), ("baseline_auc", turned)):
        means = [np.mean([float(row["score"]) for row in table if row["group"] == one]) for one in patients]
        assert pair[name] == pytest.approx(auroc(means, labels), abs=1e-6)
    code, _, err = deepauc("evaluate", run / "scores.csv", "--per-group", "noisy-or", "--part", "train")
    assert code == 2
    assert "probabilities" in err
    code, _, err = deepauc("evaluate", run / "scores.csv", "--per-group", "median")
    assert code == 2
    assert "max, mean or noisy-or" in err


@pytest.mark.parametrize("how", ["max", "mean", "noisy-or"])
def test_predict_pools_a_groups_rows(deepauc, run, folder, tmp_path, how):
    words = ("predict", run, "--table", folder / "data.csv", "--group-column", "patient", "--label-column", "ill")
    assert deepauc(*words, "--probability", "--out", tmp_path / "rows.csv")[0] == 0
    code, _, err = deepauc(*words, "--per-group", how, "--out", tmp_path / "pooled.csv")
    assert (code, err) == (0, "")
    rows, pooled = read(tmp_path / "rows.csv"), read(tmp_path / "pooled.csv")
    assert [row["id"] for row in pooled] == list(dict.fromkeys(row["group"] for row in rows))
    for row in pooled:
        own = [one for one in rows if one["group"] == row["id"]]
        scores = [float(one["score"]) for one in own]
        expected = {
            "max": max(scores),
            "mean": sum(scores) / len(scores),
            "noisy-or": 1 - np.prod([1 - float(one["probability"]) for one in own]),
        }[how]
        assert float(row["score"]) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert row["label"] == str(max(int(one["label"]) for one in own))


def test_pooling_needs_groups_and_bags_need_a_bag_run(deepauc, run, folder, tmp_path):
    words = ("predict", run, "--table", folder / "data.csv", "--out", tmp_path / "x.csv")
    code, _, err = deepauc(*words, "--per-group", "max")
    assert code == 2
    assert "--group-column" in err


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"ill": "1", "where": "E1"}, "differ in their label 'ill'"),
        ({"exam": "", "where": "E1"}, "is empty in"),
        ({"patient": "P40", "where": "E1"}, "differ in their patient"),
    ],
)
def test_exams_that_contradict_themselves_are_refused_by_name(deepauc, folder, tmp_path, write_table, change, part):
    rows = read(folder / "data.csv")
    where = change.pop("where") if "where" in change else "E1"
    sizes = {exam: sum(row["exam"] == exam for row in rows) for exam in {row["exam"] for row in rows}}
    exam = where if sizes[where] > 1 else next(e for e in sorted(sizes) if sizes[e] > 1 and int(e[1:]) % 3)
    first = next(row for row in rows if row["exam"] == exam)
    first |= change
    table = write_table(folder / f"bad-{part[:6].strip()}-{len(change)}.csv", rows)
    code, _, err = deepauc("train", "--table", table, *COLUMNS, *SHORT, "--out", tmp_path / "run")
    assert code == 2
    assert part in err
    assert not (tmp_path / "run").exists()


def test_fit_on_bags_with_folds_gives_one_network_of_bags(folder):
    model = library.fit(
        folder / "data.csv",
        label="ill",
        image="file",
        group="patient",
        bag="exam",
        folds=2,
        out=folder / "fit",
        config=write_config(folder),
        progress=False,
    )
    assert len(model.oof) == EXAMS
    spec = Bundle.load(folder / "fit").model
    assert isinstance(spec, AverageSpec)
    assert all(isinstance(member, BagSpec) for member in spec.members)
    with pytest.warns(UserWarning, match="90 rows have the name of a training row"):
        table = model.predict(folder / "data.csv")
    assert len(table) == EXAMS
    assert table["probability"].between(0, 1).all()
    assert model.evaluate(folder / "data.csv").auc.value > 0.5


def write_config(folder):
    path = folder / "short.toml"
    path.write_text('[plan]\nepochs = 1\nmodel = "small-cnn"\npooling = "attention"\nimages_per_bag = 3\n')
    return path


def test_the_printed_config_trains_the_same_run(deepauc, run, folder, tmp_path):
    words = ("train", "--table", folder / "data.csv", *COLUMNS, *SHORT, "--print-config")
    code, said, err = deepauc(*words)
    assert (code, err) == (0, "")
    assert 'bag_column = "exam"' in said
    (tmp_path / "plan.toml").write_text(said)
    code, _, err = deepauc("train", "--config", tmp_path / "plan.toml", "--out", tmp_path / "again", "--quiet")
    assert (code, err) == (0, "")
    for name in ("scores.csv", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()
