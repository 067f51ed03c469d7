"""The trivial baselines beside a run of one split: compared on the judged part, and a caution where they do as well."""

import csv
import shutil

import numpy as np
import pytest

from deepauc.metrics.comparison import compare_auroc
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.document.trivial_section import trivial_cautions, trivial_section
from deepauc.reporting.evaluation.run import evaluate_run


def with_trivial(source, out, score):
    """The run, and beside it a baseline that gives each row score(label, position)."""
    shutil.copytree(source, out)
    with (out / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    place = out / "trivial" / "logistic"
    place.mkdir(parents=True)
    with (place / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for position, row in enumerate(rows):
            writer.writerow({**row, "score": score(float(row["label"] or 0), position)})
    return rows


@pytest.mark.parametrize("as_good", [True, False])
def test_a_network_that_is_not_clearly_better_gets_a_caution(run_folders, tmp_path, as_good):
    noise = np.random.default_rng(0).normal(size=10_000)
    out = tmp_path / "run"
    rows = with_trivial(
        run_folders / "ce", out, lambda label, position: label if as_good else -10 * label + noise[position]
    )
    findings = evaluate_run(out)
    (baseline,) = findings.trivial
    judged = [(position, row) for position, row in enumerate(rows) if row["part"] == "test" and row["label"] != ""]
    labels = np.array([float(row["label"]) for _, row in judged])
    theirs = labels if as_good else -10 * labels + noise[[position for position, _ in judged]]
    groups = [row["group"] for _, row in judged] if baseline.clustered else None
    ours = np.array([float(row["score"]) for _, row in judged])
    assert baseline.labels[0].difference.value == pytest.approx(
        compare_auroc(ours, theirs, labels, groups=groups).difference
    )
    assert len(trivial_cautions(findings)) == as_good
    document = run_document(findings, command=None)
    assert [section.anchor for section in document.sections][:2] == ["result", "trivial"]


def test_without_baselines_there_is_no_section(run_folders):
    findings = evaluate_run(run_folders / "ce")
    assert findings.trivial == ()
    assert trivial_section(findings) is None
    assert trivial_cautions(findings) == []
