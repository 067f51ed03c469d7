"""The pairwise AUC losses against a loop over all pairs."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from deepauc.objectives import pairwise
from deepauc.objectives.pairwise import PairwiseAUCLoss, Surrogate, pairwise_auc_loss, stable_sort

SURROGATES = get_args(Surrogate)
SORTED = ("squared_hinge", "hinge")

OF_Z = {
    "square": lambda z: z**2,
    "squared_hinge": lambda z: z.relu() ** 2,
    "hinge": lambda z: z.relu(),
    "logistic": lambda z: F.softplus(z, threshold=700),
}


def brute_force(scores, labels, weights=None, *, surrogate, margin=1.0):
    """Every pair (i, j) with weight w_i y_i w_j (1 - y_j), label by label, by autograd."""
    if scores.ndim == 1:
        columns = [(scores, labels, weights)]
    else:
        columns = [
            (scores[:, k], labels[:, k], weights if weights is None or weights.ndim == 1 else weights[:, k])
            for k in range(scores.shape[1])
        ]
    margins = margin if isinstance(margin, list | tuple) else [margin] * len(columns)
    total = scores.sum() * 0
    for (h, label, w), m in zip(columns, margins, strict=True):
        valid = ~label.double().isnan()
        h_valid, y = h[valid], label[valid].double()
        w_valid = torch.ones_like(y) if w is None else w[valid].double()
        mass = (w_valid * y)[:, None] * (w_valid * (1 - y))[None, :]
        z = m - (h_valid[:, None] - h_valid[None, :])
        if mass.sum() > 0:
            total = total + (mass * OF_Z[surrogate](z)).sum() / mass.sum()
    return total / len(columns)


def value_and_grad(function, scores, *args, **options):
    scores = scores.detach().clone().requires_grad_()
    loss = function(scores, *args, **options)
    loss.backward()
    return loss.detach(), scores.grad


def batch(*shape, share=0.3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return scores, (torch.rand(shape, generator=generator) < share).long()


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("margin", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6])
def test_value_and_gradient_are_those_of_the_pairs(surrogate, margin, offset):
    scores, labels = batch(80)
    loss_fn = PairwiseAUCLoss(surrogate, margin)
    shifted = (scores + offset) - offset  # what is left of the scores in float64 at this offset
    loss, grad = value_and_grad(loss_fn, shifted + offset, labels)
    expected, expected_grad = value_and_grad(brute_force, shifted, labels, surrogate=surrogate, margin=margin)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_and_pairs_on_the_kink(surrogate, margin, dtype):
    """Scores on a grid of quarters: many pairs tie, and many have z = 0, where the hinge's slope is 0."""
    scores, labels = batch(60)
    scores = (scores * 4).round() / 4 + 1000
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate, margin), scores.to(dtype), labels)
    expected, expected_grad = value_and_grad(brute_force, scores - 1000, labels, surrogate=surrogate, margin=margin)
    tolerance = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 1e-8}
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    torch.testing.assert_close(grad.double(), expected_grad, **tolerance)


