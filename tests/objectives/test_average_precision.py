"""SOAP's loss against loops over rows, the smoothed AP by finite differences, and its estimates over many batches."""

import copy
import pickle

import pytest
import torch

from deepauc.metrics.average_precision import average_precision
from deepauc.objectives import average_precision as module
from deepauc.objectives.average_precision import (
    AveragePrecision,
    AveragePrecisionLoss,
    smoothed_average_precision,
)
from tests.objectives.test_pairwise import value_and_grad


def problem(rows=30, labels=None, share=0.3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shape = (rows,) if labels is None else (rows, labels)
    y = (torch.rand(shape, generator=generator) < share).double()
    y[0] = 1
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + y).to(dtype), y


def means_of(h, y, w, i, margin):
    """(u+_i, u_i) by a loop over the rows."""
    above, positive, total = 0.0, 0.0, 0.0
    for j in range(len(h)):
        if y[j].isnan():
            continue
        cost = float(w[j]) * max(margin - (float(h[i]) - float(h[j])), 0) ** 2
        above, positive, total = above + cost, positive + cost * float(y[j]), total + float(w[j])
    return positive / total, above / total


def by_loops(h, y, w=None, margin=1.0):
    w = torch.ones(len(h)) if w is None else w
    ranks, total = 0.0, 0.0
    for i in range(len(h)):
        if y[i] == 1:
            u_positive, u = means_of(h, y, w, i, margin)
            ranks, total = ranks + float(w[i]) * u_positive / u, total + float(w[i])
    return ranks / total if total else 1.0


