"""From a task's uint8 images or float features to what the network eats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from deepauc.data.augment.colour import normalise, to_unit
from deepauc.data.bags import image_rows
from deepauc.data.splits import trainable_rows
from deepauc.data.task import Task
from deepauc.models.fusion import SMALLEST_SCALE

SAMPLE = 10_000  # rows that mean and standard deviation are taken from, evenly spaced over the training part
CHUNK = 512  # rows at a time,
CHUNK_NUMBERS = 1 << 22  # or fewer, so that large images take no more memory than small ones

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Mean and standard deviation per channel (images in [0, 1]) or per feature: of the training part, or given.

    Inputs that stay as they are (images in [0, 1]) have mean 0 and standard deviation 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: bool

    @classmethod
    def of(cls, task: Task) -> Preprocessing:
        """Found once for a task: runs packed on one training set share it."""
        if task not in _FOUND:
            _FOUND[task] = cls._found(task)
        return _FOUND[task]

    @classmethod
    def none(cls, task: Task) -> Preprocessing:
        """Images in [0, 1], or features, as they are."""
        shape = task.source.shape
        return cls(mean=(0.0,) * shape[-1], std=(1.0,) * shape[-1], images=len(shape) == 3)

    @classmethod
    def given(cls, task: Task, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Preprocessing:
        """What pretrained weights expect."""
        shape = task.source.shape
        if len(shape) != 3 or len(mean) != shape[-1]:
            raise ValueError(
                f"input_mean and input_std are of images with {len(mean)} channel{'s' * (len(mean) != 1)}, and one "
                f"input here has the shape {tuple(shape)}."
            )
        return cls(mean=mean, std=std, images=True)

    @classmethod
    def _found(cls, task: Task) -> Preprocessing:
        source, rows = image_rows(task.source, np.sort(trainable_rows(task)))
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.int64)]
        images = len(task.source.shape) == 3
        count, total, squares = 0, 0.0, 0.0
        step = max(1, min(CHUNK, CHUNK_NUMBERS // max(1, int(np.prod(task.source.shape)))))
        for start in range(0, len(rows), step):
            values = source(rows[start : start + step]).astype(np.float64)
            values = values.reshape(-1, values.shape[-1]) / (255 if images else 1)
            count += len(values)
            total = total + values.sum(0)
            squares = squares + (values**2).sum(0)
        mean = np.atleast_1d(total / count)
        spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
        # A constant channel or feature stays as it is; one of small numbers (a concentration of 1e-9) is not constant.
        std = np.where(spread > np.maximum(1e-6 * np.minimum(np.abs(mean), 1), SMALLEST_SCALE), spread, 1.0)
        return cls(mean=tuple(map(float, mean)), std=tuple(map(float, std)), images=images)

    @property
    def sound(self) -> bool:
        """Whether inputs can be standardised by these numbers in float32, as `standardised` does."""
        means = all(abs(mean) <= LARGEST for mean in self.mean)  # NaN is no such number either
        return means and all(SMALLEST_SCALE <= std <= LARGEST for std in self.std)

    def __call__(self, inputs: Tensor) -> Tensor:
        """(B, H, W, C) uint8, (B, C, H, W) floating in [0, 1], or (B, F) features -> what the network is trained on."""
        if inputs.dtype == torch.uint8:
            inputs = to_unit(inputs.permute(0, 3, 1, 2))
        return self.standardised(inputs, *self.constants(inputs.device))

    def constants(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation on the device."""
        return _on_device(self.mean, device), _on_device(self.std, device)

    def standardised(self, inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Floating images (B, C, H, W) or features, standardised by these constants; nothing is read from the host."""
        return normalise(inputs, mean, std) if self.images else (inputs - mean) / std


_FOUND: WeakKeyDictionary[Task, Preprocessing] = WeakKeyDictionary()


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device, dtype=torch.float32)
