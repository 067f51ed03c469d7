"""From settings to a job, which is all that training needs: the data checked and split, a recipe, and why it is so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch

from deepauc.data.table.frame import Table, name_of
from deepauc.models.build import BagSpec, TimmSpec
from deepauc.models.pretrained import FoundWeights
from deepauc.names import group_word
from deepauc.pipeline.events import ComputingFeatures, Listener, Reading, Timing, ignore
from deepauc.training.config import Settings
from deepauc.training.engine.distributed import agreed, several_ranks
from deepauc.training.engine.frozen import frozen_features
from deepauc.training.engine.trainer import preprocessing_of
from deepauc.training.plan.decision import Decision, DeviceKind
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.make import Plan, make_plan
from deepauc.training.plan.network import SMALL_SIDE
from deepauc.training.plan.start import starting_model, weights_decision
from deepauc.training.plan.test_time import NAME as COPIES
from deepauc.training.plan.timing import Pace, fit_into, measure_pace, seconds_of, share_of_minutes, with_copies
from deepauc.training.plan.unlabelled import UnlabelledRows, count_unlabelled, unlabelled_decision
from deepauc.training.prepare.prepare import Prepared, Rows, has_both, read_rows, require_complete, split_rows
from deepauc.training.recipe import Recipe
from deepauc.training.run.folder import RunFolder
from deepauc.training.tuning import Trial

FOR_IMAGES = 0.9  # of the minutes, where there are networks on metadata beside them


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained, and all that was decided on the way.

    plan: None where the settings hold a complete recipe. untuned: the recipe before tuning, which `trials` are of.
    pace: how fast this machine is, where minutes were named.
    """

    settings: Settings
    prepared: Prepared
    device: torch.device
    plan: Plan | None
    recipe: Recipe
    untuned: Recipe
    decisions: tuple[Decision, ...]
    unlabelled: UnlabelledRows
    pace: Pace | None = None
    trials: tuple[Trial, ...] = ()

    @property
    def seconds(self) -> float | None:
        """What training takes, where it was fitted into minutes; with the copies that were bought, if any were."""
        takes = {one.name: one.rests_on.get("takes") for one in self.decisions}
        found = takes.get(COPIES) or takes.get("epochs")
        return found if isinstance(found, float) else None


def device_kind(device: torch.device) -> DeviceKind:
    """As plans tell devices apart."""
    return "cuda" if device.type == "cuda" else "cpu"


def check(settings: Settings, *, device: torch.device, listen: Listener = ignore) -> Prepared:
    """Read, check and split the data; see `read`."""
    return split_rows(read(settings, device=device, listen=listen), settings)


def read(settings: Settings, *, device: torch.device, frame: Table | None = None, listen: Listener = ignore) -> Rows:
    """Read and check the data; a TableError lists all that is wrong with a table.

    frame: a DataFrame in place of the settings' table.
    """
    data = settings.data
    require_complete(data, table=data.table if frame is None else frame)
    starting_weights(settings)  # what is not on this machine is said before the data are read
    source = str(data.table or data.packed) if frame is None else name_of(frame)
    listen(Reading(source=source))

    def told(done: int, total: int) -> None:
        listen(Reading(source=source, done=done, total=total))

    return read_rows(settings, device_kind(device), frame=frame, progress=told)


def plan(
    settings: Settings, prepared: Prepared, *, device: torch.device, folds: int = 1, spent: float | None = None
) -> Job:
    """The recipe of the settings, or one planned for these data and this kind of device; minutes have no say yet.

    folds, spent: as of `make_plan`.
    """
    if settings.recipe is not None:
        return _job(settings, prepared, device, settings.recipe)
    files = prepared.report.sizes if prepared.packed is None else None
    fingerprint = Fingerprint.of(prepared.task, file_sizes=files)
    options = replace(settings.plan, auc_stage="always") if settings.tune else settings.plan  # it tunes that stage
    made = make_plan(fingerprint, options, device_kind(device), folds=folds, spent=spent)
    return _job(settings, prepared, device, made)


def starting_weights(settings: Settings) -> tuple[TimmSpec, FoundWeights] | None:
    """The network of the settings with the file it starts from; None where it starts at random, or nobody knows yet.

    ValueError, with the remedies, where the file is not on this machine.
    """
    asked = starting_model(settings.plan) if settings.recipe is None else settings.recipe.model
    model = asked.image if isinstance(asked, BagSpec) else asked
    if not isinstance(model, TimmSpec):
        return None
    model.require_files()
    found = model.found_weights()
    return None if found is None else (model, found)


def fit_minutes(
    job: Job, *, pace: Pace | None = None, minutes: float | None = None, folds: int = 1, listen: Listener = ignore
) -> Job:
    """The job shortened to the minutes of its settings, if they name any.

    minutes: for the networks of all folds together, where the settings name those of one fold. pace: an earlier
    measurement, used where it is of as many stages; else a few steps are timed now. Of several ranks the first one's
    counts for all.
    """
    settings = job.settings
    minutes = settings.plan.minutes if minutes is None else minutes
    if job.plan is None or minutes is None:
        return job
    share = share_of_images(settings)
    if _may_be_larger(job) and pace is None:
        larger = plan(settings, job.prepared, device=job.device, folds=folds, spent=0.0)
        pace, task = measured_pace(larger, listen=listen), job.prepared.task
        assert larger.plan is not None
        spent = share_of_minutes(larger.plan, task, pace, minutes=minutes, tune=settings.tune, folds=folds, share=share)
        job = plan(settings, job.prepared, device=job.device, folds=folds, spent=spent)
        pace = replace(pace if job.recipe.model == larger.recipe.model else measured_pace(job), spent=spent)
    elif pace is not None and pace.spent is not None:
        job = plan(settings, job.prepared, device=job.device, folds=folds, spent=pace.spent)
    if pace is None or len(pace.step) != len(job.recipe.stages):
        pace = measured_pace(job, listen=listen)
    assert job.plan is not None
    made = fit_into(job.plan, job.prepared.task, pace, minutes=minutes, tune=settings.tune, folds=folds, share=share)
    fitted = _job(settings, job.prepared, job.device, made, pace=pace)
    return fitted if folds > 1 else buy_copies(fitted, minutes=minutes)


