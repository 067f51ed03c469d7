"""What the score histograms of a record tell: AUC, and how far the two classes stand apart (A8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Separation:
    """How two classes of scores lie, each class with the same weight.

    apart: (mean+ - mean-) / sqrt((var+ + var-)/2), scores at the centres of their bins (Ashman, Bird and Zepf 1994).
    Two normals of one width and one weight have a single mode up to 2. overlap: the area that both histograms share,
    each of area 1; 1 is one and the same, 0 is no bin in common.
    """

    apart: float
    overlap: float


def binned_auc(histogram: Mapping[str, Any]) -> float | None:
    """From a record's `score_histogram` of one part, a pair inside a bin counting half; None if a class has no row."""
    negative, positive = _counts(histogram)
    pairs = negative.sum() * positive.sum()
    if not pairs:
        return None
    below = np.cumsum(negative) - negative
    return float((positive * below).sum() / pairs) + float((positive * negative).sum() / pairs) / 2


def separation(histogram: Mapping[str, Any]) -> Separation | None:
    """The same for the distance of the classes; None where a class has no row, or most of both lies in one bin."""
    negative, positive = _counts(histogram)
    if not negative.sum() or not positive.sum():
        return None
    shares = [counts / counts.sum() for counts in (negative, positive)]
    if np.minimum(*shares).max() > 0.5:
        return None  # a few scores far out have stretched the bins: what they hold says nothing of the others
    centres = np.arange(len(negative)) + 0.5  # in bins: a distance in standard deviations has no unit
    means = [float((share * centres).sum()) for share in shares]
    variances = [float((share * (centres - mean) ** 2).sum()) for share, mean in zip(shares, means, strict=True)]
    if not sum(variances):
        return None
    return Separation(
        apart=(means[1] - means[0]) / math.sqrt(sum(variances) / 2),
        overlap=float(np.minimum(*shares).sum()),
    )


def _counts(histogram: Mapping[str, Any]) -> tuple[Floats, Floats]:
    return np.asarray(histogram["negative"], dtype=np.float64), np.asarray(histogram["positive"], dtype=np.float64)
