"""A stem for small images: ImageNet's throws away fifteen of sixteen pixels before the first block."""

from __future__ import annotations

import torch
from torch import nn


def use_small_stem(model: nn.Module, *, keep_kernel: bool) -> None:
    """Replace timm's 7x7 stride-2 convolution by a 3x3 stride-1 one and drop the max-pool; DenseNet and ResNet only.

    keep_kernel: the new kernel is the centre of the old one (pretrained weights); otherwise it is drawn as He et al.
    """
    conv_path, pool_path = _stem_paths(model)
    old, pool = model.get_submodule(conv_path), model.get_submodule(pool_path)
    plain = isinstance(old, nn.Conv2d) and old.kernel_size == (7, 7) and old.stride == (2, 2) and old.bias is None
    if not (plain and isinstance(pool, nn.MaxPool2d)):
        raise ValueError(_not_understood(f"{conv_path} and {pool_path} are {_shown(old)} and {_shown(pool)}"))
    assert isinstance(old, nn.Conv2d)
    weight = old.weight
    new = nn.Conv2d(
        old.in_channels, old.out_channels, 3, padding=1, bias=False, device=weight.device, dtype=weight.dtype
    )
    if keep_kernel:
        with torch.no_grad():
            new.weight.copy_(weight[:, :, 2:5, 2:5])
    else:
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule(conv_path, new)
    model.set_submodule(pool_path, nn.Identity())


def _stem_paths(model: nn.Module) -> tuple[str, str]:
    from timm.models.densenet import DenseNet
    from timm.models.resnet import ResNet

    if isinstance(model, DenseNet):
        return "features.conv0", "features.pool0"
    if isinstance(model, ResNet):
        return "conv1", "maxpool"
    raise ValueError(_not_understood(f"{type(model).__name__} is neither a DenseNet nor a ResNet of timm's"))


def _shown(layer: nn.Module) -> str:
    return type(layer).__name__ if list(layer.children()) else str(layer)


def _not_understood(reason: str) -> str:
    return (
        f"small_stem=True: the stem of this network is not understood ({reason}). Leave small_stem out and enlarge the "
        "images, or choose densenet121, densenet161, densenet169, densenet201, resnet18, resnet34 or resnet50."
    )
