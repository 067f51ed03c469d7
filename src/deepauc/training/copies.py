"""Test-time augmentation: the mean score over changed copies of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.augment import Augment
from deepauc.data.counter import hash_key
from deepauc.data.task import Task
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.scoring import score_rows

MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Copies:
    """`number` copies of each image, each changed by `augment`; a score is the mean of theirs."""

    number: int
    augment: Augment

    def __post_init__(self) -> None:
        if not isinstance(self.number, Real) or not 1 <= self.number <= MOST or self.number != int(self.number):
            raise ValueError(f"test-time augmentation takes 1 to {MOST} copies of an image, not {self.number}.")
        object.__setattr__(self, "number", int(self.number))  # 8.0 too: it is counted by, when training is over
        if self.augment.mixup:
            raise ValueError("a copy is of one image: test-time augmentation goes without mixup.")


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
    """As `score_rows`, (n, L); with copies the mean of their raw scores. A row's copies follow from seed and row."""
    if copies is None:
        return score_rows(model, task, rows, preprocessing, device, resident=resident, progress=progress)
    total = np.zeros((len(rows), task.num_labels))
    for copy in range(copies.number):
        drawn = copies.augment.draw(len(task), seed=hash_key(seed, copy) >> 1, epoch=0, view=1)
        total += score_rows(
            model,
            task,
            rows,
            preprocessing,
            device,
            augment=copies.augment,
            parameters=drawn.values,
            resident=resident,
            progress=shifted_progress(progress, copy * len(rows), copies.number * len(rows)),
        )
    return (total / copies.number).astype(np.float32)


def shifted_progress(
    progress: Callable[[int, int], None] | None, before: int, total: int
) -> Callable[[int, int], None] | None:
    """The same for a part of the work, before which so much was done."""
    return None if progress is None else lambda done, _: progress(before + done, total)
