"""The folder that a run claims before anything is trained, and what is refused before that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepauc.data.bags import BagInputs
from deepauc.data.task import Task
from deepauc.models.build import is_of_bags
from deepauc.training.plain import recipe_hash, to_plain
from deepauc.training.recipe import Recipe
from deepauc.training.run.folder import RunFolder, surroundings
from deepauc.training.run.record import Identity


def run_identity(recipe: Recipe, task: Task, seed: int) -> Identity:
    """What tells a run from others."""
    return Identity(recipe=recipe_hash(recipe), data=task.data_hash(), seed=seed)


def claim_folder(
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    run_dir: str | Path,
    device: torch.device,
    notes: Mapping[str, Any] | None = None,
) -> RunFolder:
    """The run's folder, its identity and surroundings written down before anything else happens."""
    _require_validation(recipe, task)
    _require_bags(recipe, task)
    _require_buildable(recipe, task)
    if len(task.source.shape) != 3 and any(stage.augment is not None for stage in recipe.stages):
        views = any(stage.on_views for stage in recipe.stages)
        remedy = "leave out the stage that compares views" if views else "leave it (and tta) out of the recipe"
        raise ValueError(f"augment changes images, and this task has numbers: {remedy}.")
    rows = {part: len(task.labelled(part)) for part in task.parts}
    return RunFolder.claim(
        run_dir,
        run_identity(recipe, task, seed),
        {
            "recipe": to_plain(recipe),
            "task": {
                "name": task.name,
                "kind": task.kind,
                "labels": list(task.label_names),
                "shape": list(task.source.shape),
                "rows": rows,
                "unlabelled_rows": len(task.unlabelled("train")),
            },
            **surroundings(device),
            **(notes or {}),
        },
    )


def _require_buildable(recipe: Recipe, task: Task) -> None:
    """ValueError, before the first stage, where loss and optimizer of a later one do not go together or with the task.

    Such as PESG with cross-entropy, or margins for another number of labels.
    """
    for stage in recipe.stages:
        objective = stage.build_objective(prior=(0.5,) * task.num_labels, num_rows=len(task))
        stage.optimizer.build([nn.Parameter(torch.zeros(1, 1))], objective)


def _require_validation(recipe: Recipe, task: Task) -> None:
    """ValueError where the recipe chooses by validation AUC and no part is there to choose on."""
    asked = {
        "keep='best'": any(stage.keep == "best" for stage in recipe.stages),
        "patience": any(stage.patience is not None for stage in recipe.stages),
        "guard": recipe.guard,
    }
    names = [name for name, wanted in asked.items() if wanted]
    if not names or _has_validation_auc(task):
        return
    goes = "goes" if len(names) == 1 else "go"
    fault = "the task has no validation part: give it one"
    if "validation" in task.parts:
        fault = "no label of the task has positives and negatives in its validation part: give it both"
    raise ValueError(
        f"{' and '.join(names)} {goes} by the validation AUC, and {fault} "
        "(deepauc.data.splits, or a split column), or leave this out of the recipe."
    )


def _has_validation_auc(task: Task) -> bool:
    """Whether a label has both classes there; without, every epoch's AUC is NaN, and the first would be the best."""
    if "validation" not in task.parts:
        return False
    labels = task.labels[task.part("validation")].reshape(-1, task.num_labels)
    return bool(((labels == 0).any(axis=0) & (labels == 1).any(axis=0)).any())


def _require_bags(recipe: Recipe, task: Task) -> None:
    """ValueError where recipe and task do not agree on bags, or a stage does what bags cannot."""
    of_bags = isinstance(task.source, BagInputs)
    if of_bags and not is_of_bags(recipe.model):
        raise ValueError(
            "the rows of this task are bags of images: make the network a BagSpec(image=..., pooling=...)."
        )
    if not of_bags and is_of_bags(recipe.model):
        raise ValueError("a BagSpec scores bags of images, and this task has none: name the bag column.")
    if not of_bags and any(stage.images_per_bag is not None for stage in recipe.stages):
        raise ValueError("images_per_bag is for bags of images, and this task has none: leave it out.")
    if not of_bags:
        return
    if recipe.frozen:
        raise ValueError(
            "frozen computes the features of rows, and these are bags: train all layers (backbone trained)."
        )
    for stage in recipe.stages:
        if stage.on_views:
            raise ValueError(
                "a stage on views compares images, and these rows are bags: leave it out (first stage none)."
            )
        if stage.augment is not None and stage.augment.mixup:
            raise ValueError("mixup mixes images with their labels, but here bags have the labels: leave mixup out.")
