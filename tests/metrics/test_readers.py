"""Readers under, on and over the model's curve."""

import numpy as np
import pytest

from deepauc.metrics.readers import readers_beaten

SCORES, LABELS = np.array([4.0, 3, 2, 1]), np.array([1, 0, 1, 0])  # curve: (0,.5) (.5,.5) (.5,1) (1,1)


def test_only_points_strictly_under_the_curve_count():
    fpr = [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 1.0]
    tpr = [0.4, 0.5, 0.49, 0.51, 0.9, 1.0, 1.0]
    found = readers_beaten(SCORES, LABELS, fpr, tpr)
    np.testing.assert_array_equal(found.per_label, [3])  # (0, .4), (.25, .49), (.5, .9)
    np.testing.assert_array_equal(found.readers, [7])
    assert found.mean == 3.0


def test_the_mean_over_labels_is_nrbc():
    scores, labels = np.stack([SCORES, -SCORES], axis=1), np.stack([LABELS, LABELS], axis=1)
    fpr, tpr = np.array([[0.3, 0.3], [0.1, 0.1], [0.2, np.nan]]), np.array([[0.4, 0.4], [0.3, 0.3], [0.1, np.nan]])
    found = readers_beaten(scores, labels, fpr, tpr)
    # Reversed scores: (0,0) (.5,0) (.5,.5) (1,.5) (1,1) beats nobody.
    np.testing.assert_array_equal(found.per_label, [3, 0])
    np.testing.assert_array_equal(found.readers, [3, 2])
    assert found.mean == 1.5


def test_a_label_that_nobody_has_read_is_not_in_the_mean():
    scores, labels = np.stack([SCORES, SCORES], axis=1), np.stack([LABELS, LABELS], axis=1)
    nobody = [np.nan, np.nan]
    found = readers_beaten(scores, labels, np.transpose([[0.3, 0.0], nobody]), np.transpose([[0.4, 0.5], nobody]))
    np.testing.assert_array_equal(found.readers, [2, 0])
    assert found.mean == 1.0
    assert np.isnan(readers_beaten(SCORES, LABELS, nobody, nobody).mean)


def test_a_model_that_copies_a_reader_does_not_beat_it():
    rng = np.random.default_rng(0)
    labels, calls = rng.integers(0, 2, 50), rng.integers(0, 2, (50, 3))
    fpr, tpr = calls[labels == 0].mean(0), calls[labels == 1].mean(0)
    for r in range(3):
        assert readers_beaten(calls[:, r], labels, fpr[[r]], tpr[[r]]).mean == 0
    assert readers_beaten(labels, labels, fpr, tpr).mean == 3


def test_refusals():
    with pytest.raises(ValueError, match="give both the same"):
        readers_beaten(SCORES, LABELS, [0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        readers_beaten(SCORES, LABELS, [10.0], [0.1])
    with pytest.raises(ValueError, match=r"\(R, 2\)"):
        readers_beaten(np.ones((4, 2)), np.ones((4, 2)), [0.1], [0.1])
