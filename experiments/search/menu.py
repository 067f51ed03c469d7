"""The second search of `best`: settings of both losses drawn from one menu, halved over folds; then a free network.

    deepauc study run experiments/best.py --cells menu --device cuda      # three times: a call has the best of the last
    deepauc study run experiments/best.py --cells networks --device cuda  # once the third round is complete

The levers are those that the paper's reproduction showed to matter. What is no axis here stays as the first search
and its longer first stages (`levers`) have chosen it, and that setting is the first of either loss (`START`). Each
round has the folds of those before it, and no training set of the first search; no epoch is cut. A lever that one loss
lacks has another in its place: AUC-M is pulled to the first stage's network by gamma, cross-entropy smooths its labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deepauc.studies.grid import Config, Grid, sample
from deepauc.studies.sources import FoldSource
from deepauc.studies.study import Inherits, Study
from experiments.benchmarks.halving import BestOf, PooledSource
from experiments.search.levers import FOLDS, LONGER_FIRST, LOSSES, all_axes, longer_first_name, searched
from experiments.search.recipe import best

POOLED = PooledSource(benchmarks=("C10", "C2", "C100"), imratio=0.01)
DRAWN, DRAW_SEED = 24, 40
_BOTH: Mapping[str, tuple[Any, ...]] = {
    "lr": (0.01, 0.03, 0.1, 0.3),
    "momentum": (0.0, 0.9),
    "weight_decay": (1e-4, 1e-3, 5e-3, 2e-2),
    "scale": (1.0, 1 / 3),
    "epochs": (10, 20, 40),
    "dropout": (0.0, 0.2, 0.5),
    "frozen_epochs": (0, 3),
    "lower_rate": (1.0, 0.3),
}
MENU: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "auc_m": {**_BOTH, "gamma": (0.0, 0.002, 0.02, 0.1)},
    "ce": {**_BOTH, "smoothing": (0.0, 0.02, 0.05, 0.1)},
}
_AS_BEFORE = {"weight_decay": 1e-3, "scale": 1.0, "dropout": 0.0, "frozen_epochs": 0, "lower_rate": 1.0}
START: Mapping[str, Config] = {
    "auc_m": {**_AS_BEFORE, "lr": 0.1, "momentum": 0.0, "epochs": 40, "gamma": 0.002},
    "ce": {**_AS_BEFORE, "lr": 0.03, "momentum": 0.9, "epochs": 10, "smoothing": 0.0},
}

Folds = tuple[str, int, int]  # benchmark, training set, how many of its folds
# What each round adds; how many settings the later ones try.
ROUNDS: Mapping[str, tuple[Folds, ...]] = {
    "first": (("C10", 102, FOLDS),),
    "second": (("C2", 102, 3), ("C100", 102, 3)),
    "third": (("C10", 103, FOLDS), ("C2", 103, 3), ("C100", 103, 3)),
}
KEPT = {"second": 8, "third": 3}
LATER = {
    f"menu-{loss}-{turn}": BestOf(f"menu-{loss}-{before}", KEPT[turn])
    for loss in LOSSES
    for before, turn in zip(ROUNDS, KEPT, strict=False)
}

# Of about equal cost: at most two minutes of an H200 a model.
NETWORKS: tuple[Config, ...] = (
    {"network": "R", "first_epochs": 600},
    {"network": "H", "first_epochs": 140},
    {"network": "B", "first_epochs": 60},
)
NETWORK_FOLDS: tuple[Folds, ...] = (("C10", 104, 2), ("C2", 104, 2), ("C100", 104, 2))


def last_round(loss: str) -> str:
    """The study whose selection is the second search's."""
    return f"menu-{loss}-{[*ROUNDS][-1]}"


def chosen_axes(loss: str) -> tuple[str, ...]:
    """What the searches choose."""
    return tuple(dict.fromkeys((*all_axes(loss), *LONGER_FIRST.axes, *MENU[loss])))


def menu_studies() -> list[Study]:
    """Round by round, both losses in each; then the networks, by what the last round has chosen."""
    grids = {loss: sample(MENU[loss], n=DRAWN, seed=DRAW_SEED) for loss in LOSSES}
    studies: list[Study] = []
    folds: tuple[Folds, ...] = ()
    for turn, added in ROUNDS.items():
        folds = (*folds, *added)
        for loss, drawn in grids.items():
            grid = replace(drawn, configs=(START[loss], *drawn.configs))
            kept = tuple(axis for axis in chosen_axes(loss) if axis not in grid.axes)
            before = Inherits.after((*searched(loss), longer_first_name(loss)), axes=kept)
            studies.append(_study(f"menu-{loss}-{turn}", loss, grid, before, folds, group=f"menu-{turn}"))
    networks = Grid(axes={axis: tuple(one[axis] for one in NETWORKS) for axis in NETWORKS[0]}, configs=NETWORKS, seed=0)
    for loss in LOSSES:
        kept = tuple(axis for axis in chosen_axes(loss) if axis not in networks.axes)
        last = Inherits(study=last_round(loss), axes=kept)
        studies.append(_study(f"networks-{loss}", loss, networks, last, NETWORK_FOLDS, group="networks"))
    return studies


def _study(name: str, loss: str, grid: Grid, inherits: Inherits, folds: tuple[Folds, ...], *, group: str) -> Study:
    source = FoldSource(source=POOLED, folds=FOLDS)
    return Study(
        name=name,
        task=source,
        method=best,
        fixed={"loss": loss},
        grid=grid,
        inherits=inherits,
        tuning_seeds=tuple(seed for b, n, count in folds for seed in source.seeds((POOLED.number(b, n),))[:count]),
        group=group,
    )
