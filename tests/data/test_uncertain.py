"""Uncertain labels: every policy cell by cell, smoothing ranges, and no soft label outside the training part."""

import hashlib

import numpy as np
import pytest

from deepauc.data.task import ArrayInputs, Task
from deepauc.data.uncertain import resolve, resolve_task

NAN = float("nan")
RAW = np.array([[1, 0], [-1, -1], [NAN, 1], [0, NAN], [-1, 1]])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("zeros", [[1, 0], [0, 0], [0, 1], [0, 0], [0, 1]]),
        ("ones", [[1, 0], [1, 1], [0, 1], [0, 0], [1, 1]]),
        ("ignore", [[1, 0], [NAN, NAN], [0, 1], [0, 0], [NAN, 1]]),
        ("keep", [[1, 0], [-1, -1], [0, 1], [0, 0], [-1, 1]]),
        ({"a": "ones", "b": "zeros"}, [[1, 0], [1, 0], [0, 1], [0, 0], [1, 1]]),
    ],
)
def test_policies(policy, expected):
    resolved = resolve(RAW, policy, label_names=("a", "b"))
    np.testing.assert_array_equal(resolved, np.array(expected, dtype=np.float32))
    assert resolved.dtype == np.float32


def test_not_mentioned_is_a_choice_of_its_own():
    resolved = resolve(RAW, "ones", not_mentioned="ignore")
    assert np.isnan(resolved[2, 0])
    assert np.isnan(resolved[3, 1])
    assert np.isnan(resolved).sum() == 2
    np.testing.assert_array_equal(resolve([NAN, -1, 1], "ignore"), [0, NAN, 1])


@pytest.mark.parametrize(("policy", "low", "high"), [("smooth_ones", 0.55, 0.85), ("smooth_zeros", 0.0, 0.3)])
def test_smoothing_fills_its_range(policy, low, high):
    smooth = resolve(np.full((4000, 2), -1.0), policy, seed=3).astype(np.float64)
    assert smooth.min() >= np.float32(low)
    assert smooth.max() <= np.float32(high)
    assert smooth.min() < low + 0.01 * (high - low)
    assert smooth.max() > high - 0.01 * (high - low)
    np.testing.assert_allclose(smooth.mean(axis=0), (low + high) / 2, atol=0.01)
    np.testing.assert_allclose(smooth.std(), (high - low) / np.sqrt(12), atol=0.005)
    assert abs(np.corrcoef(smooth.T)[0, 1]) < 0.06
    np.testing.assert_array_equal(smooth, resolve(np.full((4000, 2), -1.0), policy, seed=3))
    assert not np.array_equal(smooth, resolve(np.full((4000, 2), -1.0), policy, seed=4))


def test_golden_smoothing():
    smooth = resolve(np.full((100, 5), -1.0), "smooth_ones", seed=0)
    assert hashlib.sha256(smooth.astype("<f4").tobytes()).hexdigest()[:16] == "9b43a2eb7f8b3357"


def test_certain_labels_are_never_touched():
    for policy in ("ignore", "zeros", "ones", "smooth_ones", "smooth_zeros", "keep"):
        resolved = resolve(RAW, policy, not_mentioned="ignore")
        certain = (RAW == 0) | (RAW == 1)
        np.testing.assert_array_equal(resolved[certain], RAW[certain])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": RAW, "policy": "half"}, "'half' is not a choice"),
        ({"labels": RAW, "policy": {"a": "ones", "b": "maybe"}, "label_names": ("a", "b")}, "'maybe' is not a choice"),
        ({"labels": RAW, "policy": {"a": "ones"}, "label_names": ("a", "b")}, "Missing or unknown: b"),
        ({"labels": RAW, "policy": {"a": "ones", "b": "ones"}}, "needs label_names"),
        ({"labels": [0.5], "policy": "ones"}, "smoothed already"),
        ({"labels": RAW, "policy": "ones", "not_mentioned": "ones"}, "'zeros' or 'ignore'"),
        ({"labels": np.zeros((2, 2, 2)), "policy": "ones"}, "must be"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        resolve(**arguments)


def make():
    labels = np.array([[1, 0], [-1, -1], [NAN, NAN], [-1, -1], [-1, 1], [0, 1]])
    return Task(
        name="x",
        kind="multilabel",
        source=ArrayInputs(np.zeros((6, 1), np.float32)),
        labels=labels,
        label_names=("a", "b"),
        parts={"train": np.array([0, 1, 2]), "test": np.array([3, 4, 5])},
    )


def test_task_is_soft_in_train_and_hard_elsewhere():
    task = resolve_task(make(), {"a": "smooth_ones", "b": "smooth_zeros"}, seed=1)
    assert 0.55 <= task.labels[1, 0] <= 0.85
    assert 0 <= task.labels[1, 1] <= 0.3
    np.testing.assert_array_equal(task.labels[3:], [[1, 0], [1, 1], [0, 1]])
    assert np.isnan(task.labels[2]).all()  # an unlabelled row stays one


def test_a_row_without_any_label_left_leaves_the_test_part():
    task = resolve_task(make(), "ignore")
    np.testing.assert_array_equal(task.parts["test"], [4, 5])
    np.testing.assert_array_equal(task.unlabelled("train"), [1, 2])
    assert np.isnan(task.labels[4, 0])
