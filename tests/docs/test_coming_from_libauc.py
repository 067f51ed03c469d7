"""The claims of docs/libauc.md on fixed inputs: where LibAUC 2.0.1 and deepauc agree, and where they part.

The reference is neither library: Theorem 1 and Algorithm 1 written out below in float64.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

losses = pytest.importorskip("libauc.losses")
optimizers = pytest.importorskip("libauc.optimizers")

from deepauc import PESG, AUCMarginLoss, ClassQuotaSampler, FocalLoss, PairwiseAUCLoss, auroc  # noqa: E402
from deepauc.metrics.average_precision import average_precision  # noqa: E402
from deepauc.metrics.partial import partial_auroc  # noqa: E402

CPU = torch.device("cpu")
SCORES = torch.tensor([0.8, 0.3, 0.55, 0.1, 0.45, 0.2, 0.35, 0.6])
LABELS = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
SHARE = 0.25
A, B, ALPHA, MARGIN = 0.25, 0.15, 0.4, 1.0


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def theorem_1(scores, labels, *, p, a, b, alpha, m):
    h, y = scores.double(), labels.double()
    terms = (1 - p) * (h - a) ** 2 * y + p * (h - b) ** 2 * (1 - y) - p * (1 - p) * alpha**2
    terms = terms + 2 * alpha * (p * (1 - p) * m + p * h * (1 - y) - (1 - p) * h * y)
    return terms.mean()


def placed(loss_fn):
    """The same a, b, alpha in either library's loss."""
    with torch.no_grad():
        for name, value in (("a", A), ("b", B), ("alpha", ALPHA)):
            getattr(loss_fn, name).fill_(value)
    return loss_fn


def libauc_loss(**options):
    return placed(losses.AUCMLoss(device=CPU, **options))


def value_and_grads(loss_fn):
    scores = SCORES.clone().requires_grad_()
    value = loss_fn(scores, LABELS)
    value.sum().backward()
    return value.item(), scores.grad, loss_fn.a.grad, loss_fn.b.grad, loss_fn.alpha.grad


def test_version_1_is_theorem_1_with_the_share_of_the_batch():
    theirs = value_and_grads(libauc_loss(margin=MARGIN))
    ours = value_and_grads(placed(AUCMarginLoss(prior=SHARE, margin=MARGIN, normalise=False)))
    wanted = theorem_1(SCORES, LABELS, p=SHARE, a=A, b=B, alpha=ALPHA, m=MARGIN).item()
    assert theirs[0] == pytest.approx(wanted, rel=1e-6)
    assert ours[0] == pytest.approx(wanted, rel=1e-6)
    for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours[4], -theirs[4], rtol=1e-5, atol=1e-7)  # ours is turned round, on purpose


def test_imratio_is_overwritten_by_the_batch():
    wanted = theorem_1(SCORES, LABELS, p=0.01, a=A, b=B, alpha=ALPHA, m=MARGIN).item()
    theirs = libauc_loss(margin=MARGIN, imratio=0.01)
    assert theirs(SCORES, LABELS).item() != pytest.approx(wanted, rel=0.1)
    assert float(theirs.p) == SHARE
    ours = placed(AUCMarginLoss(prior=0.01, margin=MARGIN, normalise=False))
    assert ours(SCORES, LABELS).item() == pytest.approx(wanted, rel=1e-6)


def test_a_batch_of_negatives_trains_nothing_there():
    """With p taken from the batch all of F is 0; with the stream's p the negatives still move b and the network."""
    negatives = torch.zeros(8)
    scores = SCORES.clone().requires_grad_()
    libauc_loss(margin=MARGIN)(scores, negatives).sum().backward()
    assert scores.grad.abs().max() == 0
    scores = SCORES.clone().requires_grad_()
    placed(AUCMarginLoss(prior=SHARE, margin=MARGIN))(scores, negatives).backward()
    assert scores.grad.abs().max() > 0.01


