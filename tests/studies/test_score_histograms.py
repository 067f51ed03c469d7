"""Histograms against the scores they were made of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.metrics.auroc import auroc
from deepauc.studies.records.book import _histogram
from deepauc.studies.records.score_histograms import binned_auc, separation


def made(seed, shift, rows=4000):
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.3).astype(np.float32)
    return (generator.normal(size=rows) + shift * labels).astype(np.float32), labels


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), shift=st.floats(-2, 4))
def test_the_auc_is_the_true_one_but_for_pairs_inside_a_bin(seed, shift):
    scores, labels = made(seed, shift, rows=300)
    histogram = _histogram(scores, labels)
    inside = np.dot(histogram["negative"], histogram["positive"]) / ((labels == 0).sum() * (labels == 1).sum())
    assert abs(binned_auc(histogram) - auroc(scores, labels)) <= inside / 2 + 1e-12


@pytest.mark.parametrize("shift", [0.5, 1.5, 4.0])
def test_distance_and_overlap_are_those_of_the_normals(shift):
    from scipy import stats

    scores, labels = made(3, shift, rows=200_000)
    found = separation(_histogram(scores, labels))
    assert found.apart == pytest.approx(shift, abs=0.05)
    assert found.overlap == pytest.approx(2 * stats.norm.cdf(-shift / 2), abs=0.02)


def test_classes_weigh_the_same_whatever_their_numbers():
    one = {"negative": [4, 4, 0, 0], "positive": [0, 0, 2, 2]}
    more = {"negative": [400, 400, 0, 0], "positive": [0, 0, 2, 2]}
    assert separation(one) == separation(more)
    assert separation(one).apart == pytest.approx(2 / 0.5)  # means at 1 and 3 bins, deviations of half a bin
    assert separation(one).overlap == 0


def test_one_score_far_out_does_not_leave_all_others_in_one_bin():
    scores, labels = made(5, 1.5, rows=20_000)
    before = separation(_histogram(scores, labels))
    scores[np.flatnonzero(labels == 1)[0]] = -1e6
    assert separation(_histogram(scores, labels)).apart == pytest.approx(before.apart, abs=0.01)
    stretched = {"negative": [0, 1, 0, 99], "positive": [1, 0, 0, 9]}  # as records before had it
    assert separation(stretched) is None
    assert separation({**stretched, "negative": [0, 1, 50, 49]}) is not None
    apart = {"negative": [99, 1, 0, 0], "positive": [0, 0, 1, 9]}  # narrow, but each in a bin of its own
    assert separation(apart).apart > 10


def test_nothing_to_compare():
    assert binned_auc({"negative": [1, 2], "positive": [0, 0]}) is None
    assert separation({"negative": [1, 2], "positive": [0, 0]}) is None
    assert separation({"negative": [3, 0], "positive": [0, 3]}) is None
