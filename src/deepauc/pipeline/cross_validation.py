"""`cross_validate`: a network for each fold, the candidates judged on held-out rows, and their average as the model.

The folder: `fold-1`, `fold-2`, ... are run folders; each has the baseline stage's network in `baseline` and the trivial
baselines in `trivial`. Above them stand run.json, scores.csv (part `oof`: each row by a network that never saw it),
the average as one network (model.safetensors, bundle.json), the report, and DONE.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from deepauc.data.folds import Folds, fold_task
from deepauc.data.task import Task
from deepauc.models.fusion import MetadataEncoder
from deepauc.pipeline.both_inputs import for_metadata
from deepauc.pipeline.candidates import (
    METADATA,
    SEED,
    Floats,
    HeldOut,
    choose_candidate,
    default_candidate,
    network_names,
    of_seed,
)
from deepauc.pipeline.events import (
    AlreadyFinished,
    Checked,
    Decided,
    Estimated,
    FoldBegan,
    Listener,
    Resumed,
    Scoring,
    WritingReport,
    ignore,
)
from deepauc.pipeline.fold_average import save_average
from deepauc.pipeline.folding import Dealt
from deepauc.pipeline.job import (
    Job,
    buy_copies,
    cpu_threads,
    fit_minutes,
    measured_pace,
    plan,
    recorded_pace,
    share_of_images,
)
from deepauc.pipeline.stages import stage_lengths
from deepauc.pipeline.train import State, folder_state, run_notes, train_run
from deepauc.pipeline.trivial_baselines import fit_trivial_baselines, trivial_names, trivial_seconds
from deepauc.reporting.report import write_report
from deepauc.training.config import Settings
from deepauc.training.plain import recipe_hash, to_plain
from deepauc.training.plan.decision import Decision
from deepauc.training.plan.timing import RESERVE, Pace, seconds_of
from deepauc.training.predict.predict import predict
from deepauc.training.prepare.encoded_metadata import metadata_task, whole_encoder
from deepauc.training.prepare.prepare import Rows, has_both, unsplit_rows
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.fold_record import FoldsRecord
from deepauc.training.run.folder import RunFolder, surroundings
from deepauc.training.run.own_files import MODEL, SCORES, require_own
from deepauc.training.run.record import Identity, Results
from deepauc.training.run.run import Run, finished
from deepauc.training.run.scores import OOF, ScoredRows, read_run_scores, write_scored_rows
from deepauc.training.scoring import part_auc
from deepauc.training.trivial import FOLDER as TRIVIAL

MOST_SEEDS = 3  # in a fold, where the minutes last for them
SEED_STEP = 1000  # from one seed of a fold to the next, so that runs with neighbouring seeds share none


@dataclass(frozen=True, kw_only=True)
class FoldJob:
    """One recipe for all folds, and the task of each. job: of the fold with the fewest rows of a class.

    beside: where there are images and metadata, the same for the networks on metadata. encoder: of the metadata of all
    rows, where there are any. seeds: so many networks are trained in each fold, and averaged.
    """

    job: Job
    dealt: Dealt
    tasks: tuple[Task, ...]
    pace: Pace
    seconds: float  # that all of it is expected to take
    beside: FoldJob | None = None
    encoder: MetadataEncoder | None = None
    seeds: int = 1

    @property
    def folds(self) -> Folds:
        return self.dealt.folds

    def fold(self, number: int, seed: int = 0) -> Job:
        """That of one fold. seed: further ones are numbered from 1."""
        settings = replace(self.job.settings, seed=self.job.settings.seed + seed * SEED_STEP)
        return replace(self.job, settings=settings, prepared=replace(self.job.prepared, task=self.tasks[number]))


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """A finished run with folds."""

    run: Run
    state: State
    report: Path

    @property
    def folds(self) -> FoldsRecord:
        found = self.run.record.folds
        assert found is not None
        return found


def fold_folder(out: Path, number: int, seed: int = 0) -> Path:
    """number, seed: from 0; the networks of further seeds are inside."""
    return out / f"fold-{number + 1}" / (f"seed-{seed + 1}" if seed else "")


def cross_validate(
    settings: Settings,
    rows: Rows,
    dealt: Dealt,
    *,
    out: Path,
    state: State,
    device: torch.device,
    command: str,
    listen: Listener = ignore,
) -> CrossValidation:
    """Train each fold, choose, average, report. The same call on an unfinished folder resumes, to the bit."""
    planned = plan_folds(settings, rows, dealt, device=device, folder=RunFolder(out), listen=listen)
    whole = unsplit_rows(rows, settings, dealt.decision)
    listen(Checked(prepared=whole))
    listen(Decided(decisions=planned.job.decisions))
    folder = _claimed(planned, settings, whole.task, out, command)
    if folder.done:
        require_own(out, MODEL, SCORES, force=None)
        listen(AlreadyFinished(out=out))
    else:
        if state == "continued":
            listen(Resumed(out=out))
        else:
            listen(Estimated(seconds=planned.seconds))
        _train_folds(planned, out, command, device, listen)
        listen(Scoring())
        with cpu_threads(device):
            _finish(planned, whole.task, folder, device)
    return conclude_folds(Run(out), state=state, listen=listen)


def conclude_folds(run: Run, *, state: State, listen: Listener = ignore) -> CrossValidation:
    """Write the report; one that is there already is left as it is."""
    report = run.path / "report.html"
    if not report.exists():
        listen(WritingReport())
        write_report(run.path, command=shlex.join(["deepauc", "report", str(run.path)]))
    return CrossValidation(run=run, state=state, report=report)


def plan_folds(
    settings: Settings,
    rows: Rows,
    dealt: Dealt,
    *,
    device: torch.device,
    folder: RunFolder | None = None,
    listen: Listener = ignore,
) -> FoldJob:
    """One recipe for all folds, planned for the smallest; minutes are shared out among them."""
    whole, folds = unsplit_rows(rows, settings, dealt.decision), dealt.folds
    together, number = rows.together, len(dealt.folds)
    tasks = tuple(fold_task(rows.task, folds, one, validation=0.0, together=together) for one in range(number))
    encoder, beside = None if whole.metadata is None else whole_encoder(rows.task), None
    if has_both(settings.data):
        beside = plan_folds(for_metadata(settings), rows, dealt, device=device)
    elif encoder is not None:
        tasks = tuple(metadata_task(task)[0] for task in tasks)
    smallest = min(tasks, key=_rarer_rows)
    minutes = settings.plan.minutes
    shared = settings
    if minutes is not None:
        shared = replace(settings, plan=replace(settings.plan, minutes=minutes / number))
    job = plan(shared, replace(whole, task=smallest), device=device, folds=number)
    for task in tasks:
        stage_lengths(job.recipe, task, seed=settings.seed)  # what a stage refuses is said before the plan
    pace, seeds = None if folder is None else recorded_pace(folder), 1
    if minutes is None:
        if pace is None or len(pace.step) != len(job.recipe.stages):
            pace = measured_pace(job, listen=listen)
        seconds = number * seconds_of(job.recipe, smallest, pace)
    else:
        job = fit_minutes(job, pace=pace, minutes=minutes, folds=number, listen=listen)
        pace, seconds = cast(Pace, job.pace), cast(float, job.seconds)
        seeds = max(1, min(MOST_SEEDS, int(60 * minutes * share_of_images(settings) * (1 - RESERVE) / seconds)))
        facts: dict[str, Any] = {"minutes": minutes, "takes": seeds * seconds, "most": MOST_SEEDS}
        reason = "time left" if seeds > 1 else "no time"
        told = Decision(name="networks per fold", value=seeds, reason=(reason,), rests_on=facts)
        job = buy_copies(job, minutes=minutes, networks=number * seeds)
        seconds = max(seeds * seconds, cast(float, job.seconds))
        job = replace(job, decisions=(*job.decisions, told))
    scored = sum(not stage.on_views for stage in job.recipe.stages)
    recipe = replace(job.recipe, guard=False, keep_stages=scored > 1)
    job = replace(job, recipe=recipe, untuned=recipe)
    seconds += 0.0 if beside is None else beside.seconds
    return FoldJob(
        job=job,
        dealt=dealt,
        tasks=tasks,
        pace=pace,
        seconds=seconds,
        beside=beside,
        encoder=encoder,
        seeds=seeds,
    )


def _rarer_rows(task: Task) -> int:
    labels = task.labels[task.labelled("train")].reshape(-1, task.num_labels)
    return min(int((labels == value).sum(axis=0).min()) for value in (0, 1))


def _claimed(planned: FoldJob, settings: Settings, whole: Task, out: Path, command: str) -> RunFolder:
    """The top folder, its identity written down before anything is trained."""
    job, folds = planned.job, planned.folds
    parts = [task.data_hash() for task in planned.tasks]
    if planned.beside is not None:
        parts += [recipe_hash(planned.beside.job.recipe), *(task.data_hash() for task in planned.beside.tasks)]
    digest = hashlib.sha256("".join(parts).encode()).hexdigest()
    rows = {OOF: int((folds.number >= 0).sum())}
    if "test" in whole.parts:
        rows["test"] = len(whole.labelled("test"))
    record = FoldsRecord(names=folds.names, column=planned.dealt.column, cautions=folds.cautions)
    return RunFolder.claim(
        out,
        Identity(recipe=recipe_hash(job.recipe), data=digest, seed=settings.seed),
        {
            "recipe": to_plain(job.recipe),
            "task": {
                "name": whole.name,
                "kind": whole.kind,
                "labels": list(whole.label_names),
                "shape": list(whole.source.shape),
                "rows": rows,
                "unlabelled_rows": len(whole.unlabelled("train")),
            },
            **surroundings(job.device),
            **run_notes(replace(job, settings=settings, pace=planned.pace), command),
            "folds": record.to_plain(),
        },
    )


def _train_folds(planned: FoldJob, out: Path, command: str, device: torch.device, listen: Listener) -> None:
    """Every fold's networks and trivial baselines; what is there already is left as it is."""

    def heard(event: Any) -> None:
        if not isinstance(event, AlreadyFinished | Resumed):  # said of the whole
            listen(event)

    folds = planned.folds
    for number, task in enumerate(planned.tasks):
        folder = fold_folder(out, number)
        began = FoldBegan(number=number + 1, folds=len(folds), name=folds.names[number], networks=planned.seeds)
        for seed in range(planned.seeds):
            place = fold_folder(out, number, seed)
            if not RunFolder(place).done:
                listen(replace(began, network=seed + 1))
            run = train_run(planned.fold(number, seed), place, state=folder_state(place), command=command, listen=heard)
            with cpu_threads(device):
                baseline_run(run, task, device=device)
        if planned.beside is not None:
            place = folder / METADATA
            train_run(planned.beside.fold(number), place, state=folder_state(place), command=command, listen=ignore)
        with cpu_threads(device):
            own = planned.job.settings.seed
            fit_trivial_baselines(task, folder / TRIVIAL, parts=("test",), seed=own, device=device)


