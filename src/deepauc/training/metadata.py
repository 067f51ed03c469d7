"""Learning from the patients' metadata beside the images (section 4.2.2): a small network, fused by `predict`."""

from __future__ import annotations

from pathlib import Path

import torch

from deepauc.data.task import Task
from deepauc.training.engine.loop import train
from deepauc.training.prepare.encoded_metadata import metadata_task
from deepauc.training.recipe import Recipe
from deepauc.training.run.run import Run


def train_on_metadata(
    recipe: Recipe, task: Task, *, seed: int, run_dir: str | Path, device: str | torch.device | None = None
) -> Run:
    """`train` on the task's metadata. Average the run with one on the images: predict([images, metadata], task)."""
    return train(recipe, metadata_task(task)[0], seed=seed, run_dir=run_dir, device=device)
