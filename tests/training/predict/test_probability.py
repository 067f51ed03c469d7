"""Probabilities from a bundle's own recalibration: the formula, the order, several labels and runs, damaged bundles."""

import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.learned_weights import learn_weights
from deepauc.metrics.recalibration import fit_isotonic, fit_temperature
from deepauc.models.build import MLPSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.predict.predict import predict
from deepauc.training.predict.table import TablePrediction, predict_table
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

TEMPERATURE = {"kind": "temperature", "slope": 2.5, "intercept": -1.5}
ISOTONIC = {"kind": "isotonic", "scores": [-1.0, 0.0, 0.5, 2.0], "probabilities": [0.0, 0.2, 0.2, 1.0]}
SCORES = arrays(np.float32, (20, 2), elements=st.floats(-30, 30, width=32))


def bundle(**calibration):
    return Bundle(
        model=MLPSpec(hidden=(4,)),
        shape=(2,),
        kind="multilabel",
        label_names=("a", "b"),
        preprocessing=Preprocessing(mean=(0.0, 0.0), std=(1.0, 1.0), images=False),
        calibration=calibration,
    )


def by_hand(entry, score):
    """One probability from one raw score, from the plain data alone."""
    if entry["kind"] == "temperature":
        z = entry["slope"] * score + entry["intercept"]
        return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))
    x, y = entry["scores"], entry["probabilities"]
    if score <= x[0]:
        return y[0]
    for left, right, low, high in zip(x, x[1:], y, y[1:], strict=False):
        if score <= right:
            return low + (high - low) * (score - left) / (right - left)
    return y[-1]


@settings(derandomize=True, deadline=None)
@given(scores=SCORES)
def test_the_formula_of_each_label_and_its_order(scores):
    entries = {"b": ISOTONIC, "a": TEMPERATURE}  # by name, not by place
    found = bundle(**entries).recalibration().apply(scores)
    assert found.shape == scores.shape
    for column, name in enumerate(("a", "b")):
        expected = [by_hand(entries[name], float(score)) for score in scores[:, column]]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-12, atol=1e-15)
        ordered = found[np.argsort(scores[:, column]), column]
        assert (np.diff(ordered) >= -1e-15).all()
        assert ordered[0] >= 0
        assert ordered[-1] <= 1 + 1e-15


def test_a_temperature_keeps_the_order_and_an_isotonic_curve_adds_ties():
    scores = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    found = bundle(a=TEMPERATURE, b=ISOTONIC).recalibration().apply(scores)
    assert (np.argsort(found[:, 0]) == np.argsort(scores[:, 0])).all()
    assert len(np.unique(found[:, 0])) == 200
    assert len(np.unique(found[:, 1])) < 150
    order = np.argsort(scores[:, 1])
    assert (np.diff(found[order, 1]) >= -1e-15).all()


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    scores=arrays(np.float32, 40, elements=st.floats(-3, 3, width=16)),  # of 16 bits: many are equal
    labels=arrays(np.bool_, 40).filter(lambda y: y.any() and not y.all()),
)
def test_what_the_library_fits_is_taken_back_from_json(scores, labels):
    fitted = {"a": fit_temperature(scores, labels), "b": fit_isotonic(scores, labels)}
    plain = json.loads(json.dumps({name: one.to_dict() for name, one in fitted.items()}))
    found = bundle(**plain).recalibration().apply(np.stack([scores, scores], axis=1))
    for column, one in enumerate(fitted.values()):
        assert (found[:, column] == one.apply(scores)).all()


