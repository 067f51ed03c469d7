"""The partial AUC loss against a loop over the chosen pairs, and its memory against the quantile of all rows."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.objectives import partial_auc
from deepauc.objectives.pairwise import PairwiseAUCLoss
from deepauc.objectives.partial_auc import PartialAUC, PartialAUCLoss, partial_auc_loss
from tests.objectives.test_pairwise import OF_Z, SURROGATES, batch, value_and_grad

LIMITS = [(0.3, 0.0), (1.0, 0.8), (0.3, 0.55), (0.05, 0.9), (0.999, 0.001)]


def chosen(scores, masses, share, *, highest):
    """Each row's share of what is left, going through the rows in order; one row after the other."""
    scores, masses = scores.detach(), masses.double()
    left = share * float(masses.sum())
    kept = [0.0] * len(scores)
    for row in sorted(range(len(scores)), key=lambda i: float(-scores[i] if highest else scores[i])):
        kept[row] = min(max(left, 0.0), float(masses[row]))
        left -= float(masses[row])
    return torch.tensor(kept, dtype=torch.float64)


def brute_force(scores, labels, weights=None, *, max_fpr, min_tpr, surrogate="squared_hinge", margin=1.0):
    columns = [scores] if scores.ndim == 1 else list(scores.unbind(1))
    of_labels = [labels] if scores.ndim == 1 else list(labels.unbind(1))
    total = scores.sum() * 0
    for k, (h, y) in enumerate(zip(columns, of_labels, strict=True)):
        w = torch.ones(len(h)) if weights is None else weights if weights.ndim == 1 else weights[:, k]
        m = margin[k] if isinstance(margin, list) else margin
        positive, negative = y == 1, y == 0
        u = chosen(h[positive], w[positive], 1 - min_tpr, highest=False)
        v = chosen(h[negative], w[negative], max_fpr, highest=True)
        if u.sum() > 0 and v.sum() > 0:
            z = m - (h[positive][:, None] - h[negative][None, :])
            mass = u[:, None] * v[None, :]
            total = total + (mass * OF_Z[surrogate](z)).sum() / mass.sum()
    return total / len(columns)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_value_and_gradient_are_those_of_the_chosen_pairs(surrogate, limits, offset):
    scores, labels = batch(90)
    options = dict(zip(("max_fpr", "min_tpr"), limits, strict=True))
    shifted = (scores + offset) - offset
    loss, grad = value_and_grad(partial_auc_loss, shifted + offset, labels, surrogate=surrogate, margin=0.7, **options)
    expected, expected_grad = value_and_grad(brute_force, shifted, labels, surrogate=surrogate, margin=0.7, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("weighted", [False, True])
def test_without_limits_it_is_the_loss_over_all_pairs_to_the_bit(surrogate, weighted):
    scores, labels = batch(40, 2, dtype=torch.float32)
    weights = torch.rand(40) if weighted else None
    found = value_and_grad(PartialAUCLoss(surrogate=surrogate), scores, labels, weights)
    expected = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels, weights)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("weighted", ["no", "rows", "entries"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_several_labels_missing_and_weighted(surrogate, weighted):
    scores, labels = batch(60, 3, seed=4)
    labels = labels.double()
    labels[torch.rand(60, 3, generator=torch.Generator().manual_seed(1)) < 0.2] = torch.nan
    scores[labels.isnan()] = torch.inf  # beside a missing label anything may stand
    weights = {"no": None, "rows": torch.rand(60), "entries": torch.rand(60, 3)}[weighted]
    if weights is not None:
        weights[7] = 0.0
    options = {"surrogate": surrogate, "margin": [0.2, 0.7, 1.5], "max_fpr": 0.4, "min_tpr": 0.5}
    loss, grad = value_and_grad(PartialAUCLoss(**options), scores, labels, weights)
    known = torch.where(labels.isnan(), 0, scores)
    expected, expected_grad = value_and_grad(brute_force, known, labels, weights, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-9, atol=1e-13)
    assert (grad[labels.isnan()] == 0).all()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_gradient_by_differences(surrogate):
    scores, labels = batch(14, seed=2)
    loss_fn = PartialAUCLoss(max_fpr=0.35, min_tpr=0.4, surrogate=surrogate)
    assert torch.autograd.gradcheck(lambda h: loss_fn(h, labels), scores.requires_grad_())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_cost_what_their_pairs_cost(data):
    """Which of several equal rows takes part does not matter for the value; whole classes may tie."""
    n = data.draw(st.integers(2, 25))
    scores = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=torch.float64)
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    options = {"max_fpr": data.draw(st.floats(0.01, 1)), "min_tpr": data.draw(st.floats(0, 0.99))}
    loss = partial_auc_loss(scores, labels, **options)
    torch.testing.assert_close(loss, brute_force(scores, labels, **options), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gpus_path_is_the_cpus(surrogate, weighted):
    scores, labels = batch(45, 3, dtype=torch.float32)
    labels = labels.double()
    labels[:, 1] = 0.0  # a label without a pair
    labels[3] = torch.nan
    scores[3] = torch.inf
    weights = torch.rand(45) if weighted else None
    limits = partial_auc.Limits.of(0.3, 0.6)
    selected = partial_auc._selected(scores, labels, weights, limits, surrogate, 0.75)
    masked = partial_auc._masked(scores, labels, weights, limits, surrogate, 0.75, None)
    torch.testing.assert_close(masked, selected, rtol=1e-6, atol=1e-9)
    assert masked[0] > 0


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_the_gpus_path_is_one_graph_for_the_compiler(surrogate, monkeypatch):
    """Nothing in it looks at a value, the memory included: what a CUDA graph can capture."""
    scores, labels = batch(24, 2, dtype=torch.float32)
    torch.compiler.reset()  # the compiler gives up a method that it has seen in eight forms
    options = {"max_fpr": 0.02, "min_tpr": 0.95, "surrogate": surrogate, "num_labels": 2}
    plain, compiled = PartialAUCLoss(**options), PartialAUCLoss(**options)
    monkeypatch.setattr(partial_auc, "_too_small", lambda *_: True)
    whole = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for step in range(3):
        expected = value_and_grad(plain, scores + step * labels, labels)
        found = value_and_grad(whole, scores + step * labels, labels)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
        assert torch.equal(compiled.positive_memory, plain.positive_memory)
    assert (plain.positive_memory[..., 1] > 0).any()


@pytest.mark.parametrize("labels", [torch.zeros(5), torch.ones(5), torch.full((5,), torch.nan), torch.zeros(0)])
def test_a_batch_without_a_pair_costs_nothing(labels):
    scores = torch.rand(len(labels), requires_grad=True)
    loss = PartialAUCLoss(max_fpr=0.3, min_tpr=0.8)(scores, labels)
    loss.backward()
    assert loss == 0
    assert (scores.grad == 0).all()


def test_soft_and_other_labels_are_refused():
    loss_fn = PartialAUCLoss(max_fpr=0.3)
    with pytest.raises(ValueError, match=r"hold 0\.5\. Round them\."):
        loss_fn(torch.rand(2), torch.tensor([0.5, 1]))
    with pytest.raises(ValueError, match="labels > 0"):
        loss_fn(torch.rand(2), torch.tensor([-1.0, 1]))


@pytest.mark.parametrize("options", [{"max_fpr": 0.0}, {"max_fpr": 1.5}, {"min_tpr": 1.0}, {"min_tpr": -0.1}])
def test_limits_outside_their_range_are_refused(options):
    for make in (PartialAUCLoss, PartialAUC):
        with pytest.raises(ValueError, match="must lie in"):
            make(**options)


def small_batches(number, *, positives=1, negatives=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([1] * positives + [0] * negatives)
    for _ in range(number):
        yield torch.randn(len(labels), generator=generator, dtype=torch.float64) + labels, labels


def test_the_first_small_batch_goes_by_its_own_quantile():
    ((scores, labels),) = small_batches(1)
    options = {"max_fpr": 0.1, "min_tpr": 0.8}
    found = value_and_grad(PartialAUCLoss(**options), scores, labels)
    torch.testing.assert_close(found, value_and_grad(brute_force, scores, labels, **options))


def test_a_small_batch_is_placed_among_the_latest_scores_of_its_class():
    """The row's part in the lowest 20 % of kept and own positives, over the expected 0.2 of a row."""
    loss_fn = PartialAUCLoss(min_tpr=0.8)
    size = loss_fn.positive_memory.shape[1]
    assert size == 40
    seen = []
    for scores, labels in small_batches(60):
        loss, grad = value_and_grad(loss_fn, scores, labels)
        seen.append(float(scores[0]))
        among = torch.tensor(seen[-size - 1 :], dtype=torch.float64)
        part = chosen(among, torch.ones(len(among)), 0.2, highest=False)[-1]
        expected, expected_grad = value_and_grad(PairwiseAUCLoss(), scores, labels)
        torch.testing.assert_close(loss, expected * part / 0.2, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(grad, expected_grad * part / 0.2, rtol=1e-6, atol=1e-9)
    assert loss_fn.positive_memory[0, :, 0].tolist() == pytest.approx(seen[-size:], rel=1e-6)


def test_over_many_small_batches_the_mean_is_that_of_the_whole_class():
    """One positive a batch, where the batch's own quantile would make it the loss over all positives."""
    batches = list(small_batches(1500))
    scores, labels = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    loss_fn = PartialAUCLoss(min_tpr=0.8)
    mean = torch.stack([loss_fn(*one) for one in batches]).mean()
    exact, all_pairs = partial_auc_loss(scores, labels, min_tpr=0.8), PairwiseAUCLoss()(scores, labels)
    assert exact > 2.5 * all_pairs
    assert mean == pytest.approx(float(exact), rel=0.05)


def test_large_batches_need_no_memory_and_evaluation_keeps_nothing():
    scores, labels = batch(200)
    loss_fn = PartialAUCLoss(max_fpr=0.3, min_tpr=0.8)
    loss_fn(scores, labels)
    assert not loss_fn.positive_memory.any()
    loss_fn.eval()
    loss_fn(scores[:6], torch.tensor([1, 0, 0, 0, 0, 0]))
    assert not loss_fn.positive_memory.any()
    loss_fn.train()
    loss_fn(scores[:6], torch.tensor([1, 0, 0, 0, 0, 0]))
    assert loss_fn.positive_memory.any()
    assert not loss_fn.negative_memory.any()  # 5 negatives have 1.5 rows beyond 30 %


@pytest.mark.parametrize("told", [None, 2])
def test_a_restored_loss_goes_on_to_the_bit(told):
    def run(loss_fn, batches):
        return [value_and_grad(loss_fn, torch.stack([s, -s], 1), torch.stack([y, y], 1)) for s, y in batches]

    batches = list(small_batches(30))
    options = {"max_fpr": 0.1, "min_tpr": 0.8}
    whole = PartialAUCLoss(**options)
    expected = run(whole, batches)[15:]
    half = PartialAUCLoss(**options)
    run(half, batches[:15])
    resumed = PartialAUCLoss(**options, num_labels=told)
    resumed.load_state_dict(half.state_dict())
    for loss_fn in (resumed, copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        for (loss, grad), (other, other_grad) in zip(run(loss_fn, batches[15:]), expected, strict=True):
            assert torch.equal(loss, other)
            assert torch.equal(grad, other_grad)


def test_another_number_of_labels_is_refused():
    loss_fn = PartialAUCLoss(min_tpr=0.8)
    loss_fn(torch.rand(4, 2), torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1]]))
    with pytest.raises(ValueError, match="2 labels but got 1"):
        loss_fn(torch.rand(4), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e8])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_raw_scores_of_any_size_are_finite(surrogate, scale):
    """LibAUC's KL forms are NaN there; the chosen pairs are the same whatever the scale."""
    scores, labels = batch(60, dtype=torch.float32)
    loss, grad = value_and_grad(PartialAUCLoss(max_fpr=0.3, min_tpr=0.8, surrogate=surrogate), scale * scores, labels)
    assert loss.isfinite()
    assert grad.isfinite().all()
    assert loss > 0
