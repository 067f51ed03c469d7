"""Small tables drawn from a training set: what a clinic has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepauc.data.task import Task
from deepauc.studies.sources import Place, TaskSource


@dataclass(frozen=True, kw_only=True)
class SmallTable(TaskSource):
    """So many positives and negatives of a training set of `source`; the seed draws them."""

    source: TaskSource
    positives: int
    negatives: int

    @property
    def name(self) -> str:
        return f"{self.positives} positives and {self.negatives} negatives of {self.source.name}"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        whole = self.source.load(seed, tuning=tuning, place=place)
        order = np.random.default_rng(seed).permutation(whole.part("train"))
        labels = whole.labels[order]
        drawn = [order[labels == 1][: self.positives], order[labels == 0][: self.negatives]]
        if [len(rows) for rows in drawn] != [self.positives, self.negatives]:
            raise ValueError(f"{self.source.name} has fewer rows than {self.name}.")
        return whole.with_parts({**whole.parts, "train": np.sort(np.concatenate(drawn))})
