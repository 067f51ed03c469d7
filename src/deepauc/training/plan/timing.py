"""How long a recipe takes on this machine, from a few timed steps, and the longest form of it that ends in time.

Only asked for (`minutes` of a plan): without it a plan never depends on a measured time. What was measured goes into
run.json, and a run that goes on is planned from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import BagInputs
from deepauc.data.task import Task
from deepauc.training.engine.fast.fast_step import FastEngine
from deepauc.training.engine.loop import can_be_fast, run_epoch
from deepauc.training.engine.trainer import Epoch, Trainer
from deepauc.training.plan.decision import Decision, Fact, replaced
from deepauc.training.plan.first_stage import LEAST_EPOCHS, no_first_stage, without_first_stage
from deepauc.training.plan.length import LEAST_EPOCHS as LEAST_AUC_EPOCHS
from deepauc.training.plan.make import Plan, alone
from deepauc.training.plan.test_time import NAME, NOT_ASKED
from deepauc.training.plan.wording import pace_text, time_text
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import InterruptFlag
from deepauc.training.schedule import Constant, Cosine, Schedule, Steps
from deepauc.training.scoring import score_rows
from deepauc.training.test_time import copies_in

WARM_UP, TIMED = 2, 6  # steps; the first ones allocate, compile and capture
SCORED = 256  # rows
COPIES = 8  # of an image, as they were tried (results/plan.md)
RESERVE = 0.1  # of the time, for what was not measured, such as a machine that is busier later


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds, by stage, of a step and of an epoch's end (validation, checkpoint), and of scoring one row.

    per_epoch: steps of an epoch, by stage. device: the kind it was taken on. copy: of scoring one changed copy of a
    row, where training changes images. spent: the share of the minutes that a ResNet20's whole plan takes, where there
    is a choice.
    """

    step: tuple[float, ...]
    end: tuple[float, ...]
    row: float
    per_epoch: tuple[int, ...]
    device: str
    copy: float = 0.0
    spent: float | None = None

    def __post_init__(self) -> None:
        for name in ("step", "end", "per_epoch"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists


def measure_pace(recipe: Recipe, task: Task, *, seed: int, device: torch.device) -> Pace:
    """A few steps of each stage by the engine that would train it, an epoch's end, and a few rows scored; none is kept.

    Of one process on whole batches: what several ranks make of it is not measured.
    """
    steps, ends, per_epoch, row, copy = [], [], [], 0.0, 0.0
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), InterruptFlag() as interrupt, TemporaryDirectory() as folder:
        for number, stage in enumerate(recipe.stages):
            alone = Recipe(
                model=recipe.model,
                stages=(_short(stage),),
                deterministic=recipe.deterministic,
                input_mean=recipe.input_mean,
                input_std=recipe.input_std,
                frozen=recipe.frozen,
            )
            place = RunFolder(Path(folder) / str(number))
            place.path.mkdir()
            trainer = Trainer(alone, task, seed, place, device, interrupt, None)
            epochs = trainer.epochs()
            steps.append(_seconds_a_step(trainer, next(epochs), interrupt))
            began = time.monotonic()
            next(epochs, None)  # what comes between two epochs: validation, history, checkpoint
            ends.append(time.monotonic() - began)
            per_epoch.append(trainer.stream.per_epoch)
            if not stage.on_views:
                row = _seconds_a_row(trainer)
                copy = 0.0 if stage.augment is None else _seconds_a_row(trainer, replace(stage.augment, mixup=0.0))
    kind = str(device.type)
    return Pace(step=tuple(steps), end=tuple(ends), row=row, copy=copy, per_epoch=tuple(per_epoch), device=kind)


def seconds_of(recipe: Recipe, task: Task, pace: Pace, *, tune: int = 0) -> float:
    """What training takes at this pace: steps, the ends of epochs, the scores of all parts at the end.

    tune: pairs of margin and gamma that are tried before, each with a last stage of its own.
    """
    epochs = [stage.epochs or 0 for stage in recipe.stages]
    return _total(_epoch_seconds(recipe, pace), epochs, tune) + _ending(recipe, task, pace, tune=tune)


