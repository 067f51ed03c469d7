"""The work of `deepauc train`: read, plan, tune, train, compare, report. Each step says what it does and why."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import typer

from deepauc.cli.console import Output, write_file
from deepauc.cli.options import checked_device
from deepauc.cli.table_report import refuse_table
from deepauc.cli.training_progress import stage_lengths, training_progress
from deepauc.cli.training_summary import show_choices, show_data, show_results
from deepauc.data.table.problems import TableError
from deepauc.data.task import Task
from deepauc.names import group_word
from deepauc.reporting.evaluation.kept_stage import score_last_stage
from deepauc.reporting.report import write_report
from deepauc.training.config import Settings, settings_toml
from deepauc.training.engine.distributed import agreed, join_ranks
from deepauc.training.engine.loop import run_identity, train
from deepauc.training.engine.trainer import Progress
from deepauc.training.plain import recipe_hash
from deepauc.training.plan.choice import Choice, DeviceKind
from deepauc.training.plan.make import Fingerprint, make_plan
from deepauc.training.plan.timing import Pace, fit_into, measure_pace
from deepauc.training.plan.unlabelled import UnlabelledRows, count_unlabelled, unlabelled_choice
from deepauc.training.prepare import Prepared, data_record, prepare
from deepauc.training.recipe import Recipe
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.interrupt import TrainingStopped
from deepauc.training.run.output_file import require_output_folder
from deepauc.training.run.own_files import MODEL, SCORES, require_own
from deepauc.training.run.run import Run
from deepauc.training.tuning import Trial, best_trial, pairs_to_try, tune, with_pair

TUNING = ".tuning"


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What is to be trained, and all that was chosen on the way."""

    settings: Settings
    prepared: Prepared
    recipe: Recipe
    untuned: Recipe
    choices: tuple[Choice, ...]
    device: torch.device
    device_kind: DeviceKind
    unlabelled: UnlabelledRows
    pace: Pace | None  # where minutes were named


def run_training(settings: Settings, *, out: Path, device: str | None, output: Output, command: str) -> None:
    """From settings to a finished run folder with its report; raises typer.Exit where that was not to be.

    Under torchrun all processes train; the first of them speaks and writes the report, the others leave before that.
    """
    leads = join_ranks(checked_device(device))
    with nullcontext() if leads else _silence():
        job, run, state = _trained_run(settings, out=out, device=device, output=output, command=command)
    if not leads:
        raise typer.Exit(0)
    shutil.rmtree(out / TUNING, ignore_errors=True)  # its results are in run.json
    if not (run.path / "scores.csv").exists():  # the last stage trains features: a start for other runs
        output.result(f"Run: {run.path} (features only: no scores, no report)")
        output.record({"run": str(run.path), "state": state, "report": None, "seconds": run.record.results.seconds})
        return
    report = run.path / "report.html"
    if not report.exists():
        output.say("Scoring all rows")
    baseline = baseline_run(run, job.prepared.task, device=job.device)
    last_stage = score_last_stage(run, job.prepared.task, device=job.device)
    if not report.exists():
        output.say("Writing the report")
        write_report(run.path, command=shlex.join(["deepauc", "report", str(run.path)]))
    show_results(output, run, baseline, last_stage, state=state, report=report)


