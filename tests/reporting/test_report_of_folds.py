"""The report of a run with folds, against loops over its scores.csv."""

import csv
import json

import numpy as np
import pytest

from deepauc.metrics.calibration import brier_score
from deepauc.metrics.crossval.folds import fold_auroc, fold_auroc_interval
from deepauc.metrics.operating_points import threshold_at_sensitivity, threshold_at_specificity
from deepauc.metrics.partial import Region, partial_auroc
from deepauc.reporting.document.blocks import Beside, Caution, DataTable, Gallery, Heading, Headline, Missing
from deepauc.reporting.document.sections import run_document
from deepauc.reporting.evaluation.findings import Absent
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.evaluation.subgroups import Metadata
from deepauc.reporting.folds import AVERAGE_AT_THRESHOLDS
from deepauc.reporting.operating_card import operating_card
from deepauc.reporting.report import write_report


def held_out(folder, part="oof"):
    with (folder / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == part]
    scores = np.array([float(row["score"]) for row in rows], dtype=np.float32).astype(np.float64)
    labels = np.array([float(row["label"]) for row in rows])
    return rows, scores, labels, np.array([row["fold"] for row in rows])


@pytest.fixture(scope="module")
def folder(fold_run):
    return fold_run()


@pytest.fixture(scope="module")
def findings(folder, spots_task):
    task = spots_task()
    return evaluate_run(folder, metadata=Metadata(task.ids, {"sex": task.metadata["sex"]}), cases=3)


def at_thresholds_of_the_other_folds(scores, labels, folds, choose, share):
    """tp, fp, tn, fn, counted row by row."""
    counts = [0, 0, 0, 0]
    for score, label, fold in zip(scores, labels, folds, strict=True):
        others = folds != fold
        called = score >= choose(scores[others], labels[others], share)
        counts[{(True, 1): 0, (True, 0): 1, (False, 0): 2, (False, 1): 3}[bool(called), int(label)]] += 1
    return counts


def counts_of(row):
    return [row.true_positives, row.false_positives, row.true_negatives, row.false_negatives]


def test_operating_points_are_counted_at_the_thresholds_of_the_other_folds(folder, findings):
    _, scores, labels, folds = held_out(folder)
    (label,) = findings.labels
    for row in label.operating_points:
        expected = at_thresholds_of_the_other_folds(
            scores, labels, folds, threshold_at_specificity, row.asked_specificity
        )
        assert counts_of(row) == expected
        assert row.threshold == threshold_at_specificity(scores, labels, row.asked_specificity)
    for row in label.sensitivity_points:
        expected = at_thresholds_of_the_other_folds(
            scores, labels, folds, threshold_at_sensitivity, row.asked_sensitivity
        )
        assert counts_of(row) == expected
    assert [row.asked_sensitivity for row in label.sensitivity_points] == [0.9, 0.95]


def test_patients_are_one_row_each_in_their_fold(folder, findings):
    rows, scores, labels, folds = held_out(folder)
    groups = np.array([row["group"] for row in rows])
    names = sorted(set(groups))
    (label,) = findings.labels
    for level in label.patients:
        score_of = max if level.score == "highest" else (lambda many: float(np.mean(list(many))))
        own = np.array([score_of(scores[groups == name]) for name in names])
        ill = np.array([max(labels[groups == name]) for name in names])
        of_fold = np.array([folds[groups == name][0] for name in names])
        assert level.auc.value == pytest.approx(fold_auroc(own, ill, of_fold))
        expected = at_thresholds_of_the_other_folds(own, ill, of_fold, threshold_at_specificity, 0.9)
        assert counts_of(next(row for row in level.operating_points if row.asked_specificity == 0.9)) == expected


def test_the_auc_is_within_folds_clustered_and_corrected_for_the_choice(folder, findings):
    rows, scores, labels, folds = held_out(folder)
    (label,) = findings.labels
    clustered = fold_auroc_interval(scores, labels, folds, groups=[row["group"] for row in rows])
    assert label.auc.delong_by_patient == clustered.floats()
    assert label.auc.bootstrap is None
    assert label.auc.headline.value == pytest.approx(clustered.value - 0.001)
    assert [row.auc.value for row in findings.folds] == pytest.approx(
        [fold_auroc(scores[folds == fold], labels[folds == fold], folds[folds == fold]) for fold in ("1", "2", "3")]
    )


def test_probabilities_of_all_folds_are_judged_together(folder, findings):
    _, scores, labels, _ = held_out(folder)
    (label,) = findings.labels
    assert isinstance(label.calibration.before, Absent)
    assert label.calibration.after.brier == pytest.approx(brier_score(1 / (1 + np.exp(-scores)), labels))
    treat_all = labels.mean() - (1 - labels.mean()) * label.decision.thresholds / (1 - label.decision.thresholds)
    np.testing.assert_allclose(label.decision.treat_all, treat_all)


