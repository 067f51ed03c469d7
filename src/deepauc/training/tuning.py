"""Margin and gamma by validation AUC alone: the stages before the last one run once, the last one for each pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from deepauc.data.task import Task
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.optim.pesg import PESGSpec
from deepauc.training.engine.loop import train
from deepauc.training.engine.trainer import Progress
from deepauc.training.recipe import Recipe
from deepauc.training.scoring import mean_auc

# The paper's grids (D4), in the order in which they are tried: margins, then gammas, then both.
MARGINS = (1.0, 0.5, 0.3, 0.7, 0.1)
GAMMAS = (1 / 500, 1 / 100, 1 / 1000, 1 / 300, 1 / 700)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A pair that was tried, and the mean validation AUC over labels that it gave."""

    margin: float
    gamma: float
    validation_auc: float


def pairs_to_try(recipe: Recipe, count: int) -> tuple[tuple[float, float], ...]:
    """`count` pairs of margin and gamma: the recipe's own first, so that it is among those compared."""
    objective, optimizer = _margin_and_gamma(recipe)
    own = [] if isinstance(objective.margin, tuple) else [(objective.margin, optimizer.gamma)]
    grid = [*((m, GAMMAS[0]) for m in MARGINS), *((MARGINS[0], g) for g in GAMMAS)]
    pairs = tuple(dict.fromkeys([*own, *grid, *((m, g) for g in GAMMAS for m in MARGINS)]))
    if not 1 <= count <= len(pairs):
        raise ValueError(f"there are 1 to {len(pairs)} pairs of margin and gamma to try, not {count}.")
    return pairs[:count]


def with_pair(recipe: Recipe, *, margin: float, gamma: float) -> Recipe:
    """The recipe with another margin and gamma in its last stage."""
    objective, optimizer = _margin_and_gamma(recipe)
    last = replace(
        recipe.stages[-1], objective=replace(objective, margin=margin), optimizer=replace(optimizer, gamma=gamma)
    )
    return replace(recipe, stages=(*recipe.stages[:-1], last))


def tune(
    recipe: Recipe,
    task: Task,
    *,
    pairs: Sequence[tuple[float, float]],
    seed: int,
    folder: Path,
    device: str | torch.device | None = None,
    progress: Callable[[int, Progress], None] | None = None,
) -> tuple[Trial, ...]:
    """Train the last stage for each (margin, gamma). The same call again goes on where it was stopped.

    With the random numbers it has in the whole recipe: on a CPU a trial ends with the weights that training with its
    pair ends with.

    progress: called with the number of the run (0 for the stages before, 1 for the first pair) and its progress.
    """
    if "validation" not in task.parts:
        raise ValueError("tuning needs a validation part: it is what margin and gamma are chosen on.")
    task = task.with_parts({part: rows for part, rows in task.parts.items() if part != "test"})
    start = None

    def told(number: int) -> Callable[[Progress], None] | None:
        return None if progress is None else lambda step: progress(number, step)

    if len(recipe.stages) > 1:
        before = replace(recipe, stages=recipe.stages[:-1], guard=False, tta=0)
        start = train(before, task, seed=seed, run_dir=folder / "before", device=device, progress=told(0)).path
    trials = []
    for number, (margin, gamma) in enumerate(pairs, start=1):
        last = replace(with_pair(recipe, margin=margin, gamma=gamma).stages[-1], place=len(recipe.stages) - 1)
        if start is not None:
            last = replace(last, start_from=str(start.resolve()))
        alone = replace(recipe, stages=(last,), guard=False)
        run = train(alone, task, seed=seed, run_dir=folder / str(number), device=device, progress=told(number))
        trials.append(Trial(margin=margin, gamma=gamma, validation_auc=mean_auc(run.auc("validation"))))
    return tuple(trials)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The highest validation AUC; of equals the earlier one."""
    known = [trial for trial in trials if not math.isnan(trial.validation_auc)]
    if not known:
        raise ValueError("no label has both classes in validation: there is nothing to tune on.")
    return max(known, key=lambda trial: trial.validation_auc)


def _margin_and_gamma(recipe: Recipe) -> tuple[AUCMargin, PESGSpec]:
    objective, optimizer = recipe.stages[-1].objective, recipe.stages[-1].optimizer
    if not isinstance(objective, AUCMargin) or not isinstance(optimizer, PESGSpec):
        raise ValueError("only a last stage of AUCMargin with PESGSpec has a margin and a gamma to tune.")
    return objective, optimizer
