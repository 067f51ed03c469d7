"""Weights of several runs, learned on the validation part that they share: from their scores.csv alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.learned_weights import LearnedWeights, learn_weights
from deepauc.names import counted
from deepauc.training.predict.known_rows import names_rows, part_by_id
from deepauc.training.run.own_files import SCORES
from deepauc.training.run.scores import Scores, read_run_scores

Floats = npt.NDArray[np.float64]
LEAST_ROWS = 10
"""Of each class in validation, for each label: fewer say little about a weight."""
BY_HAND = "or give the weight of each run yourself (--weight 0.8 --weight 0.2)"


@dataclass(frozen=True, kw_only=True)
class ValidationWeights:
    """One `LearnedWeights` a label, for raw scores (n, L) of each run."""

    labels: Mapping[str, LearnedWeights]

    def scores(self, members: Sequence[npt.NDArray[Any]]) -> Floats:
        """The mean of the runs' standardised scores, (n, L)."""
        each = enumerate(self.labels.values())
        return np.stack([one.score([scores[:, j] for scores in members]) for j, one in each], axis=1)

    def probabilities(self, members: Sequence[npt.NDArray[Any]]) -> Floats:
        """Those of the logistic regressions, (n, L)."""
        each = enumerate(self.labels.values())
        return np.stack([one.probability([scores[:, j] for scores in members]) for j, one in each], axis=1)

    @property
    def shares(self) -> dict[str, tuple[float, ...]]:
        """label -> what each run counts."""
        return {name: one.shares for name, one in self.labels.items()}

    @property
    def meaning(self) -> str:
        """`mean over 2 runs that count 0.8, 0.2 (learned on validation), of scores standardised there`."""
        return f"mean over {self._runs()} (learned on validation), of scores standardised there"

    @property
    def probability_meaning(self) -> str:
        """In one line: how they were made, and the share of positives they hold for."""
        each = {name: 100 * one.positives / (one.positives + one.negatives) for name, one in self.labels.items()}
        named = ", ".join(
            f"{share:.3g} %" if len(each) == 1 else f"{name} {share:.3g} %" for name, share in each.items()
        )
        return (
            f"probability: by the logistic regression on validation that learned the weights of {self._runs()}; it "
            f"holds at the prevalence there ({named} positive), not at another clinic's"
        )

    def _runs(self) -> str:
        each = {name: ", ".join(f"{share:.3g}" for share in shares) for name, shares in self.shares.items()}
        named = [text if len(each) == 1 else f"{text} for {name}" for name, text in each.items()]
        return f"{len(next(iter(self.labels.values())).slopes)} runs that count {'; '.join(named)}"


def validation_weights(asked: str, folders: Sequence[Path], names: Sequence[str]) -> ValidationWeights:
    """By the rows that are in the validation part of every run, found by their ids; no other row's label counts.

    asked: as in `predict`, where the one word is `learned`.
    """
    if asked != "learned":
        raise ValueError(f"weights are numbers, one per run, or 'learned', not {asked!r}.")
    scores = [_scores(folder) for folder in folders]
    parts = [part_by_id(one) for one in scores]
    for folder, one in zip(folders, parts, strict=True):
        if "validation" not in one.values():
            raise ValueError(
                f"{folder} was trained without a validation part, which learned weights need: train it with one, "
                f"{BY_HAND}."
            )
    _require_one_split(folders, parts)
    shared = set.intersection(*({name for name, part in one.items() if part == "validation"} for one in parts))
    tables = [_validation_rows(one, names, shared) for one in scores]
    order = list(tables[0])
    members = [np.array([table[row][1] for row in order]).reshape(len(order), -1) for table in tables]
    truths = [np.array([table[row][0] for row in order]).reshape(len(order), -1) for table in tables]
    for folder, truth in zip(folders, truths, strict=True):
        if not np.array_equal(truth, truths[0], equal_nan=True):
            raise ValueError(
                f"{folders[0]} and {folder} have different labels for the same ids, so no weights can be learned. "
                "Train both on the same table."
            )
    labels = np.where(np.isin(truths[0], (0, 1)), truths[0], np.nan)  # an uncertain label is neither
    found = {}
    for j, name in enumerate(names):
        positives, negatives = (int((labels[:, j] == value).sum()) for value in (1, 0))
        if min(positives, negatives) < LEAST_ROWS:
            raise ValueError(
                f"validation has {counted(positives, 'positive')} and {counted(negatives, 'negative')} of {name}; "
                f"learning weights needs {LEAST_ROWS} of each. Train with a larger validation part, {BY_HAND}."
            )
        try:
            found[name] = learn_weights([scores[:, j] for scores in members], labels[:, j])
        except ValueError as error:
            raise ValueError(f"{name}, on validation: {error}") from error
    return ValidationWeights(labels=found)


def _scores(folder: Path) -> Scores:
    if not (folder / SCORES).is_file():
        raise ValueError(
            f"{folder} has no readable scores.csv, and weights are learned from its scores on validation: name the "
            f"folder of the run itself, {BY_HAND}."
        )
    try:
        return read_run_scores(folder, other_labels="kept")
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / SCORES} is damaged: {error}") from error


def _require_one_split(folders: Sequence[Path], parts: Sequence[Mapping[str, str]]) -> None:
    """No row is in validation here and elsewhere there; rows that are called by numbers are those of one table."""
    for folder, other in zip(folders[1:], parts[1:], strict=True):
        both = parts[0].keys() & other.keys()
        if any(parts[0][row] != other[row] for row in both if "validation" in (parts[0][row], other[row])):
            raise ValueError(
                f"{folders[0]} and {folder} were not trained on the same split, so weights would be learned on rows "
                "that one of them was trained on. Train one with the split of the other: --split-of."
            )
        named = all(names_rows(run) for run in (folders[0], folder)) or not all(row.isdigit() for row in both)
        if not any(parts[0][row] == "validation" for row in both) or not (named or parts[0] == other):
            raise ValueError(
                f"{folders[0]} and {folder} have different ids, so their rows cannot be matched. The ids of images are "
                "their file names: train a run on numbers with --id-column and that column."
            )


def _validation_rows(scores: Scores, names: Sequence[str], shared: set[str]) -> dict[str, tuple[Floats, Floats]]:
    """id -> labels (L,) and scores (L,)."""
    table = scores.part("validation")
    if len(table.label_names) > 1 and not set(names) <= set(table.label_names):
        raise ValueError(f"{table.source} is damaged: it lacks some of the labels {', '.join(names)}.")
    order = [0] if len(table.label_names) == 1 else [table.label_names.index(name) for name in names]
    found: dict[str, tuple[Floats, Floats]] = {}
    for row, name in enumerate([] if table.ids is None else table.ids.tolist()):
        if name in found:
            raise ValueError(f"{table.source}: two validation rows have the id {name}, so no weights can be learned.")
        if name in shared:
            found[name] = table.labels[row, order], table.scores[row, order]
    return found