def test_a_label_without_recalibration_is_named():
    with pytest.raises(ValueError, match=r"probabilities for b need .*Train with such a part"):
        bundle(a=TEMPERATURE).recalibration()
    with pytest.raises(ValueError, match="probabilities for a, b need"):
        bundle().recalibration()


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        [],
        {},
        {"kind": "labelwise", "labels": []},
        {"kind": "temperature", "slope": 1.0},
        {"kind": "temperature", "slope": "x", "intercept": 0.0},
        TEMPERATURE | {"slope": -1.0},
        TEMPERATURE | {"slope": math.inf},
        TEMPERATURE | {"slope": 10**400},
        TEMPERATURE | {"intercept": math.nan},
        ISOTONIC | {"scores": [0.0]},
        ISOTONIC | {"scores": [], "probabilities": []},
        ISOTONIC | {"scores": [0.0, 0.0, 1.0, 2.0]},
        ISOTONIC | {"scores": [0.0, 1.0, 2.0, math.inf]},
        ISOTONIC | {"probabilities": [0.0, 0.4, 0.2, 1.0]},
        ISOTONIC | {"probabilities": [0.0, 0.2, 0.2, 1.1]},
        ISOTONIC | {"probabilities": [math.nan, 0.2, 0.2, 1.0]},
    ],
)
def test_a_damaged_recalibration_is_refused(entry):
    with pytest.raises(ValueError, match="is damaged"):
        bundle(a=TEMPERATURE, b=entry).recalibration()


