"""One threshold, chosen on one part of the data and judged on another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepauc.metrics.basis.columns import ArrayLike, Column, FloatOrArray, Floats, read_columns
from deepauc.metrics.intervals import Estimate, require_interval_options, wilson_limits

Mask = npt.NDArray[np.bool_]
SPECIFICITIES = (0.80, 0.90, 0.95)
SENSITIVITIES = (0.90, 0.95)
HIGH_SPECIFICITIES = (0.98, 0.99, 0.995)  # for rare positives, where even 95 % means more false alarms than positives
NEGATIVES_ABOVE = 10  # so many must lie above a threshold of high specificity: fewer do not tell 99 % from 98 %


@dataclass(frozen=True)
class OperatingPoint:
    """What a fixed threshold does; arrays (L,) for (N, L) inputs.

    Attributes:
        threshold: Positive means score >= threshold.
        sensitivity: Share of the positives that are called positive.
        specificity: Share of the negatives that are called negative.
        positive_predictive_value: Share of positives among those called positive; NaN with limits (0, 1) where nothing
            is.
        negative_predictive_value: Share of negatives among those called negative.
        true_positives: Rows rightly called positive.
        false_positives: Rows wrongly called positive.
        true_negatives: Rows rightly called negative.
        false_negatives: Rows wrongly called negative.
    """

    threshold: FloatOrArray
    sensitivity: Estimate[FloatOrArray]
    specificity: Estimate[FloatOrArray]
    positive_predictive_value: Estimate[FloatOrArray]
    negative_predictive_value: Estimate[FloatOrArray]
    true_positives: FloatOrArray
    false_positives: FloatOrArray
    true_negatives: FloatOrArray
    false_negatives: FloatOrArray


def specificities(negatives: int) -> tuple[float, ...]:
    """Those that so many negatives can tell apart: n (1 - s) >= NEGATIVES_ABOVE, and always those up to 95 %."""
    high = [s for s in HIGH_SPECIFICITIES if negatives * (1 - s) >= NEGATIVES_ABOVE - 1e-6]
    return (*SPECIFICITIES, *high)


def threshold_at_specificity(scores: ArrayLike, labels: ArrayLike, specificity: float) -> FloatOrArray:
    """The lowest threshold under which at least a share `specificity` of the negatives lies.

    It stands halfway between the last negative that must be cleared and the next higher score. Scores and labels as in
    `auroc`.

    Args:
        specificity: From 0 to 1.

    Examples:
        >>> round(threshold_at_specificity([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], specificity=1.0), 4)
        0.6
    """

    def place(scores: Floats, positive: Mask) -> float:
        negatives = np.sort(scores[~positive])
        cleared = negatives[_how_many(specificity, negatives.size) - 1]
        higher = scores[scores > cleared]
        return _between(cleared, higher.min()) if higher.size else math.nextafter(cleared, math.inf)

    return _thresholds(scores, labels, "specificity", specificity, place)


def threshold_at_sensitivity(scores: ArrayLike, labels: ArrayLike, sensitivity: float) -> FloatOrArray:
    """The highest threshold that at least a share `sensitivity` of the positives reaches.

    It stands halfway between the last positive that must reach it and the next lower score. Scores and labels as in
    `auroc`.

    Args:
        sensitivity: From 0 to 1.
    """

    def place(scores: Floats, positive: Mask) -> float:
        positives = np.sort(scores[positive])[::-1]
        reached = positives[_how_many(sensitivity, positives.size) - 1]
        lower = scores[scores < reached]
        return _between(lower.max(), reached) if lower.size else float(reached)

    return _thresholds(scores, labels, "sensitivity", sensitivity, place)


def _thresholds(
    scores: ArrayLike, labels: ArrayLike, name: str, share: float, place: Callable[[Floats, Mask], float]
) -> FloatOrArray:
    """`place` of each label, from scores and which of them are of positives."""
    if not 0 < share <= 1:
        raise ValueError(f"{name} is {share}; it must lie in (0, 1].")
    columns = read_columns(scores, labels)
    values = []
    for column in columns:
        column.require_both_classes("a threshold")
        values.append(place(column.scores.astype(np.float64), column.positive))
    return columns.collect(values)


def operating_point(
    scores: ArrayLike,
    labels: ArrayLike,
    threshold: ArrayLike,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> OperatingPoint:
    """Sensitivity, specificity and predictive values of a threshold that came from elsewhere.

    Limits are Wilson's (1927). With groups (N,) of patients the number of trials is divided by the design effect of
    the clustering (Rao & Scott, 1992), or is the number of patients where a share is 0 or 1. The limits hold for a
    threshold fixed beforehand: for one chosen on the same rows they are too narrow and the values too good. Other
    options as in `auroc_interval`.

    Args:
        threshold: One number, or one per label.

    Examples:
        >>> point = operating_point([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], threshold=0.6)
        >>> point.sensitivity.value, point.specificity.value
        (0.5, 1.0)
    """
    require_interval_options(level)
    columns = read_columns(scores, labels, groups=groups)
    thresholds = np.broadcast_to(np.asarray(threshold, dtype=np.float64), (columns.count,))
    counts, shares = [], []
    for column, cut in zip(columns, thresholds, strict=True):
        column.require_both_classes("an operating point")
        called, positive = column.scores.astype(np.float64) >= cut, column.positive
        cells = (called & positive, called & ~positive, ~called & ~positive, ~called & positive)
        counts.append([float(np.count_nonzero(cell)) for cell in cells])
        shares.append(
            [
                _share(column, of=positive, right=called, level=level),
                _share(column, of=~positive, right=~called, level=level),
                _share(column, of=called, right=positive, level=level),
                _share(column, of=~called, right=~positive, level=level),
            ]
        )
    sensitivity, specificity, ppv, npv = (
        Estimate(*(columns.collect([by_label[which][part] for by_label in shares]) for part in range(3)))
        for which in range(4)
    )
    tp, fp, tn, fn = (columns.collect([by_label[which] for by_label in counts]) for which in range(4))
    return OperatingPoint(
        threshold=columns.collect([float(cut) for cut in thresholds]),
        sensitivity=sensitivity,
        specificity=specificity,
        positive_predictive_value=ppv,
        negative_predictive_value=npv,
        true_positives=tp,
        false_positives=fp,
        true_negatives=tn,
        false_negatives=fn,
    )


def sensitivity_at_specificity(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    specificity: float,
    validation_scores: ArrayLike,
    validation_labels: ArrayLike,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> OperatingPoint:
    """The `operating_point` on (scores, labels) of the threshold that has `specificity` on the validation part.

    The specificity reached here is part of the answer: it is not `specificity`, since the rows are others. Other
    options as in `auroc_interval`.

    Args:
        specificity: What the threshold reaches on the validation part.
        validation_scores: (N,) or (N, L), of the rows that the threshold is taken from.
        validation_labels: The labels of these rows.
    """
    threshold = threshold_at_specificity(validation_scores, validation_labels, specificity)
    return operating_point(scores, labels, threshold, level=level, groups=groups)


def _how_many(share: float, of: int) -> int:
    """The least count that makes up the share, forgiving its rounding (0.95 of 20 is 19)."""
    return max(math.ceil(share * of - 1e-9), 1)


def _between(low: float, high: float) -> float:
    middle = low / 2 + high / 2
    return float(middle if low < middle else high)


def _share(column: Column, *, of: Mask, right: Mask, level: float) -> tuple[float, float, float]:
    trials = int(np.count_nonzero(of))
    if trials == 0:
        return math.nan, 0.0, 1.0
    share = np.count_nonzero(of & right) / trials
    effective = float(trials)
    if column.groups is not None:
        effective = _effective_trials(column.groups[of], right[of].astype(np.float64), share)
    return share, *wilson_limits(share * effective, effective, level)


def _effective_trials(groups: npt.NDArray[np.intp], right: Floats, share: float) -> float:
    numbers = np.unique(groups, return_inverse=True)[1]
    patients, trials = int(numbers.max()) + 1, right.size
    if share in (0.0, 1.0) or patients == 1:
        return float(patients)
    residual = np.bincount(numbers, right - share)
    variance = patients / (patients - 1) * float(residual @ residual) / trials**2
    design_effect = variance / (share * (1 - share) / trials)
    return trials / max(design_effect, 1.0)
