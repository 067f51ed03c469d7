"""How long each stage of a recipe is on a task: what a progress bar and the cost of tuning are counted in."""

from __future__ import annotations

from dataclasses import dataclass

from deepauc.data.task import Task
from deepauc.names import objective_title
from deepauc.training.engine.stream import Stream
from deepauc.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class StageLength:
    """A stage in steps. rows_per_step: images or rows that pass the network in one step, both views counted."""

    name: str
    steps: int
    steps_per_epoch: int
    rows_per_step: int


def stage_lengths(recipe: Recipe, task: Task, *, seed: int) -> tuple[StageLength, ...]:
    """By stage; a ValueError where a stage cannot be trained on this task, such as a quota that it cannot fill."""
    found = []
    for number, stage in enumerate(recipe.stages):
        stream = Stream(task, stage, seed=seed, number=number)
        found.append(
            StageLength(
                name=objective_title(type(stage.objective).__name__),
                steps=stage.iterations or (stage.epochs or 0) * stream.per_epoch,
                steps_per_epoch=stream.per_epoch,
                rows_per_step=stream.batch_size * stage.views,
            )
        )
    return tuple(found)
