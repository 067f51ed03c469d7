"""Learning from the patients' metadata beside the images (section 4.2.2): a small network, fused by `predict`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from deepauc.data.task import ArrayInputs, Task
from deepauc.models.fusion import MetadataEncoder
from deepauc.training.bundle import Bundle
from deepauc.training.loop import train
from deepauc.training.recipe import Recipe
from deepauc.training.run import Run


def metadata_task(task: Task, encoder: MetadataEncoder | None = None) -> tuple[Task, MetadataEncoder]:
    """The task with its encoded metadata columns as inputs; the encoder is fitted on the training part unless given."""
    if not task.metadata:
        raise ValueError("the task has no metadata columns to learn from.")
    if encoder is None:
        rows = task.part("train")
        encoder = MetadataEncoder.fit({name: column[rows] for name, column in task.metadata.items()})
    encoded = replace(
        task, name=f"{task.name} metadata", source=ArrayInputs(encoder.transform(task.metadata)), metadata={}
    )
    return encoded, encoder


def train_on_metadata(
    recipe: Recipe, task: Task, *, seed: int, run_dir: str | Path, device: str | torch.device | None = None
) -> Run:
    """`train` on the task's metadata. Average the run with one on the images: predict([images, metadata], task)."""
    encoded, encoder = metadata_task(task)
    run = train(recipe, encoded, seed=seed, run_dir=run_dir, device=device)
    replace(Bundle.load(run.path), metadata=encoder.to_dict()).save(run.path)
    return run
