"""The toy's measure on made cases, its networks against one network alone, and the argument of its docstring."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deepauc import PESG, AUCMarginLoss
from deepauc.demo.toy import (
    SETS,
    ToyResult,
    ToySettings,
    TwoLayerNetworks,
    make_sets,
    pretrain,
    run_toy,
    share_changed,
)
from deepauc.demo.toy_report import HEADER, ToyComparison, compare, rows

SMALL = ToySettings(seeds=3, steps=12, shown_step=6, pretraining_steps=20, margins=(0.5, 1.0), grid=15)


def test_share_changed_counts_places_by_column():
    before = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 2.0]])
    after = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0], [-3.0, 0.5]])
    assert share_changed(before, after).tolist() == [0.25, 0.0]
    assert share_changed(before, -before).tolist() == [1.0, 1.0]


def test_a_boundary_shifted_by_a_tenth_of_the_window_moves_a_tenth():
    x = torch.linspace(0, 10, 1001)[:, None]
    assert share_changed(x - 5, x - 6).item() == pytest.approx(0.1, abs=0.002)


def test_sets_share_the_clouds_and_flipped_points_lie_on_the_other_side():
    base, easy, flipped = make_sets(range(2), SMALL)
    n = 2 * SMALL.points
    assert torch.equal(easy.places[:, :n], base.places)
    assert torch.equal(flipped.places[:, :n], base.places)
    assert easy.labels[n:].tolist() == [1.0] * SMALL.easy
    assert not easy.flipped.any()
    assert flipped.flipped.sum() == 2 * SMALL.flipped
    side = flipped.places[:, n:].sum(-1) > 0
    assert ((flipped.labels[n:] == 1) != side).all()
    assert not torch.equal(base.places[0], base.places[1])


def test_networks_side_by_side_train_as_one_alone():
    """Seed 2's path is the same whether its network is one of three or by itself, written out by hand."""
    together = run_toy(SMALL)
    base, points, _ = make_sets(range(2, 3), SMALL)
    networks = TwoLayerNetworks(range(2, 3), SMALL.hidden)
    pretrain(networks, base, SMALL)
    margin = 0.5
    loss_fn = AUCMarginLoss(prior=float(points.labels.mean()), margin=margin)
    with torch.no_grad():
        scores = networks(base.places)[:, 0]
        loss_fn.a.fill_(scores[base.labels == 1].mean())
        loss_fn.b.fill_(scores[base.labels == 0].mean())
        grid = torch.stack(
            torch.meshgrid(torch.linspace(-4, 6, SMALL.grid), torch.linspace(-4, 4, SMALL.grid), indexing="xy"), -1
        ).reshape(1, -1, 2)
        before = networks(grid)[:, 0] > (loss_fn.a + loss_fn.b) / 2
    optimizer = PESG(networks.parameters(), loss_fn, lr=SMALL.lr)
    alone = []
    for _ in range(SMALL.steps):
        optimizer.zero_grad()
        loss_fn(networks(points.places)[:, 0], points.labels).backward()
        optimizer.step()
        with torch.no_grad():
            after = networks(grid)[:, 0] > (loss_fn.a + loss_fn.b) / 2
        alone.append(float((before != after).float().mean()))
    assert together.marks == tuple(range(1, SMALL.steps + 1))
    found = together.moved_margin[1, :, SMALL.margins.index(margin), 2]
    np.testing.assert_allclose(found, alone, atol=1.5 / SMALL.grid**2)  # a place on the very boundary may tip
    assert max(alone) > 0.02


def test_forward_is_the_formula():
    networks = TwoLayerNetworks(range(4, 6), 5)
    places = torch.randn(2, 7, 2)
    for number in range(2):
        hidden = F.elu(places[number] @ networks.w1[number] + networks.b1[number])
        expected = hidden @ networks.w2[number] + networks.b2[number]
        torch.testing.assert_close(networks(places)[:, number], expected[:, 0])


def test_behind_a_sigmoid_no_gap_reaches_a_margin_of_one():
    """So alpha is never 0 there, and AUC-M at m = 1 takes AUC-S's path."""
    result = run_toy(ToySettings(seeds=2, steps=15, shown_step=5, grid=20, sigmoid=True, lr=0.1))
    at_one = result.settings.margins.index(1.0)
    assert (result.alpha_zero[:, :, at_one] == 0).all()
    np.testing.assert_allclose(result.moved_margin[:, :, at_one], result.moved_square, atol=2 / 400)
    assert np.abs(result.square_fields).max() < 1


