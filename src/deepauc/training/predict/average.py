"""Runs averaged: how much each counts, and the mean of their recalibrated probabilities, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.labels import scale_free_array
from deepauc.metrics.recalibration import IsotonicScaling, LabelwiseScaling, TemperatureScaling
from deepauc.models.average import AverageSpec
from deepauc.models.fusion import Scale, ensemble
from deepauc.training.predict.predict import ScoreArray
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run


def shares(weights: Sequence[float] | None, runs: int) -> list[float]:
    """What each run counts, 1 in all."""
    if weights is None:
        return [1 / runs] * runs
    given = [float(weight) for weight in weights]
    if len(given) != runs or not all(0 <= weight < np.inf for weight in given) or not any(given):
        raise ValueError(f"{runs} runs need {runs} weights, one per run in their order, none negative and not all 0.")
    given = scale_free_array(np.array(given)).tolist()
    return [weight / sum(given) for weight in given]


def _mean_over(shares: Sequence[float]) -> str:
    """`mean over 2 runs`, or, where they do not count alike, `mean over 2 runs that count 0.8, 0.2`."""
    alike = len(set(shares)) == 1
    return f"mean over {len(shares)} runs" + ("" if alike else f" that count {', '.join(f'{x:.3g}' for x in shares)}")


@dataclass(frozen=True, kw_only=True)
class GivenAverage:
    """The mean over runs by shares that were given, after a sigmoid or as ranks; one run as it is.

    recalibrations: of each run, where probabilities are wanted.
    """

    folders: Sequence[Path]
    names: tuple[str, ...]
    shares: Sequence[float]
    scale: Scale
    recalibrations: Sequence[LabelwiseScaling]

    @classmethod
    def of(
        cls,
        folders: Sequence[Path],
        bundles: Sequence[Bundle],
        weights: Sequence[float] | None,
        *,
        scale: Scale,
        recalibrated: bool,
    ) -> GivenAverage:
        counts, found = shares(weights, len(folders)), []
        for folder, bundle in zip(folders, bundles, strict=True) if recalibrated else ():
            try:
                found.append(bundle.recalibration())
            except ValueError as error:
                raise ValueError(f"{folder} gives no probability: {error}") from error
        names = bundles[0].label_names
        return cls(folders=folders, names=names, shares=counts, scale=scale, recalibrations=found)

    def scores(self, members: Sequence[ScoreArray]) -> ScoreArray:
        """(n, L), of raw scores (n, L) of each run."""
        return ensemble(members, scale=self.scale, weights=self.shares) if len(members) > 1 else members[0]

    def probabilities(self, members: Sequence[ScoreArray]) -> npt.NDArray[np.float64]:
        """p = Σ_m w_m r_m(h_m), (n, L), of raw scores h_m of M runs, each with its recalibration r_m and share w_m."""
        each = [recalibrate.apply(scores) for recalibrate, scores in zip(self.recalibrations, members, strict=True)]
        return np.clip(np.average(each, axis=0, weights=self.shares), 0.0, 1.0)  # interpolation may end an ulp above 1

    @property
    def meaning(self) -> str:
        if len(self.shares) == 1:
            return "raw scores of one run, higher for more likely positive"
        return f"{_mean_over(self.shares)} after {'a sigmoid' if self.scale == 'sigmoid' else 'ranking'}"

    @property
    def probability_meaning(self) -> str:
        return probability_meaning(self.folders, self.names, self.recalibrations, self.shares)


def probability_meaning(
    folders: Sequence[Path],
    names: tuple[str, ...],
    recalibrations: Sequence[LabelwiseScaling],
    weights: Sequence[float],
) -> str:
    """In one line: how they were made, the share of positives they hold for, and labels without a rising curve."""
    several, there, caution = len(folders) > 1, "", ""
    if not several and _is_average(folders[0]):
        return (
            "probability: mean over the model's networks, each recalibrated on rows that it was not trained on; it "
            "holds at the prevalence of the training table, not at another clinic's"
        )
    known = [_validation_prevalence(folder, len(names)) for folder in folders]
    shares = [share for share in known if share is not None]
    if len(shares) == len(folders):
        low, high = ([f"{100 * x:.3g}" for x in limit(shares, axis=0)] for limit in (np.min, np.max))
        each = [f"{a} %" if a == b else f"{a} to {b} %" for a, b in zip(low, high, strict=True)]
        named = each if len(names) == 1 else [f"{name} {share}" for name, share in zip(names, each, strict=True)]
        there = f" ({', '.join(named)} positive)"
    flat = [name for j, name in enumerate(names) if any(_is_flat(one.labels[j]) for one in recalibrations)]
    if flat:
        caution = f". Caution: on validation the scores of {', '.join(flat)} did not rise with the label" + (
            " in some of the runs, which give all rows one probability" if several else ": all rows get one probability"
        )
    made = (
        f"{_mean_over(weights)}, each recalibrated on its own validation part"
        if several
        else "score recalibrated on the validation part"
    )
    return f"probability: {made}; it holds at the prevalence there{there}, not at another clinic's{caution}"


def _is_average(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return isinstance(Bundle.load(folder).model, AverageSpec)
    return False


def _is_flat(scaling: TemperatureScaling | IsotonicScaling) -> bool:
    if isinstance(scaling, TemperatureScaling):
        return scaling.slope == 0
    return scaling.probabilities[0] == scaling.probabilities[-1]


def _validation_prevalence(folder: Path, labels: int) -> npt.NDArray[np.float64] | None:
    """The share of positives in the run's validation part by label, (L,); None for a bundle without its scores.csv."""
    with suppress(OSError, ValueError):  # damage there is no reason to stop
        known = Run(folder).scores("validation")[1].astype(np.float64)
        known = known.reshape(len(known), -1)
        positives, negatives = ((known == value).sum(axis=0) for value in (1, 0))
        if known.shape[1] == labels and (positives + negatives).all():
            return np.asarray(positives / (positives + negatives), dtype=np.float64)
    return None
