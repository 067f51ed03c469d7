"""The scores a run has recorded, by class: what a new score is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.reporting.evaluation.findings import Absent
from deepauc.reporting.operating_card import operating_card
from deepauc.training.run.own_files import SCORES
from deepauc.training.run.scores import OOF, Scores, read_run_scores

BINS = 24
HELD_OUT = ("test", "validation")  # where a threshold is judged: the first of these that there is

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What a threshold does to the rows of a part that the network was not trained on."""

    part: str
    true_positives: int
    positives: int
    true_negatives: int
    negatives: int


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Training scores as shares by class in bins between `edges`, (B + 1,)."""

    edges: tuple[float, ...]
    positives: tuple[float, ...]
    negatives: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class KnownScores:
    """Finite scores of the labelled rows of one part, sorted."""

    part: str
    positives: Floats
    negatives: Floats

    @classmethod
    def of(cls, table: Scores, part: str, number: int) -> KnownScores:
        rows = table.part(part)
        scores, labels = rows.scores[:, number], rows.labels[:, number]
        positives, negatives = (np.sort(scores[np.isfinite(scores) & (labels == value)]) for value in (1, 0))
        return cls(part=part, positives=positives, negatives=negatives)

    def share_below(self, score: float) -> tuple[float | None, float | None]:
        """Of the negatives and of the positives, those with a lower score; equal ones count one half."""
        return _share_below(self.negatives, score), _share_below(self.positives, score)

    def reached(self, threshold: float) -> Reached:
        return Reached(
            part=self.part,
            true_positives=int((self.positives >= threshold).sum()),
            positives=len(self.positives),
            true_negatives=int((self.negatives < threshold).sum()),
            negatives=len(self.negatives),
        )

    def distribution(self) -> Distribution | None:
        both = np.concatenate([self.positives, self.negatives])
        if not len(both):
            return None
        edges = np.linspace(both.min(), both.max(), BINS + 1)
        shares = (np.histogram(scores, edges)[0] / max(1, len(scores)) for scores in (self.positives, self.negatives))
        positives, negatives = (tuple(map(float, share)) for share in shares)
        return Distribution(edges=tuple(map(float, edges)), positives=positives, negatives=negatives)


def reached_within_folds(folder: Path) -> dict[tuple[str, str], Reached]:
    """Of a run with folds what its report counts, by label and by what a threshold was chosen for."""
    card = operating_card(folder)
    if card is None or card.part != OOF:
        return {}
    found = {}
    for label in card.labels:
        for points in (label.operating_points, label.sensitivity_points):
            for row in () if isinstance(points, Absent) else points:
                found[label.name, row.asked] = Reached(
                    part=OOF,
                    true_positives=row.true_positives,
                    positives=row.true_positives + row.false_negatives,
                    true_negatives=row.true_negatives,
                    negatives=row.true_negatives + row.false_positives,
                )
    return found


def known_scores(folder: Path, labels: int) -> tuple[list[KnownScores | None], list[KnownScores | None]]:
    """By label, the scores of the training part and those of a part held out; None of a bundle without scores.csv.

    A run with folds has its training rows scored by networks that did not see them, on the scale of the average.
    """
    nothing: list[KnownScores | None] = [None] * labels
    if not (folder / SCORES).is_file():
        return nothing, nothing
    table = read_run_scores(folder)
    if table.labels.shape[1] != labels:
        raise ValueError(f"{folder / SCORES} has {table.labels.shape[1]} labels, and the network {labels}.")

    def of(*parts: str) -> list[KnownScores | None]:
        there = next((part for part in parts if part in table.part_names), None)
        return nothing if there is None else [KnownScores.of(table, there, number) for number in range(labels)]

    return of("train", OOF), of(*HELD_OUT)


def _share_below(known: Floats, score: float) -> float | None:
    """The share of sorted scores under this one, those equal to it counted one half."""
    if not len(known):
        return None
    below, up_to = np.searchsorted(known, score, side="left"), np.searchsorted(known, score, side="right")
    return float((below + up_to) / 2 / len(known))
