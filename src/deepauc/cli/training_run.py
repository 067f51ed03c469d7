"""What `train` and the demo make of the pipeline: its events shown, its exceptions as one line and an exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from deepauc.cli.console import Output, write_file
from deepauc.cli.options import checked_device
from deepauc.cli.table_report import refuse
from deepauc.cli.training_progress import Narrator
from deepauc.cli.training_summary import show_cross_validation, show_outcome
from deepauc.data.table.problems import TableError
from deepauc.pipeline.cross_validation import CrossValidation, plan_folds
from deepauc.pipeline.folding import dealt_folds
from deepauc.pipeline.job import complete_settings, read
from deepauc.pipeline.outcome import Outcome
from deepauc.pipeline.run import planned, run
from deepauc.reporting.examples import write_examples
from deepauc.reporting.figures.thumbnails import ImageTable
from deepauc.training.config import Settings, settings_toml
from deepauc.training.engine.distributed import join_ranks
from deepauc.training.plan.wording import told
from deepauc.training.run.interrupt import TrainingStopped


def run_training(
    settings: Settings, *, out: Path, device: str | None, output: Output, command: str, examples: bool = False
) -> Outcome | CrossValidation:
    """From settings to a finished run folder with its report, all of it told; typer.Exit where that was not to be.

    examples: also examples.html, with images of the settings' table.
    Under torchrun all processes train; the first of them speaks, the others leave after training.
    """
    target = checked_device(device)
    leads = join_ranks(target)
    try:
        with Narrator(output) as narrator:
            outcome = run(settings, out=out, device=target, command=command, listen=narrator)
    except TableError as error:
        if not leads:
            raise typer.Exit(2) from None  # the first process speaks
        refuse(output, error, may_skip=not settings.data.skip_bad)
    except TrainingStopped as error:
        typer.echo(f"deepauc: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as error:
        if not error.args:
            raise
        typer.echo(f"deepauc: {error}.", err=True)
        raise typer.Exit(130) from None
    if outcome is None:
        raise typer.Exit(0)
    page = None
    if examples and isinstance(outcome, CrossValidation) and "test" not in outcome.run.record.task.rows:
        output.say("Caution. There is no test part to take examples from, so examples.html is not written.")
    elif examples and outcome.report is not None and settings.data.table is not None:
        images = ImageTable(path=settings.data.table, allow_outside=settings.data.allow_outside)
        page = write_examples(out, table=images)
    if isinstance(outcome, CrossValidation):
        show_cross_validation(output, outcome, examples=page)
    else:
        show_outcome(output, outcome, examples=page)
    return outcome


def print_settings(settings: Settings, *, device: str | None) -> None:
    """The complete file that these settings come to, reasons as comments, and nothing else on stdout."""
    target = checked_device(device)
    try:
        rows = read(settings, device=target)
    except TableError as error:
        refuse(Output(quiet=True), error, may_skip=not settings.data.skip_bad)
    dealt = dealt_folds(settings, rows)
    if dealt is None:
        job = planned(settings, rows, device=target)
        settings = replace(complete_settings(job), folds=0)
    else:
        job = plan_folds(settings, rows, dealt, device=target).job
        settings = replace(complete_settings(job), folds=dealt.column or len(dealt.folds))
    comments = [
        "All settings of `deepauc train --config THIS_FILE --out DIR`. Paths are relative to the folder you run it in.",
        *(f"{one.name}: {one.value}\n  {one.reason}" for one in map(told, job.decisions)),
    ]
    write_file(settings_toml(settings, comments=comments))