def test_version_2_weighs_the_mean_of_the_negatives_by_their_share():
    positive, negative = SCORES[LABELS == 1], SCORES[LABELS == 0]
    spread = ((positive - A) ** 2).mean() + ((negative - B) ** 2).mean()
    meant = spread + 2 * ALPHA * (MARGIN + negative.mean() - positive.mean()) - ALPHA**2
    written = spread + 2 * ALPHA * (MARGIN + (1 - SHARE) * negative.mean() - positive.mean()) - ALPHA**2
    theirs = libauc_loss(margin=MARGIN, version="v2")(SCORES, LABELS).item()
    assert theirs == pytest.approx(written.item(), rel=1e-6)
    assert theirs != pytest.approx(meant.item(), rel=0.05)
    ours = placed(AUCMarginLoss(prior=SHARE, margin=MARGIN))(SCORES, LABELS).item()
    assert ours == pytest.approx(meant.item(), rel=1e-6)


def test_version_2_is_nan_where_a_residual_is_0():
    scores, labels = torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.0])
    assert torch.isnan(losses.AUCMLoss(version="v2", device=CPU)(scores, labels)).item()
    assert AUCMarginLoss(prior=0.5)(scores, labels).isfinite()


def test_several_labels_ignore_the_margin():
    scores, labels = SCORES.reshape(4, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    values = []
    for margin in (0.1, 1.0):
        loss_fn = losses.MultiLabelAUCMLoss(margin=margin, num_labels=2, device=CPU)
        with torch.no_grad():
            loss_fn.alpha.fill_(ALPHA)
        values.append(float(loss_fn(scores, labels)))
    assert values[0] == values[1]
    ours = []
    for margin in (0.1, 1.0):
        loss_fn = AUCMarginLoss(prior=0.5, margin=margin, num_labels=2)
        with torch.no_grad():
            loss_fn.alpha.fill_(ALPHA)
        ours.append(loss_fn(scores, labels).item())
    assert ours[1] - ours[0] == pytest.approx(2 * ALPHA * 0.9, rel=1e-5)


@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_version_2_of_several_labels_agrees(margin):
    """No misplaced bracket there, and the margin counts."""
    scores, labels = torch.stack([SCORES, SCORES.flip(0)], dim=1), torch.stack([LABELS, LABELS.roll(3)], dim=1)
    theirs = placed(losses.MultiLabelAUCMLoss(margin=margin, num_labels=2, version="v2", device=CPU))
    ours = placed(AUCMarginLoss(prior=SHARE, margin=margin, num_labels=2))
    assert ours(scores, labels).item() == pytest.approx(float(theirs(scores, labels)), rel=1e-6)


def test_version_1_of_several_labels_agrees_at_margin_1():
    scores, labels = torch.stack([SCORES, SCORES.flip(0)], dim=1), torch.stack([LABELS, LABELS.roll(3)], dim=1)
    theirs = placed(losses.MultiLabelAUCMLoss(num_labels=2, device=CPU))
    ours = placed(AUCMarginLoss(prior=SHARE, num_labels=2, normalise=False))
    assert ours(scores, labels).item() == pytest.approx(float(theirs(scores, labels)), rel=1e-6)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("squared_hinge", "squared_hinge"), ("squared", "square"), ("hinge", "hinge")]
)
@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_all_pairs_agree(theirs, ours, margin):
    wanted = losses.PairwiseAUCLoss(surr_loss=theirs, hparam=margin)(SCORES, LABELS).item()
    assert PairwiseAUCLoss(surrogate=ours, margin=margin)(SCORES, LABELS).item() == pytest.approx(wanted, rel=1e-6)


def test_the_logistic_surrogate_has_no_margin_there():
    theirs = losses.PairwiseAUCLoss()(SCORES, LABELS).item()
    assert PairwiseAUCLoss("logistic", margin=0)(SCORES, LABELS).item() == pytest.approx(theirs, rel=1e-6)
    assert PairwiseAUCLoss("logistic")(SCORES, LABELS).item() > 1.3 * theirs


def test_their_focal_loss_weighs_all_rows_alike():
    logits = 4 * SCORES - 2
    cross_entropy = nn.functional.binary_cross_entropy_with_logits(logits, LABELS, reduction="none")
    unweighted = (1 - torch.exp(-cross_entropy)) ** 2 * cross_entropy
    weight = torch.where(LABELS == 1, 0.75, 0.25)  # 1 - alpha for the positives
    theirs = losses.FocalLoss(alpha=0.25, device=CPU)(logits, LABELS).item()
    assert theirs == pytest.approx((weight.mean() * unweighted.mean()).item(), rel=1e-6)
    ours = FocalLoss(alpha=0.25)(logits, LABELS).item()
    assert ours == pytest.approx(((1 - weight) * unweighted).mean().item(), rel=1e-6)
    assert ours != pytest.approx(theirs, rel=0.1)


