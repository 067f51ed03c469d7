"""Chest X-rays as tasks: all findings at once, one of them alone, some labels marked as uncertain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from deepauc.data.counter import fixed_permutation
from deepauc.data.datasets.benchmarks.load import data_root
from deepauc.data.datasets.medical.chexpert import COMPETITION_LABELS, Views, load_chexpert
from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS, load_nih_sheets
from deepauc.data.task import UNCERTAIN, Task
from deepauc.studies.decoded import decoded_once
from deepauc.studies.sources import Place, TaskSource
from deepauc.training.run.run import Run
from experiments.clinical.readers import given_readers
from experiments.clinical.scores import kept_scores
from experiments.clinical.tasks import joined, root_of

MASKED_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class CheXpertImages(TaskSource):
    """The download in these views and this size; the images of valid.csv are the test part."""

    views: Views
    size: int

    @property
    def name(self) -> str:
        return f"CheXpert, {self.views} views, {self.size} px"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        given_readers(data_root(place.data), COMPETITION_LABELS)  # before the images are read, and days of training
        task = load_chexpert(root_of(place), valid_part="test", views=self.views, size=self.size)
        return decoded_once(task, place)


@dataclass(frozen=True, kw_only=True)
class NIHImages(TaskSource):
    """The five competition labels of NIH at 96 px; train and validation together."""

    @property
    def name(self) -> str:
        return "NIH chest X-rays"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        given_readers(data_root(place.data), COMPETITION_FINDINGS)
        return joined(load_nih_sheets(root_of(place) / "nih_cxr14_96.npz", labels=COMPETITION_FINDINGS))


@dataclass(frozen=True, kw_only=True)
class ChestSource(TaskSource):
    """Images with all their labels, or with one: the same for every seed, but for labels that are masked by it.

    tta: copies whose mean score of each test image is kept too. averaged: its scores have a part in ensembles, for
    which ranks are not enough.
    """

    images: TaskSource
    label: str = ""
    masked: bool = False
    tta: int = 0
    averaged: bool = False

    @property
    def name(self) -> str:
        return f"{self.images.name}{f', {self.label}' * bool(self.label)}{', masked' * self.masked}"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        task = _read(self.images, place)  # type: ignore[arg-type]  # sources are frozen
        if self.masked:
            task = mask_labels(task, share=MASKED_SHARE, seed=seed)
        return one_disease(task, self.label) if self.label else task

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        """Test scores, plain and with test-time augmentation; ranks of those that no ensemble takes in."""
        ranked = ("plain", "tta") if not self.averaged else ("plain",) if self.tta else ()
        return kept_scores(run, task, tta=self.tta, device=device, ranked=ranked)


@cache
def _read(images: TaskSource, place: Place) -> Task:
    """Once for all labels and seeds."""
    return images.load(0, tuning=False, place=place)


def mask_labels(task: Task, *, share: float, seed: int) -> Task:
    """Some labels of the training part as uncertain (-1): `share` of each label's positives and as many negatives.

    An uncertain label is then positive half of the time, whatever is guessed for all of them. Drawn by seed, the same
    with every version of NumPy; validation and test keep their labels.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie above 0 and at most at 1, not {share}.")
    labels, train = task.labels.reshape(len(task), task.num_labels).copy(), task.part("train")
    for column, name in enumerate(task.label_names):
        positives = train[labels[train, column] == 1]
        count = round(share * len(positives))
        for rows, kind in ((positives, "positives"), (train[labels[train, column] == 0], "negatives")):
            order = fixed_permutation(len(rows), seed=seed, stream=f"uncertain {kind} {name}")
            labels[rows[order[: min(count, len(rows))]], column] = UNCERTAIN
    return task.with_labels(labels.reshape(task.labels.shape))


def one_disease(task: Task, name: str) -> Task:
    """One label of several as a task of its own; rows without that label leave validation and test."""
    labels = task.labels[:, task.label_names.index(name)]
    parts = {part: rows if part == "train" else rows[~np.isnan(labels[rows])] for part, rows in task.parts.items()}
    return replace(task, name=f"{task.name}, {name}", kind="binary", labels=labels, label_names=(name,), parts=parts)
