"""Grids: every combination once, draws that never change, prefixes that are draws themselves."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.studies.grid import product, sample

AXES = {"margin": (0.1, 0.3, 1.0), "gamma": (0.01, 0.002)}
axes_strategy = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True), max_size=3
)


def test_product_is_every_combination_in_order():
    assert [tuple(c.values()) for c in product(AXES).configs] == list(itertools.product(*AXES.values()))


def test_no_axis_is_one_configuration_that_sets_nothing():
    assert product({}).configs == ({},)


@given(axes_strategy, st.integers(1, 20), st.integers(0, 5))
@settings(derandomize=True, deadline=None)
def test_sample_draws_without_repetition_from_the_product(axes, n, seed):
    drawn, full = sample(axes, n=n, seed=seed).configs, list(product(axes).configs)
    assert len(drawn) == min(n, len(full))
    assert all(config in full for config in drawn)
    assert len({repr(config) for config in drawn}) == len(drawn)


@given(axes_strategy, st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
@settings(derandomize=True, deadline=None)
def test_the_first_of_a_draw_are_the_smaller_draw(axes, few, more, seed):
    few, more = sorted((few, more))
    assert sample(axes, n=more, seed=seed).first(few).configs == sample(axes, n=few, seed=seed).configs


def test_a_cut_of_a_product_is_a_draw_by_seed_0():
    assert product(AXES).first(4) == sample(AXES, n=4, seed=0)
    assert product(AXES).first(6) == product(AXES)


def test_the_draw_is_fixed_for_ever():
    recorded = [
        (0.1, 0.002),
        (0.3, 0.002),
        (1.0, 0.002),
    ]  # by the first version: a change here would change the grids of finished studies
    assert [tuple(c.values()) for c in sample(AXES, n=3, seed=14).configs] == recorded


@pytest.mark.parametrize("axes", [{"lr": ()}, {"lr": 0.1}, {"lr": "0.1"}, {"lr": (0.1, 0.1)}])
def test_bad_axes_are_named(axes):
    with pytest.raises(ValueError, match="lr"):
        product(axes)
