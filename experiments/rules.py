"""Figures of the pages that follow from the package's own rules and from records that are no study's."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from deepauc.reporting.evaluation.resamples import FULL, FULL_ROWS
from deepauc.studies.records.book import RecordBook
from deepauc.training.plan import first_stage, length
from deepauc.training.plan.cost import multiply_adds
from deepauc.training.plan.decision import DeviceKind
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.make import Plan, make_plan

TUNED = ("C10-R-1", "C2-R-1", "C100-R-1", "C10-R-10", "C2-R-10", "C100-R-10")
RATES = (0.03, 0.3)


def rule_figures() -> dict[str, Any]:
    """`rules` of the summary: what the plan does, and how many samples a report draws."""
    many = {"cpu": _plan(100_000, 1000, (28, 28, 1), "cpu"), "cuda": _plan(100_000, 1000, (28, 28, 1), "cuda")}
    stages = {kind: plan.recipe.stages[-1] for kind, plan in many.items()}
    on_gpu = _plan(25_253, 253, (32, 32, 3), "cuda").recipe
    first = on_gpu.stages[0]
    assert first.epochs is not None
    images = 25_253 // first.batch_size * first.batch_size
    share = 2 * 3 * first.epochs * images * multiply_adds(on_gpu.model, (32, 32, 3)) / length.BUDGET["cuda"]
    return {
        "quota": {kind: [stage.positives_per_batch, stage.batch_size] for kind, stage in stages.items()},
        "auc_stage": {
            "steps": length.STEPS[0],
            "most_epochs": length.MOST_EPOCHS[0],
            "least_epochs": length.LEAST_EPOCHS,
            "rows": [_rows_with_time(shape) for shape in ((28, 28, 1), (32, 32, 3), (64, 64, 3))],
        },
        "first_stage": {
            "rarer_class": first_stage.MOST_OF_RARER_CLASS,
            "images": first_stage.LEAST_IMAGES,
            "side": first_stage.LARGEST_SIDE,
            "epochs": [first_stage.LEAST_EPOCHS, *first_stage.MOST_EPOCHS.values()],
            "on_gpu": {"epochs": first.epochs, "share": share},
            "minutes": [_minutes(8000, 500, (28, 28, 1)), _minutes(25_253, 253, (32, 32, 3))],
        },
        "samples": {"rows": FULL_ROWS, "auc": FULL.auc, "others": FULL.others},
    }


def other_figures(results: Path) -> dict[str, Any]:
    """large_table.WHAT.ROWS; gammas: AUC-S with gamma 1/300 beside 1/100; momentum: AUC-M's training AUC with .9."""
    tables: dict[str, dict[str, Any]] = {}
    for one in json.loads((results / "large-table.json").read_text(encoding="utf-8"))["measured"]:
        sizes = {"file_mb": "file_bytes", "held_mb": "bytes"}
        megabytes = {name: one[key] / 1e6 for name, key in sizes.items() if key in one}
        kept = {key: one[key] for key in ("seconds", "auc_samples", "other_samples") if key in one}
        times = {"times": one["bytes"] / (8 * 20 * one["rows"])} if "bytes" in one else {}
        tables.setdefault(one["what"].replace(" ", "_"), {})[str(one["rows"])] = {**megabytes, **kept, **times}
    unbounded = json.loads((results / "unbounded-scores.json").read_text(encoding="utf-8"))["runs"]
    wanted = {"loss": "AUC-M, PESG", "bound": "sigmoid", "lr": 0.1, "momentum": 0.9}
    momentum = [run["training_auc"] for run in unbounded if all(run[key] == value for key, value in wanted.items())]
    return {"large_table": tables, "gammas": _gammas(RecordBook(results / "paper-tables")), "momentum": momentum}


def _plan(rows: int, positives: int, shape: tuple[int, int, int], kind: DeviceKind) -> Plan:
    data = Fingerprint(
        rows={"train": rows},
        positives={"train": (positives,)},
        negatives={"train": (rows - positives,)},
        shape=shape,
        file_sizes={},
        groups=None,
    )
    return make_plan(data, PlanOptions(), kind)


def _rows_with_time(shape: tuple[int, int, int]) -> int:
    """The most training rows, a tenth positive, in steps of 250, for which a CPU's plan has an AUC stage."""
    plans = {rows: _plan(rows, rows // 10, shape, "cpu") for rows in range(500, 40_000, 250)}
    return max(rows for rows, plan in plans.items() if len(plan.recipe.stages) == 2)


def _minutes(rows: int, positives: int, shape: tuple[int, int, int]) -> int:
    """Those that the plan names for a first stage on a CPU."""
    (decision,) = [one for one in _plan(rows, positives, shape, "cpu").decisions if one.name == "first stage"]
    found = re.search(r"--minutes (\d+)", str(decision.rests_on["options"]))
    assert found is not None
    return int(found[1])


def _gammas(book: RecordBook) -> dict[str, Any]:
    """Better in how many of how many pairs of cell and rate, the largest gain and loss, and what the rate changes."""
    validation: dict[tuple[str, float, float], list[float]] = {}
    for cell in TUNED:
        for run in book.tuning(f"{cell}-paper-auc_s"):
            at = cell, run["config"]["gamma"], run["config"]["lr"]
            validation.setdefault(at, []).append(run["auc"]["validation"][0])
    mean = {at: fmean(values) for at, values in validation.items()}
    gains = [mean[cell, 1 / 300, lr] - mean[cell, 1 / 100, lr] for cell, lr in product(TUNED, RATES)]
    by_rate = [abs(mean[cell, 1 / g, 0.3] - mean[cell, 1 / g, 0.03]) for cell, g in product(TUNED, (100, 300))]
    better = sum(gain > 0 for gain in gains)
    return {"better": better, "pairs": len(gains), "most": max(gains), "worse": -min(gains), "by_rate": max(by_rate)}
