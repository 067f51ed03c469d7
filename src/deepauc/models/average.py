"""Several networks as one: the mean of their recalibrated probabilities, given as log odds.

Where the networks do not take the same inputs (each fold has its own encoding of metadata; some take images, others
numbers), the average takes one row of numbers for all of them, and each member makes its own inputs of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Buildable(Protocol):
    """The spec of a member."""

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module: ...


class AverageNetwork(nn.Module):
    """Inputs as they are (images in [0, 1], or features) -> the log odds of the members' mean probability, (N, L).

    Each member m standardises the inputs by its own mean and deviation, its raw score h becomes the probability
    sigmoid(slope h + intercept), and the members' probabilities are averaged by their shares, which sum to 1:

        p = Σ_m w_m σ(z_m),    score = log p - log(1 - p),    1 - p = Σ_m w_m σ(-z_m).

    Both sums are taken in logarithms, so that no score ties where p is near 0 or 1.
    """

    def __init__(self, members: Sequence[nn.Module], *, in_channels: int, num_outputs: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        count = len(members)
        self.register_buffer("mean", torch.zeros(count, in_channels))
        self.register_buffer("std", torch.ones(count, in_channels))
        self.register_buffer("slope", torch.ones(count, num_outputs))
        self.register_buffer("intercept", torch.zeros(count, num_outputs))
        self.register_buffer("share", torch.full((count,), 1 / count))

    def forward(self, x: Tensor) -> Tensor:
        return self._averaged([member(self._standardised(x, number)) for number, member in enumerate(self.members)])

    # Of bags (`models.bags.PoolsImages`): each member pools by itself, and their probabilities are averaged.

    @property
    def num_image_outputs(self) -> int:
        return sum(self._widths())

    def image_outputs(self, images: Tensor) -> Tensor:
        outputs = [member.image_outputs(self._standardised(images, n)) for n, member in enumerate(self._bag_members())]
        return torch.cat(outputs, dim=1)

    def pool(self, grid: Tensor, present: Tensor) -> Tensor:
        each = zip(self._bag_members(), torch.split(grid, self._widths(), dim=2), strict=True)
        return self._averaged([member.pool(own, present) for member, own in each])

    def importance(self, outputs: Tensor) -> Tensor:
        """The mean of the members', by their shares."""
        each = zip(
            self._bag_members(), torch.split(outputs, self._widths(), dim=1), self.get_buffer("share"), strict=True
        )
        return sum((share * member.importance(own) for member, own, share in each), torch.zeros(()))

    def _bag_members(self) -> list[Any]:
        return list(self.members)

    def _widths(self) -> list[int]:
        return [member.num_image_outputs for member in self._bag_members()]

    def _standardised(self, x: Tensor, member: int) -> Tensor:
        shape = (1, -1, *(1,) * (x.ndim - 2))
        mean, std = self.get_buffer("mean")[member], self.get_buffer("std")[member]
        return (x - mean.reshape(shape)) / std.reshape(shape)

    def _averaged(self, scores: Sequence[Tensor]) -> Tensor:
        """Raw scores of each member, (N, L), as the log odds of their mean probability."""
        slope, intercept = self.get_buffer("slope"), self.get_buffer("intercept")
        z = torch.stack([slope[n] * one + intercept[n] for n, one in enumerate(scores)])  # (M, N, L)
        shares = self.get_buffer("share").log().reshape(-1, 1, 1)
        positive = torch.logsumexp(functional.logsigmoid(z) + shares, dim=0)
        negative = torch.logsumexp(functional.logsigmoid(-z) + shares, dim=0)
        return positive - negative


class OnFeatures(nn.Module):
    """A member whose features are A x + b of the last columns of the average's inputs, from `start` on."""

    def __init__(self, member: nn.Module, *, start: int, inputs: int, features: int) -> None:
        super().__init__()
        self.member, self.start = member, start
        self.register_buffer("matrix", torch.zeros(features, inputs))
        self.register_buffer("offset", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        features = x[:, self.start :] @ self.get_buffer("matrix").T + self.get_buffer("offset")
        scores: Tensor = self.member(features)
        return scores


class OnPictures(nn.Module):
    """A member that takes images: the first H · W · C columns of the average's inputs, in [0, 1], row by row."""

    def __init__(self, member: nn.Module, *, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.member, self.shape = member, shape
        self.register_buffer("mean", torch.zeros(shape[2]))
        self.register_buffer("std", torch.ones(shape[2]))

    def forward(self, x: Tensor) -> Tensor:
        height, width, channels = self.shape
        images = x[:, : height * width * channels].reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        mean, std = (self.get_buffer(name).reshape(1, -1, 1, 1) for name in ("mean", "std"))
        scores: Tensor = self.member((images - mean) / std)
        return scores


@dataclass(frozen=True, kw_only=True)
class OnFeaturesSpec:
    """A network on features that follow linearly from columns of an average's inputs, such as encoded metadata.

    Args:
        member: The spec of the network.
        inputs: Number of columns, from `start` on.
        features: Number of features that follow from them.
        start: First of the columns.
    """

    member: Buildable
    inputs: int
    features: int
    start: int = 0

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        """in_channels: of the average's inputs."""
        network = self.member.build(in_channels=self.features, num_outputs=num_outputs)
        return OnFeatures(network, start=self.start, inputs=self.inputs, features=self.features)


@dataclass(frozen=True, kw_only=True)
class OnPicturesSpec:
    """A network on images that lie flat in an average's inputs, row by row.

    Args:
        member: The spec of the network.
        shape: Height, width and channels of the images.
    """

    member: Buildable
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        height, width, channels = self.shape
        object.__setattr__(self, "shape", (height, width, channels))

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        """in_channels: of the average's inputs."""
        network = self.member.build(in_channels=self.shape[2], num_outputs=num_outputs)
        return OnPictures(network, shape=self.shape)


@dataclass(frozen=True, kw_only=True)
class AverageSpec:
    """The average of these networks; standardisation, recalibration and shares are part of its weights.

    Args:
        members: Specs of the networks.
    """

    members: tuple[Buildable, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        if not self.members:
            raise ValueError("an average has at least one member.")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        networks = [member.build(in_channels=in_channels, num_outputs=num_outputs) for member in self.members]
        if all(isinstance(member, OnFeaturesSpec | OnPicturesSpec) for member in self.members):
            in_channels = 1  # they standardise by themselves
        return AverageNetwork(networks, in_channels=in_channels, num_outputs=num_outputs)
