"""The one-dimensional worked examples of the paper's appendix (A9 of the specification), number for number."""

import pytest
import torch

from deepauc import AUCMarginLoss, AUCSquareLoss


def direction(loss, x, y, *, a, b):
    """B (y = 1) or C (y = 0) of the appendix: dF/dh without its positive factor, at the optimal alpha; w = 1."""
    margin = loss.margin[0]
    alpha = margin + b - a
    if loss.constrain_alpha:
        alpha = max(alpha, 0.0)
    with torch.no_grad():
        loss.a.fill_(a), loss.b.fill_(b), loss.alpha.fill_(alpha)
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    loss(w * x, torch.tensor([float(y)])).backward()
    p = loss.prior[0]
    factor = 2 * ((1 - p) if y else p) * x
    return w.grad.item() / factor


def step(value, x):
    """The appendix merges all constants into 0.1 and keeps the sign."""
    return 1 - 0.1 * (1 if value > 0 else -1) * x


def square():
    return AUCSquareLoss(prior=0.3, normalise=False).double()


def margin(m):
    return AUCMarginLoss(prior=0.3, margin=m, normalise=False).double()


@pytest.mark.parametrize("loss", [square(), margin(1.0)])
def test_easy_data_square_loss_moves_the_wrong_way(loss):
    # alpha is 1 + b - a = 0 here, so AUC-M at m = 1 gives the same
    b_term = direction(loss, 1.0, 1, a=0.5, b=-0.5)
    c_term = direction(loss, -1.0, 0, a=0.5, b=-0.5)
    assert (b_term, c_term) == pytest.approx((0.5, -0.5))
    assert step(b_term, 1.0) * 1.0 == pytest.approx(0.9)
    assert step(c_term, -1.0) * -1.0 == pytest.approx(-0.9)


def test_easy_data_margin_loss_only_pulls_to_the_mean():
    assert direction(margin(1.0), 0.75, 1, a=1.0, b=-0.5) == pytest.approx(-0.25)
    assert direction(margin(1.0), 1.25, 1, a=1.0, b=-0.5) == pytest.approx(0.25)


def test_margin_loss_on_a_poor_model_moves_the_right_way():
    b_term = direction(margin(1.0), 0.25, 1, a=0.0, b=-0.5)
    assert b_term == pytest.approx(-0.25)
    assert step(b_term, 0.25) == pytest.approx(1.025)
    assert step(b_term, 0.25) * 0.25 == pytest.approx(0.25625)  # the paper prints .2562


def test_noisy_data_square_loss():
    assert direction(square(), 0.25, 0, a=0.25, b=-0.5) == pytest.approx(1.0)


@pytest.mark.parametrize("m", [1.0, 0.9, 0.8])
def test_noisy_data_margin_loss_moves_by_the_margin(m):
    assert direction(margin(m), 0.25, 0, a=0.25, b=-0.5) == pytest.approx(m)