def test_pretraining_finds_the_two_clouds():
    base = make_sets(range(3), ToySettings())[0]
    networks = TwoLayerNetworks(range(3), 16)
    pretrain(networks, base, ToySettings())
    right = (networks(base.places) > 0) == (base.labels[:, None] == 1)
    assert (right.float().mean(0) > 0.95).all()


def test_raw_scores_give_both_losses_the_same_minimiser_up_to_the_margin():
    """The docstring's argument, by search over the scale: s* = m D/(V + D^2), alpha* > 0, A_M* = m^2 A_S*."""
    rng = np.random.default_rng(1)
    positive, negative = rng.normal(1.3, 0.7, 200), rng.normal(-0.2, 0.9, 300)
    spread, gap = positive.var() + negative.var(), positive.mean() - negative.mean()
    scales = np.linspace(0, 3, 300_001)

    def margin_loss(m):
        return scales**2 * spread + np.maximum(m - scales * gap, 0) ** 2

    square = scales**2 * spread + (1 - scales * gap) ** 2
    for m in (0.1, 0.5, 1.0):
        best = scales[margin_loss(m).argmin()]
        assert best == pytest.approx(m * gap / (spread + gap**2), abs=2e-5)
        assert best == pytest.approx(m * scales[square.argmin()], abs=3e-5)
        assert m - best * gap > 0
        assert margin_loss(m).min() == pytest.approx(m**2 * square.min(), rel=1e-6)


def result_with(square, margin):
    """A result whose shares moved are given: square (3, 1, S), margin (3, 1, M, S)."""
    settings = ToySettings(seeds=square.shape[-1], steps=5, shown_step=5, margins=(0.5, 1.0))
    nothing = np.zeros((1, 1))
    return ToyResult(
        settings=settings,
        marks=(5,),
        moved_square=square,
        moved_margin=margin,
        alpha_zero=np.full((3, 1, 2), 0.25),
        initial_field=nothing,
        square_fields=nothing,
        margin_fields=nothing,
        points=(),
    )


def test_verdicts_follow_the_interval_of_the_paired_difference():
    noise = np.array([0.001, -0.001, 0.002, -0.002])
    square = np.broadcast_to(0.10 + 50 * noise, (3, 1, 4))  # large spread, but the difference is paired
    margin = np.stack([square - 0.05 + noise, square + 0.05 + noise], axis=2)
    result = result_with(square, margin)
    less, more = compare(result, added=SETS[1], step=5)
    assert isinstance(less, ToyComparison)
    assert (less.verdict, more.verdict) == ("less", "more")
    assert less.difference.value == pytest.approx(0.05)
    same = compare(result_with(square, np.stack([square + noise] * 2, axis=2)), added=SETS[2], step=5)
    assert [comparison.verdict for comparison in same] == ["undecided", "undecided"]
    shown = [(row[1], row[HEADER.index("AUC-M")]) for row in rows(result, step=5) if row[0] == SETS[1]]
    assert shown == [("0.5", "less"), ("1", "more")]


def test_margins_that_gave_the_same_share_a_row():
    square = np.random.default_rng(0).random((3, 1, 4))
    alike = result_with(square, np.stack([square / 2] * 2, axis=2))
    assert [row[:2] for row in rows(alike, step=5)] == [[added, "every"] for added in SETS]
    different = result_with(square, np.stack([square / 2, square / 3], axis=2))
    assert [row[1] for row in rows(different, step=5)] == ["0.5", "1"] * 3


def test_alpha_is_zero_at_first_and_the_square_loss_has_no_such_bound():
    """The pre-trained scores are further apart than any margin: the constraint is active, which the picture needs."""
    result = run_toy(ToySettings(seeds=2, steps=20, shown_step=10, grid=10))
    assert (result.alpha_zero[:, 0] == 1).all()
    assert result.moved_margin.shape == (3, len(result.marks), 5, 2)


@pytest.mark.parametrize("wrong", [{"seeds": 1}, {"shown_step": 900}, {"shown_step": 0}, {"shown_margin": 0.2}])
def test_settings_that_cannot_be_drawn_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ToySettings(**wrong)
