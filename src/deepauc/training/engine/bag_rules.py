"""What a recipe for bags may hold: said before a run folder is made."""

from __future__ import annotations

from deepauc.data.bags import BagInputs
from deepauc.data.task import Task
from deepauc.models.build import is_of_bags
from deepauc.training.recipe import Recipe


def require_bags(recipe: Recipe, task: Task) -> None:
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