def trained(folder, *, seed=0, labels=2, parts=None, cut=60):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(100, 2)).astype(np.float32)
    truth = (features + generator.normal(size=(100, 2)) > 0.6).astype(np.float32)
    truth[cut, 1] = np.nan
    task = Task(
        name="numbers",
        kind="binary" if labels == 1 else "multilabel",
        source=ArrayInputs(features),
        labels=truth[:, 0] if labels == 1 else truth,
        label_names=("a", "b")[:labels],
        parts={"train": np.arange(cut), "validation": np.arange(cut, 100)} if parts is None else parts,
    )
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.1), epochs=2, batch_size=20)
    notes = {"data": {"image_column": None, "feature_columns": ["x", "y"]}}
    train(Recipe(model=MLPSpec(hidden=(4,)), stages=(stage,)), task, seed=seed, run_dir=folder, notes=notes)
    return task


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Two runs on two labels, and a third whose validation part is another one; their task and its table."""
    root = tmp_path_factory.mktemp("runs")
    task = trained(root / "0")
    trained(root / "1", seed=1)
    trained(root / "other", cut=50)
    rows = task.inputs(np.arange(100)).tolist()
    (root / "table.csv").write_text("x,y\n" + "".join(f"{x!r},{y!r}\n" for x, y in rows))
    return root, task


def entries_of(folder):
    return json.loads((folder / "bundle.json").read_text())["calibration"]


@pytest.fixture
def changed_copy(copy_to_edit):
    """Put a run into another folder, its bundle changed in place."""

    def make(run, folder, change):
        copy_to_edit(run, folder)
        plain = json.loads((folder / "bundle.json").read_text())
        change(plain)
        (folder / "bundle.json").write_text(json.dumps(plain))

    return make


def expected_of(folder, task):
    scores = predict(folder, task).astype(float)
    entries = entries_of(folder)
    return np.array([[by_hand(entries[name], s) for name, s in zip(("a", "b"), row, strict=True)] for row in scores])


def test_a_run_of_several_labels(two_runs):
    root, task = two_runs
    found = predict_table([root / "0"], root / "table.csv", probability=True)
    np.testing.assert_allclose(found.probabilities, expected_of(root / "0", task), rtol=1e-9)
    assert found.columns() == ["id", "score:a", "score:b", "probability:a", "probability:b"]
    # fitted on validation with an intercept: the mean there is the share of positives, but for Platt's targets
    mean = found.probabilities[61:].mean(axis=0)
    np.testing.assert_allclose(mean, task.labels[61:].mean(axis=0), atol=0.04)


def test_without_the_option_nothing_changes(two_runs):
    root, _ = two_runs
    found = predict_table([root / "0"], root / "table.csv")
    assert found.probabilities is None
    assert found.probability_meaning is None
    assert found.columns() == ["id", "score:a", "score:b"]


@pytest.mark.parametrize("scale", ["sigmoid", "rank"])
def test_several_runs_give_the_mean_of_their_probabilities(two_runs, scale):
    root, task = two_runs
    folders = [root / "0", root / "1"]
    found = predict_table(folders, root / "table.csv", probability=True, scale=scale)
    mean = np.mean([expected_of(folder, task) for folder in folders], axis=0)
    np.testing.assert_allclose(found.probabilities, mean, rtol=1e-9)
    assert entries_of(root / "0") != entries_of(root / "1")


def test_the_meaning_gives_the_prevalence_of_validation(two_runs, tmp_path):
    root, task = two_runs

    def share(label, start):
        part = [y for y in task.labels[start:, label].tolist() if not math.isnan(y)]
        return f"{100 * sum(part) / len(part):.3g}"

    def meaning(*folders):
        columns = ("x", "y")
        found = predict_table(folders, root / "table.csv", feature_columns=columns, probability=True)
        return found.probability_meaning

    one = meaning(root / "0")
    assert f"(a {share(0, 60)} %, b {share(1, 60)} % positive)" in one
    assert "mean" not in one
    assert f"(a {share(0, 60)} %, b {share(1, 60)} % positive)" in meaning(root / "0", root / "1")
    low, high = sorted([share(0, 60), share(0, 50)], key=float)
    both = meaning(root / "0", root / "other")
    assert low != high
    assert f"(a {low} to {high} %" in both
    assert "mean over 2 runs" in both
    for name in ("bundle.json", "model.safetensors"):  # a bundle alone does not know
        shutil.copy(root / "0" / name, tmp_path / name)
    assert "%" not in meaning(tmp_path)
    assert "%" not in meaning(root / "0", tmp_path)


@pytest.mark.parametrize(
    "flat",
    [TEMPERATURE | {"slope": 0.0}, {"kind": "isotonic", "scores": [0.0, 1.0], "probabilities": [0.3, 0.3]}],
    ids=lambda entry: entry["kind"],
)
def test_a_flat_curve_is_said_aloud(two_runs, tmp_path, flat, changed_copy):
    root, _ = two_runs
    changed_copy(root / "0", tmp_path / "run", lambda plain: plain["calibration"].update(b=flat))
    found = predict_table([tmp_path / "run"], root / "table.csv", probability=True)
    assert len(np.unique(found.probabilities[:, 1])) == 1
    assert "scores of b did not rise" in found.probability_meaning
    both = predict_table([tmp_path / "run", root / "1"], root / "table.csv", probability=True)
    assert "scores of b did not rise" in both.probability_meaning
    assert "some of the runs" in both.probability_meaning
    assert "Caution" not in predict_table([root / "1"], root / "table.csv", probability=True).probability_meaning


def test_a_damaged_scores_file_leaves_only_the_prevalence_out(two_runs, tmp_path):
    root, _ = two_runs
    shutil.copytree(root / "0", tmp_path / "run")
    whole = predict_table([root / "0"], root / "table.csv", probability=True)
    for content in (b"", b"id,part\n1,validation\n", b"\xff\xfe", b"part,label:a,label:b\nvalidation,x,\n"):
        (tmp_path / "run" / "scores.csv").write_bytes(content)
        found = predict_table([tmp_path / "run"], root / "table.csv", probability=True)
        assert (found.probabilities == whole.probabilities).all()
        assert "%" not in found.probability_meaning


def test_a_run_without_validation_is_refused_by_name_before_the_table_is_read(two_runs, tmp_path):
    root, _ = two_runs
    trained(tmp_path / "whole", parts={"train": np.arange(100)})
    options = {"probability": True, "progress": lambda *_: pytest.fail("the table was read")}
    with pytest.raises(ValueError, match=r"whole gives no probability: .*for a, b need a validation part"):
        predict_table([root / "0", tmp_path / "whole"], root / "table.csv", **options)
    assert predict_table([tmp_path / "whole"], root / "table.csv").scores.shape == (100, 2)


def test_a_bundle_without_the_field_still_loads_and_predicts(two_runs, tmp_path, changed_copy):
    root, _ = two_runs
    changed_copy(root / "0", tmp_path / "old", lambda plain: plain.pop("calibration"))
    assert Bundle.load(tmp_path / "old").calibration == {}
    found = predict_table([tmp_path / "old"], root / "table.csv")
    assert (found.scores == predict_table([root / "0"], root / "table.csv").scores).all()
    with pytest.raises(ValueError, match="old gives no probability"):
        predict_table([tmp_path / "old"], root / "table.csv", probability=True)


def test_an_isotonic_curve_in_the_bundle_and_the_file_read_back(two_runs, tmp_path, changed_copy):
    root, task = two_runs
    changed_copy(root / "0", tmp_path / "run", lambda plain: plain["calibration"].update(b=ISOTONIC))
    found = predict_table([tmp_path / "run"], root / "table.csv", probability=True)
    np.testing.assert_allclose(found.probabilities, expected_of(tmp_path / "run", task), rtol=1e-9)
    found.write(tmp_path / "p.csv")
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert lines[0] == found.columns()
    back = np.array(lines[1:])[:, -2:].astype(float)
    assert (back == found.probabilities).all()


@pytest.mark.parametrize("cut", ["groups", "labels", "scores", "probabilities"])
def test_a_column_of_another_length_is_refused(cut):
    """Written row by row, it would stand beside other rows' ids."""
    whole = {
        "ids": np.arange(3),
        "groups": np.arange(3),
        "labels": {"y": np.zeros(3)},
        "scores": np.zeros((3, 1)),
        "probabilities": np.zeros((3, 1)),
    }
    rest = {"label_names": ("y",), "meaning": "", "skipped": ()}
    assert TablePrediction(**whole, **rest).columns() == ["id", "group", "label", "score", "probability"]
    short = {"y": np.zeros(2)} if cut == "labels" else whole[cut][:2]
    with pytest.raises(ValueError, match=f"3 ids, but 2 of {'y' if cut == 'labels' else cut}"):
        TablePrediction(**{**whole, cut: short}, **rest)


