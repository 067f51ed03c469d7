"""What a contrastive stage trains: the network without its classifier, and a projection head behind it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

from deepauc.models.classifier import classifier_head, classifier_name


class FeatureExtractor(nn.Module):
    """The network up to its classifier layer: inputs -> features (N, num_features), on the network's own tensors.

    Parameters and buffers are shared, the classifier layer's left out: what trains here trains `model`. Build it after
    `model` is on its device, and do not move either afterwards (moving replaces buffers); it says so if tried.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        head = classifier_head(model)
        self.num_features = head.weight.shape[1]
        # deepcopy asks its memo first: the modules are new, the tensors are the old ones.
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.backbone = copy.deepcopy(model, shared)
        self.backbone.set_submodule(classifier_name(model), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = [id(tensor) for tensor in (*self.parameters(), *self.buffers())]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before != [id(tensor) for tensor in (*self.parameters(), *self.buffers())]:
            raise RuntimeError(
                "a FeatureExtractor shares its network's tensors and cannot move alone: "
                "move the network first, then build the FeatureExtractor."
            )
        return self


class ProjectionHead(nn.Module):
    """Features (N, in_features) -> projections (N, out): linear, BN, ReLU, linear (Chen et al. 2020, SimCLR).

    The projections are not normalised: the contrastive loss does that. Thrown away after its stage.
    """

    def __init__(self, in_features: int, hidden: int = 128, out: int = 128) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, hidden, bias=False)
        self.bn = nn.BatchNorm1d(hidden)
        self.act = nn.ReLU(inplace=True)
        self.out = nn.Linear(hidden, out)

    def forward(self, features: Tensor) -> Tensor:
        return self.out(self.act(self.bn(self.hidden(features))))
