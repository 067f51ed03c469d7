"""What the search of `best` has chosen, read from its records: the page shows it, and medical studies take it over.

A lever is decided once all its settings have the same folds, so that a search cut to fewer of them has a page too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from deepauc.metrics.intervals import Estimate
from deepauc.studies.chosen import RecordedSettings
from deepauc.studies.records.book import Record, RecordBook, validation_curve
from deepauc.studies.records.tables import paired
from deepauc.studies.study import Study
from experiments.search import levers
from experiments.search.levers import C10, FOLLOWERS, LONGER_FIRST, Lever, lever_studies, longer_first_study


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A lever's setting with its validation AUC by fold; None where it diverged."""

    setting: Mapping[str, Any]
    aucs: Mapping[int, float | None]
    alpha_zero: float | None

    @property
    def complete(self) -> bool:
        return None not in self.aucs.values()

    @property
    def values(self) -> dict[int, float]:
        return {fold: value for fold, value in self.aucs.items() if value is not None}

    @property
    def mean(self) -> float:
        return fmean(self.values.values())


@dataclass(frozen=True, kw_only=True)
class LeverResult:
    """What a lever has tried so far; chosen: None as long as a setting or a fold is missing."""

    lever: Lever
    records: tuple[Record, ...]
    tried: tuple[Tried, ...]
    chosen: Mapping[str, Any] | None

    @property
    def trained_again(self) -> bool:
        """Whether runs of a fold begin with two trainings of the same first stage; a GPU repeats none to the bit."""
        losses: dict[str, set[float]] = {}
        for first in (record.get("first_stage") for record in self.records):
            if first is not None:
                losses.setdefault(first["name"], set()).add(first["loss"])
        return any(len(different) > 1 for different in losses.values())

    @property
    def end(self) -> Tried | None:
        """The setting that was chosen."""
        return next((t for t in self.tried if self.chosen is not None and dict(t.setting) == dict(self.chosen)), None)

    def difference(self, other: Tried) -> Estimate[float] | None:
        """AUC of a setting minus that of the best, fold by fold, with its t-interval; None for the best itself."""
        top = max((one for one in self.tried if one.complete), key=lambda one: one.mean, default=None)
        return None if top is None or other is top or not other.complete else paired(other.values, top.values)

    def gain(self) -> Estimate[float] | None:
        """What was chosen minus the simplest setting, fold by fold; None where that was chosen, or has diverged."""
        simplest, end = self.tried[0], self.end
        if end is None or end is simplest or not simplest.complete:
            return None
        return paired(end.values, simplest.values)


def lever_results(book: RecordBook, loss: str) -> list[LeverResult]:
    """What the records of each lever come to, in order; a lever counts with what those before it choose now."""
    searches = {one: _recorded(book, one) for one in (("auc_m", loss) if loss in FOLLOWERS else (loss,))}
    choices = RecordedSettings([study for search in searches.values() for study in search], book)
    return [_result(*both, choices) for both in zip(levers.LEVERS[loss], searches[loss], strict=True)]


def longer_first_result(book: RecordBook, loss: str) -> LeverResult:
    """What the records of the longer first stages come to, with what the search chooses now."""
    (study,) = _with_recorded_folds(book, [longer_first_study(loss)])
    return _result(LONGER_FIRST, study, RecordedSettings([*_recorded(book, loss), study], book))


def _recorded(book: RecordBook, loss: str) -> list[Study]:
    """The search on the folds that have records."""
    return _with_recorded_folds(book, lever_studies(loss, C10, base={}))


def _with_recorded_folds(book: RecordBook, declared: Sequence[Study]) -> list[Study]:
    seeds = {one.name: tuple(sorted({record["seed"] for record in book.tuning(one.name)})) for one in declared}
    return [replace(one, tuning_seeds=seeds[one.name] or one.tuning_seeds) for one in declared]


def _result(lever: Lever, study: Study, choices: RecordedSettings) -> LeverResult:
    records, selected, tried = choices.asked_for(study), choices.selected(study), []
    for setting in lever.settings:
        mine = [r for r in records if {axis: r["config"][axis] for axis in lever.axes} == dict(setting)]
        shares = [r["alpha_zero_share"] for r in mine if r.get("alpha_zero_share") is not None]
        # As the search reads it: an AUC rounded in another way would part from it where two settings tie.
        aucs = {r["seed"]: None if "failed" in r else validation_curve(r)[-1] for r in mine}
        if mine:
            tried.append(Tried(setting=setting, aucs=aucs, alpha_zero=fmean(shares) if shares else None))
    chosen = None if selected is None else {axis: selected[0][axis] for axis in lever.axes}
    return LeverResult(lever=lever, records=tuple(records), tried=tuple(tried), chosen=chosen)
