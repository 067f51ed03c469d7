"""What one rank reads of a batch: its slice of the inputs, augmented, and the labels and weights of all rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.data.augment import mixup
from deepauc.data.augment.batch import Augment
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
