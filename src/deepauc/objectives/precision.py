"""The number type that sums over a batch are taken in."""

from __future__ import annotations

import torch


def precise_dtype(device_type: str) -> torch.dtype:
    """float64, or float32 on Apple's GPUs (`mps`), which have nothing wider.

    The sums are of centred scores, and so hold in float32 too: summed one after the other, the sorted hinges' value and
    gradient were within 3e-6 of float64's at 131,072 normal scores. Lost are digits of small scores beside a huge one.
    """
    return torch.float32 if device_type == "mps" else torch.float64
