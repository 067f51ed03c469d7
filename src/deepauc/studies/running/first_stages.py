"""First stages of a study's runs: kept under RUNS/first-stages, trained once for all runs of one training set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from deepauc.training.engine.fast.packing import Job
from deepauc.training.first_stage import after_first_stage, first_stage, first_stage_recipe, first_stages
from deepauc.training.plain import recipe_hash
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.checkpoint import load_state
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import TrainingStopped
from deepauc.training.run.record import RunRecord
from deepauc.training.run.run import Run

FOLDER = "first-stages"
SHARE_FILE = ".seconds"  # of the device, this first stage's share of the pack it was trained in


def own_stages(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages a run trains itself: those on views that come first are shared; all, where nothing follows them."""
    supervised = [number for number, stage in enumerate(recipe.stages) if not stage.on_views]
    return recipe.stages[supervised[0] :] if supervised else recipe.stages


def shares_first_stage(recipe: Recipe) -> bool:
    """Whether the recipe begins with stages on views, and goes on after them."""
    return len(own_stages(recipe)) < len(recipe.stages)


@dataclass
class FirstStages:
    """Those in one folder of runs. Which one a recipe and a task need is worked out once: it reads all pixels."""

    runs: Path
    _known: dict[str, Path] = field(default_factory=dict)
    # Which kind of error, and why: the same again would end the same.
    _failed: dict[str, tuple[type[Exception], str]] = field(default_factory=dict)

    def onwards(self, jobs: Sequence[Job], device: torch.device, *, side_by_side: bool) -> list[Job]:
        """The jobs with what is left of their recipes; first stages that are missing are trained before.

        Where one fails, the exception names a job that needs it (`run_dir`), so that the others can go on without.
        """
        wanted = {_key(job): job for job in jobs if shares_first_stage(job.recipe)}
        for key in wanted.keys() & self._failed.keys():
            kind, message = self._failed[key]
            raise _of(wanted[key], kind(message))
        missing = {key: job for key, job in wanted.items() if not self._is_there(key)}
        if missing:
            began, spent = time.time(), self._spent()
            try:
                paths = self._train(list(missing.values()), device, side_by_side=side_by_side)
            except (ValueError, TrainingStopped) as error:
                named = (key for key, job in missing.items() if _began(job, error))
                failed = next(named, None) or self._first_to_fail(missing, device)
                if failed is None:
                    raise
                self._failed[failed] = type(error), f"first stage: {error}"
                raise _of(missing[failed], error) from None
            self._known |= dict(zip(missing, paths, strict=True))
            new = [path for path in set(paths) if (path / "DONE").stat().st_mtime >= began]  # others were there
            resumed = [path for path in new if path.name in spent]
            for path in new:
                before = spent[path.name] / len(resumed) if path in resumed else 0.0
                (path / SHARE_FILE).write_text(f"{(time.time() - began) / len(new) + before:.3f}")
        return [
            replace(job, recipe=after_first_stage(job.recipe, self._known[_key(job)]))
            if shares_first_stage(job.recipe)
            else job
            for job in jobs
        ]

    def _train(self, jobs: Sequence[Job], device: torch.device, *, side_by_side: bool) -> list[Path]:
        folder = self.runs / FOLDER
        if side_by_side:
            return first_stages(jobs, cache_dir=folder, device=device)
        return [first_stage(job.recipe, job.task, seed=job.seed, cache_dir=folder, device=device) for job in jobs]

    def _spent(self) -> dict[str, float]:
        """Seconds of unfinished first stages by name: wall time of the packs that earlier calls have stopped."""
        found = {}
        for path in (self.runs / FOLDER).glob(".*.part/checkpoint.safetensors"):
            with suppress(ValueError):  # a damaged one says so where it is resumed
                found[path.parent.name[1:].removesuffix(".part")] = float(load_state(path)["seconds"])
        return found

    def _first_to_fail(self, missing: dict[str, Job], device: torch.device) -> str | None:
        """Where an error of many does not say whose it is: one after the other until one fails."""
        for key, job in missing.items():
            try:
                self._train([job], device, side_by_side=False)
            except (ValueError, TrainingStopped):
                return key
        return None

    def _is_there(self, key: str) -> bool:
        return key in self._known and RunFolder(self._known[key]).done


def begun_with(recipe: Recipe, record: RunRecord, runs: Path) -> Recipe | None:
    """The recipe as the run folder with this run.json has it, the place of its first stage included; None: elsewhere.

    The place is part of a folder's identity, but not of a study's records: `run_id` goes by the recipe as declared.
    """
    if not shares_first_stage(recipe):
        return recipe
    begun = record.stages[0].start_from if record.stages else None
    if begun is None or Path(begun).parent != runs / FOLDER:
        return None
    return after_first_stage(recipe, begun)


def told_of(run: Run) -> dict[str, Any] | None:
    """What a record says of the first stage that a run started from: its name, epochs, steps and device seconds."""
    begun = run.record.stages[0].start_from
    if begun is None or Path(begun).parent.name != FOLDER or not RunFolder(Path(begun)).done:
        return None
    first = Run(Path(begun))
    last = first.history[-1]
    share = first.path / SHARE_FILE
    seconds = float(share.read_text()) if share.exists() else first.record.results.seconds or 0.0
    return {
        "name": first.path.name,
        "rows": int(last["rows"]),
        "steps": int(last["iteration"]),
        "loss": float(f"{float(last['loss']):.5g}"),
        "seconds": round(seconds, 3),
    }


def _of(job: Job, error: Exception) -> Exception:
    error.run_dir = job.run_dir  # type: ignore[attr-defined]
    return error


def _began(job: Job, error: Exception) -> bool:
    """Whether the folder that an error of packed training names is that of this job's first stage."""
    named = getattr(error, "run_dir", None)
    if named is None:
        return False
    identity = RunFolder(Path(named)).record().identity
    first = recipe_hash(first_stage_recipe(job.recipe))
    return identity.seed == job.seed and identity.recipe == first


def _key(job: Job) -> str:
    first = recipe_hash(first_stage_recipe(job.recipe))
    return f"{first} {job.task.data_hash()} {job.seed}"
