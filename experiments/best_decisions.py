"""What the search of `best` has chosen, read from its records: the page shows it, and medical studies take it over.

`deepauc study run` goes by `studies.chosen`, for which a lever is decided once every declared fold is there; here one
whose settings all have the same folds counts, so that a search cut to fewer of them has a page too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval
from deepauc.studies.records.book import Record, RecordBook, validation_curve
from deepauc.studies.selection import Trial
from experiments import best_levers
from experiments.best_levers import FOLLOWERS, Lever, SimplestWithinPairedError, followed, lever_name


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
    def mean(self) -> float:
        return fmean(value for value in self.aucs.values() if value is not None)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a lever has tried so far; chosen: None as long as a setting or a fold is missing."""

    lever: Lever
    records: tuple[Record, ...]
    tried: tuple[Tried, ...]
    folds: int
    chosen: Mapping[str, Any] | None

    @property
    def trained_again(self) -> bool:
        """Whether runs of a fold begin with two trainings of the same first stage; a GPU repeats none to the bit."""
        losses: dict[str, set[float]] = {}
        for first in (record.get("first_stage") for record in self.records):
            if first is not None:
                losses.setdefault(first["name"], set()).add(first["loss"])
        return any(len(different) > 1 for different in losses.values())

    def difference(self, other: Tried) -> Estimate[float] | None:
        """AUC of a setting minus that of the best, fold by fold, with its t-interval; None for the best itself."""
        top = max((t for t in self.tried if t.complete), key=lambda t: t.mean, default=None)
        if top is None or other is top or not other.complete:
            return None
        common = sorted(set(top.aucs) & set(other.aucs))
        if len(common) < 2:
            return None
        return mean_interval([_value(other, fold) - _value(top, fold) for fold in common])

    def gain(self) -> Estimate[float] | None:
        """What was chosen minus the simplest setting, fold by fold; None where that was chosen, or has diverged."""
        simplest = self.tried[0]
        if self.chosen is None or dict(simplest.setting) == dict(self.chosen) or not simplest.complete:
            return None
        (chosen,) = (one for one in self.tried if dict(one.setting) == dict(self.chosen))
        common = sorted(set(chosen.aucs) & set(simplest.aucs))
        if len(common) < 2:
            return None
        return mean_interval([_value(chosen, fold) - _value(simplest, fold) for fold in common])


def _value(tried: Tried, fold: int) -> float:
    value = tried.aucs[fold]
    assert value is not None  # of settings that never diverged
    return value


def decisions(book: RecordBook, loss: str) -> list[Decision]:
    """What the records of each lever come to, in order.

    A lever counts with what those before it choose now: where more folds have changed one of these, records that rest
    on the former choice wait for their successors, and as long as a lever is open all that follow are.
    """
    found: list[Decision] = []
    decided = _taken_over(book, loss)
    for number, lever in enumerate(best_levers.LEVERS[loss], start=1):
        so_far = all(one.chosen for one in found)
        found.append(_decision(lever, _records(book, loss, number, decided), may_choose=so_far))
        decided |= found[-1].chosen or {}
    return found


def end_of_search(book: RecordBook, loss: str) -> Mapping[int, float] | None:
    """Validation AUC by fold of what a search has come to; None as long as a lever of it is open."""
    last = decisions(book, loss)[-1]
    if last.chosen is None:
        return None
    (tried,) = (one for one in last.tried if dict(one.setting) == dict(last.chosen))
    return {fold: _value(tried, fold) for fold in tried.aucs}


def _taken_over(book: RecordBook, loss: str) -> dict[str, Any]:
    """What a loss begins with: nothing, but for those that follow AUC-M."""
    if loss not in FOLLOWERS:
        return {}
    chosen = {axis: value for one in decisions(book, "auc_m") for axis, value in (one.chosen or {}).items()}
    return {axis: value for axis, value in chosen.items() if axis in followed(loss)}


def _decision(lever: Lever, records: Sequence[Record], *, may_choose: bool) -> Decision:
    tried = []
    for setting in lever.settings:
        mine = [r for r in records if {axis: r["config"][axis] for axis in lever.axes} == dict(setting)]
        if not mine:
            continue
        shares = [r["alpha_zero_share"] for r in mine if r.get("alpha_zero_share") is not None]
        tried.append(
            Tried(
                setting=setting,
                # As the search reads it: an AUC rounded in another way would part from it where two settings tie.
                aucs={r["seed"]: None if "failed" in r else validation_curve(r)[-1] for r in mine},
                alpha_zero=fmean(shares) if shares else None,
            )
        )
    folds = max((len(t.aucs) for t in tried), default=0)
    whole = len(tried) == len(lever.settings) and {len(t.aucs) for t in tried} == {folds}
    chosen = None
    if may_choose and whole and any(t.complete for t in tried):
        trials = [_trial(t) for t in tried]
        chosen = SimplestWithinPairedError().choose(trials).config
    return Decision(lever=lever, records=tuple(records), tried=tuple(tried), folds=folds, chosen=chosen)


def _records(book: RecordBook, loss: str, number: int, decided: Mapping[str, Any]) -> list[Record]:
    """A lever's records with what was decided before it; of other differences before it, the ones that came last."""
    lever = best_levers.LEVERS[loss][number - 1]
    before = {axis: value for axis, value in decided.items() if axis not in lever.axes}
    records = [
        record
        for record in book.tuning(lever_name(loss, number))
        if all(record["config"].get(axis, value) == value for axis, value in before.items())
    ]
    return [record for record in records if _before(record, lever) == _before(records[-1], lever)]


def _before(record: Record, lever: Lever) -> str:
    """What was decided before this lever, as text."""
    rest = {name: value for name, value in record["config"].items() if name not in lever.axes}
    return json.dumps([rest, record["fixed"], record.get("tuning", {})], sort_keys=True)


def _trial(tried: Tried) -> Trial:
    values = (value for _, value in sorted(tried.aucs.items()))
    return Trial(config=tried.setting, validation=tuple((float("nan") if v is None else v,) for v in values))
