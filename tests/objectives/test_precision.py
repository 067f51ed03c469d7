"""Apple's GPUs have no float64: on such a device nothing may make one, and float32 must still be good enough."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepauc.objectives import pairwise, saddle_loss
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.baselines import CrossEntropyLoss, FocalLoss
from deepauc.objectives.contrastive import ContrastiveLoss, SupervisedContrastiveLoss
from deepauc.objectives.input_check import precise_dtype
from deepauc.objectives.multiclass import OneVsOneAUCLoss, OneVsRestAUCLoss
from deepauc.objectives.pairwise import PairwiseAUCLoss
from deepauc.objectives.poly_view import PolyViewLoss
from deepauc.objectives.vicreg import VICRegLoss

OF_Z = {
    "square": lambda z: z**2,
    "squared_hinge": lambda z: z.relu() ** 2,
    "hinge": lambda z: z.relu(),
    "logistic": torch.nn.functional.softplus,
}


class WithoutFloat64(TorchDispatchMode):
    """The CPU in the place of a device that has no float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
            raise TypeError(f"Cannot convert a MPS Tensor to float64 dtype ({func})")
        return result


@pytest.fixture
def on_mps(monkeypatch):
    """Losses that take the CPU for such a device."""
    for room in (pairwise, saddle_loss):
        monkeypatch.setattr(room, "precise_dtype", lambda _: precise_dtype("mps"))
    return WithoutFloat64


def test_float64_wherever_there_is_one():
    assert {name: precise_dtype(name) for name in ("cpu", "cuda", "mps", "xpu")} == {
        "cpu": torch.float64,
        "cuda": torch.float64,
        "mps": torch.float32,
        "xpu": torch.float64,
    }


@pytest.mark.parametrize("surrogate", OF_Z)
@pytest.mark.parametrize("path", ["_masked", "_selected"])
@pytest.mark.parametrize(("rows", "offset"), [(40, 0.0), (3000, 0.0), (3000, 100.0)])
def test_pairwise_losses_without_float64(on_mps, monkeypatch, surrogate, path, rows, offset):
    monkeypatch.setattr(pairwise, "_selected", getattr(pairwise, path))
    draw = torch.Generator().manual_seed(0)
    scores = (2 * torch.randn(rows, generator=draw) + offset).requires_grad_()
    labels = (torch.rand(rows, generator=draw) < 0.2).long()
    with on_mps():
        loss = PairwiseAUCLoss(surrogate)(scores, labels)
        loss.backward()
    exact = scores.detach().double().requires_grad_()
    pairs = OF_Z[surrogate](1 - (exact[labels == 1][:, None] - exact[labels == 0][None, :]))
    pairs.mean().backward()
    assert loss.item() == pytest.approx(pairs.mean().item(), rel=1e-5)
    torch.testing.assert_close(scores.grad.double(), exact.grad, rtol=1e-4, atol=1e-5 * float(exact.grad.abs().max()))


def test_several_labels_weights_and_margins_without_float64(on_mps, monkeypatch):
    draw = torch.Generator().manual_seed(1)
    scores, weights = torch.randn(60, 2, generator=draw), torch.rand(60, generator=draw)
    labels = (torch.rand(60, 2, generator=draw) < 0.3).float()
    labels[4, 1] = torch.nan
    expected = PairwiseAUCLoss(margin=(0.5, 1.5))(scores.double(), labels, weights)
    for path in (pairwise._selected, pairwise._masked):
        monkeypatch.setattr(pairwise, "_selected", path)
        with on_mps():
            found = PairwiseAUCLoss(margin=(0.5, 1.5))(scores, labels, weights)
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_diagnose_without_float64(on_mps):
    scores = torch.linspace(0, 1, 50)
    labels, loss_fn = (torch.arange(50) % 3 == 0).float(), AUCMarginLoss(prior=0.3)
    with on_mps():
        found = loss_fn.diagnose(scores, labels)
    positives, negatives = scores[labels == 1].double(), scores[labels == 0].double()
    assert found.a_optimal == pytest.approx(positives.mean().item(), rel=1e-6)
    variances = positives.var(correction=0) + negatives.var(correction=0)
    shortfall = 1 - positives.mean() + negatives.mean()
    assert found.value == pytest.approx((variances + shortfall**2).item(), rel=1e-5)


EVERY_LOSS = {
    "auc_margin": lambda: AUCMarginLoss(prior=[0.1, 0.3], num_labels=2),
    "pairwise": lambda: PairwiseAUCLoss(margin=(0.5, 1.5)),
    "cross_entropy": lambda: CrossEntropyLoss(pos_weight=[0.3, 3.0], label_smoothing=0.1),
    "focal": FocalLoss,
    "one_vs_rest": lambda: OneVsRestAUCLoss(prior=[0.2, 0.3, 0.5]),
    "one_vs_one": lambda: OneVsOneAUCLoss(prior=[0.2, 0.3, 0.5]),
    "contrastive": ContrastiveLoss,
    "supervised_contrastive": SupervisedContrastiveLoss,
    "vicreg": VICRegLoss,
    "poly_view": PolyViewLoss,
}


@pytest.mark.parametrize("make", EVERY_LOSS.values(), ids=EVERY_LOSS)
def test_no_loss_keeps_float64(make):
    """`loss.to("mps")` copies parameters and buffers as they are."""
    loss_fn = make()
    kept = {name: tensor.dtype for name, tensor in (*loss_fn.named_buffers(), *loss_fn.named_parameters())}
    assert torch.float64 not in kept.values(), kept


def test_pos_weight_is_the_number_asked_for():
    """As float32 for float32 scores, on a device without float64 too; exact for double ones."""
    draw = torch.Generator().manual_seed(2)
    scores, labels = torch.randn(20, 2, generator=draw), (torch.rand(20, 2, generator=draw) < 0.4).float()
    loss_fn, asked = CrossEntropyLoss(pos_weight=[0.3, 1 / 7]), torch.tensor([0.3, 1 / 7], dtype=torch.float64)
    with WithoutFloat64():
        found = loss_fn(scores, labels)
    torchs = torch.nn.functional.binary_cross_entropy_with_logits
    assert torch.equal(found, torchs(scores, labels, pos_weight=asked.float()))
    assert torch.equal(loss_fn(scores.double(), labels), torchs(scores.double(), labels.double(), pos_weight=asked))
    assert "pos_weight=[0.3, 0.14285714285714285]" in repr(loss_fn)


@pytest.mark.parametrize("name", ["auc_margin", "cross_entropy", "one_vs_one", "one_vs_rest"])
def test_settings_are_read_on_the_host_whatever_the_default_device_is(name):
    """`meta` in the place of `mps`: it keeps no numbers, that one no float64."""
    with torch.device("meta"):
        made = EVERY_LOSS[name]()
    assert repr(made) == repr(EVERY_LOSS[name]())
