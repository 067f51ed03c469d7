"""Where the table's rows went, and what has no interval: said in the report."""

from dataclasses import replace

import numpy as np
import pytest

from deepauc.metrics.decisions import DecisionCurve, decision_curve
from deepauc.reporting.document.background_sections import data_section, training_section
from deepauc.reporting.document.blocks import Beside, DataTable, Facts
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.evaluation.label import THRESHOLDS
from deepauc.reporting.figures.canvas import render
from deepauc.reporting.figures.history import marked_points
from deepauc.reporting.figures.label import decision_picture, ranges_text, useful_ranges

DATA = {"rows": 600, "labelled": 586, "unlabelled": 12, "skipped_rows": [42, 43], "sets_of_identical_inputs": 1}


def rows_of_the_table(findings, data):
    section = data_section(replace(findings, record=findings.record.changed(data=data)))
    (facts,) = (block for block in section.blocks if isinstance(block, Facts))
    return dict(facts.pairs).get("Rows of the table")


def test_every_row_of_the_table_is_accounted_for(written_reports):
    findings = written_reports["auc"].findings
    said = "600: 586 labelled, 12 without a label, 2 left out because of a problem"
    assert rows_of_the_table(findings, {**DATA, "image_column": "file"}) == f"{said}; 1 set of identical images"
    assert rows_of_the_table(findings, {**DATA, "image_column": None}) == said  # numbers repeat by chance


@pytest.mark.parametrize("data", [None, {}, [], {**DATA, "rows": "<b>"}, {**DATA, "labelled": None}])
def test_a_record_that_does_not_say_is_no_fault(written_reports, data):
    assert rows_of_the_table(written_reports["auc"].findings, data) is None


def test_one_epoch_is_no_epochs(written_reports):
    findings = written_reports["auc"].findings
    recipe = findings.record.plain["recipe"]
    stages = [{**recipe["stages"][0], "epochs": count, "iterations": None} for count in (1, 3)]
    section = training_section(replace(findings, record=findings.record.changed(recipe={**recipe, "stages": stages})))
    table = next(block for block in section.blocks if isinstance(block, DataTable))
    assert [row[3].text for row in table.rows] == ["1 epoch", "3 epochs"]


def test_the_decision_curve_says_on_how_few_rows_it_rests(written_reports):
    findings = written_reports["auc"].findings
    document = run_document(findings, command=None)
    (section,) = (one for one in document.sections if one.title == "Decision curve")
    (beside,) = (block for block in section.blocks if isinstance(block, Beside))
    positives = findings.labels[0].counts.positives
    assert f"{positives:,} positive rows" in str(beside)


def test_a_stage_of_one_epoch_is_seen():
    nan = np.nan
    assert marked_points(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), all_of_them=False) == []
    assert marked_points(np.array([0.1, 0.2, 0.3, nan, 0.5]), all_of_them=False) == [4]  # the loss of a second stage
    assert marked_points(np.array([0.7, nan, nan, nan, 0.5, 0.4]), all_of_them=False) == [0]
    assert marked_points(np.array([0.1, nan, 0.3]), all_of_them=True) == [0, 2]


def test_a_decision_curve_of_hardly_any_positives_is_drawn():
    """At 10 of 50,000 all of the curve lies below the smallest threshold that was looked at."""
    labels = np.zeros(50_000)
    labels[:10] = 1
    curve = decision_curve(np.full(50_000, 2e-4), labels, thresholds=THRESHOLDS)
    assert useful_ranges(curve) == []
    assert "nowhere better" in render(decision_picture("decision", curve, 2e-4)).svg


def test_all_ranges_in_which_the_model_is_better_are_named():
    better = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 1], dtype=float)
    thresholds = np.arange(1, 11) / 20
    curve = DecisionCurve(thresholds=thresholds, model=better, treat_all=np.zeros(10), treat_none=np.zeros(10))
    assert ranges_text(useful_ranges(curve)) == "0.1 to 0.15, 0.3, 0.4 to 0.5"
