"""The paper's imbalanced training sets (sec. 4.1), and the noisy and easy variants of its ablations (sec. 5).

Everything that is drawn depends on (seed, the labels' order) alone: the same set on every machine, for ever.
The five random training sets of a benchmark cell are the seeds 0 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.counter import fixed_permutation
from deepauc.data.splits import split_by_fractions
from deepauc.data.task import Floats, Indices, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class ImbalancedSet:
    """A training set made from a balanced one: its rows, their labels, and the positives that were taken away."""

    rows: Indices  # (n,) ascending
    labels: Floats  # (n,) 0/1, noise included
    removed: Indices  # (r,) ascending: removed positives that are not (or not yet) back in `rows`
    removed_at_first: int  # what the percentages of `with_noise` and `with_easy` refer to

    @property
    def positive_share(self) -> float:
        """#pos / #all of the labels as they stand: the prior after noise or easy rows came in."""
        return float(self.labels.mean(dtype=np.float64))

    def task(self, task: Task) -> Task:
        """`task` with this set as its training part; removed positives are in no part, for no stage."""
        if task.kind != "binary":
            raise ValueError("an imbalanced set needs a binary task, and this one is multi-label: choose one label.")
        labels = task.labels.copy()
        labels[self.rows] = self.labels
        return task.with_labels(labels).with_parts({**task.parts, "train": self.rows})


def positive_classes(num_classes: int, *, seed: int | None = None) -> tuple[int, ...]:
    """Half of the class ids: the upper half, or with a seed a random half; the smaller half of an odd number."""
    if num_classes < 2:
        raise ValueError(f"two halves need at least two classes, not {num_classes}.")
    order = np.arange(num_classes) if seed is None else fixed_permutation(num_classes, seed=seed, stream="classes")
    return tuple(int(c) for c in np.sort(order[num_classes - num_classes // 2 :]))


def binarise(classes: npt.NDArray[Any], positive: Collection[int]) -> Floats:
    """1 where the class id is one of `positive`, else 0; shape (N,)."""
    return np.isin(classes, np.fromiter(positive, dtype=np.int64)).astype(np.float32)


def positives_for(negatives: int, imratio: float) -> int:
    """How many positives make #pos / #all = imratio beside so many negatives, to the nearest integer, at least 1."""
    if not 0 < imratio < 1:
        raise ValueError(f"imratio is the share of positives, between 0 and 1, not {imratio}.")
    return max(1, math.floor(negatives * imratio / (1 - imratio) + 0.5))


def make_imbalanced(labels: npt.ArrayLike, *, imratio: float, seed: int, rows: Indices | None = None) -> ImbalancedSet:
    """Remove positives at random until #pos / #all is `imratio`; negatives all stay (D1).

    Args:
        labels: (N,), 0/1.
        imratio: Share of positives that is left.
        seed: For one seed the set of a smaller imratio is contained in that of a larger one.
        rows: Those that form the balanced training set, ascending; by default all.
    """
    values = np.asarray(labels, dtype=np.float32)
    chosen = np.arange(len(values)) if rows is None else np.sort(np.asarray(rows, dtype=np.int64))
    if values.ndim != 1 or not np.isin(values[chosen], (0, 1)).all():
        raise ValueError("make_imbalanced needs labels of 0 and 1, shape (N,). `binarise` makes them from class ids.")
    negatives, positives = chosen[values[chosen] == 0], chosen[values[chosen] == 1]
    wanted = positives_for(len(negatives), imratio)
    if wanted > len(positives):
        raise ValueError(
            f"imratio {imratio:g} with {len(negatives)} negatives needs {wanted} positives, but there are only "
            f"{len(positives)}. Positives are only removed, never added: choose a smaller imratio."
        )
    order = positives[fixed_permutation(len(positives), seed=seed, stream="imbalance")]
    kept = np.sort(np.concatenate([negatives, order[:wanted]]))
    return ImbalancedSet(
        rows=kept, labels=values[kept], removed=np.sort(order[wanted:]), removed_at_first=len(positives) - wanted
    )


def imbalance_task(task: Task, *, imratio: float, seed: int) -> ImbalancedSet:
    """`make_imbalanced` on the training part of a task; `.task(task)` puts the result back.

    Args:
        task: The task whose training part is thinned out.
    """
    return make_imbalanced(task.labels, imratio=imratio, seed=seed, rows=task.part("train"))


def imbalanced(task: Task, *, imratio: float, seed: int) -> Task:
    """`task` with positives removed from train until #pos / #all is imratio (D1); other parts are untouched."""
    made = imbalance_task(task, imratio=imratio, seed=seed).task(task)
    return replace(made, name=f"{task.name}, imratio {imratio:g}, set {seed}")


def with_noise(training_set: ImbalancedSet, *, share: float, seed: int) -> ImbalancedSet:
    """Ablation A3: `share` of the negatives become positive, `share` of the removed positives come in as negatives.

    Counts are to the nearest integer, of the negatives in the set and of the positives removed at first. With easy
    rows too (A5), add those first: noise then takes from the removed positives that are left.
    """
    negatives = np.flatnonzero(training_set.labels == 0)
    flipped = negatives[
        fixed_permutation(len(negatives), seed=seed, stream="flip negatives")[: _share_of(len(negatives), share)]
    ]
    added = _share_of(training_set.removed_at_first, share)
    if added > len(training_set.removed):
        raise ValueError(f"cannot add back {added} removed positives: only {len(training_set.removed)} are left.")
    order = fixed_permutation(len(training_set.removed), seed=seed, stream="add removed positives")
    labels = training_set.labels.copy()
    labels[flipped] = 1
    return _added(replace(training_set, labels=labels), training_set.removed[np.sort(order[:added])], label=0)


def with_easy(training_set: ImbalancedSet, scores: npt.ArrayLike, *, share: float) -> ImbalancedSet:
    """Ablation A4: the `share` of the removed positives that a cross-entropy model scores highest come in as positives.

    scores: one for each entry of `training_set.removed`; ties go to the smaller row number.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != training_set.removed.shape or not np.isfinite(values).all():
        raise ValueError(
            f"scores have shape {values.shape}; give one finite score for each of the "
            f"{len(training_set.removed)} removed positives, in the order of `.removed`."
        )
    added = _share_of(training_set.removed_at_first, share)
    if added > len(training_set.removed):
        raise ValueError(f"cannot add back {added} removed positives: only {len(training_set.removed)} are left.")
    order = np.argsort(-values, kind="stable")
    return _added(training_set, np.sort(training_set.removed[order[:added]]), label=1)


def tuning_task(task: Task, *, seed: int, validation: float = 0.1) -> Task:
    """The 9 : 1 stratified split of the training part for tuning; the final fit runs on `task` itself, on all of it."""
    if "validation" in task.parts:
        raise ValueError(f"task {task.name!r} has a validation part already.")
    return split_by_fractions(task, fractions={"train": 1 - validation, "validation": validation}, seed=seed)


def _share_of(count: int, share: float) -> int:
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie between 0 and 1 (0.01 is one per cent), not {share}.")
    return math.floor(count * share + 0.5)


def _added(training_set: ImbalancedSet, rows: Indices, *, label: int) -> ImbalancedSet:
    joined = np.concatenate([training_set.rows, rows])
    labels = np.concatenate([training_set.labels, np.full(len(rows), label, dtype=np.float32)])
    order = np.argsort(joined, kind="stable")
    left = training_set.removed[~np.isin(training_set.removed, rows)]
    return replace(training_set, rows=joined[order], labels=labels[order], removed=left)
