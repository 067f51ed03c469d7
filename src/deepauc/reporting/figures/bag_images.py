"""Of bags of images, those that decided: the images whose scores count most in the bag's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from deepauc.data.bags import BagInputs
from deepauc.data.images.decode import ImageFileInputs
from deepauc.models.bags import PoolsImages, of_one_bag, pooled
from deepauc.training.run.bundle import Bundle
from deepauc.training.scoring import image_outputs

EACH = 3  # images of a bag


@dataclass(frozen=True, kw_only=True)
class DecidingImage:
    """An image of a bag: its row in the source, its own score, and its weight dh/dφ in the bag's score, by label."""

    row: int
    score: tuple[float, ...]
    weight: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class DecidedBag:
    """A bag's score by label, how many images it has, and by label those that count most, the first one most."""

    score: tuple[float, ...]
    size: int
    images: tuple[tuple[DecidingImage, ...], ...]


def decided_bags(
    model: nn.Module, bundle: Bundle, images: ImageFileInputs, members: Sequence[Sequence[int]]
) -> list[DecidedBag]:
    """members: by bag, the rows of its images. All of them are scored, a few at a time.

    Where images count alike, as in a mean, those with the highest scores come first.
    """
    assert isinstance(model, PoolsImages)
    sizes = [len(rows) for rows in members]
    source = BagInputs(images, np.concatenate([np.asarray(rows) for rows in members]), np.cumsum([0, *sizes]))
    outputs = image_outputs(model, source, np.arange(len(members)), bundle.preprocessing, torch.device("cpu"))
    found = []
    for rows, own in zip(members, torch.split(outputs, sizes), strict=True):
        with torch.no_grad():
            whole = of_one_bag(model, own)[0]
            alone = pooled(model, own, [1] * len(own)).numpy()
        weights = model.importance(own).numpy()
        first = [np.lexsort((-alone[:, j], -weights[:, j]))[:EACH] for j in range(alone.shape[1])]
        found.append(
            DecidedBag(
                score=tuple(whole.tolist()),
                size=len(rows),
                images=tuple(
                    tuple(
                        DecidingImage(row=rows[n], score=tuple(alone[n].tolist()), weight=tuple(weights[n].tolist()))
                        for n in some
                    )
                    for some in first
                ),
            )
        )
    return found
