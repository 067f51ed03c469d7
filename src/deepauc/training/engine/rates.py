"""A lower learning rate for all layers but the last, as groups of any optimizer's parameters."""

from __future__ import annotations

import torch
from torch import nn

from deepauc.models.classifier import classifier_head

RATE = "rate"  # of a group: its learning rate as a share of the optimizer's; a group without it has the whole


def slow_backbone(optimizer: torch.optim.Optimizer, model: nn.Module, *, rate: float) -> None:
    """Move the parameters below the model's classifier into groups of their own, behind the others.

    What is not the model's, such as a, b and alpha, keeps the whole rate.
    """
    head = {id(parameter) for parameter in classifier_head(model).parameters()}
    slow = {id(parameter) for parameter in model.parameters()} - head
    groups, slowed = [], []
    for group in optimizer.param_groups:
        kept = [parameter for parameter in group["params"] if id(parameter) not in slow]
        moved = [parameter for parameter in group["params"] if id(parameter) in slow]
        if kept or not moved:
            groups.append({**group, "params": kept})
        if moved:
            slowed.append({**group, "params": moved, RATE: rate})
    optimizer.param_groups[:] = groups + slowed
