"""`deepauc predict`: scores of new rows, one run or many, with and without labels."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.main import run
from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.learned_weights import LearnedWeights
from deepauc.models.build import MLPSpec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.predict.validation_weights import ValidationWeights
from deepauc.training.recipe import Recipe, Stage


def stages(**options):
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=2, batch_size=16, **options)
    second = Stage(
        objective=AUCMargin(), optimizer=PESGSpec(), epochs=1, batch_size=16, positives_per_batch=4, **options
    )
    return (first, second)


def image_task(side, names=("target",), seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random((60, len(names))) < 0.4).astype(np.float32)
    images = generator.integers(0, 256, (60, side, side, 1), dtype=np.uint8)
    return Task(
        name="t",
        kind="binary" if len(names) == 1 else "multilabel",
        source=ArrayInputs(images),
        labels=labels[:, 0] if len(names) == 1 else labels,
        label_names=names,
        parts={"train": np.arange(40), "validation": np.arange(40, 60)},
    )


def trained(folder, side=8, seed=0, names=("target",)):
    recipe = Recipe(model=SmallCNNSpec(widths=(4,)), stages=stages(augment=Augment(crop_padding=1)))
    notes = {"data": {"image_column": "file", "feature_columns": []}}
    return train(recipe, image_task(side, names), seed=seed, run_dir=folder, notes=notes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "small": trained(folder / "small"),
        "again": trained(folder / "again", seed=1),
        "large": trained(folder / "large", side=12),
        "two": trained(folder / "two", names=("target", "other")),
    }


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    """Ten new grey pictures and a colour one, a table with labels and one without."""
    folder = tmp_path_factory.mktemp("new")
    generator = np.random.default_rng(5)
    rows = []
    for number in range(11):
        shape = (16, 16, 3) if number == 10 else (8, 8)
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{number}.png")
        rows.append({"file": f"{number}.png", "patient": f"p{number}", "target": "" if number == 3 else number % 2})
    for name, columns in (("new.csv", ["file"]), ("labelled.csv", ["file", "patient", "target"])):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    return folder


@pytest.fixture
def deepauc(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as end:
            run(["predict", *map(str, words)])
        return end.value.code, *capsys.readouterr()

    return call


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pictures(folder, side, channels=1):
    images = [Image.open(folder / f"{n}.png").convert("L") for n in range(11)]
    return np.stack([np.asarray(i.resize((side, side), Image.Resampling.BILINEAR)) for i in images])[..., None]


def test_a_table_without_labels_is_scored_as_by_the_library(deepauc, runs, new, tmp_path):
    code, text, errors = deepauc(runs["small"].path, "--table", new / "new.csv", "--out", tmp_path / "s.csv")
    assert (code, errors) == (0, "")
    assert f"Scores: {tmp_path / 's.csv'} (11 rows)" in text
    rows = read(tmp_path / "s.csv")
    assert list(rows[0]) == ["id", "score"]
    assert [row["id"] for row in rows] == [f"{n}.png" for n in range(11)]
    task = Task(
        name="new",
        kind="binary",
        source=ArrayInputs(pictures(new, 8)),
        labels=np.zeros(11),
        label_names=("target",),
        parts={},
    )
    expected = predict(runs["small"], task)
    found = np.array([float(row["score"]) for row in rows], dtype=np.float32)
    assert (found[:10] == expected[:10]).all()
    assert found[10] == pytest.approx(expected[10], abs=0.05)  # colour to grey before or after resizing


def test_labels_and_patients_are_copied(deepauc, runs, new, tmp_path):
    words = ("--label-column", "target", "--group-column", "patient", "--image-column", "file")
    code, text, _ = deepauc(
        runs["small"].path, "--table", new / "labelled.csv", "--out", tmp_path / "s.csv", *words, "--json"
    )
    assert code == 0
    assert json.loads(text)["columns"] == ["id", "group", "label", "score"]
    rows = read(tmp_path / "s.csv")
    assert [row["label"] for row in rows][:5] == ["0", "1", "0", "", "0"]
    assert rows[7]["group"] == "p7"


@pytest.mark.parametrize("scale", ["sigmoid", "rank"])
def test_several_runs_of_several_sizes_are_averaged(deepauc, runs, new, tmp_path, scale):
    single = {}
    for name in ("small", "again", "large"):
        assert deepauc(runs[name].path, "--table", new / "new.csv", "--out", tmp_path / f"{name}.csv")[0] == 0
        single[name] = np.array([float(row["score"]) for row in read(tmp_path / f"{name}.csv")])
    folders = [runs[name].path for name in single]
    code, text, _ = deepauc(*folders, "--table", new / "new.csv", "--out", tmp_path / "all.csv", "--scale", scale)
    assert code == 0
    assert "mean over 3 runs" in text
    found = np.array([float(row["score"]) for row in read(tmp_path / "all.csv")])
    if scale == "sigmoid":
        expected = np.mean([1 / (1 + np.exp(-s)) for s in single.values()], axis=0)
        assert found == pytest.approx(expected, abs=1e-6)
    else:
        order = np.mean([s.argsort().argsort() for s in single.values()], axis=0)
        differ = order[:, None] - order[None] > 1e-9
        assert (found[:, None] > found[None])[differ].all()


def test_test_time_augmentation_is_deterministic(deepauc, runs, new, tmp_path):
    for name, *copies in (("a", 3, "--seed", 0), ("b", 3), ("c", 3, "--seed", 1), ("none", 0)):
        words = ("--table", new / "new.csv", "--out", tmp_path / f"{name}.csv", "--tta", *copies)
        assert deepauc(runs["small"].path, *words)[0] == 0
    a, b, c, none = ((tmp_path / f"{name}.csv").read_bytes() for name in ("a", "b", "c", "none"))
    assert a == b
    assert len({a, c, none}) == 3


def test_several_labels(deepauc, runs, new, tmp_path):
    assert deepauc(runs["two"].path, "--table", new / "new.csv", "--out", tmp_path / "s.csv")[0] == 0
    assert list(read(tmp_path / "s.csv")[0]) == ["id", "score:target", "score:other"]
    code, _, errors = deepauc(
        runs["two"].path, runs["small"].path, "--table", new / "new.csv", "--out", tmp_path / "x.csv"
    )
    assert code == 2
    assert "different labels" in errors


@pytest.mark.parametrize(
    ("columns", "alone", "told"),
    [
        (["target"], ["other"], "No labels were copied for other: deepauc evaluate cannot judge its scores."),
        (["patient"], ["target", "other"], "--label-column 'label:patient' --score-column 'score:target'"),
        (["target", "other"], None, None),
        ([], None, None),
    ],
)
def test_of_several_labels_those_that_were_not_copied_are_told(
    deepauc, runs, new, tmp_path, capsys, columns, alone, told
):
    table, out = new / "two.csv", tmp_path / "s.csv"
    table.write_text("file,target,other,patient\n" + "".join(f"{n}.png,{n % 2},{n % 3 // 2},1\n" for n in range(9)))
    words = (runs["two"].path, "--table", table, "--out", out, *(w for c in columns for w in ("--label-column", c)))
    text = deepauc(*words)[1]
    assert "No labels were copied" in text if told else "No labels" not in text
    assert told is None or told in text
    assert list(read(out)[0]) == ["id", *(f"label:{name}" for name in columns), "score:target", "score:other"]
    assert json.loads(deepauc(*words, "--json")[1]).get("scores_without_labels") == alone
    if columns and columns != ["patient"]:  # what evaluate says of that file agrees
        with pytest.raises(SystemExit):
            run(["evaluate", str(out)])
        assert ("score:other: it has no column of labels" in capsys.readouterr().out) == (alone is not None)


def test_numbers(deepauc, tmp_path):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(80, 2)).astype(np.float32)
    task = Task(
        name="n",
        kind="binary",
        source=ArrayInputs(features),
        labels=features[:, 0] > 0.3,
        label_names=("y",),
        parts={"train": np.arange(80)},
    )
    notes = {"data": {"image_column": None, "feature_columns": ["b", "a"]}}
    trained_run = train(
        Recipe(model=MLPSpec(hidden=(4,)), stages=stages()), task, seed=0, run_dir=tmp_path / "run", notes=notes
    )
    with (tmp_path / "n.csv").open("w") as file:
        file.write("a,b\n" + "".join(f"{z!r},{x!r}\n" for x, z in features.tolist()))
    code, _, errors = deepauc(trained_run.path, "--table", tmp_path / "n.csv", "--out", tmp_path / "s.csv")
    assert (code, errors) == (0, "")
    found = np.array([float(row["score"]) for row in read(tmp_path / "s.csv")], dtype=np.float32)
    assert (found == predict(trained_run, task)).all()
    assert read(tmp_path / "s.csv")[0]["id"] == "2"  # the line in the file


def numbers_run(folder, columns):
    features = np.random.default_rng(0).normal(size=(40, len(columns))).astype(np.float32)
    task = Task(
        name="n",
        kind="binary",
        source=ArrayInputs(features),
        labels=features[:, 0] > 0.3,
        label_names=("target",),
        parts={"train": np.arange(40)},
    )
    notes = {"data": {"image_column": None, "feature_columns": columns}}
    return train(Recipe(model=MLPSpec(hidden=(4,)), stages=stages()[:1]), task, seed=0, run_dir=folder, notes=notes)


def test_a_column_is_never_taken_for_another(deepauc, runs, new, tmp_path):
    """Any numbers can be scored: columns in another order, or another run's, would give wrong scores without a word."""
    table, out = tmp_path / "n.csv", ("--out", tmp_path / "s.csv")
    table.write_text("a,b,c\n1,2,3\n4,5,6\n")
    one, turned, other = (numbers_run(tmp_path / name, list(name)) for name in ("ab", "ba", "bc"))
    unknown = numbers_run(tmp_path / "unknown", ["a", "b"])
    (unknown.path / "run.json").unlink()  # a bundle alone, of a version that kept no names
    columns = [word for name in ("b", "a") for word in ("--feature-column", name)]
    for words, message in (
        ((one.path, *columns), "columns a, b, in this order, and would be given b, a. Name them in that order"),
        ((one.path, turned.path), "columns b, a, in this order, and would be given a, b. Score runs on different"),
        ((one.path, other.path), "columns b, c, in this order"),
        ((one.path, unknown.path), "unknown does not record its columns: name its 2 in order"),
        ((turned.path, one.path, *columns), "columns a, b, in this order"),
        ((one.path, "--image-column", "a"), "was trained on numbers: name them, --feature-column"),
        ((one.path, "--feature-column", "c"), "shape (2,), the task has (1,): give it the same features."),
        ((runs["small"].path, "--feature-column", "a"), "trained on images: name their column, --image-column"),
        ((one.path, "--tta", 8), "these inputs are numbers"),
    ):
        code, _, errors = deepauc(*words, "--table", table, *out)
        assert code == 2
        assert message in errors
        assert len(errors.splitlines()) == 1
        assert not (tmp_path / "s.csv").exists()
    code, _, errors = deepauc(runs["small"].path, one.path, "--table", new / "new.csv", *out)
    assert (code, "trained on numbers" in errors) == (2, True)
    assert deepauc(turned.path, *columns, "--table", table, *out)[0] == 0
    named_otherwise = (turned.path, "--feature-column", "c", "--feature-column", "a", "--table", table)
    assert deepauc(*named_otherwise, *out)[0] == 0


