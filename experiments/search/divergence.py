"""Which settings diverge: AUC losses on raw, sigmoid and normalised scores, over learning rates and momenta.

    deepauc study run experiments/paper.py divergence --cells digits     # on a CPU; C10 at 1 % on a GPU
    deepauc study table experiments/paper.py divergence

The menu's recipe (`best`) without first stage, margin 1, 32 positives in 128, from random weights at a constant
learning rate, for a few steps on nine tenths of a training set. A run ends with the validation AUC on the last tenth,
or fails where the loss or the scores are no number any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from deepauc.studies.records import tables as t
from deepauc.studies.records.book import Record
from deepauc.studies.sources import BenchmarkSource, FoldSource
from deepauc.studies.study import Study, StudySet
from deepauc.training.recipe import Bound, Recipe
from deepauc.training.schedule import Constant
from experiments.benchmarks.recipes import Network
from experiments.benchmarks.smoke import DigitsSource
from experiments.search.recipe import TITLES, best

SET = "divergence"
LOSSES = ("auc_m", "pairwise")  # AUC-S at margin 1 is AUC-M as long as alpha is not 0: it never was
SCORES = {"none": "raw", "sigmoid": "sigmoid", "l2": "BSN"}
GRID = {"bound": tuple(SCORES), "lr": (0.1, 0.02, 0.003), "momentum": (0.0, 0.9)}
WHERE = {"C10": (BenchmarkSource(benchmark="C10", imratio=0.01), 120, (100, 101)),
         "digits": (DigitsSource(imratio=0.2), 60, (100,))}  # fmt: skip


def unbounded(
    *, loss: Literal["auc_m", "pairwise"], bound: Bound, lr: float, momentum: float, steps: int, network: Network = "R"
) -> Recipe:
    """So many steps at a constant rate."""
    recipe = best(
        loss=loss,
        bound=bound,
        lr=lr,
        momentum=momentum,
        network=network,
        weight_decay=0.0,
        first_stage="none",
        affine=False,
        colour=False,
        cutout=False,
        precision="float32",
    )
    (stage,) = recipe.stages
    return replace(recipe, stages=(replace(stage, epochs=None, iterations=steps, schedule=Constant()),))


def divergence() -> StudySet:
    """Every setting on one fold of each training set."""
    studies = [
        Study(
            name=f"{name}-{loss}",
            task=FoldSource(source=source, folds=10),
            method=unbounded,
            fixed={"loss": loss, "steps": steps},
            grid=GRID,
            tuning_seeds=tuple(10 * number for number in sets),
            group=name,
        )
        for name, (source, steps, sets) in WHERE.items()
        for loss in LOSSES
    ]
    title = "AUC losses on raw, sigmoid and normalised scores: which learning rates and momenta diverge"
    return StudySet(name=SET, title=title, studies=tuple(studies))


def _lines(books: t.Books) -> Iterator[list[str]]:
    """One for each setting, its training sets side by side."""
    for study in divergence().studies:
        by_setting: dict[str, list[Record]] = {}
        for record in books(SET).tuning(study.name):
            by_setting.setdefault(t.settings_text(record["config"]), []).append(record)
        for runs in by_setting.values():
            name, config, loss = study.task.name, runs[0]["config"], TITLES[study.fixed["loss"]]
            yield [name, loss, SCORES[config["bound"]], f"{config['lr']:g}", f"{config['momentum']:g}",
                   " / ".join(map(_entry, runs))]  # fmt: skip


def _entry(record: Record) -> str:
    if "failed" not in record:
        return f"{record['auc']['validation'][0]:.3f}"
    step = re.search(r"step (\d+)", record["failed"])
    return f"stopped at {step[1]}" if step else "diverged"


PAGE = t.Page(
    name=SET,
    title="What diverges without a bound on the scores",
    note=(
        "ResNet20, margin 1, random weights at the start, constant learning rate, no weight decay, 32 positives in "
        "128; AUC-M by PESG, the pairwise loss by SGD; 120 steps on C10, 60 on digits. An entry for each training "
        "set: the validation AUC after the last step, or the step at which the loss or the scores were no number any "
        "more (on a GPU noticed with some delay)."
    ),
    tables=(t.Table(header=("where", "loss", "scores", "lr", "momentum", "validation AUC by set"), lines=_lines),),
)
