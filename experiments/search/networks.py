"""Networks that `best` may choose freely, from scratch: ResNet18 for small images, whole or at half its width."""

from __future__ import annotations

from typing import Any

from torch import nn

from deepauc.kernels.dropout import StepDropout
from deepauc.models.stem import use_small_stem


def small_resnet18(in_channels: int, num_outputs: int, *, width: int = 64, drop_rate: float = 0.0) -> nn.Module:
    """timm's ResNet18 with a 3x3 stem and no max-pool; width: channels of its first stage. Dropout is by the step."""
    from timm.models.resnet import BasicBlock, ResNet

    channels: Any = tuple(width * factor for factor in (1, 2, 4, 8))
    model = ResNet(BasicBlock, (2, 2, 2, 2), num_classes=num_outputs, in_chans=in_channels, channels=channels)
    use_small_stem(model, keep_kernel=False)
    if drop_rate:
        model.global_pool = nn.Sequential(model.global_pool, StepDropout(drop_rate, layer=0))
    return model
