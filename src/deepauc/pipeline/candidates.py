"""The candidates of cross-validation: what each fold's networks score on held-out rows, on one scale, and who is kept.

A raw score becomes log odds by a recalibration that is fitted on the held-out rows of the *other* folds: no row's own
label, and none of its fold, has a say in its score. Averages are means of probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.crossval.choosing import choose
from deepauc.metrics.crossval.folds import FoldComparison, compare_fold_auroc, fold_auroc_interval, labels_with_pairs
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.recalibration import LabelwiseScaling, TemperatureScaling, fit_temperature
from deepauc.reporting.evaluation.label import too_few
from deepauc.reporting.evaluation.sample import Sample, count_rows
from deepauc.training.recipe import Recipe
from deepauc.training.run.fold_record import BoardRow, KeptCandidate

Floats = npt.NDArray[np.float64]

AVERAGE, METADATA, SEED = "average", "metadata", ", seed "
OWN_ROWS = 10  # of either class that a fold must hold for a recalibration of its own; else that of all folds
LEAST_SLOPE = 1e-3  # log odds per standard deviation, where held-out rows rank backwards: next to no vote, but an order
_SHORT = {"CrossEntropy": "ce", "AUCMargin": "auc_m", "AUCSquare": "auc_s"}
_AS_IT_IS = TemperatureScaling(slope=1.0, intercept=0.0)


def short_name(objective: str) -> str:
    """`ce`, `auc_m`."""
    return _SHORT.get(objective, objective.lower())


def network_names(recipe: Recipe) -> tuple[str, ...]:
    """The networks of a fold, `ce` and `ce_auc_m`: after the baseline stage, and after the last."""
    objectives = [type(stage.objective).__name__ for stage in recipe.stages if not stage.on_views]
    short = [short_name(name) for name in objectives]
    return (short[0],) if len(short) == 1 else (short[0], "_".join(short))


def of_seed(name: str, number: int) -> str:
    """What the network of a further seed is called; number: from 0, which is the run's own."""
    return name if number == 0 else f"{name}{SEED}{number + 1}"


