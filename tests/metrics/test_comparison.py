"""The paired test against pROC's numbers, clustered against a simulation's truth."""

import json
from pathlib import Path

import numpy as np
import pytest

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc

GOLDEN = json.loads((Path(__file__).parent / "golden" / "delong.json").read_text())["cases"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_paired_delong_equals_proc(case):
    a, b, labels = (np.array(case[key]) for key in ("a", "b", "labels"))
    found = compare_auroc(a, b, labels)
    assert found.difference == pytest.approx(case["auc_a"] - case["auc_b"], abs=1e-14)
    assert found.p_value == pytest.approx(case["p_value"], rel=1e-9)
    np.testing.assert_allclose([found.low, found.high], case["difference_interval"], rtol=1e-9)
    turned = compare_auroc(b, a, labels)
    assert (turned.difference, turned.p_value) == pytest.approx((-found.difference, found.p_value))
    alone = compare_auroc(a, b, labels, groups=np.arange(labels.size))
    assert (alone.low, alone.high, alone.p_value) == pytest.approx((found.low, found.high, found.p_value))


def test_copies_within_a_patient_change_nothing():
    rng = np.random.default_rng(0)
    labels = (rng.random(80) < 0.4).astype(int)
    a, b = rng.standard_normal(80) + labels, rng.standard_normal(80) + 0.5 * labels
    plain = compare_auroc(a, b, labels)
    patients = np.tile([f"p{i}" for i in range(80)], 3)
    copied = compare_auroc(np.tile(a, 3), np.tile(b, 3), np.tile(labels, 3), groups=patients)
    assert (copied.low, copied.high, copied.p_value) == pytest.approx((plain.low, plain.high, plain.p_value))
    assert compare_auroc(np.tile(a, 3), np.tile(b, 3), np.tile(labels, 3)).p_value < plain.p_value


def test_a_wider_level_gives_a_wider_interval_and_the_same_p():
    rng = np.random.default_rng(0)
    labels = (rng.random(80) < 0.4).astype(int)
    a, b = rng.standard_normal(80) + labels, rng.standard_normal(80)
    usual, wide = compare_auroc(a, b, labels), compare_auroc(a, b, labels, level=0.99)
    assert wide.low < usual.low < usual.high < wide.high
    assert wide.p_value == usual.p_value
    assert (usual.p_value < 0.05) == (usual.low > 0 or usual.high < 0)


def test_scores_that_rank_alike_do_not_differ():
    rng = np.random.default_rng(0)
    labels = (rng.random(40) < 0.4).astype(int)
    scores = rng.standard_normal(40)
    found = compare_auroc(scores, np.exp(scores), labels)
    assert (found.difference, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_no_variance_is_no_certainty():
    scores, labels = np.arange(8.0), np.repeat([0, 1], [5, 3])
    against_reversed = compare_auroc(scores, -scores, labels)
    assert against_reversed.difference == 1.0
    assert against_reversed.p_value == 0.25  # three pairs without a common sample, all in favour: 2 / 2³
    assert against_reversed.low < against_reversed.high == 1.0
    against_constant = compare_auroc(scores, 0 * scores, labels)
    assert against_constant.difference == 0.5
    assert against_constant.p_value == 0.25
    assert against_constant.low < 0.5 < against_constant.high


def test_columns_and_missing_labels():
    rng = np.random.default_rng(1)
    labels = (rng.random((100, 2)) < 0.4).astype(float)
    a, b = rng.standard_normal((100, 2)) + labels, rng.standard_normal((100, 2))
    labels[rng.random((100, 2)) < 0.1] = np.nan
    found = compare_auroc(a, b, labels)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        one = compare_auroc(a[rows, j], b[rows, j], labels[rows, j])
        assert (
            found.difference[j]
            == one.difference
            == auroc(a[rows, j], labels[rows, j]) - auroc(b[rows, j], labels[rows, j])
        )
        assert found.p_value[j] == one.p_value


def test_refusals():
    with pytest.raises(ValueError, match="level"):
        compare_auroc([1, 2, 3, 4], [1, 2, 3, 4], [0, 0, 1, 1], level=95)
    with pytest.raises(ValueError, match="shape"):
        compare_auroc([1, 2, 3, 4], [1, 2, 3], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="two positives"):
        compare_auroc([1, 2, 3], [1, 2, 3], [0, 0, 1])


@pytest.mark.slow
def test_the_p_value_is_uniform_under_equal_areas():
    """2,000 simulations, two equally good scores of 60 patients with two images each, clustered and correlated."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(60), 2)
    p_values = []
    for _ in range(2000):
        labels = rng.integers(0, 2, 120)
        shared = np.repeat(rng.standard_normal(60), 2)
        a, b = (labels + shared + rng.standard_normal(120) for _ in range(2))
        p_values.append(compare_auroc(a, b, labels, groups=patients).p_value)
    assert 0.04 < np.mean(np.array(p_values) < 0.05) < 0.065
