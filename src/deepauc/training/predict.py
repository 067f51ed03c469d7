"""`predict`: scores by one run or many, with test-time augmentation, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.augment import Augment
from deepauc.data.counter import hash_key
from deepauc.data.task import Task
from deepauc.models.fusion import MetadataEncoder, ensemble
from deepauc.training.bundle import Bundle
from deepauc.training.loop import chosen_device
from deepauc.training.metadata import metadata_task
from deepauc.training.plain import from_plain
from deepauc.training.run import Run
from deepauc.training.scoring import score_rows

Progress = Callable[[int, int], None]
Scores = npt.NDArray[np.floating[Any]]


def predict(
    runs: Run | str | Path | Sequence[Run | str | Path],
    task: Task,
    *,
    rows: npt.ArrayLike | None = None,
    tta: int = 0,
    augment: Augment | None = None,
    scale: Literal["sigmoid", "rank"] = "sigmoid",
    weights: Sequence[float] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Scores:
    """Scores of the task's rows (all by default), (n,) or (n, L).

    One run gives the network's raw output; several are averaged per label after a sigmoid or as ranks, since AUC scores
    have no common scale (in float64: a float32 sigmoid ties at 1). tta: the mean raw output over so many augmented
    copies of each image, deterministic by seed; `augment` defaults to that of the run's last stage (where the guard
    kept an earlier one, of that), without mixup, and never comes from a stage on views.
    A run on metadata reads the task's metadata. progress: called with (rows done, rows in all), each row counted once
    for every run and every augmented copy.
    """
    members = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if not members:
        raise ValueError("predict needs at least one run.")
    if tta < 0:
        raise ValueError(f"tta is a number of augmented copies, at least 0, not {tta}.")
    chosen = np.arange(len(task)) if rows is None else np.asarray(rows, dtype=np.int64)
    target = chosen_device(device)
    folders = [member.path if isinstance(member, Run) else Path(member) for member in members]
    bundles = [Bundle.load(folder) for folder in folders]
    if len({bundle.label_names for bundle in bundles}) > 1:
        raise ValueError("the runs have different labels and cannot be averaged.")
    passes = max(1, tta) * len(chosen)
    scores = [
        _predict_one(
            folder,
            bundle,
            task,
            chosen,
            tta=tta,
            augment=augment,
            seed=seed,
            device=target,
            progress=shifted_progress(progress, number * passes, len(folders) * passes),
        )
        for number, (folder, bundle) in enumerate(zip(folders, bundles, strict=True))
    ]
    mean = scores[0] if len(scores) == 1 else ensemble(scores, scale=scale, weights=weights)
    return mean[:, 0] if bundles[0].kind == "binary" else mean


def shifted_progress(progress: Progress | None, before: int, total: int) -> Progress | None:
    """The same for a part of the work, before which so much was done."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _predict_one(
    folder: Path,
    bundle: Bundle,
    task: Task,
    rows: npt.NDArray[np.int64],
    *,
    tta: int,
    augment: Augment | None,
    seed: int,
    device: torch.device,
    progress: Progress | None,
) -> Scores:
    if bundle.metadata is not None:
        task, _ = metadata_task(task, MetadataEncoder.from_dict(bundle.metadata))
    if tuple(task.source.shape) != bundle.shape:
        raise ValueError(
            f"{folder} was trained on inputs of shape {bundle.shape}, the task has {tuple(task.source.shape)}: "
            "read the images at that size."
        )
    model = bundle.network(folder).to(device)
    if not tta or not bundle.preprocessing.images:
        return score_rows(model, task, rows, bundle.preprocessing, device, progress=progress)
    change = augment or kept_augment(folder)
    if change is None:
        raise ValueError(
            f"the stage kept in {folder} was trained without augmentation: pass augment=Augment(...) for tta."
        )
    total = np.zeros((len(rows), len(bundle.label_names)))
    for copy in range(tta):
        table = change.draw(len(task), seed=hash_key(seed, copy) >> 1, epoch=0, view=1)
        total += score_rows(
            model,
            task,
            rows,
            bundle.preprocessing,
            device,
            augment=change,
            parameters=table.values,
            progress=shifted_progress(progress, copy * len(rows), tta * len(rows)),
        )
    return (total / tta).astype(np.float32)


def kept_augment(folder: Path) -> Augment | None:
    """That of the stage whose network a run has kept, without mixup; None where it had none.

    No other stage's stands in for it: SimCLR's crops, say, are not what the classifier was trained on.
    """
    record = Run(folder).record
    guard = record["results"].get("guard")
    stage = record["recipe"]["stages"][guard["winner"] if guard else -1]
    if stage["augment"] is None or stage.get("views", 1) > 1:
        return None
    return from_plain({**stage["augment"], "mixup": 0.0})
