"""How the networks of this room draw their first weights."""

from __future__ import annotations

from torch import nn


def require_momentum(norm_momentum: float | None) -> None:
    """ValueError unless batch normalisation can work with it."""
    if norm_momentum is not None and not 0 < norm_momentum <= 1:
        raise ValueError(
            f"norm_momentum must lie in (0, 1], not {norm_momentum}: it is the share of a batch in the running "
            "statistics, 0.1 by torch's default."
        )


def set_norm_momentum_(model: nn.Module, norm_momentum: float) -> None:
    """For every batch normalisation."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = norm_momentum


def xavier_normal_(model: nn.Module) -> None:
    """Glorot and Bengio (2010): convolutions and linear layers N(0, 2/(fan_in + fan_out)); biases stay."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(module.weight)


def xavier_uniform_(model: nn.Module) -> None:
    """Glorot and Bengio (2010): convolutions U(-r, r), r = sqrt(6/(fan_in + fan_out)); the classifier's bias is 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


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
