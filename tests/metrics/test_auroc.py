"""The AUROC against scikit-learn, all pairs, the paper's table, and what must not change it."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score

from deepauc.metrics.auroc import _auroc_on_device, auroc
from deepauc.metrics.streaming import StreamingAUROC

HYPOTHESIS = settings(derandomize=True, deadline=None)


def over_pairs(scores, labels, weights=None):
    """Sum over all pairs, one by one, in exact rationals."""
    weights = [1] * len(scores) if weights is None else [Fraction(float(w)) for w in weights]
    right, total = Fraction(0), Fraction(0)
    for s, y, w in zip(scores, labels, weights, strict=True):
        for t, z, v in zip(scores, labels, weights, strict=True):
            if y == 1 and z == 0:
                total += w * v
                right += w * v * (Fraction(1) if s > t else Fraction(1, 2) if s == t else 0)
    return float(right / total)


def two_classes(n, rng, share=0.3):
    labels = (rng.random(n) < share).astype(np.int64)
    labels[:2] = [0, 1]
    return labels


small_problems = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=30)


@given(data=small_problems)
@HYPOTHESIS
def test_equals_the_sum_over_all_pairs_to_the_last_bit(data):
    scores, labels = np.array([float(s) for s, _ in data]), np.array([int(y) for _, y in data])
    assume(0 < labels.sum() < labels.size)
    assert auroc(scores, labels) == over_pairs(scores, labels)


@given(data=small_problems, seed=st.integers(0, 2**16))
@HYPOTHESIS
def test_invariances(data, seed):
    scores, labels = np.array([float(s) for s, _ in data]), np.array([int(y) for _, y in data])
    assume(0 < labels.sum() < labels.size)
    value = auroc(scores, labels)
    assert auroc(np.exp(scores), labels) == value  # any rising map
    assert auroc(scores**3 + 7, labels) == value
    assert auroc(scores, 1 - labels) == pytest.approx(1 - value, abs=1e-15)
    assert auroc(-scores, labels) == pytest.approx(1 - value, abs=1e-15)
    order = np.random.default_rng(seed).permutation(labels.size)
    assert auroc(scores[order], labels[order]) == value
    assert auroc(np.tile(scores, 3), np.tile(labels, 3)) == value


@pytest.mark.parametrize("n", [50, 5_000, 150_000])
@pytest.mark.parametrize("digits", [1, 8])
def test_equals_scikit_learn(n, digits):
    rng = np.random.default_rng(n)
    labels = two_classes(n, rng)
    scores = (rng.standard_normal(n) + labels).round(digits)
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    single = scores.astype(np.float32)
    assert auroc(single, labels) == pytest.approx(roc_auc_score(labels, single), abs=1e-12)


def test_weights_equal_scikit_learn_and_all_pairs():
    rng = np.random.default_rng(0)
    labels = two_classes(80, rng)
    scores, weights = rng.integers(0, 9, 80).astype(float), rng.random(80)
    weights[5] = 0
    expected = over_pairs(scores, labels, weights)
    assert auroc(scores, labels, weights=weights) == pytest.approx(expected, abs=1e-14)
    assert auroc(scores, labels, weights=weights) == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    whole = rng.integers(1, 4, 80)
    repeated = auroc(np.repeat(scores, whole), np.repeat(labels, whole))
    assert auroc(scores, labels, weights=whole) == pytest.approx(repeated, abs=1e-14)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.uint8]
)
@pytest.mark.parametrize("label_dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_every_number_type(dtype, label_dtype):
    rng = np.random.default_rng(1)
    labels = two_classes(300, rng)
    scores = torch.tensor(rng.integers(0, 40, 300) + 10 * labels).to(dtype)
    expected = over_pairs(scores.double().tolist(), labels.tolist())
    given_labels = torch.tensor(labels).to(label_dtype)
    assert auroc(scores, given_labels) == expected
    if dtype != torch.bfloat16:
        assert auroc(scores.numpy(), given_labels.numpy()) == expected
    assert auroc(scores.tolist(), given_labels.tolist()) == expected


def test_scores_that_require_grad_other_byte_order_and_strides():
    rng = np.random.default_rng(2)
    labels = two_classes(64, rng)
    scores = rng.standard_normal(64).astype(np.float32)
    value = auroc(scores, labels)
    assert auroc(torch.tensor(scores, requires_grad=True), torch.tensor(labels)) == value
    assert auroc(scores.astype(">f4"), labels.astype(">i8")) == value
    assert auroc(np.repeat(scores, 2)[::2], labels) == value
    assert auroc(torch.tensor(scores), labels) == value


def test_columns_missing_labels_and_weights_by_column():
    rng = np.random.default_rng(3)
    labels = (rng.random((200, 3)) < 0.4).astype(np.float32)
    scores = rng.standard_normal((200, 3)) + labels
    weights = rng.random((200, 3))
    labels[rng.random((200, 3)) < 0.2] = np.nan
    value, weighted = auroc(scores, labels), auroc(scores, labels, weights=weights)
    shared = auroc(scores, labels, weights=weights[:, 0])
    assert value.shape == weighted.shape == (3,)
    for j in range(3):
        rows = ~np.isnan(labels[:, j])
        y, s = labels[rows, j], scores[rows, j]
        assert value[j] == auroc(s, y) == pytest.approx(roc_auc_score(y, s))
        assert weighted[j] == pytest.approx(roc_auc_score(y, s, sample_weight=weights[rows, j]))
        assert shared[j] == pytest.approx(roc_auc_score(y, s, sample_weight=weights[rows, 0]))
    assert auroc(scores[:, :1], labels[:, :1]).shape == (1,)


@pytest.mark.parametrize("copies", [1, 300, 30_000])
def test_the_value_is_the_correctly_rounded_quotient(copies):
    scores, labels = np.array([0.5, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.8]), np.array([1, 0, 0, 0, 0, 0, 0, 0])
    assert auroc(np.tile(scores, copies), np.tile(labels, copies)) == 5 / 7


SENSITIVITY_TABLE = {  # the appendix's table: predictions of the 3 positives, of the 7 leading negatives; AUC
    "example 1": ((0.9, 0.8, 0.7), (0.6, 0.6, 0.47, 0.47, 0.45, 0.43, 0.42), Fraction(66, 66)),
    "example 2": ((0.9, 0.41, 0.7), (0.6, 0.49, 0.47, 0.47, 0.45, 0.43, 0.42), Fraction(59, 66)),
    "example 3": ((0.9, 0.41, 0.40), (0.49, 0.48, 0.47, 0.47, 0.45, 0.43, 0.42), Fraction(52, 66)),
}


@pytest.mark.parametrize("example", SENSITIVITY_TABLE)
def test_the_papers_sensitivity_table(example):
    positives, negatives, expected = SENSITIVITY_TABLE[example]
    rest = np.linspace(0.39, 0.1, 15)  # the rows of dots: 25 samples, 22 of them negative
    scores = np.concatenate([positives, negatives, rest])
    labels = np.array([1] * 3 + [0] * 22)
    assert accuracy_score(labels, scores >= 0.5) == 0.92
    assert auroc(scores, labels) == float(expected)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, 0.2], [1, 1], "2 positives and 0 negatives"),
        ([0.1, 0.2], [0, 0], "0 positives and 2 negatives"),
        ([], [], "0 positives and 0 negatives"),
        ([0.1, np.nan], [0, 1], "NaN or infinity"),
        ([0.1, np.inf], [0, 1], "NaN or infinity"),
        ([0.1, 0.2], [-1, 1], "labels > 0"),
        ([0.1, 0.2], [0, 2], "0 or 1"),
        ([0.1, 0.2], [0, 0.5], "Round them"),
        ([0.1, 0.2], ["a", "b"], "class names"),
        ([0.1, 0.2, 0.3], [0, 1], "shape"),
        ([[0.1], [0.2]], [0, 1], "squeeze"),
        ([1j, 2j], [0, 1], "real"),
    ],
)
def test_refusals_name_what_is_wrong(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        auroc(np.array(scores), np.array(labels))


def test_refusals_about_one_column_and_weights():
    scores = np.array([[0.1, 0.2], [0.3, 0.4]])
    with pytest.raises(ValueError, match="in column 1"):
        auroc(scores, np.array([[0, 1], [1, np.nan]]))
    with pytest.raises(ValueError, match="weight on both classes"):
        auroc(scores[:, 0], [0, 1], weights=[0.0, 1.0])
    with pytest.raises(ValueError, match="not negative"):
        auroc(scores[:, 0], [0, 1], weights=[-1.0, 1.0])
    with pytest.raises(ValueError, match=r"weights have shape \(3,\)"):
        auroc(scores[:, 0], [0, 1], weights=[1.0, 1.0, 1.0])
    for weights in (["a", "b"], [1, None]):
        with pytest.raises(ValueError, match="weights must be real numbers"):
            auroc(scores[:, 0], [0, 1], weights=weights)
        with pytest.raises(ValueError, match="weights must be real numbers"):
            StreamingAUROC().update(scores[:, 0], [0, 1], weights=weights)


def test_no_sigmoid_is_guessed():
    # Squashed in float32 these four tie at 1; as they come they are in perfect order.
    scores = torch.tensor([100.0, 101.0, 102.0, 103.0])
    assert auroc(scores, torch.tensor([0, 0, 1, 1])) == 1.0


def on_cuda(scores, labels, weights=None):
    return auroc(scores.cuda(), labels, weights=weights)


DEVICES = [  # the device's way works on CPU tensors too, so it is tested where there is no GPU
    pytest.param(lambda scores, labels, weights=None: _auroc_on_device(scores, labels, weights), id="as on a device"),
    pytest.param(on_cuda, id="cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device_auroc", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_device_gives_the_same(device_auroc, dtype, share):
    rng = np.random.default_rng(0)
    labels = (rng.random((20_000, 2)) < share).astype(np.float32)
    scores = torch.tensor((10 * rng.standard_normal((20_000, 2)) + 5 * labels).round(1)).to(dtype)
    weights = torch.tensor(rng.random(20_000))
    whole = torch.tensor(labels)
    assert device_auroc(scores[:, 0], whole[:, 0].bool()) == auroc(scores[:, 0], whole[:, 0])
    labels[rng.random(labels.shape) < 0.1] = np.nan
    holes = torch.tensor(labels)
    assert np.array_equal(device_auroc(scores, holes), auroc(scores, holes))
    found = device_auroc(scores, holes, weights)
    assert found == pytest.approx(auroc(scores, holes, weights=weights), abs=1e-12)


@pytest.mark.parametrize("device_auroc", DEVICES)
def test_a_device_refuses_for_the_same_reasons(device_auroc):
    scores, labels = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 1])
    for wrong in (np.nan, np.inf, -np.inf):
        for row in range(3):
            broken = scores.clone()
            broken[row] = wrong
            with pytest.raises(ValueError, match="NaN or infinity"):
                device_auroc(broken, labels)
            with pytest.raises(ValueError, match="NaN or infinity"):
                device_auroc(broken, labels, torch.ones(3))
    with pytest.raises(ValueError, match="labels > 0"):
        device_auroc(scores, 2 * labels - 1)
    with pytest.raises(ValueError, match="0 positives and 3 negatives"):
        device_auroc(scores, 0 * labels)
    with pytest.raises(ValueError, match="shape"):
        device_auroc(scores[:1], labels)
    with pytest.raises(ValueError, match="real numbers"):
        device_auroc(scores > 0.1, labels)
    with pytest.raises(ValueError, match="weight on both classes"):
        device_auroc(scores, labels, [0.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="in column 1"):
        device_auroc(torch.ones(2, 2), torch.tensor([[0, 1], [1, 1]]))


@pytest.mark.parametrize("dtype", [np.int64, bool, np.float32])
def test_masked_labels_are_missing_ones(dtype):
    scores, labels = np.array([3.0, 2.0, 1.0, 0.5, 2.5]), np.array([1, 0, 1, 0, 0]).astype(dtype)
    mask = np.array([False, False, True, False, True])
    masked = np.ma.masked_array(labels, mask)
    assert auroc(scores, masked) == auroc(scores[~mask], labels[~mask]) == 1.0
    assert auroc(scores, np.ma.masked_array(labels, False)) == auroc(scores, labels)
    with pytest.raises(ValueError, match="NaN"):
        auroc(np.ma.masked_array(scores, mask), labels)
