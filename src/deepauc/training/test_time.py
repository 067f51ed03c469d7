"""Test-time augmentation: the mean score over augmented copies of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import BagInputs
from deepauc.data.counter import hash_key
from deepauc.data.task import Task
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.scoring import score_rows, scoring_batch

MOST = 1000
HELD_BYTES = 1 << 28  # of inputs on the device, read once for all copies of them


@dataclass(frozen=True, kw_only=True)
class Copies:
    """`number` copies of each image, each changed by `augment`; a score is the mean of theirs.

    The changes are the same for all images: a score follows from the image alone, not from its place in a table.
    """

    number: int
    augment: Augment

    def __post_init__(self) -> None:
        if not isinstance(self.number, Real) or not 1 <= self.number <= MOST or self.number != int(self.number):
            raise ValueError(f"test-time augmentation takes 1 to {MOST} copies of an image, not {self.number}.")
        object.__setattr__(self, "number", int(self.number))  # 8.0 too: it is counted by, when training is over
        if self.augment.mixup:
            raise ValueError("test-time augmentation changes one image, and mixup mixes two: leave mixup out.")

    def changes(self, seed: int = 0) -> Tensor:
        """What `augment` does to each copy, (number, k); of more copies the first ones are the same."""
        draws = [self.augment.draw(1, seed=hash_key(seed, copy) >> 1, epoch=0, view=1) for copy in range(self.number)]
        return torch.cat([drawn.values for drawn in draws])


def copies_in(part: str, copies: Copies | None) -> Copies | None:
    """Training rows are scored as they are: they are many, and nothing is decided by their scores."""
    return None if part == "train" else copies


def passes(copies: Copies | None) -> int:
    """How often a row passes the network."""
    return 1 if copies is None else copies.number


def score_copies(
    model: nn.Module,
    task: Task,
    rows: npt.NDArray[np.int64],
    preprocessing: Preprocessing,
    device: torch.device,
    *,
    copies: Copies | None,
    seed: int = 0,
    resident: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.float32]:
    """As `score_rows`, (n, L); with copies the mean of their raw scores. Which ones are made follows from the seed."""
    if copies is None:
        return score_rows(model, task, rows, preprocessing, device, resident=resident, progress=progress)
    total, changes, bags = (
        np.zeros((len(rows), task.num_labels)),
        copies.changes(seed),
        isinstance(task.source, BagInputs),
    )
    batch, each = scoring_batch(task, device), int(np.prod(task.source.shape)) * np.dtype(task.source.dtype).itemsize
    # Whole batches: a score may depend in its last bit on how many rows passed the network with it.
    at_once = batch * max(1, HELD_BYTES // (batch * max(1, each)))
    if bags:  # read anew for each copy: their images may be many
        at_once = max(1, len(rows))
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        held, places, count = None, some, len(task)
        if not bags:  # read, or gathered, once for all copies; from here on rows are counted within `some`
            held = (
                torch.from_numpy(task.inputs(some)) if resident is None else resident[torch.from_numpy(some).to(device)]
            )
            held, places, count = held.to(device), np.arange(len(some)), len(some)
        for copy, change in enumerate(changes):
            before = copies.number * start + copy * len(some)
            total[start : start + len(some)] += score_rows(
                model,
                task,
                places,
                preprocessing,
                device,
                augment=copies.augment,
                parameters=change.expand(count, -1),
                resident=held,
                progress=shifted_progress(progress, before, copies.number * len(rows)),
            )
    return (total / copies.number).astype(np.float32)


def shifted_progress(
    progress: Callable[[int, int], None] | None, before: int, total: int
) -> Callable[[int, int], None] | None:
    """The same for a part of the work, before which so much was done."""
    return None if progress is None else lambda done, _: progress(before + done, total)
