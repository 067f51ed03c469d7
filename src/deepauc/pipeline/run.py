"""`run`: the whole way of `deepauc train`, from settings to a finished run with its report."""

from __future__ import annotations

from pathlib import Path

import torch

from deepauc.pipeline.events import Checked, Decided, Listener, ignore
from deepauc.pipeline.job import Job, check, fit_minutes, plan, recorded_pace
from deepauc.pipeline.outcome import Outcome, conclude
from deepauc.pipeline.stages import stage_lengths
from deepauc.pipeline.train import folder_state, remove_trials, train_run
from deepauc.training.config import Settings
from deepauc.training.engine.distributed import join_ranks
from deepauc.training.run.folder import RunFolder


def run(
    settings: Settings, *, out: Path, device: torch.device, command: str, listen: Listener = ignore
) -> Outcome | None:
    """Check, plan, tune, train, compare, report. The same call on an unfinished folder resumes, to the bit.

    Under torchrun all processes train; the first one alone is heard and writes the report, the others get None.
    Raises TableError, ValueError, TrainingStopped, and KeyboardInterrupt with what has been saved.
    """
    leads = join_ranks(device)
    listen = listen if leads else ignore
    state = folder_state(out)
    job = planned(settings, device=device, folder=RunFolder(out), listen=listen)
    listen(Checked(prepared=job.prepared))
    listen(Decided(decisions=job.decisions))
    trained = train_run(job, out, state=state, command=command, listen=listen)
    if not leads:
        return None
    remove_trials(out)
    return conclude(trained, job.prepared.task, state=state, device=device, listen=listen)


def planned(
    settings: Settings, *, device: torch.device, folder: RunFolder | None = None, listen: Listener = ignore
) -> Job:
    """The data checked and a recipe for them. folder: where the run goes; it may know the pace of this machine."""
    job = plan(settings, check(settings, device=device, listen=listen), device=device)
    if folder is None:
        return fit_minutes(job, listen=listen)
    stage_lengths(job.recipe, job.prepared.task, seed=settings.seed)  # what a stage refuses is said before the plan
    return fit_minutes(job, pace=recorded_pace(folder), listen=listen)