def test_the_metrics_agree():
    metrics = pytest.importorskip("libauc.metrics")
    rng = np.random.default_rng(0)
    labels = (rng.random(200) < 0.2).astype(int)
    scores = rng.normal(labels)
    assert auroc(scores, labels) == pytest.approx(float(metrics.auc_roc_score(labels, scores)))
    assert average_precision(scores, labels) == pytest.approx(float(metrics.auc_prc_score(labels, scores)))
    one_way = partial_auroc(scores, labels, max_fpr=0.3, standardise=True)
    assert one_way == pytest.approx(float(metrics.pauc_roc_score(labels, scores, max_fpr=0.3)))
    two_way = {"max_fpr": 0.6, "min_tpr": 0.3}
    theirs = float(metrics.pauc_roc_score(labels, scores, **two_way))
    for standardise in (False, True):
        assert partial_auroc(scores, labels, **two_way, standardise=standardise) != pytest.approx(theirs, rel=0.02)


def stepped(make, *, steps=1, start=2.0, gradient=0.5, a=0.0):
    """A parameter after steps with a fixed gradient; a, b, alpha of the loss get gradients too, of its own making."""
    weight = nn.Parameter(torch.full((3,), start))
    loss_fn, optimizer = make(weight)
    with torch.no_grad():
        loss_fn.a.fill_(a)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(SCORES, LABELS).sum().backward()
        weight.grad = torch.full((3,), gradient)
        optimizer.step()
    return weight.detach(), loss_fn


def theirs(**options):
    def make(weight):
        loss_fn = losses.AUCMLoss(margin=MARGIN, device=CPU)
        settings = {"lr": 0.1, "momentum": 0, "weight_decay": 0, "epoch_decay": 0, "verbose": False, "device": CPU}
        return loss_fn, optimizers.PESG([weight], loss_fn=loss_fn, **{**settings, **options})

    return make


def ours(**options):
    def make(weight):
        loss_fn = AUCMarginLoss(prior=SHARE, margin=MARGIN, normalise=False)
        return loss_fn, PESG([weight], loss_fn, 0.1, **{"gamma": 0.0, **options})

    return make


def test_a_plain_step_in_the_network_and_in_a_and_b_agrees():
    (w, loss_fn), (w_theirs, theirs_fn) = stepped(ours(weight_decay=0.01)), stepped(theirs(weight_decay=0.01))
    torch.testing.assert_close(w, w_theirs)
    torch.testing.assert_close(loss_fn.a.detach(), theirs_fn.a.detach())
    torch.testing.assert_close(loss_fn.b.detach(), theirs_fn.b.detach())


def test_alpha_steps_by_the_gradient_here_and_by_a_and_b_there():
    _, loss_fn = stepped(ours())
    _, theirs_fn = stepped(theirs())
    positive, negative = SCORES[LABELS == 1].mean(), SCORES[LABELS == 0].mean()
    by_gradient = 0.1 * 2 * SHARE * (1 - SHARE) * (MARGIN + negative - positive)  # Algorithm 1, at alpha = 0
    assert loss_fn.alpha.item() == pytest.approx(by_gradient.item(), rel=1e-5)
    by_a_and_b = 0.1 * 2 * (MARGIN + theirs_fn.b.item() - theirs_fn.a.item())  # after their update, without p(1 - p)
    assert theirs_fn.alpha.item() == pytest.approx(by_a_and_b, rel=1e-5)
    assert theirs_fn.alpha.item() > 5 * loss_fn.alpha.item()


def test_the_proximal_term_pulls_to_noise_there_and_to_the_start_here():
    torch.manual_seed(0)
    pulled, _ = stepped(theirs(epoch_decay=0.1), steps=50, gradient=0.0)
    assert pulled.max() < 1.3  # from 2.0: a weight decay
    kept, _ = stepped(ours(gamma=0.1), steps=50, gradient=0.0)
    torch.testing.assert_close(kept, torch.full((3,), 2.0))


