"""First stages kept by what they depend on: trained once, shared by all second stages of the same training set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from deepauc.data.splits import trainable_rows
from deepauc.data.task import SelectedInputs, Task
from deepauc.training.engine.distributed import all_ranks, join_ranks
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import Engine, chosen_device, train
from deepauc.training.engine.stream import Stream
from deepauc.training.engine.trainer import Progress
from deepauc.training.plain import to_plain
from deepauc.training.recipe import Recipe, Stage, ViewObjectiveSpec
from deepauc.training.run.file_lock import lock
from deepauc.training.run.folder import RunFolder

_CHUNK = 1024


def first_stage(
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    cache_dir: str | Path,
    device: str | torch.device | None = None,
    engine: Engine = "auto",
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """The folder of the recipe's stages on views, which `train` makes unless it is in `cache_dir`.

    Its name is a hash of network, stages, seed, the pixels seen in their order and which of them have a label; the
    labels themselves enter where a stage uses them, validation and test never. Several processes may ask at once: one
    trains, the others wait; a killed one is resumed by the next. The folder appears by a rename, finished.
    `after_first_stage` starts the rest of the recipe from it.

    Args:
        cache_dir: Where such folders are kept.
    """
    wanted = _Wanted.of(recipe, task, seed=seed, cache_dir=cache_dir)
    join_ranks(chosen_device(device))
    with all_ranks() as ranks:
        if ranks.told(RunFolder(wanted.path).done):
            return wanted.path
        with _locked([wanted] if ranks.leads else []):  # for all of them: they train it together
            if not ranks.told(RunFolder(wanted.path).done):
                options = {"device": device, "engine": engine, "progress": progress}
                train(wanted.recipe, wanted.task, seed=seed, run_dir=wanted.unfinished, **options)  # type: ignore[arg-type]
                ranks.wait()  # until none looks at the folder under its old name
                if ranks.leads:
                    wanted.unfinished.rename(wanted.path)
                ranks.wait()
    return wanted.path


def first_stages(jobs: Sequence[Job], *, cache_dir: str | Path, device: str | torch.device | None = None) -> list[Path]:
    """As `first_stage`, of each job; missing ones are trained side by side (`train_together`), each once."""
    wanted = [_Wanted.of(job.recipe, job.task, seed=job.seed, cache_dir=cache_dir) for job in jobs]
    missing = {one.path: one for one in wanted if not RunFolder(one.path).done}
    with _locked(missing.values()):
        by_steps: dict[tuple[int, ...], list[_Wanted]] = {}  # what can be packed: the same steps in every epoch
        for one in missing.values():
            if not RunFolder(one.path).done:
                by_steps.setdefault(one.steps(), []).append(one)
        for together in by_steps.values():
            alone = [Job(recipe=w.recipe, task=w.task, seed=w.seed, run_dir=w.unfinished) for w in together]
            train_together(alone, device=device)
            for one in together:
                one.unfinished.rename(one.path)
    return [one.path for one in wanted]


def after_first_stage(recipe: Recipe, folder: str | Path) -> Recipe:
    """What is left of the recipe when its leading stages on views are done: the next one starts from `folder`.

    Args:
        recipe: The whole recipe.
        folder: What `first_stage` returned.
    """
    count = len(_leading(recipe))
    if count == len(recipe.stages):
        raise ValueError("nothing comes after the stages on views: add a stage that trains the classifier.")
    onwards = replace(recipe.stages[count], start_from=str(folder))
    return replace(recipe, stages=(onwards, *recipe.stages[count + 1 :]))


def first_stage_recipe(recipe: Recipe) -> Recipe:
    """The stages on views that the recipe begins with, as a recipe of their own: nothing else of it bears on them."""
    stages = _leading(recipe)
    if not stages:
        raise ValueError("the recipe does not begin with a stage on views (Contrastive, ...): nothing to share.")
    return Recipe(
        model=recipe.model,
        stages=stages,
        deterministic=recipe.deterministic,
        input_mean=recipe.input_mean,
        input_std=recipe.input_std,
    )


def seen_task(task: Task, stages: Sequence[Stage]) -> Task:
    """A task of what these stages on views may see, and of nothing else: training rows, labels where they are used.

    Removed positives, validation and test rows, and unlabelled rows of their patients are not in it at all.
    """
    rows = trainable_rows(task)
    used = any(stage.positives_per_batch is not None or _uses_labels(stage) for stage in stages)
    labels = task.labels[rows].copy()
    if not used:
        labels[~np.isin(rows, task.unlabelled("train"))] = 0  # all alike; rows without one are still to be counted
    return Task(
        name=f"{task.name}, images of the training part",
        kind=task.kind,
        source=_SeenInputs(task.source, rows),
        labels=labels,
        label_names=task.label_names if used else tuple(str(number) for number in range(task.num_labels)),
        parts={"train": np.arange(len(rows))},
    )


class _SeenInputs(SelectedInputs):
    """Some rows of other inputs, known by their content alone: whatever else the source holds does not matter."""

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256(f"{np.dtype(self.dtype).name}{len(self)}{self.shape}".encode())
        for start in range(0, len(self), _CHUNK):
            some = self(np.arange(start, min(start + _CHUNK, len(self))))
            sha.update(np.ascontiguousarray(some, dtype=some.dtype.newbyteorder("<")).tobytes())
        return sha.hexdigest()

    def digest(self) -> str:
        return self._digest


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A first stage: its own recipe and task, and where it is kept."""

    recipe: Recipe
    task: Task
    seed: int
    path: Path

    @classmethod
    def of(cls, recipe: Recipe, task: Task, *, seed: int, cache_dir: str | Path) -> _Wanted:
        alone = first_stage_recipe(recipe)
        seen = seen_task(task, alone.stages)
        # Without defaults, as in `recipe_hash`: an option that comes later leaves what is kept its name.
        identity = json.dumps([to_plain(alone, defaults=False), seen.data_hash(), seed], sort_keys=True)
        name = hashlib.sha256(identity.encode()).hexdigest()[:24]
        return cls(recipe=alone, task=seen, seed=seed, path=Path(cache_dir) / name)

    @property
    def unfinished(self) -> Path:
        return self.path.with_name(f".{self.path.name}.part")

    @property
    def lock(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    def steps(self) -> tuple[int, ...]:
        """Of an epoch, stage by stage."""
        stages = enumerate(self.recipe.stages)
        return tuple(Stream(self.task, stage, seed=self.seed, number=number).per_epoch for number, stage in stages)


def _leading(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages on views that the recipe begins with."""
    count = next((i for i, stage in enumerate(recipe.stages) if not stage.on_views), len(recipe.stages))
    return recipe.stages[:count]


def _uses_labels(stage: Stage) -> bool:
    return isinstance(stage.objective, ViewObjectiveSpec) and stage.objective.uses_labels


@contextmanager
def _locked(wanted: Collection[_Wanted]) -> Iterator[None]:
    """Nobody else trains these inside the block. The lock goes with the process, however that ends."""
    with ExitStack() as stack:
        for path in sorted(one.lock for one in wanted):  # in one order for all: no two wait for each other
            path.parent.mkdir(parents=True, exist_ok=True)
            lock(stack.enter_context(path.open("ab")))
        yield
