"""`train`: from a recipe and a task to a run folder, in a loop that reads from top to bottom."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from deepauc.data.bags import BagInputs
from deepauc.data.counter import hash_key
from deepauc.data.task import Task
from deepauc.kernels.dropout import set_step, step_dropouts
from deepauc.models.build import is_of_bags
from deepauc.training.engine.batch import read_bags, read_batch
from deepauc.training.engine.claim import claim_folder, run_identity
from deepauc.training.engine.distributed import all_ranks, join_ranks, own_gpu
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.offers import DualLoss, RenewsReference, TakesTurns, alpha_of
from deepauc.training.engine.rates import share_of
from deepauc.training.engine.step import backward_whole_batch
from deepauc.training.engine.trainer import Epoch, Progress, Trainer
from deepauc.training.recipe import Recipe
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import InterruptFlag, stopped_at
from deepauc.training.run.run import Run, finish_run

Engine = Literal["auto", "plain", "fast"]


def train(
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    run_dir: str | Path,
    device: str | torch.device | None = None,
    engine: Engine = "auto",
    progress: Callable[[Progress], None] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Run:
    """Train by the recipe, and leave a run folder. The same call again goes on where it was stopped, to the bit.

    A finished folder is returned as it is; one that holds another run (other recipe, data or seed) is refused. Under
    torchrun, or inside a torch.distributed process group, the ranks share each batch and end where one would.

    Args:
        recipe: The network and its stages.
        task: The data.
        seed: Random seed.
        run_dir: The run folder.
        device: None takes a GPU when there is one.
        engine: "plain" is a loop; "fast" captures whole steps on a GPU; "auto" is fast on a GPU where the
            recipe allows it.
        progress: Called after every step.
        notes: Further entries of run.json (JSON), no part of the identity.
    """
    if engine == "fast" and is_of_bags(recipe.model):
        raise ValueError("engine='fast' takes batches of one size, and bags differ in theirs: leave engine out.")
    target, folder = chosen_device(device), RunFolder(Path(run_dir))
    join_ranks(target)
    with all_ranks() as ranks, made_current(target):
        if not ranks.alone:
            if engine == "fast":
                raise ValueError(
                    "engine='fast' captures the steps of one process: with several ranks leave engine out."
                )
            ranks.require_same("recipe, data or seed", json.dumps(asdict(run_identity(recipe, task, seed))))
            notes = {"ranks": ranks.size, **(notes or {})}
        claim = partial(claim_folder, recipe, task, seed=seed, run_dir=run_dir, device=target, notes=notes)
        if ranks.by_leader(lambda: claim().done):
            return Run(folder.path)
        devices = [target] if target.type == "cuda" else []
        with torch.random.fork_rng(devices), InterruptFlag() as interrupt, determinism(wanted=recipe.deterministic):
            trainer = Trainer(recipe, task, seed, folder, target, interrupt, progress, ranks=ranks)
            possible = ranks.alone and target.type == "cuda" and can_be_fast(recipe)
            fast = FastEngine([trainer]) if engine == "fast" or (engine == "auto" and possible) else None
            for epoch in trainer.epochs():
                if fast is not None:
                    fast.run_epoch([epoch])
                else:
                    run_epoch(trainer, epoch)
            return trainer.finish(lambda: finish_run(trainer)) or Run(folder.path)


def run_epoch(trainer: Trainer, epoch: Epoch) -> None:
    """The plain engine: step t reads row t of the epoch's tables."""
    stage, stream, ranks = epoch.stage, trainer.stream, trainer.ranks
    table = stream.table(epoch.number)
    drawn = stream.changes(epoch.number)
    changes = None if drawn is None else drawn.to(trainer.device)
    trainer.trained.train()
    dropouts = step_dropouts(trainer.trained)
    of_bags = isinstance(trainer.task.source, BagInputs)
    in_turn = trainer.optimizer if isinstance(trainer.optimizer, TakesTurns) else None
    for position in range(epoch.start, epoch.stop):
        rows = table[position]
        factor = stage.schedule.factor(trainer.iteration, total=trainer.total, per_epoch=stream.per_epoch)
        for group in trainer.optimizer.param_groups:
            group["lr"] = stage.optimizer.lr * factor * share_of(group, frozen=epoch.number < stage.frozen_epochs)
        renewing = trainer.optimizer if isinstance(trainer.optimizer, RenewsReference) else None
        if renewing is not None and stage.schedule.renews(trainer.iteration, per_epoch=stream.per_epoch):
            renewing.new_stage(lr_factor=1.0)
        torch.manual_seed(hash_key(stream.seed, epoch.number, position, *ranks.own_seed) >> 1)  # nn.Dropout, if any
        set_step(dropouts, stream.step_key(epoch.number, position))
        ranks.ask_stop(trainer.interrupt.raised)
        if of_bags:
            batch = read_bags(trainer, stage, rows, key=stream.bag_key(epoch.number, position))
        else:
            batch = read_batch(trainer, stage, rows, None if changes is None else changes[position])

        trainer.optimizer.zero_grad(set_to_none=True)
        with stopped_at(trainer.iteration, rows, trainer.folder, trainer.trained, batch.inputs, views=stage.views):
            loss, scores = backward_whole_batch(trainer.trained, batch, in_turn or trainer.objective, stage, ranks)
        ranks.sum_gradients(trainer.trained.parameters(), check=position == epoch.start)
        if stage.gradient_clip is not None:
            nn.utils.clip_grad_norm_(trainer.trained.parameters(), stage.gradient_clip)
        trainer.optimizer.step()
        if trainer.average is not None:
            trainer.average.update(trainer.trained)
        trainer.iteration += 1

        trainer.tally.add(loss, scores, batch.labels, trainer.objective)
        if trainer.recipe.alpha_curve and isinstance(trainer.objective, DualLoss):
            trainer.alphas.append(alpha_of(trainer.objective).clone())
        trainer.after_step(epoch, position)


def can_be_fast(recipe: Recipe) -> bool:
    """Whether the fast engine takes all stages: batches whole, no deterministic algorithms asked for, no bags.

    A last layer alone is trained in seconds anyway.
    """
    plain = recipe.deterministic or recipe.frozen or is_of_bags(recipe.model)
    return not plain and all(stage.accumulate == 1 for stage in recipe.stages)


def chosen_device(device: str | torch.device | None) -> torch.device:
    """The given one, or a GPU when there is one; under torchrun each process has its own."""
    return own_gpu(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """Kernels of Triton's are launched on the current GPU, which need not be the one asked for."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def determinism(*, wanted: bool) -> Iterator[None]:
    """torch's deterministic algorithms inside the block, where asked for."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield  # to ask for what is so already would import torch's compiler: seconds
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS has no deterministic way without it
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
