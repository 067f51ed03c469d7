"""What a clinician reads first, what is folded away, and what the checklist can answer by itself."""

import csv
import json
import re

import numpy as np
import pytest

from deepauc.reporting.document.blocks import Caution, DataTable, Gallery, Headline, Paragraph
from deepauc.reporting.document.checklist import AUTHOR, ITEMS
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.evaluation.findings import CohortFlow
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.evaluation.subgroups import Metadata
from deepauc.reporting.figures.cohort import cohort_picture
from deepauc.reporting.report import write_report


@pytest.fixture
def rare(run_folders, copy_to_edit, tmp_path):
    """The runs with the first label's test positives cut down to three."""

    def make(name):
        folder = copy_to_edit(run_folders / name, tmp_path / name)
        with (folder / "scores.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        column = next(key for key in rows[0] if key.startswith("label"))
        kept = [row for row in rows if row["part"] == "test" and row[column] in ("1", "1.0")]
        for row in kept[3:]:
            row[column] = "0"
        with (folder / "scores.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return folder

    return make


def section(document, anchor):
    return next(one for one in document.sections if one.anchor == anchor)


def tables(blocks):
    return [block for block in blocks if isinstance(block, DataTable)]


def test_the_auc_comes_first_and_the_operating_points_next(written_reports):
    findings = written_reports["auc"].findings
    first = run_document(findings, command=None).sections[0]
    assert isinstance(first.blocks[0], Headline)
    label, points = findings.labels[0], tables(first.blocks)[0]
    assert points.caption.startswith("Operating points")
    expected = [*label.operating_points, *label.sensitivity_points]
    assert len(points.rows) == len(expected) == 5
    for row, cells in zip(expected, points.rows, strict=True):
        named = dict(zip(points.header, cells, strict=True))
        assert named["Positives: found, missed"].text == f"{row.true_positives}, {row.false_negatives}"
        assert named["Negatives: cleared, false alarms"].text == f"{row.true_negatives}, {row.false_positives}"
        assert named["Sensitivity, %"].value == row.sensitivity.value
    by_patient = tables(first.blocks)[1]
    assert [row[1].value for row in by_patient.rows] == [80, 40, 40]
    assert [row[3].value for row in by_patient.rows[1:]] == [level.auc.value for level in label.patients]


def test_too_few_positives_are_said_in_place_of_an_auc(rare):
    written = write_report(rare("auc"))
    document = run_document(written.findings, command=None)
    told = written.findings.labels[0].too_few
    assert "(3)" in told
    assert document.sections[0].blocks[0].value == told
    for page in (written.html, written.markdown):
        assert told in page.read_text(encoding="utf-8").replace("\\(", "(")
    (label,) = json.loads(written.json.read_text(encoding="utf-8"))["labels"]
    assert label["too_few"] == told
    assert label["auc"]["delong"]["value"] > 0  # computed all the same


def test_a_label_with_too_few_is_left_out_of_the_mean_and_named(rare):
    findings = evaluate_run(rare("multi"))
    assert findings.left_out_of_mean == ("spot",)
    assert findings.mean_auc == pytest.approx(np.mean([one.auc.headline.value for one in findings.labels[1:]]))
    headline = run_document(findings, command=None).sections[0].blocks[0]
    assert "over 2 of 3 labels" in headline.label
    assert any(f"spot: {findings.labels[0].too_few}" in text for text in headline.details)


def test_the_value_that_counts_as_positive_is_named(run_folders, copy_to_edit, tmp_path):
    folder = copy_to_edit(run_folders / "auc", tmp_path / "auc")
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    record["data"] = {**(record.get("data") or {}), "positive": "malignant"}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    headline = run_document(evaluate_run(folder), command=None).sections[0].blocks[0]
    assert any("positive (malignant) and" in text for text in headline.details)


def test_what_was_kept_is_information_and_no_caution(written_reports):
    blocks = run_document(written_reports["auc"].findings, command=None).sections[0].blocks
    assert any("AUC-M" in block.text for block in blocks if isinstance(block, Paragraph))
    assert not any("AUC-M" in block.text for block in blocks if isinstance(block, Caution))


def test_training_and_decisions_are_folded_away(written_reports):
    document = run_document(written_reports["auc"].findings, command=None)
    assert [one.anchor for one in document.sections if one.folded] == ["training"]
    assert any(isinstance(block, Gallery) for block in section(document, "training").blocks)


@pytest.mark.parametrize("name", ["auc", "multi"])
def test_the_checklist_answers_what_the_run_records_and_leaves_the_rest(written_reports, name):
    (table,) = tables(section(run_document(written_reports[name].findings, command=None), "checklist").blocks)
    assert len(table.rows) == len(ITEMS)
    said = {row[0].text: row[3].text for row in table.rows}
    assert said["Outcome, reference standard, annotators"] == AUTHOR
    assert "160" in said["Level at which parts are disjoint"]
    assert "torch" in said["Software"]
    assert (said["Fairness, heterogeneity, subgroups"] == AUTHOR) == (name == "multi")  # it has no metadata


def test_every_item_of_both_lists_is_there():
    def numbers(text):
        for part in filter(None, text.split(", ")):
            low, _, high = part.partition("-")
            yield from range(int(low.rstrip("abcdef")), int((high or low).rstrip("abcdef")) + 1)

    assert {number for item in ITEMS for number in numbers(item.claim)} == set(range(1, 43))
    assert {number for item in ITEMS for number in numbers(item.tripod)} == set(range(1, 28))


def test_subgroups_are_judged_at_one_threshold(run_folders, spots_task):
    task = spots_task()
    findings = evaluate_run(run_folders / "auc", metadata=Metadata(task.ids, {"sex": task.metadata["sex"]}))
    (found,) = findings.subgroups
    ninety = next(row for row in findings.labels[0].operating_points if row.asked_specificity == 0.9)
    assert found.threshold == ninety.threshold
    with (run_folders / "auc" / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"]
    sex = dict(zip(task.ids.tolist(), task.metadata["sex"].tolist(), strict=True))
    for row in found.rows:
        mine = [one for one in rows if sex[one["id"]] == row.group]
        positives = [float(one["score"]) for one in mine if float(one["label"]) == 1]
        negatives = [float(one["score"]) for one in mine if float(one["label"]) == 0]
        assert row.sensitivity.value == np.mean(np.array(positives) >= found.threshold)
        assert row.specificity.value == np.mean(np.array(negatives) < found.threshold)


def test_the_cohort_flow_says_every_number(written_reports):
    flow = CohortFlow(
        read=400, left_out={"no label": 70, "a problem with the row": 10}, parts={"train": 160, "test": 80}
    )
    picture = cohort_picture(flow, written_reports["auc"].findings.parts)
    for number in ("400", "70: no label", "10: a problem with the row", "160 rows", "80 rows"):
        assert number in picture.alt


def test_no_path_of_the_repository_is_in_a_report(written_reports):
    for report in written_reports.values():
        for page in (report.html, report.markdown):
            assert not re.search(r"\b(results|tests|docs|src|experiments)/", page.read_text(encoding="utf-8"))