def test_subgroups_are_ranked_within_folds_and_counted_at_their_thresholds(folder, findings, spots_task):
    rows, scores, labels, folds = held_out(folder)
    task = spots_task()
    sex_of = dict(zip(task.ids.tolist(), task.metadata["sex"].tolist(), strict=True))
    sex = np.array([sex_of[row["id"]] for row in rows])
    cuts = {fold: threshold_at_specificity(scores[folds != fold], labels[folds != fold], 0.9) for fold in "123"}
    called = np.array([score >= cuts[fold] for score, fold in zip(scores, folds, strict=True)])
    (found,) = findings.subgroups
    for row in found.rows:
        own = sex == row.group
        assert row.auc.value == pytest.approx(fold_auroc(scores[own], labels[own], folds[own]))
        assert row.sensitivity.value == pytest.approx(called[own & (labels == 1)].mean())
        assert row.specificity.value == pytest.approx((~called)[own & (labels == 0)].mean())


def test_errors_are_the_largest_within_their_fold(folder, findings):
    rows, scores, labels, folds = held_out(folder)
    shares = {}
    for row, score, label, fold in zip(rows, scores, labels, folds, strict=True):
        if label == 0:
            shares[row["id"]] = float((scores[(folds == fold) & (labels == 1)] < score).mean())
    cases = [case for case in findings.cases if case.kind.startswith("negative")]
    assert [case.wrong_side_of for case in cases] == sorted(shares.values(), reverse=True)[:3]
    assert all(shares[case.id] == case.wrong_side_of for case in cases)


def test_one_networks_scale_changes_only_what_needs_one_scale(fold_run, findings):
    def shift(rows):
        for row in rows:
            if row["fold"] == "2":
                row["score"] = str(float(row["score"]) + 30)

    moved = evaluate_run(fold_run(edit=shift)).labels[0]
    (label,) = findings.labels
    assert moved.auc.delong.value == pytest.approx(label.auc.delong.value)
    np.testing.assert_allclose(moved.curves.tpr, label.curves.tpr)
    np.testing.assert_allclose(moved.curves.precision, label.curves.precision)
    assert moved.calibration.after.brier > label.calibration.after.brier + 0.1  # probabilities must have one


def test_a_test_part_is_judged_by_the_average_at_the_thresholds_of_all_folds(fold_run):
    folder = fold_run(test=True)
    findings = evaluate_run(folder)
    assert findings.judged_part == "oof"
    (label,) = findings.average_on_test
    _, oof, of_oof, _ = held_out(folder)
    _, scores, labels, _ = held_out(folder, "test")
    for row in label.operating_points:
        cut = threshold_at_specificity(oof, of_oof, row.asked_specificity)
        assert row.threshold == cut
        assert row.true_positives == int(((scores >= cut) & (labels == 1)).sum())
        assert row.true_negatives == int(((scores < cut) & (labels == 0)).sum())
    assert label.calibration.after.brier == pytest.approx(brier_score(1 / (1 + np.exp(-scores)), labels))
    document = run_document(findings, command=None)
    assert AVERAGE_AT_THRESHOLDS not in [one.text for one in document.sections[0].blocks if isinstance(one, Caution)]
    section = next(one for one in document.sections if one.anchor == "average-on-test")
    assert {block.anchor for block in section.blocks if isinstance(block, Heading)} >= {"test-1-curves"}


def test_the_report_has_every_section_that_one_split_has(findings, written_reports):
    document, other = (run_document(one, command=None) for one in (findings, written_reports["auc"].findings))
    anchors = {section.anchor for section in document.sections}
    assert {section.anchor for section in other.sections} - anchors <= {"baseline", "trivial"}
    assert "candidates" in anchors
    for anchor in ("curves", "thresholds", "calibration", "decision", "subgroups", "variation"):
        section = next(one for one in document.sections if one.anchor == anchor)
        assert any(isinstance(block, Gallery | Beside) for block in section.blocks), anchor
    result = document.sections[0].blocks
    assert isinstance(result[0], Headline)
    assert next(block for block in result if isinstance(block, DataTable)).caption.startswith("Operating points")


def test_html_markdown_and_json_say_the_same_numbers(written_reports):
    written = written_reports["folds"]
    findings = json.loads(written.json.read_text(encoding="utf-8"))
    (label,) = findings["labels"]
    pages = [page.read_text(encoding="utf-8") for page in (written.html, written.markdown)]
    for row in (*label["operating_points"], *label["sensitivity_points"]):
        assert set(row["fold_thresholds"]) == {"1", "2", "3"}
        for page in pages:
            assert f"{row['true_positives']:,}, {row['false_negatives']:,}" in page
    for row in findings["folds"]:
        for page in pages:
            assert f"{row['auc']['value']:.3f}" in page
    assert label["curves"]["each_roc"]
    assert findings["average_on_test"][0]["auc"]["delong"]["value"] > 0


