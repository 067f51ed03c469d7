"""The quota is held, every negative is passed once, ranks share batches, a stop in the middle loses nothing."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from deepauc import AUCMarginLoss, ClassQuotaSampler


def binary(n=103, positives=9, seed=0):
    labels = np.zeros(n)
    labels[np.random.default_rng(seed).permutation(n)[:positives]] = 1
    return labels


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(1, 30), st.integers(40, 150), st.integers(1, 7), st.integers(1, 12), st.sampled_from([1, 2, 3]))
def test_quota_and_coverage(positives, negatives, quota, others, ranks):
    quota, batch = quota * ranks, (quota + others) * ranks
    if negatives < batch - quota:
        return
    labels = binary(positives + negatives, positives)
    samplers = [ClassQuotaSampler(labels, batch, quota, 7, rank, ranks) for rank in range(ranks)]
    single = ClassQuotaSampler(labels, batch, quota, 7)
    for _ in range(2):
        epoch = list(zip(*samplers, strict=True))
        assert len(epoch) == len(single) == negatives // (batch - quota)
        for shares, whole in zip(epoch, single, strict=True):
            assert all(labels[share].sum() == quota / ranks for share in shares)
            assert sorted(itertools.chain(*shares)) == sorted(whole)
        drawn = np.array(epoch).ravel()
        seen = drawn[labels[drawn] == 0]
        assert len(np.unique(seen)) == len(seen)  # no negative twice
        counts = np.bincount(drawn[labels[drawn] == 1], minlength=len(labels))[labels == 1]
        assert counts.max() - counts.min() <= 1  # positives are cycled evenly


def test_epochs_differ_and_are_made_again_from_seed_and_epoch():
    sampler = ClassQuotaSampler(binary(), 16, 4, seed=3)
    first, second = list(sampler), list(sampler)
    assert first != second
    again = ClassQuotaSampler(binary(), 16, 4, seed=3)
    again.set_epoch(1)
    assert list(again) == second
    assert list(ClassQuotaSampler(binary(), 16, 4, seed=4)) != first


def test_the_global_generators_are_left_alone():
    torch.manual_seed(0), np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(ClassQuotaSampler(binary(), 16, 4, seed=3))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


@pytest.mark.parametrize("stop", [0, 1, 5, 7])
def test_state_in_the_middle_of_an_epoch(stop):
    whole = ClassQuotaSampler(binary(), 16, 4, seed=3)
    expected = [*whole, *whole]
    sampler = ClassQuotaSampler(binary(), 16, 4, seed=3)
    iterator = iter(sampler)
    drawn = [next(iterator) for _ in range(stop)]
    resumed = ClassQuotaSampler(binary(), 16, 4, seed=3)
    resumed.load_state_dict(sampler.state_dict())
    drawn += [*resumed, *resumed]
    assert drawn[: len(expected)] == expected
    with pytest.raises(ValueError, match="seed"):
        ClassQuotaSampler(binary(), 16, 4, seed=4).load_state_dict(sampler.state_dict())


def test_prior_is_the_share_in_the_stream_and_fits_the_loss():
    sampler = ClassQuotaSampler(binary(), 16, 4, seed=3)
    assert sampler.prior == 0.25
    AUCMarginLoss(prior=sampler.prior)
    loader = DataLoader(TensorDataset(torch.from_numpy(binary())), batch_sampler=sampler)
    assert all(batch.sum() == 4 for (batch,) in loader)


def test_unlabelled_rows_are_never_drawn():
    labels = binary()
    labels[::5] = np.nan
    assert not np.isnan(labels[np.array(list(ClassQuotaSampler(labels, 8, 2, seed=0)))]).any()


def multilabel():
    generator = np.random.default_rng(1)
    labels = (generator.random((400, 3)) < [0.05, 0.2, 0.5]).astype(float)
    labels[generator.random((400, 3)) < 0.1] = np.nan
    return labels


def test_multilabel_one_chosen_label():
    labels = multilabel()
    sampler = ClassQuotaSampler(labels, 20, 5, seed=0, label=1)
    for batch in sampler:
        assert (labels[batch, 1] == 1).sum() == 5
        assert not np.isnan(labels[batch, 1]).any()
    assert sampler.prior[1] == pytest.approx(0.25)
    assert observed_shares(sampler, labels) == pytest.approx(sampler.prior, abs=0.01)


def test_multilabel_round_robin():
    labels = multilabel()
    sampler = ClassQuotaSampler(labels, 20, 5, seed=0)
    batches = list(sampler)
    for turn in range(3):
        assert (labels[batches[turn], turn] == 1).sum() == 5
    assert len(batches) == len(sampler)
    assert observed_shares(sampler, labels) == pytest.approx(sampler.prior, abs=0.02)


def observed_shares(sampler, labels):
    drawn = np.concatenate([np.array(sampler.epoch_table(e)).ravel() for e in range(200)])
    return np.nanmean(labels[drawn], axis=0)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"labels": np.zeros(50)}, "no positive"),
        ({"labels": binary(20, 15)}, "smaller batch_size"),
        ({"labels": binary(), "positives_per_batch": 16}, "between 1"),
        ({"labels": binary(), "positives_per_batch": 0}, "between 1"),
        ({"labels": binary(), "positives_per_batch": 0.25}, "a number of rows, not a share such as 0.25"),
        ({"labels": binary() * 0.5}, r"0\.5\. Round them\.$"),
        ({"labels": binary(), "world_size": 3}, "divisible"),
        ({"labels": binary(), "rank": 2, "world_size": 2}, "rank"),
        ({"labels": binary() * 2 - 1}, "labels > 0"),
        ({"labels": binary(), "label": 4}, "label must be"),
        ({"labels": binary(), "seed": -1}, "seed"),
        ({"labels": np.zeros((3, 4, 5))}, "shape"),
        ({"labels": TensorDataset(torch.zeros(50, 2), torch.zeros(50))}, "takes labels, not a data set"),
    ],
)
def test_bad_input_names_the_remedy(arguments, remedy):
    with pytest.raises(ValueError, match=remedy):
        ClassQuotaSampler(**{"batch_size": 16, "positives_per_batch": 4, "seed": 0, **arguments})


def test_a_reader_that_counts_batches_gets_every_epoch():
    """Lightning stops after len(sampler) batches and never asks for the one that ends the epoch."""
    labels = np.arange(40) % 4 == 0
    counted = ClassQuotaSampler(labels, batch_size=8, positives_per_batch=2, seed=3)
    exhausted = ClassQuotaSampler(labels, batch_size=8, positives_per_batch=2, seed=3)
    for _ in range(3):
        batches = iter(counted)
        assert [next(batches) for _ in range(len(counted))] == list(exhausted)


def test_an_iterator_left_early_is_followed_by_a_whole_epoch():
    labels = (torch.arange(100) % 10 == 0).float()
    for workers in (0, 2):
        sampler = ClassQuotaSampler(labels, 10, 2)
        loader = DataLoader(TensorDataset(labels), batch_sampler=sampler, num_workers=workers)
        next(iter(loader))
        assert sum(1 for _ in loader) == len(loader) == 11
    sampler = ClassQuotaSampler(labels, 10, 2)
    next(iter(sampler))
    assert list(sampler) == sampler.epoch_table(1).tolist()


def test_whole_numbers_written_as_fractions_are_taken_as_such():
    sampler = ClassQuotaSampler(binary(), 16.0, 16 * 0.25, seed=0)
    assert list(sampler) == list(ClassQuotaSampler(binary(), 16, 4, seed=0))
    with pytest.raises(ValueError, match=r"batch_size must be a whole number, not 16\.5"):
        ClassQuotaSampler(binary(), 16.5, 4)
