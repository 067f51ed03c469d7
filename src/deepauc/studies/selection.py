"""Rules that choose a setting. They get validation values and nothing else: a `Trial` has no place for a test score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Protocol

from deepauc.studies.grid import Config


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A configuration and the validation AUC it had, by training set and by epoch."""

    config: Config
    validation: tuple[tuple[float, ...], ...]

    def values(self, *, epochs: int = 1) -> tuple[float, ...]:
        """One value a training set: the mean over the last `epochs` epochs."""
        return tuple(fmean(curve[-epochs:]) for curve in self.validation)


class NothingToChoose(ValueError):
    """Every setting that was tried went astray."""


class SelectionRule(Protocol):
    """Chooses one of the configurations that were tried."""

    def choose(self, trials: Sequence[Trial]) -> Trial: ...


@dataclass(frozen=True, kw_only=True)
class BestMeanValidation:
    """The highest validation AUC averaged over the training sets; of equals the earlier one.

    epochs: averaged over so many epochs at the end; 1 is the last epoch alone.
    """

    epochs: int = 1

    def choose(self, trials: Sequence[Trial]) -> Trial:
        return max(_usable(trials, self.epochs), key=lambda trial: fmean(trial.values(epochs=self.epochs)))


@dataclass(frozen=True, kw_only=True)
class SimplestWithinOneStandardError:
    """The simplest setting whose mean is no more than the best one's standard error below it (Breiman et al. 1984).

    order: axes by which `simple` is told, the first one first; smaller is simpler, with a minus before the name larger
    is. One training set has no standard error: then it is the best.
    """

    order: tuple[str, ...]
    epochs: int = 1

    def choose(self, trials: Sequence[Trial]) -> Trial:
        usable = _usable(trials, self.epochs)
        best = max(usable, key=lambda trial: fmean(trial.values(epochs=self.epochs)))
        values = best.values(epochs=self.epochs)
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        near = [t for t in usable if fmean(t.values(epochs=self.epochs)) >= fmean(values) - error]
        return min(near, key=lambda trial: [_rank(trial.config, axis) for axis in self.order])


def _rank(config: Config, axis: str) -> float:
    name = axis.removeprefix("-")
    if name not in config:
        raise ValueError(f"the rule orders by {name!r}, which is no axis of the grid ({', '.join(config)}).")
    return -float(config[name]) if axis.startswith("-") else float(config[name])


def _usable(trials: Sequence[Trial], epochs: int) -> list[Trial]:
    known = [t for t in trials if t.validation and not any(math.isnan(v) for v in t.values(epochs=epochs))]
    if not known:
        raise NothingToChoose(
            "no configuration has a validation AUC on every training set: there is nothing to choose."
        )
    return known
