"""Average precision, Brier score and calibration error have intervals wherever the report shows them."""

import csv
import json
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, brier_score_loss

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.blocks import Beside, DataTable, Missing, Paragraph
from deepauc.reporting.document.label_sections import interval_table, label_topics
from deepauc.reporting.evaluation.findings import Absent, CalibrationState, to_json
from deepauc.reporting.evaluation.label import evaluate_label
from deepauc.reporting.evaluation.sample import Sample
from deepauc.reporting.figures.label import interval_text


def rows_of(run, part):
    with (run / "scores.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["part"] == part]


def states_of(label):
    states = label.calibration.before, label.calibration.after
    assert all(isinstance(state, CalibrationState) for state in states)
    return states


def intervals_of(label):
    found = [(label.auc.average_precision, label.auc.average_precision_interval)]
    for state in states_of(label):
        found.append((state.brier, state.brier_interval))
        found.append((state.expected_calibration_error, state.expected_calibration_error_interval))
    return found


def every_interval(value, path=""):
    """All of the tree of findings by their place in it, so that one which comes later is looked at too."""
    if isinstance(value, Estimate):
        return {path: value}
    found = {}
    if is_dataclass(value):
        for one in fields(value):
            found |= every_interval(getattr(value, one.name), f"{path}.{one.name}")
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            found |= every_interval(one, f"{path}[{number}]")
    return found


def sample(positives=40, negatives=120, *, groups=None, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.repeat([1.0, 0.0], [positives, negatives])
    return Sample(scores=generator.normal(size=labels.size) + 1.5 * labels, labels=labels, groups=groups)


def judged(one, **options):
    return evaluate_label(one, name="x", part="test", validation=sample(seed=1), curves=False, **options)


def test_limits_are_those_of_patients_drawn_by_index(written_reports, run_folders):
    rows = rows_of(run_folders / "auc", "test")
    scores, labels = (np.array([float(row[name]) for row in rows]) for name in ("score", "label"))
    groups = np.array([row["group"] for row in rows])
    (label,) = written_reports["auc"].findings.labels
    line = label.calibration.recalibration
    p = 1 / (1 + np.exp(-line["slope"] * scores - line["intercept"]))
    members = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    rng, precision, brier = np.random.default_rng(5), [], []
    while len(brier) < 1000:
        drawn = np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))])
        if 0 < labels[drawn].sum() < drawn.size:
            precision.append(average_precision_score(labels[drawn], scores[drawn]))
            brier.append(brier_score_loss(labels[drawn], p[drawn]))
    after = label.calibration.after
    for found, slow in ((label.auc.average_precision_interval, precision), (after.brier_interval, brier)):
        low, high = np.quantile(slow, [0.025, 0.975])
        assert [found.low, found.high] == pytest.approx([low, high], abs=0.12 * (high - low))


@pytest.mark.parametrize("run", ["auc", "multi"])
def test_every_figure_is_inside_its_interval_on_the_page_and_in_the_record(written_reports, parse_page, run):
    report = written_reports[run]
    page = parse_page(report.html.read_text(encoding="utf-8")).text("main").replace("\u00a0", " ")
    markdown = report.markdown.read_text(encoding="utf-8").replace("\\", "")
    record = json.loads(report.json.read_text(encoding="utf-8"))
    for label, written in zip(report.findings.labels, record["labels"], strict=True):
        for value, limits in intervals_of(label):
            assert limits.value == pytest.approx(value, abs=1e-12)
            assert 0 <= limits.low <= value <= limits.high <= 1
            assert limits.low < limits.high
            assert interval_text(limits) in page
            assert interval_text(limits) in markdown
        assert isinstance(written["auc"]["average_precision"], float)  # the figures keep their names
        assert written["auc"]["average_precision_interval"] == to_json(label.auc.average_precision_interval)
        for when in ("before", "after"):
            state, found = written["calibration"][when], getattr(label.calibration, when)
            assert (state["brier"], state["expected_calibration_error"]) == (
                found.brier,
                found.expected_calibration_error,
            )
            for name in ("brier_interval", "expected_calibration_error_interval"):
                assert set(state[name]) == {"value", "low", "high"}
                assert state[name] == to_json(getattr(found, name))


