"""PESG's second argument."""

import pytest
import torch

from deepauc import PESG


@pytest.mark.parametrize("objective", [torch.nn.BCEWithLogitsLoss(), 0.1, None])
def test_a_loss_that_is_no_min_max_problem_is_refused(objective):
    with pytest.raises(ValueError, match="PESG needs a min-max loss, such as AUCMarginLoss"):
        PESG(torch.nn.Linear(2, 1).parameters(), objective)
