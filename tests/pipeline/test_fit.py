"""`fit` as in a notebook: what the command trains, it trains to the bit; DataFrames, images, several labels, faults."""

import csv
import warnings

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import deepauc
from deepauc.cli.main import run as command
from deepauc.data.table.problems import TableError
from deepauc.pipeline import cross_validation, outcome
from deepauc.reporting.external import External, evaluate_table
from deepauc.training.run.file_lock import sole_user

CONFIG = "folds = {folds}\n[plan]\nepochs = 2\n"


@pytest.fixture(scope="module")
def frame():
    """Numbers of people, ill by x and chance, tired by y."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, 90))
    return pd.DataFrame(
        {
            "name": [f"r{number}" for number in range(90)],
            "person": [f"p{number // 2}" for number in range(90)],
            "x": x,
            "y": y,
            "ill": (x + generator.normal(size=90) > 0.8).astype(int),
            "tired": np.where(y + generator.normal(size=90) > 0.5, "yes", "no"),
        }
    )


@pytest.fixture
def short(tmp_path):
    """A config file that makes training short."""

    def write(folds=3):
        path = tmp_path / f"short-{folds}.toml"
        path.write_text(CONFIG.format(folds=folds))
        return path

    return write


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """The report is slow."""

    def write(run_dir, *, command):
        (run_dir / "report.html").write_text("<p>report")

    for module in (outcome, cross_validation):
        monkeypatch.setattr(module, "write_report", write)


OPTIONS = {"label": "ill", "features": ["x", "y"], "group": "person", "id": "name", "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def model(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    (folder / "short.toml").write_text(CONFIG.format(folds=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_validation, "write_report", lambda run_dir, *, command: (run_dir / "report.html").touch())
        return deepauc.fit(frame, out=folder / "run", config=folder / "short.toml", **OPTIONS)


@pytest.mark.parametrize("folds", [0, 3])
def test_the_command_and_fit_give_the_same_bits(frame, short, tmp_path, folds):
    frame.to_csv(tmp_path / "people.csv", index=False)
    fitted = deepauc.fit(tmp_path / "people.csv", out=tmp_path / "fit", config=short(folds), **OPTIONS)
    words = ["--table", tmp_path / "people.csv", "--label-column", "ill", "--feature-column", "x", "--feature-column"]
    words += ["y", "--group-column", "person", "--id-column", "name", "--device", "cpu", "--quiet", "--epochs", 2]
    with pytest.raises(SystemExit) as end:
        command(["train", *map(str, words), "--folds", str(folds), "--out", str(tmp_path / "train")])
    assert end.value.code == 0
    for name in ("scores.csv", "model.safetensors", "bundle.json"):
        assert (tmp_path / "train" / name).read_bytes() == (fitted.path / name).read_bytes()
    by_frame = deepauc.fit(frame, out=tmp_path / "frame", config=short(folds), **OPTIONS)
    assert (by_frame.path / "scores.csv").read_bytes() == (fitted.path / "scores.csv").read_bytes()


def test_a_model_with_folds(model, frame):
    board = model.leaderboard
    assert list(board) == ["candidate", "label", "auc", "low", "high", "seconds", "kept"]
    assert {"ce", "ce_auc_m", "average", "logistic"} <= set(board.candidate)
    assert board.kept.sum() == 1
    assert (board.low <= board.auc).all()
    assert (board.auc <= board.high).all()
    oof = model.oof
    assert list(oof) == ["id", "group", "fold", "label", "score"]
    assert sorted(oof.id) == sorted(frame.name)
    truth = dict(zip(frame.name, frame.ill, strict=True))
    assert all(truth[row.id] == row.label for row in oof.itertuples())
    assert model.auc.low <= model.auc.value <= model.auc.high
    assert model.aucs == {"ill": model.auc}
    assert model.report == model.path / "report.html"
    assert deepauc.load(model.path).auc == model.auc
    assert "ce_auc_m" in model._repr_html_()
    assert str(model.path) in repr(model)


def test_new_rows_and_rows_of_training(model, frame, tmp_path):
    new = frame.assign(name=[f"n{number}" for number in range(90)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = model.predict(new)
    assert list(scores) == ["id", "score", "probability"]
    np.testing.assert_allclose(1 / (1 + np.exp(-scores.score)), scores.probability, rtol=1e-5)
    with pytest.warns(UserWarning, match=r"90 rows have the name of a training row\. .* \.oof"):
        assert np.array_equal(model.predict(frame).score, scores.score)
    new.to_csv(tmp_path / "new.csv", index=False)
    assert np.array_equal(model.predict(tmp_path / "new.csv").score, scores.score)
    exported = model.export(tmp_path / "bundle")
    assert {path.name for path in exported.iterdir()} == {"model.safetensors", "bundle.json"}
    single = model.export(tmp_path / "single", single=True)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (single, exported)]
    assert 2 * sizes[0] < sizes[1]


def test_external_rows_and_their_prevalence(model, frame):
    new = frame.assign(name=[f"n{number}" for number in range(90)])
    found = model.evaluate(new, recalibrate=True)
    (ill,) = found.labels
    scores = model.predict(new)
    assert ill.auc.value == pytest.approx(deepauc.auroc(scores.score.to_numpy(), frame.ill.to_numpy()))
    assert ill.training == model.auc
    assert ill.part == "oof"
    odds = scores.score + ill.shift
    shifted = 1 / (1 + np.exp(-odds))
    assert float(shifted.mean()) == pytest.approx(frame.ill.mean(), abs=1e-6)
    assert ill.brier == pytest.approx(((scores.probability - frame.ill) ** 2).mean())
    assert ill.recalibrated_brier == pytest.approx(((shifted - frame.ill) ** 2).mean(), abs=1e-6)
    assert [point.name for point in ill.thresholds][:1] == ["specificity 0.8"]
    assert "AUC here" in str(found)
    half = model.evaluate(new.assign(ill=np.where(new.index % 3 == 0, new.ill, np.nan))).labels[0]
    assert half.trained_prevalence == pytest.approx(frame.ill.mean())
    assert f"{half.prevalence:.3f} / {frame.ill.mean():.3f}" in str(External(table="new", labels=(half,)))
    with pytest.raises(ValueError, match="one class"):
        model.evaluate(new[new.ill == 0])


def test_few_external_rows_of_a_class_are_a_caution(model, frame):
    new = frame.assign(name=[f"n{number}" for number in range(90)]).sort_values("ill")
    assert frame.ill.sum() > 10
    assert model.evaluate(new.tail(int(frame.ill.sum()) + 10)).notes == ()
    (note,) = model.evaluate(new.tail(int(frame.ill.sum()) + 9)).notes
    assert "9 negative rows" in note


def test_labels_of_another_hospital_in_its_own_words(model, frame):
    new = frame.assign(name=[f"n{number}" for number in range(90)])
    words = np.where(frame.ill == 1, "malignant", "benign")
    listed = rf"'benign' in {90 - frame.ill.sum()} rows, 'malignant' in {frame.ill.sum()} rows"
    with pytest.raises(ValueError, match=f"{listed}.*--positive"):
        evaluate_table(model.path, new.assign(ill=words))
    with pytest.raises(ValueError, match=f"no row holds the positive value 'sick'.*{listed}"):
        evaluate_table(model.path, new.assign(ill=words), positive="sick")
    found = evaluate_table(model.path, new.assign(ill=words), positive="malignant")
    assert found.auc == model.evaluate(new).auc


def test_one_split_has_a_leaderboard_of_validation(frame, short, tmp_path):
    model = deepauc.fit(frame, out=tmp_path / "run", config=short(0), **OPTIONS)
    board = model.leaderboard
    assert set(board.candidate) == {"ce", "ce_auc_m", "logistic"}
    assert board.kept.sum() == 1
    with (model.path / "scores.csv").open() as file:
        validation = [row["id"] for row in csv.DictReader(file) if row["part"] == "validation"]
    assert list(model.oof.id) == validation
    assert model.aucs == {"ill": model.auc}
    assert list(model.predict(frame.assign(name=frame.name + "x"))) == ["id", "score", "probability"]


def test_several_labels_in_words_get_one_candidate(frame, short, tmp_path):
    words = frame.assign(ill=np.where(frame.ill == 1, "yes", "no"))
    options = {**OPTIONS, "label": ["ill", "tired"], "positive": "yes"}
    model = deepauc.fit(words, out=tmp_path / "run", config=short(), **options)
    assert set(model.aucs) == {"ill", "tired"}
    assert model.auc.value == pytest.approx(np.mean([auc.value for auc in model.aucs.values()]))
    assert model.leaderboard[model.leaderboard.kept].candidate.nunique() == 1
    assert len(model.oof) == 180
    scores = model.predict(words.assign(name=words.name + "x"))
    assert list(scores) == ["id", "score:ill", "score:tired", "probability:ill", "probability:tired"]
    new = words.assign(name=words.name + "x")
    both = model.evaluate(new)
    assert set(both.aucs) == {"ill", "tired"}
    partly = model.evaluate(new.assign(ill=0))  # one class: the other label is judged all the same
    assert partly.aucs == {"tired": both.aucs["tired"]}
    assert len(partly.notes) == 1
    assert "'ill'" in partly.notes[0]
    with pytest.raises(ValueError, match="one class"):
        model.evaluate(new.assign(ill=0, tired=1))


def test_images_progress_and_a_folder_of_its_own(tmp_path, monkeypatch, short, capsys):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    rows = []
    for number in range(48):
        label = number % 3 == 0
        picture = generator.integers(0, 150, (8, 8)).astype(np.uint8)
        picture[2:5, 2:5] += np.uint8(80 * label)
        Image.fromarray(picture).save(tmp_path / "pictures" / f"{number}.png")
        rows.append({"file": f"{number}.png", "target": int(label)})
    table = pd.DataFrame(rows)
    model = deepauc.fit(table, label="target", image="file", image_root="pictures", config=short(2), device="cpu")
    assert model.path.as_posix() == "runs/fit-1"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Data: 48 labelled rows (target: 16 positive)"
    assert lines[1].startswith("  Caution: no group column is named.")
    assert lines[2].startswith("Training takes about ")
    assert lines[-1] == f"Report: {model.report}"
    assert {"ce", "logistic", "brightness"} <= set(model.leaderboard.candidate)
    with pytest.warns(UserWarning, match="48 rows have the name of a training row"):
        scores = model.predict(table, image_root="pictures")
    assert len(scores) == 48
    assert capsys.readouterr().out == ""
    again = {"out": model.path, "image": "file", "image_root": "pictures", "config": short(2), "device": "cpu"}
    deepauc.fit(table, label="target", **again)
    assert f"The run in {model.path} is finished; nothing is trained." in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"label": "nothing"}, "nothing"),
        ({"features": None}, "input columns are missing"),
        ({"folds": 1}, "folds"),
        ({"folds": 80}, "80 folds"),
        ({"device": "quantum"}, "device quantum"),
        ({"objective": "auc"}, "objective must be one of"),
        ({"objective": deepauc.Focal()}, r"deepauc\.train with a Recipe"),
        ({"label": "tired"}, "tired"),
        ({"label": None}, "a label column is required"),
        ({"features": "xy"}, "no column 'xy'"),
        ({"group": ["person"]}, "group_column must be a text"),
        ({"folds": 1.5}, "folds must be a whole number"),
        ({"minutes": "10"}, "minutes must be a number"),
        ({"seed": 1.5}, "seed must be a whole number"),
    ],
)
def test_bad_input_is_one_error_and_leaves_no_folder(frame, tmp_path, options, match):
    with pytest.raises((ValueError, TableError), match=match):
        deepauc.fit(frame, out=tmp_path / "run", **{**OPTIONS, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"features": None, "image": "name", "metadata": "x", "bag": "person"},
        {"metadata": "x"},
        {"image": "name"},
        {"features": None, "image": "name"},
        {"image_root": "pictures"},
        {"bag": "x"},
        {"objective": "partial-auc"},
    ],
)
def test_faults_of_columns_are_told_without_the_commands_options(frame, tmp_path, options):
    with pytest.raises(ValueError, match=r".") as caught:
        deepauc.fit(frame, out=tmp_path / "run", **{**OPTIONS, **options})
    spoken = str(caught.value).replace("for example --min-tpr 0.8, or min_tpr = 0.8", "")  # both ways are named
    assert "--" not in spoken


def test_a_folder_in_use_is_refused(frame, short, tmp_path):
    with sole_user(tmp_path / "run"), pytest.raises(ValueError, match="another process is training in"):
        deepauc.fit(frame, out=tmp_path / "run", config=short(3), **OPTIONS)


def test_rows_without_names_are_called_as_iloc_counts(frame, short, tmp_path):
    """Lines of the csv, from 2 on, would join scores to the wrong rows without a word."""
    frame = frame.set_index(frame.index[::-1])
    model = deepauc.fit(frame, out=tmp_path / "run", config=short(0), **{**OPTIONS, "id": None})
    places = model.oof.id.astype(int)
    assert frame["ill"].iloc[places].tolist() == model.oof.label.tolist()
    assert model.predict(frame.iloc[:3]).id.tolist() == ["0", "1", "2"]


def test_too_few_rows_to_split_are_said_to_be(tmp_path):
    two = pd.DataFrame({"x": [0.0, 1.0], "ill": [0, 1]})
    with pytest.raises(ValueError, match="would hold 0 positive and 0 negative labels"):
        deepauc.fit(two, label="ill", features="x", folds=0, out=tmp_path / "run")


def test_arguments_as_a_notebook_has_them(frame, short, tmp_path):
    """One column is named by a text, several by an index of pandas; the positive label is a number as in the column."""
    frame = frame.assign(ill=frame.ill + 1.0)
    options = {**OPTIONS, "label": frame.columns[[4]], "features": "x", "positive": np.int64(2), "seed": np.int64(3)}
    model = deepauc.fit(frame, out=tmp_path / "run", config=short(0), **options)
    assert sorted(set(model.oof.label)) == [0, 1]


def test_bad_rows_are_left_out_if_asked(frame, short, tmp_path):
    frame = frame.assign(x=[np.nan, *frame["x"][1:]])
    with pytest.raises(TableError) as error:
        deepauc.fit(frame, out=tmp_path / "run", **OPTIONS)
    assert "skip_bad=True" in error.value.__notes__[0]
    model = deepauc.fit(frame, out=tmp_path / "run", config=short(0), skip_bad=True, **OPTIONS)
    assert deepauc.Run(model.path).record.data.skipped_rows == 1


def test_missing_images_say_what_their_paths_are_relative_to(tmp_path):
    import pandas as pd

    table = pd.DataFrame({"file": [f"{row}.png" for row in range(20)], "ill": [0, 1] * 10})
    with pytest.raises(TableError, match=r"'0\.png', \.\.\.: .* \(20 rows\)") as error:
        deepauc.fit(table, label="ill", image="file", out=tmp_path / "run")
    assert error.value.__notes__ == [
        "Image paths are relative to the folder you are in; image_root= names another folder."
    ]


def test_what_is_no_table_or_no_run(tmp_path):
    with pytest.raises(ValueError, match="DataFrame, not list"):
        deepauc.fit([1, 2], label="ill")
    with pytest.raises(ValueError, match="no finished run"):
        deepauc.load(tmp_path)


def test_pretrained_weights_in_folds(tmp_path):
    """The last layer of a network on a file of weights, the features shared by all folds; the model predicts."""
    from safetensors.torch import save_file

    from deepauc.models.build import TimmSpec, build_model

    state = build_model(TimmSpec(name="test_resnet"), in_channels=3, num_outputs=1, seed=5).state_dict()
    save_file({k: v.contiguous() for k, v in state.items() if not k.startswith("fc.")}, tmp_path / "w.safetensors")
    generator = np.random.default_rng(0)
    rows = []
    for number in range(48):
        picture = generator.integers(0, 120, (16, 16), dtype=np.uint8)
        picture[4:10, 4:10] += np.uint8(90 * (number % 3 == 0))
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
        rows.append({"file": f"{number}.png", "ill": int(number % 3 == 0)})
    (tmp_path / "c.toml").write_text(
        'folds = 2\n[data]\nimage_size = [32, 32]\n[plan]\nepochs = 2\nmodel = "test_resnet"\nbackbone = "frozen"\n'
        f'pretrained = "{tmp_path / "w.safetensors"}"\n'
    )
    options = {"label": "ill", "image": "file", "image_root": tmp_path, "device": "cpu", "progress": False}
    model = deepauc.fit(pd.DataFrame(rows), out=tmp_path / "run", config=tmp_path / "c.toml", **options)
    assert len(model.oof) == 48
    again = deepauc.fit(
        pd.DataFrame(rows),
        out=tmp_path / "again",
        config=tmp_path / "c.toml",
        pretrained=str(tmp_path / "w.safetensors"),
        **options,
    )
    assert np.array_equal(again.oof["score"], model.oof["score"])