def test_the_table_of_several_labels_has_them_too(written_reports):
    from deepauc.reporting.document.sections import run_document

    findings = written_reports["multi"].findings
    document = run_document(findings, command=None)
    (table,) = [block for block in document.sections[0].blocks if isinstance(block, DataTable)]
    for label, row in zip(findings.labels, table.rows, strict=True):
        cells = dict(zip(table.header, row, strict=True))
        precision, brier = (cells[f"{name} [95 % interval]"] for name in ("Average precision", "Brier, recalibrated"))
        assert (precision.text, precision.value) == (
            interval_text(label.auc.average_precision_interval),
            label.auc.average_precision,
        )
        assert (brier.text, brier.value) == (
            interval_text(label.calibration.after.brier_interval),
            label.calibration.after.brier,
        )


def test_patients_with_several_rows_widen_every_interval():
    one = sample()
    four = Sample(scores=np.tile(one.scores, 4), labels=np.tile(one.labels, 4))
    by_patient = Sample(scores=four.scores, labels=four.labels, groups=np.tile(np.arange(160).astype(str), 4))
    narrow, wide = every_interval(judged(four)), every_interval(judged(by_patient))
    assert len(narrow) > 10
    own = {path for path in wide.keys() - narrow.keys() if not path.startswith(".patients[")}
    assert own == {".auc.delong_by_patient"}
    for path in narrow.keys() - {".auc.delong"}:  # which is the one that takes rows as independent, and says so
        assert wide[path].high - wide[path].low > 1.4 * (narrow[path].high - narrow[path].low), path
    for text, found in (("over rows", judged(four)), ("over patients", judged(by_patient))):
        words = " ".join(block.text for block in interval_table(found) if isinstance(block, Paragraph))
        assert f"bootstrap {text}, 1,000 samples" in words
        (calibration,) = [blocks for anchor, _, blocks in label_topics(found, "", other=None, objective="")][2]
        assert isinstance(calibration, Beside)
        assert any(isinstance(block, Paragraph) and text in block.text for block in calibration.left)


def test_one_patient_a_row_and_no_patients_are_the_same():
    plain, named = sample(), sample(groups=np.arange(160).astype(str))
    assert intervals_of(judged(plain)) == intervals_of(judged(named))


def test_missing_labels_take_no_part():
    one = sample()
    more = Sample(scores=np.append(one.scores, [9.0, -9.0]), labels=np.append(one.labels, [np.nan, np.nan]))
    assert intervals_of(judged(more)) == intervals_of(judged(one))


def test_one_positive_row_or_patient_leaves_the_figures_without_limits_and_says_why():
    one = judged(sample(1, 60))
    few = sample(20, 60, groups=np.array(["a"] * 20 + [f"b{i}" for i in range(60)]))
    for found, why in (
        (one, "two positives and two negatives; there are 1 and 60"),
        (judged(few), "two groups (patients)"),
    ):
        for state in states_of(found):
            assert isinstance(state.brier, float)
            for limits in (state.brier_interval, state.expected_calibration_error_interval):
                assert isinstance(limits, Absent)
                assert why in limits.why
        (beside,) = label_topics(found, "", other=None, objective="")[2][2]
        (said,) = [block for block in beside.left if isinstance(block, Missing)]
        assert why in said.why
        (table,) = [block for block in beside.left if isinstance(block, DataTable)]
        assert table.rows[0][1].text == f"{found.calibration.before.brier:.3f}"
        assert "Brackets" not in " ".join(block.text for block in beside.left if isinstance(block, Paragraph))
        assert to_json(state)["brier_interval"] == {"absent": state.brier_interval.why}


def test_one_class_has_neither_figures_nor_limits():
    found = judged(Sample(scores=np.arange(5.0), labels=np.zeros(5)))
    assert "are negative" in found.auc.why
    assert found.calibration == found.auc


def test_a_perfect_ranking_has_no_interval_of_width_zero():
    one = Sample(scores=np.arange(60.0) - 40, labels=np.repeat([0.0, 1.0], [40, 20]))
    found = judged(one).auc.average_precision_interval
    assert isinstance(found, Estimate)
    assert found.low < 0.9
    assert found.high == 1
