"""How often nominal 95 % intervals of a cross-validated AUC hold the truth, by simulation, for several rules.

    python benchmarks/fold_intervals.py          # about ten minutes; writes results/fold-intervals.json
    python benchmarks/fold_intervals.py --table  # only writes results/fold-intervals.md from that record

The truth is the pair-weighted mean over folds of each fold model's own AUC on unlimited data. Scores of each fold are
on a scale of their own; the models' AUCs differ by a standard deviation of .02, or are those of linear discriminants
that were really trained on the other folds.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from deepauc.metrics.crossval.folds import compare_fold_auroc, fold_auroc_interval
from deepauc.metrics.intervals import delong_variance, logit_limits
from deepauc.text_tables import markdown_table
from deepauc.training.run.folder import code_text, surroundings

RESULTS = Path(__file__).parent.parent / "results"
REPEATS, RESAMPLES, AREAS = 1000, 400, (0.7, 0.8, 0.9)
NORMAL = NormalDist()
Z = NORMAL.inv_cdf(0.975)
CHOSEN = "centred on the mean, t, logit"
METHODS = (
    CHOSEN,
    "centred on the mean, z, logit",
    "centred on the mean, z, plain",
    "each fold's DeLong, z, logit",
    "each fold's DeLong, z, plain",
    "bootstrap, percentiles",
    "bootstrap, its standard error, logit",
)
Floats = np.ndarray[Any, np.dtype[np.float64]]
Codes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Sample:
    """One simulated cross-validation."""

    scores: Floats
    labels: Codes
    folds: Codes
    truth: float
    groups: Codes | None = None
    other: Floats | None = None  # a second candidate's scores, with its truth
    other_truth: float = math.nan


def shift(area: float) -> float:
    """The distance of two unit normals whose AUROC is `area`."""
    return NORMAL.inv_cdf(area) * math.sqrt(2)


def dealt(positives: int, negatives: int, folds: int) -> tuple[Codes, Codes]:
    labels = np.repeat([1, 0], [positives, negatives])
    return labels, np.concatenate([np.arange(positives) % folds, np.arange(negatives) % folds])


def pair_weighted(areas: Floats, labels: Codes, folds: Codes) -> float:
    counts = np.array([[((folds == f) & (labels == y)).sum() for y in (1, 0)] for f in range(len(areas))])
    pairs = counts.prod(axis=1)
    return float(areas @ pairs / pairs.sum())


def equal_folds(rng: np.random.Generator, positives: int, negatives: int, area: float, folds: int = 5) -> Sample:
    labels, fold = dealt(positives, negatives, folds)
    return _scored(rng, labels, fold, area, folds)


def uneven_sites(rng: np.random.Generator, positives: int, negatives: int, area: float) -> Sample:
    labels = np.repeat([1, 0], [positives, negatives])
    fold = rng.choice(5, labels.size, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    return _scored(rng, labels, fold, area, 5)


def ten_folds(rng: np.random.Generator, positives: int, negatives: int, area: float) -> Sample:
    return equal_folds(rng, positives, negatives, area, folds=10)


def _scored(rng: np.random.Generator, labels: Codes, fold: Codes, area: float, folds: int) -> Sample:
    areas = np.clip(area + 0.02 * rng.standard_normal((2, folds)), 0.5, 0.99)
    moved = np.vectorize(shift)(areas)
    shared = rng.standard_normal(labels.size)  # two candidates err on the same rows
    scores, other = (
        math.sqrt(0.7) * shared + math.sqrt(0.3) * rng.standard_normal(labels.size) + moved[k, fold] * labels + 5 * fold
        for k in (0, 1)
    )
    truths = [pair_weighted(areas[k], labels, fold) for k in (0, 1)]
    return Sample(scores, labels, fold, truths[0], other=other, other_truth=truths[1])


def tied(rng: np.random.Generator, positives: int, negatives: int, area: float) -> Sample:
    """Scores on a scale of a few whole numbers."""
    labels, fold = dealt(positives, negatives, 5)
    steps = np.arange(-8, 12)
    mass = np.array([[NORMAL.cdf(x + 0.5 - d) - NORMAL.cdf(x - 0.5 - d) for x in steps] for d in (0.0, shift(area))])
    truth = float(mass[1] @ (np.cumsum(mass[0]) - mass[0] / 2))
    return Sample(np.round(rng.standard_normal(labels.size) + shift(area) * labels), labels, fold, truth)


def patients(rng: np.random.Generator, positives: int, negatives: int, area: float) -> Sample:
    """Four images each; most of a patient's images share their class, and all share a part of their score."""
    images, share = 4, positives / (positives + negatives)
    count = (positives + negatives) // images
    groups = np.repeat(np.arange(count), images)
    frail = np.arange(count) < round(count * share * 1.2)
    labels = (rng.random(groups.size) < np.where(frail[groups], 0.75, 0.1 * share)).astype(np.int64)
    fold = np.concatenate([np.arange(frail.sum()), np.arange((~frail).sum())])[groups] % 5
    noise = math.sqrt(0.6) * rng.standard_normal(count)[groups] + math.sqrt(0.4) * rng.standard_normal(groups.size)
    return Sample(noise + shift(area) * labels, labels, fold, area, groups=groups)