def _may_be_larger(job: Job) -> bool:
    """Whether the plan chooses between a small CNN and a ResNet20."""
    options, shape = job.settings.plan, job.prepared.task.source.shape
    chooses = options.model is None and not options.pretrained and job.device.type == "cpu"
    return chooses and len(shape) == 3 and max(shape[:2]) <= SMALL_SIDE


def measured_pace(job: Job, *, listen: Listener = ignore) -> Pace:
    """By a few steps, timed now; of several ranks the first one's counts."""
    compute_features(job, listen=listen)
    listen(Timing())
    with cpu_threads(job.device):
        return agreed(measure_pace(job.recipe, job.prepared.task, seed=job.settings.seed, device=job.device))


def buy_copies(job: Job, *, minutes: float, networks: int = 1) -> Job:
    """A job that was fitted into its minutes, with test-time augmentation where they last for it too.

    networks: that are trained, in all folds and by all seeds.
    """
    if job.plan is None or job.pace is None or has_both(job.settings.data):
        return job
    task, tune = job.prepared.task, job.settings.tune
    made = with_copies(job.plan, task, job.pace, minutes=minutes, tune=tune, networks=networks)
    return _job(job.settings, job.prepared, job.device, made, pace=job.pace)


def share_of_images(settings: Settings) -> float:
    """Of the minutes: networks on metadata beside them have the rest."""
    return FOR_IMAGES if has_both(settings.data) else 1.0


def estimated_seconds(job: Job) -> float | None:
    """What training takes here: at the pace that minutes have had measured, else by a few steps timed now.

    None where that was not measured: on a GPU, which compiles first, with several processes, or by a recipe in a file.
    """
    if job.pace is not None:
        return job.seconds
    if job.plan is None or job.device.type != "cpu" or several_ranks() or job.recipe.frozen:
        return None
    task = job.prepared.task
    with cpu_threads(job.device):
        pace = measure_pace(job.recipe, task, seed=job.settings.seed, device=job.device)
    return seconds_of(job.recipe, task, pace, tune=job.settings.tune)


def compute_features(job: Job, *, listen: Listener = ignore) -> None:
    """What the frozen layers make of each image, where the recipe trains the last layer alone; kept from now on.

    Training would compute them too, without a word.
    """
    if not job.recipe.frozen:
        return
    task = job.prepared.task
    inputs = preprocessing_of(job.recipe, task)
    with cpu_threads(job.device):
        frozen_features(
            job.recipe.model,
            task,
            inputs,
            job.device,
            progress=lambda done, total: listen(ComputingFeatures(done=done, total=total)),
        )


def recorded_pace(folder: RunFolder) -> Pace | None:
    """What an earlier start of this run has measured."""
    if not folder.record_path.exists():
        return None
    recorded = folder.record().plan.pace
    known = set(recorded) | {"copy", "spent"} == {field.name for field in fields(Pace)}  # these came later
    return Pace(**recorded) if known else None


def complete_settings(job: Job) -> Settings:
    """Settings that leave nothing to plan: they give this job on any machine."""
    data, shape = job.settings.data, job.prepared.task.source.shape
    size = (shape[0], shape[1]) if len(shape) == 3 and data.packed is None else None
    return replace(job.settings, recipe=job.recipe, plan=PlanOptions(), data=replace(data, image_size=size))


@contextmanager
def cpu_threads(device: torch.device) -> Iterator[None]:
    """On a CPU one core is left to others, unless OMP_NUM_THREADS says how many to use.

    OpenMP's threads wait for each other by spinning: where another program takes one of two cores, two threads were
    measured to be eight times slower than one.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, before - 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _job(
    settings: Settings, prepared: Prepared, device: torch.device, of: Plan | Recipe, *, pace: Pace | None = None
) -> Job:
    """of: a plan, or the complete recipe of the settings."""
    planned, recipe = (of, of.recipe) if isinstance(of, Plan) else (None, of)
    in_file = Decision(name="recipe", value="complete", reason=("in file",))
    decided = (in_file,) if planned is None else planned.decisions
    unlabelled = count_unlabelled(prepared.task, recipe)
    without_label = unlabelled_decision(unlabelled, group_word=group_word(prepared.task.group_column))
    started = starting_weights(settings)
    weights = None if started is None else weights_decision(*started)
    every = (prepared.split, prepared.metadata, *decided, weights, without_label)
    return Job(
        settings=settings,
        prepared=prepared,
        device=device,
        plan=planned,
        recipe=recipe,
        untuned=recipe,
        decisions=tuple(one for one in every if one is not None),
        unlabelled=unlabelled,
        pace=pace,
    )