def test_rows_seen_in_training_are_counted_by_their_ids(deepauc, tmp_path):
    """Numbers as ids count where both tables have the run's column of them; numbers of lines never do."""
    features = np.random.default_rng(0).normal(size=(40, 1)).astype(np.float32)
    task = Task(
        name="n",
        kind="binary",
        source=ArrayInputs(features),
        labels=np.arange(40) % 3 == 0,
        label_names=("y",),
        parts={"train": np.arange(30), "test": np.arange(30, 40)},
        ids=np.arange(40) + 2,
    )
    (tmp_path / "n.csv").write_text("key,a\n" + "".join(f"{n + 2},{x!r}\n" for n, (x,) in enumerate(features.tolist())))
    for name, id_column, expected in (("lines", None, 0), ("keys", "key", 30)):
        notes = {"data": {"image_column": None, "feature_columns": ["a"], "id_column": id_column}}
        recipe = Recipe(model=MLPSpec(hidden=(4,)), stages=stages()[:1])
        folder = train(recipe, task, seed=0, run_dir=tmp_path / name, notes=notes).path
        words = (folder, "--table", tmp_path / "n.csv", "--out", tmp_path / "s.csv", "--json")
        assert json.loads(deepauc(*words)[1])["rows_seen_in_training"] == expected
        found = json.loads(deepauc(*words, "--id-column", "key")[1])
        assert found["rows_seen_in_training"] == expected
    (tmp_path / "n.csv").write_text((tmp_path / "n.csv").read_text().replace("key", "other"))
    assert json.loads(deepauc(*words)[1])["rows_seen_in_training"] == 0


