"""`best` on the medical stand-ins: a first stage on the task's own training images, then AUC-M, and CE from its menu.

    deepauc study run experiments/medical.py medical --cells '*-best-*' --device cuda

The levers are those of `levers`; what its search on C10 at 1 % has chosen so far is taken over: the setting of the
last complete lever in RESULTS/best, else the defaults of `best`. Nothing is tuned on a medical task. Lengths are in the
task's own steps (`LENGTHS`): a lever that doubles the search's 20 epochs doubles them, and the averaging of weights
keeps its share of the stage. A first stage sees the training part of its set or fold and nothing else: no test image,
no patient of the fold that is held out, no positive that was dropped to make 1 %. It is kept under RUNS/first-stages
and shared by both losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepauc.studies.grid import Config
from deepauc.studies.records.book import RecordBook
from deepauc.studies.study import Inherits, Study
from experiments.clinical.tasks import MedicalSource
from experiments.search.lever_results import lever_results
from experiments.search.levers import BASE, LEVERS, LOSSES, SET, lever_name
from experiments.search.recipe import best

SEARCH_EPOCHS, SEARCH_STEPS, SEARCH_FIRST_EPOCHS = 20, 4160, 100  # what the search begins with, on a fold of C10
DEFAULTS = "best-defaults"  # named by records of runs without a search


@dataclass(frozen=True, kw_only=True)
class TaskLength:
    """Of a task with ResNet20. epochs: of the second stage, in place of the search's 20; steps: that many.

    first_epochs: in place of the search's 100; first_steps: that many, of first_batch images in two views each.
    """

    epochs: int
    steps: int
    first_epochs: int
    first_steps: int
    first_batch: int


# The second stage sees about as many images as both stages of `-R-ours` together (HAM10000: half as many), at 4, 40, 71
# and 59 steps an epoch with 32 positives in 128. First stages: 4, 10, 26 and 24 steps an epoch. PathMNIST has 69
# positives: batches of 512 would leave supcon's quarter unfilled.
LENGTHS: Mapping[str, TaskLength] = {
    "breast": TaskLength(epochs=150, steps=600, first_epochs=500, first_steps=2000, first_batch=128),
    "pneumonia": TaskLength(epochs=30, steps=1200, first_epochs=200, first_steps=2000, first_batch=512),
    "path": TaskLength(epochs=30, steps=2130, first_epochs=100, first_steps=2600, first_batch=256),
    "ham": TaskLength(epochs=40, steps=2360, first_epochs=100, first_steps=2400, first_batch=256),
}
SOURCES: Mapping[str, MedicalSource] = {
    "breast": MedicalSource(dataset="breastmnist"),
    "pneumonia": MedicalSource(dataset="pneumoniamnist"),
    "path": MedicalSource(dataset="pathmnist"),
    "ham": MedicalSource(dataset="ham10000", size=32),
}


def best_cells() -> list[Study]:
    """As declared, with the defaults; `settled` puts in what the search has chosen."""
    return [
        Study(
            name=f"{name}-R-best-{loss}",
            task=SOURCES[name],
            method=best,
            fixed={**BASE[loss], "network": "R", "first_batch": length.first_batch, **_fitted({}, length)},
            seeds=(0, 1, 2, 3, 4),
            group=f"{name}-R-best",
        )
        for name, length in LENGTHS.items()
        for loss in LOSSES
    ]


def settled(studies: Sequence[Study], results: Path) -> tuple[tuple[Study, ...], tuple[Study, ...]]:
    """The studies with the search's setting in those of `best`, and what these inherit from, for the records.

    An argument that was set by hand (a study's `cut`) stays as it is.
    """
    book, sources = RecordBook(results / SET), dict[str, Study]()
    found = []
    for study in studies:
        if study.method is not best:
            found.append(study)
            continue
        loss, length = str(study.fixed["loss"]), LENGTHS[study.name.split("-")[0]]
        origin, setting = chosen_setting(book, loss)
        sources[origin] = Study(name=origin, task=study.task, method=best, fixed={"loss": loss})
        fitted = {name: value for name, value in _fitted(setting, length).items() if name not in study.cut}
        found.append(replace(study, fixed={**study.fixed, **fitted}, inherits=Inherits(study=origin, axes=())))
    return tuple(found), tuple(sources.values())


def chosen_setting(book: RecordBook, loss: str) -> tuple[str, Config]:
    """Where it is from, and the arguments of `best` that the levers up to there have chosen; from records alone."""
    axes = {axis for lever in LEVERS[loss] for axis in lever.axes}
    found = [(number, one) for number, one in enumerate(lever_results(book, loss), start=1) if one.chosen is not None]
    if found:
        number, last = found[-1]
        known = {**last.records[-1]["fixed"], **last.records[-1]["config"], **(last.chosen or {})}
        return f"{SET}-{lever_name(loss, number)}", {name: v for name, v in known.items() if name in axes}
    return DEFAULTS, {}


def _fitted(setting: Config, length: TaskLength) -> dict[str, Any]:
    """A setting of the search in the task's own steps; without its `tta`: medical scores have copies of their own."""
    second = setting.get("epochs", SEARCH_EPOCHS) / SEARCH_EPOCHS
    first = setting.get("first_epochs", SEARCH_FIRST_EPOCHS) / SEARCH_FIRST_EPOCHS
    fitted = {
        **{name: value for name, value in setting.items() if name != "tta"},
        "epochs": round(second * length.epochs),
        "first_epochs": round(first * length.first_epochs),
        "first_warmup": round(first * length.first_steps / 10),
    }
    if setting.get("ema"):
        fitted["ema"] = round(setting["ema"] ** (SEARCH_STEPS / length.steps), 6)
    if setting.get("ce_first"):
        fitted["ce_first"] = round(setting["ce_first"] * length.epochs / SEARCH_EPOCHS)
    return fitted
