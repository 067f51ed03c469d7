"""Rows without a label: how many a self-supervised stage learns from, and why the others are left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from deepauc.data.splits import trainable_rows
from deepauc.data.task import Task
from deepauc.training.plan.decision import Decision, Fact
from deepauc.training.recipe import Recipe, Stage


@dataclass(frozen=True, kw_only=True)
class UnlabelledRows:
    """Counts that add up to all unlabelled rows of a task.

    may_join: rows a self-supervised stage may learn from. of_held_out_patient: their patient is in validation or test.
    held_out: in no part, though no patient says so: the table's own split has them in validation or test, or they are
    the same image as a row there. joined: what stages of the recipe learn from, `may_join` or 0.
    """

    rows: int
    may_join: int
    of_held_out_patient: int
    held_out: int
    joined: int


def count_unlabelled(task: Task, recipe: Recipe) -> UnlabelledRows:
    """What the stages of a recipe see of a task's unlabelled rows; the stream of a stage sees the same."""
    labels = task.labels.reshape(len(task), task.num_labels)
    unlabelled = np.isnan(labels).all(axis=1)
    may_join = np.zeros(len(task), dtype=bool)
    may_join[trainable_rows(task)] = True
    left = unlabelled & ~may_join
    patient = np.zeros(len(task), dtype=bool)
    held_out = [rows for part, rows in task.parts.items() if part != "train"]
    if task.groups is not None and held_out:
        patient = left & np.isin(task.groups, task.groups[np.concatenate(held_out)])
    count = int((unlabelled & may_join).sum())
    return UnlabelledRows(
        rows=int(unlabelled.sum()),
        may_join=count,
        of_held_out_patient=int(patient.sum()),
        held_out=int((left & ~patient).sum()),
        joined=count if any(_takes_unlabelled(stage) for stage in recipe.stages) else 0,
    )


def unlabelled_decision(found: UnlabelledRows, *, group_word: str = "patient") -> Decision | None:
    """None where every row has a label. group_word: what a group is called."""
    if not found.rows:
        return None
    reason = ["learns" if found.joined else "no stage" if found.may_join else "none"]
    if found.of_held_out_patient:
        reason.append("held-out group")
    if found.held_out:
        reason.append("held out")
    facts: dict[str, Fact] = {**asdict(found), "group": group_word}
    return Decision(name="unlabelled rows", value=found.joined, reason=tuple(reason), rests_on=facts)


def _takes_unlabelled(stage: Stage) -> bool:
    return stage.on_views and stage.positives_per_batch is None  # a quota counts labels
