"""Operating points at fixed sensitivity, patients as single rows, and when an AUC is not to be quoted."""

import numpy as np
import pytest

from deepauc.metrics.intervals import auroc_interval
from deepauc.reporting.evaluation.findings import Absent
from deepauc.reporting.evaluation.label import evaluate_label
from deepauc.reporting.evaluation.sample import Sample, by_patient


def sample(seed, patients=40, rows=3):
    """Three rows a patient; half of the patients have a positive row."""
    generator = np.random.default_rng(seed)
    ill = generator.random(patients) < 0.5
    labels = np.concatenate([[int(one), 0, int(one and generator.random() < 0.5)] for one in ill]).astype(float)
    groups = np.repeat([f"p{number}" for number in range(patients)], rows)
    return Sample(scores=generator.normal(size=patients * rows) + 1.5 * labels, labels=labels, groups=groups)


def judged(one, validation):
    return evaluate_label(one, name="x", part="test", validation=validation, curves=False)


@pytest.mark.parametrize("asked", [0.9, 0.95])
def test_a_fixed_sensitivity_is_that_of_validation_and_its_counts_those_of_test(asked):
    one, validation = sample(0), sample(1)
    (row,) = [row for row in judged(one, validation).sensitivity_points if row.asked_sensitivity == asked]
    positives = validation.scores[validation.labels == 1]
    assert (positives >= row.threshold).mean() >= asked
    assert (positives > row.threshold + 1e-9).mean() >= asked
    higher = np.sort(positives[positives >= row.threshold])[0] + 1e-9  # one positive more would be missed
    assert (positives >= higher).mean() < asked
    called = one.scores >= row.threshold
    counts = [int((called == call)[one.labels == y].sum()) for call, y in ((1, 1), (0, 1), (1, 0), (0, 0))]
    assert [row.true_positives, row.false_negatives, row.false_positives, row.true_negatives] == counts
    assert row.sensitivity.value == counts[0] / (counts[0] + counts[1])


@pytest.mark.parametrize("mean", [False, True])
def test_a_patient_is_one_row(mean):
    one = sample(2)
    one.labels[4] = np.nan  # a row without a label counts for nothing
    found = by_patient(one, mean=mean)
    known = ~np.isnan(one.labels)
    for place, name in enumerate(np.unique(one.groups[known])):
        rows = known & (one.groups == name)
        assert found.labels[place] == one.labels[rows].max()
        assert found.scores[place] == pytest.approx(one.scores[rows].mean() if mean else one.scores[rows].max())


def test_patients_are_judged_by_their_highest_and_by_their_mean_score():
    one, validation = sample(3), sample(4)
    highest, mean = judged(one, validation).patients
    assert (highest.score, mean.score) == ("highest", "mean")
    for level, average in ((highest, False), (mean, True)):
        patients, others = by_patient(one, mean=average), by_patient(validation, mean=average)
        expected = auroc_interval(patients.scores, patients.labels)
        assert (level.auc.value, level.auc.low) == (expected.value, expected.low)
        assert level.counts.rows == 40
        point = next(row for row in level.operating_points if row.asked_specificity == 0.9)
        assert (others.scores[others.labels == 0] < point.threshold).mean() >= 0.9
        assert point.true_positives == (patients.scores[patients.labels == 1] >= point.threshold).sum()


def test_rows_of_different_patients_are_no_patients_with_several_rows():
    one = sample(5)
    alone = Sample(scores=one.scores, labels=one.labels, groups=np.arange(len(one.labels)).astype(str))
    assert judged(alone, Absent("none")).patients == ()
    assert judged(Sample(scores=one.scores, labels=one.labels), Absent("none")).patients == ()


@pytest.mark.parametrize(("positives", "negatives"), [(9, 50), (50, 9), (10, 10)])
def test_with_hardly_a_row_of_a_class_the_auc_is_not_to_be_quoted(positives, negatives):
    labels = np.array([1.0] * positives + [0.0] * negatives)
    found = judged(Sample(scores=np.arange(len(labels)), labels=labels), Absent("none"))
    rarer = min((positives, "positives"), (negatives, "negatives"))
    expected = None if rarer[0] >= 10 else f"too few {rarer[1]} to estimate ({rarer[0]})"
    assert found.too_few == expected


def test_many_rows_of_hardly_a_patient_are_too_few_as_well():
    labels = np.array([1.0] * 30 + [0.0] * 60)
    groups = np.array([f"p{n % 3}" for n in range(30)] + [f"q{n // 2}" for n in range(60)])
    found = judged(Sample(scores=np.arange(90.0), labels=labels, groups=groups), Absent("none"))
    assert found.too_few == "too few patients with positives to estimate (3)"
