"""A network whose every layer does several runs at once: the runs of a pack share its kernels, not its weights.

A DenseNet121 on images of 32 pixels is thousands of kernels too small for a GPU; the runs of a pack in one kernel cost
little more than one. Runs are folded into the batch axis, as `rows` says, so that whatever treats images one by
one (activations, pooling, concatenation) stays as it is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from deepauc.kernels.dropout import DroppedDenseLayer, StepDropout
from deepauc.kernels.stacked import rows as stacked_rows
from deepauc.kernels.stacked.conv import Taps, conv, halved, linear
from deepauc.kernels.stacked.dense import DenseLayer, Drop, dense_block
from deepauc.kernels.stacked.norm import Activation, Norm, norm_act

KNOWN_SOURCES = ("torch", "timm", "deepauc")  # whose modules without weights treat images one by one


class StackedConv2d(nn.Conv2d):
    """Weight (R, K, C, k, k), bias (R, K); weight_half: the weight in bfloat16 where somebody has it already."""

    weight_half: Tensor

    @property
    def taps(self) -> Taps:
        return Taps(self.kernel_size[0], self.stride[0], int(self.padding[0]))

    def forward(self, input: Tensor) -> Tensor:
        return conv(input, self.weight, self.bias, _given(self.weight_half), self.taps)


class StackedLinear(nn.Linear):
    """Weight (R, K, C), bias (R, K); weight_half: as in `StackedConv2d`."""

    weight_half: Tensor

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, _given(self.weight_half))


class StackedNorm(nn.modules.batchnorm._BatchNorm):
    """All parameters and buffers (R, C). A timm BatchNormAct2d's own activation comes with it."""

    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def tensors(self) -> Norm:
        """What the functions take; no activation where they do not know it."""
        return Norm(
            weight=self.weight,
            bias=self.bias,
            running=(self.running_mean, self.running_var),
            momentum=self.momentum,
            eps=self.eps,
            activation=_activation(getattr(self, "act", None)) or "",
        )

    def forward(self, input: Tensor) -> Tensor:
        act = getattr(self, "act", None)
        y = norm_act(input, self.tensors())
        return y if act is None or _activation(act) is not None else act(y)


class StackedDenseBlock(nn.ModuleDict):
    """timm's DenseBlock: on the kernels in one buffer, elsewhere appending to one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        layers: list[Any] = list(self.values())
        if stacked_rows.takes(x) and all(_fits_buffer(layer) for layer in layers):
            return dense_block(x, [_dense_layer(layer) for layer in layers], layers[0].conv2.taps)
        for layer in layers:
            new = layer.conv2(layer.norm2(layer.conv1(layer.norm1(x))))
            x = torch.cat([x, layer.drop(new) if isinstance(layer, DroppedDenseLayer) else new], 1)
        return x


def _fits_buffer(layer: Any) -> bool:
    """Whether `dense_block` does what timm's DenseLayer does: known activations, convolutions that keep the size."""
    known = all(_activation(getattr(norm, "act", None)) is not None for norm in (layer.norm1, layer.norm2))
    taps = layer.conv2.taps
    keeps_size = layer.conv1.taps == Taps(1, 1, 0) and taps.stride == 1 and taps.kernel == 2 * taps.padding + 1
    return known and keeps_size and layer.conv1.bias is None and layer.conv2.bias is None


def _dense_layer(layer: Any) -> DenseLayer:
    return DenseLayer(
        norm1=layer.norm1.tensors(),
        conv1=layer.conv1.weight,
        half1=halved(layer.conv1.weight, _given(layer.conv1.weight_half)),
        norm2=layer.norm2.tensors(),
        conv2=layer.conv2.weight,
        half2=halved(layer.conv2.weight, _given(layer.conv2.weight_half)),
        drop=_drop(layer.drop) if isinstance(layer, DroppedDenseLayer) else None,
    )


def _drop(dropout: StepDropout) -> Drop | None:
    drops = dropout.training and dropout.rate
    return Drop(keys=dropout.step_key, layer=dropout.layer, rate=dropout.rate) if drops else None


def can_stack(model: nn.Module) -> bool:
    """Whether `stacked` gives what the network does in training: all its weights in layers that are known, no chance
    but `StepDropout`'s.

    A network of one's own may mix its batch in a way that no module shows: it cannot.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    shared = len(names) != len(list(model.parameters()))
    plain = all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    return plain and not shared and all(_fits(module) for module in model.modules())


def _fits(module: nn.Module) -> bool:
    if type(module).__module__.partition(".")[0] not in KNOWN_SOURCES:
        return False
    by_chance = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    options = ("drop_rate", "drop_prob", "grad_checkpointing")
    if by_chance or any(getattr(module, option, None) for option in options):
        return False
    if type(module) is nn.Conv2d:
        return _fits_conv(module)
    if _is_norm(module):
        return _fits_norm(module)
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return type(module) in (nn.Linear, StepDropout) or not own


def _fits_conv(conv: nn.Conv2d) -> bool:
    square = all(
        isinstance(form, tuple) and form[0] == form[1] for form in (conv.kernel_size, conv.stride, conv.padding)
    )
    return square and conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"


def _is_norm(module: nn.Module) -> bool:
    timm_own = type(module).__name__ == "BatchNormAct2d" and type(module).__module__.startswith("timm.")
    return type(module) in (nn.BatchNorm1d, nn.BatchNorm2d) or timm_own


def _fits_norm(norm: Any) -> bool:
    whole = norm.affine and norm.track_running_stats and norm.momentum is not None and norm.training
    return whole and isinstance(getattr(norm, "drop", nn.Identity()), nn.Identity)


def stacked(model: nn.Module, runs: int) -> nn.Module:
    """The network without values, to be called through `functional_call` with weights and buffers (runs, ...).

    The names are the model's, and `<layer>.weight_half` for the weights in bfloat16, which may be left out. A
    `StepDropout`'s `step_key` is (runs,).
    """
    template = empty_copy(model)
    for module in template.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = StackedConv2d
        elif type(module) is nn.Linear:
            module.__class__ = StackedLinear
        elif _is_norm(module):
            module.__class__ = StackedNorm
            module.register_buffer("num_batches_tracked", None)  # counted elsewhere, for all layers at once
        elif type(module).__name__ == "DenseBlock" and type(module).__module__.startswith("timm."):
            module.__class__ = StackedDenseBlock
        if isinstance(module, StackedConv2d | StackedLinear):
            module.register_buffer("weight_half", torch.empty(runs, 0, device="meta"), persistent=False)
    return template


def empty_copy(model: nn.Module) -> nn.Module:
    """The modules without any values: a program must not be bound to the first run's weights."""
    # deepcopy asks its memo first: the modules are new, the tensors empty ones of the same layout.
    empty: dict[int, Tensor] = {}
    for parameter in model.parameters():
        empty[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        empty[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(model, empty)


def _given(half: Tensor) -> Tensor | None:
    return None if half.is_meta else half


def _activation(act: nn.Module | None) -> Activation | None:
    """What the kernels know of an activation's doing; None if nothing."""
    if act is None or type(act) is nn.Identity:
        return ""
    if type(act) is nn.ReLU:
        return "relu"
    return "elu" if type(act) is nn.ELU and act.alpha == 1 else None
