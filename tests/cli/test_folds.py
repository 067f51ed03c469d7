"""`deepauc train --folds` as a user types it, and what the other commands make of its folder."""

import json

import numpy as np
import pytest

from deepauc.metrics.crossval.fold_curves import fold_partial_auroc_interval
from deepauc.metrics.partial import partial_auroc
from deepauc.pipeline import cross_validation
from deepauc.pipeline.model import load
from deepauc.training.config import read_settings
from deepauc.training.run.scores import read_scores

NUMBERS = ("--feature-column", "x", "--feature-column", "y", "--label-column", "ill", "--id-column", "name")
SHORT = ("--epochs", 1, "--device", "cpu")


def rows(count, seed):
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(2, count))
    ill = (x + generator.normal(size=count) > 0.8).astype(int)
    return [
        {"name": f"{seed}-{n}", "site": "ab"[n % 2], "x": round(x[n], 3), "y": round(y[n], 3), "ill": ill[n]}
        for n in range(count)
    ]


@pytest.fixture
def table(tmp_path, write_table):
    return write_table(tmp_path / "people.csv", rows(60, 0))


@pytest.fixture
def no_fold_report(monkeypatch):
    def write(run_dir, *, command):
        (run_dir / "report.html").write_text("<p>report")

    monkeypatch.setattr(cross_validation, "write_report", write)


@pytest.mark.usefixtures("no_fold_report")
def test_leave_one_site_out_then_another_hospital(deepauc, table, tmp_path, write_table):
    out = tmp_path / "run"
    words = ("train", "--table", table, *NUMBERS, *SHORT, "--out", out)
    code, text, errors = deepauc(*words, "--folds", "site")
    assert (code, errors) == (0, "")
    assert text.index("Training takes about") < text.index("Fold 1 of 2 (a)") < text.index("Fold 2 of 2 (b)")
    code, text, _ = deepauc(*words, "--folds", "site", "--json")
    found = json.loads(text)
    assert (code, found["state"]) == (0, "finished")
    assert found["folds"]["names"] == ["a", "b"]
    assert found["auc"]["oof"]["ill"][0] == found["folds"]["choice"]["auc"]["value"]

    code, text, _ = deepauc("evaluate", out / "scores.csv", "--json")
    judged = json.loads(text)
    kept = next(row for row in found["folds"]["choice"]["board"] if row["kept"])
    assert judged["folds"][0]["auc"] == pytest.approx(kept["auc"])
    assert judged["results"] == []
    code, text, _ = deepauc("evaluate", out / "scores.csv", "--max-fpr", "0.3", "--json")
    region = json.loads(text)["folds"][0]["partial_auc"]
    held_out = read_scores(out / "scores.csv").part("oof")
    expected = fold_partial_auroc_interval(
        held_out.scores[:, 0], held_out.labels[:, 0], held_out.folds, max_fpr=0.3, n_resamples=1000
    )
    assert (region["area"]["value"], region["area"]["low"]) == pytest.approx((expected.value, expected.low))
    assert "partial_auc" not in judged["folds"][0]
    for part in ((), ("--part", "oof")):
        code, text, _ = deepauc("compare", out / "scores.csv", out / "scores.csv", "--json", *part)
        (one,) = json.loads(text)["labels"]
        assert code == 0
        assert one["auc"] == one["baseline_auc"] == pytest.approx(kept["auc"]["value"])
        assert one["p_value"] == 1
    lines = (out / "scores.csv").read_text().splitlines()
    fold = lines[0].split(",").index("fold")
    cells = lines[1].split(",")
    cells[fold] = "2" if cells[fold] == "1" else "1"
    (tmp_path / "other-folds.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    code, _, errors = deepauc("compare", out / "scores.csv", tmp_path / "other-folds.csv")
    assert code == 2
    assert "have different folds" in errors

    other = write_table(tmp_path / "other.csv", rows(40, 1))
    code, text, errors = deepauc("evaluate", out, "--table", other, "--recalibrate", "--json")
    assert (code, errors) == (0, "")
    (ill,) = json.loads(text)["labels"]
    assert ill["rows"] == 40
    assert ill["part"] == "oof"
    assert ill["shift"] is not None
    assert "partial_auc" not in ill
    code, text, _ = deepauc("evaluate", out, "--table", other, "--min-tpr", "0.8", "--json")
    found = json.loads(text)["labels"][0]["partial_auc"]
    new = load(out).predict(other)
    truth = [row["ill"] for row in rows(40, 1)]
    assert found["area"]["value"] == pytest.approx(partial_auroc(new.score, truth, min_tpr=0.8))
    assert found["area"]["low"] < found["area"]["value"] < found["area"]["high"]
    assert "TPR above 0.8" in deepauc("evaluate", out, "--table", other, "--min-tpr", "0.8")[1]
    code, _, errors = deepauc("evaluate", out, "--table", other, "--min-tpr", "1")
    assert (code, errors) == (2, "deepauc: min_tpr is 1.0; it must lie in [0, 1).\n")
    code, text, _ = deepauc("evaluate", out, "--table", table)
    assert "60 rows have" in text
    code, text, _ = deepauc("predict", out, "--table", table, "--id-column", "name", "--parts", "--out", "-")
    assert code == 0
    assert text.splitlines()[1].split(",")[1] == "oof"
    code, text, errors = deepauc("export", out, "--bundle", tmp_path / "single", "--single", "--json")
    assert (code, errors) == (0, "")
    exported = json.loads(text)
    assert exported["cost"]["single"]["networks"] == 1 < exported["cost"]["average"]["networks"]
    code, _, errors = deepauc("export", out, "--card", tmp_path / "card.md", "--single")
    assert code == 2
    assert "--card" in errors
    code, _, errors = deepauc("export", out / "fold-1", "--bundle", tmp_path / "other", "--single")
    assert code == 2
    assert "one split" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--folds", 1), "folds must be 0 (one split), 2 or more"),
        (("--folds", "nowhere"), "nowhere"),
        (("--folds", "ill"), "neither as metadata nor for the folds"),
        (("--folds", "name"), "60 different values"),
        (("--folds", 3, "--tune", 2), "leave out folds, or tune"),
        (("--folds", 3, "--split-of", "runs/first"), "the split of another run"),
        (("--folds", 59), "59 folds need"),
    ],
)
def test_folds_that_cannot_be_are_one_line(deepauc, table, tmp_path, words, said):
    code, _, errors = deepauc("train", "--table", table, *NUMBERS, *SHORT, *words, "--out", tmp_path / "run")
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_recalibrate_needs_a_table(deepauc, table):
    code, _, errors = deepauc("evaluate", table, "--recalibrate")
    assert code == 2
    assert "--table" in errors


def test_the_printed_config_has_the_folds(deepauc, table, tmp_path):
    code, text, errors = deepauc("train", "--table", table, *NUMBERS, "--folds", "auto", "--print-config")
    assert (code, errors) == (0, "")
    (tmp_path / "plan.toml").write_text(text)
    settings = read_settings(tmp_path / "plan.toml")
    assert settings.folds == 5
    assert settings.recipe.keep_stages