def trained(rng: np.random.Generator, positives: int, negatives: int, area: float) -> Sample:
    """A linear discriminant of eight features, trained on the other folds; the direction's own AUC is known exactly."""
    labels, fold = dealt(positives, negatives, 5)
    apart = np.zeros(8)
    apart[:3] = shift(area) / math.sqrt(3)
    x = rng.standard_normal((labels.size, 8)) + labels[:, None] * apart
    scores, areas = np.empty(labels.size), np.empty(5)
    for f in range(5):
        inside = fold != f
        means = [x[inside & (labels == y)].mean(axis=0) for y in (0, 1)]
        centred = x[inside] - np.where(labels[inside, None] == 1, means[1], means[0])
        direction = np.linalg.solve(centred.T @ centred / inside.sum() + 0.1 * np.eye(8), means[1] - means[0])
        scores[fold == f] = x[fold == f] @ direction
        areas[f] = NORMAL.cdf(float(direction @ apart) / float(np.linalg.norm(direction)) / math.sqrt(2))
    return Sample(scores, labels, fold, pair_weighted(areas, labels, fold))


CASES: tuple[tuple[str, Callable[..., Sample], tuple[tuple[int, int], ...]], ...] = (
    ("equal folds", equal_folds, ((15, 150), (15, 1000), (30, 300), (60, 600), (100, 400), (200, 800), (30, 30))),
    ("ten folds", ten_folds, ((15, 150),)),
    ("ties", tied, ((15, 150), (60, 600))),
    ("patients of four images", patients, ((30, 300), (60, 600), (200, 800))),
    ("uneven sites", uneven_sites, ((30, 300), (100, 400))),
    ("really trained", trained, ((15, 150), (30, 300), (100, 400))),
)


def limits(sample: Sample, rng: np.random.Generator) -> dict[str, tuple[float, float] | None]:
    """None where a rule has no answer."""
    own = fold_auroc_interval(sample.scores, sample.labels, sample.folds, groups=sample.groups)
    value, se = float(own.value), float(own.standard_error)
    found: dict[str, tuple[float, float] | None] = {CHOSEN: (float(own.low), float(own.high))}
    regular = 0 < value < 1 and 0 < se < math.inf
    found[METHODS[1]] = logit_limits(value, se, Z) if regular else found[CHOSEN]
    found[METHODS[2]] = (value - Z * se, value + Z * se) if regular else found[CHOSEN]
    each = each_fold(sample)
    found[METHODS[3]] = logit_limits(value, each, Z) if each and regular else None
    found[METHODS[4]] = (value - Z * each, value + Z * each) if each and regular else None
    draws = bootstrap(sample, rng)
    spread = float(draws.std(ddof=1))
    low, high = np.quantile(draws, [0.025, 0.975])
    found[METHODS[5]] = float(low), float(high)
    found[METHODS[6]] = logit_limits(value, spread, Z) if spread and regular else None
    return found


def each_fold(sample: Sample) -> float | None:
    """The variances of the folds, each by DeLong within the fold, summed; None where a fold has fewer than two."""
    total = pairs = 0.0
    for f in np.unique(sample.folds):
        rows = sample.folds == f
        positives = int(sample.labels[rows].sum())
        weight = positives * (int(rows.sum()) - positives)
        if not weight:
            continue
        try:
            groups = None if sample.groups is None else sample.groups[rows]
            total += weight**2 * float(delong_variance(sample.scores[rows], sample.labels[rows], groups=groups))
        except ValueError:
            return None
        pairs += weight
    return math.sqrt(total) / pairs


def bootstrap(sample: Sample, rng: np.random.Generator) -> Floats:
    """Within folds: each class by itself, or whole patients; a sample without a pair is left out."""
    right, pairs = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for f in np.unique(sample.folds):
        of_class = [np.flatnonzero((sample.folds == f) & (sample.labels == y)) for y in (1, 0)]
        a, b = (sample.scores[rows] for rows in of_class)
        if not a.size or not b.size:
            continue
        kernel = (a[:, None] > b) + 0.5 * (a[:, None] == b)
        if sample.groups is None:
            drawn = [rng.multinomial(n.size, np.full(n.size, 1 / n.size), size=RESAMPLES) for n in (a, b)]
        else:
            names = np.unique(sample.groups[sample.folds == f])
            counts = rng.multinomial(names.size, np.full(names.size, 1 / names.size), size=RESAMPLES)
            drawn = [counts[:, np.searchsorted(names, sample.groups[rows])] for rows in of_class]
        right += ((drawn[0] @ kernel) * drawn[1]).sum(axis=1)
        pairs += drawn[0].sum(axis=1) * drawn[1].sum(axis=1)
    return right[pairs > 0] / pairs[pairs > 0]


