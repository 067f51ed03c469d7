"""How several runs lie in one tensor, for the stacked layers.

Runs are folded into the batch axis: activations (R * B, C, H, W), run r owning rows r B to (r + 1) B; weights have an
axis of runs in front. The kernels see (R, pixels, C): NHWC with N, H and W as one axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF = torch.bfloat16


def takes(x: Tensor) -> bool:
    """Whether the kernels are for this input: bfloat16 on a GPU."""
    return x.is_cuda and (x.dtype == HALF or torch.is_autocast_enabled("cuda"))


def rows_of(x: Tensor, runs: int) -> Tensor:
    """(R * B, C, ...) as (R, pixels, C): a view where channels are last in memory."""
    return x.movedim(1, -1).reshape(runs, -1, x.shape[1])


def images_of(rows: Tensor, size: tuple[int, ...]) -> Tensor:
    """Back to (R * B, C, ...), with R * B and what comes after C as given."""
    return rows.reshape(*size, rows.shape[-1]).movedim(-1, 1)


def rows_apart(x: Tensor) -> Tensor:
    """(R, pixels, C) whose channels are dense and whose rows, of all runs, are evenly apart; a copy if need be."""
    runs, pixels, channels = x.shape
    even = runs == 1 or pixels == 1 or x.stride(0) == pixels * x.stride(1)
    return x if even and (channels == 1 or x.stride(2) == 1) else x.contiguous()


def row_distance(x: Tensor) -> int:
    """The distance between two rows."""
    return x.stride(1) if x.shape[1] > 1 else x.stride(0)