def share_of_minutes(
    plan: Plan, task: Task, pace: Pace, *, minutes: float, tune: int = 0, folds: int = 1, share: float = 1.0
) -> float:
    """What the whole plan takes of the minutes, without a first stage that may go; arguments as of `fit_into`."""
    recipe = plan.recipe
    if plan.first_stage_may_go:
        recipe, pace = replace(recipe, stages=recipe.stages[1:]), _pace_of(pace, slice(1, None))
    return folds * seconds_of(recipe, task, pace, tune=tune) / (60 * minutes * share * (1 - RESERVE))


def fit_into(
    plan: Plan, task: Task, pace: Pace, *, minutes: float, tune: int = 0, folds: int = 1, share: float = 1.0
) -> Plan:
    """The plan with as many epochs as end in time, all stages cut by the same share and none to less than one epoch.

    folds: how many networks share the minutes; every time that is told is of all of them. share: of the minutes, where
    other networks have the rest.

    A first stage that the plan itself has chosen takes only what the others, whole, leave of the time, and so does the
    AUC stage, unless the user wants it; where that is not enough of it, it goes. More minutes never give fewer epochs.
    Where not even one epoch of each stage fits, that is an error.
    """
    recipe = plan.recipe
    wanted = [stage.epochs or 0 for stage in recipe.stages]
    an_epoch, ending = _epoch_seconds(recipe, pace), _ending(recipe, task, pace, tune=tune)
    limit = 60 * minutes * share * (1 - RESERVE)

    def seconds(epochs: Sequence[int]) -> float:
        return folds * (_total(an_epoch, epochs, tune) + ending)

    measured: dict[str, Fact] = {"minutes": minutes, "pace": pace.step}
    if plan.first_stage_may_go and seconds([LEAST_EPOCHS, *wanted[1:]]) > limit:
        takes = _minutes_for(seconds([LEAST_EPOCHS, *wanted[1:]]) / share)
        none = no_first_stage("no time", "shorter", **measured, needed=LEAST_EPOCHS, takes=takes)
        rest = _pace_of(pace, slice(1, None))
        return fit_into(_without_first(plan, none), task, rest, minutes=minutes, tune=tune, folds=folds, share=share)
    without_auc = None if plan.first_stage_may_go else plan.without_auc  # with a first stage left, the rest is whole
    if without_auc is not None and seconds([*wanted[:-1], LEAST_AUC_EPOCHS]) > limit:
        takes = _minutes_for(seconds([*wanted[:-1], LEAST_AUC_EPOCHS]) / share)
        why = alone("no time", "shared is worse", "always", **measured, needed=LEAST_AUC_EPOCHS, takes=takes)
        without_auc = replace(without_auc, decisions=replaced(without_auc.decisions, why))
        first = _pace_of(pace, slice(-1))
        return fit_into(without_auc, task, first, minutes=minutes, tune=tune, folds=folds, share=share)
    least = seconds([1] * len(wanted))
    if least > limit:
        what = f"{f' with {tune} pairs tuned' if tune else ''}{f' in {folds} folds' if folds > 1 else ''}"
        raise ValueError(
            f"{minutes:g} minutes are not enough: one epoch of each stage{what} takes about {time_text(least)} here "
            f"({pace_text(pace.step)}). Allow {_minutes_for(least / share):g} minutes, or make it "
            "less work: a smaller image size, the network small-cnn, fewer rows, a GPU."
        )
    epochs = [1] * len(wanted)
    for more in _lengths(wanted, first=plan.first_stage_may_go, last=without_auc is not None):
        if seconds(more) > limit:
            break
        epochs = more
    reason: tuple[str, ...] = ("in time with tuning" if tune else "in time per fold" if folds > 1 else "in time",)
    facts: dict[str, Fact] = {**measured, "takes": seconds(epochs), **({"tune": tune} if tune else {})}
    facts |= {"folds": folds} if folds > 1 else {}
    if epochs != wanted:
        whole = seconds(wanted)
        reason = (*reason, "cut")
        facts |= {"wanted": tuple(wanted), "whole": whole, "allow": _minutes_for(whole / share)}
    length = Decision(name="epochs", value=tuple(epochs), reason=reason, rests_on=facts)
    stages = tuple(_with_epochs(stage, count) for stage, count in zip(recipe.stages, epochs, strict=True))
    return Plan(recipe=replace(recipe, stages=stages), decisions=replaced(plan.decisions, length))


