"""Multi-class AUROC against loops over pairs of rows and against scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from deepauc import auroc
from deepauc.metrics.multiclass import multiclass_auroc, pairwise_auroc


def some(rows=80, classes=4, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), generator.integers(classes, size=rows - classes)])
    scores = generator.random((rows, classes)).round(1)  # many ties
    scores[np.arange(rows), labels] += 0.3
    return scores / scores.sum(1, keepdims=True), labels


def share_ordered(positives, negatives):
    return np.mean([(p > n) + 0.5 * (p == n) for p in positives for n in negatives])


def brute_force(scores, labels, average):
    classes = range(scores.shape[1])
    if average == "ovr":
        return np.mean([share_ordered(scores[labels == k, k], scores[labels != k, k]) for k in classes])
    pairs = [(i, j) for i in classes for j in classes if i != j]
    return np.mean([share_ordered(scores[labels == i, i], scores[labels == j, i]) for i, j in pairs])


@pytest.mark.parametrize("average", ["ovr", "ovo"])
@pytest.mark.parametrize("classes", [3, 4, 7])
def test_is_the_loop_over_pairs_and_scikit_learn(average, classes):
    scores, labels = some(classes=classes)
    value = multiclass_auroc(scores, labels, average=average)
    assert value == pytest.approx(brute_force(scores, labels, average), abs=1e-12)
    assert value == pytest.approx(roc_auc_score(labels, scores, multi_class=average, average="macro"), abs=1e-12)


rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 3)),
    max_size=25,
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(rows, st.sampled_from(["ovr", "ovo"]))
def test_any_table_with_ties_and_weights(entries, average):
    entries = [*entries, *[(k, 0, k, 1, 1) for k in range(3)]]
    table = np.array(entries)
    labels, scores, weights = table[:, 0], table[:, 1:4] / 4, table[:, 4]
    value = multiclass_auroc(scores, labels, average=average, weights=weights)
    repeated = np.repeat(np.arange(len(table)), weights)
    assert value == pytest.approx(brute_force(scores[repeated], labels[repeated], average), abs=1e-12)
    # Each column may be stretched by a rising map of its own: only the order within a column counts.
    stretched = np.exp(scores * np.array([1.0, 2.0, 0.5])) + np.array([0, 5, -5])
    assert multiclass_auroc(stretched, labels, average=average, weights=weights) == pytest.approx(value, abs=1e-12)


def test_weighted_ovr_is_scikit_learns():
    scores, labels = some()
    weights = np.random.default_rng(1).random(len(labels))
    expected = roc_auc_score(labels, scores, multi_class="ovr", sample_weight=weights)
    assert multiclass_auroc(scores, labels, weights=weights) == pytest.approx(expected, abs=1e-12)


def test_pairs_are_hand_and_tills_and_ovo_is_blind_to_prevalence():
    scores, labels = some(classes=3)
    pairs = pairwise_auroc(scores, labels)
    assert np.isnan(np.diag(pairs)).all()
    assert pairs[0, 2] == pytest.approx(share_ordered(scores[labels == 0, 0], scores[labels == 2, 0]))
    assert pairs[2, 0] == pytest.approx(share_ordered(scores[labels == 2, 2], scores[labels == 0, 2]))
    repeated = np.repeat(np.arange(len(labels)), np.where(labels == 1, 50, 1))
    ovo = multiclass_auroc(scores, labels, average="ovo")
    assert multiclass_auroc(scores[repeated], labels[repeated], average="ovo") == pytest.approx(ovo, abs=1e-12)
    ovr = multiclass_auroc(scores, labels)
    assert abs(multiclass_auroc(scores[repeated], labels[repeated]) - ovr) > 1e-3


def test_two_classes_torch_and_missing_labels():
    scores, labels = some(classes=2)
    one = auroc(scores[:, 1], labels)
    both = np.stack([1 - scores[:, 1], scores[:, 1]], axis=1)
    assert multiclass_auroc(both, labels) == pytest.approx(one, abs=1e-12)
    assert multiclass_auroc(both, labels, average="ovo") == pytest.approx(one, abs=1e-12)
    scores, labels = some()
    assert multiclass_auroc(torch.tensor(scores), torch.tensor(labels)) == multiclass_auroc(scores, labels)
    more = np.concatenate([scores, np.full((2, 4), np.nan)])
    with_gaps = np.concatenate([labels, [np.nan, np.nan]])
    assert multiclass_auroc(more, with_gaps) == multiclass_auroc(scores, labels)


@pytest.mark.parametrize(
    ("scores", "labels", "options", "remedy"),
    [
        (np.ones(3), [0, 1, 2], {}, "one column per class"),
        (np.ones((3, 3)), np.eye(3), {}, "argmax"),
        (np.ones((3, 3)), [0, 1, 3], {}, "0 to 2.*hold 3"),
        (np.ones((3, 3)), [0, 1, 0.5], {}, "hold 0.5"),
        (np.ones((3, 3)), [0, 1, 1], {}, "of class 2"),
        (np.ones((3, 3)), [0, 1, 1], {"average": "ovo"}, "of class 0 against 2"),
        (np.ones((3, 3)), ["a", "b", "c"], {}, "return_inverse"),
        (np.full((3, 3), np.nan), [0, 1, 2], {}, "NaN"),
        (np.ones((3, 3)), [0, 1, 2], {"average": "macro"}, "'ovr' or 'ovo'"),
        (np.ones((3, 3)), [0, 1, 2], {"weights": [1, 2]}, "one per row"),
        (np.ones((3, 3)), [0, 1, 2], {"weights": [1, 2, -1]}, "not negative"),
    ],
)
def test_bad_input_names_the_remedy(scores, labels, options, remedy):
    with pytest.raises(ValueError, match=remedy):
        multiclass_auroc(scores, labels, **options)
