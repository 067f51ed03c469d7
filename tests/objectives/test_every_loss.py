"""What every loss of scores does alike: what it takes, what it refuses, and in which precision it answers."""

import copy
import pickle

import pytest
import torch

from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.auc_square import AUCSquareLoss
from deepauc.objectives.average_precision import AveragePrecisionLoss
from deepauc.objectives.baselines import CrossEntropyLoss, FocalLoss
from deepauc.objectives.pairwise import PairwiseAUCLoss
from deepauc.objectives.partial_auc import PartialAUCLoss
from tests.objectives.test_pairwise import SURROGATES, value_and_grad


class WholeSetAP(AveragePrecisionLoss):
    """Rows in their own order."""

    def forward(self, scores, labels, weights=None):
        return super().forward(scores, labels, torch.arange(len(scores)), weights)


SOFT = {
    "auc_margin": lambda **soft: AUCMarginLoss(prior=0.3, **soft),
    "auc_square": lambda **soft: AUCSquareLoss(prior=0.3, **soft),
    "cross_entropy": CrossEntropyLoss,
    "weighted cross_entropy": lambda **soft: CrossEntropyLoss(class_prior=0.2, scale=0.3, **soft),
    "focal": FocalLoss,
    "flat focal": lambda **soft: FocalLoss(alpha=0.7, gamma=0.5, **soft),
    **{name: (lambda name=name, **soft: PairwiseAUCLoss(name, **soft)) for name in SURROGATES},
}
LOSSES = SOFT | {
    "partial_auc": lambda: PartialAUCLoss(max_fpr=0.6, min_tpr=0.4),
    "average_precision": lambda: WholeSetAP(300),
}
every_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


def batch(n=40):
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(n, generator=generator) < 0.3).float()
    return torch.rand(n, generator=generator), labels


@every_loss
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64])
def test_any_number_type_of_labels(make, dtype):
    scores, labels = batch()
    assert torch.equal(make()(scores, labels.to(dtype)), make()(scores, labels))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_give_float32(make, dtype):
    scores, labels = (batch()[0] * 8).to(dtype).requires_grad_(), batch()[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = make()(scores, labels)
    loss.backward()
    assert loss.dtype == torch.float32
    assert scores.grad.dtype == dtype
    torch.testing.assert_close(loss.detach(), make()(scores.detach().float(), labels))


@every_loss
def test_double_precision_stays(make):
    scores, labels = batch()
    assert make()(scores.double(), labels).dtype == torch.float64


@every_loss
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_score_beside_a_missing_label_is_ignored(make, bad):
    scores = torch.tensor([0.9, bad, 0.1, 0.4])
    loss, grad = value_and_grad(make(), scores, torch.tensor([1.0, torch.nan, 0.0, 0.0]))
    torch.testing.assert_close(loss, make()(scores[[0, 2, 3]], torch.tensor([1, 0, 0])).detach())
    assert grad.isfinite().all()
    assert grad[1] == 0


@every_loss
@pytest.mark.parametrize("rows", [0, 4])
def test_nothing_valid_gives_zero_attached_to_the_graph(make, rows):
    loss_fn = make()
    if hasattr(loss_fn, "dual_parameters"):
        with torch.no_grad():
            loss_fn.alpha.fill_(0.4)
    loss, grad = value_and_grad(loss_fn, torch.ones(rows), torch.full((rows,), torch.nan))
    assert loss == 0
    assert (grad == 0).all()
    assert all((parameter.grad == 0).all() for parameter in loss_fn.parameters())


@every_loss
@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        ([1.0, -1.0, 1.0], "labels > 0"),
        ([1, -1, 1], "labels > 0"),
        ([0.0, 0.3, 1.0], r"soft_labels=True|Round them"),
        ([0.0, 1e-30, 1.0], r"soft_labels=True|Round them"),
        ([0.0, 2.0, torch.nan], "Name the positive class"),
        ([0.0, torch.inf, 1.0], "must be 0 or 1"),
        ([0, 3, 1], "labels == 3"),
        ([[0.0], [1.0], [1.0]], "squeeze"),
        ([0.0, 1.0], "same shape"),
    ],
)
def test_bad_labels_name_the_remedy(make, labels, remedy):
    with pytest.raises(ValueError, match=remedy):
        make()(torch.zeros(3), torch.tensor(labels))


@pytest.mark.parametrize("make", SOFT.values(), ids=SOFT)
def test_soft_labels_outside_the_unit_interval_are_refused(make):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        make(soft_labels=True)(torch.ones(3), torch.tensor([0.0, 1.5, 1.0]))


@every_loss
@pytest.mark.parametrize(
    ("scores", "labels", "weights", "remedy"),
    [
        (torch.ones(3, 1), torch.ones(3), None, "squeeze"),
        (torch.zeros(3, 0), torch.zeros(3, 0), None, "hold no label"),
        (torch.tensor([1, 2, 3]), torch.ones(3), None, "must be floating"),
        (torch.ones(3), torch.ones(3), torch.ones(2), "weights have shape"),
        *(
            (torch.ones(3), torch.ones(3), torch.tensor([1, w, 1]), "not negative")
            for w in (-1.0, torch.nan, torch.inf)
        ),
    ],
)
def test_bad_input_names_the_remedy(make, scores, labels, weights, remedy):
    with pytest.raises(ValueError, match=remedy):
        make()(scores, labels, weights)


@every_loss
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("label", [0, 1])
def test_bad_scores_are_refused(make, bad, label):
    with pytest.raises(ValueError, match="NaN or infinity"):
        make()(torch.tensor([0.0, bad]), torch.tensor([1, label]))


@every_loss
def test_copies_and_pickles(make):
    scores, labels = batch(8)
    loss_fn = make()
    copies = copy.deepcopy(loss_fn), pickle.loads(pickle.dumps(loss_fn))
    expected = loss_fn(scores, labels)
    for again in copies:
        assert torch.equal(again(scores, labels), expected)
