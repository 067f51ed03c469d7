"""What `train` shows while it works: a bar with the running validation AUC and the time left, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deepauc.cli.console import Output, progress_bar
from deepauc.data.task import Task
from deepauc.training.engine.stream import Stream
from deepauc.training.engine.trainer import Progress
from deepauc.training.recipe import Recipe

LINES_A_STAGE = 10  # where there is no terminal
ROOMY = 80  # columns from which on whole words and a bar stand beside the time left


@dataclass(frozen=True, kw_only=True)
class StageLength:
    """A stage in steps. a_step: images or rows that pass the network in one, both views counted."""

    name: str
    steps: int
    an_epoch: int
    a_step: int


def stage_lengths(recipe: Recipe, task: Task, *, seed: int) -> list[StageLength]:
    """How long each stage of the recipe is on this task."""
    found = []
    for number, stage in enumerate(recipe.stages):
        stream = Stream(task, stage, seed=seed, number=number)
        found.append(
            StageLength(
                name=type(stage.objective).__name__,
                steps=stage.iterations or (stage.epochs or 0) * stream.per_epoch,
                an_epoch=stream.per_epoch,
                a_step=stream.batch_size * stage.views,
            )
        )
    return found


class TrainingProgress:
    """Called after every step; speaks at the end of epochs, or draws a bar over all stages."""

    def __init__(self, output: Output, lengths: Sequence[StageLength], *, bar: Any) -> None:
        self.output, self.lengths = output, lengths
        self._bar, self._bar_task = bar, None
        self._total = self._passed(len(lengths))
        self._began: float | None = None
        self._first = 0
        self._last: Progress | None = None
        if bar is not None:
            self._bar_task = bar.add_task("", total=self._total, said="")

    def __call__(self, step: Progress) -> None:
        done = self._passed(step.stage) + step.iteration * self.lengths[step.stage].a_step
        if self._began is None:  # the first step of this call: a resumed run does not start at 0
            self._began, self._first = time.monotonic(), done
        if self._bar is not None:
            roomy = self._bar.console.width >= ROOMY
            where = self._where(step) if roomy else f"stage {step.stage + 1}/{step.stages}"
            what = "validation AUC" if roomy else "AUC"
            auc = "" if step.validation_auc is None else f"{what} {step.validation_auc:.3f}"
            self._bar.update(self._bar_task, completed=done, description=where, said=auc)
        elif self._last is not None and (step.stage, step.epoch) != (self._last.stage, self._last.epoch):
            self._line(self._last, step.validation_auc, done)
        self._last = step

    def finish(self, validation_auc: float | None) -> None:
        """After the last epoch, whose AUC no step reports."""
        if self._bar is None and self._last is not None:
            self._line(self._last, validation_auc, self._total)

    def _line(self, step: Progress, validation_auc: float | None, done: int) -> None:
        length = self.lengths[step.stage]
        epochs = max(1, -(-length.steps // length.an_epoch))
        every = max(1, -(-epochs // LINES_A_STAGE))
        last = step.epoch + 1 == epochs
        if (step.epoch + 1) % every and not last:
            return
        auc = "" if validation_auc is None else f", validation AUC {validation_auc:.3f}"
        self.output.say(f"{self._where(step)}, epoch {step.epoch + 1} of {epochs}{auc}{self._left(done)}")

    def _left(self, done: int) -> str:
        if self._began is None or done <= self._first or done >= self._total:
            return ""
        an_image = (time.monotonic() - self._began) / (done - self._first)
        return f", about {_duration(an_image * (self._total - done))} left"

    def _passed(self, stages: int) -> int:
        """Images of so many stages: a step of the first one may hold many times those of the next."""
        return sum(length.steps * length.a_step for length in self.lengths[:stages])

    def _where(self, step: Progress) -> str:
        return f"stage {step.stage + 1} of {step.stages} ({self.lengths[step.stage].name})"


@contextmanager
def training_progress(output: Output, recipe: Recipe, task: Task, *, seed: int) -> Iterator[TrainingProgress]:
    """A bar in a terminal, plain lines elsewhere, nothing where quiet or JSON was asked for."""
    lengths = stage_lengths(recipe, task, seed=seed)
    if output.quiet or output.as_json or not sys.stdout.isatty():
        yield TrainingProgress(output, lengths, bar=None)
        return
    with progress_bar() as bar:
        yield TrainingProgress(output, lengths, bar=bar)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