def test_a_signed_zero_ties_with_zero():
    _, grad = value_and_grad(PairwiseAUCLoss("hinge", 0.0), torch.tensor([0.0, -0.0]), torch.tensor([0, 1]))
    assert grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("weighted", ["no", "rows", "entries"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("margin", [0.7, [0.2, 0.7, 1.5]])
def test_several_labels_missing_soft_and_weighted(surrogate, weighted, soft, margin):
    scores, labels = batch(40, 3, seed=4)
    labels = labels.double()
    if soft:
        labels = labels * 0.8 + 0.2 * torch.rand(40, 3, dtype=torch.float64)
        labels[:5] = 1.0
    labels[torch.rand(40, 3) < 0.2] = torch.nan
    weights = {"no": None, "rows": torch.rand(40), "entries": torch.rand(40, 3)}[weighted]
    if weights is not None:
        weights[7] = 0.0
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate, margin, soft_labels=soft), scores, labels, weights)
    expected, expected_grad = value_and_grad(brute_force, scores, labels, weights, surrogate=surrogate, margin=margin)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-14)
    assert (grad[labels.isnan()] == 0).all()


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("shape", [(31,), (31, 3)])
@pytest.mark.parametrize("soft", [False, True])
def test_the_gpus_path_is_the_cpus(surrogate, shape, soft):
    """Masks instead of selection, all labels at once: the same sums."""
    scores, labels = batch(*shape, dtype=torch.float32)
    labels = labels.double()
    scores = (scores * 4).round() / 4
    if soft:
        labels = labels * 0.9 + 0.05
    margin = torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64) if len(shape) == 2 else 0.75
    if len(shape) == 2:
        labels[:, 1] = 0.0  # a label without a pair
    labels[3] = torch.nan
    scores[3] = torch.inf
    for weights in (None, torch.rand(31), torch.rand(shape)):
        selected = pairwise._selected(scores, labels, weights, surrogate, margin)
        masked = pairwise._masked(scores, labels, weights, surrogate, margin)
        torch.testing.assert_close(masked, selected, rtol=1e-6, atol=1e-9)
        assert masked[0] > 0


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_the_gpus_path_is_one_graph_for_the_compiler(surrogate, monkeypatch):
    """Nothing in it looks at a value: what a CUDA graph can capture."""
    scores, labels = batch(24, 2, dtype=torch.float32)
    labels = labels * 0.8 + 0.1
    loss_fn = PairwiseAUCLoss(surrogate, soft_labels=True)
    expected, expected_grad = value_and_grad(loss_fn, scores, labels)
    monkeypatch.setattr(pairwise, "_selected", pairwise._masked)
    loss, grad = value_and_grad(torch.compile(loss_fn, backend="aot_eager", fullgraph=True), scores, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_hard_labels_are_soft_labels_at_zero_and_one(surrogate):
    scores, labels = batch(50)
    hard = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels)
    soft = value_and_grad(PairwiseAUCLoss(surrogate, soft_labels=True), scores, labels.double())
    assert torch.equal(hard[0], soft[0])
    assert torch.equal(hard[1], soft[1])


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("soft", [False, True])
def test_gradcheck(surrogate, soft):
    # Distances between scores, and to the margin, stay far above gradcheck's step: no kink is crossed.
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    scores = (order.double() * 0.37).requires_grad_()
    labels = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 1]).double()
    if soft:
        labels = labels * 0.6 + 0.3
    loss_fn = PairwiseAUCLoss(surrogate, 1.0, soft_labels=soft)
    weights = torch.linspace(0.5, 2, 9, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: loss_fn(s, labels, weights), (scores,))


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("label", [0.0, 1.0, torch.nan])
@pytest.mark.parametrize("shape", [(0,), (1,), (6,), (6, 2)])
def test_without_a_pair_the_loss_is_zero_and_attached(surrogate, label, shape):
    scores = torch.randn(shape)
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate), scores, torch.full(shape, label))
    assert loss.item() == 0
    assert grad.shape == shape
    assert (grad == 0).all()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_a_label_without_a_pair_counts_in_the_mean(surrogate):
    scores, labels = batch(20, 2)
    labels[:, 1] = 1
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels)
    torch.testing.assert_close(loss, PairwiseAUCLoss(surrogate)(scores[:, 0], labels[:, 0]) / 2)
    assert (grad[:, 1] == 0).all()
    assert (grad[:, 0] != 0).any()


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("offset", [100.0, 1e6])
def test_float32_keeps_its_digits_at_an_offset(surrogate, offset):
    scores = (batch(500)[0] + offset).float()
    labels = batch(500)[1]
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels)
    exact, exact_grad = value_and_grad(brute_force, scores.double() - offset, labels, surrogate=surrogate)
    assert loss.dtype == grad.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=3e-7, atol=0)
    torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_scores_of_a_million_among_small_ones(surrogate):
    scores, labels = batch(200, dtype=torch.float32)
    scores[:4] *= 1e6
    assert labels[:4].sum() not in (0, 4)
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels)
    exact, exact_grad = value_and_grad(brute_force, scores.double(), labels, surrogate=surrogate)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logistic_never_holds_more_pairs_than_a_chunk(monkeypatch, chunk, dtype):
    scores, labels = batch(40, 2, dtype=dtype)
    whole = value_and_grad(pairwise_auc_loss, scores, labels, surrogate="logistic")
    held = []
    logsigmoid = F.logsigmoid
    monkeypatch.setattr(pairwise, "CHUNK_PAIRS", chunk)
    monkeypatch.setattr(F, "logsigmoid", lambda z: held.append(z.numel()) or logsigmoid(z))
    chunked = value_and_grad(pairwise_auc_loss, scores, labels, surrogate="logistic")
    torch.testing.assert_close(chunked, whole)
    assert max(held) <= chunk
    assert sum(held) == sum(labels[:, k].sum() * (1 - labels[:, k]).sum() for k in (0, 1))


