"""3x3 convolutions with few channels on a GPU: cuDNN takes 18 to 45 us where the memory traffic asks for 3.

A step of ResNet20 at batch 128 spends two thirds of its time in cuDNN's convolutions of 16 to 64 channels. These
kernels do them as implicit matrix products over the nine taps. Used by the fast engine for bfloat16 only; the module
has an nn.Conv2d's parameters and gives its result everywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHANNELS = (16, 32, 64)
SPLITS = 88  # programs a row of taps in the weights' gradient: 264 in all, two for each of 132 multiprocessors


def _tile(channels: int) -> int:
    """Pixels of a program, by measurement on an H200 (64, 128 and 256 were tried)."""
    return 64 if channels == 64 else 128


@torch.library.custom_op("deepauc::small_conv", mutates_args=())
def small_conv(x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    """Convolution of x (N, C, H, W), channels_last, with weight (K, C, 3, 3), padding 1; or with its transpose."""
    from deepauc.models.small_conv_kernel import conv_kernel

    x = x.contiguous(memory_format=torch.channels_last)
    n, c, h, w = x.shape
    out_stride, in_stride, r_stride, s_stride = weight.stride()
    channels = weight.shape[0]
    if transposed:
        out_stride, in_stride, channels = in_stride, out_stride, weight.shape[1]
    y = torch.empty((n, channels, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, tile = n * h * w, _tile(c)
    conv_kernel[(-(-pixels // tile),)](
        x, weight, y, pixels, h, w, out_stride, in_stride, r_stride, s_stride,
        IN=c, OUT=channels, FLIP=transposed, BLOCK=tile, num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


@small_conv.register_fake
def _(x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    channels = weight.shape[1] if transposed else weight.shape[0]
    shape = (x.shape[0], channels, x.shape[2], x.shape[3])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("deepauc::small_conv_weight_gradient", mutates_args=())
def small_conv_weight_gradient(x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the weight, in its type (float32 sums, by atomic additions)."""
    from deepauc.models.small_conv_kernel import weight_gradient_kernel

    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous(memory_format=torch.channels_last)
    n, c, h, w = x.shape
    gradient = torch.zeros_like(weight, dtype=torch.float32)
    pixels, tile = n * h * w, _tile(c)
    blocks = -(-pixels // tile)
    each = -(-blocks // SPLITS)
    weight_gradient_kernel[(-(-blocks // each), 3)](
        x, dy, gradient, pixels, h, w, *gradient.stride(), each,
        IN=c, OUT=weight.shape[0], BLOCK=tile, num_warps=4, num_stages=3,
    )  # fmt: skip
    return gradient.to(weight.dtype)


@small_conv_weight_gradient.register_fake
def _(x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    dx = small_conv(dy, weight, True) if ctx.needs_input_grad[0] else None
    dweight = small_conv_weight_gradient(x, dy, weight) if ctx.needs_input_grad[1] else None
    return dx, dweight, None


small_conv.register_autograd(_backward, setup_context=_keep)


class SmallConv2d(nn.Conv2d):
    """An nn.Conv2d that takes the kernels above for bfloat16 on a CUDA device."""

    def forward(self, input: Tensor) -> Tensor:
        if input.is_cuda and input.dtype == torch.bfloat16:
            return small_conv(input, self.weight, False)
        return super().forward(input)


def use_small_convs(model: nn.Module) -> int:
    """Turn the 3x3, stride-1 convolutions of 16, 32 or 64 channels into `SmallConv2d`, in place; how many."""
    count = 0
    for module in model.modules():
        if (
            type(module) is nn.Conv2d
            and module.kernel_size == (3, 3)
            and module.stride == module.dilation == (1, 1)
            and module.padding == (1, 1)
            and module.padding_mode == "zeros"
            and module.groups == 1
            and module.bias is None
            and module.in_channels in CHANNELS
            and module.out_channels in CHANNELS
        ):
            module.__class__ = SmallConv2d
            count += 1
    return count
