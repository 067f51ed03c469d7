"""Several runs of one shape on one GPU, side by side in one graph: a grid of margins, seeds, losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from deepauc.data.task import Task
from deepauc.training.engine.claim import claim_folder
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.loop import can_be_fast, chosen_device, made_current
from deepauc.training.engine.trainer import Epoch, Trainer
from deepauc.training.recipe import Recipe
from deepauc.training.run.interrupt import Interrupted, InterruptFlag
from deepauc.training.run.run import Run, finish_run

SAVE_SECONDS = 300.0  # between checkpoints: the device waits while all runs of a pack are written down


@dataclass(frozen=True, kw_only=True)
class Job:
    """The arguments of one `train`. results_only: no network is kept, as a tuning run needs none."""

    recipe: Recipe
    task: Task
    seed: int
    run_dir: str | Path
    results_only: bool = False


def train_together(
    jobs: Sequence[Job], *, device: str | torch.device | None = None, compiled: bool = True
) -> list[Run]:
    """What `train` would leave for each job, trained side by side. Finished folders are skipped, others resumed.

    The jobs need the same number of steps in an epoch (a grid over one training set, or its seeds); the losses,
    margins, learning rates and lengths may differ. On Ctrl-C every one of them is saved, also while copies are scored.
    """
    target = chosen_device(device)
    folders = [claim_folder(job.recipe, job.task, seed=job.seed, run_dir=job.run_dir, device=target) for job in jobs]
    devices = [target] if target.type == "cuda" else []
    with made_current(target), torch.random.fork_rng(devices), InterruptFlag() as interrupt:
        active: list[tuple[Trainer, bool]] = []
        for job, folder in zip(jobs, folders, strict=True):
            if not folder.done:
                if not can_be_fast(job.recipe):
                    raise ValueError(f"{folder.path}: this recipe needs the plain engine; train it on its own.")
                run = (job.recipe, job.task, job.seed, folder, target, interrupt, None)
                active.append((Trainer(*run, save_seconds=SAVE_SECONDS), job.results_only))
        _run_all(active, compiled=compiled)
    return [Run(folder.path) for folder in folders]


def _run_all(trainers: list[tuple[Trainer, bool]], *, compiled: bool) -> None:
    going = [(trainer, trainer.epochs(), results_only) for trainer, results_only in trainers]
    engine: FastEngine | None = None
    while going:
        asked: list[tuple[Trainer, Epoch]] = []
        stopped: Interrupted | None = None
        for trainer, epochs, results_only in list(going):
            with _named(trainer):
                try:
                    epoch = next(epochs, None)
                    if epoch is None:
                        _finish(trainer, results_only=results_only)  # one that ends early leaves the others to go on
                except Interrupted as interrupt:
                    stopped = interrupt  # the flag stays up: whose turn is to come saves itself
                    continue
                if epoch is not None:
                    asked.append((trainer, epoch))
                    continue
            going = [other for other in going if other[0] is not trainer]
            engine = None
        if stopped is not None:
            for trainer, _ in asked:  # their turn came before the interrupt
                trainer.save()
            raise stopped
        if asked:
            engine = engine or FastEngine([trainer for trainer, _ in asked], compiled=compiled)
            engine.run_epoch([epoch for _, epoch in asked])


def _finish(trainer: Trainer, *, results_only: bool) -> None:
    """Its scores and results. Scores of copies may take long: who asks to stop is heard, with all training saved."""
    if trainer.recipe.copies is None:
        finish_run(trainer, results_only=results_only)
        return
    trainer.save()  # the last checkpoint may be minutes old
    trainer.finish(lambda: finish_run(trainer, results_only=results_only))


@contextmanager
def _named(trainer: Trainer) -> Iterator[None]:
    """What goes wrong in one run of many says which: `run_dir` on the exception."""
    try:
        yield
    except Exception as error:
        error.run_dir = trainer.folder.path  # type: ignore[attr-defined]
        raise
