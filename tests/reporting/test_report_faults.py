"""Runs that lack something: the report says what is not there and why, and never fails."""

import csv
import json
from itertools import count

import pytest

from deepauc.reporting.document.blocks import Missing
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.evaluation.subgroups import Metadata
from deepauc.reporting.report import write_report


@pytest.fixture
def altered(run_folders, tmp_path, copy_to_edit):
    """A copy of the binary run whose scores.csv rows went through a function (None drops a row)."""

    def make(change, name="run"):
        run = tmp_path / name
        copy_to_edit(run_folders / "auc", run)
        with (run / "scores.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        kept = [row for row in map(change, rows) if row is not None]
        with (run / "scores.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(kept)
        return run

    return make


def test_a_run_without_test_is_judged_on_validation(altered):
    findings = evaluate_run(altered(lambda row: row if row["part"] != "test" else None))
    assert findings.judged_part == "validation"
    assert "too good" in findings.part_note
    (label,) = findings.labels
    assert label.auc.headline.value > 0
    assert "no test part" in label.operating_points.why
    assert "no test part" in label.calibration.after.why


def test_a_run_without_validation_has_no_thresholds(altered):
    findings = evaluate_run(altered(lambda row: row if row["part"] != "validation" else None))
    assert findings.judged_part == "test"
    assert "no such part" in findings.labels[0].operating_points.why


def test_thresholds_from_few_negatives_come_with_a_caution_on_every_page(altered):
    negatives = count(1)
    run = altered(
        lambda row: row if row["part"] != "validation" or row["label"] == "1" or next(negatives) <= 3 else None
    )
    written = write_report(run)
    (label,) = json.loads(written.json.read_text(encoding="utf-8"))["labels"]
    (said,) = (text.split(".")[0] for text in label["cautions"] if " 3 negative rows" in text)
    for page in (written.html, written.markdown):
        assert page.read_text(encoding="utf-8").count(said) == 1
    whole = said.partition(" 3 negative rows")[0]
    assert whole not in write_report(altered(dict, "whole")).html.read_text(encoding="utf-8")


def test_a_run_of_training_rows_alone_gets_a_report_that_says_so(altered):
    run = altered(lambda row: row if row["part"] == "train" else None)
    (run / "history.csv").unlink()
    written = write_report(run, metadata=Metadata(["image-0.png"], {"sex": ["f"]}))
    assert written.figures == ()
    assert written.findings.labels == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda row: row | {"label": "0"} if row["part"] == "test" else row, "of the test part are negative"),
        (lambda row: row | {"score": "nan"} if row["part"] == "test" else row, "are NaN or infinite"),
        (lambda row: row | {"label": ""} if row["part"] == "test" else row, "the test part has no labelled row"),
        (lambda row: row | {"score": "inf"} if row["id"] == "image-300.png" else row, "infinite: 1 of 80"),
    ],
)
def test_parts_that_cannot_be_judged_leave_a_report_with_the_reason(altered, change, why):
    run = altered(change)
    document = run_document(evaluate_run(run, cases=2), command=None)
    said = [block.why for section in document.sections for block in section.blocks if isinstance(block, Missing)]
    assert any(why in text for text in said), said


def test_a_patient_in_two_parts_is_a_leak(altered):
    findings = evaluate_run(altered(lambda row: row | {"group": "p0"} if row["id"] == "image-300.png" else row))
    assert findings.leaks.patients_in_two_parts == 1
    assert "too good" in str(run_document(findings, command=None).sections)


def test_unfinished_and_foreign_folders_are_refused(run_folders, tmp_path):
    with pytest.raises(ValueError, match="no finished run"):
        write_report(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        write_report(run_folders / "ce", out=tmp_path / "file")


def test_a_baseline_on_other_samples_is_explained_not_crashed(run_folders, altered):
    run = altered(lambda row: row | {"label": "1"} if row["id"] in ("image-250.png", "image-251.png") else row)
    found = evaluate_run(run, baseline=run_folders / "ce").baseline
    assert "labels differ" in found.why
