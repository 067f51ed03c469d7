"""Thresholds and recalibration from the validation part: what turns raw scores into decisions and probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.task import Task
from deepauc.metrics.operating_points import (
    SENSITIVITIES,
    specificities,
    threshold_at_sensitivity,
    threshold_at_specificity,
)
from deepauc.metrics.recalibration import fit_temperature
from deepauc.training.scoring import labels_with_both_classes


def fitted_on_validation(task: Task, scores: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, Any]:
    """A bundle's `thresholds` and `calibration`, of scores (n, L) by part; nothing without a validation part.

    thresholds: by label, the raw score at which validation reaches a specificity (80, 90, 95 %, more if it can tell) or
    a sensitivity (90 and 95 %). calibration: by label, the temperature and intercept that make validation scores
    probabilities, as plain data.
    """
    found: dict[str, Any] = {"thresholds": {}, "calibration": {}}
    if "validation" in scores:
        for name, h, y, _ in labels_with_both_classes(task, "validation", scores["validation"]):
            found["thresholds"][name] = thresholds_of(h, y)
            found["calibration"][name] = fit_temperature(h, y).to_dict()
    return found


def thresholds_of(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> dict[str, float]:
    """Of one label with both classes."""
    asked = specificities(int((labels == 0).sum()))
    found = {f"specificity {s:g}": float(threshold_at_specificity(scores, labels, s)) for s in asked}
    return found | {f"sensitivity {s:g}": float(threshold_at_sensitivity(scores, labels, s)) for s in SENSITIVITIES}
