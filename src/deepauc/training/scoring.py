"""Scores of a task's rows by a network, and their AUC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.augment.batch import Augment
from deepauc.data.bags import BagInputs
from deepauc.data.task import Task
from deepauc.labels import Diverged
from deepauc.metrics.intervals import Estimate, auroc_with_limits
from deepauc.models.bags import PoolsImages, of_one_bag
from deepauc.training.preprocessing import Preprocessing

BATCH = 256
CPU_PIXELS, LEAST = 1 << 19, 8  # of a batch on a CPU: memory for larger activations is asked for anew in every layer
NAMED = 5  # rows without a score, in a message
DEVICE_NUMBERS = 1 << 23  # of a batch's inputs on a GPU: some hundred launches a batch, whatever its size


def scoring_batch(task: Task, device: torch.device) -> int:
    """Rows that pass the network at once."""
    shape = task.source.shape
    if device.type != "cpu":
        return max(32, DEVICE_NUMBERS // int(np.prod(shape)))
    return max(LEAST, min(BATCH, CPU_PIXELS // (shape[0] * shape[1]))) if len(shape) == 3 else BATCH


@torch.no_grad()
def score_rows(
    model: nn.Module,
    task: Task,
    rows: npt.NDArray[np.int64],
    preprocessing: Preprocessing,
    device: torch.device,
    *,
    augment: Augment | None = None,
    parameters: Tensor | None = None,
    resident: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.float32]:
    """The network's raw output for these rows in eval mode, (n, L). One row's score never depends on others.

    augment, parameters: change each image by its row of `parameters`, (n, k), first. resident: inputs that lie on the
    device already; `rows` counts in both, so they are the whole task's or the same part of it. progress: called with
    (rows done, rows in all). Of bags all images are seen, a few at a time.
    """
    training = model.training
    model.eval()
    # One tensor for all: small ones kept from every batch pin the large ones' places, and memory grows with the rows.
    found = torch.zeros(len(rows), task.num_labels, device=device)
    batch = scoring_batch(task, device)
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        changes = None if augment is None or parameters is None else (augment, parameters[some])
        if isinstance(task.source, BagInputs):
            assert isinstance(model, PoolsImages)
            outputs = image_outputs(model, task.source, some, preprocessing, device, changes=changes)
            # Bag by bag: a score depends on its own images alone, to the last bit.
            each = torch.split(outputs, task.source.sizes[some].tolist())
            scores = torch.cat([of_one_bag(model, own) for own in each])
        else:
            if resident is not None:
                inputs = resident[torch.from_numpy(some).to(device)]
            else:
                inputs = torch.from_numpy(task.inputs(some)).to(device)
            if changes is not None:
                inputs = changes[0].apply(inputs, changes[1].to(device))
            scores = model(preprocessing(inputs))
        found[start : start + len(some)] = scores
        if progress is not None:
            progress(start + len(some), len(rows))
    model.train(training)
    return found.cpu().numpy()


@torch.no_grad()
def image_outputs(
    model: nn.Module,
    source: BagInputs,
    bags: npt.NDArray[np.int64],
    preprocessing: Preprocessing,
    device: torch.device,
    *,
    changes: tuple[Augment, Tensor] | None = None,
) -> Tensor:
    """What a network of bags keeps of each of their images, (images, k), a few images at a time; in eval mode.

    changes: what becomes of all images of a bag, (n, k).
    """
    assert isinstance(model, PoolsImages)
    rows = source.of_bags(bags)
    bag_of = np.repeat(np.arange(len(bags)), source.sizes[bags])
    outputs = torch.zeros(len(rows), model.num_image_outputs, device=device)
    for start in range(0, len(rows), BATCH):
        inputs = torch.from_numpy(source.images(rows[start : start + BATCH])).to(device)
        if changes is not None:
            augment, parameters = changes
            inputs = augment.apply(inputs, parameters[bag_of[start : start + BATCH]].to(device))
        outputs[start : start + len(inputs)] = model.image_outputs(preprocessing(inputs))
    return outputs


def require_finite(scores: npt.NDArray[Any], names: npt.NDArray[Any], *, of: str) -> None:
    """`Diverged`, naming the rows whose scores (n,) or (n, L) are no finite numbers. of: whose scores they are."""
    bad = np.flatnonzero(~np.isfinite(scores).reshape(len(scores), -1).all(axis=1))
    if not len(bad):
        return
    rows = f"{len(bad):,} of {len(scores):,} row{'s' * (len(scores) != 1)}"
    if len(bad) == len(scores) > 1:
        raise Diverged(f"{of}: the scores of all {rows} are NaN or infinite. Has the training diverged? Lower lr.")
    shown = ", ".join(str(names[row])[:60] for row in bad[:NAMED]) + (", ..." if len(bad) > NAMED else "")
    raise Diverged(
        f"{of}: the scores of {rows} are NaN or infinite ({shown}). The numbers in such a row are too large for the "
        "network: correct the row, or leave it out."
    )


def part_auc(task: Task, part: str, scores: npt.NDArray[np.float32]) -> dict[str, Estimate[float]]:
    """AUC with its DeLong interval by label name; a label with one class only in this part is left out.

    Over patients, where a patient has several rows.
    """
    rows = task.labelled(part)
    require_finite(scores, rows if task.ids is None else task.ids[rows], of=f"the {part} part")
    patients = np.arange(len(rows)) if task.groups is None else task.groups[rows]
    found = {}
    for name, h, y, known in labels_with_both_classes(task, part, scores):
        several = len(np.unique(patients[known])) < known.sum()
        found[name] = auroc_with_limits(h, y, groups=patients[known] if several else None)
    return found


def labels_with_both_classes(
    task: Task, part: str, scores: npt.NDArray[np.float32]
) -> Iterator[tuple[str, npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_]]]:
    """Each with the scores and labels of the rows where it is 0 or 1, and which of the part's labelled rows these are.

    An uncertain label is neither. scores: of the part's labelled rows, (n, L) or (n,).
    """
    labels = task.labels[task.labelled(part)].reshape(len(scores), -1)
    for name, y, h in zip(task.label_names, labels.T, scores.reshape(len(scores), -1).T, strict=True):
        known = (y == 0) | (y == 1)
        if (y == 0).any() and (y == 1).any():
            yield name, h[known], y[known], known


def mean_auc(estimates: dict[str, Estimate[float]]) -> float:
    """Mean over labels; NaN where no label has both classes."""
    return float(np.mean([e.value for e in estimates.values()])) if estimates else float("nan")