@pytest.mark.parametrize("margin", [0.3, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_smoothed_ap_is_the_loop_over_rows(margin, weighted):
    scores, labels = problem()
    labels[4] = torch.nan
    weights = torch.rand(30, dtype=torch.float64) if weighted else None
    found = smoothed_average_precision(scores, labels, weights, margin=margin)
    assert float(found) == pytest.approx(by_loops(scores, labels, weights, margin), rel=1e-12)


def test_perfect_constant_and_reversed_rankings():
    """Beyond the margin a perfect ranking has AP 1, as the metric says; constant scores have the share of positives."""
    labels = torch.tensor([1.0, 1, 0, 1, 0, 0])
    perfect = 3 * labels.double()
    assert float(smoothed_average_precision(perfect, labels)) == pytest.approx(average_precision(perfect, labels))
    constant = float(smoothed_average_precision(0 * perfect, labels))
    assert constant == pytest.approx(average_precision(0 * perfect, labels))
    assert float(smoothed_average_precision(-perfect, labels)) < 0.2 < constant


@pytest.mark.parametrize("weighted", [False, True])
def test_in_full_batches_with_memory_1_it_is_the_gradient_of_the_smoothed_ap(weighted):
    scores, labels = problem(labels=2)
    labels[5, 1] = torch.nan
    weights = torch.rand(30, dtype=torch.float64) if weighted else None
    loss_fn, index = AveragePrecisionLoss(30, memory=1.0), torch.randperm(30)
    assert torch.autograd.gradcheck(lambda h: loss_fn(h, labels, index, weights), scores.clone().requires_grad_())
    found = value_and_grad(loss_fn, scores, labels, index, weights)
    expected = value_and_grad(lambda h: 1 - smoothed_average_precision(h, labels, weights), scores)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    w = torch.ones(30) if weights is None else weights
    assert float(found[0]) == pytest.approx(1 - sum(by_loops(scores[:, k], labels[:, k], w) for k in (0, 1)) / 2)


def soap_by_loops(batches, num_rows, margin, memory):
    """The paper's algorithm, one row after the other: the value and the scores' gradient of each batch."""
    u = {}
    for h, y, index in batches:
        rows = [i for i in range(len(h)) if y[i] == 1]
        w, updates = torch.ones(len(h)), {}
        for i in rows:
            updates.setdefault(int(index[i]), []).append(means_of(h, y, w, i, margin))
        for row, found in updates.items():
            mean = [sum(one) / len(found) for one in zip(*found, strict=True)]
            old = u.get(row)
            u[row] = mean if old is None else [(1 - memory) * o + memory * m for o, m in zip(old, mean, strict=True)]
        value, gradient = 0.0, torch.zeros(len(h), dtype=torch.float64)
        for i in rows:
            u_positive, u_all = u[int(index[i])]
            value += (1 - u_positive / u_all) / len(rows)
            for j in range(len(h)):
                p = (u_positive - u_all * float(y[j])) / u_all**2 / (len(h) * len(rows))
                slope = 2 * max(margin - float(h[i] - h[j]), 0)
                gradient[i] -= p * slope
                gradient[j] += p * slope
        yield value, gradient


@pytest.mark.parametrize("memory", [0.3, 1.0])
@pytest.mark.parametrize("twice", [False, True])
def test_batches_follow_the_algorithm_row_by_row(memory, twice):
    scores, labels = problem(24)
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(12):
        index = (
            torch.randint(0, 24, (8,), generator=generator) if twice else torch.randperm(24, generator=generator)[:8]
        )
        noise = 0.3 * torch.randn(8, generator=generator, dtype=torch.float64)  # each time augmented otherwise
        batches.append((scores[index] + noise, labels[index], index))
    loss_fn = AveragePrecisionLoss(24, margin=0.8, memory=memory)
    drawn_twice = False
    for (h, y, index), (value, gradient) in zip(batches, soap_by_loops(batches, 24, 0.8, memory), strict=True):
        drawn_twice |= len(index[y == 1].unique()) < int((y == 1).sum())
        found, grad = value_and_grad(loss_fn, h, y, index)
        assert float(found) == pytest.approx(value, rel=1e-6, abs=1e-9)  # estimates are kept in float32
        torch.testing.assert_close(grad, gradient, rtol=1e-5, atol=1e-8)
    assert drawn_twice is twice


def test_with_a_memory_the_batches_mean_gradient_nears_that_of_the_whole_set():
    """And without one it does not: a quotient of a batch's means is biased."""
    scores, labels = problem(64, share=0.2)
    exact = value_and_grad(lambda h: 1 - smoothed_average_precision(h, labels), scores)[1]

    def mean_gradient(memory):
        loss_fn, generator = AveragePrecisionLoss(64, memory=memory), torch.Generator().manual_seed(0)
        total = torch.zeros(64, dtype=torch.float64)
        positives, negatives = (labels == 1).nonzero().squeeze(1), (labels == 0).nonzero().squeeze(1)
        quota = max(1, round(8 * len(positives) / 64))
        for epoch in range(900):
            drawn = [
                torch.randperm(len(of), generator=generator)[:k]
                for of, k in ((positives, quota), (negatives, 8 - quota))
            ]
            index = torch.cat([positives[drawn[0]], negatives[drawn[1]]])
            grad = value_and_grad(loss_fn, scores[index], labels[index], index)[1]
            if epoch >= 300:
                total.index_add_(0, index, grad)
        return total / 600

    def distance(found):
        scale = (found @ exact) / (found @ found)  # a batch's size enters as a factor
        return float((scale * found - exact).norm() / exact.norm())

    assert distance(mean_gradient(0.05)) < 0.5 * distance(mean_gradient(1.0))


@pytest.mark.parametrize("memory", [0.4, 1.0])
def test_the_gpus_path_is_the_cpus_and_one_graph(memory):
    plain, compiled = (AveragePrecisionLoss(20, memory=memory, num_labels=2) for _ in range(2))
    whole = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for step in range(4):
        scores, _ = problem(12, labels=2, seed=step, dtype=torch.float32)
        index = torch.randint(0, 20, (12,), generator=torch.Generator().manual_seed(step))
        labels = torch.stack([(index % 3 == 0), (index % 4 == 0)], 1).double()
        labels[2] = torch.nan
        found = value_and_grad(whole, scores, labels, index)
        expected = value_and_grad(plain, scores, labels, index)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(compiled.estimates, plain.estimates)
    assert (plain.estimates[0, :, 1] > 0).any()


def test_labels_do_not_mix_and_missing_ones_drop_out():
    scores, labels = problem(labels=3)
    labels[labels.roll(3) == 1] = torch.nan
    scores[labels.isnan()] = torch.inf
    index = torch.arange(30)
    both = AveragePrecisionLoss(30)(scores, labels, index)
    each = []
    for k in range(3):
        known = ~labels[:, k].isnan()
        each.append(AveragePrecisionLoss(30)(scores[known, k], labels[known, k], index[known]))
    torch.testing.assert_close(both, torch.stack(each).mean())


@pytest.mark.parametrize("labels", [torch.zeros(5), torch.ones(5), torch.full((5,), torch.nan), torch.zeros(0)])
def test_one_class_costs_nothing(labels):
    scores = torch.rand(len(labels), requires_grad=True)
    loss = AveragePrecisionLoss(9)(scores, labels, torch.arange(len(labels)))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores), atol=1e-6, rtol=0)


