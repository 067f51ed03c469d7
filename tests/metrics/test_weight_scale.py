"""Of sample weights only the ratios count: no unit makes a metric overflow or vanish."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.table.columns import parse_weights
from deepauc.data.task import ArrayInputs, Task
from deepauc.metrics.auroc import _weighted_on_device, auroc
from deepauc.metrics.average_precision import average_precision
from deepauc.metrics.calibration import brier_score, expected_calibration_error, reliability_curve
from deepauc.metrics.curves import precision_recall_curve, roc_curve
from deepauc.metrics.decisions import decision_curve
from deepauc.metrics.multiclass import multiclass_auroc
from deepauc.metrics.partial import partial_auroc
from deepauc.metrics.recalibration import fit_isotonic, fit_temperature
from deepauc.metrics.streaming import StreamingAUROC
from deepauc.models.fusion import ensemble
from deepauc.training.predict.average import shares

RNG = np.random.default_rng(0)
SCORES = np.round(RNG.random(60), 2)  # with ties
LABELS = (RNG.random(60) < 0.3 + 0.3 * SCORES).astype(float)
WEIGHTS = RNG.random(60) + 0.1
WEIGHTS[::9] = 0


def streamed(weights):
    stream = StreamingAUROC()
    for part in (slice(0, 20), slice(20, 60)):
        stream.update(SCORES[part], LABELS[part], weights=weights[part])
    return stream.compute()


def on_device(weights):
    scores, labels, weights = map(torch.as_tensor, (SCORES, LABELS, weights))
    yes, no = labels == 1, labels == 0
    return _weighted_on_device(scores[yes], scores[no], weights[yes], weights[no], "")


METRICS = {
    "auroc": lambda w: auroc(SCORES, LABELS, weights=w),
    "auroc on a device": on_device,
    "streaming": streamed,
    "multiclass": lambda w: multiclass_auroc(np.stack([1 - SCORES, SCORES], 1), LABELS, weights=w),
    "partial": lambda w: partial_auroc(SCORES, LABELS, max_fpr=0.4, weights=w),
    "average precision": lambda w: average_precision(SCORES, LABELS, weights=w),
    "brier": lambda w: brier_score(SCORES, LABELS, weights=w),
    "calibration error": lambda w: expected_calibration_error(SCORES, LABELS, weights=w),
    "reliability": lambda w: reliability_curve(SCORES, LABELS, weights=w).observed,
    "roc": lambda w: roc_curve(SCORES, LABELS, weights=w).tpr,
    "precision": lambda w: precision_recall_curve(SCORES, LABELS, weights=w).precision,
    "decisions": lambda w: decision_curve(SCORES, LABELS, weights=w).model,
    "temperature": lambda w: fit_temperature(SCORES, LABELS, weights=w).apply(SCORES),
    "isotonic": lambda w: fit_isotonic(SCORES, LABELS, weights=w).apply(SCORES),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=20, deadline=None)
@given(k=st.integers(-1000, 1010))
def test_a_power_of_two_changes_nothing(name, k):
    np.testing.assert_array_equal(METRICS[name](WEIGHTS * 2.0**k), METRICS[name](WEIGHTS))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("scale", [1e-170, 1e160, 1e306, 1e-300])
def test_any_unit_gives_the_same(name, scale):
    np.testing.assert_allclose(METRICS[name](WEIGHTS * scale), METRICS[name](WEIGHTS), rtol=1e-8)


@pytest.mark.parametrize("name", ["auroc", "auroc on a device", "streaming", "multiclass", "roc", "partial"])
def test_classes_far_apart_in_weight(name):
    far = np.where(LABELS == 1, 1e-170, 1e160) * WEIGHTS
    np.testing.assert_allclose(METRICS[name](far), METRICS[name](WEIGHTS), rtol=1e-12)


def test_the_weights_of_models_in_an_average():
    assert shares([1e308, 1e308, 0.0], 3) == [0.5, 0.5, 0.0]
    members = [RNG.normal(size=5), RNG.normal(size=5)]
    expected = ensemble(members, weights=[1, 3])
    for factor in (2.0**1021, 2.0**-1060):
        np.testing.assert_array_equal(ensemble(members, weights=[factor, 3 * factor]), expected)


def test_the_weights_of_a_task_stay_in_the_reach_of_single_precision():
    def task(weights):
        return Task(
            name="t",
            kind="binary",
            source=ArrayInputs(np.zeros((4, 1), np.float32)),
            labels=np.array([0, 1, 0, 1]),
            label_names=("y",),
            parts={"train": np.arange(4)},
            weights=weights,
        )

    given_weights = np.array([1.0, 3.0, 0.0, 7.0])
    np.testing.assert_array_equal(task(given_weights).weights, given_weights)
    for factor in (1e-200, 1e200):
        found = task(given_weights * factor).weights
        np.testing.assert_allclose(found / found[0], given_weights, rtol=1e-6)
    read, problems = parse_weights(["1e-200", "3e-200", "7e-200"], [2, 3, 4], "w")
    assert not problems
    np.testing.assert_allclose(read / read[0], [1, 3, 7], rtol=1e-6)
    assert parse_weights(["1e300", "inf"], [2, 3], "w")[1][0].row == 3
