"""How the setting of `best` was first chosen, lever by lever; `menu` starts from there.

    deepauc study run experiments/best.py --cells levers --device cuda --max-minutes 25  # in portions

Selection: C10 at 1 %, ResNet20, training sets 100 and 101, which are not among the five reported, each cut into five
folds; a fold's first stage sees the other four only. Ten validation AUCs a setting, one a fold, averaged (scores of
different models share no scale). The levers come in the order below; each is tried with what the levers before it have
chosen. Of a lever's settings, the first whose paired difference to the best is within one standard error is chosen, and
they are listed from the simplest on. AUC-M and CE have the same number of settings and of runs, lever by lever; where a
lever means nothing to cross-entropy it has one of its own in that place. AUC-S and the pairwise loss take AUC-M's
setting over with a learning rate of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from deepauc.studies.grid import Config, Grid
from deepauc.studies.selection import NothingToChoose, TriedSetting
from deepauc.studies.sources import BenchmarkSource, FoldSource, TaskSource
from deepauc.studies.study import Inherits, Study
from experiments.search.recipe import best

SET = "best"
C10 = BenchmarkSource(benchmark="C10", imratio=0.01)
SELECTION_SETS = (100, 101)
FOLDS = 5
LOSSES = ("auc_m", "ce")  # each with a search of its own
FOLLOWERS = ("auc_s", "pairwise")  # what AUC-M has chosen, with their own learning rate


@dataclass(frozen=True, kw_only=True)
class Lever:
    """Settings of which one is chosen, from the simplest on, all with the same arguments of `best`."""

    name: str
    settings: tuple[Config, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.settings[0])

    @property
    def grid(self) -> Grid:
        """seed: set, so that a cut keeps the first settings, which are the simplest."""
        axes = {axis: tuple(dict.fromkeys(setting[axis] for setting in self.settings)) for axis in self.axes}
        return Grid(axes=axes, configs=self.settings, seed=0)


def _one(axis: str, *values: Any) -> tuple[Config, ...]:
    return tuple({axis: value} for value in values)


def _each(**axes: tuple[Any, ...]) -> tuple[Config, ...]:
    """All combinations of two axes, the first one moving slowest."""
    (first, firsts), (second, seconds) = axes.items()
    return tuple({first: a, second: b} for a in firsts for b in seconds)


_FIRST = Lever(name="first", settings=_one("first_stage", "none", "simclr"))
_LENGTH = Lever(name="length", settings=_each(ema=(0.0, 0.998), epochs=(10, 20, 40)))
_MIXUP = Lever(name="mixup", settings=_one("mixup", 0.0, 0.2, 1.0))
_POSITIVES = Lever(name="positives", settings=_one("positives", 0, 13, 32, 64))
_AUGMENT = Lever(
    name="augment",
    settings=(
        {"affine": False, "colour": False, "cutout": False},
        {"affine": True, "colour": False, "cutout": False},
        {"affine": False, "colour": True, "cutout": True},
        {"affine": True, "colour": True, "cutout": True},
    ),
)
_COPIES = Lever(name="copies", settings=_one("tta", 0, 8, 32))
_SCHEDULE = Lever(name="schedule", settings=_one("schedule", "cosine", "steps"))
_OTHER_FIRST = Lever(
    name="first_kind",
    settings=(
        {"first_stage": "none", "first_epochs": 100},
        {"first_stage": "simclr", "first_epochs": 100},
        {"first_stage": "simclr", "first_epochs": 300},
        {"first_stage": "vicreg", "first_epochs": 100},
        {"first_stage": "supcon", "first_epochs": 100},
    ),
)

# Beside the search, on one training set first (--cells longer_first --tune-sets 5). Once it is complete, the second
# search (`menu`) takes over what it chooses.
# A step on PolyView's four views costs two of SimCLR's.
LONGER_FIRST = Lever(
    name="longer_first",
    settings=tuple(
        {"first_stage": kind, "first_epochs": epochs, "first_lr": lr}
        for kind, epochs, lr in (
            ("simclr", 300, 0.5),
            ("simclr", 300, 1.0),
            ("polyview", 100, 0.5),
            ("polyview", 100, 1.0),
            ("simclr", 600, 0.5),
            ("polyview", 300, 0.5),
            ("polyview", 300, 1.0),
            ("simclr", 1000, 0.5),
        )
    ),
)

# A new lever is an argument of `best` and comes last here, for both losses: its number is in the name of its records,
# and those of AUC-S and the pairwise loss are numbered after it. The page makes its column by itself.
LEVERS: Mapping[str, tuple[Lever, ...]] = {
    "auc_m": (
        _FIRST,
        _LENGTH,
        Lever(name="rate", settings=_each(lr=(0.1, 0.03, 0.3), weight_decay=(1e-3, 5e-3))),
        _MIXUP,
        _POSITIVES,
        _AUGMENT,
        Lever(name="gamma", settings=_one("gamma", 0.0, 0.002, 0.01)),
        Lever(
            name="margin",
            settings=(
                {"bound": "sigmoid", "margin": 1.0},
                {"bound": "sigmoid", "margin": 0.5},
                {"bound": "rms", "margin": 0.5},
                {"bound": "rms", "margin": 1.0},
            ),
        ),
        _SCHEDULE,
        Lever(name="ce_first", settings=_one("ce_first", 0, 10)),
        _COPIES,
        _OTHER_FIRST,
    ),
    "ce": (
        _FIRST,
        _LENGTH,
        Lever(name="rate", settings=_each(lr=(0.03, 0.01, 0.1), weight_decay=(1e-3, 5e-3))),
        _MIXUP,
        _POSITIVES,
        _AUGMENT,
        Lever(name="momentum", settings=_one("momentum", 0.9, 0.0, 0.95)),
        Lever(name="smoothing", settings=_one("smoothing", 0.0, 0.02, 0.05, 0.1)),
        _SCHEDULE,
        Lever(name="batch", settings=_one("batch_size", 128, 256)),
        _COPIES,
        _OTHER_FIRST,
    ),
    "auc_s": (
        Lever(
            name="rate",
            settings=tuple({"bound": bound, "lr": lr} for bound in ("sigmoid", "rms") for lr in (0.1, 0.03, 0.3)),
        ),
    ),
    "pairwise": (Lever(name="rate", settings=_each(margin=(1.0, 0.5), lr=(0.1, 0.03, 0.3))),),
}

# Where the search begins, found workable in a trial run. Levers replace all of it but `loss`.
BASE: Mapping[str, Config] = {
    "auc_m": {"loss": "auc_m", "lr": 0.1, "momentum": 0.0},
    "auc_s": {"loss": "auc_s", "momentum": 0.0},
    "pairwise": {"loss": "pairwise", "momentum": 0.0},
    "ce": {"loss": "ce", "lr": 0.03, "momentum": 0.9},
}


@dataclass(frozen=True, kw_only=True)
class SimplestWithinPairedError:
    """The first setting whose mean paired difference to the best one is at most that difference's standard error.

    d_k = AUC of the best - AUC of the setting on fold k; chosen if mean(d) <= sd(d) / sqrt(number of folds). Settings
    are tried in their order, which is that of simplicity. Folds of one training set share training images, so the
    standard error is a rule for choosing, no claim.
    """

    def choose(self, trials: Sequence[TriedSetting]) -> TriedSetting:
        usable = [t for t in trials if t.validation and not any(math.isnan(v) for v in t.values())]
        if not usable:
            raise NothingToChoose("no setting has a validation AUC on every fold: there is nothing to choose.")
        top = max(usable, key=lambda trial: fmean(trial.values()))
        return next(trial for trial in usable if trial is top or _within(top, trial))


def _within(top: TriedSetting, other: TriedSetting) -> bool:
    differences = [a - b for a, b in zip(top.values(), other.values(), strict=True)]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences) <= error


def lever_studies(
    loss: str, source: TaskSource, *, base: Config, sets: Sequence[int] = SELECTION_SETS, folds: int = FOLDS
) -> tuple[Study, ...]:
    """The search of one loss: a study a lever, each beginning where the one before has ended."""
    fold_source = FoldSource(source=source, folds=folds)
    studies: list[Study] = []
    decided: tuple[str, ...] = ()
    inherits = Inherits.after(searched("auc_m"), axes=followed(loss)) if loss in FOLLOWERS else None
    for number, lever in enumerate(LEVERS[loss], start=1):
        if inherits is not None:
            decided = inherits.axes
            inherits = replace(inherits, axes=tuple(axis for axis in decided if axis not in lever.axes))
        taken = {*lever.axes, *(() if inherits is None else inherits.axes)}
        studies.append(
            Study(
                name=lever_name(loss, number),
                task=fold_source,
                method=best,
                fixed={name: value for name, value in {**base, **BASE[loss]}.items() if name not in taken},
                grid=lever.grid,
                select=SimplestWithinPairedError(),
                tuning_seeds=fold_source.seeds(sets),
                inherits=inherits,
                group=f"levers-{number:02d}" if loss in LOSSES else "levers-other_losses",
            )
        )
        axes = tuple(dict.fromkeys((*decided, *lever.axes)))
        inherits = Inherits(study=studies[-1].name, axes=axes)
    return tuple(studies)


def longer_first_name(loss: str) -> str:
    """Of the study of `LONGER_FIRST`."""
    return f"{LONGER_FIRST.name}-{loss}"


def longer_first_study(loss: str) -> Study:
    """What the search of a loss has chosen, after each of the first stages of `LONGER_FIRST`."""
    fold_source = FoldSource(source=C10, folds=FOLDS)
    axes = tuple(axis for axis in all_axes(loss) if axis not in LONGER_FIRST.axes)
    return Study(
        name=longer_first_name(loss),
        task=fold_source,
        method=best,
        fixed={name: value for name, value in BASE[loss].items() if name not in axes},
        grid=LONGER_FIRST.grid,
        select=SimplestWithinPairedError(),
        tuning_seeds=fold_source.seeds(SELECTION_SETS),
        inherits=Inherits.after(searched(loss), axes=axes),
        group=LONGER_FIRST.name,
    )


def lever_name(loss: str, number: int) -> str:
    """`levers-ce-03-rate`. Those that follow AUC-M are numbered after its search: `levers-*-01-*` is AUC-M and CE."""
    place = number + (len(LEVERS["auc_m"]) if loss in FOLLOWERS else 0)
    return f"levers-{loss}-{place:02d}-{LEVERS[loss][number - 1].name}"


def searched(loss: str) -> tuple[str, ...]:
    """Names of a loss's studies, in order."""
    return tuple(lever_name(loss, number) for number in range(1, len(LEVERS[loss]) + 1))


def all_axes(loss: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for lever in LEVERS[loss] for axis in lever.axes))


def followed(loss: str) -> tuple[str, ...]:
    """What a loss takes over from AUC-M's search."""
    return tuple(axis for axis in all_axes("auc_m") if axis not in BASE[loss]) if loss in FOLLOWERS else ()
