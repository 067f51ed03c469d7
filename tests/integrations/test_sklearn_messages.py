"""What DeepAUCClassifier says to bad input: in the user's own terms."""

import numpy as np
import pytest
import torch

from deepauc.integrations.sklearn import DeepAUCClassifier

X = np.random.default_rng(0).normal(size=(12, 3))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(12), r"only one class \(0\.0\)"),
        (np.array(["well"] * 12), r"only one class \('well'\)"),
        (np.arange(12) == 3, "class True has only one row"),
        ((np.arange(12) == 3).astype(np.int64), "class 1 has only one row"),
    ],
)
def test_classes_are_named_as_they_were_written(y, message):
    with pytest.raises(ValueError, match=message):
        DeepAUCClassifier(max_iter=10).fit(X, y)


def test_devices_that_are_not_there():
    y = np.arange(12) % 2
    with pytest.raises(ValueError, match="device is 'gpu'; write 'cpu'"):
        DeepAUCClassifier(device="gpu", max_iter=10).fit(X, y)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU"):
            DeepAUCClassifier(device="cuda", max_iter=10).fit(X, y)