def test_evaluation_updates_nothing():
    scores, labels = problem()
    loss_fn = AveragePrecisionLoss(30).eval()
    loss_fn(scores, labels, torch.arange(30))
    assert not loss_fn.estimates.any()


@pytest.mark.parametrize("told", [None, 1])
def test_a_restored_loss_goes_on_to_the_bit(told):
    scores, labels = problem(40, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    order = [torch.randperm(40, generator=generator)[:10] for _ in range(20)]

    def run(loss_fn, rows):
        return [value_and_grad(loss_fn, scores[r], labels[r], r) for r in rows]

    expected = run(AveragePrecisionLoss(40), order)[10:]
    half = AveragePrecisionLoss(40)
    run(half, order[:10])
    resumed = AveragePrecisionLoss(40, num_labels=told)
    resumed.load_state_dict(half.state_dict())
    for loss_fn in (resumed, copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        for (loss, grad), (other, other_grad) in zip(run(loss_fn, order[10:]), expected, strict=True):
            assert torch.equal(loss, other)
            assert torch.equal(grad, other_grad)


def test_an_index_that_fits_no_row_is_refused():
    loss_fn, scores, labels = AveragePrecisionLoss(4), torch.rand(2), torch.tensor([0.0, 1])
    for index, message in (
        ([0, 1], "whole numbers, not list"),
        (torch.tensor([0.0, 1]), "whole numbers, not a tensor of torch.float32"),
        (torch.tensor([0]), r"shape \(1,\) for 2 scores"),
        (torch.tensor([0, 4]), "from 0 to 4, but the loss was made for rows 0 to 3"),
        (torch.tensor([-1, 2]), "from -1 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_fn(scores, labels, index)
    with pytest.raises(ValueError, match=r"hold 0\.5\. Round them"):
        loss_fn(scores, torch.tensor([0.5, 1]), torch.arange(2))


@pytest.mark.parametrize("options", [{"margin": 0.0}, {"memory": 0.0}, {"memory": 1.5}, {"margin": float("inf")}])
def test_options_are_checked(options):
    for make in (lambda **o: AveragePrecisionLoss(3, **o), AveragePrecision):
        with pytest.raises(ValueError, match=f"{next(iter(options))} "):
            make(**options)
    with pytest.raises(ValueError, match="num_rows is the number of rows"):
        AveragePrecisionLoss(0)
    with pytest.raises(ValueError, match="give num_rows"):
        AveragePrecision().build(prior=(0.1,))
    assert module.AveragePrecision().build(prior=(0.1, 0.2), num_rows=7).estimates.shape == (2, 7, 2)