def _finish(planned: FoldJob, whole: Task, folder: RunFolder, device: torch.device) -> None:
    """The choice, the average as one network, its scores, the record; DONE comes last."""
    out, names = folder.path, network_names(planned.job.recipe)
    places = _places(planned, out)
    rows = _held_out(planned, names, places)
    seconds = _seconds(planned, names, out)
    chosen = choose_candidate(rows, default=default_candidate(planned.job.recipe), seconds=seconds)
    save_average(out, rows, chosen, places, planned.encoder)
    blocks = [
        ScoredRows(part=OOF, rows=task.labelled("test"), scores=chosen.scores[rows.fold == number], fold=name)
        for number, (task, name) in enumerate(zip(planned.tasks, planned.folds.names, strict=True))
    ]
    aucs = {OOF: dict(chosen.choice.aucs)}
    if "test" in whole.parts:
        test = whole.labelled("test")
        scores = np.asarray(predict(out, whole, rows=test, device=device)).reshape(len(test), -1)
        blocks.append(ScoredRows(part="test", rows=test, scores=scores))
        aucs["test"] = part_auc(whole, "test", scores.astype(np.float32))
    write_scored_rows(out, whole, blocks)
    record = folder.record()
    assert record.folds is not None
    folder.write_record(record.changed(folds=replace(record.folds, choice=chosen.choice).to_plain()))
    finished(folder, Results(auc=aucs, seconds=round(sum(seconds.values()), 3)))