def simulate(name: str, make: Callable[..., Sample], positives: int, negatives: int, area: float) -> dict[str, Any]:
    rng = np.random.default_rng([positives, negatives, round(100 * area), *name.encode()])
    held: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    width: Counter[str] = Counter()
    errors, paired, few = [], [], 0
    for _ in range(REPEATS):
        sample = make(rng, positives, negatives, area)
        counts = [int(sample.labels[sample.folds == f].sum()) for f in np.unique(sample.folds)]
        few += min(counts) < 5
        for method, found in limits(sample, rng).items():
            if found is None:
                silent[method] += 1
                continue
            held[method] += found[0] <= sample.truth <= found[1]
            width[method] += found[1] - found[0]
        if sample.other is not None:
            difference = compare_fold_auroc(
                sample.scores, sample.other, sample.labels, sample.folds, groups=sample.groups
            )
            truth = sample.truth - sample.other_truth
            paired.append(float(difference.low) <= truth <= float(difference.high))
            errors.append(abs(float(difference.difference) - truth) <= float(difference.standard_error))
    return {
        "case": name,
        "positives": positives,
        "negatives": negatives,
        "area": area,
        "repeats": REPEATS,
        "fold_under_five_positives": few / REPEATS,
        "coverage": {m: held[m] / (REPEATS - silent[m]) if silent[m] < REPEATS else None for m in METHODS},
        "width": {m: width[m] / (REPEATS - silent[m]) if silent[m] < REPEATS else None for m in METHODS},
        "no_answer": {m: silent[m] for m in METHODS if silent[m]},
        "paired_coverage": sum(paired) / REPEATS if paired else None,
        "paired_within_one_se": sum(errors) / REPEATS if errors else None,
    }


def table(record: dict[str, Any]) -> str:
    rows = []
    for name, _, sizes in CASES:
        for positives, negatives in sizes:
            found = [
                row
                for row in record["rows"]
                if (row["case"], row["positives"], row["negatives"]) == (name, positives, negatives)
            ]
            cells = [" / ".join(_share(row["coverage"][method]) for row in found) for method in METHODS]
            paired = " / ".join(_share(row["paired_coverage"]) for row in found)
            rows.append([name, f"{positives}, {negatives}", *cells, paired])
    worst = []
    for method in METHODS:
        known = [row["coverage"][method] for row in record["rows"] if row["coverage"][method] is not None]
        silent = sum(row["no_answer"].get(method, 0) for row in record["rows"])
        total = sum(row["repeats"] for row in record["rows"])
        near = sum(abs(share - 0.95) for share in known) / len(known)
        worst.append([method, f"{min(known):.3f}", f"{near:.3f}", f"{silent / total:.1%}"])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    areas = " / ".join(f"{area:g}" for area in AREAS)
    return "\n".join(
        [
            "# Intervals of a cross-validated AUC",
            "",
            f"Share of nominal 95 % intervals that hold the truth, of {record['rows'][0]['repeats']:,} simulated",
            "cross-validations for each entry (so an entry has a standard error of about .007), five folds unless the",
            f"case says otherwise. A cell has one entry for each AUC: {areas}. *Paired* is the interval of the",
            "difference of two candidates. The first rule is the one in use. Made by",
            "`python benchmarks/fold_intervals.py`.",
            "",
            markdown_table(["rule", "lowest coverage", "mean distance from .95", "no answer"], worst),
            "",
            markdown_table(["case", "positives, negatives", *METHODS, "paired"], rows),
            "",
            f"{record['hardware']}; {versions}; {code_text(record)}.",
            "",
        ]
    )


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    path = RESULTS / "fold-intervals.json"
    if not parser.parse_args().table:
        rows = []
        for name, make, sizes in CASES:
            for positives, negatives in sizes:
                for area in AREAS:
                    rows.append(simulate(name, make, positives, negatives, area))
                    print(name, positives, negatives, area, rows[-1]["coverage"], flush=True)
        record = {**surroundings(torch.device("cpu")), "rows": rows}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads(path.read_text(encoding="utf-8"))
    (RESULTS / "fold-intervals.md").write_text(table(record), encoding="utf-8")


if __name__ == "__main__":
    main()
