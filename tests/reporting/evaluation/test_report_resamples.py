"""Of very many rows fewer bootstrap samples are drawn, by the rows alone, and the report says so."""

import re

import numpy as np
import pytest

from deepauc.metrics.average_precision import average_precision_interval
from deepauc.metrics.intervals import auroc_interval
from deepauc.reporting.document.blocks import DataTable, Paragraph
from deepauc.reporting.document.label_sections import interval_table, label_topics
from deepauc.reporting.evaluation import resamples
from deepauc.reporting.evaluation.findings import Counts, Resamples, to_json
from deepauc.reporting.evaluation.label import evaluate_label
from deepauc.reporting.evaluation.resamples import fewer_told, resamples_of
from deepauc.reporting.evaluation.sample import Sample
from deepauc.reporting.evaluation.table import evaluate_part
from deepauc.training.run.scores import Scores


def counts(rows, positives=None, patients=None):
    positives = rows // 2 if positives is None else positives
    return Counts(
        rows=rows,
        positives=positives,
        negatives=rows - positives,
        missing=0,
        patients=patients,
        patients_with_positive=patients,
        patients_with_negative=patients,
    )


@pytest.mark.parametrize(
    ("given", "auc", "others"),
    [
        (counts(10), 2000, 1000),
        (counts(200_000), 2000, 1000),
        (counts(200_000, patients=50_000), 2000, 1000),
        (counts(400_000), 1000, 500),
        (counts(1_000_000), 400, 200),
        (counts(50_000_000), 400, 200),
        (counts(1_000_000, positives=300), 2000, 200),  # whose AUC is drawn in few cells
        (counts(1_000_000, positives=999_700), 2000, 200),
        (counts(1_000_000, positives=300, patients=1_000_000), 2000, 200),  # every row its own patient
        (counts(1_000_000, positives=300, patients=900_000), 400, 200),  # whole patients are drawn, one by one
    ],
)
def test_all_up_to_200_000_rows_and_a_fifth_at_the_least(given, auc, others):
    assert resamples_of(given) == Resamples(auc=auc, others=others)
    assert (fewer_told(given) is None) == ((auc, others) == (2000, 1000))


def test_what_is_told():
    """Rows, their limit, samples for the AUC and for the rest, and by how many per cent the draw moves an end."""

    def numbers(given):
        return re.findall(r"\d[\d,]*\d|\d", fewer_told(given))

    assert numbers(counts(400_000)) == ["400,000", "200,000", "1,000", "2,000", "500", "1,000", "6", "4"]
    assert numbers(counts(1_000_000, positives=300)) == ["1,000,000", "200,000", "200", "1,000", "10", "4"]


def test_how_far_the_draw_moves_an_end():
    for samples in (200, 1000):
        ends = np.quantile(np.random.default_rng(0).standard_normal((2000, samples)), 0.025, axis=1)
        assert resamples._end_error(samples) == pytest.approx(ends.std() / 1.96, rel=0.1)


def judged(*, group=False):
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 3 == 0
    groups = np.array([f"p{number // 2}" for number in range(600)]) if group else None
    one = Sample(scores=rng.normal(labels), labels=labels.astype(float), groups=groups)
    return one, evaluate_label(one, name="y", part="test", validation=one)


@pytest.mark.parametrize("group", [False, True])
def test_a_report_of_more_rows_is_drawn_and_labelled_by_fewer_samples(monkeypatch, group):
    one, before = judged(group=group)
    monkeypatch.setattr(resamples, "FULL_ROWS", 600)
    assert to_json(judged(group=group)[1]) == to_json(before)  # at the limit nothing changes

    monkeypatch.setattr(resamples, "FULL_ROWS", 300)
    _, found = judged(group=group)
    assert found.resamples == Resamples(auc=1000, others=500)
    assert found.auc.delong == before.auc.delong
    bootstrap = auroc_interval(one.scores, one.labels, method="bootstrap", groups=one.groups, n_resamples=1000)
    assert (found.auc.bootstrap.low, found.auc.bootstrap.high) == (bootstrap.low, bootstrap.high)
    precision = average_precision_interval(one.scores, one.labels, groups=one.groups, n_resamples=500)
    assert found.auc.average_precision_interval.low == precision.low
    assert not np.array_equal(found.curves.roc_band.low, before.curves.roc_band.low)
    assert found.calibration.before.brier_interval != before.calibration.before.brier_interval

    blocks = interval_table(found)
    assert fewer_told(found.counts) in found.cautions
    (table,) = (block for block in blocks if isinstance(block, DataTable))
    assert "(BCa, 1,000 samples)" in table.rows[-1][0].text
    assert any("500 samples" in block.text for block in blocks if isinstance(block, Paragraph))
    assert "(500 samples)" in repr(label_topics(found, "", other=None, objective=""))
    assert not any("fewer bootstrap samples" in text for text in before.cautions)


def test_of_several_labels_one_says_it_for_all(monkeypatch):
    monkeypatch.setattr(resamples, "FULL_ROWS", 300)
    one, _ = judged(group=False)
    labels, scores = (np.stack([column] * 3, axis=1) for column in (one.labels, one.scores))
    lines = np.arange(len(labels))
    table = Scores(source="s.csv", label_names=("a", "b", "c"), labels=labels, scores=scores, lines=lines)
    found = evaluate_part(table, None, curves=False, probabilities=False)
    assert [sum("fewer bootstrap samples" in text for text in label.cautions) for label in found] == [1, 0, 0]
