"""Bytes that the ranks exchange in a step, counted from the recipe: what many GPUs cost beside their compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepauc.models.bags import BagNetwork
from deepauc.models.build import ModelSpec
from deepauc.training.engine.global_norm import GlobalBatchNorm
from deepauc.training.engine.views import ViewNetwork
from deepauc.training.recipe import Stage

NUMBER = 4  # bytes: gradients, outputs and statistics are float32, the flag is int32


@dataclass(frozen=True, kw_only=True)
class StepTraffic:
    """What one step of a stage exchanges, in bytes of the results that each rank holds afterwards.

    gradients: summed over the ranks in one message. outputs: gathered, each rank's slice padded to the longest.
    statistics: summed, two numbers a channel of each batch normalisation, in double precision on the way forward, and
    its count. flag: on the host. layers: batch normalisations passed, forward and backward.
    """

    ranks: int
    gradients: int
    outputs: int
    statistics: int
    layers: int
    flag: int = NUMBER

    @property
    def sent(self) -> float:
        """Bytes each rank sends in a step, all exchanges being rings.

        A ring of k sums S bytes by sending 2 (k - 1) / k S, and gathers S bytes in all by sending (k - 1) / k S.
        """
        summed = self.gradients + self.statistics + self.flag
        return (2 * summed + self.outputs) * (self.ranks - 1) / self.ranks

    @property
    def exchanges(self) -> int:
        """Messages on the device that wait for one another: gradients, outputs, one a batch normalisation and way."""
        return 2 + self.layers


def step_traffic(
    stage: Stage, model: ModelSpec, *, shape: tuple[int, ...], num_labels: int, ranks: int, batch_size: int
) -> StepTraffic:
    """The traffic of a stage whose (global) batch has `batch_size` rows of this shape, (H, W, C) or (F,).

    The network is built and run without memory (torch's meta device), so the largest one costs no more than its Python.
    """
    if ranks < 2:
        return StepTraffic(ranks=1, gradients=0, outputs=0, statistics=0, layers=0, flag=0)
    counter = _Counter()
    with torch.device("meta"):
        network = model.build(in_channels=shape[-1], num_outputs=num_labels)
        if stage.on_views:
            network = ViewNetwork(network, projection=stage.projection, seed=0)
        # Of bags, what the network keeps of each image: pooling has no weights, and needs real numbers of images.
        forwarded = network.train().image_outputs if isinstance(network, BagNetwork) else network.train()
        with GlobalBatchNorm(counter):
            output = forwarded(torch.zeros(2, shape[-1], *shape[:-1]))
        forward, forward_layers = counter.summed, counter.layers
        output.sum().backward()
    passes = 1 if stage.accumulate == 1 else 2 * stage.accumulate  # of the pieces, without and with gradient
    weights = sum(p.numel() for p in network.parameters() if p.grad is not None)
    rows = -(-batch_size // ranks) * ranks * stage.views
    return StepTraffic(
        ranks=ranks,
        gradients=NUMBER * weights,
        outputs=NUMBER * rows * (num_labels if isinstance(network, BagNetwork) else output.shape[1]),
        statistics=forward * passes + (counter.summed - forward) * stage.accumulate,
        layers=forward_layers * passes + (counter.layers - forward_layers) * stage.accumulate,
    )


class _Counter:
    """Stands for the ranks, exchanges nothing, and counts."""

    def __init__(self) -> None:
        self.summed = self.layers = 0

    def add_up(self, values: Tensor, what: str) -> None:
        self.layers += 1
        self.summed += values.numel() * values.element_size()
