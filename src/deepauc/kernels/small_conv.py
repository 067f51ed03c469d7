"""3x3 convolutions with few channels on a GPU: cuDNN takes 18 to 45 us where the memory traffic asks for 3.

A step of ResNet20 at batch 128 spends two thirds of its time in cuDNN's convolutions of 3 to 64 channels. These
kernels do them as matrix products over the rows of taps. Used by the fast engine for bfloat16 only; the module has an
nn.Conv2d's parameters and gives its result everywhere else. Sums are always taken in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from deepauc.kernels import tile_conv
from deepauc.kernels.small_conv_launch import CONV, GRADIENT, REGISTERS, STRIDED, TWO_BLOCK, Launch, has_room

CHANNELS = (16, 32, 64)
IMAGE_CHANNELS = (1, 3)
JOIN_BLOCK = 8
MOST_AT_ONCE = 512  # large images have thousands of programs: they are added up in turns
MOST_NUMBERS = 2**29  # of an image: the kernels count in 32 bits, sums of a weight gradient are up to 3 times as many


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def at_once(programs: int) -> int:
    """How many programs' sums are added up in one go."""
    return min(MOST_AT_ONCE, _power_of_two(programs))


def _row(channels: int, group: int, stride: int) -> int:
    """Length of a row of taps under a group, and what a matrix product can take."""
    return max(16, _power_of_two((stride * (group - 1) + 3) * channels))


