"""`deepauc predict --probability`: one more column a label, what it means in one line, and what stops it."""

import csv
import json
import math

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.main import run
from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage

PARTS = {"train": np.arange(40), "validation": np.arange(40, 60)}


def trained(folder, *, seed=0, names=("target",), parts=PARTS):
    generator = np.random.default_rng(0)
    labels = np.zeros((60, len(names)), dtype=np.float32)
    labels[::4] = 1  # 25 % of every part
    images = generator.integers(0, 120, (60, 8, 8, 1), dtype=np.uint8)
    images[::4, 1:7, 1:7] += 70
    task = Task(
        name="t",
        kind="binary" if len(names) == 1 else "multilabel",
        source=ArrayInputs(images),
        labels=labels[:, 0] if len(names) == 1 else labels,
        label_names=names,
        parts=parts,
    )
    stage = Stage(
        objective=CrossEntropy(),
        optimizer=SGDSpec(lr=0.05),
        epochs=3,
        batch_size=10,
        augment=Augment(crop_padding=1),
    )
    notes = {"data": {"image_column": "file", "feature_columns": []}}
    recipe = Recipe(model=SmallCNNSpec(widths=(4,)), stages=(stage,))
    return train(recipe, task, seed=seed, run_dir=folder, notes=notes).path


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """Runs with and without a validation part, and a table of twenty new pictures, some with a spot."""
    root = tmp_path_factory.mktemp("clinic")
    trained(root / "first")
    trained(root / "second", seed=1)
    trained(root / "two", names=("target", "other"))
    trained(root / "whole", parts={"train": np.arange(60)})
    generator = np.random.default_rng(5)
    with (root / "new.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "target"])
        for number in range(20):
            picture = generator.integers(0, 120, (8, 8), dtype=np.uint8)
            picture[1:7, 1:7] += 20 * (number % 3 == 0)
            Image.fromarray(picture).save(root / f"{number}.png")
            writer.writerow([f"{number}.png", int(number % 3 == 0)])
    return root


@pytest.fixture
def deepauc(clinic, tmp_path, capsys):
    """Score the new pictures by runs of the clinic; (exit code, stdout, stderr, rows of the file)."""

    def call(*runs, words=(), out="s.csv"):
        target = tmp_path / out
        folders = [str(clinic / one) for one in runs]
        with pytest.raises(SystemExit) as end:
            run(["predict", *folders, "--table", str(clinic / "new.csv"), "--out", str(target), *words])
        return end.value.code, *capsys.readouterr(), read(target) if target.exists() else None

    return call


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return np.array([float(row[name]) for row in rows])


def logistic(folder, scores, label="target"):
    entry = json.loads((folder / "bundle.json").read_text())["calibration"][label]
    return np.array([1 / (1 + math.exp(-(entry["slope"] * s + entry["intercept"]))) for s in scores])


def auc(scores, labels):
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1] for n in scores[labels == 0]]
    return sum(pairs) / len(pairs)


def test_one_run(deepauc, clinic):
    code, text, errors, rows = deepauc("first", words=("--probability", "--label-column", "target"))
    assert (code, errors) == (0, "")
    assert list(rows[0]) == ["id", "label", "score", "probability"]
    scores, probabilities, labels = (column(rows, name) for name in ("score", "probability", "label"))
    np.testing.assert_allclose(probabilities, logistic(clinic / "first", scores), rtol=1e-6)
    assert len(np.unique(probabilities)) == 20
    assert auc(probabilities, labels) == auc(scores, labels)
    said = [line for line in text.splitlines() if line.startswith("probability:")]
    assert ["(25 % positive)" in line for line in said] == [True]


def test_the_other_columns_are_those_without_the_option(deepauc):
    _, text, _, plain = deepauc("first")
    assert "probability" not in text
    _, _, _, rows = deepauc("first", words=("--probability",))
    assert [{k: v for k, v in row.items() if k != "probability"} for row in rows] == plain


def test_several_labels_are_named_as_the_scores_are(deepauc, clinic):
    code, _, _, rows = deepauc("two", words=("--probability",))
    assert code == 0
    assert list(rows[0]) == ["id", "score:target", "score:other", "probability:target", "probability:other"]
    for label in ("target", "other"):
        expected = logistic(clinic / "two", column(rows, f"score:{label}"), label)
        np.testing.assert_allclose(column(rows, f"probability:{label}"), expected, rtol=1e-6)


