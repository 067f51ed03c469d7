"""Lower learning rates for all layers but the last, as groups of any optimizer's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from deepauc.models.classifier import classifier_head

RATE = "rate"  # of a group: its learning rate as a share of the optimizer's; a group without it has the whole
PARTS = 4  # graded rates: few groups, since each is a kernel of PESG's step


def slow_backbone(optimizer: torch.optim.Optimizer, model: nn.Module, *, rate: float, graded: bool = False) -> None:
    """Move the parameters below the model's classifier into groups of their own, behind the others.

    graded: the layers, as the network registers them, are cut into quarters with rate, rate^(3/4), rate^(1/2) and
    rate^(1/4). What is not the model's, such as a, b and alpha, keeps the whole rate.
    """
    head = {id(parameter) for parameter in classifier_head(model).parameters()}
    below = [parameter for parameter in model.parameters() if id(parameter) not in head]
    layers = sum(parameter.ndim > 1 for parameter in below)
    shares, layer = {}, 0
    for parameter in below:
        layer += parameter.ndim > 1  # what has one axis belongs to the layer before it
        part = PARTS * max(layer - 1, 0) // max(layers, 1)
        shares[id(parameter)] = rate ** (1 - part / PARTS) if graded else rate
    groups, slowed = [], []
    for group in optimizer.param_groups:
        kept = [parameter for parameter in group["params"] if id(parameter) not in shares]
        moved: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            if id(parameter) in shares:
                moved.setdefault(shares[id(parameter)], []).append(parameter)
        if kept or not moved:
            groups.append({**group, "params": kept})
        slowed += [{**group, "params": some, RATE: share} for share, some in moved.items()]
    optimizer.param_groups[:] = groups + slowed


def share_of(group: Mapping[str, Any], *, frozen: bool) -> float:
    """A group's learning rate as a share of the optimizer's. frozen: whether only the last layer is to move."""
    return 0.0 if frozen and RATE in group else float(group.get(RATE, 1.0))