def _places(planned: FoldJob, out: Path) -> dict[str, list[Path]]:
    """The folders of every network and trivial baseline, by name, in the order of the folds."""
    names, folds = network_names(planned.job.recipe), range(len(planned.folds))
    found: dict[str, list[Path]] = {}
    for seed in range(planned.seeds):
        each = [fold_folder(out, one, seed) for one in folds]
        if len(names) > 1:
            found[of_seed(names[0], seed)] = [one / "baseline" for one in each]
        found[of_seed(names[-1], seed)] = each
    each = [fold_folder(out, one) for one in folds]
    if planned.beside is not None:
        found[METADATA] = [one / METADATA for one in each]
    for name in trivial_names(planned.tasks[0]):
        found[name] = [one / TRIVIAL / name for one in each]
    return found


def _held_out(planned: FoldJob, names: Sequence[str], places: Mapping[str, Sequence[Path]]) -> HeldOut:
    tasks = planned.tasks
    whole, each = tasks[0], [task.labelled("test") for task in tasks]
    order = np.concatenate(each)
    raw = {name: np.concatenate([_scores(place, whole) for place in folders]) for name, folders in places.items()}
    return HeldOut(
        label_names=whole.label_names,
        labels=whole.labels[order].reshape(len(order), -1).astype(np.float64),
        fold=np.repeat(np.arange(len(each)), [len(rows) for rows in each]),
        groups=None if whole.groups is None else whole.groups[order],
        networks={name: scores for name, scores in raw.items() if name.partition(SEED)[0] in names},
        trivial={name: scores for name, scores in raw.items() if name in trivial_names(whole)},
        metadata=raw.get(METADATA),
    )


