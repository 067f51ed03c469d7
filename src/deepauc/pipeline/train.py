"""`train_run`: a job trained into its run folder, from the start or from where it was stopped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from deepauc.pipeline.events import (
    AlreadyFinished,
    Listener,
    Resumed,
    Stepped,
    TrainingBegan,
    TrainingEnded,
    ignore,
)
from deepauc.pipeline.job import Job, compute_features, cpu_threads, device_kind, starting_weights
from deepauc.pipeline.stages import stage_lengths
from deepauc.pipeline.tune import FOLDER as TUNING
from deepauc.pipeline.tune import tune_job
from deepauc.training.engine.claim import run_identity
from deepauc.training.engine.distributed import agreed
from deepauc.training.engine.loop import train
from deepauc.training.plain import recipe_hash
from deepauc.training.plan.wording import decision_record
from deepauc.training.prepare.prepare import data_record
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.output_file import require_output_folder
from deepauc.training.run.own_files import MODEL, SCORES, require_own
from deepauc.training.run.run import Run

State = Literal["trained", "continued", "finished"]


def folder_state(out: Path) -> State:
    """What is to be done for a run in this folder; a ValueError where it holds something else, or cannot be written.

    Ask before the data are read: training would refuse the folder too, but later.
    """
    folder = RunFolder(out)
    if not folder.done:
        require_output_folder(out)
    if out.exists() and not folder.record_path.exists() and any(not p.name.startswith(".") for p in out.iterdir()):
        raise ValueError(f"{out} is not empty and is not a run: choose another folder.")
    state: State = "finished" if folder.done else "continued" if folder.record_path.exists() else "trained"
    return agreed(state)  # of all ranks: one that comes late finds the folder of the run that has just begun


def train_run(job: Job, out: Path, *, state: State, command: str, listen: Listener = ignore) -> Run:
    """Tune, where that was asked for, and train; a finished run is left as it is, another one is refused.

    state: what `folder_state` has said. command: what run.json says the run was made by. KeyboardInterrupt says what
    has been saved.
    """
    try:
        with cpu_threads(job.device):
            if state != "finished":
                compute_features(job, listen=listen)
            job = tune_job(job, out, begun=state != "trained", listen=listen)
            run = _trained(job, out, state=state, command=command, listen=listen)
    except KeyboardInterrupt as error:
        if error.args:  # the loop has said it
            raise
        begun = RunFolder(out).record_path.exists()
        saved = "run the same command again to resume" if begun else "nothing was trained yet"
        raise KeyboardInterrupt(f"interrupted; {saved}") from None
    return run


def remove_trials(out: Path) -> None:
    """The runs that tuning has made: their results are in run.json."""
    shutil.rmtree(out / TUNING, ignore_errors=True)


def _trained(job: Job, out: Path, *, state: State, command: str, listen: Listener) -> Run:
    task, seed = job.prepared.task, job.settings.seed
    if state == "finished":
        run = train(job.recipe, task, seed=seed, run_dir=out, device=job.device)  # refuses another run
        require_own(out, MODEL, SCORES, force=None)
        listen(AlreadyFinished(out=out))
        return run
    if state == "continued" and RunFolder(out).record().identity == run_identity(job.recipe, task, seed):
        listen(Resumed(out=out))  # another one is refused below
    listen(TrainingBegan(lengths=stage_lengths(job.recipe, task, seed=seed)))
    with _nothing_left_of_a_false_start(out):
        run = train(
            job.recipe,
            task,
            seed=seed,
            run_dir=out,
            device=job.device,
            progress=lambda step: listen(Stepped(step=step)),
            notes=run_notes(job, command),
        )
    last = run.history[-1].get("validation_auc") if run.history else None
    listen(TrainingEnded(validation_auc=float(last) if last else None))
    return run


def run_notes(job: Job, command: str) -> dict[str, Any]:
    """What run.json says of the plan and the data."""
    plan: dict[str, Any] = {
        "device_kind": device_kind(job.device),
        "choices": [decision_record(decision) for decision in job.decisions],
    }
    if job.pace is not None:
        plan |= {"minutes": job.settings.plan.minutes, "pace": asdict(job.pace)}
    if job.trials:
        plan["tuning"] = {
            "untuned_recipe": recipe_hash(job.untuned),
            "pairs": len(job.trials),
            "trials": [asdict(trial) for trial in job.trials],
        }
    started = starting_weights(job.settings)
    weights = {} if started is None else {"weights": {"network": started[0].name, **started[1].record()}}
    return {
        "command": command,
        "plan": plan,
        **weights,
        "data": {**data_record(job.settings, job.prepared), "unlabelled_rows": asdict(job.unlabelled)},
        "leaks": job.prepared.leaks,
        "possible_leaks": job.prepared.possible_leaks,
    }


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
