"""The backward pass of batch normalisation and activation on a GPU: sums over the pixels, then the gradient.

The sums come from `norm_sums`, or from the kernel that makes the gradient (`small_conv.small_conv_norm_gradient`).
Tensors are (N, C, H, W), channels_last; sums are (programs, 2, group, C), float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepauc.kernels.small_conv import JOIN_BLOCK, at_once

TILE = 4096  # numbers a program has in hand at once
PROGRAMS = 128


def _tiles(before: Tensor) -> tuple[int, int, int, int]:
    """(pixels, pixels a tile, tiles a program, programs)."""
    channels = before.shape[1]
    pixels, block = before.numel() // channels, TILE // channels
    tiles = -(-pixels // block)
    each = -(-tiles // PROGRAMS)
    return pixels, block, each, -(-tiles // each)


@torch.library.custom_op("deepauc::norm_sums", mutates_args=())
def norm_sums(
    gradient: Tensor, activated: Tensor | None, before: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor,
    offset: Tensor, elu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient before the activation from the one after it, and its sums for `norm_gradients`.

    `activated` is the activation's result, needed only where a shortcut went into it.
    """
    from deepauc.kernels.norm_kernel import norm_sums_kernel

    gradient, before = (t.contiguous(memory_format=torch.channels_last) for t in (gradient, before))
    out = before if activated is None else activated.contiguous(memory_format=torch.channels_last)
    pixels, block, each, programs = _tiles(before)
    result = torch.empty_like(before)
    sums = torch.empty(programs, 2, 1, before.shape[1], dtype=torch.float32, device=before.device)
    norm_sums_kernel[(programs,)](
        gradient, result, sums, out, before, mean, rstd, gain, offset, pixels, each,
        CHANNELS=before.shape[1], ACTIVATED=activated is not None, ELU=elu, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return result, sums


@norm_sums.register_fake
def _(
    gradient: Tensor, activated: Tensor | None, before: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor,
    offset: Tensor, elu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sums = before.new_empty(_tiles(before)[3], 2, 1, before.shape[1], dtype=torch.float32)
    return torch.empty_like(before, memory_format=torch.channels_last), sums


@torch.library.custom_op("deepauc::norm_gradients", mutates_args=())
def norm_gradients(
    gradient: Tensor, before: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `before`, gain and offset of gain (before - mean) rstd + offset, mean and rstd being its own.

    gain rstd (gradient - (doffset + normalised dgain) / pixels), doffset and dgain from the sums.
    """
    from deepauc.kernels.norm_kernel import join_sums_kernel, norm_gradient_kernel

    gradient, before = (t.contiguous(memory_format=torch.channels_last) for t in (gradient, before))
    programs, _, group, channels = sums.shape
    result, dgain, doffset = torch.empty_like(before), torch.empty_like(gain), torch.empty_like(gain)
    join_sums_kernel[(channels // JOIN_BLOCK,)](
        sums, dgain, doffset, programs,
        CHANNELS=channels, GROUP=group, AT_ONCE=at_once(programs), BLOCK=JOIN_BLOCK, num_warps=4,
    )  # fmt: skip
    pixels, block = before.numel() // channels, TILE // channels
    norm_gradient_kernel[(-(-pixels // block),)](
        gradient, before, mean, rstd, gain, dgain, doffset, result, pixels,
        CHANNELS=channels, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return result, dgain, doffset


@norm_gradients.register_fake
def _(
    gradient: Tensor, before: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty_like(before, memory_format=torch.channels_last)
    return like, torch.empty_like(gain), torch.empty_like(gain)
