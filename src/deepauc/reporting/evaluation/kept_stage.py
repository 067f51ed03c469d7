"""Which stage's network a run kept, and the scores of the last stage where that is not the one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from deepauc.data.task import Task
from deepauc.metrics.intervals import Estimate
from deepauc.reporting.evaluation.sample import attempt, sample_of
from deepauc.reporting.evaluation.within_folds import part_interval
from deepauc.training.engine.loop import chosen_device
from deepauc.training.run.bundle import Bundle, load_weights
from deepauc.training.run.folder import RunFolder
from deepauc.training.run.own_files import SCORES
from deepauc.training.run.run import LAST_STAGE, Run
from deepauc.training.run.scores import read_run_scores, write_run_scores


def score_last_stage(run: Run, task: Task, *, device: str | torch.device | None = None) -> Path | None:
    """`RUN/last-stage/scores.csv` by the last stage's weights, where the guard kept an earlier stage; else None.

    Training writes it; runs of earlier versions are scored here. Rows and columns are those of the run's own
    scores.csv, so that the two can be compared.
    """
    record, own = run.record, RunFolder(run.path)
    last = len(record.stages) - 1
    if record.kept_stage == last or not own.stage_path(last).exists():
        return None
    folder = RunFolder(run.path / LAST_STAGE)
    scores_path = folder.path / SCORES
    if not scores_path.exists():
        target, bundle = chosen_device(device), Bundle.load(run.path)
        model = bundle.network(run.path).to(target)
        load_weights(own.stage_path(last), model)
        folder.path.mkdir(exist_ok=True)
        write_run_scores(folder.path, task, bundle.scores(model, task, target))
    return scores_path


def auc_intervals(folder: Path, label_names: Sequence[str]) -> dict[str, dict[str, Estimate[float]]]:
    """AUC by part and label of a folder's scores.csv, as in the report: by patient where patients have several rows.

    A label that has none in a part (one class only) is left out there.
    """
    table = read_run_scores(folder)
    found: dict[str, dict[str, Estimate[float]]] = {part: {} for part in table.part_names}
    for part, labels in found.items():
        for number, name in enumerate(label_names):
            sample = sample_of(table.part(part), number).labelled()
            auc = attempt(partial(part_interval, sample))
            if isinstance(auc, Estimate):
                labels[name] = auc
    return found
