"""The trivial baselines of a task, fitted beside a run: each in a folder of its own, scored as the run is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from deepauc.data.task import Task
from deepauc.training.predict.predict import predict
from deepauc.training.run.output_file import write_atomically
from deepauc.training.run.scores import ScoredRows, write_scored_rows
from deepauc.training.trivial import TITLES, fit_trivial, trivial_specs

RECORD = "trivial.json"  # written last


def has_plain_labels(task: Task) -> bool:
    """Whether they are 0, 1 or missing; those of a packed set may be soft or uncertain."""
    return bool((np.isnan(task.labels) | (task.labels == 0) | (task.labels == 1)).all())


def trivial_names(task: Task) -> tuple[str, ...]:
    """`logistic`, and for images `brightness`."""
    return tuple(trivial_specs(task))


def fit_trivial_baselines(
    task: Task, folder: Path, *, parts: Sequence[str], seed: int, device: torch.device | None
) -> None:
    """Fit on the training part, and score these parts; what is there already is left as it is."""
    for name, spec in trivial_specs(task).items():
        place = folder / name
        if (place / RECORD).exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        fitted = fit_trivial(spec, task, seed=seed)
        fitted.save(place)
        blocks = [
            ScoredRows(part=part, rows=rows, scores=predict(place, task, rows=rows, device=device))
            for part in parts
            if len(rows := task.labelled(part))
        ]
        write_scored_rows(place, task, blocks)
        title = TITLES[name] + " on 16 x 16 pixels" * (name == "logistic" and len(task.source.shape) == 3)
        record = {"name": title, "strengths": fitted.strengths, "seconds": round(time.monotonic() - began, 3)}
        write_atomically(place / RECORD, (json.dumps(record) + "\n").encode())


def trivial_seconds(folder: Path, name: str) -> float:
    """How long it took to fit, as recorded."""
    return float(json.loads((folder / name / RECORD).read_text(encoding="utf-8"))["seconds"])