def test_the_average_was_not_judged_at_the_thresholds(findings, written_reports):
    said = [
        block.text for block in run_document(findings, command=None).sections[0].blocks if isinstance(block, Caution)
    ]
    assert AVERAGE_AT_THRESHOLDS in said
    other = run_document(written_reports["auc"].findings, command=None).sections[0].blocks
    assert AVERAGE_AT_THRESHOLDS not in [block.text for block in other if isinstance(block, Caution)]


def test_too_few_positives_are_said_in_place_of_an_auc(fold_run):
    def few(rows):
        for row in [one for one in rows if float(one["label"]) == 1][3:]:
            row["label"] = "0"

    findings = evaluate_run(fold_run(edit=few))
    assert findings.labels[0].too_few is not None
    assert run_document(findings, command=None).sections[0].blocks[0].value == findings.labels[0].too_few


def test_a_label_with_too_few_positives_is_left_out_of_the_mean(fold_run):
    def few(rows):
        for row in [one for one in rows if one["label:spot"] in ("1", "1.0")][4:]:
            row["label:spot"] = "0"

    findings = evaluate_run(fold_run("multi", edit=few))
    assert findings.left_out_of_mean == ("spot",)
    assert findings.mean_auc == pytest.approx(np.mean([one.auc.headline.value for one in findings.labels[1:]]))


def test_a_partial_auc_is_that_of_the_mean_curve(folder):
    _, scores, labels, folds = held_out(folder)
    (label,) = evaluate_run(folder, region=Region.asked(0.3, None)).labels
    expected, pairs = 0.0, 0
    for fold in "123":
        own = folds == fold
        weight = labels[own].sum() * (1 - labels[own]).sum()
        expected += weight * partial_auroc(scores[own], labels[own], max_fpr=0.3)
        pairs += weight
    assert label.partial_auc.area.value == pytest.approx(expected / pairs)
    assert label.partial_auc.area.low < expected / pairs < label.partial_auc.area.high


def test_a_baseline_with_the_same_folds_is_compared_within_them(folder, fold_run):
    def blur(rows):
        for number, row in enumerate(rows):
            row["score"] = str(float(row["score"]) + (number * 7919 % 13) / 10)

    findings = evaluate_run(folder, baseline=fold_run(edit=blur))
    (pair,) = findings.baseline.labels
    _, scores, labels, folds = held_out(folder)
    assert pair.auc == pytest.approx(fold_auroc(scores, labels, folds))
    assert "baseline" in {section.anchor for section in run_document(findings, command=None).sections}


def test_repeats_are_set_beside_the_run(folder, fold_run, run_folders):
    def blur(rows):
        for number, row in enumerate(rows):
            row["score"] = str(float(row["score"]) + (number * 7919 % 13) / 10)

    other = fold_run(seed=5, edit=blur)
    findings = evaluate_run(folder, repeats=[other])
    assert [row.seed for row in findings.repeats] == [0, 5]
    assert findings.repeats[0].auc == findings.labels[0].auc.headline
    assert findings.repeats[1].auc != findings.repeats[0].auc
    section = next(one for one in run_document(findings, command=None).sections if one.anchor == "variation")
    assert sum(isinstance(block, Beside) for block in section.blocks) == 2
    assert not any(isinstance(block, Missing | Caution) for block in section.blocks)
    with pytest.raises(ValueError, match="name runs of one table"):
        evaluate_run(folder, repeats=[run_folders / "auc"])


def test_repeats_of_one_split(run_folders):
    findings = evaluate_run(run_folders / "auc", repeats=[run_folders / "ce"])
    assert findings.repeats[0].auc == findings.labels[0].auc.headline
    assert [row.same_recipe for row in findings.repeats] == [True, False]


def test_the_operating_card_has_the_same_points(folder, findings):
    card = operating_card(folder)
    (label,), (ours,) = card.labels, findings.labels
    assert [counts_of(row) for row in label.operating_points] == [counts_of(row) for row in ours.operating_points]
    assert [counts_of(row) for row in label.sensitivity_points] == [counts_of(row) for row in ours.sensitivity_points]


def test_a_patient_in_two_folds_is_a_leak(fold_run):
    def split(rows):
        first = next(row for row in rows if row["fold"] == "1")
        first["group"] = next(row for row in rows if row["fold"] == "2")["group"]

    findings = evaluate_run(fold_run(edit=split))
    assert findings.leaks.patients_in_two_parts == 1


def test_figures_are_written_once_for_each_picture(folder, tmp_path):
    written = write_report(folder, out=tmp_path / "out")
    names = [path.name for path in written.figures]
    assert len(names) == len(set(names))
    assert {"roc.png", "pr.png", "reliability.png", "decision-curve.png", "folds-1-auc.png"} <= set(names)