def _trained_run(
    settings: Settings, *, out: Path, device: str | None, output: Output, command: str
) -> tuple[_Job, Run, str]:
    """The job, its finished run, and what had to be done for it."""
    require_output_folder(out, f"--out {out}")
    folder = RunFolder(out)
    # Training would refuse it too, but only after the table has been read.
    if out.exists() and not folder.record_path.exists() and any(not p.name.startswith(".") for p in out.iterdir()):
        raise ValueError(f"--out {out} is not empty and holds no run: choose another folder.")
    # Of all ranks: one that comes late finds the folder of the run that has just begun.
    state = agreed("finished" if folder.done else "continued" if folder.record_path.exists() else "trained")
    job = _prepared_job(settings, device=device, output=output, folder=folder)
    show_data(output, job.prepared)
    show_choices(output, job.choices)
    try:
        with _cpu_threads(job.device):
            job, trials = _tuned(job, out, output, state=state)
            run = _trained(job, out, output, state=state, notes=_notes(job, trials, command))
    except TrainingStopped as error:
        typer.echo(f"deepauc: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as error:
        saved = "the same command goes on from there" if folder.record_path.exists() else "nothing was trained yet"
        typer.echo(f"deepauc: {error or f'interrupted; {saved}'}.", err=True)
        raise typer.Exit(130) from None
    return job, run, state


def print_settings(settings: Settings, *, device: str | None) -> None:
    """The complete file that these settings come to, reasons as comments, and nothing else on stdout."""
    job = _prepared_job(settings, device=device, output=Output(quiet=True))
    shape = job.prepared.task.source.shape
    size = (shape[0], shape[1]) if len(shape) == 3 and settings.data.packed is None else None
    whole = replace(
        job.settings,
        recipe=job.recipe,
        plan=type(settings.plan)(),
        data=replace(job.settings.data, image_size=size),
    )
    comments = [
        "All that `deepauc train --config THIS_FILE --out DIR` does. Paths are relative to where it is run.",
        *(f"{choice.name}: {choice.value}\n  because: {choice.reason}" for choice in job.choices),
    ]
    write_file(settings_toml(whole, comments=comments))


def _prepared_job(settings: Settings, *, device: str | None, output: Output, folder: RunFolder | None = None) -> _Job:
    """folder: where the run goes, if it is to be trained; one that is there already says how fast this machine was."""
    if settings.data.table is None and settings.data.packed is None:
        raise ValueError("which table? Name it: --table data.csv, or a packed set: --packed DIR.")
    target = checked_device(device)
    kind: DeviceKind = "cuda" if target.type == "cuda" else "cpu"
    try:
        with output.progress(f"Reading {settings.data.table or settings.data.packed}") as advance:
            prepared = prepare(settings, kind, progress=advance)
    except TableError as error:
        output.record({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        refuse_table(output, error.problems, may_skip=not settings.data.skip_bad, every_row=error.every_row)
    pace, plan, recipe = None, None, settings.recipe
    choices: tuple[Choice, ...] = (Choice(name="recipe", value="complete", reason="it is in the config file"),)
    if recipe is None:
        files = prepared.report.sizes if prepared.packed is None else None
        fingerprint = Fingerprint.of(prepared.task, file_sizes=files)
        options = replace(settings.plan, auc_stage="always") if settings.tune else settings.plan  # it tunes that stage
        plan = make_plan(fingerprint, options, kind)
        recipe, choices = plan.recipe, plan.choices
    if folder is not None:
        stage_lengths(recipe, prepared.task, seed=settings.seed)  # what a stage refuses is said before anything is told
    if plan is not None and settings.plan.minutes is not None:
        pace = _pace(plan.recipe, prepared.task, settings.seed, target, folder, output)
        plan = fit_into(plan, prepared.task, pace, minutes=settings.plan.minutes, tune=settings.tune)
        recipe, choices = plan.recipe, plan.choices
    unlabelled = count_unlabelled(prepared.task, recipe)
    without_label = unlabelled_choice(unlabelled, group_word=group_word(prepared.task.group_column))
    return _Job(
        settings=settings,
        prepared=prepared,
        recipe=recipe,
        untuned=recipe,
        choices=tuple(one for one in (prepared.split, prepared.metadata, *choices, without_label) if one is not None),
        device=target,
        device_kind=kind,
        unlabelled=unlabelled,
        pace=pace,
    )


def _pace(
    recipe: Recipe, task: Task, seed: int, device: torch.device, folder: RunFolder | None, output: Output
) -> Pace:
    """As the run's folder has it, else measured now; of several ranks the first one's counts for all."""
    if folder is not None and folder.record_path.exists():
        recorded = folder.record().plan.pace
        known = set(recorded) | {"copy"} == {field.name for field in fields(Pace)}  # that one came later
        if known and len(recorded["step"]) == len(recipe.stages):
            return agreed(Pace(**recorded))
    output.say("Timing a few steps")
    with _cpu_threads(device):
        return agreed(measure_pace(recipe, task, seed=seed, device=device))


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing of what is written to stdout appears."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def _cpu_threads(device: torch.device) -> Iterator[None]:
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


def _tuned(job: _Job, out: Path, output: Output, *, state: str) -> tuple[_Job, tuple[Trial, ...]]:
    """The job with the best of the pairs that were to be tried; recorded ones of the same job are not tried again."""
    count = job.settings.tune
    if not count:
        return job, ()
    pairs = pairs_to_try(job.recipe, count)
    folder = RunFolder(out)
    if state != "trained":
        trials = _recorded_trials(folder, job)
    else:
        out.mkdir(parents=True, exist_ok=True)
        trials = _new_trials(job, pairs, out / TUNING, output)
    best = best_trial(trials)
    few = min(Fingerprint.of(job.prepared.task).positives["validation"])
    choice = Choice(
        name="tuned",
        value=f"margin {best.margin:g}, gamma {best.gamma:.3g}",
        reason=f"best of {count} on validation ({few} positives: the differences are noisy): "
        + ", ".join(f"({t.margin:g}, {t.gamma:.3g}) {t.validation_auc:.3f}" for t in trials),
    )
    show_choices(output, [choice])
    recipe = with_pair(job.recipe, margin=best.margin, gamma=best.gamma)
    return replace(job, recipe=recipe, choices=(*job.choices, choice)), trials


def _new_trials(job: _Job, pairs: Sequence[tuple[float, float]], folder: Path, output: Output) -> tuple[Trial, ...]:
    task, seed = job.prepared.task, job.settings.seed
    *before, last = (length.steps for length in stage_lengths(job.recipe, task, seed=seed))
    total = sum(before) + len(pairs) * last
    with output.progress(f"Tuning: {len(pairs)} pairs, on validation") as advance:

        def report(number: int, step: Progress) -> None:
            """number: 0 for the stages before, 1 for the first pair."""
            passed = sum(before[: step.stage]) if number == 0 else sum(before) + (number - 1) * last
            advance(passed + step.iteration, total)
            if step.iteration == step.iterations and step.stage == step.stages - 1:
                what = "the stages before" if number == 0 else "margin {:g}, gamma {:.3g}".format(*pairs[number - 1])
                output.say(f"tuning, {what}: done")

        return tune(job.recipe, task, pairs=pairs, seed=seed, folder=folder, device=job.device, progress=report)


def _recorded_trials(folder: RunFolder, job: _Job) -> tuple[Trial, ...]:
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


def _notes(job: _Job, trials: Sequence[Trial], command: str) -> dict[str, Any]:
    """What run.json says of the plan and the data."""
    plan: dict[str, Any] = {
        "device_kind": job.device_kind,
        "choices": [asdict(choice) for choice in job.choices],
    }
    if job.pace is not None:
        plan |= {"minutes": job.settings.plan.minutes, "pace": asdict(job.pace)}
    if trials:
        plan["tuning"] = {
            "untuned_recipe": recipe_hash(job.untuned),
            "pairs": len(trials),
            "trials": [asdict(trial) for trial in trials],
        }
    return {
        "command": command,
        "plan": plan,
        "data": {**data_record(job.settings, job.prepared), "unlabelled_rows": asdict(job.unlabelled)},
        "leaks": job.prepared.leaks,
        "possible_leaks": job.prepared.possible_leaks,
    }


def _trained(job: _Job, out: Path, output: Output, *, state: str, notes: dict[str, Any]) -> Run:
    task, seed = job.prepared.task, job.settings.seed
    if state == "finished":
        run = train(job.recipe, task, seed=seed, run_dir=out, device=job.device)  # refuses another run
        require_own(out, MODEL, SCORES, force=None)
        output.say(f"{out} holds this run, finished: nothing was changed.")
        return run
    if state == "continued" and RunFolder(out).record().identity == run_identity(job.recipe, task, seed):
        output.say(f"{out} holds this run, unfinished: going on.")  # another one is refused below
    with training_progress(output, job.recipe, task, seed=seed) as progress, _nothing_left_of_a_false_start(out):
        run = train(job.recipe, task, seed=seed, run_dir=out, device=job.device, progress=progress, notes=notes)
        last = run.history[-1].get("validation_auc") if run.history else None
        progress.finish(float(last) if last else None)
    return run


@contextmanager
def _nothing_left_of_a_false_start(out: Path) -> Iterator[None]:
    """A recipe that is refused before its first step (no network of that name) does not keep the folder from the next.

    The folder's record is written before anything else; where it is all there is, nothing was trained.
    """
    was_there, was_claimed = out.exists(), (out / "run.json").exists()
    try:
        yield
    except ValueError:
        if not was_claimed and {path.name for path in out.glob("[!.]*")} == {"run.json"}:
            (out / "run.json").unlink(missing_ok=True)
            if not was_there:
                with suppress(OSError):  # tuning may have left something
                    out.rmdir()
        raise