@pytest.mark.parametrize(
    "words", [("0", "1", ""), ("0.0", "1.0", "nan"), ("FALSE", "True", ""), ("false", "1", "NaN"), ("", "", "")]
)
def test_labels_are_copied_as_training_reads_them(deepauc, runs, new, tmp_path, words):
    (new / "words.csv").write_text("file,target\n" + "".join(f"{n}.png,{word}\n" for n, word in enumerate(words)))
    out = tmp_path / "s.csv"
    table = ("--table", new / "words.csv", "--label-column", "target")
    assert deepauc(runs["small"].path, *table, "--out", out)[0] == 0
    assert [row["label"] for row in read(out)] == (["0", "1", ""] if any(words) else ["", "", ""])


def test_labels_in_words_are_copied_by_the_positive_value(deepauc, runs, new, tmp_path):
    """That of training, where the column has it; else the one that is named."""
    folder, out = shutil.copytree(runs["small"].path, tmp_path / "run"), tmp_path / "s.csv"
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "data": {**record["data"], "positive": "melanoma"}}))

    def copied(cells, *words):
        (new / "words.csv").write_text("file,target\n" + "".join(f"{n}.png,{cell}\n" for n, cell in enumerate(cells)))
        table = ("--table", new / "words.csv", "--image-column", "file", "--label-column", "target", "--out", out)
        code, _, errors = deepauc(folder, *table, *words)
        return errors if code else [row["label"] for row in read(out)]

    assert copied(["Melanoma", "benign", ""]) == ["1", "0", ""]
    assert copied(["0", "1"]) == ["0", "1"]
    refused = copied(["yes", "yes", "no", "no", "no"])
    assert "The column holds 2 values: 'no' in 3 rows, 'yes' in 2 rows" in refused
    assert "--positive yes" in refused
    assert copied(["yes", "no", "no"], "--positive", "yes") == ["1", "0", "0"]
    assert "no row holds the positive value 'maligne'" in copied(["yes", "no"], "--positive", "maligne")


