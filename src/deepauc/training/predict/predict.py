"""`predict`: scores by one run or many, with test-time augmentation, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.task import Task
from deepauc.models.fusion import MetadataEncoder, Scale, ensemble
from deepauc.training.engine.loop import chosen_device
from deepauc.training.plain import from_plain
from deepauc.training.predict.validation_weights import validation_weights
from deepauc.training.prepare.encoded_metadata import joint_task, metadata_task
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.own_files import BUNDLE, MODEL, SCORES, require_own
from deepauc.training.run.run import Run
from deepauc.training.scoring import require_finite
from deepauc.training.test_time import Copies, passes, score_copies, shifted_progress

Progress = Callable[[int, int], None]
ScoreArray = npt.NDArray[np.floating[Any]]


def predict(
    runs: Run | str | Path | Sequence[Run | str | Path],
    task: Task,
    *,
    rows: npt.ArrayLike | None = None,
    tta: int | None = None,
    augment: Augment | None = None,
    scale: Scale | None = None,
    weights: Sequence[float] | Literal["learned"] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ScoreArray:
    """Scores of the task's rows, (n,) or (n, L).

    One run gives the network's raw output; several are averaged per label, since AUC scores have no common scale (in
    float64: a float32 sigmoid ties at 1). A score that is no finite number is a ValueError that names its row. A run on
    metadata reads the task's metadata.

    Args:
        runs: One run or several.
        task: The data.
        rows: Row numbers; None: all.
        tta: Score the mean raw output over this many augmented copies of each image. None: as many as the run's own
            scores are the mean of (the recipe's `tta`); 0: the image as it is.
        augment: How copies are changed. None: as in the last stage of the run (where the guard kept an earlier one, of
            that), without mixup, and never as in a stage on views.
        scale: How several runs are averaged: after a sigmoid (the default), or as ranks.
        weights: How much each run counts, all alike by default; "learned" finds it on the validation part that the runs
            share, and the score is then the mean of raw scores, each standardised as there (`metrics.learned_weights`).
        seed: Of the copies, which are made alike of every image.
        device: None takes a GPU when there is one.
        force: Go on although a file is not the one that the run wrote, which is refused otherwise.
        progress: Called with (rows done, rows in all), each row counted once for every run and every augmented copy.
    """
    given = [runs] if isinstance(runs, Run | str | Path) else runs
    members = Members.of(given, scale=scale, weights=weights, tta=tta, augment=augment, force=force)
    chosen = np.arange(len(task)) if rows is None else np.asarray(rows, dtype=np.int64)
    target = chosen_device(device)
    average: Callable[[Sequence[ScoreArray]], ScoreArray]
    if isinstance(weights, str):  # before rows are scored, which may take long
        average = validation_weights(weights, members.folders, members.bundles[0].label_names).scores
    else:
        average = partial(ensemble, scale=members.scale, weights=weights)
    ends = np.cumsum([0, *(passes(some) * len(chosen) for some in members.copies)]).tolist()
    each = zip(members.folders, members.bundles, members.copies, ends[:-1], strict=True)
    scores = [
        _predict_one(folder, bundle, task, chosen, some, seed, target, shifted_progress(progress, before, ends[-1]))
        for folder, bundle, some, before in each
    ]
    mean = scores[0] if len(scores) == 1 else average(scores)
    return mean[:, 0] if members.bundles[0].kind == "binary" else mean


@dataclass(frozen=True, kw_only=True)
class Members:
    """Runs that score the same rows, and the copies that each makes of an image.

    scale: on which scores are averaged. cautions: files that are not the runs' own.
    """

    folders: list[Path]
    bundles: list[Bundle]
    copies: list[Copies | None]
    scale: Scale
    cautions: tuple[str, ...]

    @classmethod
    def of(
        cls,
        runs: Sequence[Run | str | Path],
        *,
        scale: Scale | None,
        weights: Sequence[float] | str | None,
        tta: int | None,
        augment: Augment | None = None,
        parts: bool = False,
        force: bool = False,
    ) -> Members:
        """What cannot be scored or averaged as asked is refused before anything is scored, which may take long.

        parts: those of the runs' rows are asked for too.
        """
        if not runs:
            raise ValueError("predict needs at least one run.")
        known = _averaging_scale(scale, runs=len(runs), weights=weights)
        if tta is not None and tta < 0:
            raise ValueError(f"tta is a number of augmented copies, at least 0, not {tta}.")
        folders = [run.path if isinstance(run, Run) else Path(run) for run in runs]
        bundles = [Bundle.load(folder) for folder in folders]
        used = (MODEL, BUNDLE, SCORES) if parts or isinstance(weights, str) else (MODEL, BUNDLE)
        cautions = tuple(text for folder in folders for text in require_own(folder, *used, force=force))
        if len({bundle.label_names for bundle in bundles}) > 1:
            raise ValueError("the runs have different labels and cannot be averaged.")
        # Beside a run on images one on metadata has no copies, as it should be; alone it could not do as asked.
        if tta and not any(bundle.preprocessing.images for bundle in bundles):
            raise ValueError("tta averages augmented copies of an image, and these inputs are numbers: leave it out.")
        copies = [_wanted_copies(*both, tta, augment) for both in zip(folders, bundles, strict=True)]
        return cls(folders=folders, bundles=bundles, copies=copies, scale=known, cautions=cautions)


def _averaging_scale(scale: Scale | None, *, runs: int, weights: Sequence[float] | str | None) -> Scale:
    """How so many runs are averaged."""
    if scale is not None and scale not in get_args(Scale):
        raise ValueError(f"scale must be 'sigmoid' or 'rank', not {scale!r}.")
    if scale is not None and runs == 1:
        raise ValueError(
            "scale is for the average of several runs, and one run gives its raw scores: leave it out, or name more "
            "runs (for probabilities: predict_table with probability=True, deepauc predict --probability)."
        )
    if weights is not None and runs == 1:
        raise ValueError("weights are for the average of several runs, and this is one run: leave them out.")
    if scale is not None and isinstance(weights, str):
        raise ValueError("learned weights have their own scale (scores standardised on validation): leave scale out.")
    return scale or "sigmoid"


def _wanted_copies(folder: Path, bundle: Bundle, tta: int | None, augment: Augment | None) -> Copies | None:
    """Copies that a score of this run is to be the mean of: `tta` of them, or by None as many as the run's own."""
    own = bundle.copies
    if not bundle.preprocessing.images or tta == 0 or (tta is None and own is None):
        return None
    change = augment or (kept_augment(folder) if own is None else own.augment)
    if change is None:
        raise ValueError(
            f"the stage kept in {folder} was trained without augmentation: pass augment=Augment(...) for tta."
        )
    change.require_fit(*bundle.shape[:2])
    number = own.number if tta is None and own is not None else tta
    return Copies(number=number or 0, augment=replace(change, mixup=0.0))


def _predict_one(
    folder: Path,
    bundle: Bundle,
    task: Task,
    rows: npt.NDArray[np.int64],
    copies: Copies | None,
    seed: int,
    device: torch.device,
    progress: Progress | None,
) -> ScoreArray:
    encoded = not task.metadata and tuple(task.source.shape) == bundle.shape
    if bundle.metadata is not None and not encoded and bundle.picture is not None:
        task = joint_task(task, MetadataEncoder.from_dict(bundle.metadata))
    elif bundle.metadata is not None and not encoded:
        task, _ = metadata_task(task, MetadataEncoder.from_dict(bundle.metadata))
    if tuple(task.source.shape) != bundle.shape:
        raise ValueError(
            f"{folder} was trained on inputs of shape {bundle.shape}, the task has {tuple(task.source.shape)}: "
            + ("read the images at that size." if bundle.preprocessing.images else "give it the same features.")
        )
    model = bundle.network(folder).to(device)
    scores = score_copies(model, task, rows, bundle.preprocessing, device, copies=copies, seed=seed, progress=progress)
    require_finite(scores, rows if task.ids is None else task.ids[rows], of=str(folder))
    return scores


def kept_augment(folder: Path) -> Augment | None:
    """That of the stage whose network a run has kept, without mixup; None where it had none.

    No other stage's stands in for it: SimCLR's crops, say, are not what the classifier was trained on.
    """
    if not (folder / "run.json").exists():
        raise ValueError(
            f"{folder} does not record how images were changed in training: for tta name the run it comes from, or "
            "pass augment=Augment(...)."
        )
    record = Run(folder).record
    stage = record.stages[record.kept_stage] if record.stages else None
    if stage is None or stage.augment is None or stage.views > 1:
        return None
    augment = from_plain({**stage.augment, "mixup": 0.0})
    return augment if isinstance(augment, Augment) else None
