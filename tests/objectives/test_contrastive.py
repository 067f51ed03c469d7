"""Losses of two views against loops over the views."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.objectives.contrastive import (
    Contrastive,
    ContrastiveLoss,
    SupervisedContrastive,
    SupervisedContrastiveLoss,
    nt_xent,
    own_view_nearest,
    supervised_contrastive,
)
from deepauc.objectives.poly_view import PolyView, PolyViewLoss
from deepauc.objectives.vicreg import VICReg, VICRegLoss, vicreg

LOSSES = [ContrastiveLoss(0.3), SupervisedContrastiveLoss(0.3), VICRegLoss(), PolyViewLoss(0.3, views=2)]


def two_views(n=6, d=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, 1.0, math.nan, 0.0, math.nan])[:n]
    return views[0].to(dtype), views[1].to(dtype), labels


def cosine(x, y):
    return float(x @ y / (x.norm() * y.norm()))


def by_hand(first, second, alike, *, temperature):
    """View by view: alike(i, j) says whether images i and j count as the same."""
    views = [(i, z) for i, z in enumerate(first)] + [(i, z) for i, z in enumerate(second)]
    total = 0.0
    for a, (i, z) in enumerate(views):
        others = [(j, cosine(z, w) / temperature) for b, (j, w) in enumerate(views) if b != a]
        whole = math.log(sum(math.exp(c) for _, c in others))
        terms = [whole - c for j, c in others if alike(i, j)]
        total += sum(terms) / len(terms)
    return total / len(views)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_nt_xent_view_by_view(temperature):
    first, second, _ = two_views()
    expected = by_hand(first, second, lambda i, j: i == j, temperature=temperature)
    assert nt_xent(first, second, temperature=temperature).item() == pytest.approx(expected, rel=1e-12)
    assert ContrastiveLoss(temperature)(first, second).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_supervised_view_by_view(temperature):
    first, second, labels = two_views()

    def alike(i, j):
        return i == j or bool(labels[i] == labels[j])

    expected = by_hand(first, second, alike, temperature=temperature)
    assert supervised_contrastive(first, second, labels, temperature=temperature).item() == pytest.approx(
        expected, rel=1e-12
    )
    assert expected != pytest.approx(by_hand(first, second, lambda i, j: i == j, temperature=temperature), rel=1e-3)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_the_positives_alone_are_drawn_together(temperature):
    first, second, labels = two_views()

    def alike(i, j):
        return i == j or bool(labels[i] == 1 and labels[j] == 1)

    expected = by_hand(first, second, alike, temperature=temperature)
    loss_fn = SupervisedContrastive(temperature=temperature, classes="positives").build(prior=(0.5,))
    assert loss_fn(first, second, labels).item() == pytest.approx(expected, rel=1e-12)
    both = supervised_contrastive(first, second, labels, temperature=temperature)
    assert expected != pytest.approx(both.item(), rel=1e-3)
    negative = torch.zeros(6)
    torch.testing.assert_close(loss_fn(first, second, negative), nt_xent(first, second, temperature=temperature))
    with pytest.raises(ValueError, match="'both' or 'positives', not 'negatives'"):
        SupervisedContrastive(classes="negatives")


def test_negatives_drawn_together_end_in_one_point_and_positives_alone_do_not():
    """Steps on free projections of 60 negatives and 4 positives: the reason why `classes` is there."""

    def spread(loss_fn):
        torch.manual_seed(0)
        points = (torch.ones(1, 8) + 0.3 * torch.randn(64, 8)).requires_grad_()  # near each other, as at the start
        labels = (torch.arange(64) < 4).float()
        for _ in range(300):
            views = [points + 0.05 * torch.randn(64, 8) for _ in range(2)]
            (gradient,) = torch.autograd.grad(loss_fn(*views, labels), points)
            with torch.no_grad():
                points -= 20 * gradient
        unit = torch.nn.functional.normalize(points.detach()[4:], dim=1)
        return 1 - (unit @ unit.T).mean().item()

    start = spread(lambda a, b, _: 0 * a.sum())
    assert spread(SupervisedContrastiveLoss(0.2)) < 0.2 * start
    assert spread(SupervisedContrastiveLoss(0.2, classes="positives")) > 2 * start


def test_supervised_with_several_labels():
    first, second, _ = two_views()
    labels = torch.tensor([[0, 1], [0, 1], [1, 1], [0, math.nan], [1, 1], [0, math.nan]])

    def alike(i, j):
        return i == j or labels[i].tolist() == labels[j].tolist()  # nan != nan in a list of floats made anew

    expected = by_hand(first, second, alike, temperature=0.5)
    assert SupervisedContrastiveLoss(0.5)(first, second, labels).item() == pytest.approx(expected, rel=1e-12)


def test_without_labels_supervised_is_nt_xent():
    first, second, _ = two_views()
    missing = torch.full((6,), torch.nan)
    torch.testing.assert_close(
        supervised_contrastive(first, second, missing, temperature=0.2), nt_xent(first, second, temperature=0.2)
    )


def test_vicreg_by_hand():
    first, second, _ = two_views(n=5, d=3)
    similarity = sum((first[i, k] - second[i, k]).item() ** 2 for i in range(5) for k in range(3)) / 15
    spread = together = 0.0
    for view in (first, second):
        mean = [sum(view[i, k].item() for i in range(5)) / 5 for k in range(3)]
        for k in range(3):
            for m in range(3):
                c = sum((view[i, k].item() - mean[k]) * (view[i, m].item() - mean[m]) for i in range(5)) / 4
                if k == m:
                    spread += max(0.0, 1 - math.sqrt(c + 1e-4)) / 3
                else:
                    together += c**2 / 3
    found = vicreg(first, second, invariance=2.0, variance=3.0, covariance=0.5).item()
    assert spread > 0
    assert found == pytest.approx(2 * similarity + 3 * spread + 0.5 * together, rel=1e-12)


@pytest.mark.parametrize("loss_fn", LOSSES, ids=lambda loss: type(loss).__name__)
def test_gradcheck(loss_fn):
    first, second, labels = two_views()
    assert torch.autograd.gradcheck(
        lambda a, b: loss_fn(a, b, labels=labels), (first.requires_grad_(), second.requires_grad_())
    )


@pytest.mark.parametrize("loss_fn", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_comes_out_in_float32(loss_fn, autocast):
    """bfloat16 projections lose digits when they are rounded, none after that; autocast may not touch the products."""
    first, second, labels = two_views(dtype=torch.bfloat16)
    exact = loss_fn(first.double(), second.double(), labels=labels)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = loss_fn(first, second, labels=labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(exact.item(), rel=2e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_only_directions_count_at_any_scale(scale):
    first, second, _ = two_views(dtype=torch.float32)
    first = first.requires_grad_()
    (expected,) = torch.autograd.grad(nt_xent(first, second, temperature=0.05), first)
    scaled = (first.detach() * scale).requires_grad_()
    (found,) = torch.autograd.grad(nt_xent(scaled, second * scale, temperature=0.05), scaled)
    torch.testing.assert_close(found * scale, expected, rtol=1e-4, atol=1e-6)


def test_a_row_of_zeros_and_a_cold_temperature_stay_finite():
    first, second, _ = two_views(dtype=torch.float32)
    first[2] = 0
    first = first.requires_grad_()
    loss = nt_xent(first, second, temperature=1e-3)  # cosines of +-1000: exp overflows, log-softmax does not
    loss.backward()
    assert math.isfinite(loss.item())
    assert first.grad.isfinite().all()
    assert (first.grad[2] == 0).all()


@given(st.integers(0, 10_000), st.integers(2, 7))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_invariances(seed, n):
    first, second, _ = two_views(n=n, seed=seed)
    labels = torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(seed)).double()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + 1))
    for loss_fn in LOSSES:
        loss = loss_fn(first, second, labels=labels)
        torch.testing.assert_close(loss_fn(first[order], second[order], labels=labels[order]), loss)
        torch.testing.assert_close(loss_fn(second, first, labels=labels), loss)
        torch.testing.assert_close(loss_fn(first, second, labels=1 - labels), loss)
    # What every view is worth at most: to find one of 2n - 1 by chance; equal views of all images reach that.
    torch.testing.assert_close(
        nt_xent(torch.ones(n, 3), torch.ones(n, 3), temperature=0.2), torch.tensor(math.log(2 * n - 1))
    )


def test_own_view_nearest():
    first, noise, _ = two_views()
    second = first + noise
    expected = [float(max(range(6), key=lambda j, i=i: cosine(first[i], second[j])) == i) for i in range(6)]
    assert 0 < sum(expected) < 6
    assert own_view_nearest(first, second).tolist() == expected
    assert own_view_nearest(first, 3 * first).mean() == 1


@pytest.mark.parametrize(
    "spec", [Contrastive(), SupervisedContrastive(), VICReg(), PolyView(views=2)], ids=lambda s: type(s).__name__
)
def test_descent_makes_views_easier_to_match(spec):
    generator = torch.Generator().manual_seed(0)
    images, noise = torch.randn(32, 10, generator=generator), torch.randn(150, 2, 32, 10, generator=generator)
    labels = torch.arange(32) if spec.uses_labels else None  # each image a class of its own
    loss_fn, weight = spec.build(prior=()), torch.randn(10, 8, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=0.02)
    hits = []
    for step in noise:
        first, second = (images + 0.7 * step) @ weight
        optimizer.zero_grad()
        loss_fn(first, second, labels=labels).backward()
        optimizer.step()
        hits.append(own_view_nearest(first, second).mean().item())
    assert sum(hits[-20:]) > 1.1 * sum(hits[:20])


@pytest.mark.parametrize("loss_fn", LOSSES, ids=lambda loss: type(loss).__name__)
def test_one_graph_for_the_compiler(loss_fn):
    first, second, labels = two_views(dtype=torch.float32)
    compiled = torch.compile(loss_fn, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(first, second, labels=labels), loss_fn(first, second, labels=labels))


@pytest.mark.parametrize("loss_fn", LOSSES, ids=lambda loss: type(loss).__name__)
def test_bad_input_is_refused(loss_fn):
    first, second, labels = two_views()
    with pytest.raises(ValueError, match="row i of both"):
        loss_fn(first, second[:4], labels=labels)
    with pytest.raises(ValueError, match="row i of both"):
        loss_fn(first[0], second[0], labels=labels)
    with pytest.raises(ValueError, match="floating"):
        loss_fn(first.long(), second.long(), labels=labels)
    with pytest.raises(ValueError, match="at least 2"):
        loss_fn(first[:1], second[:1], labels=labels[:1])
    with pytest.raises(ValueError, match="for 6 images"):
        loss_fn(first, second, labels=labels[:4])
    first[0, 0] = torch.inf
    with pytest.raises(ValueError, match="diverged"):
        loss_fn(first, second, labels=labels)


def test_bad_settings_are_refused():
    for temperature in (0.0, -1.0, math.inf, math.nan):
        for make in (Contrastive, SupervisedContrastive, ContrastiveLoss, SupervisedContrastiveLoss):
            with pytest.raises(ValueError, match="temperature"):
                make(temperature=temperature)
    for make in (VICReg, VICRegLoss):
        with pytest.raises(ValueError, match="not negative"):
            make(covariance=-1.0)
    with pytest.raises(ValueError, match="needs labels"):
        SupervisedContrastiveLoss()(*two_views()[:2])


def test_copies_and_pickles():
    first, second, labels = two_views()
    for loss_fn in LOSSES:
        for again in (copy.deepcopy(loss_fn), pickle.loads(pickle.dumps(loss_fn))):
            assert again(first, second, labels=labels) == loss_fn(first, second, labels=labels)
