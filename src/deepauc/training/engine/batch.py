"""What one rank reads of a batch: its slice of the inputs, augmented, and the labels and weights of all rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.data.augment import mixup
from deepauc.data.augment.batch import Augment
from deepauc.data.bags import BagInputs
from deepauc.data.counter import hash_key
from deepauc.models.bags import Bags
from deepauc.training.engine.step import Batch
from deepauc.training.engine.trainer import Trainer
from deepauc.training.engine.views import repeated
from deepauc.training.recipe import Stage


def read_batch(trainer: Trainer, stage: Stage, rows: npt.NDArray[np.int64], changes: Tensor | None) -> Batch:
    """Own inputs (n, ...), view by view, ready for the network; labels, weights and index of the whole batch.

    rows (B,): the whole batch. changes: its augmentation, (views * B, columns). Labels need no exchange: every rank
    knows the table.
    """
    stream, device = trainer.stream, trainer.device

    def read(some: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(trainer.task.inputs(some)).to(device, non_blocking=True)

    labels = torch.from_numpy(stream.labels[rows]).to(device, non_blocking=True)
    weights = None if stream.weights is None else torch.from_numpy(stream.weights[rows]).to(device)
    share = np.arange(len(rows))[trainer.ranks.share(len(rows))]
    augment = stage.augment
    if augment is None or changes is None:
        inputs = read(rows[share])
    elif augment.mixup and not trainer.ranks.alone:
        inputs, labels = _mixed_share(augment, read, rows, labels, changes, share)
    else:
        own = changes.reshape(stage.views, len(rows), -1)[:, share].flatten(0, 1)
        inputs = augment.apply(repeated(read(rows[share]), stage.views), own)
        inputs, labels = augment.mix(inputs, labels, own)
    index = torch.from_numpy(rows).to(device, non_blocking=True) if stage.needs_index else None
    return Batch(trainer.preprocessing(inputs), labels, weights, index)


def read_bags(trainer: Trainer, stage: Stage, rows: npt.NDArray[np.int64], *, key: int) -> Batch:
    """As `read_batch`, where rows are bags: of each at most `images_per_bag` images, drawn and changed by the key."""
    stream, device, source = trainer.stream, trainer.device, trainer.task.source
    assert isinstance(source, BagInputs)
    chosen = [source.drawn(int(bag), stage.images_per_bag, key=hash_key(key, n)) for n, bag in enumerate(rows)]
    share = trainer.ranks.share(len(rows))
    first, own = sum(map(len, chosen[: share.start])), chosen[share]
    sizes = tuple(map(len, own))
    places = torch.arange(first, first + sum(sizes))
    images = torch.from_numpy(source.images(np.concatenate(own))).to(device, non_blocking=True)
    if stage.augment is not None:
        drawn = stage.augment.draw(sum(map(len, chosen)), seed=key >> 1, epoch=0).values
        images = stage.augment.apply(images, drawn[places].to(device))
    return Batch(
        Bags(trainer.preprocessing(images), sizes, places.to(device)),
        torch.from_numpy(stream.labels[rows]).to(device, non_blocking=True),
        None if stream.weights is None else torch.from_numpy(stream.weights[rows]).to(device),
        torch.from_numpy(rows).to(device, non_blocking=True) if stage.needs_index else None,
    )


def _mixed_share(
    augment: Augment,
    read: Callable[[npt.NDArray[np.int64]], Tensor],
    rows: npt.NDArray[np.int64],
    labels: Tensor,
    changes: Tensor,
    share: npt.NDArray[np.int64],
) -> tuple[Tensor, Tensor]:
    """Mixup as in the whole batch: the partner of an own row may be another rank's, and is read here too."""
    partner = mixup.partners(changes[:, augment.columns.index("mixup_key")])
    needed = np.concatenate([share, partner.cpu().numpy()[share]])
    images = augment.apply(read(rows[needed]), changes[needed])
    weights = changes[:, augment.columns.index("mixup_weight")]
    own, other = images.tensor_split(2)
    return mixup.mix(own, other, weights[share]), mixup.mix(labels, labels[partner], weights)
