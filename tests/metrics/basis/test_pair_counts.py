"""Every way of counting pairs gives the integer that a loop over all pairs gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.metrics.basis import pair_counts

TINY = np.float32(1e-45)  # the smallest denormal


def brute_force(scores, positive):
    above, below = scores[positive][:, None], scores[~positive][None, :]
    return int(2 * np.count_nonzero(above > below) + np.count_nonzero(above == below))


def distributions(rng, n):
    normal = rng.standard_normal(n)
    outlier = normal.copy()
    outlier[0] = 1e30
    return {
        "normal": normal,
        "all equal": np.zeros(n),
        "one outlier": outlier,
        "outlier below": -outlier,
        "two clusters": np.where(rng.random(n) < 0.5, 1e-6 * normal, 1e6 + normal),
        "few values": rng.integers(-2, 3, n).astype(float),
        "signed zeros": rng.choice([-0.0, 0.0, TINY, -TINY], n),
        "denormals": rng.integers(-50, 50, n) * float(TINY),
        "all positive": rng.random(n),
        "all negative": -1 - rng.random(n),
        "widest span": rng.choice([-3.4e38, 3.4e38, 0.0, 1.0], n),
        "adjacent floats": 1 + rng.integers(0, 4, n) * np.finfo(np.float32).eps,
    }


NAMES = list(distributions(np.random.default_rng(0), 4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_the_three_ways_agree_with_all_pairs(monkeypatch, name, dtype, share):
    rng = np.random.default_rng(7)
    scores = distributions(rng, 900)[name].astype(dtype)
    positive = rng.random(900) < share
    positive[:2] = [True, False]
    expected = brute_force(scores, positive)
    assert pair_counts._by_sorting(scores[positive], scores[~positive]) == expected
    assert pair_counts._by_radix(scores, positive) == expected
    monkeypatch.setattr(pair_counts, "BLOCK", 128)
    for rare_is_positive in (True, False):  # right for any classes, fast for a rare one
        for radix_from in (1, 1 << 20):
            monkeypatch.setattr(pair_counts, "RADIX_FROM", radix_from)
            found = pair_counts._beside_a_rare_class(scores, positive, rare_is_positive=rare_is_positive)
            assert found == expected


def test_each_size_takes_its_own_way_and_all_are_right(monkeypatch):
    monkeypatch.setattr(pair_counts, "RADIX_FROM", 500)
    taken = []
    for name in ("_by_sorting", "_by_radix", "_beside_a_rare_class"):
        inner = getattr(pair_counts, name)

        def spy(*args, _inner=inner, _name=name, **options):
            taken.append(_name)
            return _inner(*args, **options)

        monkeypatch.setattr(pair_counts, name, spy)
    rng = np.random.default_rng(0)
    expected_ways = {
        (400, 0.5): "_by_sorting",
        (400, 0.02): "_by_sorting",
        (2000, 0.5): "_by_radix",
        (2000, 0.02): "_beside_a_rare_class",
        (2000, 0.98): "_beside_a_rare_class",
    }
    for (n, share), way in expected_ways.items():
        positive = rng.random(n) < share
        scores = (rng.standard_normal(n) + positive).astype(np.float32)
        taken.clear()
        assert pair_counts.twice_concordant(scores, positive) == brute_force(scores, positive)
        assert taken[0] == way


@given(
    data=st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False, width=32), st.booleans()), min_size=2, max_size=60
    )
)
@settings(derandomize=True, deadline=None)
def test_radix_on_any_floats(data):
    for dtype in (np.float32, np.float64):
        scores = np.array([s for s, _ in data], dtype=dtype)
        positive = np.array([p for _, p in data])
        assert pair_counts._by_radix(scores, positive) == brute_force(scores, positive)


def test_a_large_input_at_its_real_thresholds():
    rng = np.random.default_rng(3)
    n = 10 * pair_counts.RADIX_FROM + 17
    scores = rng.standard_normal(n).astype(np.float32)
    for share in (0.01, 0.5):
        positive = rng.random(n) < share
        expected = pair_counts._by_sorting(scores[positive], scores[~positive])
        assert pair_counts.twice_concordant(scores, positive) == expected


def test_integers_beyond_double_precision_are_told_apart():
    scores = np.array([2**60, 2**60 + 1, 2**60 + 2], dtype=np.int64)
    positive = np.array([False, True, False])
    assert pair_counts.twice_concordant(scores, positive) == brute_force(scores, positive) == 2
