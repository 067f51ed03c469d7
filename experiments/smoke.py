"""A cell of the benchmark tables in small: scikit-learn's digits at 10 %, a small network, four losses, on a CPU.

    deepauc study run experiments/paper.py smoke && deepauc study table experiments/paper.py smoke

Protocol as in `benchmark_tables`: tune on 90 % of one training set, refit on all of it, five training sets. It needs
no images from elsewhere; the point is that every part works together, not the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from deepauc.data.imbalance import imbalance_task, tuning_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.demo import digits
from deepauc.studies.records.tables import ALPHA_ZERO, MEAN, SETS, SETTINGS, Page, Row, study_table
from deepauc.studies.sources import Place
from deepauc.studies.study import Study, StudySet
from deepauc.training.run.run import Run
from experiments.recipes import METHODS, PAPER, TITLES

CONFIGS, EPOCHS = 4, 40


@dataclass(frozen=True, kw_only=True)
class DigitsSource:
    """Digits 5 to 9 against 0 to 4; two thirds are the balanced training part, a third is the test part."""

    imratio: float

    @property
    def name(self) -> str:
        return f"digits at {self.imratio:.0%}"

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        images, labels, train, test = digits.load()
        task = Task(
            name=f"digits, imratio {self.imratio:g}, set {seed}",
            kind="binary",
            source=ArrayInputs((images.numpy() * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)),
            labels=labels,
            label_names=("5 to 9",),
            parts={"train": train, "test": test},
        )
        task = imbalance_task(task, imratio=self.imratio, seed=seed).task(task)
        return tuning_task(task, seed=seed) if tuning else task

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        return {}


def smoke() -> StudySet:
    """The four losses with the grids of the `paper` recipe, cut to four configurations each."""
    shared = {"network": "S", "batch_size": 64, "epochs": EPOCHS, "augmented": False, "precision": "float32"}
    return StudySet(
        name="smoke",
        title="One small cell on a CPU: digits at 10 %, four losses, tuned and refitted",
        studies=tuple(
            Study(
                name=f"digits-S-10-paper-{loss}",
                task=DigitsSource(imratio=0.1),
                method=METHODS[loss],
                fixed={**PAPER.fixed[loss], **shared},
                grid=PAPER.grids[loss].first(CONFIGS),
                group="digits-S-10",
            )
            for loss in METHODS
        ),
    )


PAGE = Page(
    name="smoke",
    title="Smoke: digits at 10 %",
    note="Test AUC of five training sets, on a CPU. Where `alpha = 0` is 0 %, AUC-M is the square loss with margin m.",
    tables=(
        study_table(
            "smoke",
            labels=("loss",),
            rows=tuple(Row(labels=(TITLES[loss],), study=f"digits-S-10-paper-{loss}") for loss in METHODS),
            columns=(MEAN, SETS, SETTINGS, ALPHA_ZERO),
        ),
    ),
)