@pytest.mark.parametrize("words", ["0 2", "0 malignant"])
def test_a_label_that_is_none_is_told_before_anything_is_scored(deepauc, runs, new, tmp_path, monkeypatch, words):
    monkeypatch.setattr(
        "deepauc.training.predict.predict.score_copies", lambda *a, **k: pytest.fail("rows were scored")
    )
    first, second = words.split()
    (new / "words.csv").write_text(f"file,target\n0.png,{first}\n1.png,{second}\n")
    bad = f"1.png: '{second}'"
    table = ("--table", new / "words.csv", "--label-column", "target")
    code, _, errors = deepauc(runs["small"].path, *table, "--out", tmp_path / "s.csv")
    assert code == 2
    assert f"label column 'target', row {bad}: write 1 for the positive class" in errors
    assert len(errors.splitlines()) == 1


def test_faults(deepauc, runs, new, tmp_path):
    (new / "bad.csv").write_text("file\n0.png\nnone.png\n")
    out = ("--out", tmp_path / "s.csv")
    code, text, _ = deepauc(runs["small"].path, "--table", new / "bad.csv", *out)
    assert code == 2
    assert "none.png" in text
    assert not (tmp_path / "s.csv").exists()
    code, text, _ = deepauc(runs["small"].path, "--table", new / "bad.csv", *out, "--skip-bad")
    assert code == 0
    assert "Rows left out because of a problem: 3" in text
    assert len(read(tmp_path / "s.csv")) == 1
    for words, message in (
        ((tmp_path / "nothing", "--table", new / "new.csv", *out), "holds no trained network"),
        ((runs["small"].path, "--table", new / "new.csv", *out, "--scale", "mean"), "write sigmoid or rank"),
        ((runs["small"].path, "--table", new / "new.csv", "--out", tmp_path / "no" / "s.csv"), "in an existing folder"),
        ((runs["small"].path, "--table", new / "new.csv", *out, "--image-column", "fle"), "file"),
        (
            (runs["small"].path, "--table", new / "labelled.csv", *out, "--label-column", "patient"),
            "scores need no labels",
        ),
        ((runs["small"].path, *out), "--table"),
        (
            (runs["small"].path, "--table", new / "new.csv", *out, "--scale", "rank"),
            "one run gives its raw scores: leave",
        ),
        ((runs["small"].path, "--table", new / "new.csv", *out, "--scale", "sigmoid"), "or name more runs"),
        ((runs["small"].path, "--table", new / "new.csv", *out, "--seed", 0), "leave out the seed, or set tta"),
        ((runs["small"].path, "--table", new / "new.csv", *out, "--seed", 1, "--tta", 0), "leave out the seed"),
    ):
        code, _, errors = deepauc(*words)
        assert code == 2
        assert message in errors
        assert len(errors.splitlines()) == 1