def default_candidate(recipe: Recipe) -> str:
    """Fixed before any score is seen: the network that the plan ends with.

    It rests on results/plan.md, second round: "AUC-M if CE leaves time for it". On small tables no candidate is better
    than it beyond noise (results/folds.md), and the average of both takes twice the disk and the time.
    """
    return network_names(recipe)[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """Held-out rows of all folds: labels (N, L), NaN where missing; fold (N,) by number; groups (N,) of patients.

    networks, trivial: raw scores (N, L) by name. metadata: of the network on metadata, where there are images too.
    """

    label_names: tuple[str, ...]
    labels: Floats
    fold: npt.NDArray[np.int64]
    groups: npt.NDArray[Any] | None
    networks: Mapping[str, Floats]
    trivial: Mapping[str, Floats]
    metadata: Floats | None = None

    @property
    def raw(self) -> dict[str, Floats]:
        """Of all networks and trivial baselines, by name."""
        beside = {} if self.metadata is None else {METADATA: self.metadata}
        return {**self.networks, **beside, **self.trivial}


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """What is kept, and its log odds (N, L). members: the networks in it by name, with the share of each."""

    choice: KeptCandidate
    scores: Floats
    members: Mapping[str, float]


def choose_candidate(rows: HeldOut, *, default: str, seconds: Mapping[str, float]) -> Chosen:
    """Judge all candidates and keep one. seconds: of each network and trivial baseline, over all folds."""
    odds = {name: cross_fitted(rows, name) for name in rows.raw}
    made_of = _made_of(rows, default)
    joined = {
        (name, baseline): {**{one: share / 2 for one, share in members.items()}, baseline: 0.5}
        for name, members in made_of.items()
        for baseline in rows.trivial
        if name != METADATA
    }
    candidates = {name: _mean(odds, members) for name, members in made_of.items()}
    trivial = {name: odds[name] for name in rows.trivial}
    averages = {pair: _mean(odds, members) for pair, members in joined.items()}
    few = _too_few(rows)
    kept = choose(
        candidates,
        _labels_that_count(rows, few),
        rows.fold,
        default=default,
        groups=rows.groups,
        trivial=trivial,
        averages=averages,
    )
    name_kept, judged, needs = kept.name, candidates | trivial, made_of | {name: {name: 1.0} for name in trivial}
    if kept.with_trivial is not None:
        pair = kept.name, kept.with_trivial
        name_kept = " with ".join(pair)
        judged[name_kept], needs[name_kept] = averages[pair], joined[pair]
    board = tuple(
        BoardRow(
            candidate=name,
            label=label,
            auc=auc,
            seconds=round(_needed_seconds(rows, needs[name], seconds), 3),
            kept=name == name_kept,
            trivial=name in rows.trivial,
            less_kept=None if name == name_kept else _difference(rows, label, scores, judged[name_kept]),
        )
        for name, scores in judged.items()
        for label, auc in _intervals(rows, scores).items()
    )
    aucs = _intervals(rows, kept.composed)
    choice = KeptCandidate(
        kept=kept.name,
        default=default,
        auc=kept.auc.floats(),
        aucs=aucs,
        too_few={name: why for name, why in few.items() if name in aucs},
        board=board,
        with_trivial=kept.with_trivial,
        trivial=kept.trivial,
        lead=None if kept.against_trivial is None else _estimate(kept.against_trivial),
    )
    return Chosen(choice=choice, scores=judged[name_kept], members=needs[name_kept])


def _made_of(rows: HeldOut, default: str) -> dict[str, dict[str, float]]:
    """By candidate, the networks in it, seeds and all, with the share of each."""
    seeds: dict[str, list[str]] = {}
    for name in rows.networks:
        seeds.setdefault(name.partition(SEED)[0], []).append(name)
    found = {name: dict.fromkeys(members, 1 / len(members)) for name, members in seeds.items()}
    if len(found) > 1:
        found[AVERAGE] = dict.fromkeys(rows.networks, 1 / len(rows.networks))
    if rows.metadata is not None:
        halves = {name: share / 2 for name, share in found[default].items()}
        found |= {METADATA: {METADATA: 1.0}, f"{default} with {METADATA}": {**halves, METADATA: 0.5}}
    return found


def _needed_seconds(rows: HeldOut, members: Iterable[str], seconds: Mapping[str, float]) -> float:
    """What the training of these takes. seconds: of each by itself, a later stage without those before it."""
    needed = set(members)
    for name in needed & set(rows.networks):
        earlier = list(rows.networks)[: list(rows.networks).index(name)]
        needed |= {one for one in earlier if one.partition(SEED)[2] == name.partition(SEED)[2]}
    return sum(seconds[name] for name in sorted(needed))


def recalibrations(rows: HeldOut, name: str) -> list[LabelwiseScaling]:
    """Of a network, by fold: by what its own fold held out, or, where that is too little, by what all folds did."""
    raw = rows.raw[name]
    found = []
    for fold in range(int(rows.fold.max()) + 1):
        own = rows.fold == fold
        scalings = []
        for j in range(rows.labels.shape[1]):
            counts = [int((rows.labels[own, j] == value).sum()) for value in (0, 1)]
            fitted_on = own if min(counts) >= OWN_ROWS else np.ones(len(own), dtype=bool)
            scalings.append(_fitted(raw[fitted_on, j], rows.labels[fitted_on, j]))
        found.append(LabelwiseScaling(tuple(scalings)))
    return found


def _intervals(rows: HeldOut, scores: Floats) -> dict[str, Estimate[float]]:
    """The mean AUC over folds by label; labels that no fold can judge are left out."""
    judged = labels_with_pairs(rows.labels, rows.fold)
    return {
        name: fold_auroc_interval(scores[:, j], rows.labels[:, j], rows.fold, groups=rows.groups).floats()
        for j, name in enumerate(rows.label_names)
        if judged[j]
    }


def _difference(rows: HeldOut, label: str, scores: Floats, other: Floats) -> Estimate[float]:
    """The paired difference of two candidates' AUCs for one label."""
    j = rows.label_names.index(label)
    return _estimate(compare_fold_auroc(scores[:, j], other[:, j], rows.labels[:, j], rows.fold, groups=rows.groups))


def _estimate(found: FoldComparison) -> Estimate[float]:
    return Estimate(float(found.difference), float(found.low), float(found.high))


def _labels_that_count(rows: HeldOut, too_few: Mapping[str, str]) -> Floats:
    """(N, L), NaN for labels with too few rows of a class to choose by; all of them where none has enough."""
    few = np.array([name in too_few for name in rows.label_names])
    return rows.labels if few.all() else np.where(few, np.nan, rows.labels)


def _too_few(rows: HeldOut) -> dict[str, str]:
    """Labels with too few rows of a class for an AUC that one would quote: the mean leaves them out."""
    found, groups = dict[str, str](), None if rows.groups is None else rows.groups.astype(np.str_)
    for name, labels in zip(rows.label_names, rows.labels.T, strict=True):
        if (why := too_few(count_rows(Sample(scores=labels, labels=labels, groups=groups)))) is not None:
            found[name] = why
    return found


def cross_fitted(rows: HeldOut, name: str) -> Floats:
    """Log odds (N, L): each fold's raw scores recalibrated by the held-out rows of the others, if there are any."""
    raw = rows.raw[name]
    odds = np.empty(raw.shape)
    folds = np.unique(rows.fold)
    for fold in folds:
        own = rows.fold == fold
        others = ~own if len(folds) > 1 else own
        for j in range(raw.shape[1]):
            scaling = _fitted(raw[others, j], rows.labels[others, j])
            odds[own, j] = scaling.slope * raw[own, j].astype(np.float64) + scaling.intercept
    return odds


def _fitted(scores: npt.NDArray[Any], labels: Floats) -> TemperatureScaling:
    known = ~np.isnan(labels)
    if len(np.unique(labels[known])) < 2:
        return _AS_IT_IS
    scaling = fit_temperature(scores[known], labels[known])
    assert isinstance(scaling, TemperatureScaling)
    spread = float(scores[known].std())
    if scaling.slope > 0 or spread == 0:
        return scaling
    # With a slope of 0 all rows of a fold tie: its AUC would be 0.5 whatever the network does, and the interval narrow.
    slope = LEAST_SLOPE / spread
    return TemperatureScaling(slope=slope, intercept=scaling.intercept - slope * float(scores[known].mean()))


def _mean(odds: Mapping[str, Floats], members: Mapping[str, float]) -> Floats:
    """The log odds of the mean probability, as `models.average` has them."""
    if len(members) == 1:
        return odds[next(iter(members))]
    return log_odds_of_mean([odds[name] for name in members], list(members.values()))


def log_odds_of_mean(odds: Sequence[Floats], shares: Sequence[float]) -> Floats:
    """log p - log(1 - p) for p = Σ w σ(z), in logarithms throughout."""
    z, weights = np.stack(odds), np.log(np.array(shares)).reshape(-1, *(1,) * odds[0].ndim)
    positive, negative = (np.logaddexp.reduce(weights - np.logaddexp(0.0, -sign * z), axis=0) for sign in (1, -1))
    return np.asarray(positive - negative, dtype=np.float64)
