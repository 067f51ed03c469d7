"""`run`: the whole way of `deepauc train`, from settings to a finished run with its report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch

from deepauc.data.table.frame import Table
from deepauc.pipeline.both_inputs import train_both
from deepauc.pipeline.cross_validation import CrossValidation, cross_validate
from deepauc.pipeline.events import Checked, Decided, Estimated, Listener, ignore
from deepauc.pipeline.folding import dealt_folds
from deepauc.pipeline.job import Job, estimated_seconds, fit_minutes, plan, read, recorded_pace
from deepauc.pipeline.outcome import Outcome, conclude
from deepauc.pipeline.stages import stage_lengths
from deepauc.pipeline.train import folder_state, remove_trials, train_run
from deepauc.training.config import Settings
from deepauc.training.engine.distributed import join_ranks
from deepauc.training.prepare.prepare import Rows, has_both, split_rows
from deepauc.training.run.file_lock import sole_user
from deepauc.training.run.folder import RunFolder


def run(
    settings: Settings,
    *,
    out: Path,
    device: torch.device,
    command: str,
    frame: Table | None = None,
    listen: Listener = ignore,
) -> Outcome | CrossValidation | None:
    """Check, plan, tune, train, compare, report. The same call on an unfinished folder resumes, to the bit.

    One split, or cross-validation where the settings ask for folds or the rows are few. frame: a DataFrame in place of
    the settings' table.

    Under torchrun all processes train; the first one alone is heard and writes the report, the others get None.
    Raises TableError, ValueError, TrainingStopped, and KeyboardInterrupt with what has been saved.
    """
    leads, folder = join_ranks(device), RunFolder(out)
    listen = listen if leads else ignore
    state = folder_state(out)
    rows = read(settings, device=device, frame=frame, listen=listen)
    with sole_user(out) if leads and not folder.done else nullcontext():
        dealt = dealt_folds(settings, rows, folder)
        if dealt is not None:
            return cross_validate(
                settings, rows, dealt, out=out, state=state, device=device, command=command, listen=listen
            )
        job = planned(settings, rows, device=device, folder=folder, listen=listen)
        listen(Checked(prepared=job.prepared))
        listen(Decided(decisions=job.decisions))
        if state == "trained" and (seconds := estimated_seconds(job)) is not None:
            listen(Estimated(seconds=seconds))
        if has_both(settings.data):
            return train_both(job, out=out, state=state, command=command, leads=leads, listen=listen)
        trained = train_run(job, out, state=state, command=command, listen=listen)
        if not leads:
            return None
        remove_trials(out)
        return conclude(trained, job.prepared.task, state=state, device=device, listen=listen)


def planned(
    settings: Settings,
    rows: Rows,
    *,
    device: torch.device,
    folder: RunFolder | None = None,
    listen: Listener = ignore,
) -> Job:
    """One split of the rows and a recipe for it. folder: where the run goes; it may know the pace of this machine."""
    job = plan(settings, split_rows(rows, settings), device=device)
    if folder is None:
        return fit_minutes(job, listen=listen)
    stage_lengths(job.recipe, job.prepared.task, seed=settings.seed)  # what a stage refuses is said before the plan
    return fit_minutes(job, pace=recorded_pace(folder), listen=listen)