def test_a_bundle_does_not_know_its_columns(deepauc, runs, new, tmp_path):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("bundle.json", "model.safetensors"):
        (bundle / name).write_bytes((runs["small"].path / name).read_bytes())
    code, _, errors = deepauc(bundle, "--table", new / "new.csv", "--out", tmp_path / "s.csv")
    assert code == 2
    assert "--image-column" in errors
    words = ("--table", new / "new.csv", "--image-column", "file", "--quiet")
    code, text, _ = deepauc(bundle, *words, "--out", tmp_path / "s.csv")
    assert code == 0
    assert text == f"Scores: {tmp_path / 's.csv'} (11 rows)\n"
    assert deepauc(runs["small"].path, *words, "--out", tmp_path / "t.csv")[0] == 0
    assert (tmp_path / "s.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()


def test_it_says_over_how_many_copies_and_which_scores_thresholds_belong_to(deepauc, runs, new, tmp_path, monkeypatch):
    recipe = Recipe(model=SmallCNNSpec(widths=(4,)), stages=stages(augment=Augment(crop_padding=1)), tta=2)
    notes = {"data": {"image_column": "file", "feature_columns": []}}
    copied = train(recipe, image_task(8), seed=0, run_dir=tmp_path / "copied", notes=notes).path

    def asked(*words):
        code, text, errors = deepauc(*words, "--table", new / "new.csv", "--out", tmp_path / "s.csv", "--json")
        assert (code, errors) == (0, "")
        found = json.loads(text)
        return found["meaning"], found.get("caution")

    plain = runs["small"].path
    raw, caution = asked(plain)
    assert (caution, "cop" in raw) == (None, False)
    meaning, caution = asked(copied)
    assert (caution, "2 augmented copies" in meaning) == (None, True)
    assert asked(copied, "--tta", 2)[1] is None  # the run's own way
    before = (tmp_path / "s.csv").read_bytes()
    assert asked(copied, "--seed", 1)[1] is None  # the run's own copies have a seed too
    assert (tmp_path / "s.csv").read_bytes() != before
    meaning, caution = asked(copied, "--tta", 0)
    assert meaning == raw
    assert f"{copied} " in caution
    assert "2 copies" in caution
    meaning, caution = asked(plain, "--tta", 1)
    assert "1 augmented copy " in meaning
    assert f"{plain} " in caution
    meaning, caution = asked(plain, copied)
    assert (caution, "2 runs" in meaning, "no or 2 augmented copies" in meaning) == (None, True, True)
    three_to_one = LearnedWeights(
        centres=(0, 0), spreads=(1, 1), slopes=(3, 1), intercept=0, positives=10, negatives=10
    )
    learned = ValidationWeights(labels={"target": three_to_one})
    monkeypatch.setattr("deepauc.training.predict.table.validation_weights", lambda *asked: learned)
    meaning, caution = asked(plain, copied, "--weight", "learned")
    assert (caution, "0.75, 0.25" in meaning, "no or 2 augmented copies" in meaning) == (None, True, True)
    _, caution = asked(plain, copied, "--weight", "learned", "--tta", 0)
    assert f"learned weights of {copied} " in caution
    text = deepauc(copied, "--table", new / "new.csv", "--out", tmp_path / "s.csv", "--tta", 0)[1]
    assert "Caution. " in text
