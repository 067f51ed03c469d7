"""Scores of a group's rows as one: by loops over the groups."""

import math

import numpy as np
import pytest

from deepauc.metrics.pooling import pool_scores

GROUPS = np.array(["b", "a", "b", "c", "b", "a"])


@pytest.mark.parametrize("how", ["max", "mean", "noisy-or"])
@pytest.mark.parametrize("labels", [None, 3])
def test_pooling_is_what_it_is_group_by_group(how, labels):
    shape = 6 if labels is None else (6, labels)
    scores = np.random.default_rng(0).random(shape)
    names, pooled = pool_scores(scores, GROUPS, how)
    assert names.tolist() == ["a", "b", "c"]
    for name, row in zip(names, pooled, strict=True):
        own = [np.atleast_1d(one).tolist() for one in scores[name == GROUPS]]
        for column, value in enumerate(np.atleast_1d(row)):
            each = [one[column] for one in own]
            expected = {
                "max": max(each),
                "mean": sum(each) / len(each),
                "noisy-or": 1 - math.prod(1 - p for p in each),
            }[how]
            assert value == pytest.approx(expected, rel=1e-12)


def test_noisy_or_keeps_small_probabilities_and_certainty():
    _, pooled = pool_scores([1e-18, 2e-18, 0.3, 1.0], ["a", "a", "b", "b"], "noisy-or")
    assert pooled == pytest.approx([3e-18, 1.0], rel=1e-9)


def test_a_row_without_a_score_leaves_its_group_without_one():
    for how in ("max", "mean", "noisy-or"):
        _, pooled = pool_scores([0.1, np.nan, 0.2], ["a", "a", "b"], how)
        assert np.isnan(pooled[0]), how
        assert pooled[1] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("scores", "groups", "how", "message"),
    [
        ([0.1, 1.2], ["a", "b"], "noisy-or", "probabilities"),
        ([0.1, -3.0], ["a", "b"], "noisy-or", "--probability"),
        ([0.1], ["a"], "median", "pooled by max, mean, noisy-or"),
        ([0.1, 0.2], ["a"], "max", "each row needs one group"),
        ([], [], "max", "each row needs one group"),
    ],
)
def test_what_cannot_be_pooled_is_refused(scores, groups, how, message):
    with pytest.raises(ValueError, match=message):
        pool_scores(scores, groups, how)
