"""Maps from raw scores to probabilities, fitted on another part of the data.

Scores of an AUC loss are not probabilities: only their order was trained. Fit on the validation part (or out-of-fold
scores), apply to test scores and new patients. A recalibration is a small frozen object that becomes plain JSON data
and back, so it can travel with the model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from deepauc.labels import scale_free_array
from deepauc.metrics.basis.columns import ArrayLike, Column, Floats, read_columns, to_numpy


@dataclass(frozen=True)
class TemperatureScaling:
    """p = 1 / (1 + exp(-(slope·score + intercept))).

    Attributes:
        slope: 1/temperature.
        intercept: 0 for temperature scaling to the letter.
    """

    slope: float
    intercept: float

    @property
    def temperature(self) -> float:
        return 1 / self.slope if self.slope > 0 else math.inf

    def apply(self, scores: ArrayLike) -> Floats:
        """Probabilities of the scores' shape."""
        with np.errstate(over="ignore"):  # infinity is a probability of 0 or 1
            z = self.slope * to_numpy(scores).astype(np.float64) + self.intercept
        return np.exp(-np.logaddexp(0.0, -z))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"kind": "temperature", "slope": self.slope, "intercept": self.intercept}


@dataclass(frozen=True)
class IsotonicScaling:
    """A rising curve, straight between its knots, constant outside."""

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def apply(self, scores: ArrayLike) -> Floats:
        """Probabilities of the scores' shape."""
        return np.interp(to_numpy(scores).astype(np.float64), self.scores, self.probabilities)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"kind": "isotonic", "scores": list(self.scores), "probabilities": list(self.probabilities)}


@dataclass(frozen=True)
class LabelwiseScaling:
    """One recalibration a label, for scores (N, L)."""

    labels: tuple[TemperatureScaling | IsotonicScaling, ...]

    def apply(self, scores: ArrayLike) -> Floats:
        """Probabilities (N, L)."""
        array = to_numpy(scores)
        if array.ndim != 2 or array.shape[1] != len(self.labels):
            raise ValueError(
                f"scores have shape {array.shape}; this recalibration was fitted on {len(self.labels)} labels."
            )
        return np.stack([one.apply(array[:, j]) for j, one in enumerate(self.labels)], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"kind": "labelwise", "labels": [one.to_dict() for one in self.labels]}


OneLabel = TypeVar("OneLabel", TemperatureScaling, IsotonicScaling)
Recalibration = TemperatureScaling | IsotonicScaling | LabelwiseScaling


def fit_temperature(
    scores: ArrayLike, labels: ArrayLike, *, intercept: bool = True, weights: ArrayLike | None = None
) -> TemperatureScaling | LabelwiseScaling:
    """Logistic recalibration: slope and intercept of least cross-entropy on (scores, labels); labels as in `auroc`.

    Targets are Platt's (1999), (n+ + 1)/(n+ + 2) and 1/(n- + 2), which keep the slope finite where the classes are
    separable; with weights n+ and n- are Kish's (1965) effective numbers of rows, (sum w)^2 / sum w^2, which no common
    factor of the weights changes. Where the scores rank the classes backwards the slope is held at 0: every row then
    gets the share of positives, since a recalibration must not turn the order round.

    Args:
        scores: Raw scores (N,) or (N, L), of rows that the network was not trained on.
        intercept: False is temperature scaling to the letter (Guo et al., 2017), meant for logits of cross-entropy. An
            AUC loss leaves the scores' origin free, so the default fits it too.

    Examples:
        >>> scaling = fit_temperature([-2.0, -1.0, 0.5, 1.0, 2.0, 3.0], [0, 0, 0, 1, 0, 1])
        >>> scaling.apply([-2.0, 3.0]).round(2)
        array([0.14, 0.61])
    """
    return _fit(scores, labels, weights, lambda column: _temperature_of(column, intercept))


def fit_isotonic(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> IsotonicScaling | LabelwiseScaling:
    """Isotonic recalibration (scikit-learn): the rising step curve of least squared error, clipped outside.

    It needs more data than `fit_temperature` (hundreds of positives), and it ties scores, so it can change the AUROC.
    Labels and weights as in `auroc`.
    """
    return _fit(scores, labels, weights, _isotonic_of)


def recalibration_from_dict(data: dict[str, Any]) -> Recalibration:
    """The inverse of `to_dict`."""
    kind = data.get("kind")
    if kind == "temperature":
        return TemperatureScaling(slope=float(data["slope"]), intercept=float(data["intercept"]))
    if kind == "isotonic":
        return IsotonicScaling(tuple(float(s) for s in data["scores"]), tuple(float(p) for p in data["probabilities"]))
    if kind == "labelwise":
        return LabelwiseScaling(tuple(_single_from_dict(one) for one in data["labels"]))
    raise ValueError(f"unknown recalibration {kind!r}; it must be 'temperature', 'isotonic' or 'labelwise'.")


def _single_from_dict(data: dict[str, Any]) -> TemperatureScaling | IsotonicScaling:
    one = recalibration_from_dict(data)
    if isinstance(one, LabelwiseScaling):
        raise ValueError(
            "a labelwise recalibration holds one plain recalibration per label, not another labelwise one."
        )
    return one


def _fit(
    scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None, fit_column: Callable[[Column], OneLabel]
) -> OneLabel | LabelwiseScaling:
    columns = read_columns(scores, labels, weights=weights)
    fitted = []
    for column in columns:
        column.require_both_classes("a recalibration")
        fitted.append(fit_column(column))
    return fitted[0] if columns.scores.ndim == 1 else LabelwiseScaling(tuple(fitted))


def _temperature_of(column: Column, fit_intercept: bool) -> TemperatureScaling:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    x = column.scores.astype(np.float64)
    centre, scale = (float(x.mean()) if fit_intercept else 0.0), float(x.std()) or 1.0
    z = ((x - centre) / scale)[:, None]
    weights = np.ones(x.size) if column.weights is None else scale_free_array(column.weights)
    positives, negatives = (_effective_rows(weights[rows]) for rows in (column.positive, ~column.positive))
    targets = np.where(column.positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # A target t between 0 and 1 is one positive row of weight t and one negative row of weight 1 - t.
    model = LogisticRegression(C=np.inf, fit_intercept=fit_intercept, tol=1e-10, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the fit is at float64's limit of precision
        model.fit(
            np.concatenate([z, z]),
            np.repeat([1, 0], x.size),
            sample_weight=np.concatenate([weights * targets, weights * (1 - targets)]),
        )
    slope = float(model.coef_[0, 0]) / scale
    if slope <= 0:
        mean = float(np.average(targets, weights=weights))
        return TemperatureScaling(slope=0.0, intercept=math.log(mean / (1 - mean)) if fit_intercept else 0.0)
    return TemperatureScaling(
        slope=slope, intercept=float(model.intercept_[0]) - slope * centre if fit_intercept else 0.0
    )


def _effective_rows(weights: Floats) -> float:
    """Kish's (sum w)^2 / sum w^2: n for n equal weights, and a row of weight 0 is as good as not there."""
    shares = weights / weights.max()  # tiny weights must not underflow when squared
    return float(shares.sum() ** 2 / (shares @ shares))


def _isotonic_of(column: Column) -> IsotonicScaling:
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    weights = None if column.weights is None else scale_free_array(column.weights)
    model.fit(column.scores.astype(np.float64), column.positive.astype(np.float64), sample_weight=weights)
    return IsotonicScaling(tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist()))