def test_logistic_has_no_threshold():
    """F.softplus turns linear at 20, which costs eight digits in float64."""
    scores = torch.tensor([0.0, 20.5], dtype=torch.float64)
    loss = PairwiseAUCLoss("logistic", margin=0.0)(scores, torch.tensor([1, 0]))
    assert loss.item() == pytest.approx(20.5 + 1.2501528e-9, abs=1e-14)


def test_memory_of_the_sorted_forms_is_linear():
    """20,000 of each class would be 400 million pairs: 1.6 GB in float32, in one piece or not."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(40_000, generator=generator)
    labels = torch.arange(40_000) % 2
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return out

    for surrogate in ("square", *SORTED):
        with Watch():
            loss, grad = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels)
        assert 0 < loss < 5
        assert grad.abs().max() > 0
    assert 40_000 <= largest <= 80_000


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_under_torch_func(surrogate):
    scores, labels = batch(30)
    expected = value_and_grad(brute_force, scores, labels, surrogate=surrogate)[1]
    loss_fn = PairwiseAUCLoss(surrogate)
    torch.testing.assert_close(torch.func.grad(lambda s: loss_fn(s, labels))(scores), expected)
    torch.testing.assert_close(torch.func.jacrev(lambda s: 3 * loss_fn(s, labels))(scores), 3 * expected)
    value, pull_back = torch.func.vjp(lambda s: loss_fn(s * 2, labels), scores / 2)
    torch.testing.assert_close(value, loss_fn(scores, labels))
    torch.testing.assert_close(pull_back(torch.tensor(1.0, dtype=torch.float64))[0], 2 * expected)


def test_second_derivatives_are_refused_rather_than_wrong():
    scores, labels = batch(10)
    scores.requires_grad_()
    for outer in (lambda loss: loss, lambda loss: 2 * loss, lambda loss: loss**2):
        (grad,) = torch.autograd.grad(outer(PairwiseAUCLoss()(scores, labels)), scores, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivatives"):
            grad.square().sum().backward()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_compiled_is_eager(surrogate):
    scores, labels = batch(30)
    eager = value_and_grad(PairwiseAUCLoss(surrogate), scores, labels)
    compiled = value_and_grad(torch.compile(PairwiseAUCLoss(surrogate), backend="eager"), scores, labels)
    torch.testing.assert_close(compiled, eager)


def test_no_grad_gives_the_same_value():
    scores, labels = batch(30)
    with torch.no_grad():
        loss = PairwiseAUCLoss()(scores, labels)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, brute_force(scores, labels, surrogate="squared_hinge"))


quarters = st.integers(-12, 12).map(lambda k: k / 4)
rows = st.lists(st.tuples(quarters, st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=25)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rows, st.sampled_from(SURROGATES), quarters.map(abs))
def test_any_batch_is_brute_force(entries, surrogate, margin):
    scores, labels, weights = torch.tensor(entries, dtype=torch.float64).T
    loss, grad = value_and_grad(PairwiseAUCLoss(surrogate, margin), scores, labels, weights)
    expected, expected_grad = value_and_grad(brute_force, scores, labels, weights, surrogate=surrogate, margin=margin)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-11, atol=1e-12)


@settings(derandomize=True, deadline=None)
@given(rows, st.sampled_from(SURROGATES), st.randoms(use_true_random=False))
def test_order_shift_and_exchange_of_classes_do_not_matter(entries, surrogate, random):
    scores, labels, weights = torch.tensor(entries, dtype=torch.float64).T
    loss_fn = PairwiseAUCLoss(surrogate, 0.75)
    loss, grad = value_and_grad(loss_fn, scores, labels, weights)
    order = list(range(len(entries)))
    random.shuffle(order)
    permuted, permuted_grad = value_and_grad(loss_fn, scores[order], labels[order], weights[order])
    torch.testing.assert_close(permuted, loss)
    torch.testing.assert_close(permuted_grad, grad[order])
    torch.testing.assert_close(loss_fn(scores + 37.25, labels, weights), loss)
    torch.testing.assert_close(loss_fn(-scores, 1 - labels, weights), loss)
    assert grad.sum().abs() < 1e-12  # a common shift changes nothing
    assert (grad[labels == 1] <= 0).all() or surrogate == "square"
    assert (grad[labels == 0] >= 0).all() or surrogate == "square"


def test_other_bad_input_is_refused():
    scores, labels = torch.zeros(3), torch.tensor([0, 1, 1])
    with pytest.raises(ValueError, match="surrogate must be one of square, squared_hinge, hinge, logistic"):
        PairwiseAUCLoss("logit")
    for margin in (-1.0, torch.inf, [0.5, torch.nan], []):
        with pytest.raises(ValueError, match="margin must be finite"):
            PairwiseAUCLoss(margin=margin)
    with pytest.raises(ValueError, match="margin has 2 values for 1 labels"):
        PairwiseAUCLoss(margin=[0.5, 1.0])(scores, labels)
    with pytest.raises(ValueError, match="overflowed: scores reach 3e"):
        PairwiseAUCLoss()(torch.tensor([3e38, -3e38, 0.0]), labels)


def test_repr_and_state():
    loss_fn = PairwiseAUCLoss("hinge", [0.5, 1.0])
    assert loss_fn.state_dict() == {}
    assert "surrogate='hinge', margin=(0.5, 1.0)" in repr(loss_fn)


@pytest.mark.gpu
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("soft", [False, True])
def test_on_a_gpu_as_on_the_cpu(surrogate, soft):
    scores, labels = batch(300, 3, dtype=torch.float32)
    labels = labels.float() * (0.9 if soft else 1.0)
    labels[::7] = torch.nan
    weights = torch.rand(300)
    loss_fn = PairwiseAUCLoss(surrogate, [0.5, 1.0, 2.0], soft_labels=soft)
    expected = value_and_grad(loss_fn, scores, labels, weights)
    loss, grad = value_and_grad(loss_fn, scores.cuda(), labels.cuda(), weights.cuda())
    torch.testing.assert_close((loss.cpu(), grad.cpu()), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.parametrize("surrogate", ["square", *SORTED])
def test_on_a_gpu_the_host_never_waits_and_a_graph_can_be_captured(surrogate):
    scores, labels = (x.cuda() for x in batch(128, dtype=torch.float32))
    loss_fn = PairwiseAUCLoss(surrogate)
    expected = value_and_grad(loss_fn, scores, labels)
    static = scores.clone().requires_grad_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_fn(static, labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(static.grad, expected[1])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        static.grad = None
        loss_fn(static, labels).backward()
    torch.cuda.current_stream().wait_stream(side)
    static.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_fn(static, labels)
        loss.backward()
    with torch.no_grad():
        static.copy_(scores * 3)
    graph.replay()
    again = value_and_grad(loss_fn, scores * 3, labels)
    torch.testing.assert_close((loss.detach(), static.grad), again)


def test_a_margin_may_be_a_tensor_or_an_array():
    scores, labels = batch(30)
    for margin in (torch.tensor(0.5), torch.tensor([0.5]), [0.5], np.array([0.5]), np.float64(0.5)):
        torch.testing.assert_close(
            PairwiseAUCLoss(margin=margin)(scores, labels), PairwiseAUCLoss(margin=0.5)(scores, labels)
        )
    with pytest.raises(ValueError, match="margin must be finite"):
        PairwiseAUCLoss(margin=[])


@pytest.mark.parametrize("distinct", [1, 3, 50, 10_000])
@pytest.mark.parametrize("size", [1, 2, 400, 40_000])
def test_the_sort_on_the_host_is_stable(size, distinct):
    """Few numbers go through NumPy, many by radix: the order is torch's own stable one, -0 being 0."""
    x = torch.randint(-distinct, distinct, (size,), generator=torch.Generator().manual_seed(size)).double() / 7
    x[::3] *= -1
    _require_stable(x)


@pytest.mark.parametrize("spread", [5e-324, 1e-300, 1e-9, 1e-5, 1.0, 1e300])
@pytest.mark.parametrize("far", [0.0, 1.0, 1e3, 1e6, 1.5e308])
def test_many_numbers_close_to_each_other_are_sorted(spread, far):
    """Few or many of them share a cell of their range, and the order within a cell is theirs."""
    x = torch.randn(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * spread
    x[7], x[8] = far, -far
    x[100:200] = x[50]
    _require_stable(x)


def _require_stable(x):
    values, order = stable_sort(x.clone())
    expected, expected_order = torch.sort(x, stable=True)
    assert torch.equal(values, expected)
    assert torch.equal(order, expected_order)
