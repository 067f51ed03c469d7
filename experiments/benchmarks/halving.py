"""Settings halved over folds: a later round tries the best of the one before on further sets. Nothing on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from deepauc.data.task import Task
from deepauc.studies.chosen import RecordedSettings
from deepauc.studies.grid import Grid
from deepauc.studies.records.book import RecordBook, validation_curve
from deepauc.studies.sources import BenchmarkSource, Place, TaskSource
from deepauc.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class PooledSource(TaskSource):
    """Training sets of several benchmarks: number 1000 k + n is set n of the k-th."""

    benchmarks: tuple[str, ...]
    imratio: float

    @property
    def name(self) -> str:
        return f"{', '.join(self.benchmarks)} at {self.imratio:.0%}"

    def number(self, benchmark: str, training_set: int) -> int:
        """What this training set is called here."""
        return 1000 * self.benchmarks.index(benchmark) + training_set

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        which, number = divmod(seed, 1000)
        source = BenchmarkSource(benchmark=self.benchmarks[which], imratio=self.imratio)
        return source.load(number, tuning=tuning, place=place)


@dataclass(frozen=True)
class BestOf:
    """What a later round tries: the best settings of this study, so many of them."""

    study: str
    keep: int


def settled(
    studies: Sequence[Study], declared: Sequence[Study], later: Mapping[str, BestOf], book: RecordBook
) -> tuple[tuple[Study, ...], tuple[Study, ...]]:
    """The studies with what later rounds try, and these rounds; what waits for a round and nothing else is left out.

    later: by name of the study, an earlier round before those that rest on it.
    """
    known = {study.name: study for study in (*declared, *studies)}
    rounds: dict[str, Study] = {}
    for name, best in later.items():
        earlier = known[best.study]
        if (best.study not in later or best.study in rounds) and (grid := _best(earlier, known, book, best.keep)):
            known[name] = rounds[name] = replace(known[name], grid=grid)
    waiting = later.keys() - rounds.keys()
    begun = [
        known[study.name]
        for study in studies
        if study.name not in waiting and not (study.inherits and waiting.issuperset(study.inherits.sources))
    ]
    return tuple(begun), tuple(rounds.values())


def _best(study: Study, known: Mapping[str, Study], book: RecordBook, keep: int) -> Grid | None:
    """By mean validation AUC at the last epoch over the sets; None before all have run. What diverged is last."""
    choices = RecordedSettings(list(known.values()), book)
    if (inherited := choices.inherited(study)) is None:
        return None
    means = []
    for config in study.configs:
        records = [choices.tuning_record(study, {**inherited, **config}, seed) for seed in study.tuning_seeds]
        if any(record is None for record in records):
            return None
        means.append(fmean(validation_curve(record)[-1] for record in records if record is not None))
    order = sorted(range(len(means)), key=lambda i: -(means[i] if means[i] == means[i] else 0.0))
    assert isinstance(study.grid, Grid)
    return replace(study.grid, configs=tuple(study.configs[i] for i in order[:keep]))
