"""Labels, scores and weights that are no tensors: one message for every loss."""

import numpy as np
import pytest
import torch

from deepauc import AUCMarginLoss, AUCSquareLoss, FocalLoss, PairwiseAUCLoss


@pytest.mark.parametrize(
    "loss_fn", [AUCMarginLoss(prior=0.5), AUCSquareLoss(prior=0.5), FocalLoss(), PairwiseAUCLoss()]
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
