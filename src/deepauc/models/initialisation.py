"""How the networks of this room draw their first weights."""

from __future__ import annotations

from torch import nn


def he_initialise_(model: nn.Module, *, head: nn.Module) -> None:
    """He et al. (2015): convolutions N(0, 2/fan_out), hidden linear layers N(0, 2/fan_in) with bias 0.

    The classifier layer `head` keeps PyTorch's own U(-1/sqrt(fan_in), 1/sqrt(fan_in)), which is also what
    `reset_classifier` draws.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear) and module is not head:
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
            nn.init.zeros_(module.bias)
