"""A finished run: what its folder holds, and how it gets there once training is over."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.data.task import Array, Task
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate
from deepauc.training.engine.trainer import Trainer
from deepauc.training.prepare.encoded_metadata import EncodedMetadata
from deepauc.training.run.bundle import Bundle, save_weights
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.operating import fitted_on_validation
from deepauc.training.run.own_files import digests
from deepauc.training.run.record import Aucs, Guard, Results, RunRecord
from deepauc.training.run.scores import read_run_scores, write_run_scores
from deepauc.training.scoring import mean_auc, part_auc
from deepauc.training.selection import own_measure

PartScores = npt.NDArray[np.float32]  # (n, L), of the labelled rows of a part
StageScores = Mapping[int, Mapping[str, PartScores]]
LAST_STAGE = "last-stage"  # in a run's folder: scores.csv of the last stage, where an earlier one was kept


@dataclass(frozen=True)
class Run:
    """The folder of a finished run, read on demand.

    Args:
        path: The folder.
        stage_scores: By stage and part, what training has scored on the way and not written (validation, by earlier
            stages that were not kept): whoever needs these next need not make them again. Empty for a run that was
            trained before.
    """

    path: Path
    stage_scores: StageScores = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not RunFolder(self.path).done:
            raise ValueError(f"{self.path} holds no finished run: train it (again) to finish it.")

    @property
    def record(self) -> RunRecord:
        """run.json."""
        return RunFolder(self.path).record()

    @property
    def history(self) -> list[dict[str, str]]:
        """The rows of history.csv."""
        with (self.path / "history.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def auc(self, part: str) -> dict[str, Estimate[float]]:
        """AUC with interval by label, as recorded."""
        found = self.record.results.auc
        if part not in found:
            raise ValueError(f"{self.path} has no scores of a {part} part (there are {', '.join(found)}).")
        return dict(found[part])

    def scores(self, part: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Scores and labels of a part from scores.csv, (n,) each, or (n, L) for several labels."""
        table = read_run_scores(self.path, other_labels="kept")
        chosen = table.rows(np.asarray(table.parts == part))
        scores, labels = chosen.scores.astype(np.float32), chosen.labels.astype(np.float32)
        single = self.record.task.kind == "binary"
        return (scores[:, 0], labels[:, 0]) if single else (scores, labels)


def finish_run(trainer: Trainer, *, results_only: bool = False) -> Run:
    """Scores of every part, weights, bundle, results; DONE comes last.

    A run that ends with a stage on views has no classifier: its weights are there to start from, nothing is scored.
    results_only: the AUCs of validation and test go into run.json, their scores into scores.csv; no network is kept.
    """
    folder, recipe, task = trainer.folder, trainer.recipe, trainer.task
    began = trainer.seconds()

    def results(aucs: Aucs, guard: Guard | None = None) -> Results:
        """With the seconds of the whole run, and of these scores."""
        now = trainer.seconds()
        return Results(auc=aucs, seconds=round(now, 3), scoring_seconds=round(now - began, 3), guard=guard)

    if results_only:
        parts = [part for part in ("validation", "test") if part in task.parts]
        scores = {part: trainer.scores(part, final=True) for part in parts}
        aucs = aucs_of(task, scores)
        write_run_scores(folder.path, task, scores)
        return finished(folder, results(aucs))
    if recipe.stages[-1].on_views:
        save_weights(folder.model_path, trainer.network(), classifier=False)
        return finished(folder, results({}))
    last = len(recipe.stages) - 1
    made: dict[int, dict[str, PartScores]] = {last: {part: trainer.scores(part, final=True) for part in task.parts}}
    guard = _guard(trainer, made) if recipe.guard and "validation" in task.parts else None
    kept = last if guard is None else guard.winner
    there = made.pop(kept)
    scores = {part: there[part] if part in there else trainer.scores(part, final=True) for part in task.parts}
    found = aucs_of(task, scores)  # first: rows without a score are refused before anything is written
    save_weights(folder.model_path, trainer.network())
    write_run_scores(folder.path, task, scores)
    if kept != last:  # for the comparison in the report, which need not make them again
        (folder.path / LAST_STAGE).mkdir(exist_ok=True)
        write_run_scores(folder.path / LAST_STAGE, task, made.pop(last))
    frozen = trainer.frozen
    inputs, preprocessing = (task, trainer.preprocessing) if frozen is None else (frozen.images, frozen.inputs)
    Bundle(
        model=recipe.model,
        shape=tuple(inputs.source.shape),
        kind=task.kind,
        label_names=task.label_names,
        preprocessing=preprocessing,
        metadata=task.source.encoder.to_dict() if isinstance(task.source, EncodedMetadata) else None,
        copies=recipe.copies,
        window=getattr(inputs.source, "window", None),
        **fitted_on_validation(task, scores),
    ).save(folder.path)
    return replace(finished(folder, results(found, guard)), stage_scores=made)


def aucs_of(task: Task, scores: Mapping[str, PartScores]) -> Aucs:
    """By part and label, of scores (n, L) by part."""
    return {part: part_auc(task, part, values) for part, values in scores.items()}


def finished(folder: RunFolder, results: Results) -> Run:
    """The run, its results and the hashes of its files written down; DONE comes last."""
    folder.write_record(folder.record().changed(results=results.to_plain(), **digests(folder.path)))
    folder.finish()
    return Run(folder.path)


def _guard(trainer: Trainer, made: dict[int, dict[str, PartScores]]) -> Guard:
    """Which stage's network is best on validation, with the paired test against the last; leaves it in the trainer.

    made: the scores of the last stage, to which those of the earlier ones on validation are added.
    """
    folder, task = trainer.folder, trainer.task
    rows = task.labelled("validation")
    last = len(trainer.recipe.stages) - 1
    earlier = [number for number in range(last) if not trainer.recipe.stages[number].on_views]
    for number in earlier:
        trainer.load_network(folder.stage_path(number))
        # On features scores cost nothing, and on images whoever needs the others of this stage would pay for them.
        parts = ("validation",) if trainer.frozen is None else tuple(task.parts)
        made[number] = {part: trainer.scores(part, final=True) for part in parts}
    scores = {number: parts["validation"] for number, parts in made.items()}
    aucs = {number: mean_auc(part_auc(task, "validation", values)) for number, values in scores.items()}
    measure = own_measure(trainer.recipe.stages[last].objective)
    own = {} if measure is None else {n: measure.mean(task, "validation", values) for n, values in scores.items()}
    judged = own or aucs
    winner = max(judged, key=lambda number: (judged[number], number))  # of equals the later stage
    trainer.load_network(folder.stage_path(winner))
    tests = {}
    if task.kind == "binary":
        known = np.isin(task.labels[rows], (0, 1))  # an uncertain label is neither
        labels, groups = task.labels[rows[known]], None if task.groups is None else task.groups[rows[known]]
        for number in earlier if _can_be_tested(labels, groups) else ():
            both = scores[last][known, 0], scores[number][known, 0]
            tests[number] = compare_auroc(*both, labels, groups=groups)
    chosen_by = None if measure is None else measure.name
    return Guard(winner=winner, validation_auc=aucs, last_minus_stage=tests, chosen_by=chosen_by, own_values=own)


def _can_be_tested(labels: Array, groups: Array | None) -> bool:
    """Whether both classes have two rows (two patients, where they are named): a variance needs so many."""
    units = np.arange(len(labels)) if groups is None else groups
    return all(len(np.unique(units[labels == value])) > 1 for value in (0, 1))
