"""A finished run: what its folder holds, and how it gets there once training is over."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deepauc.data.task import Task
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate
from deepauc.training.bundle import Bundle, load_weights, save_weights
from deepauc.training.folder import RunFolder
from deepauc.training.operating import calibrations, thresholds
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe
from deepauc.training.scoring import mean_auc, part_auc, score_rows


@dataclass(frozen=True)
class Run:
    """The folder of a finished run, read on demand."""

    path: Path

    def __post_init__(self) -> None:
        if not RunFolder(self.path).done:
            raise ValueError(f"{self.path} holds no finished run: train it (again) to finish it.")

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return RunFolder(self.path).record()

    @property
    def history(self) -> list[dict[str, str]]:
        """The rows of history.csv."""
        with (self.path / "history.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def auc(self, part: str) -> dict[str, Estimate]:
        """AUC with interval by label, as recorded."""
        found = self.record["results"]["auc"]
        if part not in found:
            raise ValueError(f"{self.path} has no scores of a {part} part (there are {', '.join(found)}).")
        return {name: Estimate(*values) for name, values in found[part].items()}

    def scores(self, part: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Scores and labels of a part from scores.csv, (n,) each, or (n, L) for several labels."""
        with (self.path / "scores.csv").open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if row["part"] == part]
            columns = reader.fieldnames or []

        def values(kind: str) -> npt.NDArray[np.float32]:
            names = [c for c in columns if c == kind or c.startswith(f"{kind}:")]
            table = np.array([[float(row[c] or "nan") for c in names] for row in rows], dtype=np.float32)
            return table.reshape(len(rows), len(names))[:, 0] if names == [kind] else table

        return values("score"), values("label")


def finish_run(
    folder: RunFolder,
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    preprocessing: Preprocessing,
    device: torch.device,
    seconds: float,
) -> Run:
    """Scores of every part, weights, bundle, results; DONE comes last."""

    def all_scores() -> dict[str, npt.NDArray[np.float32]]:
        return {p: score_rows(model, task, task.labelled(p), preprocessing, device) for p in task.parts}

    scores = all_scores()
    guard = None
    if recipe.guard and "validation" in task.parts:
        guard = _guard(folder, recipe, task, model, scores["validation"], preprocessing, device)
        if guard["winner"] != len(recipe.stages) - 1:
            scores = all_scores()
    save_weights(folder.model_path, model)
    folder.write_scores(task, scores)
    validation = scores.get("validation")
    Bundle(
        model=recipe.model,
        shape=tuple(task.source.shape),
        kind=task.kind,
        label_names=task.label_names,
        preprocessing=preprocessing,
        thresholds={} if validation is None else thresholds(task, validation),
        calibration={} if validation is None else calibrations(task, validation),
    ).save(folder.path)
    auc = {
        part: {name: [e.value, e.low, e.high] for name, e in part_auc(task, part, values).items()}
        for part, values in scores.items()
    }
    results = {"auc": auc, "seconds": round(seconds, 3)} | ({"guard": guard} if guard else {})
    folder.write_record({**folder.record(), "results": results})
    folder.finish()
    return Run(folder.path)


def _guard(
    folder: RunFolder,
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    last_scores: npt.NDArray[np.float32],
    preprocessing: Preprocessing,
    device: torch.device,
) -> dict[str, Any]:
    """Which stage's network is best on validation, with the paired test against the last; leaves it in `model`."""
    rows = task.labelled("validation")
    last = len(recipe.stages) - 1
    scores = {last: last_scores}
    for number in range(last):
        load_weights(folder.stage_path(number), model)
        scores[number] = score_rows(model, task, rows, preprocessing, device)
    aucs = {number: mean_auc(part_auc(task, "validation", values)) for number, values in scores.items()}
    winner = max(aucs, key=lambda number: (aucs[number], number))  # of equals the later stage
    load_weights(folder.stage_path(winner), model)
    tests = {}
    if task.kind == "binary":
        groups = None if task.groups is None else task.groups[rows]
        for number in range(last):
            both = last_scores[:, 0], scores[number][:, 0]
            found = compare_auroc(*both, task.labels[rows], groups=groups)
            tests[str(number)] = {
                "difference": found.difference,
                "low": found.low,
                "high": found.high,
                "p_value": found.p_value,
            }
    return {
        "winner": winner,
        "validation_auc": {str(number): value for number, value in sorted(aucs.items())},
        "last_minus_stage": tests,
    }
