"""Thresholds that validation chooses, and what each does on the judged part: by row, and by patient.

Of cross-validation there is no validation part. A fold's threshold is then chosen on the held-out rows of the *other*
folds, where scores are log odds by a recalibration, and applied in the fold; counts are summed over folds. No row has a
say in its own threshold, so the specificity reached is a measurement, as on a test part. (Not quite: the recalibration
of the other folds has two numbers in which the fold's own rows had a part.) Raw scores of different networks are never
put together: what a threshold of one network does to another's scores would be luck.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from deepauc.metrics.operating_points import (
    HIGH_SPECIFICITIES,
    NEGATIVES_ABOVE,
    SENSITIVITIES,
    operating_point,
    specificities,
    threshold_at_sensitivity,
    threshold_at_specificity,
)
from deepauc.reporting.evaluation.findings import Absent, Counts, OperatingRow, PatientLevel
from deepauc.reporting.evaluation.sample import Sample, attempt, by_patient, count_rows
from deepauc.reporting.evaluation.within_folds import part_interval

LEVEL = 0.95
FEW_FOR_THRESHOLDS = 20  # rows of a class, of fewer than which not one lies beyond the threshold for 95 %

Rows = tuple[OperatingRow, ...] | Absent


def at_specificities(sample: Sample, validation: Sample | Absent) -> Rows:
    """80, 90, 95 % on validation, and more as far as the negatives of both parts go."""
    if isinstance(validation, Absent):
        return validation
    asked = specificities(fewest_negatives(sample, validation))
    return attempt(lambda: tuple(_row(sample, validation, specificity=one) for one in asked))


def at_sensitivities(sample: Sample, validation: Sample | Absent) -> Rows:
    """90 and 95 % on validation."""
    if isinstance(validation, Absent):
        return validation
    return attempt(lambda: tuple(_row(sample, validation, sensitivity=one) for one in SENSITIVITIES))


def patient_levels(sample: Sample, validation: Sample | Absent) -> tuple[PatientLevel, ...]:
    """Where some patient has several rows: by its highest score, and by its mean score; thresholds likewise."""
    if sample.clusters is None:
        return ()
    return _patient_level(sample, validation, "highest"), _patient_level(sample, validation, "mean")


def _patient_level(sample: Sample, validation: Sample | Absent, score: Literal["highest", "mean"]) -> PatientLevel:
    patients = by_patient(sample, mean=score == "mean")
    chosen_on: Sample | Absent = validation
    if isinstance(validation, Sample):
        chosen_on = by_patient(validation, mean=score == "mean")
    return PatientLevel(
        score=score,
        counts=count_rows(patients),
        auc=attempt(lambda: part_interval(patients)),
        operating_points=at_specificities(patients, chosen_on),
        sensitivity_points=at_sensitivities(patients, chosen_on),
    )


def fewest_negatives(*samples: Sample) -> int:
    return min(int((one.labels == 0).sum()) for one in samples)


def _row(
    sample: Sample,
    validation: Sample,
    *,
    specificity: float | None = None,
    sensitivity: float | None = None,
) -> OperatingRow:
    choose = threshold_at_specificity if sensitivity is None else threshold_at_sensitivity

    def chosen(on: Sample) -> float:
        return float(choose(on.scores, on.labels, specificity or sensitivity or 1.0))

    cut, by_fold = chosen(validation), _chosen_by_the_others(sample, chosen)
    above = sample.scores - cut
    if by_fold is not None and sample.folds is not None:
        above = sample.scores - np.array([by_fold[fold] for fold in sample.folds.tolist()])
    point = operating_point(above, sample.labels, 0.0, level=LEVEL, groups=sample.clusters)
    return OperatingRow(
        asked_specificity=specificity,
        asked_sensitivity=sensitivity,
        threshold=cut,
        fold_thresholds=by_fold,
        sensitivity=point.sensitivity.floats(),
        specificity=point.specificity.floats(),
        positive_predictive_value=point.positive_predictive_value.floats(),
        negative_predictive_value=point.negative_predictive_value.floats(),
        true_positives=int(point.true_positives),
        false_positives=int(point.false_positives),
        true_negatives=int(point.true_negatives),
        false_negatives=int(point.false_negatives),
    )


def _chosen_by_the_others(sample: Sample, chosen: Callable[[Sample], float]) -> Mapping[str, float] | None:
    """By fold, the threshold of the other folds; None where there are no folds."""
    if sample.folds is None:
        return None
    folds: list[Any] = np.unique(sample.folds).tolist()
    return {fold: chosen(sample.rows(sample.folds != fold)) for fold in folds}


def left_out(fewest: int, *, folds: bool) -> Absent | None:
    left = [s for s in HIGH_SPECIFICITIES if s not in specificities(fewest)]
    if not left:
        return None
    where = "in validation and in the judged part; the smaller of the two has"
    return Absent(
        f"a specificity of {', '.join(f'{100 * s:g} %' for s in left)}. At least {NEGATIVES_ABOVE} negatives must lie "
        f"above such a threshold, which takes {NEGATIVES_ABOVE / (1 - left[0]):,.0f} negatives or more "
        f"{'among the held-out rows; there are' if folds else where} {fewest:,}."
    )


def few_for_thresholds(validation: Counts, *, folds: bool) -> tuple[str, ...]:
    """A specificity is a share of negatives and a sensitivity one of positives: each has its own class to rest on."""
    found = []
    for kind, what, rows, patients in (
        ("negative", "specificity", validation.negatives, validation.patients_with_negative),
        ("positive", "sensitivity", validation.positives, validation.patients_with_positive),
    ):
        if rows < FEW_FOR_THRESHOLDS:
            few = f"{rows} {'held-out ' * folds}{kind} row{'s' * (rows != 1)}{' of validation' * (not folds)}"
        elif validation.clustered and patients is not None and patients < FEW_FOR_THRESHOLDS:
            few = f"{patients} {validation.group_word}{'s' * (patients != 1)} with {kind} rows"
            few += " in validation" * (not folds)
        else:
            continue
        found.append(
            f"The thresholds for a fixed {what} rest on only {few}. Fewer than {FEW_FOR_THRESHOLDS} cannot "
            f"distinguish a {what} of 95 % from 100 %: on other rows it may be far from the value asked for."
        )
    return tuple(found)
