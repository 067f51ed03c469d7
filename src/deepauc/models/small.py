"""Two networks for modest means: an MLP for features and metadata, a plain CNN for tiny images on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from deepauc.kernels.dropout import StepDropout, require_rate
from deepauc.models.activations import ActivationName, make_activation
from deepauc.models.initialisation import he_initialise_


class MLP(nn.Module):
    """Features (N, in_features) -> raw scores (N, num_outputs): linear layers with an activation between them.

    Without hidden layers it is a linear model. Standardise the features first.
    """

    def __init__(
        self,
        *,
        in_features: int,
        num_outputs: int = 1,
        hidden: Sequence[int] = (256, 128),
        activation: ActivationName = "elu",
    ) -> None:
        super().__init__()
        self.hidden = nn.Sequential()
        for width in hidden:
            self.hidden.append(nn.Linear(in_features, width))
            self.hidden.append(make_activation(activation, inplace=True))
            in_features = width
        self.head = nn.Linear(in_features, num_outputs)
        he_initialise_(self, head=self.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x))


class SmallCNN(nn.Module):
    """Images (N, in_channels, H, W) -> raw scores (N, num_outputs): conv, BN, activation, and max-pooling in between.

    One 3x3 convolution a width, resolution halved between widths (odd sizes rounded up), global average, `head`.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        num_outputs: int = 1,
        widths: Sequence[int] = (32, 64, 128),
        activation: ActivationName = "elu",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        for depth, width in enumerate(widths):
            if depth:
                self.features.append(nn.MaxPool2d(2, ceil_mode=True))
            self.features.append(nn.Conv2d(in_channels, width, 3, padding=1, bias=False))
            self.features.append(nn.BatchNorm2d(width))
            self.features.append(make_activation(activation, inplace=True))
            in_channels = width
        self.drop = StepDropout(drop_rate, layer=0) if drop_rate else nn.Identity()
        self.head = nn.Linear(in_channels, num_outputs)
        he_initialise_(self, head=self.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.features(x).mean((2, 3))))


@dataclass(frozen=True, kw_only=True)
class MLPSpec:
    """Fully connected network on numeric features; the paper's metadata network is the default.

    Args:
        hidden: Width of each hidden layer.
        activation: "elu" or "relu".
    """

    hidden: tuple[int, ...] = (256, 128)
    activation: ActivationName = "elu"

    def __post_init__(self) -> None:
        make_activation(self.activation)  # refuses what it does not know
        _require_positive(self.hidden, "hidden")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        """in_channels: the number of features."""
        return MLP(in_features=in_channels, num_outputs=num_outputs, hidden=self.hidden, activation=self.activation)


@dataclass(frozen=True, kw_only=True)
class SmallCNNSpec:
    """Plain convolutional network for tiny images on a CPU.

    Args:
        widths: Channels of each convolution.
        activation: "elu" or "relu".
        drop_rate: Dropout before the classifier.
    """

    widths: tuple[int, ...] = (32, 64, 128)
    activation: ActivationName = "elu"
    drop_rate: float = 0.0

    def __post_init__(self) -> None:
        make_activation(self.activation)
        require_rate(self.drop_rate, "drop_rate")
        _require_positive(self.widths, "widths")
        if not self.widths:
            raise ValueError("widths is empty: name at least one number of channels, for example (32, 64, 128).")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        return SmallCNN(
            in_channels=in_channels,
            num_outputs=num_outputs,
            widths=self.widths,
            activation=self.activation,
            drop_rate=self.drop_rate,
        )


def _require_positive(widths: Sequence[int], name: str) -> None:
    if any(width < 1 for width in widths):
        raise ValueError(f"{name} must hold whole numbers of at least 1, not {tuple(widths)}.")