def test_several_runs_and_the_mean_of_their_probabilities(deepauc):
    singles = [column(deepauc(one, words=("--probability",))[3], "probability") for one in ("first", "second")]
    code, text, _, rows = deepauc("first", "second", words=("--probability", "--scale", "rank"))
    assert code == 0
    np.testing.assert_allclose(column(rows, "probability"), np.mean(singles, axis=0), rtol=1e-12)
    assert "probability: mean over 2 runs" in text


def test_augmented_copies_are_averaged_before_recalibration(deepauc, clinic):
    plain = deepauc("first", words=("--probability",))[3]
    _, _, _, rows = deepauc("first", words=("--probability", "--tta", "3"))
    scores = column(rows, "score")
    assert (scores != column(plain, "score")).any()
    np.testing.assert_allclose(column(rows, "probability"), logistic(clinic / "first", scores), rtol=1e-6)


def test_json_and_quiet(deepauc):
    _, text, _, _ = deepauc("first", words=("--probability", "--json"))
    record = json.loads(text)
    assert record["columns"] == ["id", "score", "probability"]
    assert "25 % positive" in record["probability_meaning"]
    assert "probability_meaning" not in json.loads(deepauc("first", words=("--json",))[1])
    assert len(deepauc("first", words=("--probability", "--quiet"))[1].splitlines()) == 1


@pytest.mark.parametrize("runs", [("whole",), ("first", "whole")])
def test_a_run_without_validation_is_refused_in_one_line(deepauc, runs):
    code, _, errors, rows = deepauc(*runs, words=("--probability",))
    assert code == 2
    assert len(errors.splitlines()) == 1
    assert "whole gives no probability" in errors
    assert "Train with such a part" in errors
    assert rows is None
    assert deepauc(*runs)[0] == 0


def test_an_old_bundle_without_the_field(deepauc, clinic, copy_to_edit, tmp_path):
    old = tmp_path / "old"
    copy_to_edit(clinic / "first", old)
    plain = json.loads((old / "bundle.json").read_text())
    del plain["calibration"]
    (old / "bundle.json").write_text(json.dumps(plain))
    code, _, errors, rows = deepauc(old)
    assert (code, errors) == (0, "")
    assert rows == deepauc("first", out="t.csv")[3]
    code, _, errors, _ = deepauc(old, words=("--probability",), out="u.csv")
    assert code == 2
    assert "probabilities for target need" in errors


def test_the_file_can_be_evaluated(deepauc, tmp_path, capsys):
    deepauc("first", words=("--probability", "--label-column", "target"))
    found = {}
    for name in ("score", "probability"):
        with pytest.raises(SystemExit) as end:
            run(["evaluate", str(tmp_path / "s.csv"), "--label-column", "label", "--score-column", name, "--json"])
        text = capsys.readouterr().out
        assert not end.value.code, text
        found[name] = json.loads(text)
    aucs = [one["results"][0]["auc"]["delong"] for one in found.values()]
    assert aucs[0] == aucs[1]


def test_runs_count_by_their_weights(deepauc, clinic):
    words = ("--probability", "--weight", "3", "--weight", "1")
    code, text, _, both = deepauc("first", "second", words=words, out="both.csv")
    assert code == 0
    assert text.count("0.75, 0.25") == 2  # scores and probabilities
    alone = {name: deepauc(name, out=f"{name}.csv")[-1] for name in ("first", "second")}
    raw = [column(rows, "score") for rows in alone.values()]
    scores = 0.75 / (1 + np.exp(-raw[0])) + 0.25 / (1 + np.exp(-raw[1]))
    assert column(both, "score") == pytest.approx(scores, abs=1e-6)
    first, second = (logistic(clinic / name, one) for name, one in zip(alone, raw, strict=True))
    assert column(both, "probability") == pytest.approx(0.75 * first + 0.25 * second, abs=1e-6)


@pytest.mark.parametrize(
    ("runs", "weights", "message"),
    [
        (("first",), ("1",), "this is one run: leave them out"),
        (("first", "second"), ("1",), "2 runs need 2 weights"),
        (("first", "second"), ("1", "-1"), "none negative"),
        (("first", "second"), ("0", "0"), "not all 0"),
        (("first", "second"), ("1", "nan"), "2 runs need 2 weights"),
        (("first", "second"), ("1", "inf"), "2 runs need 2 weights"),
    ],
)
def test_weights_that_are_none(deepauc, runs, weights, message):
    words = [word for weight in weights for word in ("--weight", weight)]
    code, _, errors, rows = deepauc(*runs, words=words)
    assert code == 2
    assert message in errors
    assert rows is None