def test_learned_weights_are_found_label_by_label(two_runs):
    """Rows are called by numbers, which say nothing unless both runs have the same rows in the same parts."""
    root, task = two_runs
    folders = [root / "0", root / "1"]
    found = predict_table(folders, root / "table.csv", weights="learned", probability=True)
    by_task = predict(folders, task, weights="learned")
    np.testing.assert_allclose(found.scores, by_task, atol=1e-6)
    raw = [predict(folder, task) for folder in folders]
    known = [Run(folder).scores("validation") for folder in folders]
    for column, name in enumerate(("a", "b")):
        learned = learn_weights([scores[:, column] for scores, _ in known], known[0][1][:, column])
        assert found.learned_weights[name] == pytest.approx(learned.shares)
        members = [scores[:, column] for scores in raw]
        np.testing.assert_allclose(by_task[:, column], learned.score(members), atol=1e-6)
        np.testing.assert_allclose(found.probabilities[:, column], learned.probability(members), atol=1e-6)
        assert f"{learned.shares[0]:.3g}, {learned.shares[1]:.3g} for {name}" in found.meaning
        assert f"{name} {100 * learned.positives / (learned.positives + learned.negatives):.3g} %" in (
            found.probability_meaning
        )
    assert (learned.positives + learned.negatives) == 39  # a label of b is missing
    for wrong, message in (
        ({"runs": [root / "0", root / "other"], "weights": "learned"}, "not trained on the same split"),
        ({"runs": folders[:1], "weights": "learned"}, "this is one"),
        ({"runs": folders, "weights": "learned", "scale": "rank"}, "leave scale out"),
        ({"runs": folders, "weights": "half"}, "or 'learned', not 'half'"),
    ):
        with pytest.raises(ValueError, match=message):
            predict(task=task, **wrong)
        with pytest.raises(ValueError, match=message):
            predict_table(table=root / "table.csv", **wrong)


def test_rows_called_by_numbers_must_be_those_of_one_table(two_runs, tmp_path, copy_to_edit):
    root, task = two_runs
    copy_to_edit(root / "1", tmp_path / "1")
    lines = (tmp_path / "1" / "scores.csv").read_text().splitlines(keepends=True)
    (tmp_path / "1" / "scores.csv").write_text("".join(lines[:1] + lines[2:]))  # one row of train less
    with pytest.raises(ValueError, match="have different ids"):
        predict([root / "0", tmp_path / "1"], task, weights="learned")


def test_weights_may_be_an_array(two_runs):
    root, task = two_runs
    folders = [root / "0", root / "1"]
    counted = predict(folders, task, weights=np.array([3.0, 1.0]))
    assert (counted == predict(folders, task, weights=(3, 1))).all()
    np.testing.assert_allclose(predict_table(folders, root / "table.csv", weights=np.array([3.0, 1.0])).scores, counted)
