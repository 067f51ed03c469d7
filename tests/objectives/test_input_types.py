"""Labels, scores and weights that are no tensors: one message for every loss."""

import numpy as np
import pytest
import torch

from deepauc import AUCMarginLoss, AUCSquareLoss, BatchScoreNorm, FocalLoss, PairwiseAUCLoss, PartialAUCLoss, auroc
from deepauc.metrics.average_precision import average_precision
from deepauc.objectives.baselines import CrossEntropyLoss
from deepauc.objectives.contrastive import ContrastiveLoss
from deepauc.objectives.multiclass import OneVsRestAUCLoss


@pytest.mark.parametrize(
    "loss_fn",
    [AUCMarginLoss(prior=0.5), AUCSquareLoss(prior=0.5), FocalLoss(), PairwiseAUCLoss(), PartialAUCLoss(max_fpr=0.5)],
)
def test_arrays_and_lists_are_refused_with_the_remedy(loss_fn):
    scores, labels = torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match=r"labels must be a tensor, not ndarray: torch\.as_tensor"):
        loss_fn(scores, labels.numpy())
    with pytest.raises(ValueError, match="labels must be a tensor, not list"):
        loss_fn(scores, [0, 1])
    with pytest.raises(ValueError, match="scores must be a tensor, not ndarray"):
        loss_fn(scores.numpy(), labels)
    with pytest.raises(ValueError, match="weights must be a tensor, not ndarray"):
        loss_fn(scores, labels, np.ones(2))
    assert loss_fn(scores, labels).isfinite()


def class_columns(scores, labels, weights=None):
    two = scores.unsqueeze(-1).repeat_interleave(2, -1) if scores.layout == torch.strided else scores
    return OneVsRestAUCLoss(prior=[0.5, 0.5])(two, labels, weights)


FOREIGN = {
    "float8": (lambda x: x.to(torch.float8_e4m3fn), r"torch.float8_e4m3fn cannot .* pass {}\.float\(\)"),
    "sparse": (lambda x: x.to_sparse(), r"dense tensor, not torch.sparse_coo: pass {}\.to_dense\(\)"),
    "complex": (lambda x: x + 0j, r"{} must be real numbers, not torch.complex64"),
    "uint16": (lambda x: x.to(torch.uint16), r"torch.uint16 cannot be computed with: pass {}\.float\(\)"),
    "meta": (lambda x: x.to("meta"), "{} are on the device 'meta'"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", ["scores", "labels", "weights"])
@pytest.mark.parametrize(
    "function",
    [
        *(AUCMarginLoss(prior=0.5), AUCSquareLoss(prior=0.5), FocalLoss(), CrossEntropyLoss(), PairwiseAUCLoss()),
        *(PartialAUCLoss(min_tpr=0.4).eval(), class_columns, auroc, average_precision),
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_tensors_that_nobody_computes_with_are_refused(function, name, kind):
    change, message = FOREIGN[kind]
    given = {"scores": torch.tensor([0.2, 0.5, 0.9]), "labels": torch.tensor([0.0, 1, 1]), "weights": torch.ones(3)}
    expected = float(function(**given))
    if kind == "uint16" and function in (auroc, average_precision):
        assert float(function(**given | {"labels": change(given["labels"])})) == expected
        return
    with pytest.raises(ValueError, match=message.format(name)):
        function(**given | {name: change(given[name])})


@pytest.mark.parametrize(
    "function",
    [AUCMarginLoss(prior=0.5), FocalLoss(), PairwiseAUCLoss(), PartialAUCLoss(max_fpr=0.5), class_columns, auroc],
)
def test_vmap_is_refused_and_torch_func_grad_is_not(function):
    scores, labels = torch.rand(2, 4), torch.tensor([[0.0, 1, 1, 0]] * 2)
    refused = pytest.raises(ValueError, match=r"scores come from torch\.vmap.* in a loop")
    with refused:
        torch.vmap(function)(scores, labels)
    if function is not auroc:
        with refused:
            torch.vmap(torch.func.grad(function))(scores, labels)
        assert torch.func.grad(function)(scores[0], labels[0]).isfinite().all()


def test_views_and_score_norms_refuse_them_too():
    views = torch.randn(4, 3)
    for function in (BatchScoreNorm(), lambda x: ContrastiveLoss()(x, x)):
        for change in (lambda x: x.to(torch.float8_e4m3fn), lambda x: x.to_sparse()):
            with pytest.raises(ValueError, match=r"cannot be computed with|dense tensor"):
                function(change(views))
