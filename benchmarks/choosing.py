"""How much too good the AUC of the kept candidate looks, and what two corrections leave of that, by simulation.

    python benchmarks/choosing.py          # about ten minutes; writes results/choosing.json
    python benchmarks/choosing.py --table  # only writes results/choosing.md from that record

Six candidates over five folds, ten negatives for each positive. Candidates share a part of their errors (correlation of
the scores within a class). The bias is the mean of the reported AUC less the true AUC of what was kept.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from deepauc.metrics.crossval import choosing
from deepauc.metrics.crossval.choosing import choose
from deepauc.metrics.crossval.folds import FoldEstimate, compare_fold_auroc
from deepauc.text_tables import markdown_table
from deepauc.training.run.folder import code_text, surroundings

RESULTS = Path(__file__).parent.parent / "results"
REPEATS, RESAMPLES, CANDIDATES, FOLDS, AREA = 400, 100, 6, 5, 0.75
NORMAL = NormalDist()
RULES = {"best of six": 0.0, "one paired standard error": 1.0}
CASES = tuple(
    (rule, positives, correlation, 0.0) for rule in RULES for positives in (15, 30) for correlation in (0.3, 0.7, 0.9)
) + tuple(("one paired standard error", 30, 0.7, gain) for gain in (0.02, 0.05))
FIGURES = ("as it is", "leave one fold out", "bootstrap")
Floats = np.ndarray[Any, np.dtype[np.float64]]
Codes = np.ndarray[Any, np.dtype[np.int64]]


def simulate(rule: str, positives: int, correlation: float, gain: float) -> dict[str, Any]:
    rng = np.random.default_rng([positives, round(100 * correlation), round(1000 * gain), *rule.encode()])
    negatives = 10 * positives
    labels = np.repeat([1, 0], [positives, negatives])
    folds = np.concatenate([np.arange(positives) % FOLDS, np.arange(negatives) % FOLDS])
    areas = np.full(CANDIDATES, AREA)
    areas[1] += gain
    apart = [NORMAL.inv_cdf(area) * math.sqrt(2) for area in areas]
    errors: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    held: dict[str, list[bool]] = {figure: [] for figure in FIGURES}
    changed = right = 0
    with patch.object(choosing, "STANDARD_ERRORS", RULES[rule]):
        for _ in range(REPEATS):
            shared = rng.standard_normal(labels.size)
            scores = [
                math.sqrt(correlation) * shared
                + math.sqrt(1 - correlation) * rng.standard_normal(labels.size)
                + d * labels
                for d in apart
            ]
            kept = choose({str(c): s for c, s in enumerate(scores)}, labels, folds, default="0")
            truth = areas[int(kept.name)]
            changed += kept.name != "0"
            right += bool(truth == areas.max())
            bias = bootstrap_bias(scores, labels, folds, RULES[rule], rng)
            moved = replace(
                kept.uncorrected,
                value=kept.uncorrected.value - bias,
                low=kept.uncorrected.low - bias,
                high=kept.uncorrected.high - bias,
            )
            for figure, found in zip(FIGURES, (kept.uncorrected, kept.auc, moved), strict=True):
                errors[figure].append(float(found.value) - truth)
                held[figure].append(holds(found, truth))
    return {
        "rule": rule,
        "positives": positives,
        "negatives": negatives,
        "correlation": correlation,
        "gain": gain,
        "repeats": REPEATS,
        "replaced": changed / REPEATS,
        "kept_the_best": right / REPEATS if gain else None,
        "bias": {figure: float(np.mean(errors[figure])) for figure in FIGURES},
        "rmse": {figure: float(np.sqrt(np.mean(np.square(errors[figure])))) for figure in FIGURES},
        "coverage": {figure: float(np.mean(held[figure])) for figure in FIGURES},
    }


def holds(found: FoldEstimate, truth: float) -> bool:
    return bool(found.low <= truth <= found.high)


def bootstrap_bias(scores: list[Floats], labels: Codes, folds: Codes, times: float, rng: np.random.Generator) -> float:
    """Tsamardinos et al. (2018): choose on resampled rows, judge on those left out; the mean of the difference."""
    errors = np.array([float(compare_fold_auroc(s, scores[0], labels, folds).standard_error) for s in scores])
    inside, outside = np.zeros((RESAMPLES, len(scores))), np.zeros((RESAMPLES, len(scores)))
    pairs_inside, pairs_outside = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for fold in range(FOLDS):
        rows = [np.flatnonzero((folds == fold) & (labels == value)) for value in (1, 0)]
        drawn = [rng.multinomial(r.size, np.full(r.size, 1 / r.size), size=RESAMPLES) for r in rows]
        left = [(count == 0).astype(np.float64) for count in drawn]
        for c, s in enumerate(scores):
            kernel = (s[rows[0]][:, None] > s[rows[1]]).astype(np.float64)
            inside[:, c] += ((drawn[0] @ kernel) * drawn[1]).sum(axis=1)
            outside[:, c] += ((left[0] @ kernel) * left[1]).sum(axis=1)
        pairs_inside += rows[0].size * rows[1].size
        pairs_outside += left[0].sum(axis=1) * left[1].sum(axis=1)
    judged = pairs_outside > 0
    inside = inside[judged] / pairs_inside[judged, None]
    outside = outside[judged] / pairs_outside[judged, None]
    better = inside - inside[:, :1] > times * errors
    better[:, 0] = True
    kept = np.argmax(np.where(better, inside, -1.0), axis=1)
    at = np.arange(len(kept))
    return float((inside[at, kept] - outside[at, kept]).mean())


def table(record: dict[str, Any]) -> str:
    rows = []
    for row in record["rows"]:
        cells = [
            f"{row['bias'][figure]:+.3f}, {row['rmse'][figure]:.3f}, {row['coverage'][figure]:.3f}"
            for figure in FIGURES
        ]
        gain = "none" if not row["gain"] else f"+{row['gain']:g}, kept in {row['kept_the_best']:.0%}"
        rows.append(
            [row["rule"], str(row["positives"]), f"{row['correlation']:g}", gain, f"{row['replaced']:.0%}", *cells]
        )
    header = ["rule", "positives", "correlation", "a better candidate", "default replaced", *FIGURES]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return "\n".join(
        [
            "# What the choice of a candidate does to its AUC",
            "",
            f"Six candidates with a true AUC of {AREA:g} (one of them better where the table says so), five folds, ten",
            f"negatives for each positive, {record['rows'][0]['repeats']} simulations for each row. The last three",
            "columns are bias, root mean square error and coverage of the 95 % interval of the reported AUC: as it is,",
            "with each fold judged by the candidate that the other folds choose (the rule in use), and with a",
            "bootstrap correction. Made by `python benchmarks/choosing.py`.",
            "",
            markdown_table(header, rows),
            "",
            f"{record['hardware']}; {versions}; {code_text(record)}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    path = RESULTS / "choosing.json"
    if not parser.parse_args().table:
        rows = []
        for case in CASES:
            rows.append(simulate(*case))
            print(rows[-1], flush=True)
        record = {**surroundings(torch.device("cpu")), "rows": rows}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads(path.read_text(encoding="utf-8"))
    (RESULTS / "choosing.md").write_text(table(record), encoding="utf-8")


if __name__ == "__main__":
    main()
