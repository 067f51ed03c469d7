"""What a stage on views trains: the network below its classifier, a projection head behind it, a loss of the views."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deepauc.models.projection import FeatureExtractor, ProjectionHead
from deepauc.objectives.contrastive import own_view_nearest


class ViewNetwork(nn.Module):
    """Inputs -> projections (N, out). The features are `model`'s own tensors; the head goes when the stage ends."""

    def __init__(self, model: nn.Module, *, projection: tuple[int, int], seed: int) -> None:
        """Build it with `model` on its device; the head's first weights follow from the seed alone."""
        super().__init__()
        self.features = FeatureExtractor(model)
        hidden, out = projection
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would reseed the GPUs too
            head = ProjectionHead(self.features.num_features, hidden, out)
        self.head = head.to(next(model.parameters()).device)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))


def repeated(images: Tensor, views: int) -> Tensor:
    """A batch once for each view: all images, then all again."""
    return images if views == 1 else torch.cat([images] * views)


def view_loss(projections: Tensor, labels: Tensor, objective: nn.Module, *, views: int) -> tuple[Tensor, Tensor]:
    """The loss of projections (views * N, D), and for each image whether its second view is the nearest, (N, 1)."""
    each = projections.reshape(views, -1, projections.shape[1]).unbind(0)
    return objective(*each, labels=labels), own_view_nearest(each[0], each[1]).unsqueeze(1)
