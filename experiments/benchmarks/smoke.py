"""A cell of the benchmark tables in small: scikit-learn's digits at 10 %, a small network, four losses, on a CPU.

    deepauc study run experiments/paper.py smoke && deepauc study table experiments/paper.py smoke

Protocol as in `tables`: tune on 90 % of one training set, refit on all of it, five training sets. It needs
no images from elsewhere; the point is that every part works together, not the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepauc.data.imbalance import imbalance_task, tuning_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.demo import digits
from deepauc.studies.records import tables as t
from deepauc.studies.sources import Place, TaskSource
from deepauc.studies.study import Study, StudySet
from experiments.benchmarks.recipes import METHODS, PAPER

CONFIGS, EPOCHS = 4, 40


@dataclass(frozen=True, kw_only=True)
class DigitsSource(TaskSource):
    """Digits 5 to 9 against 0 to 4; two thirds are the balanced training part, a third is the test part."""

    imratio: float

    @property
    def name(self) -> str:
        return f"digits at {self.imratio:.0%}"

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


PAGE = t.page_of(
    smoke(),
    columns=(t.MEAN, t.SETS, t.SETTINGS, t.ALPHA_ZERO),
    note="Test AUC of five training sets, on a CPU. Where `alpha = 0` is 0 %, AUC-M is the square loss with margin m.",
)