def with_copies(plan: Plan, task: Task, pace: Pace, *, minutes: float, tune: int = 0, networks: int = 1) -> Plan:
    """The plan with test-time augmentation, where nothing was cut and the minutes last for it too.

    networks: that are trained, in all folds and by all seeds. Copies that the user has asked for, or none, stay.
    """
    by_name = {one.name: one for one in plan.decisions}
    may_have = NAME in by_name and by_name[NAME].reason == NOT_ASKED
    whole = "cut" not in by_name["epochs"].reason and len(pace.step) == len(plan.recipe.stages)  # no stage left out
    if not (may_have and whole and pace.copy):
        return plan
    recipe = replace(plan.recipe, tta=COPIES)
    takes = networks * seconds_of(recipe, task, pace, tune=tune)
    if takes > 60 * minutes * (1 - RESERVE):
        return plan
    facts: dict[str, Fact] = {"minutes": minutes, "takes": takes}
    bought = Decision(name=NAME, value=COPIES, reason=("time left",), rests_on=facts)
    return Plan(recipe=recipe, decisions=replaced(plan.decisions, bought))


def _lengths(wanted: Sequence[int], *, first: bool, last: bool) -> Iterator[list[int]]:
    """Ever longer forms, the last one whole; the first stage alone is cut, or the last, or all by the same share."""
    if first:
        yield from ([count, *wanted[1:]] for count in range(min(LEAST_EPOCHS, wanted[0]), wanted[0] + 1))
        return
    if last:
        yield from ([*wanted[:-1], count] for count in range(min(LEAST_AUC_EPOCHS, wanted[-1]), wanted[-1] + 1))
        return
    # Epochs rise with the share, and so do the seconds: only shares where anything changes.
    for share in sorted({k / e for e in wanted for k in range(1, e + 1)}):
        yield [max(1, int(e * share + 1e-9)) for e in wanted]


def _without_first(plan: Plan, none: Decision) -> Plan:
    recipe = replace(plan.recipe, stages=plan.recipe.stages[1:])
    without_auc = None if plan.without_auc is None else _without_first(plan.without_auc, none)
    return Plan(recipe=recipe, decisions=without_first_stage(plan.decisions, none), without_auc=without_auc)


def _pace_of(pace: Pace, stages: slice) -> Pace:
    return replace(pace, step=pace.step[stages], end=pace.end[stages], per_epoch=pace.per_epoch[stages])


def _short(stage: Stage) -> Stage:
    return replace(
        stage, epochs=None, iterations=WARM_UP + TIMED, schedule=Constant(), keep="last", patience=None, start_from=None
    )


def _seconds_a_step(trainer: Trainer, epoch: Epoch, interrupt: InterruptFlag) -> float:
    engine = FastEngine([trainer]) if _is_fast(trainer) else None
    stop = epoch.stop
    warm = min(WARM_UP, stop - 1)  # of a single step the warm-up is part
    seconds = 0.0
    for start, end in ((0, warm), (warm, stop)):
        if start == end:
            continue
        part = Epoch(stage=epoch.stage, number=epoch.number, start=start, stop=end)
        _wait_for(trainer.device)
        began = time.monotonic()
        if engine is not None:
            engine.run_epoch([part])
        else:
            run_epoch(trainer, part)
        _wait_for(trainer.device)
        seconds = time.monotonic() - began
        if interrupt.raised:
            raise KeyboardInterrupt
    return seconds / (stop - warm)


