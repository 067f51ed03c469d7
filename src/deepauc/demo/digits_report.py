"""The digits study as a table, a picture and a record."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.demo.digits import DigitsResult, Method
from deepauc.metrics.basis.columns import FloatOrArray
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval
from deepauc.reporting.figures.plots import IntervalColumn, intervals
from deepauc.text_tables import auc_text, markdown_table, percent_text


def header(result: DigitsResult) -> list[str]:
    """The names over `rows`."""
    return ["training set", *(method.name for method in result.settings.methods)]


def rows(result: DigitsResult) -> list[list[str]]:
    """By method: test AUC with DeLong's interval of each seed, mean ± standard deviation over the seeds, the mean
    difference from the first method, paired by training set, and how often AUC-M's constraint was active."""
    auc = result.auc()
    table = [
        [f"seed {result.settings.first_seed + number}", *(_shown(estimate) for estimate in row)]
        for number, row in enumerate(result.estimates)
    ]
    spread = auc.std(axis=0, ddof=1) if len(auc) > 1 else np.zeros(auc.shape[1])
    table.append(
        ["mean ± std", *(f"{auc_text(m)} ± {auc_text(s)}" for m, s in zip(auc.mean(axis=0), spread, strict=True))]
    )
    if len(auc) > 1:
        gains = [mean_interval(column - auc[:, 0]) for column in auc.T[1:]]
        shown = [f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" for gain in gains]
        table.append([f"minus {result.settings.methods[0].name}, paired", "-", *shown])
    shares = ["-" if share is None else percent_text(share) for share in result.alpha_zero]
    table.append(["steps with alpha = 0", *shares])
    return table


def section(result: DigitsResult, *, picture: str) -> str:
    """The part of a markdown report."""
    settings = result.settings
    lines = [
        f"Classes 5 to 9 are positive. Training: {result.train_negatives} negatives and {result.train_positives} "
        f"positives ({settings.imratio:.0%}; each seed draws other positives). Test: {result.test_positives} positives "
        f"and {result.test_negatives} negatives. All losses have the same small CNN, initial weights, batches "
        f"(`ClassQuotaSampler`, {settings.positives_per_batch} positives of {settings.batch_size}) and "
        f"{settings.epochs} epochs. Their settings were chosen before on images of the training part.",
        "",
        markdown_table(["loss", "optimizer", "settings"], [_settings_row(m) for m in settings.methods]),
        "",
        "Test AUC with DeLong's 95 % interval, last epoch. The paired difference has a 95 % t-interval over the "
        "training sets: if it includes 0, the two losses do not differ significantly.",
        "",
        markdown_table(header(result), rows(result)),
        "",
        f"![Test AUC by loss; one dot per training set, bars are DeLong intervals, lines are means]({picture})",
    ]
    return "\n".join(lines)


def record(result: DigitsResult) -> dict[str, Any]:
    """Everything as plain numbers."""
    return {
        "settings": asdict(result.settings),
        "train": {"positives": result.train_positives, "negatives": result.train_negatives},
        "test": {"positives": result.test_positives, "negatives": result.test_negatives},
        "test_auc": [
            {"seed": result.settings.first_seed + number, "method": method.name, **asdict(estimate)}
            for number, row in enumerate(result.estimates)
            for method, estimate in zip(result.settings.methods, row, strict=True)
        ],
        "alpha_zero": {
            m.name: s for m, s in zip(result.settings.methods, result.alpha_zero, strict=True) if s is not None
        },
    }


def draw(result: DigitsResult, path: Path) -> Path:
    """One dot with DeLong's interval a training set, the mean as a line."""
    columns = []
    for number, method in enumerate(result.settings.methods):
        estimates = [row[number] for row in result.estimates]
        value, low, high = (np.array([getattr(e, part) for e in estimates]) for part in ("value", "low", "high"))
        columns.append(IntervalColumn(name=method.name, values=value, low=low, high=high))
    return intervals(path, columns, y_label="test AUC (95 % DeLong interval)")


def _shown(estimate: Estimate[FloatOrArray]) -> str:
    return auc_text(float(estimate.value), float(estimate.low), float(estimate.high))


def _settings_row(method: Method) -> list[str]:
    if method.bounded:
        margin = f", m = {method.margin:g}" if method.loss == "margin" else ""
        return [method.name, "PESG, gamma .002", f"lr {method.lr:g}, sigmoid{margin}"]
    focal = f", alpha {method.focal_alpha:g}, gamma {method.focal_gamma:g}" if method.loss == "focal" else ""
    return [method.name, "SGD, momentum .9", f"lr {method.lr:g}{focal}"]
