"""DeLong against pROC's numbers, Obuchowski against its sums written out, the bootstrap against plain resampling."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, norm

from deepauc.metrics.auroc import auroc
from deepauc.metrics.basis import bootstrap
from deepauc.metrics.basis.bootstrap import resampled_auroc, resampled_weights
from deepauc.metrics.basis.columns import read_columns
from deepauc.metrics.intervals import auroc_interval, delong_variance, wilson_limits

GOLDEN = json.loads((Path(__file__).parent / "golden" / "delong.json").read_text())["cases"]


def problem(n=120, share=0.3, seed=0, digits=1):
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < share).astype(int)
    labels[:4] = [0, 1, 0, 1]
    groups = rng.integers(0, n // 3, n)
    groups[:4] = range(4)
    return (rng.standard_normal(n) + labels).round(digits), labels, groups


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_delong_equals_proc(case):
    scores, labels = np.array(case["a"]), np.array(case["labels"])
    assert auroc(scores, labels) == pytest.approx(case["auc_a"], abs=1e-14)
    variance = delong_variance(scores, labels)
    assert variance == pytest.approx(case["var_a"], rel=1e-10)
    plain = case["auc_a"] + np.array([-1, 1]) * norm.ppf(0.975) * np.sqrt(variance)
    np.testing.assert_allclose(np.clip(plain, 0, 1), case["plain_interval"], rtol=1e-10)
    found = auroc_interval(scores, labels)
    np.testing.assert_allclose([found.low, found.high], case["logit_interval"], rtol=1e-10)


def obuchowski_written_out(scores, labels, groups):
    """Obuchowski (1997), section 3, with loops over patients and pairs."""
    psi = lambda x, y: 1.0 if x > y else 0.5 if x == y else 0.0  # noqa: E731
    x, gx = scores[labels == 1], groups[labels == 1]
    y, gy = scores[labels == 0], groups[labels == 0]
    m, n = len(x), len(y)
    v10 = np.array([sum(psi(a, b) for b in y) / n for a in x])
    v01 = np.array([sum(psi(a, b) for a in x) / m for b in y])
    theta = v10.mean()
    patients = sorted(set(gx) | set(gy))
    t10 = np.array([sum(v10[gx == g]) - sum(gx == g) * theta for g in patients])
    t01 = np.array([sum(v01[gy == g]) - sum(gy == g) * theta for g in patients])
    i10, i01, i = len(set(gx)), len(set(gy)), len(patients)
    s10 = i10 / ((i10 - 1) * m) * sum(t10**2)
    s01 = i01 / ((i01 - 1) * n) * sum(t01**2)
    s11 = i / (i - 1) * sum(t10 * t01)
    return s10 / m + s01 / n + 2 * s11 / (m * n)


@pytest.mark.parametrize("seed", range(3))
def test_clustered_variance_equals_obuchowskis_sums(seed):
    scores, labels, groups = problem(seed=seed)
    expected = obuchowski_written_out(scores, labels, groups)
    assert delong_variance(scores, labels, groups=groups) == pytest.approx(expected, rel=1e-12)
    names = np.array([f"patient {g}" for g in groups])
    assert delong_variance(scores, labels, groups=names) == pytest.approx(expected, rel=1e-12)
    assert delong_variance(scores, labels, groups=names.astype(object)) == pytest.approx(expected, rel=1e-12)


def test_clusters_of_one_and_of_copies():
    scores, labels, _ = problem()
    rows = np.arange(labels.size)
    plain = delong_variance(scores, labels)
    assert delong_variance(scores, labels, groups=rows) == pytest.approx(plain, rel=1e-12)
    # Five copies of each patient's row add nothing to what is known.
    copied = delong_variance(np.tile(scores, 5), np.tile(labels, 5), groups=np.tile(rows, 5))
    assert copied == pytest.approx(plain, rel=1e-12)
    assert delong_variance(np.tile(scores, 5), np.tile(labels, 5)) < plain / 4


@given(seed=st.integers(0, 10_000), method=st.sampled_from(["delong", "bootstrap"]), clustered=st.booleans())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_the_interval_holds_the_value_and_stays_inside(seed, method, clustered):
    scores, labels, groups = problem(n=24, seed=seed, digits=0)
    found = auroc_interval(scores, labels, method=method, groups=groups if clustered else None, n_resamples=200)
    assert found.value == auroc(scores, labels)
    assert 0 <= found.low < found.high <= 1
    assert found.low <= found.value <= found.high
    narrow = auroc_interval(scores, labels, groups=groups if clustered else None, level=0.5)
    wide = auroc_interval(scores, labels, groups=groups if clustered else None, level=0.99)
    assert wide.low < narrow.low <= narrow.high < wide.high or found.value in (0.0, 1.0)


def plain_resamples(scores, labels, rng, count):
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    for _ in range(count):
        rows = np.concatenate([rng.choice(positives, positives.size), rng.choice(negatives, negatives.size)])
        yield auroc(scores[rows], labels[rows])


@pytest.mark.parametrize("share", [0.04, 0.5, 0.96])
@pytest.mark.parametrize("by_cell", [True, False])
@pytest.mark.parametrize("digits", [0, 6])
def test_resampled_counts_are_distributed_as_resampled_rows(monkeypatch, share, by_cell, digits):
    monkeypatch.setattr(bootstrap, "DRAWS_PER_CELL", 0 if by_cell else 10**9)
    scores, labels, _ = problem(n=200, share=share, digits=digits)
    column = next(iter(read_columns(scores, labels)))
    fast = resampled_auroc(column, n_resamples=6000, rng=np.random.default_rng(1))
    slow = np.array(list(plain_resamples(scores, labels, np.random.default_rng(2), 1500)))
    assert fast.mean() == pytest.approx(slow.mean(), abs=4 * slow.std() / np.sqrt(1500))
    assert fast.std() == pytest.approx(slow.std(), rel=0.08)
    assert ks_2samp(fast, slow).pvalue > 1e-3


def test_replicates_of_a_tiny_sample_are_all_of_its_resamples():
    scores, labels = np.array([1.0, 3.0, 2.0, 2.0, 0.0]), np.array([1, 1, 0, 0, 0])
    exact = [
        auroc(np.concatenate([scores[list(p)], scores[2:][list(q)]]), [1, 1, 0, 0, 0])
        for p in np.ndindex(2, 2)
        for q in np.ndindex(3, 3, 3)
    ]
    column = next(iter(read_columns(scores, labels)))
    drawn = resampled_auroc(column, n_resamples=40_000, rng=np.random.default_rng(0))
    assert set(drawn.round(12)) == set(np.round(exact, 12))
    for value in set(exact):
        share = np.mean(np.isclose(exact, value))
        assert np.mean(np.isclose(drawn, value)) == pytest.approx(share, abs=4 * np.sqrt(share / 40_000))


def test_patients_are_resampled_whole():
    scores, labels, groups = problem(n=90)
    rng = np.random.default_rng(5)
    column = next(iter(read_columns(scores, labels, groups=groups)))
    rows_of = [np.flatnonzero(groups == g) for g in np.unique(groups)]
    slow = []
    for _ in range(1500):
        rows = np.concatenate([rows_of[i] for i in rng.integers(0, len(rows_of), len(rows_of))])
        slow.append(auroc(scores[rows], labels[rows]))
    fast = resampled_auroc(column, n_resamples=6000, rng=np.random.default_rng(1))
    assert ks_2samp(fast, slow).pvalue > 1e-3
    for weights in resampled_weights(column, n_resamples=20, rng=rng):
        for rows in rows_of:
            assert np.unique(weights[rows]).size == 1


def test_resamples_without_a_class_are_drawn_again():
    scores, labels = np.array([3.0, 1.0, 2.0, 0.0, 0.5, 0.7]), np.array([1, 1, 0, 0, 0, 0])
    groups = np.arange(6)  # two positive patients of six: one sample in eleven has no positive
    column = next(iter(read_columns(scores, labels, groups=groups)))
    drawn = resampled_auroc(column, n_resamples=500, rng=np.random.default_rng(0))
    assert drawn.shape == (500,)
    assert np.isfinite(drawn).all()
    for weights in resampled_weights(column, n_resamples=200, rng=np.random.default_rng(0)):
        assert weights[labels == 1].any()
        assert weights[labels == 0].any()


def test_weights_of_a_stratified_resample_keep_the_class_counts():
    scores, labels, _ = problem(n=60)
    column = next(iter(read_columns(scores, labels)))
    for weights in resampled_weights(column, n_resamples=20, rng=np.random.default_rng(0)):
        assert weights[labels == 1].sum() == (labels == 1).sum()
        assert weights[labels == 0].sum() == (labels == 0).sum()


def test_bca_equals_scipys():
    from scipy.stats import bootstrap as scipy_bootstrap

    scores, labels, _ = problem(n=150, share=0.4, digits=6)
    positives, negatives = scores[labels == 1], scores[labels == 0]
    ours = auroc_interval(scores, labels, method="bootstrap", n_resamples=20_000)

    def statistic(x, y):
        return auroc(np.concatenate([x, y]), np.repeat([1, 0], [x.size, y.size]))

    theirs = scipy_bootstrap(
        (positives, negatives), statistic, n_resamples=4000, vectorized=False, method="BCa", rng=0
    ).confidence_interval
    assert [ours.low, ours.high] == pytest.approx([theirs.low, theirs.high], abs=0.006)


def test_a_perfect_ranking_has_no_interval_of_width_zero():
    scores, labels = np.arange(30.0), np.repeat([0, 1], [20, 10])
    for method in ("delong", "bootstrap"):
        perfect = auroc_interval(scores, labels, method=method)
        assert (perfect.value, perfect.high) == (1.0, 1.0)
        assert perfect.low**10 == pytest.approx(0.025)  # ten pairs without a common sample, all in order
        reversed_ = auroc_interval(-scores, labels, method=method)
        assert (reversed_.value, reversed_.low) == (0.0, 0.0)
        assert reversed_.high == pytest.approx(1 - perfect.low)
        constant = auroc_interval(0 * scores, labels, method=method)
        assert constant.value == 0.5
        assert (constant.low, constant.high) == pytest.approx(wilson_limits(5, 10, 0.95))


def test_a_perfect_ranking_of_few_patients_counts_patients():
    scores, labels = np.arange(30.0), np.repeat([0, 1], [20, 10])
    groups = np.arange(30) // 5  # four patients with negatives, two with positives
    assert auroc_interval(scores, labels, groups=groups).low ** 2 == pytest.approx(0.025)
    mixed = np.tile(np.arange(5), 6)  # five patients with both: two pairs of different patients
    assert auroc_interval(scores, labels, groups=mixed).low ** 2 == pytest.approx(0.025)


@pytest.mark.parametrize("method", ["delong", "bootstrap"])
def test_columns_with_missing_labels_are_single_calls(method):
    rng = np.random.default_rng(0)
    labels = (rng.random((150, 2)) < 0.4).astype(float)
    scores, groups = rng.standard_normal((150, 2)) + labels, rng.integers(0, 60, 150)
    labels[rng.random((150, 2)) < 0.2] = np.nan
    both = auroc_interval(torch.tensor(scores), torch.tensor(labels), method=method, groups=groups, n_resamples=300)
    for j in range(2):
        rows = ~np.isnan(labels[:, j])
        one = auroc_interval(scores[rows, j], labels[rows, j], method=method, groups=groups[rows], n_resamples=300)
        assert (both.value[j], both.low[j], both.high[j]) == pytest.approx((one.value, one.low, one.high))


def test_the_bootstrap_repeats_itself_by_seed_and_leaves_the_global_generator_alone():
    scores, labels, _ = problem()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = auroc_interval(scores, labels, method="bootstrap", n_resamples=300)
    assert auroc_interval(scores, labels, method="bootstrap", n_resamples=300) == first
    assert auroc_interval(scores, labels, method="bootstrap", n_resamples=300, seed=1) != first
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_wilson_equals_published_values():
    # Newcombe (1998), table I: 81 of 263 gives .2553 to .3662, 0 of 20 gives 0 to .1611, 1 of 29 gives .0061 to .1718.
    for successes, trials, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)):
        assert wilson_limits(successes, trials, 0.95) == pytest.approx((low, high), abs=5e-5)
    assert wilson_limits(0, 0, 0.95) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "wald"}, "delong"),
        ({"level": 95}, "level"),
        ({"method": "bootstrap", "n_resamples": 10}, "n_resamples"),
        ({"groups": [1, 2]}, "groups have shape"),
        ({"groups": [1.0, 2.0, np.nan, 3.0, 4.0, 4.0]}, "missing in 1 rows"),
        ({"groups": np.array(["a", None, "b", "c", "d", "d"], dtype=object)}, "missing in 1 rows"),
        ({"groups": ["a", np.nan, "b", np.nan, "d", "d"]}, "missing in 2 rows"),
        ({"groups": pd.Series(["a", pd.NA, "b", None, "d", "d"], dtype="string")}, "missing in 2 rows"),
        ({"groups": [0, 0, 0, 1, 2, 3]}, r"two groups \(patients\) with a positive"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        auroc_interval([0.1, 0.4, 0.2, 0.3, 0.5, 0.0], [1, 1, 1, 0, 0, 0], **options)


@pytest.mark.parametrize("method", ["delong", "bootstrap"])
def test_one_positive_is_too_few(method):
    with pytest.raises(ValueError, match="at least two positives"):
        auroc_interval([0.1, 0.4, 0.2], [1, 0, 0], method=method)
    with pytest.raises(ValueError, match="one positive and one negative"):
        auroc_interval([0.1, 0.4, 0.2], [0, 0, 0], method=method)