def _is_fast(trainer: Trainer) -> bool:
    """As `train` decides it."""
    return trainer.device.type == "cuda" and can_be_fast(trainer.recipe)


def _seconds_a_row(trainer: Trainer, augment: Augment | None = None) -> float:
    """augment: of a copy changed by it, read before as `score_copies` does. Its draws are left out: they are quick."""
    task, device, rows = trainer.task, trainer.device, trainer.task.labelled("train")[:SCORED]
    resident, changes = trainer.images, None
    if augment is not None and isinstance(task.source, BagInputs):
        changes = augment.draw(1, seed=0, epoch=0).values.expand(len(task), -1)
    elif augment is not None:
        changes = augment.draw(len(rows), seed=0, epoch=0).values
        held = torch.from_numpy(task.inputs(rows)) if resident is None else resident[torch.from_numpy(rows).to(device)]
        rows, resident = np.arange(len(rows)), held.to(device)
    _wait_for(device)
    began = time.monotonic()
    score_rows(
        trainer.model,
        task,
        rows,
        trainer.preprocessing,
        device,
        augment=augment,
        parameters=changes,
        resident=resident,
    )
    return (time.monotonic() - began) / len(rows)


def _epoch_seconds(recipe: Recipe, pace: Pace) -> list[float]:
    if len(pace.step) != len(recipe.stages):
        raise ValueError(
            f"the measured speed does not fit this recipe (stages: {len(pace.step)} and {len(recipe.stages)})."
        )
    return [n * step + end for n, step, end in zip(pace.per_epoch, pace.step, pace.end, strict=True)]


def _total(an_epoch: Sequence[float], epochs: Sequence[int], tune: int) -> float:
    """With tuning the stages before the last are trained once more, the last one once more for each pair."""
    times = [2 if tune else 1] * (len(epochs) - 1) + [1 + tune]
    return sum(seconds * count * again for seconds, count, again in zip(an_epoch, epochs, times, strict=True))


def _ending(recipe: Recipe, task: Task, pace: Pace, *, tune: int = 0) -> float:
    """Scores of all parts by the last stage's network; where that is compared with earlier ones, of validation by each
    of these, and of the other parts if one of them is kept. Tuning has no test part, and copies for its pairs.
    """
    copies = recipe.copies

    def seconds(part: str, *, plain: bool = False) -> float:
        made = None if plain else copies_in(part, copies)
        return len(task.labelled(part)) * (pace.row if made is None else made.number * pace.copy)

    scored = sum(not stage.on_views for stage in recipe.stages)
    total = sum(map(seconds, task.parts)) * (2 if recipe.guard else 1)
    if recipe.guard:
        total += (scored - 2) * seconds("validation")  # of the one that is kept it is among all parts
    if tune:
        seen = [part for part in task.parts if part != "test"]
        total += tune * sum(map(seconds, seen))
        total += sum(seconds(part, plain=True) for part in seen) if scored > 1 else 0.0
    return total


def _with_epochs(stage: Stage, epochs: int) -> Stage:
    if epochs == stage.epochs:
        return stage
    assert stage.epochs is not None  # a plan's stages are as long as so many epochs
    return replace(stage, epochs=epochs, schedule=_scaled(stage.schedule, epochs / stage.epochs))


def _scaled(schedule: Schedule, share: float) -> Schedule:
    """Milestones and warm-up at the same share of a shorter stage."""
    if isinstance(schedule, Steps):
        return replace(
            schedule, milestones=tuple(sorted({m for m in (int(m * share) for m in schedule.milestones) if m}))
        )
    if isinstance(schedule, Cosine):
        return replace(schedule, warmup=int(schedule.warmup * share))
    return schedule


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _minutes_for(seconds: float) -> float:
    """Minutes to ask for, rounded up."""
    minutes = seconds / 60 / (1 - RESERVE)
    return float(np.ceil(minutes) if minutes > 1 else np.ceil(10 * minutes) / 10)
