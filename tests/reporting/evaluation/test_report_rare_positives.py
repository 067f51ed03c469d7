"""Where positives are rare every share is small: figures keep their digits, and curves do not lie on the axis."""

import numpy as np
import pytest

from deepauc.metrics.intervals import wilson_limits
from deepauc.metrics.operating_points import specificities
from deepauc.reporting.document.label_sections import label_topics
from deepauc.reporting.evaluation.label import evaluate_label
from deepauc.reporting.evaluation.sample import Sample
from deepauc.reporting.evaluation.subgroups import Metadata
from deepauc.reporting.figures.label import (
    histogram_picture,
    precision_recall_picture,
    reliability_picture,
    roc_picture,
)
from deepauc.text_tables import small_text


def rare_labels():
    return (np.arange(8000) % 250 == 0).astype(float)


def rare_scores():
    return np.random.default_rng(0).normal(-6 + rare_labels(), 1)


def judged(scores):
    sample = Sample(scores=scores, labels=rare_labels())
    return evaluate_label(sample, name="fraud", part="test", validation=sample)


@pytest.fixture(scope="module")
def found():
    """Of 8,000 rows 32 are positive, their scores little higher."""
    return judged(rare_scores())


def limits(picture):
    from matplotlib.figure import Figure

    axes = Figure(layout="constrained").add_subplot()
    picture.draw(axes)
    return axes.get_xlim(), axes.get_ylim()


def test_one_score_far_out_does_not_fill_the_histogram():
    """Of a positive, below all others: a mean would place the positives below the negatives."""
    scores = rare_scores()
    scores[0] = -60
    histogram = judged(scores).histogram
    assert histogram.edges[0] > -12
    assert histogram.beyond == 1
    assert histogram.positives.sum() == pytest.approx(1)
    assert histogram.negatives.sum() == pytest.approx(1)
    assert histogram.positives[0] == pytest.approx(1 / 32)
    picture = histogram_picture("scores", histogram, ())
    assert "outermost bins hold 1 score" in picture.caption
    positives, negatives = (float(word.strip(".,")) for word in picture.alt.split() if word.startswith("-"))
    assert positives > negatives  # as the AUC says


def test_the_histogram_of_tame_scores_spans_them_all():
    scores = np.linspace(-1, 1, 40)
    one = Sample(scores=scores, labels=(scores > 0).astype(float))
    histogram = evaluate_label(one, name="x", part="test", validation=one, curves=False).histogram
    assert (histogram.edges[0], histogram.edges[-1], histogram.beyond) == (-1, 1, 0)


def test_ties_leave_no_score_out_of_the_histogram():
    scores = np.array([0.0] * 18 + [1.0, 5.0])
    one = Sample(scores=scores, labels=np.arange(20) % 2.0)
    histogram = evaluate_label(one, name="x", part="test", validation=one, curves=False).histogram
    assert (histogram.edges[0], histogram.edges[-1], histogram.beyond) == (0, 5, 0)


def test_axes_end_where_small_shares_do(found):
    across, up = limits(reliability_picture("r", found.calibration))
    assert across == up
    assert 0.01 < up[1] < 0.2
    assert "axes end at 0." in reliability_picture("r", found.calibration).caption
    picture = precision_recall_picture("p", found.curves, found.auc, 0.004)
    across, up = limits(picture)
    assert across[1] > 1
    assert up[1] >= found.curves.precision_band.high.max()
    assert ("precision ends at" in picture.caption) == (up[1] < 1)


def test_scores_that_are_no_probabilities_do_not_hide_those_that_are(found):
    """What an AUC loss gives before recalibration lies around one half, wherever the share of positives is."""
    picture = reliability_picture("r", judged(rare_scores() + 6).calibration)
    assert limits(picture)[1][1] < 0.2
    assert "beyond" in picture.caption
    assert "beyond" not in reliability_picture("r", found.calibration).caption


def test_axes_of_common_positives_end_at_1():
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2.0
    one = Sample(scores=rng.normal(2 * labels), labels=labels)
    found = evaluate_label(one, name="x", part="test", validation=one)
    for picture in (
        reliability_picture("r", found.calibration),
        precision_recall_picture("p", found.curves, found.auc, 0.5),
    ):
        assert limits(picture) == ((-0.02, 1.02), (-0.02, 1.02))
        assert "not at 1" not in picture.caption


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.876, "0.876"),
        (0.0123, "0.012"),
        (0.01, "0.010"),
        (0.003984, "0.00398"),
        (0.0000412, "0.0000412"),
        (0.0, "0.000"),
    ],
)
def test_three_digits_of_a_small_figure(value, text):
    assert small_text(value) == text


def test_limits_have_the_decimals_of_their_figure():
    assert small_text(0.003984, 0.0, 0.0105) == "0.00398 [0.00000, 0.01050]"
    assert small_text(0.5, 0.004, 0.9) == "0.500 [0.004, 0.900]"


def test_lines_as_ids_are_explained():
    metadata = Metadata(["T1", "T2"], {"country": ["DE", "FR"]})
    with pytest.raises(ValueError, match=r"their line in it as id \(the header is line 1\)"):
        metadata.aligned(np.array(["2", "3"]))
    with pytest.raises(ValueError) as other:
        metadata.aligned(np.array(["a.png", "3"]))
    assert str(other.value).endswith("name the right column with --id-column.")


def test_many_negatives_bring_thresholds_of_high_specificity(found):
    scores, negative = rare_scores(), rare_labels() == 0
    assert [row.asked_specificity for row in found.operating_points] == [0.8, 0.9, 0.95, 0.98, 0.99, 0.995]
    assert found.operating_points_left_out is None
    for row in found.operating_points[3:]:
        assert np.mean(scores[negative] < row.threshold) >= row.asked_specificity
        alarms = int(np.sum(scores[negative] >= row.threshold))
        assert alarms == row.false_positives >= 10
        hits = int(np.sum(scores[~negative] >= row.threshold))
        assert (row.sensitivity.low, row.sensitivity.high) == pytest.approx(wilson_limits(hits, 32, 0.95))
    picture = roc_picture("r", found.curves, found.auc, found.operating_points, None)
    assert "80 %, 90 %, 95 %, 98 %, 99 %, 99.5 %" in picture.caption
    text = str(label_topics(found, "", other=None, objective="AUCMargin"))
    assert "99.5 %" in text
    assert "Left out" not in text


@pytest.mark.parametrize(
    ("negatives", "highest"), [(40, 0.95), (499, 0.95), (500, 0.98), (999, 0.98), (1000, 0.99), (2000, 0.995)]
)
def test_a_specificity_needs_ten_negatives_above_its_threshold(negatives, highest):
    assert specificities(negatives)[:3] == (0.8, 0.9, 0.95)
    assert specificities(negatives)[-1] == highest


def test_what_too_few_negatives_leave_out_is_said():
    """The judged part has 3,000 negatives, validation 600: its threshold at 99 % would rest on six of them."""
    many, few = ((np.arange(rows) % 101 == 0).astype(float) for rows in (3031, 606))
    draw = np.random.default_rng(1)
    sample, validation = (Sample(scores=draw.normal(2 * labels), labels=labels) for labels in (many, few))
    label = evaluate_label(sample, name="fraud", part="test", validation=validation, curves=False)
    assert [row.asked_specificity for row in label.operating_points] == [0.8, 0.9, 0.95, 0.98]
    why = label.operating_points_left_out.why
    assert all(number in why for number in ("99 %, 99.5 %", "1,000", "600"))
    assert why in str(label_topics(label, "", other=None, objective="AUCMargin"))
