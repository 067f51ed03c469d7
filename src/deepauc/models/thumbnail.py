"""A linear score of a tiny version of the image: the least that a network has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


class ThumbnailLinear(nn.Module):
    """Images (N, in_channels, H, W) -> raw scores (N, num_outputs): the means of size x size tiles, then `head`.

    grey: the mean over channels. With size=1 and grey the score is a line over the image's mean brightness.
    """

    def __init__(self, *, in_channels: int, num_outputs: int = 1, size: int = 16, grey: bool = False) -> None:
        super().__init__()
        self.size, self.grey = size, grey
        self.head = nn.Linear((1 if grey else in_channels) * size * size, num_outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def features(self, x: Tensor) -> Tensor:
        """What `head` weighs, (N, F)."""
        tiles = functional.adaptive_avg_pool2d(x, self.size)
        return (tiles.mean(dim=1) if self.grey else tiles).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


@dataclass(frozen=True, kw_only=True)
class ThumbnailSpec:
    """A linear score of the image reduced to a few pixels, or of its mean brightness (size=1, grey=True).

    Args:
        size: Pixels on a side.
        grey: Take the mean over the colours.
    """

    size: int = 16
    grey: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 64:
            raise ValueError(f"size must lie between 1 and 64 pixels, not {self.size}.")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        return ThumbnailLinear(in_channels=in_channels, num_outputs=num_outputs, size=self.size, grey=self.grey)