def _scores(place: Path, task: Task) -> Floats:
    return read_run_scores(place, other_labels="kept").part("test").scores.reshape(-1, task.num_labels)


def _seconds(planned: FoldJob, names: Sequence[str], out: Path) -> dict[str, float]:
    """What each network and trivial baseline has taken in all folds, as recorded; stages share by their steps."""
    trivial = trivial_names(planned.tasks[0])
    total = dict.fromkeys(_places(planned, out), 0.0)
    for number, task in enumerate(planned.tasks):
        folder = fold_folder(out, number)
        lengths = stage_lengths(planned.job.recipe, task, seed=planned.job.settings.seed)
        steps = [length.steps * length.rows_per_step for length in lengths]
        last = steps[-1] / sum(steps) if len(names) > 1 else 1.0
        for seed in range(planned.seeds):
            run = RunFolder(fold_folder(out, number, seed)).record().results.seconds or 0.0
            total[of_seed(names[-1], seed)] += run * last
            if len(names) > 1:
                total[of_seed(names[0], seed)] += run * (1 - last)
        for name in trivial:
            total[name] += trivial_seconds(folder / TRIVIAL, name)
        if planned.beside is not None:
            total[METADATA] += RunFolder(folder / METADATA).record().results.seconds or 0.0
    return total
