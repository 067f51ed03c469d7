"""`deepauc train --objective`: the last stage minimises it, is chosen by it, and the report shows it."""

import json

import numpy as np
import pytest

WORDS = ("--feature-column", "x", "--feature-column", "z", "--label-column", "target", "--epochs", "2")


@pytest.fixture(scope="module")
def table(tmp_path_factory, write_table):
    generator = np.random.default_rng(0)
    target = generator.random(600) < 0.45
    x, z = generator.normal(size=600) + 1.2 * target, generator.normal(size=600)
    path = tmp_path_factory.mktemp("data") / "data.csv"
    rows = [{"x": float(a), "z": float(b), "target": int(t)} for a, b, t in zip(x, z, target, strict=True)]
    write_table(path, rows)
    return path


def test_partial_auc_is_trained_for_chosen_by_and_reported(deepauc, table, tmp_path):
    out = tmp_path / "run"
    options = ("--objective", "partial-auc", "--min-tpr", "0.8")
    code, _, _ = deepauc("train", "--table", table, *WORDS, *options, "--out", out)
    assert code == 0
    record = json.loads((out / "run.json").read_text())
    last = record["recipe"]["stages"][-1]
    assert last["objective"] | {"type": "PartialAUC", "min_tpr": 0.8, "max_fpr": 1.0} == last["objective"]
    assert last["keep"] == "best"
    guard = record["results"]["guard"]
    assert guard["chosen_by"] == "partial AUC (TPR above 0.8)"
    header = (out / "history.csv").read_text().splitlines()[0]
    assert "validation_partial_auc" in header
    report = json.loads((out / "report.json").read_text())
    assert report["labels"][0]["partial_auc"]["region"] == {"max_fpr": 1.0, "min_tpr": 0.8}


@pytest.mark.parametrize(
    ("name", "objective", "optimizer"),
    [
        ("all-pairs", "PairwiseAUC", "SGDSpec"),
        ("average-precision", "AveragePrecision", "SGDSpec"),
        ("pdsca", "AUCMargin", "PDSCASpec"),
    ],
)
def test_the_other_objectives(deepauc, table, tmp_path, name, objective, optimizer, no_report):
    out = tmp_path / "run"
    code, _, _ = deepauc("train", "--table", table, *WORDS, "--objective", name, "--out", out, "--quiet")
    assert code == 0
    last = json.loads((out / "run.json").read_text())["recipe"]["stages"][-1]
    assert (last["objective"]["type"], last["optimizer"]["type"]) == (objective, optimizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "partial-auc"), "partial-auc needs max_fpr or min_tpr"),
        (("--min-tpr", "0.8"), "set objective to partial-auc"),
        (("--objective", "partial-auc", "--min-tpr", "1"), "min_tpr is 1"),
        (("--objective", "partial"), "objective must be one of auc-margin"),
        (("--objective", "pdsca", "--auc-stage", "none"), "auc_stage none leaves that stage out"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(deepauc, table, tmp_path, options, message):
    code, out, errors = deepauc("train", "--table", table, *WORDS, *options, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "run").exists()
