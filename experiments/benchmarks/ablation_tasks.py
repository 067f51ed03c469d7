"""Training sets of the ablations A3 to A5: wrong labels, easy positives, and the ranking that says which are easy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS
from deepauc.data.datasets.benchmarks.load import load_balanced
from deepauc.data.imbalance import ImbalancedSet, imbalance_task, tuning_task, with_easy, with_noise
from deepauc.data.task import Task
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import Place, TaskSource
from deepauc.training.run.run import Run

SET = "ablations"
KEPT_SHARE = 0.4  # of the removed positives: what A5 needs at most


@dataclass(frozen=True, kw_only=True)
class RankingSource(TaskSource):
    """A benchmark whose test part holds the removed positives as well, so that the model scores them.

    Its record keeps the numbers of those that score highest, best first; its test AUC is that of the joined part.
    """

    benchmark: str
    imratio: float

    @property
    def name(self) -> str:
        return f"{self.benchmark} at {self.imratio:.0%}, removed positives scored"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        balanced = load_balanced(self.benchmark, root=place.data)
        found = imbalance_task(balanced, imratio=self.imratio, seed=seed)
        test = np.concatenate([balanced.part("test"), found.removed])
        task = found.task(balanced).with_parts({"train": found.rows, "test": np.sort(test)})
        return tuning_task(task, seed=seed) if tuning else task

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        scores, _ = run.scores("test")
        rows = task.labelled("test")  # in the order of scores.csv
        removed = np.flatnonzero(rows < BENCHMARKS[self.benchmark].train)  # training images come first
        order = removed[np.argsort(-scores[removed], kind="stable")]
        return {"ranking": rows[order[: math.ceil(KEPT_SHARE * len(order))]].tolist()}


@dataclass(frozen=True, kw_only=True)
class ChangedSource(TaskSource):
    """A benchmark with `easy` of the removed positives added, then `noise` of either kind of wrong label (A3 to A5).

    ranking: the study whose records say which of them are easy, and `records` the set it belongs to.
    """

    benchmark: str
    imratio: float
    noise: float = 0.0
    easy: float = 0.0
    ranking: str = ""
    records: str = SET

    def __post_init__(self) -> None:
        if bool(self.easy) != bool(self.ranking):
            raise ValueError("easy positives need a ranking, the name of a study; without them there is none.")

    @property
    def name(self) -> str:
        changes = [f"{self.easy:.0%} easy"] * (self.easy > 0) + [f"{self.noise:.0%} noise"] * (self.noise > 0)
        return ", ".join([f"{self.benchmark} at {self.imratio:.0%}", *changes])

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ranking,) if self.ranking else ()

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        balanced = load_balanced(self.benchmark, root=place.data)
        found = imbalance_task(balanced, imratio=self.imratio, seed=seed)
        if self.easy:
            found = with_easy(found, _ranks(found, self.records, self.ranking, seed, place), share=self.easy)
        if self.noise:
            found = with_noise(found, share=self.noise, seed=seed)
        task = found.task(balanced)
        return tuning_task(task, seed=seed) if tuning else task


def _ranks(found: ImbalancedSet, records: str, study: str, seed: int, place: Place) -> npt.NDArray[np.float64]:
    """One score a removed positive: the higher, the earlier it stands in the recorded ranking; the rest below all."""
    by_seed = {record["seed"]: record for record in RecordBook(place.results / records).final(study)}
    if seed not in by_seed:
        raise ValueError(
            f"the ranking of set {seed} is missing: deepauc study run experiments/paper.py {records} --cells {study}."
        )
    ranking = by_seed[seed]["ranking"]
    if not set(ranking) <= set(found.removed.tolist()):
        raise ValueError(f"the recorded ranking of set {seed} belongs to another training set: run {study} again.")
    score = {row: len(ranking) - place_ for place_, row in enumerate(ranking)}
    return np.array([score.get(row, 0) for row in found.removed.tolist()], dtype=np.float64)
