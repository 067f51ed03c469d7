"""Rules that choose a setting. They get validation values alone: a `TriedSetting` has no place for a test score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from deepauc.studies.grid import Config


@dataclass(frozen=True, kw_only=True)
class TriedSetting:
    """A configuration and the validation AUC (or the study's own measure) it had, by training set and by epoch."""

    config: Config
    validation: tuple[tuple[float, ...], ...]

    def values(self, *, epochs: int = 1) -> tuple[float, ...]:
        """One value a training set: the mean over the last `epochs` epochs."""
        return tuple(fmean(curve[-epochs:]) for curve in self.validation)


class NothingToChoose(ValueError):
    """Every setting that was tried went astray."""


class SelectionRule(Protocol):
    """Chooses one of the configurations that were tried."""

    def choose(self, trials: Sequence[TriedSetting]) -> TriedSetting: ...


@dataclass(frozen=True, kw_only=True)
class BestMeanValidation:
    """The highest validation AUC averaged over the training sets; of equals the earlier one.

    epochs: averaged over so many epochs at the end; 1 is the last epoch alone.
    """

    epochs: int = 1

    def choose(self, trials: Sequence[TriedSetting]) -> TriedSetting:
        return max(_usable(trials, self.epochs), key=lambda trial: fmean(trial.values(epochs=self.epochs)))


def _usable(trials: Sequence[TriedSetting], epochs: int) -> list[TriedSetting]:
    known = [t for t in trials if t.validation and not any(math.isnan(v) for v in t.values(epochs=epochs))]
    if not known:
        raise NothingToChoose(
            "no configuration has a validation AUC on every training set: there is nothing to choose."
        )
    return known
