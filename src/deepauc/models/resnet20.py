"""ResNet20 for small images (He et al. 2016, section 4.2), the paper's second benchmark network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from deepauc.kernels.conv_norm import (
    Delayed,
    activated,
    conv_norm,
    conv_norm_act,
    delayed_conv_norm,
    delayed_conv_norm_and_input,
    fits,
)
from deepauc.kernels.dropout import StepDropout, require_rate
from deepauc.models.activations import ActivationName, make_activation
from deepauc.models.initialisation import he_initialise_, require_momentum, set_norm_momentum_, xavier_normal_

_WIDTHS = (16, 32, 64)
_BLOCKS_A_STAGE = 3


def shortcut_a(x: Tensor, *, stride: int, extra_channels: int) -> Tensor:
    """He et al.'s shortcut A: every stride-th pixel, new channels filled with zeros, half of them on either side.

    (N, C, H, W) -> (N, C + extra, ceil(H / stride), ceil(W / stride)). It has no parameters.
    """
    before = extra_channels // 2
    # Averages of one pixel: their gradient keeps the layout (channels_last), that of a slice does not.
    return F.pad(F.avg_pool2d(x, 1, stride), (0, 0, 0, 0, before, extra_channels - before))


class BasicBlock(nn.Module):
    """act(BN(conv(act(BN(conv(x))))) + shortcut(x)), 3x3 convolutions."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, activation: ActivationName) -> None:
        super().__init__()
        self.stride = stride
        self.extra_channels = out_channels - in_channels
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.act1 = make_activation(activation, inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.act2 = make_activation(activation, inplace=True)

    def forward(self, x: Tensor | Delayed) -> Tensor | Delayed:
        """Delayed as x is."""
        first, second = (self.conv1, self.bn1, self.act1), (self.conv2, self.bn2, self.act2)
        if isinstance(x, Delayed) and fits(*first, x.y) and fits(*second, x.y):
            out, computed = delayed_conv_norm_and_input(*first, x)
            return delayed_conv_norm(*second, out, self._shortcut(computed))
        x = activated(x)
        return conv_norm_act(*second, conv_norm_act(*first, x), self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1 and not self.extra_channels:
            return x
        return shortcut_a(x, stride=self.stride, extra_channels=self.extra_channels)


class ResNet20(nn.Module):
    """Images (N, in_channels, H, W), made for 28 to 64 pixels, -> raw scores (N, num_outputs).

    3x3 stem of 16 channels at full resolution, three stages of three basic blocks (16, 32, 64 channels), shortcut A,
    global average, linear layer `head`: 19 convolutions, one linear layer, 0.27 M parameters.
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        num_outputs: int = 1,
        activation: ActivationName = "elu",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, _WIDTHS[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(_WIDTHS[0])
        self.act = make_activation(activation, inplace=True)
        self.stages = nn.Sequential()
        channels = _WIDTHS[0]
        for width in _WIDTHS:
            blocks = nn.Sequential()
            for _ in range(_BLOCKS_A_STAGE):
                stride = 1 if width == channels else 2
                blocks.append(BasicBlock(channels, width, stride=stride, activation=activation))
                channels = width
            self.stages.append(blocks)
        self.drop = StepDropout(drop_rate, layer=0) if drop_rate else nn.Identity()
        self.head = nn.Linear(channels, num_outputs)
        he_initialise_(self, head=self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = activated(self.stages(conv_norm(self.conv, self.bn, self.act, x)))
        return self.head(self.drop(x.mean((2, 3))))


@dataclass(frozen=True, kw_only=True)
class ResNet20Spec:
    """The CIFAR ResNet20 with shortcut A.

    Args:
        activation: "elu" as in the paper, or "relu".
        start: How the first weights are drawn: "he", or "xavier" (the normal form, for convolutions and classifier).
        norm_momentum: A batch's share in the running statistics of batch normalisation.
        drop_rate: Dropout before the classifier.
    """

    activation: ActivationName = "elu"
    start: Literal["he", "xavier"] = "he"
    norm_momentum: float = 0.1
    drop_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.start not in ("he", "xavier"):
            raise ValueError(f"start must be 'he' or 'xavier', not {self.start!r}.")
        make_activation(self.activation)  # refuses what it does not know
        require_momentum(self.norm_momentum)
        require_rate(self.drop_rate, "drop_rate")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        model = ResNet20(
            in_channels=in_channels, num_outputs=num_outputs, activation=self.activation, drop_rate=self.drop_rate
        )
        if self.start == "xavier":
            xavier_normal_(model)
        set_norm_momentum_(model, self.norm_momentum)
        return model
