"""The cells in which what the searches of `best` have chosen is used unchanged, and the whole set.

deepauc study run experiments/best.py --cells C10-R-1 --device cuda  # the five reported training sets
deepauc study table experiments/best.py  # results/best.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.task import Task
from deepauc.studies.grid import Config
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import BenchmarkSource, Place, TaskSource
from deepauc.studies.study import Inherits, Study, StudySet
from deepauc.training.run.run import Run
from experiments.benchmarks import halving
from experiments.benchmarks.tables import BenchmarkCell
from experiments.search.levers import (
    BASE,
    C10,
    FOLLOWERS,
    LEVERS,
    LOSSES,
    SET,
    all_axes,
    followed,
    lever_studies,
    longer_first_study,
    searched,
)
from experiments.search.menu import LATER, chosen_axes, last_round, menu_studies
from experiments.search.recipe import best

FREE = "best"  # in place of a network's letter: the one that folds have chosen

# In the order of the runs: those with 1 % first, where few positives are the difficulty.
BEST_CELLS = (
    *(BenchmarkCell(benchmark=benchmark, network="R", percent=1) for benchmark in ("C10", "C2", "C100")),
    BenchmarkCell(benchmark="C10", network="D", percent=1),
    *(BenchmarkCell(benchmark=benchmark, network=FREE, percent=1) for benchmark in ("C10", "C2", "C100")),
    *(BenchmarkCell(benchmark=benchmark, network="R", percent=10) for benchmark in ("C10", "C2", "C100")),
    BenchmarkCell(benchmark="C10", network="D", percent=10),
)


@dataclass(frozen=True, kw_only=True)
class RankedSource(TaskSource):
    """Another source, whose final records keep the ranks of the test scores: what an average of models needs.

    Ranks, since AUC scores of different models share no scale. Two bytes an image: 27 kB of text for 10,000.
    """

    source: TaskSource

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def needs(self) -> tuple[str, ...]:
        return self.source.needs

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        return self.source.load(seed, tuning=tuning, place=place)

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        return {**self.source.keep(run, task, device=device), "test_ranks": kept_ranks(*run.scores("test"))}


def kept_ranks(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """Twice the rank from 0, ties sharing their mean, as two bytes each; labels as bytes."""
    if len(scores) > 1 << 15:
        raise ValueError(f"ranks of {len(scores)} images do not fit into two bytes each.")
    from scipy.stats import rankdata

    return {"ranks": (2 * rankdata(scores) - 2).astype("<u2"), "labels": (labels == 1).astype("u1")}


def read_ranks(kept: Mapping[str, Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Ranks and labels, (N,) each, as `kept_ranks` got them."""
    return np.asarray(kept["ranks"]) / 2, np.asarray(kept["labels"]).astype(np.float64)


def cell_study(name: str, loss: str, source: TaskSource, *, inherits: Inherits, fixed: Config) -> Study:
    """What was chosen for a loss, unchanged, on a cell's training sets."""
    return Study(
        name=f"{name}-{loss}",
        task=RankedSource(source=source),
        method=best,
        fixed={key: value for key, value in {**BASE[loss], **fixed}.items() if key not in inherits.axes},
        inherits=inherits,
        group=name,
    )


def from_levers(loss: str, *further: str) -> Inherits:
    """What the searches of a loss have chosen: the last of these further studies, otherwise of its levers.

    As long as a search is unfinished, it is what the last finished one has chosen; the record says which.
    """
    axes = chosen_axes(loss) if further else tuple(dict.fromkeys((*followed(loss), *all_axes(loss))))
    return Inherits.after((*searched(loss), *further), axes=axes)


def _cell(cell: BenchmarkCell) -> list[Study]:
    """Both losses, and once more with other random numbers in the second stage, for averages of one loss."""
    source = BenchmarkSource(benchmark=cell.benchmark, imratio=cell.percent / 100)
    found = []
    for draw, name in enumerate((cell.name, f"{cell.name}-again")):
        for loss in LOSSES:
            inherits: Inherits = from_levers(loss, last_round(loss))
            fixed: dict[str, Any] = {"draw": draw} if draw else {}
            if cell.network == FREE:
                inherits = Inherits(study=f"networks-{loss}", axes=(*chosen_axes(loss), "network"))
            else:
                fixed["network"] = cell.network
            found.append(cell_study(name, loss, source, inherits=inherits, fixed=fixed))
    return found


def best_set() -> StudySet:
    """The searches, then all cells."""
    searches = {loss: lever_studies(loss, C10, base={}) for loss in LEVERS}
    levers = [
        search[number]
        for number in range(max(map(len, LEVERS.values())))
        for search in (searches[loss] for loss in LOSSES)
        if number < len(search)
    ]
    longer = [longer_first_study(loss) for loss in LOSSES]
    others = [study for loss in FOLLOWERS for study in searches[loss]]
    others += [
        cell_study("C10-R-1", loss, C10, inherits=from_levers(loss), fixed={"network": "R"}) for loss in FOLLOWERS
    ]
    cells = [study for cell in BEST_CELLS for study in _cell(cell)]
    return StudySet(
        name=SET,
        title="One recipe for few positives, chosen by folds of other training sets, beside a CE from its menu",
        studies=(*levers, *longer, *menu_studies(), *cells, *others),
    )


def settled(studies: Sequence[Study], results: Path) -> tuple[tuple[Study, ...], tuple[Study, ...]]:
    """With the best settings of each round of the second search in the next; what waits for a round is left out."""
    return halving.settled(studies, best_set().studies, LATER, RecordBook(results / SET))
