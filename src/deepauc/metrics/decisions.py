"""Decision curves: is acting on the model better than acting on everybody, or on nobody?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepauc.metrics.basis.columns import ArrayLike, Column, Floats, read_probabilities


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit a patient at each threshold probability.

    Attributes:
        thresholds: (T,).
        model: Of acting on the model, (T,), or (L, T) for (N, L) inputs.
        treat_all: Of acting on everybody, of the same shape.
        treat_none: Of acting on nobody: zeros.
    """

    thresholds: Floats
    model: Floats
    treat_all: Floats
    treat_none: Floats


def decision_curve(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    thresholds: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> DecisionCurve:
    """Net benefit TP/n - FP/n · t/(1 - t) of acting where p >= t (Vickers & Elkin, 2006).

    t is the probability at which a patient would be indifferent between acting and not. It only means that for
    calibrated probabilities: recalibrate raw scores first. Predictions as in `brier_score`, labels and weights as in
    `auroc`.

    Args:
        thresholds: By default .01, .02, ..., .99.

    Examples:
        >>> curve = decision_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], thresholds=[0.2, 0.5])
        >>> curve.model.round(4), curve.treat_all.round(4)
        (array([0.4375, 0.25  ]), array([0.375, 0.   ]))
    """
    columns = read_probabilities(probabilities, labels, weights=weights)
    t = np.arange(1, 100) / 100 if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    if t.ndim != 1 or not ((t > 0) & (t < 1)).all():
        raise ValueError("thresholds must be a list of probabilities strictly between 0 and 1.")
    model = np.array([_net_benefit(column, t) for column in columns])
    treat_all = np.array([_net_benefit_of_all(column, t) for column in columns])
    if columns.scores.ndim == 1:
        model, treat_all = model[0], treat_all[0]
    return DecisionCurve(t, model, treat_all, np.zeros_like(model))


def _net_benefit(column: Column, t: Floats) -> Floats:
    weights = column.shares()
    order = np.argsort(column.scores, kind="stable")
    ordered = column.scores[order].astype(np.float64)
    first = np.searchsorted(ordered, t, side="left")  # rows from here on have p >= t
    of_positives = np.where(column.positive, weights, 0.0)[order]
    true = _from_the_end(of_positives)[first]
    false = _from_the_end(weights[order] - of_positives)[first]
    return true - false * t / (1 - t)


def _net_benefit_of_all(column: Column, t: Floats) -> Floats:
    prevalence = float(column.shares()[column.positive].sum())
    return prevalence - (1 - prevalence) * t / (1 - t)


def _from_the_end(values: Floats) -> Floats:
    """Sums of values[k:], for k = 0 .. n."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])
