"""What the report says, recomputed by counting: AUC over pairs, thresholds from validation, subgroups, calibration."""

import csv
import json

import numpy as np
import pytest

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.reporting.evaluation.findings import Absent, AucResult
from deepauc.reporting.evaluation.label import FEW, evaluate_label
from deepauc.reporting.evaluation.sample import Sample
from deepauc.reporting.evaluation.subgroups import Metadata, group_rows, read_metadata
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.run import Run
from deepauc.training.run.scores import read_scores


def rows_of(run, part):
    with (run / "scores.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["part"] == part]


def numbers(rows, name):
    return np.array([float(row[name] or "nan") for row in rows])


def area(scores, labels):
    pairs = scores[labels == 1][:, None] - scores[labels == 0]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


@pytest.fixture(scope="session")
def binary(written_reports):
    return written_reports["auc"].findings


def test_the_headline_is_the_share_of_pairs_in_the_right_order(binary, run_folders):
    rows = rows_of(run_folders / "auc", "test")
    scores, labels = numbers(rows, "score"), numbers(rows, "label")
    (label,) = binary.labels
    assert binary.judged_part == label.part == "test"
    assert label.auc.headline.value == pytest.approx(area(scores, labels), abs=1e-12)
    assert (label.counts.rows, label.counts.positives) == (len(labels), labels.sum())
    assert label.counts.patients == len({row["group"] for row in rows}) < len(rows)


def test_intervals_respect_patients(binary, run_folders):
    rows = rows_of(run_folders / "auc", "test")
    scores, labels = numbers(rows, "score"), numbers(rows, "label")
    groups = np.array([row["group"] for row in rows])
    auc = binary.labels[0].auc
    for found, options in (
        (auc.delong, {}),
        (auc.delong_by_patient, {"groups": groups}),
        (auc.bootstrap, {"groups": groups, "method": "bootstrap"}),
    ):
        expected = auroc_interval(scores, labels, **options)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert auc.headline == auc.delong_by_patient


def test_thresholds_come_from_validation_and_are_judged_on_test(binary, run_folders):
    validation, test = (rows_of(run_folders / "auc", part) for part in ("validation", "test"))
    for row in binary.labels[0].operating_points:
        scores, labels = numbers(validation, "score"), numbers(validation, "label")
        cleared = np.mean(scores[labels == 0] < row.threshold)
        assert cleared >= row.asked_specificity
        lower = max(s for s in scores if s < row.threshold)
        assert np.mean(scores[labels == 0] < lower) < row.asked_specificity  # and no lower score would do
        scores, labels = numbers(test, "score"), numbers(test, "label")
        assert row.sensitivity.value == np.mean(scores[labels == 1] >= row.threshold)
        assert row.specificity.value == np.mean(scores[labels == 0] < row.threshold)
        assert row.true_positives == np.sum((scores >= row.threshold) & (labels == 1))
        assert row.false_positives == np.sum((scores >= row.threshold) & (labels == 0))


def test_thresholds_and_recalibration_are_those_of_the_bundle(binary, run_folders):
    bundle = json.loads((run_folders / "auc" / "bundle.json").read_text())
    label = binary.labels[0]
    found = [row.threshold for row in (*label.operating_points, *label.sensitivity_points)]
    assert found == list(bundle["thresholds"]["spot"].values())
    assert binary.labels[0].calibration.recalibration == pytest.approx(bundle["calibration"]["spot"])


def test_calibration_before_is_the_sigmoid_of_the_output(binary, run_folders):
    rows = rows_of(run_folders / "auc", "test")
    scores, labels = numbers(rows, "score"), numbers(rows, "label")
    brier = np.mean((1 / (1 + np.exp(-scores)) - labels) ** 2)
    assert binary.labels[0].calibration.before.brier == pytest.approx(brier)
    line = binary.labels[0].calibration.recalibration
    after = np.mean((1 / (1 + np.exp(-line["slope"] * scores - line["intercept"])) - labels) ** 2)
    assert binary.labels[0].calibration.after.brier == pytest.approx(after)


def test_the_baseline_is_tested_on_the_same_rows(binary, run_folders):
    ours, theirs = (rows_of(run_folders / name, "test") for name in ("auc", "ce"))
    groups = [row["group"] for row in ours]
    expected = compare_auroc(numbers(ours, "score"), numbers(theirs, "score"), numbers(ours, "label"), groups=groups)
    (found,) = binary.baseline.labels
    assert found.difference.value == pytest.approx(expected.difference)
    assert found.p_value == pytest.approx(expected.p_value)
    assert binary.baseline.objective == "cross-entropy"
    assert [stage.kept for stage in binary.stages].count(True) == 1


def test_the_first_stage_is_the_baseline_where_training_kept_it(run_folders, spots_task, tmp_path):
    import shutil

    from deepauc.reporting.evaluation.run import evaluate_run

    shutil.copytree(run_folders / "auc", tmp_path / "auc")
    assert isinstance(evaluate_run(tmp_path / "auc").baseline, Absent)
    baseline_run(Run(tmp_path / "auc"), spots_task())
    assert evaluate_run(tmp_path / "auc").baseline.objective == "cross-entropy"


def test_subgroups_are_counted_by_hand(binary, run_folders, spots_task):
    rows = rows_of(run_folders / "auc", "test")
    task = spots_task()
    sex = dict(zip(task.ids.tolist(), task.metadata["sex"].tolist(), strict=True))
    (by_sex,) = [one for one in binary.subgroups if one.column == "sex"]
    assert [row.group for row in by_sex.rows] == ["f", "m"]
    for row in by_sex.rows:
        chosen = [r for r in rows if sex[r["id"]] == row.group]
        scores, labels = numbers(chosen, "score"), numbers(chosen, "label")
        assert (row.rows, row.positives) == (len(chosen), labels.sum())
        assert row.auc.value == pytest.approx(area(scores, labels))
        assert row.auc.low < row.auc.value < row.auc.high
    (by_age,) = [one for one in binary.subgroups if one.column == "age"]
    assert sum(row.rows for row in by_age.rows) == len(rows)
    assert len(by_age.rows) == 4


def test_several_labels_leave_out_what_is_missing(written_reports, run_folders):
    findings = written_reports["multi"].findings
    rows = rows_of(run_folders / "multi", "test")
    values = []
    for label in findings.labels:
        scores, labels = numbers(rows, f"score:{label.name}"), numbers(rows, f"label:{label.name}")
        known = ~np.isnan(labels)
        assert label.counts.missing == (~known).sum()
        values.append(area(scores[known], labels[known]))
        assert label.auc.headline.value == pytest.approx(values[-1])
    assert sum(label.counts.missing for label in findings.labels) == 1
    assert findings.mean_auc == pytest.approx(np.mean(values))


def test_the_largest_errors_are_named(binary, run_folders):
    rows = rows_of(run_folders / "auc", "test")
    negatives = sorted((r for r in rows if r["label"] == "0"), key=lambda r: -float(r["score"]))
    found = [case.id for case in binary.cases if case.kind.startswith("negative")]
    assert found == [row["id"] for row in negatives[:3]]
    positives = numbers([r for r in rows if r["label"] == "1"], "score")
    assert binary.cases[0].wrong_side_of == np.mean(positives < binary.cases[0].score)


def sample(positives, negatives, groups=None, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.repeat([1.0, 0.0], [positives, negatives])
    return Sample(scores=generator.normal(size=labels.size) + labels, labels=labels, groups=groups)


@pytest.mark.parametrize(("positives", "warned"), [(FEW, True), (FEW + 1, False)])
def test_few_positives_are_said(positives, warned):
    found = evaluate_label(sample(positives, 60), name="x", part="test", validation=Absent("none"), curves=False)
    assert bool(found.cautions) is warned
    if warned:
        assert f" {positives} positive" in found.cautions[0]


def test_many_positives_of_few_patients_are_said():
    groups = np.array([f"p{i % 8}" if i < 40 else f"q{i}" for i in range(100)])
    found = evaluate_label(sample(40, 60, groups), name="x", part="test", validation=Absent("none"), curves=False)
    assert " 8 patients" in found.cautions[0]


@pytest.mark.parametrize(("negatives", "warned"), [(3, True), (19, True), (20, False)])
def test_few_negatives_for_thresholds_are_said(negatives, warned):
    """Warned where not one negative of validation lies above the threshold for 95 %; its positives are enough."""
    validation = sample(25, negatives)
    found = evaluate_label(sample(40, 60), name="x", part="test", validation=validation, curves=False)
    cut = found.operating_points[2].threshold
    assert bool((validation.scores[validation.labels == 0] >= cut).any()) is not warned
    assert [f" {negatives} negative" in text for text in found.cautions] == ([True] if warned else [])


@pytest.mark.parametrize(("positives", "warned"), [(3, True), (19, True), (20, False)])
def test_few_positives_for_thresholds_are_said(positives, warned):
    """Warned where not one positive of validation lies below the threshold for 95 % sensitivity."""
    validation = sample(positives, 30)
    found = evaluate_label(sample(40, 60), name="x", part="test", validation=validation, curves=False)
    cut = found.sensitivity_points[1].threshold
    assert bool((validation.scores[validation.labels == 1] < cut).any()) is not warned
    assert any("fixed sensitivity" in text for text in found.cautions) is warned


def test_many_negatives_of_few_patients_for_thresholds_are_said():
    groups = np.array([f"p{i}" for i in range(40)] + [f"q{i % 4}" for i in range(60)])
    validation = sample(40, 60, groups)
    found = evaluate_label(sample(40, 60), name="x", part="test", validation=validation, curves=False)
    assert " 4 patients" in found.cautions[0]


@pytest.mark.parametrize(
    ("scores", "labels", "why"),
    [
        ([0.1, 0.2], [0, 0], "all 2 labelled rows of the test part are negative"),
        ([0.1, np.nan], [0, 1], "scores in the test part that are NaN or infinite: 1 of 2"),
        ([0.1, 0.2], [np.nan, np.nan], "the test part has no labelled row"),
        ([], [], "the test part has no labelled row"),
    ],
)
def test_what_cannot_be_judged_says_why(scores, labels, why):
    one = Sample(scores=np.array(scores, dtype=float), labels=np.array(labels, dtype=float))
    found = evaluate_label(one, name="x", part="test", validation=one)
    assert why in found.auc.why


@pytest.mark.parametrize("patients", [False, True])
def test_a_single_positive_row_or_patient_has_an_auc_and_all_of_the_interval(patients):
    one = sample(4, 60, np.array(["p"] * 4 + [f"q{i // 2}" for i in range(60)])) if patients else sample(1, 60)
    found = evaluate_label(one, name="x", part="test", validation=Absent("none"), curves=False)
    headline = found.auc.headline
    assert headline.value == pytest.approx(auroc(one.scores, one.labels))
    assert (headline.low, headline.high) == (0.0, 1.0)
    assert (found.auc.bootstrap.low, found.auc.bootstrap.high) == (0.0, 1.0)
    (caution,) = found.cautions
    assert ("1 patient" in caution) is patients


def test_all_negatives_of_one_patient_are_said():
    groups = np.array([f"p{i}" for i in range(40)] + ["n"] * 60)
    found = evaluate_label(sample(40, 60, groups), name="x", part="test", validation=Absent("none"), curves=False)
    assert (found.auc.headline.low, found.auc.headline.high) == (0.0, 1.0)
    assert "1 patient" in found.cautions[0]


def test_validation_of_one_class_takes_thresholds_away_and_nothing_else():
    one_class = Sample(scores=np.arange(4.0), labels=np.zeros(4))
    found = evaluate_label(sample(30, 30), name="x", part="test", validation=one_class, curves=False)
    assert isinstance(found.auc, AucResult)
    for absent in (found.operating_points, found.decision, found.calibration.after):
        assert "all 4 labelled rows of the validation part are negative" in absent.why


def test_constant_scores_have_an_interval_and_curves():
    one = Sample(scores=np.zeros(20), labels=np.repeat([1.0, 0.0], 10))
    found = evaluate_label(one, name="x", part="test", validation=one)
    assert found.auc.delong.value == 0.5
    assert found.curves.tpr[-1] == 1
    assert found.histogram.positives.sum() == pytest.approx(1)


@pytest.mark.parametrize("shift", [-1.5, -0.05, 0.0, 1.5])
def test_scores_of_the_other_class_are_told(shift):
    generator = np.random.default_rng(0)
    labels = np.arange(300) % 3 == 0
    sample = Sample(scores=generator.normal(size=300) + shift * labels, labels=labels.astype(float))
    found = evaluate_label(sample, name="ill", part="test", validation=Absent("none."), curves=False)
    told = [text for text in found.cautions if "label 0" in text]
    assert len(told) == (found.auc.headline.high < 0.5) == (shift == -1.5)


def test_columns_become_groups():
    words = np.array(["a", "b", "a", "b", "", "nan"])
    assert group_rows(words)[0] == ["a", "b", "(missing)"]
    assert group_rows(words)[1].tolist() == [0, 1, 0, 1, 2, 2]
    assert group_rows(np.array([f"name {i}" for i in range(10)])) is None
    assert group_rows(np.array(["", ""])) is None
    names, group_of = group_rows(np.array(["1", "2", "1.0", "02", "1"]))  # as Excel and pandas write them
    assert (names, group_of.tolist()) == (["1", "2"], [0, 1, 0, 1, 0])
    few = group_rows(np.array(["10", "9", "10", "9"]))
    assert few[0] == ["9", "10"]  # numbers in their own order
    names, group_of = group_rows(np.array([str(i) for i in range(100)]))
    assert np.bincount(group_of).tolist() == [25, 25, 25, 25]
    assert names[0].startswith("up to")
    many = np.repeat([f"v{i:02}" for i in range(20)], 3)
    assert group_rows(many)[0][-1] == "(the 8 rarer values)"


@pytest.mark.parametrize("cell", ["", "nan", "NA", "n/a", "Null", "none"])
def test_what_is_no_label_is_no_value_of_a_subgroup_either(tmp_path, cell):
    scores = tmp_path / "scores.csv"
    scores.write_text(f"label,score\n1,0.5\n{cell},0.25\n")
    assert np.isnan(read_scores(scores).labels[1, 0])
    assert group_rows(np.array(["a", "b", "a", "b", cell, cell]))[0] == ["a", "b", "(missing)"]


def test_metadata_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text("file,sex\na,f\nb,m\n")
    with pytest.raises(ValueError, match="name the ids with --id-column"):
        read_metadata(path, id_column="id")
    metadata = read_metadata(path, id_column="file")
    assert metadata.aligned(np.array(["b", "z"]))["sex"].tolist() == ["m", ""]
    with pytest.raises(ValueError, match=r"no id of scores\.csv"):
        metadata.aligned(np.array(["y", "z"]))
    with pytest.raises(ValueError, match="twice"):
        Metadata(["a", "a"], {"sex": ["f", "m"]}).aligned(np.array(["a"]))
    with pytest.raises(ValueError, match="1 entries for 2 ids"):
        Metadata(["a", "b"], {"sex": ["f"]})
    path.write_text("file,sex\na,f\nb\nc,m\n")
    with pytest.raises(ValueError, match=r"line 3: 1 fields under 2 column names \(1 such rows\)"):
        read_metadata(path, id_column="file")  # b would be counted as `missing`


def test_metadata_in_latin_1_are_read_as_the_table_was(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_bytes("Datei;Größe\na;3,5\nb;4\n".encode("latin-1"))
    assert list(read_metadata(path, id_column="Datei").columns) == ["Größe"]


def test_a_group_of_one_class_says_so(binary):
    rows = [row for one in binary.subgroups for row in one.rows]
    assert all(isinstance(row.auc, Estimate | Absent) for row in rows)
