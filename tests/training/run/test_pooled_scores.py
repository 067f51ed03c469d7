"""Each group of a part as one row: by a loop over groups, with parts, folds and missing labels."""

import numpy as np
import pytest

from deepauc.training.run.pooled_scores import per_group
from deepauc.training.run.scores import Scores

GROUPS = np.array(["p", "q", "p", "p", "r", "q"])
PARTS = np.array(["validation", "test", "test", "test", "test", "test"])


def scores(**options):
    fields = {
        "source": "scores.csv",
        "label_names": ("a", "b"),
        "labels": np.array([[1, 0], [0, np.nan], [1, 0], [0, 1], [np.nan, 1], [0, np.nan]]),
        "scores": np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.1], [0.2, 0.9], [0.4, 0.3]]),
        "lines": np.arange(2, 8),
        "groups": GROUPS,
        "parts": PARTS,
        "folds": np.array(["", "1", "2", "2", "1", "1"]),
    }
    return Scores(**{**fields, **options})


def test_a_group_in_two_parts_is_two_rows_and_a_positive_row_makes_it_positive():
    found = per_group(scores(), "max")
    assert list(zip(found.ids.tolist(), found.parts.tolist(), found.folds.tolist(), strict=True)) == [
        ("p", "validation", ""),
        ("q", "test", "1"),
        ("p", "test", "2"),
        ("r", "test", "1"),
    ]
    np.testing.assert_array_equal(found.labels, [[1, 0], [0, np.nan], [1, 1], [np.nan, 1]])
    np.testing.assert_allclose(found.scores, [[0.1, 0.2], [0.4, 0.4], [0.7, 0.6], [0.2, 0.9]])
    assert found.groups is None
    assert len(found.notes) == 2  # how many rows became how many groups, and that one has rows of both classes


@pytest.mark.parametrize("how", ["mean", "noisy-or"])
def test_other_poolings(how):
    found = per_group(scores(), how)
    both = [0.5, 0.7]
    expected = np.mean(both) if how == "mean" else 1 - (1 - both[0]) * (1 - both[1])
    assert found.scores[2, 0] == pytest.approx(expected)


def test_without_groups_it_is_refused():
    with pytest.raises(ValueError, match="--group-column"):
        per_group(scores(groups=None), "max")