def test_a_stage_and_the_next_agree_from_the_same_reference():
    def travelled(make, begin_stage):
        weight = nn.Parameter(torch.full((3,), 2.0))
        loss_fn, optimizer = make(weight)
        if hasattr(optimizer, "model_ref"):
            for reference, start in zip(optimizer.model_ref, (weight, loss_fn.a, loss_fn.b), strict=True):
                reference.copy_(start.detach())
        draw = torch.Generator().manual_seed(0)
        for step in range(12):
            if step == 6:
                begin_stage(optimizer)
            optimizer.zero_grad()
            with torch.no_grad():
                loss_fn.alpha.fill_(ALPHA)  # their ascent is another one
            loss_fn(SCORES, LABELS).sum().backward()
            weight.grad = torch.rand(3, generator=draw)
            optimizer.step()
        return torch.cat([weight, loss_fn.a, loss_fn.b]).detach()

    mine = travelled(ours(gamma=0.3), lambda optimizer: optimizer.new_stage(lr_factor=0.1))
    other = travelled(theirs(epoch_decay=0.3), lambda optimizer: optimizer.update_regularizer(decay_factor=10))
    torch.testing.assert_close(mine, other)


def test_their_optimizers_state_is_no_state_of_ours():
    loss_fn, optimizer = ours()(nn.Parameter(torch.ones(3)))
    their_loss, their_optimizer = theirs()(nn.Parameter(torch.ones(3)))
    state = their_optimizer.state_dict()
    with pytest.raises(ValueError, match=r"the state of LibAUC's PESG.*a, b and alpha mean the same.*a new PESG"):
        optimizer.load_state_dict(state)
    with torch.no_grad():
        their_loss.alpha.fill_(0.7)
    loss_fn.load_state_dict(
        {name: state["param_groups"][0][name].detach() for name in ("a", "b", "alpha")}
    )  # as it says
    assert loss_fn.alpha.item() == pytest.approx(0.7)


def test_momentum():
    """0.9 keeps nine tenths of the old direction here, as in torch.optim.SGD; there it keeps one tenth."""

    def travelled(make):
        weight = nn.Parameter(torch.zeros(3))
        _, optimizer = make(weight)
        for gradient in (1.0, 0.0, 0.0):
            weight.grad = torch.full((3,), gradient)
            optimizer.step()
        return -weight.detach()[0].item()

    assert travelled(ours(momentum=0.9)) == pytest.approx(0.1 * (1 + 0.9 + 0.81), rel=1e-5)
    assert travelled(theirs(momentum=0.9)) == pytest.approx(0.1 * (1 + 0.1 + 0.01), rel=1e-5)


def test_gradients_are_clipped_element_by_element_there():
    large, _ = stepped(theirs(), gradient=5.0)
    assert large[0].item() == pytest.approx(2.0 - 0.1)
    whole, _ = stepped(ours(), gradient=5.0)
    assert whole[0].item() == pytest.approx(2.0 - 0.5)


def test_an_ordinary_optimizer_descends_in_alpha_there():
    for loss_fn, sign in ((losses.AUCMLoss(device=CPU), -1), (AUCMarginLoss(prior=SHARE), 1)):
        optimizer = torch.optim.SGD(loss_fn.parameters(), lr=0.1)
        loss_fn(SCORES, LABELS).sum().backward()
        optimizer.step()
        assert sign * loss_fn.alpha.item() > 0


def test_an_epoch_of_the_samplers():
    """Every negative once in either; theirs is a flat `sampler` for a loader of that batch size, ours batches."""
    sampler_module = pytest.importorskip("libauc.sampler")
    labels = np.array([1] * 8 + [0] * 92)
    flat = list(sampler_module.DualSampler(torch.arange(100), 10, labels=labels, sampling_rate=0.2))
    for batches in (np.reshape(flat, (-1, 10)).tolist(), list(ClassQuotaSampler(labels, 10, 2))):
        assert len(batches) == 92 // 8
        assert all(labels[batch].sum() == 2 for batch in batches)
        drawn = [row for batch in batches for row in batch if labels[row] == 0]
        assert len(drawn) == len(set(drawn)) == 88


def test_their_epoch_lasts_as_long_as_the_longer_class():
    sampler_module = pytest.importorskip("libauc.sampler")
    labels = np.array([1] * 50 + [0] * 50)
    flat = list(sampler_module.DualSampler(torch.arange(100), 10, labels=labels, sampling_rate=0.1))
    assert len(flat) // 10 == 50
    assert len(ClassQuotaSampler(labels, 10, 1)) == 50 // 9
