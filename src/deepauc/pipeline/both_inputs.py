"""`train_both`: images and metadata with one split. A network on each, and the model is the one that validation keeps.

The folder: `images` and `metadata` are runs of their own, with reports. Above them stand run.json, scores.csv, the kept
network or the mean of both networks' probabilities (model.safetensors, bundle.json), the report, and DONE.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from deepauc.data.task import Task
from deepauc.pipeline.candidates import METADATA, HeldOut, choose_candidate
from deepauc.pipeline.events import AlreadyFinished, Event, Listener, Resumed, Scoring, ignore
from deepauc.pipeline.fold_average import save_average
from deepauc.pipeline.job import Job, cpu_threads, plan
from deepauc.pipeline.leaderboard import one_split_board
from deepauc.pipeline.outcome import Outcome, conclude
from deepauc.pipeline.train import State, folder_state, remove_trials, run_notes, train_run
from deepauc.training.config import Settings
from deepauc.training.engine.claim import claim_folder
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.predict.predict import predict
from deepauc.training.prepare.encoded_metadata import metadata_task, whole_encoder
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.own_files import MODEL, SCORES, require_own
from deepauc.training.run.record import IMAGES, Results
from deepauc.training.run.run import Run, aucs_of, finished
from deepauc.training.run.scores import read_run_scores, write_run_scores


def for_metadata(settings: Settings) -> Settings:
    """These settings for the small networks on metadata: planned by themselves, as they take next to no time."""
    data = replace(
        settings.data, image_column=None, image_root=None, image_size=None, id_column=settings.data.image_column
    )
    options = PlanOptions(epochs=settings.plan.epochs, auc_stage=settings.plan.auc_stage)
    return replace(settings, data=data, plan=options, recipe=None, tune=0)


def train_both(
    job: Job, *, out: Path, state: State, command: str, leads: bool, listen: Listener = ignore
) -> Outcome | None:
    """Train both, choose, report; job: of the images. The same call on an unfinished folder resumes, to the bit.

    None for a further process of torchrun.
    """
    task, device, folder = job.prepared.task, job.device, RunFolder(out)
    encoded, _ = metadata_task(task)
    beside = plan(for_metadata(job.settings), replace(job.prepared, task=encoded), device=device)
    if leads:
        notes = run_notes(job, command)
        claim_folder(job.recipe, task, seed=job.settings.seed, run_dir=out, device=device, notes=notes)
    if folder.done:
        require_own(out, MODEL, SCORES, force=None)
        listen(AlreadyFinished(out=out))
        return conclude(Run(out), task, state=state, device=device, listen=listen) if leads else None
    if state == "continued":
        listen(Resumed(out=out))

    def heard(event: Event) -> None:
        if not isinstance(event, AlreadyFinished | Resumed):  # said of the whole
            listen(event)

    runs = list[Run]()
    for name, one, listener in ((IMAGES, job, heard), (METADATA, beside, ignore)):
        place = out / name
        runs.append(train_run(one, place, state=folder_state(place), command=command, listen=listener))
        if leads:
            remove_trials(place)
            conclude(runs[-1], one.prepared.task, state=state, device=device)
    if not leads:
        return None
    listen(Scoring())
    with cpu_threads(device):
        _finish(folder, task, *runs, device=device)
    return conclude(Run(out), task, state=state, device=device, listen=listen)


def _finish(folder: RunFolder, task: Task, images: Run, metadata: Run, *, device: torch.device) -> None:
    """The choice on validation, the model, its scores, the record; DONE comes last."""
    out, of_images = folder.path, images.record
    default = next(row.candidate for row in one_split_board(images) if row.kept)
    seconds = {default: of_images.results.seconds or 0.0, METADATA: metadata.record.results.seconds or 0.0}
    validation = task.labelled("validation")
    raw_images, raw_metadata = (
        read_run_scores(run.path, other_labels="kept").part("validation").scores for run in (images, metadata)
    )
    rows = HeldOut(
        label_names=task.label_names,
        labels=task.labels[validation].reshape(len(validation), -1).astype(np.float64),
        fold=np.zeros(len(validation), dtype=np.int64),
        groups=None if task.groups is None else task.groups[validation],
        networks={default: raw_images},
        trivial={},
        metadata=raw_metadata,
    )
    chosen = choose_candidate(rows, default=default, seconds=seconds)
    save_average(out, rows, chosen, {default: [images.path], METADATA: [metadata.path]}, whole_encoder(task))
    scores = {
        part: np.asarray(predict(out, task, rows=task.labelled(part), device=device), dtype=np.float32).reshape(
            -1, task.num_labels
        )
        for part in task.parts
    }
    write_run_scores(out, task, scores)
    folder.write_rows("history.csv", images.history)
    trained = {name: of_images.plain[name] for name in ("recipe", "plan")}  # with what tuning has found
    folder.write_record(folder.record().changed(**trained, inputs=asdict(chosen.choice)))
    guard, total = of_images.results.guard, round(sum(seconds.values()), 3)
    finished(folder, Results(auc=aucs_of(task, scores), seconds=total, guard=guard))
