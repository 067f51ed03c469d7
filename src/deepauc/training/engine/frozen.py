"""A network of which only the last layer is trained: features computed once, a linear model on them, and back again.

Features are standardised by the training part, as any table of numbers. What that means for the last layer of the whole
network is worked out when it is asked for: W (f - mean) / std + b = (W / std) f + (b - W mean / std).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.task import ArrayInputs, Inputs, Task
from deepauc.models.build import ModelSpec, build_model
from deepauc.models.classifier import classifier_head
from deepauc.models.projection import FeatureExtractor
from deepauc.models.small import MLP
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.scoring import scoring_batch

Floats = npt.NDArray[np.float32]
FeatureProgress = Callable[[int, int], None]  # (rows done, rows in all)

# By the inputs, so that folds, trials and a run after its timing share them; nothing is kept beyond their life.
_FOUND: WeakKeyDictionary[Inputs, dict[tuple[ModelSpec, Preprocessing], Floats]] = WeakKeyDictionary()


def frozen_features(
    spec: ModelSpec,
    task: Task,
    preprocessing: Preprocessing,
    device: torch.device,
    *,
    model: nn.Module | None = None,
    progress: FeatureProgress | None = None,
) -> Floats:
    """What the last layer sees of every row, (N, F), by the weights that the network starts from; computed once.

    model: such a network, on the device, where there is one.
    """
    known = _FOUND.setdefault(task.source, {})
    if (spec, preprocessing) in known:
        return known[spec, preprocessing]
    if model is None:
        shape = task.source.shape
        model = build_model(spec, in_channels=shape[-1], num_outputs=task.num_labels, seed=0).to(device)
    extractor = FeatureExtractor(model).eval()
    found = np.empty((len(task), extractor.num_features), dtype=np.float32)
    batch = scoring_batch(task, device)
    with torch.no_grad():
        for start in range(0, len(task), batch):
            rows = np.arange(start, min(start + batch, len(task)))
            features = extractor(preprocessing(torch.from_numpy(task.inputs(rows)).to(device)))
            found[rows] = features.float().cpu().numpy()
            if progress is not None:
                progress(start + len(rows), len(task))
    known[spec, preprocessing] = found
    return found


class FrozenBackbone:
    """The whole network of a run that trains its last layer alone, and the task of that layer.

    task, preprocessing, head: what is trained, a table of features. images, inputs: what the whole network takes.
    """

    def __init__(self, network: nn.Module, spec: ModelSpec, images: Task, inputs: Preprocessing) -> None:
        layer = classifier_head(network)
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise ValueError("frozen needs a network whose last layer is an nn.Linear with a bias.")
        self.network, self.images, self.inputs = network.eval(), images, inputs
        device = layer.weight.device
        features = frozen_features(spec, images, inputs, device, model=network)
        self.task = replace(images, source=ArrayInputs(features))
        self.preprocessing = Preprocessing.of(self.task)
        self.head = MLP(in_features=layer.in_features, num_outputs=layer.out_features, hidden=()).to(device)
        self.head.head.load_state_dict(layer.state_dict())
        self._mean, self._std = (
            torch.tensor(numbers, dtype=torch.float64) for numbers in (self.preprocessing.mean, self.preprocessing.std)
        )

    def whole(self) -> nn.Module:
        """The network with the head as it is now."""
        weight, bias = (tensor.detach().cpu().double() for tensor in (self.head.head.weight, self.head.head.bias))
        scaled = weight / self._std
        self._write(classifier_head(self.network), scaled, bias - scaled @ self._mean)
        return self.network

    def take_head(self) -> None:
        """The head from the network as it is now: of `whole`, the other way round."""
        layer = classifier_head(self.network)
        assert layer.bias is not None
        weight, bias = (tensor.detach().cpu().double() for tensor in (layer.weight, layer.bias))
        self._write(self.head.head, weight * self._std, bias + weight @ self._mean)

    @staticmethod
    def _write(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
        layer.load_state_dict({"weight": weight, "bias": bias})  # which rounds to the layer's own type
