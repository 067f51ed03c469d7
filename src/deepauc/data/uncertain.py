"""Uncertain labels: what becomes of CheXpert's -1, and of what a report does not mention (the paper, 4.2.1).

`ones` and `zeros` take the uncertain case as positive or negative. The smoothed forms are soft labels for the
cross-entropy stage (Pham et al., "Interpreting chest X-rays via CNNs that exploit hierarchical disease dependencies
and uncertainty labels", 2021): U-ones are drawn from U(0.55, 0.85), U-zeros from U(0, 0.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from deepauc.data.counter import fixed_uniforms
from deepauc.data.task import UNCERTAIN, Floats, Task

Choice = Literal["ignore", "zeros", "ones", "smooth_zeros", "smooth_ones", "keep"]
Policy = Choice | Mapping[str, Choice]
NotMentioned = Literal["zeros", "ignore"]

SMOOTH_ONES = (0.55, 0.85)
SMOOTH_ZEROS = (0.0, 0.3)
_HARD: dict[Choice, Choice] = {"smooth_zeros": "zeros", "smooth_ones": "ones"}


def resolve(
    labels: npt.ArrayLike,
    policy: Policy,
    *,
    label_names: Sequence[str] | None = None,
    not_mentioned: NotMentioned = "zeros",
    seed: int = 0,
) -> Floats:
    """Uncertain labels as labels in [0, 1], with NaN where they are ignored.

    Args:
        labels: 1, 0, -1 (uncertain) or NaN (not mentioned); (N,) or (N, L).
        policy: One choice for all labels, or a mapping from each label's name to its choice: "ignore", "zeros", "ones",
            "smooth_zeros", "smooth_ones", or "keep", which leaves -1 in place for a later stage to decide.
        label_names: The labels' names, where `policy` is a mapping.
        not_mentioned: "zeros" as LibAUC's CheXpert loader has it, or "ignore".
        seed: The smoothed value of an entry depends on its place in `labels` and on this alone.
    """
    values = np.array(labels, dtype=np.float32)
    if values.ndim not in (1, 2):
        raise ValueError(f"labels have shape {values.shape}; they must be (N,) or (N, L).")
    if not (np.isnan(values) | np.isin(values, (0, 1, UNCERTAIN))).all():
        raise ValueError("labels must be 1, 0, -1 (uncertain) or NaN (not mentioned). Were they smoothed already?")
    if not_mentioned not in get_args(NotMentioned):
        raise ValueError(f"not_mentioned must be 'zeros' or 'ignore', not {not_mentioned!r}.")
    columns = values.reshape(len(values), values.shape[1] if values.ndim == 2 else 1)
    uncertain = columns == UNCERTAIN
    draws = fixed_uniforms(columns.size, seed=seed, stream="uncertain labels").reshape(columns.shape)
    for column, choice in enumerate(_choices(policy, columns.shape[1], label_names)):
        where = uncertain[:, column]
        columns[where, column] = _replacement(choice, draws[where, column])
    if not_mentioned == "zeros":
        # `ignore` has put NaN where the label was uncertain; only the cells that were empty before become 0.
        columns[np.isnan(columns) & ~uncertain] = 0
    return columns.reshape(values.shape)


def resolve_task(task: Task, policy: Policy, *, seed: int = 0) -> Task:
    """`resolve` for the labels of a task; smoothed in the training part, hard (0 or 1) elsewhere.

    Empty labels stay missing: whoever built the task has decided about them. A row of validation or test that is left
    without any label leaves its part.

    Args:
        task: Its labels may be -1 (uncertain).
    """
    hard: Policy = _harden(policy) if isinstance(policy, str) else {k: _harden(v) for k, v in policy.items()}
    soft_labels = resolve(task.labels, policy, label_names=task.label_names, not_mentioned="ignore", seed=seed)
    labels = resolve(task.labels, hard, label_names=task.label_names, not_mentioned="ignore", seed=seed)
    if "train" in task.parts:
        labels[task.parts["train"]] = soft_labels[task.parts["train"]]
    empty = np.asarray(np.isnan(labels.reshape(len(labels), task.num_labels)).all(axis=1))
    parts = {name: rows if name == "train" else rows[~empty[rows]] for name, rows in task.parts.items()}
    return task.with_parts(parts).with_labels(labels)


def _choices(policy: Policy, num_labels: int, label_names: Sequence[str] | None) -> list[Choice]:
    if isinstance(policy, str):
        return [_known(policy)] * num_labels
    if label_names is None or len(label_names) != num_labels:
        raise ValueError(f"a choice per label needs label_names, one for each of the {num_labels} labels.")
    if set(policy) != set(label_names):
        wrong = ", ".join(sorted(set(policy) ^ set(label_names)))
        raise ValueError(f"name a choice for each label and for nothing else. Missing or unknown: {wrong}.")
    return [_known(policy[name]) for name in label_names]


def _known(choice: Choice) -> Choice:
    if choice not in get_args(Choice):
        raise ValueError(f"{choice!r} is not a choice for uncertain labels; choose from {', '.join(get_args(Choice))}.")
    return choice


def _harden(choice: Choice) -> Choice:
    return _HARD.get(choice, choice)


def _replacement(choice: Choice, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | float:
    match choice:
        case "ignore":
            return np.nan
        case "zeros":
            return 0.0
        case "ones":
            return 1.0
        case "keep":
            return UNCERTAIN
        case "smooth_zeros":
            low, high = SMOOTH_ZEROS
        case "smooth_ones":
            low, high = SMOOTH_ONES
    return low + (high - low) * draws
