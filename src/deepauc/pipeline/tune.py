"""The tuning of a job: the pairs of margin and gamma that were asked for, each tried once and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deepauc.pipeline.events import Decided, Listener, Tuning, ignore
from deepauc.pipeline.job import Job
from deepauc.pipeline.stages import stage_lengths
from deepauc.training.engine.trainer import Progress
from deepauc.training.plain import recipe_hash
from deepauc.training.plan.decision import Decision
from deepauc.training.plan.inputs import Fingerprint
from deepauc.training.run.folder import RunFolder
from deepauc.training.tuning import Trial, best_trial, pairs_to_try, tune, with_pair

FOLDER = ".tuning"  # in the run's folder; removed at the end, since the results are in run.json


def tune_job(job: Job, out: Path, *, begun: bool, listen: Listener = ignore) -> Job:
    """The job with the best of the pairs that were to be tried.

    begun: `out` holds the run already, and with it the trials, which are not tried again; those of another job are
    refused.
    """
    count = job.settings.tune
    if not count:
        return job
    pairs = pairs_to_try(job.recipe, count)
    if begun:
        trials = _recorded_trials(RunFolder(out), job)
    else:
        out.mkdir(parents=True, exist_ok=True)
        trials = _new_trials(job, pairs, out / FOLDER, listen)
    best = best_trial(trials)
    decision = Decision(
        name="tuned",
        value=(best.margin, best.gamma),
        reason=("best", "trials"),
        rests_on={
            "tried": count,
            "positives": min(Fingerprint.of(job.prepared.task).positives["validation"]),
            "trials": tuple((trial.margin, trial.gamma, trial.validation_auc) for trial in trials),
        },
    )
    listen(Decided(decisions=(decision,)))
    recipe = with_pair(job.recipe, margin=best.margin, gamma=best.gamma)
    return replace(job, recipe=recipe, decisions=(*job.decisions, decision), trials=trials)


def _new_trials(job: Job, pairs: Sequence[tuple[float, float]], folder: Path, listen: Listener) -> tuple[Trial, ...]:
    task, seed = job.prepared.task, job.settings.seed
    *before, last = (length.steps for length in stage_lengths(job.recipe, task, seed=seed))
    total = sum(before) + len(pairs) * last
    listen(Tuning(pairs=len(pairs), done=0, total=total))

    def told(number: int, step: Progress) -> None:
        """number: 0 for the stages before, 1 for the first pair."""
        passed = sum(before[: step.stage]) if number == 0 else sum(before) + (number - 1) * last
        at_end = step.iteration == step.iterations and step.stage == step.stages - 1
        ended = ("the stages before" if number == 0 else pairs[number - 1]) if at_end else None
        listen(Tuning(pairs=len(pairs), done=passed + step.iteration, total=total, finished=ended))

    return tune(job.recipe, task, pairs=pairs, seed=seed, folder=folder, device=job.device, progress=told)


def _recorded_trials(folder: RunFolder, job: Job) -> tuple[Trial, ...]:
    record = folder.record()
    tuning = record.plan.tuning
    asked = {"untuned_recipe": recipe_hash(job.untuned), "pairs": job.settings.tune}
    differs = [name for name, value in asked.items() if tuning.get(name) != value]
    if record.identity.data != job.prepared.task.data_hash():
        differs.append("data")
    if record.identity.seed != job.settings.seed:
        differs.append("seed")
    if differs:
        raise ValueError(
            f"{folder.path} holds another run (different {', '.join(differs)}). Choose another folder; "
            "nothing was changed."
        )
    return tuple(Trial(**trial) for trial in tuning["trials"])
