"""--max-fpr and --min-tpr of `evaluate`, `compare` and `report`: the partial AUC where it is asked for."""

import json
import shutil

import numpy as np
import pytest

from deepauc.metrics.partial import compare_partial_auroc, partial_auroc_interval

REGION = {"max_fpr": 0.4, "min_tpr": 0.5}
WORDS = ("--max-fpr", "0.4", "--min-tpr", "0.5")


@pytest.fixture
def tables(tmp_path, write_table):
    """Two networks' scores of 120 rows, two rows a patient."""
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3 == 0
    paths, scores = [], []
    for name, strength in (("a", 1.0), ("b", 0.4)):
        scores.append(generator.normal(size=120) + strength * labels)
        rows = [
            {"id": i, "group": f"p{i // 2}", "label": int(labels[i]), "score": repr(float(scores[-1][i]))}
            for i in range(120)
        ]
        paths.append(tmp_path / f"{name}.csv")
        write_table(paths[-1], rows)
    return paths, scores, labels.astype(int), [f"p{i // 2}" for i in range(120)]


def test_evaluate(deepauc, tables):
    (path, _), (scores, _), labels, groups = tables
    code, out, _ = deepauc("evaluate", path, *WORDS, "--json")
    assert code == 0
    found = json.loads(out)["results"][0]["partial_auc"]
    expected = partial_auroc_interval(scores, labels, groups=groups, n_resamples=1000, **REGION)
    assert found["region"] == REGION
    assert found["area"] == {"value": expected.value, "low": expected.low, "high": expected.high}
    assert found["most"] == pytest.approx(0.2)
    assert f"{expected.value:.3f} [{expected.low:.3f}, {expected.high:.3f}]" in deepauc("evaluate", path, *WORDS)[1]
    assert "partial_auc" not in deepauc("evaluate", path, "--json")[1]


def test_compare(deepauc, tables):
    paths, scores, labels, groups = tables
    code, out, _ = deepauc("compare", *paths, *WORDS, "--json")
    assert code == 0
    found = json.loads(out)["labels"][0]["partial"]
    expected = compare_partial_auroc(*scores, labels, groups=groups, **REGION)
    assert found["p_value"] == expected.p_value
    assert found["difference"] == {"value": expected.difference, "low": expected.low, "high": expected.high}
    assert "FPR up to 0.4, TPR above 0.5" in deepauc("compare", *paths, *WORDS)[1]
    assert "partial" not in deepauc("compare", *paths, "--json")[1]


def test_limits_out_of_range_are_refused_in_one_line(deepauc, tables):
    for command in (("evaluate", tables[0][0]), ("compare", *tables[0])):
        code, out, errors = deepauc(*command, "--min-tpr", "1.5")
        assert (code, out) == (2, "")
        assert errors.count("\n") == 1
        assert "min_tpr is 1.5; it must lie in [0, 1)" in errors


def test_report_has_it_where_asked_and_where_a_run_was_trained_for_it(deepauc, run_folders, tmp_path):
    plain, asked = tmp_path / "plain", tmp_path / "asked"
    words = ("report", run_folders / "ce", "--baseline", run_folders / "auc", "--quiet")
    assert deepauc(*words, "--out", plain)[0] == 0
    assert deepauc(*words, "--out", asked, "--min-tpr", "0.6")[0] == 0
    for name in ("report.md", "report.json"):
        assert "artial" not in (plain / name).read_text(encoding="utf-8").replace("--min-tpr", "")
    found = json.loads((asked / "report.json").read_text(encoding="utf-8"))
    assert found["labels"][0]["partial_auc"]["region"] == {"max_fpr": 1.0, "min_tpr": 0.6}
    assert found["baseline"]["labels"][0]["partial"]["region"] == {"max_fpr": 1.0, "min_tpr": 0.6}
    text = (asked / "report.md").read_text(encoding="utf-8")
    assert "Partial AUC (TPR above 0.6)" in text
    assert "Paired comparison of partial AUC" in text

    trained = shutil.copytree(run_folders / "ce", tmp_path / "trained")
    record = json.loads((trained / "run.json").read_text())
    record["recipe"]["stages"][-1]["objective"] = {"type": "PartialAUC", "max_fpr": 0.3, "min_tpr": 0.0}
    (trained / "run.json").write_text(json.dumps(record))
    assert deepauc("report", trained, "--quiet")[0] == 0
    found = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    assert found["labels"][0]["partial_auc"]["region"] == {"max_fpr": 0.3, "min_tpr": 0.0}
