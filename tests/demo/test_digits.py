"""The digits protocol: who is positive, how many, what the test part is, and that training learns."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from deepauc.data.imbalance import make_imbalanced
from deepauc.demo.digits import (
    METHODS,
    DigitsSettings,
    load,
    run_digits,
    scores_of,
    train,
    validation_auc,
)
from deepauc.demo.digits_report import rows

QUICK = DigitsSettings(seeds=2, epochs=2)


@pytest.fixture(scope="module")
def result():
    return run_digits(QUICK)


def test_parts_are_disjoint_stratified_and_the_same_every_time():
    images, labels, train_rows, test_rows = load()
    assert images.shape == (1797, 1, 8, 8)
    assert float(images.max()) == 1.0
    assert np.array_equal(np.sort(np.concatenate([train_rows, test_rows])), np.arange(1797))
    target = load_digits().target
    assert np.array_equal(labels == 1, target >= 5)
    for digit in range(10):
        share = (target[test_rows] == digit).sum() / (target == digit).sum()
        assert share == pytest.approx(1 / 3, abs=0.01)
    assert np.array_equal(load()[3], test_rows)


def test_counts_follow_the_protocol(result):
    assert (result.train_negatives, result.train_positives) == (602, 6)
    assert result.train_positives / (result.train_positives + result.train_negatives) == pytest.approx(0.01, abs=0.002)
    assert 0.45 < result.test_positives / (result.test_positives + result.test_negatives) < 0.55


def test_table_has_an_interval_in_every_cell(result):
    assert result.auc().shape == (2, 4)
    for row in result.estimates:
        for estimate in row:
            assert 0 < estimate.low < estimate.value < estimate.high < 1
    assert [share is None for share in result.alpha_zero] == [True, True, True, False]


def test_the_table_ends_with_paired_differences_and_alpha(result):
    *_, paired, alpha = rows(result)
    assert paired[1] == "-"
    gains = (result.auc() - result.auc()[:, :1]).mean(axis=0)[1:]
    assert [cell.split()[0] for cell in paired[2:]] == [f"{gain:+.3f}" for gain in gains]
    assert [cell == "-" for cell in alpha[1:]] == [True, True, True, False]


def test_value_is_the_auc_of_raw_scores_on_the_test_part(result):
    images, labels, train_rows, test_rows = load()
    rows = make_imbalanced(labels, imratio=0.01, seed=1, rows=train_rows).rows
    fit = train(METHODS[0], images[rows], labels[rows], seed=1, settings=QUICK)
    expected = roc_auc_score(labels[test_rows], scores_of(fit.network, images[test_rows]))
    assert result.auc()[1, 0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_loss_learns_from_balanced_digits(method):
    """With all positives in place three epochs are enough to tell the halves apart."""
    images, labels, train_rows, test_rows = load()
    settings = DigitsSettings(epochs=4, positives_per_batch=32)
    fit = train(method, images[train_rows], labels[train_rows], seed=0, settings=settings)
    assert roc_auc_score(labels[test_rows], scores_of(fit.network, images[test_rows])) > 0.93


def test_same_seed_same_start_and_result():
    images, labels, train_rows, _ = load()
    rows = train_rows[:300]
    first, again = (train(METHODS[3], images[rows], labels[rows], seed=3, settings=QUICK) for _ in range(2))
    for mine, theirs in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_training_leaves_the_global_generator_alone():
    images, labels, train_rows, _ = load()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(METHODS[0], images[train_rows[:300]], labels[train_rows[:300]], seed=3, settings=QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_validation_never_reads_a_test_image(monkeypatch):
    """With the test images replaced by NaN the validation AUC is the same number."""
    from deepauc.demo import digits

    images, labels, train_rows, test_rows = load()
    expected = validation_auc(METHODS[0], seed=100, settings=QUICK)
    spoilt = images.clone()
    spoilt[test_rows] = torch.nan
    monkeypatch.setattr(digits, "load", lambda: (spoilt, labels, train_rows, test_rows))
    assert validation_auc(METHODS[0], seed=100, settings=QUICK) == expected