def _out_shape(x: Tensor, weight: Tensor, stride: int) -> tuple[int, int, int, int]:
    n, _, h, w = x.shape
    return n, weight.shape[0], -(-h // stride), -(-w // stride)


def _like(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _tiling(channels: int, shape: tuple[int, ...], stride: int, device: torch.device) -> tuple[Launch, int, int]:
    """(launch, pixels a group, programs) of a convolution from so many channels to this shape."""
    if (tile := tile_conv.conv_tile(channels, shape, stride, device)) is not None:
        how = Launch(block=tile.height * tile.width, warps=tile.warps, stages=1, tiles=tile.each, form="tiles")
        return how, 1, -(-(shape[0] * shape[2] * shape[3]) // (how.block * how.tiles))
    how = (CONV if stride == 1 else STRIDED)[channels]
    n, _, h, w = shape
    group = 2 if how.form == "rows" and how.pair and w % 2 == 0 else 1
    return how, group, -(-(n * h * w) // (group * how.block * how.tiles))


@torch.library.custom_op("deepauc::small_conv", mutates_args=())
def small_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolution of x (N, C, H, W), channels_last, with weight (K, C, 3, 3), padding 1."""
    return _convolve(x, weight, _out_shape(x, weight, stride), stride=stride)[0]


@small_conv.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _like(x, _out_shape(x, weight, stride))


@torch.library.custom_op("deepauc::small_conv_with_moments", mutates_args=())
def small_conv_with_moments(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """The same, and each program's mean and sum of squares around it, (programs, 2, group, K), for `join_moments`."""
    return _convolve(x, weight, _out_shape(x, weight, stride), stride=stride, moments=True)


@small_conv_with_moments.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    shape = _out_shape(x, weight, stride)
    _, group, programs = _tiling(x.shape[1], shape, stride, x.device)
    return _like(x, shape), x.new_empty(programs, 2, group, shape[1], dtype=torch.float32)


@torch.library.custom_op("deepauc::join_moments", mutates_args=("running_mean", "running_variance"))
def join_moments(
    moments: Tensor, shape: Sequence[int], channels_in: int, stride: int,
    running_mean: Tensor, running_variance: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and 1 / sqrt(variance + eps) of each channel of `small_conv_with_moments`; moves the running ones.

    shape: of the convolution's result, which tells how many pixels a program had.
    """
    from deepauc.kernels.small_conv_kernel import join_moments_kernel

    programs, _, group, channels = moments.shape
    how, _, _ = _tiling(channels_in, tuple(shape), stride, moments.device)
    mean, rstd = torch.empty_like(running_mean), torch.empty_like(running_mean)
    join_moments_kernel[(channels // JOIN_BLOCK,)](
        moments, mean, rstd, running_mean, running_variance, momentum, eps,
        shape[0] * shape[2] * shape[3] // group, how.block * how.tiles, programs,
        OUT=channels, GROUP=group, AT_ONCE=at_once(programs), BLOCK=JOIN_BLOCK, num_warps=4,
    )  # fmt: skip
    return mean, rstd


@join_moments.register_fake
def _(
    moments: Tensor, shape: Sequence[int], channels_in: int, stride: int,
    running_mean: Tensor, running_variance: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(running_mean), torch.empty_like(running_mean)


@torch.library.custom_op("deepauc::small_conv_input_gradient", mutates_args=())
def small_conv_input_gradient(dy: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    """The transpose: from the gradient of the output to that of the (height, width) input."""
    out = (dy.shape[0], weight.shape[1], height, width)
    if weight.shape[1] not in CHANNELS:  # of an image: nobody's training asks for it
        x = dy.new_empty(out)
        form = ([stride, stride], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
        found: Tensor = torch.ops.aten.convolution_backward(dy, x, weight.to(dy.dtype), None, *form)[0]
        return found.contiguous(memory_format=torch.channels_last)
    return _transpose(dy, weight, out, stride, None)[0]


@small_conv_input_gradient.register_fake
def _(dy: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    return _like(dy, (dy.shape[0], weight.shape[1], height, width))


@torch.library.custom_op("deepauc::small_conv_norm_gradient", mutates_args=())
def small_conv_norm_gradient(
    dy: Tensor, weight: Tensor, stride: int, extra: Tensor | None, activated: Tensor | None,
    before: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor, offset: Tensor, elu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Through the convolution and the activation of its input: the gradient there, and sums for `norm_gradients`.

    The input was act(gain (before - mean) rstd + offset [+ shortcut]); `activated` is that input, needed only where
    there was a shortcut; `extra` is a second gradient of it. sums (programs, 2, group, C): of the gradient before the
    activation, and of it times the normalised `before`.
    """
    norm = _Norm(extra=extra, activated=activated, before=before, of=(mean, rstd, gain, offset), elu=elu)
    return _transpose(dy, weight, tuple(before.shape), stride, norm)


@small_conv_norm_gradient.register_fake
def _(
    dy: Tensor, weight: Tensor, stride: int, extra: Tensor | None, activated: Tensor | None,
    before: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor, offset: Tensor, elu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape = tuple(before.shape)
    if stride == 2 and shape[2] % 2 == shape[3] % 2 == 0:
        programs, group = -(-dy.numel() // (dy.shape[1] * TWO_BLOCK)), 4
    else:
        _, group, programs = _tiling(dy.shape[1], shape, stride, dy.device)
    return _like(dy, shape), dy.new_empty(programs, 2, group, shape[1], dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class _Norm:
    """What `before_activation` needs of the norm and activation that made a convolution's input."""

    extra: Tensor | None
    activated: Tensor | None
    before: Tensor
    of: tuple[Tensor, Tensor, Tensor, Tensor]
    elu: bool


def _norm_arguments(norm: _Norm | None, unused: Tensor) -> tuple[list[Tensor], dict[str, bool]]:
    """The kernels' arguments for a norm, tensors and form; `unused` stands where there is none."""
    if norm is None:
        return [unused] * 7, {"NORM": False, "EXTRA": False, "ACTIVATED": False, "ELU": False}
    images = [unused if t is None else t.contiguous(memory_format=torch.channels_last)
              for t in (norm.extra, norm.activated, norm.before)]  # fmt: skip
    known = {"EXTRA": norm.extra is not None, "ACTIVATED": norm.activated is not None}
    return [*images, *norm.of], {"NORM": True, **known, "ELU": norm.elu}


def _transpose(
    dy: Tensor, weight: Tensor, out: tuple[int, ...], stride: int, norm: _Norm | None
) -> tuple[Tensor, Tensor]:
    if stride == 2 and out[2] % 2 == out[3] % 2 == 0:
        return _transpose_by_two(dy, weight, out, norm)
    return _convolve(dy, weight, out, stride=stride, transposed=True, norm=norm)


def _convolve(
    x: Tensor,
    weight: Tensor,
    out: tuple[int, ...],
    *,
    stride: int,
    transposed: bool = False,
    moments: bool = False,
    norm: _Norm | None = None,
) -> tuple[Tensor, Tensor]:
    from deepauc.kernels.small_conv_kernel import conv_rows_kernel, conv_taps_kernel

    x = x.contiguous(memory_format=torch.channels_last)
    y = _like(x, out)
    n, channels, h, w = out
    out_stride, in_stride, r_stride, s_stride = weight.stride()
    if transposed:
        out_stride, in_stride = in_stride, out_stride
    strides = (out_stride, in_stride, r_stride, s_stride)
    how, group, programs = _tiling(x.shape[1], out, stride, x.device)
    sums = moments or norm is not None
    found = x.new_empty((programs, 2, group, channels) if sums else (0,), dtype=torch.float32)
    tensors, norm_form = _norm_arguments(norm, found)
    grid = (n * h * w // group, h, w // group, x.shape[2], x.shape[3], *strides)
    form = {"IN": x.shape[1], "OUT": channels, "STRIDE": stride, "FLIP": transposed, "MOMENTS": moments, **norm_form}
    if how.form == "tiles":
        tile = tile_conv.CONV[channels]
        tile_conv.convolve(x, weight, y, found, tensors, {"FLIP": transposed, "MOMENTS": moments, **norm_form}, tile)
        return y, found
    launch = {"BLOCK": how.block, "STAGES": how.stages, "num_warps": how.warps}
    if norm is not None and how.warps == 8:
        launch["maxnreg"] = REGISTERS
    if how.form == "taps" or (transposed and stride > 1):
        conv_taps_kernel[(-(-grid[0] // how.block),)](x, weight, y, found, *tensors, *grid, **form, **launch)
    else:
        row = {"GROUP": group, "ROW": _row(x.shape[1], group, stride), "AHEAD": how.ahead and has_room(x.device)}
        conv_rows_kernel[(programs,)](x, weight, y, found, *tensors, *grid, how.tiles, **form, **row, **launch)
    return y, found


def _transpose_by_two(dy: Tensor, weight: Tensor, out: tuple[int, ...], norm: _Norm | None) -> tuple[Tensor, Tensor]:
    from deepauc.kernels.small_conv_kernel import transpose_by_two_kernel

    dy = dy.contiguous(memory_format=torch.channels_last)
    dx = _like(dy, out)
    n, channels, h, w = dy.shape
    programs = -(-(n * h * w) // TWO_BLOCK)
    found = dy.new_empty((0,) if norm is None else (programs, 2, 4, out[1]), dtype=torch.float32)
    tensors, norm_form = _norm_arguments(norm, found)
    out_stride, in_stride, r_stride, s_stride = weight.stride()
    launch = {"num_warps": 4} if norm is None else {"num_warps": out[1] // 4, "maxnreg": REGISTERS}
    transpose_by_two_kernel[(programs,)](
        dy, weight, dx, found, *tensors, n * h * w, h, w, in_stride, out_stride, r_stride, s_stride,
        IN=channels, OUT=out[1], **norm_form, BLOCK=TWO_BLOCK, **launch,
    )  # fmt: skip
    return dx, found


@torch.library.custom_op("deepauc::small_conv_weight_gradient", mutates_args=())
def small_conv_weight_gradient(x: Tensor, dy: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Gradient of the weight, in its type and layout: float32 sums of each program, then of all programs."""
    from deepauc.kernels.weight_gradient_kernel import sum_programs_kernel, weight_gradient_kernel

    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous(memory_format=torch.channels_last)
    if (tile := tile_conv.gradient_tile(x, dy, stride)) is not None:
        return add_programs(tile_conv.weight_gradient(x, dy, weight, tile), weight)
    n, out, h, w = dy.shape
    how = GRADIENT[x.shape[1]]
    group = 2 if how.pair and stride == 1 and w % 2 == 0 else 1
    groups = n * h * w // group
    programs = -(-groups // (how.block * how.tiles))
    shape = {"IN": x.shape[1], "OUT": out, "GROUP": group, "ROW": _row(x.shape[1], group, stride), "STRIDE": stride}
    sums = torch.empty(programs, 3 * shape["ROW"] * group * out, dtype=torch.float32, device=x.device)
    weight_gradient_kernel[(programs, 1 if how.form == "rows" else 3)](
        x, dy, sums, groups, h, w // group, x.shape[2], x.shape[3], how.tiles, **shape, ALL=how.form == "rows",
        BLOCK=how.block, STAGES=how.stages, num_warps=how.warps,
    )  # fmt: skip
    gradient = torch.empty_like(weight)
    turn = at_once(programs)
    block = max(16, 4096 // turn)
    sum_programs_kernel[(-(-gradient.numel() // block),)](
        sums, gradient, programs, *gradient.stride(), **shape, AT_ONCE=turn, BLOCK=block, num_warps=4
    )
    return gradient


def add_programs(sums: Tensor, weight: Tensor) -> Tensor:
    """Sums (programs, a weight's memory in channels_last) added up, in the weight's type and layout."""
    from deepauc.kernels.weight_gradient_kernel import add_programs_kernel

    found = torch.empty_like(weight, memory_format=torch.channels_last)
    turn = at_once(len(sums))
    block = max(16, 4096 // turn)
    add_programs_kernel[(-(-found.numel() // block),)](
        sums, found, len(sums), found.numel(), AT_ONCE=turn, BLOCK=block, num_warps=4
    )
    return found if found.stride() == weight.stride() else torch.empty_like(weight).copy_(found)


@small_conv_weight_gradient.register_fake
def _(x: Tensor, dy: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor, *moments: Any) -> tuple[Tensor | None, Tensor | None, None]:
    """The moments are looked at, not differentiated: `conv_norm` knows what they mean for y."""
    x, weight = ctx.saved_tensors
    dx = dweight = None
    if ctx.needs_input_grad[0]:
        dx = small_conv_input_gradient(dy, weight, ctx.stride, x.shape[2], x.shape[3])
    if ctx.needs_input_grad[1]:
        dweight = small_conv_weight_gradient(x, dy, weight, ctx.stride)
    return dx, dweight, None


small_conv.register_autograd(_backward, setup_context=_keep)
small_conv_with_moments.register_autograd(_backward, setup_context=_keep)


class SmallConv2d(nn.Conv2d):
    """An nn.Conv2d that takes the kernels above for bfloat16 on a CUDA device."""

    def takes(self, input: Tensor) -> bool:
        """Whether the kernels are for this input: images of what nn.Conv2d would do in bfloat16."""
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else input.dtype
        numbers = input.shape[0] * input.shape[-2] * input.shape[-1] * max(self.in_channels, self.out_channels)
        return input.is_cuda and dtype == torch.bfloat16 and input.ndim == 4 and numbers <= MOST_NUMBERS

    def forward(self, input: Tensor) -> Tensor:
        if self.takes(input):
            return small_conv(input.to(torch.bfloat16), self.weight, self.stride[0])
        return super().forward(input)


@cache
def has_triton() -> bool:
    """Whether Triton is there, which writes these kernels and those of torch's compiler: torch for Windows has none."""
    return find_spec("triton") is not None


def suits(device: torch.device) -> bool:
    """Whether the kernels are made for this device: older ones have no products of bfloat16, ROCm other options."""
    if device.type != "cuda":
        return True
    return has_triton() and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def use_small_convs(model: nn.Module) -> int:
    """Turn the 3x3 convolutions of 16, 32 or 64 channels, and such stems, into `SmallConv2d`, in place; how many."""
    count = 0
    for module in model.modules():
        if (
            type(module) is nn.Conv2d
            and module.kernel_size == (3, 3)
            and module.stride in ((1, 1), (2, 2))
            and module.dilation == (1, 1)
            and module.padding == (1, 1)
            and module.padding_mode == "zeros"
            and module.groups == 1
            and module.bias is None
            and (module.in_channels in CHANNELS or module.in_channels in IMAGE_CHANNELS)
            and module.out_channels in CHANNELS
        ):
            module.__class__ = SmallConv2d
            count += 1
    return count
