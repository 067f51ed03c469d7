"""What `train` shows while it works: a bar with the running validation AUC and the time left, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from deepauc.cli.console import Output, printable, progress_bar
from deepauc.cli.training_summary import show_data, show_decisions
from deepauc.names import counted
from deepauc.pipeline import events
from deepauc.pipeline.stages import StageLength
from deepauc.training.engine.trainer import Progress

LINES_A_STAGE = 10  # where there is no terminal
ROOMY = 80  # columns from which on whole words and a bar stand beside the time left


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
        done = self._passed(step.stage) + step.iteration * self.lengths[step.stage].rows_per_step
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
        epochs = max(1, -(-length.steps // length.steps_per_epoch))
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
        return f", about {duration_text(an_image * (self._total - done))} left"

    def _passed(self, stages: int) -> int:
        """Images of so many stages: a step of the first one may hold many times those of the next."""
        return sum(length.steps * length.rows_per_step for length in self.lengths[:stages])

    def _where(self, step: Progress) -> str:
        return f"stage {step.stage + 1} of {step.stages} ({self.lengths[step.stage].name})"


class Narrator:
    """Shows the pipeline's events: a bar in a terminal, plain lines elsewhere, nothing where quiet or JSON is asked."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._bars = ExitStack()  # of what is going on now
        self._advance: Callable[[int, int], None] | None = None
        self._training: TrainingProgress | None = None

    def __enter__(self) -> Narrator:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.close()

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Reading():
                self._counted(f"Reading {event.source}", event.done, event.total)
            case events.ComputingFeatures():
                self._counted("Computing features of each image", event.done, event.total)
            case events.Tuning():
                self._counted(f"Tuning: {counted(event.pairs, 'setting')}", event.done, event.total)
                if event.finished is not None:
                    self.output.say(f"tuning, {_tried(event.finished)}: done")
            case events.Stepped():
                if self._training is not None:
                    self._training(event.step)
            case _:
                self._between(event)

    def _between(self, event: events.Event) -> None:
        """All that is not one of many."""
        if isinstance(event, events.TrainingEnded) and self._training is not None:
            self._training.finish(event.validation_auc)
        self._bars.close()
        self._advance = self._training = None
        match event:
            case events.Checked():
                show_data(self.output, event.prepared)
            case events.Timing():
                self.output.say("Measuring the speed of a few steps")
            case events.Decided():
                show_decisions(self.output, event.decisions)
            case events.AlreadyFinished():
                self.output.say(f"The run in {event.out} is finished: nothing was changed.")
            case events.Resumed():
                self.output.say(f"Resuming the unfinished run in {event.out}.")
            case events.Estimated():
                self.output.say(f"Training takes about {duration_text(event.seconds)} in all.")
            case events.FoldBegan():
                named = "" if event.name == str(event.number) else f" ({printable(event.name)})"
                self.output.say(f"{event}{named}")
            case events.TrainingBegan():
                drawn = not (self.output.quiet or self.output.as_json) and sys.stdout.isatty()
                bar = self._bars.enter_context(progress_bar()) if drawn else None
                self._training = TrainingProgress(self.output, event.lengths, bar=bar)
            case events.Scoring():
                self.output.say("Scoring all rows")
            case events.WritingReport():
                self.output.say("Writing the report")

    def _counted(self, title: str, done: int, total: int | None) -> None:
        if self._advance is None:
            self._advance = self._bars.enter_context(self.output.progress(title))
        if total is not None:
            self._advance(done, total)


def _tried(finished: tuple[float, float] | str) -> str:
    return finished if isinstance(finished, str) else "margin {:g}, gamma {:.3g}".format(*finished)


def duration_text(seconds: float) -> str:
    """`40 s` or `3 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
