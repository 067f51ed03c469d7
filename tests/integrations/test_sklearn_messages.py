"""What DeepAUCClassifier says to bad input: in the user's own terms."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold

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
    with pytest.raises(ValueError, match=r"device 'mps' has no 64-bit numbers.* write 'cpu'"):
        DeepAUCClassifier(device="mps", max_iter=10).fit(X, y)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU"):
            DeepAUCClassifier(device="cuda", max_iter=10).fit(X, y)


@pytest.mark.parametrize("missing", [None, np.nan])
@pytest.mark.parametrize("cv", [2, GroupKFold(2)], ids=["folds", "splitter"])
def test_a_missing_patient_is_refused_not_taken_for_one_patient(missing, cv):
    words = np.array([missing, missing, *"abcdefghij"], dtype=object)
    numbers = np.array([np.nan, np.nan, *range(10)])
    for patients in (words, words.tolist(), numbers):
        with pytest.raises(ValueError, match="groups are missing in 2 rows"):
            DeepAUCClassifier(max_iter=10, cv=cv).fit(X, np.arange(12) % 2, groups=patients)


def test_patients_may_be_numbers_and_words():
    patients = np.array([*range(6), *"abcdef"], dtype=object)
    mixed = DeepAUCClassifier(max_iter=10, cv=2, random_state=0).fit(X, np.arange(12) % 2, groups=patients)
    words = DeepAUCClassifier(max_iter=10, cv=2, random_state=0).fit(X, np.arange(12) % 2, groups=patients.astype(str))
    assert mixed.cv_auc_ == words.cv_auc_


def test_numbers_too_large_to_standardise_are_named():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    with pytest.raises(ValueError, match=r"feature 1 .* too large"):
        DeepAUCClassifier(max_iter=10).fit(X * [1, 1e300], y)
