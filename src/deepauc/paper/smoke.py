"""A cell of the benchmark tables in small: scikit-learn's digits at 10 %, a small network, four losses, on a CPU.

    deepauc study run experiments/paper.py smoke && deepauc study table experiments/paper.py smoke

Protocol as in `benchmark_tables`: tune on 90 % of one training set, refit on all of it, five training sets. It needs
no images from elsewhere; the point is that every part works together, not the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from deepauc.data.imbalance import imbalance_task, tuning_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.demo import digits
from deepauc.paper.recipes import METHODS, PAPER, TITLES
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import RecordBook
from deepauc.studies.sources import Place
from deepauc.studies.study import Study, StudySet
from deepauc.training.run import Run

CONFIGS, EPOCHS = 4, 40
HEADER = ("loss", "test AUC", "seeds", "selected", "alpha = 0")


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


def page(results: Path) -> str:
    """Test AUC by loss, from the records."""
    book = RecordBook(results / "smoke")
    rows = []
    for loss in METHODS:
        records = book.final(f"digits-S-10-paper-{loss}")
        values = [record["auc"]["test"][0] for record in records]
        shares = [r["alpha_zero_share"] for r in records if r["alpha_zero_share"] is not None and loss == "auc_m"]
        if values:
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            chosen = ", ".join(f"{name} {value:.4g}" for name, value in records[0]["config"].items())
            zero = percent_text(fmean(shares)) if shares else "-"
            rows.append([TITLES[loss], f"{fmean(values):.3f}{spread}", str(len(values)), chosen, zero])
    parts = ["# Smoke: digits at 10 %", "Made by `deepauc study table smoke`."]
    if not rows:
        return "\n\n".join([*parts, "No final run is recorded yet."]) + "\n"
    explained = "`alpha = 0`: share of AUC-M's steps; where it is 0 %, AUC-M is the square loss with margin m."
    return "\n\n".join([*parts, explained, markdown_table(HEADER, rows)]) + "\n"
