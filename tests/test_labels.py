"""The messages name the remedy, for tensors and for arrays alike."""

import numpy as np
import pytest
import torch

from deepauc.labels import invalid_labels, label_message, require_valid_arrays, require_valid_labels, shape_message


@pytest.mark.parametrize(
    ("scores", "labels", "remedy"),
    [((3, 1), (3,), "squeeze"), ((3,), (3, 1), "squeeze"), ((3, 4), (3,), "one_hot"), ((3,), (4,), "same shape")],
)
def test_shape_messages(scores, labels, remedy):
    assert remedy in shape_message(scores, labels)


def test_good_shapes_and_a_scalar():
    assert shape_message((5,), (5,)) is None
    assert shape_message((5, 2), (5, 2)) is None
    assert "(N,)" in shape_message((), ())


def test_missing_is_not_invalid():
    labels = torch.tensor([0.0, 1.0, torch.nan, 0.5, -1.0])
    assert invalid_labels(labels, soft=False).tolist() == [False, False, False, True, True]
    assert invalid_labels(labels, soft=True).tolist() == [False, False, False, False, True]
    assert not invalid_labels(torch.tensor([True, False]), soft=False).any()
    require_valid_labels(labels[:3])


@pytest.mark.parametrize(("bad", "remedy"), [([-1], "labels > 0"), ([0.3], "soft_labels"), ([2, 5], "labels == 3")])
def test_label_messages(bad, remedy):
    assert remedy in label_message(np.array(bad, dtype=float), soft=False)


@pytest.mark.parametrize(
    ("scores", "labels", "weights", "remedy"),
    [
        ([0.1, 0.2], [0, 2], None, "0 or 1"),
        ([0.1, 0.2], [0, 0.5], None, r"0\.5\. Round them\.$"),  # metrics take no soft labels
        ([0, 1], [0.1, 0.2], None, r"Round them\. Scores come first, labels second\.$"),
        ([0.0, 1.0], [-1.5, 2.5], None, "Scores come first"),
        ([0.1, np.nan], [0, 1], None, "NaN"),
        ([0.1, 0.2], ["a", "b"], None, "class names"),
        (["x", "y"], [0, 1], None, "real numbers"),
        ([0.1, 0.2], [0, 1], [1.0], "weights have shape"),
        ([0.1, 0.2], [0, 1], [1.0, -1.0], "not negative"),
    ],
)
def test_arrays(scores, labels, weights, remedy):
    with pytest.raises(ValueError, match=remedy):
        require_valid_arrays(np.array(scores), np.array(labels), None if weights is None else np.array(weights))
