"""The figures of `results/folds.jsonl`, as `benchmarks/folds.py` records them: its page, and results/summary.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval, stratified_interval
from deepauc.studies.records.file import read_named

Record = Mapping[str, Any]
Value = Callable[[Record], float]
POSITIVES = 100
FOLDED = ("folds", "folds, as long", "folds, longer", "folds, planned", "folds, shipped")
ARMS = (*FOLDED, "one split", "one split, longer", "one split, planned", "one split, shipped")
CONTRASTS = (
    ("folds", "one split"),
    ("folds", "one split, longer"),
    ("folds, as long", "one split"),
    ("folds, longer", "one split, longer"),
    ("folds, planned", "one split, planned"),
    ("folds, shipped", "one split, shipped"),
)
CANDIDATES = ("ce", "ce_auc_m", "average")
THRESHOLDS = ("sensitivity 0.9", "sensitivity 0.95", "specificity 0.8", "specificity 0.9", "specificity 0.95")


class FoldStudy:
    """Runs by set, arm, number of positives and seed."""

    def __init__(self, records: Path) -> None:
        self.runs = {
            (one["set"], one["arm"], one["positives"], one["seed"]): one for one in read_named(records).values()
        }
        self.sets = tuple(dict.fromkeys(name for name, *_ in self.runs))

    def values(self, arm: str, value: Value, *, positives: int = POSITIVES) -> dict[str, list[float]]:
        """By set, of each seed."""
        found = {
            name: [value(run) for key, run in sorted(self.runs.items()) if key[:3] == (name, arm, positives)]
            for name in self.sets
        }
        return {name: some for name, some in found.items() if some}

    def mean(self, arm: str, value: Value, *, positives: int = POSITIVES) -> float | None:
        """Over sets of the means over seeds; None where a set has no run."""
        found = self.values(arm, value, positives=positives)
        return fmean(map(fmean, found.values())) if len(found) == len(self.sets) else None

    def difference(
        self,
        one: tuple[str, Value],
        other: tuple[str, Value],
        *,
        positives: int = POSITIVES,
        sets: tuple[str, ...] = (),
    ) -> Estimate[float] | None:
        """The mean over sets of the paired differences, over the seeds that both arms have; of one set its own."""
        cells = []
        for name in sets or self.sets:
            paired = {
                seed: one[1](run) - other[1](self.runs[name, other[0], positives, seed])
                for (data, arm, size, seed), run in self.runs.items()
                if (data, arm, size) == (name, one[0], positives) and (name, other[0], positives, seed) in self.runs
            }
            if len(paired) > 1:
                cells.append((name, paired))
        if len(cells) < len(sets or (self.sets if positives == POSITIVES else ("one",))):
            return None
        return mean_interval(list(cells[0][1].values())) if len(cells) == 1 else stratified_interval(cells)

    def achieved(self, arm: str, threshold: str) -> list[float]:
        """What the test parts of all runs reach at a threshold: sensitivity or specificity, as it is called."""
        which = 0 if threshold.startswith("sensitivity") else 1
        return [
            run["thresholds"][threshold][which]
            for (_, one, positives, _), run in self.runs.items()
            if (one, positives) == (arm, POSITIVES) and threshold in run["thresholds"]
        ]


def test_auc(run: Record) -> float:
    """Of what the run ships."""
    return float(run["test"][0])


def held_out(candidate: str) -> Value:
    """Its mean AUC within folds."""
    return lambda run: float(run["held_out"][candidate][0])


def on_test(candidate: str) -> Value:
    """The test AUC of its average over folds."""
    return lambda run: float(run["candidates"][candidate])


def fold_study_figures(results: Path) -> dict[str, Any]:
    """folds.auc.ARM.SET, folds.difference.ARM-OTHER.SET, folds.candidate..., folds.threshold..., folds.cost..."""
    study = FoldStudy(results / "folds.jsonl")

    def shown(found: Estimate[float] | None) -> dict[str, float] | None:
        return None if found is None else {"mean": found.value, "low": found.low, "high": found.high}

    def key(name: str) -> str:
        return name.replace(", ", "_").replace(" ", "_")

    auc = {
        key(arm): {
            "mean": study.mean(arm, test_auc),
            **{name: fmean(some) for name, some in study.values(arm, test_auc).items()},
        }
        for arm in ARMS
    }
    difference = {
        f"{key(one)}-{key(other)}": {
            "all": shown(study.difference((one, test_auc), (other, test_auc))),
            **{name: shown(study.difference((one, test_auc), (other, test_auc), sets=(name,))) for name in study.sets},
        }
        for one, other in CONTRASTS
    }
    candidates = {
        key(arm): {
            **{
                one: {"held_out": study.mean(arm, held_out(one)), "test": study.mean(arm, on_test(one))}
                for one in CANDIDATES
            },
            "average-ce_auc_m": shown(study.difference((arm, held_out("average")), (arm, held_out("ce_auc_m")))),
            "ce_auc_m-ce": shown(study.difference((arm, held_out("ce_auc_m")), (arm, held_out("ce")))),
        }
        for arm in FOLDED
    }
    thresholds: dict[str, dict[str, dict[str, float]]] = {}
    for arm in ARMS:
        for one in THRESHOLDS:
            if runs := study.achieved(arm, one):
                found = {"mean": fmean(runs), "lowest": min(runs), "highest": max(runs)}
                thresholds.setdefault(key(arm), {})[key(one).replace("0.", "")] = found
    cost = {
        key(arm): {
            "cpu_seconds": study.mean(arm, lambda run: run["cpu_seconds"]),
            "folder_mb": study.mean(arm, lambda run: run["bytes"] / 1e6),
            "model_mb": study.mean(arm, lambda run: run["model_bytes"] / 1e6),
            "predict_ms": study.mean(arm, lambda run: run["predict_ms"]),
        }
        for arm in ARMS
    }
    sizes = sorted({size for _, _, size, _ in study.runs})
    by_size = {
        str(size): shown(study.difference(("folds, as long", test_auc), ("one split", test_auc), positives=size))
        for size in sizes
    }
    return {
        "folds": {
            "auc": auc,
            "difference": difference,
            "candidates": candidates,
            "thresholds": thresholds,
            "cost": cost,
            "positives": by_size,
        }
    }
