"""NT-Xent of several views against a loop over the pairs of views."""

import math
from itertools import permutations

import pytest
import torch

from deepauc.objectives.contrastive import nt_xent
from deepauc.objectives.poly_view import PolyView, PolyViewLoss, poly_view


def several_views(views, n=5, d=4, dtype=torch.float64):
    return torch.randn(views, n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype).unbind(0)


def by_hand(views, *, temperature):
    """Pair by pair: view a of image i has to find its view b among all views of the other images."""
    unit = [[z / z.norm() for z in view] for view in views]
    terms = []
    for i in range(len(views[0])):
        for a, b in permutations(range(len(views)), 2):
            others = [view[j] for view in unit for j in range(len(view)) if j != i]
            negatives = sum(math.exp(float(unit[a][i] @ z) / temperature) for z in others)
            own = math.exp(float(unit[a][i] @ unit[b][i]) / temperature)
            terms.append(-math.log(own / (own + negatives)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_pair_by_pair(count, temperature):
    views = several_views(count)
    expected = by_hand(views, temperature=temperature)
    assert poly_view(views, temperature=temperature).item() == pytest.approx(expected, rel=1e-12)
    found = PolyView(temperature=temperature, views=count).build(prior=())(*views, labels=torch.ones(5))
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_views_are_nt_xent(dtype):
    first, second = several_views(2, dtype=dtype)
    torch.testing.assert_close(poly_view([first, second], temperature=0.1), nt_xent(first, second, temperature=0.1))


@pytest.mark.parametrize("count", [2, 4])
def test_gradcheck(count):
    views = [view.requires_grad_() for view in several_views(count)]
    assert torch.autograd.gradcheck(PolyViewLoss(0.3, views=count), views)


def test_a_row_of_zeros_and_a_cold_temperature_stay_finite():
    views = several_views(3, dtype=torch.float32)
    views[0][2] = 0
    first = views[0].requires_grad_()
    loss = poly_view([first, *views[1:]], temperature=1e-3)  # cosines of +-1000: exp overflows
    loss.backward()
    assert math.isfinite(loss.item())
    assert first.grad.isfinite().all()
    assert (first.grad[2] == 0).all()


def test_neither_the_order_of_images_nor_that_of_views_counts():
    views, order = several_views(4), torch.tensor([3, 0, 4, 1, 2])
    expected = poly_view(views, temperature=0.2)
    torch.testing.assert_close(poly_view([view[order] for view in views], temperature=0.2), expected)
    torch.testing.assert_close(poly_view([*reversed(views)], temperature=0.2), expected)
    # Equal views of all images: one in its own view and the (n - 1) M others, whatever the temperature.
    same = torch.ones(5, 3)
    torch.testing.assert_close(poly_view([same] * 4, temperature=0.2), torch.tensor(math.log(1 + 4 * 4)))


def test_bad_input_is_refused():
    views, loss_fn = several_views(3), PolyViewLoss(views=3)
    with pytest.raises(ValueError, match="2 views were given, and the loss compares 3: set views"):
        loss_fn(*views[:2])
    with pytest.raises(ValueError, match=r"give 3 of the same .* row i of all"):
        loss_fn(*views[:2], views[2][:4])


@pytest.mark.parametrize("make", [PolyView, PolyViewLoss])
@pytest.mark.parametrize(
    ("options", "message"),
    [({"temperature": 0.0}, "temperature"), ({"views": 1}, "at least 2"), ({"views": 2.5}, "2.5")],
)
def test_bad_settings_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
