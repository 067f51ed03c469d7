"""Mixup (Zhang et al., ICLR 2018) inside a batch: partners from the same batch keep the mean label p."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def mixing_weights(uniforms: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """Beta(alpha, alpha) by its quantile function, one weight for each number in [0, 1)."""
    from scipy.special import betaincinv

    return np.asarray(betaincinv(alpha, alpha, uniforms + 2.0**-25))  # the middle of each step of 2^-24: never 0


def partners(keys: Tensor) -> Tensor:
    """A permutation of the batch, (B,), uniform when the keys are independent and uniform.

    With several ranks, `keys` are those of the whole batch: each rank then knows which rows it needs.
    """
    return torch.argsort(keys, stable=True)


def mix(own: Tensor, other: Tensor, weights: Tensor) -> Tensor:
    """weights * own + (1 - weights) * other, by sample; a missing (NaN) label mixed with anything is missing."""
    weight = weights.reshape(-1, *(1,) * (own.ndim - 1)).to(own.dtype)
    return weight * own + (1 - weight) * other
