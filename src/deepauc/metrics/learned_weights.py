"""How much each of several models counts, learned from their scores on rows that none of them was trained on.

Half and half gives the weaker model too large a say. A logistic regression on the models' raw scores, each
standardised, finds out how large it should be: one number a model. Fit on the validation part or out-of-fold scores,
never on test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepauc.metrics.basis.columns import ArrayLike, Column, Floats, read_columns, to_numpy
from deepauc.names import counted

NEWTON_STEPS = 100
HALVINGS = 40


class NothingToWeigh(ValueError):
    """No model's scores rise with the label."""


@dataclass(frozen=True, kw_only=True)
class LearnedWeights:
    """M models: z_m = (score - centre) / spread, log odds = intercept + sum of slope_m z_m, no slope negative.

    positives, negatives: how many rows it was learned from.
    """

    centres: tuple[float, ...]
    spreads: tuple[float, ...]
    slopes: tuple[float, ...]
    intercept: float
    positives: int
    negatives: int

    @property
    def shares(self) -> tuple[float, ...]:
        """What each model counts, 1 in all."""
        total = sum(self.slopes)
        return tuple(slope / total for slope in self.slopes)

    def score(self, members: Sequence[ArrayLike]) -> Floats:
        """The mean of the standardised scores by these shares, (N,), from the raw scores (N,) of each model."""
        return np.tensordot(self.shares, self._standardised(members), axes=1)

    def probability(self, members: Sequence[ArrayLike]) -> Floats:
        """That of the logistic regression, (N,), which rises with the score; at the prevalence it was learned at."""
        z = self.intercept + np.tensordot(self.slopes, self._standardised(members), axes=1)
        return np.exp(-np.logaddexp(0.0, -z))

    def _standardised(self, members: Sequence[ArrayLike]) -> Floats:
        if len(members) != len(self.slopes):
            raise ValueError(
                f"there are scores of {counted(len(members), 'model')}, but weights of {len(self.slopes)}."
            )
        raw = np.stack([to_numpy(scores).astype(np.float64) for scores in members])
        return (raw - np.array(self.centres)[:, None]) / np.array(self.spreads)[:, None]


def learn_weights(members: Sequence[ArrayLike], labels: ArrayLike) -> LearnedWeights:
    """How much each of several models counts in their average, by least cross-entropy.

    Targets are Platt's, (n+ + 1)/(n+ + 2) and 1/(n- + 2), which keep the slopes finite where the classes are separable.
    A model whose slope would be negative counts 0, and so does one that gives all rows one score: a mean must not turn
    a model's order round. NothingToWeigh where none is left.

    Args:
        members: The raw scores (N,) of each model.
        labels: (N,), 0/1, NaN where missing.

    Examples:
        >>> labels = [0, 0, 1, 0, 1, 1]
        >>> learned = learn_weights([[0.1, 0.2, 0.6, 0.4, 0.5, 0.9], [0.9, 0.1, 0.8, 0.2, 0.3, 0.4]], labels)
        >>> [round(share, 2) for share in learned.shares]
        [0.8, 0.2]
    """
    columns = [_column(scores, labels) for scores in members]
    if not columns:
        raise ValueError("weights need the scores of at least one model.")
    positive = columns[0].positive
    positives, negatives = columns[0].positives, columns[0].negatives
    raw = np.stack([column.scores.astype(np.float64) for column in columns], axis=1)
    centres, spreads = raw.mean(axis=0), _spreads(raw)
    z = (raw - centres) / spreads
    targets = np.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    slopes = np.zeros(len(columns))
    left = np.flatnonzero(np.ptp(raw, axis=0) > 0)
    while left.size:
        intercept, *found = _logistic(z[:, left], targets)
        if min(found) > 0:
            slopes[left] = found
            return LearnedWeights(
                centres=tuple(centres.tolist()),
                spreads=tuple(spreads.tolist()),
                slopes=tuple(slopes.tolist()),
                intercept=intercept,
                positives=positives,
                negatives=negatives,
            )
        left = np.delete(left, int(np.argmin(found)))
    raise NothingToWeigh("no weights can be learned: no model's scores rise with the label on these rows.")


def standardised(scores: ArrayLike) -> Floats:
    """(scores - mean) / standard deviation, (N,); 0 where all are equal."""
    raw = to_numpy(scores).astype(np.float64)[:, None]
    return ((raw - raw.mean(axis=0)) / _spreads(raw))[:, 0]


def _spreads(raw: Floats) -> Floats:
    """Standard deviations, (M,); 1 for a column of equal numbers, whose mean may miss them by an ulp."""
    found = raw.std(axis=0)
    return np.where((np.ptp(raw, axis=0) > 0) & (found > 0), found, 1.0)


def _column(scores: ArrayLike, labels: ArrayLike) -> Column:
    columns = read_columns(scores, labels)
    if columns.scores.ndim != 1:
        raise ValueError("weights are learned one label at a time: scores and labels must be (N,).")
    (column,) = columns
    column.require_both_classes("learning weights")
    return column


def _logistic(columns: Floats, targets: Floats) -> list[float]:
    """Intercept and slopes of least cross-entropy, (1 + M,), by Newton's steps, halved where they go too far.

    Of columns that are multiples of each other the smallest slopes, which are then alike.
    """
    design = np.column_stack([np.ones(len(columns)), columns])
    found = np.zeros(design.shape[1])
    loss = _cross_entropy(design @ found, targets)
    for _ in range(NEWTON_STEPS):
        p = np.exp(-np.logaddexp(0.0, -(design @ found)))
        gradient = design.T @ (p - targets) / len(p)
        if np.abs(gradient).max() < 1e-12:
            break
        curvature = (design * (p * (1 - p))[:, None]).T @ design / len(p)
        step = np.linalg.lstsq(curvature, gradient, rcond=1e-12)[0]
        for _ in range(HALVINGS):
            lower = _cross_entropy(design @ (found - step), targets)
            if lower <= loss:
                break
            step = step / 2
        else:
            break  # as low as rounding lets it
        found, loss = found - step, lower
    return [float(value) for value in found]


def _cross_entropy(z: Floats, targets: Floats) -> float:
    """Mean of -t log p - (1 - t) log(1 - p), p = 1 / (1 + exp(-z))."""
    return float(np.mean(np.logaddexp(0.0, z) - targets * z))
