"""What averages of the models of `best` are worth, made of the test ranks that its records keep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.metrics.mean_interval import MeanInterval, mean_interval
from deepauc.models.fusion import ensemble
from deepauc.paper.benchmark_tables import Cell
from deepauc.paper.benchmark_verdict import interval_text
from deepauc.paper.best import TITLES
from deepauc.paper.best_levers import CELLS, FOLLOWERS, LOSSES, read_ranks
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.records import Record, RecordBook

BESIDE = "ce"  # the loss that the others are compared with


def averages_section(book: RecordBook) -> list[str]:
    """Markdown; nothing where no cell has two models of a loss."""
    across = [row for cell in CELLS for loss in (*LOSSES, *FOLLOWERS) for row in _across_sets(book, cell, loss)]
    if not across:
        return []
    parts = [
        "## Averages of models",
        "One model of all training sets: scores averaged as ranks over the test images (AUC scores of different models "
        "share no scale), with DeLong's interval; its difference to that of CE by paired DeLong. The sets have "
        "positives of their own, so an average has seen several times those of one model; the targets are for one. "
        "agreement: mean correlation of two models' ranks.",
        markdown_table(("cell", "loss", "sets", "test AUC", "minus CE's [95 %]", "agreement"), across),
    ]
    within = [row for cell in CELLS for row in _within_sets(book, cell)]
    if within:
        titles = [TITLES[loss] for loss in LOSSES]
        parts += [
            f"The average of {' and '.join(titles)} trained on the same set, after the same first stage: mean ± "
            "standard deviation over the sets, and the gain paired over them with a 95 % t-interval. It was looked at "
            "after the runs; nothing in it is chosen.",
            markdown_table(("cell", "sets", "both", *(f"minus {title} alone [95 %]" for title in titles)), within),
        ]
    return parts


def averaged_models(records: Sequence[Record]) -> tuple[Any, Any] | None:
    """Scores of the average of these runs' models, as ranks, and the labels; None with fewer than two."""
    found = _ranks(records)
    return None if found is None else (ensemble(list(found[0]), scale="rank"), found[1])


def _ranks(records: Sequence[Record]) -> tuple[list[Any], Any] | None:
    kept = [read_ranks(record["test_ranks"]) for record in records if "test_ranks" in record]
    if len(kept) < 2:
        return None
    labels = kept[0][1]
    if any(not np.array_equal(labels, other) for _, other in kept[1:]):
        raise ValueError("the records to be averaged are of different test images: delete those of other data.")
    return [ranks for ranks, _ in kept], labels


def _across_sets(book: RecordBook, cell: Cell, loss: str) -> list[list[str]]:
    records, beside = (book.final(f"{cell.name}-{one}") for one in (loss, BESIDE))
    mine, other = averaged_models(records), averaged_models(beside)
    if mine is None:
        return []
    found = auroc_interval(*mine)
    minus = "-"
    if loss != BESIDE and other is not None and len(records) == len(beside):
        between = compare_auroc(mine[0], other[0], mine[1])
        minus = interval_text(MeanInterval(float(between.difference), float(between.low), float(between.high)))
    shown = auc_text(float(found.value), float(found.low), float(found.high))
    return [[cell.name, TITLES[loss], str(len(records)), shown, minus, f"{agreement(records):.2f}"]]


def agreement(records: Sequence[Record]) -> float:
    found = _ranks(records)
    assert found is not None
    return fmean(float(np.corrcoef(a, b)[0, 1]) for a, b in combinations(found[0], 2))


def _within_sets(book: RecordBook, cell: Cell) -> list[list[str]]:
    by_seed = [{record["seed"]: record for record in book.final(f"{cell.name}-{loss}")} for loss in LOSSES]
    both, alone = [], []
    for seed in sorted(set.intersection(*map(set, by_seed))):
        records = [some[seed] for some in by_seed]
        averaged = averaged_models(records)
        if averaged is not None:
            both.append(float(auroc(*averaged)))
            alone.append([record["auc"]["test"][0] for record in records])
    if len(both) < 2:
        return []
    gains = (mean_interval([b - a for b, a in zip(both, one, strict=True)]) for one in zip(*alone, strict=True))
    return [[cell.name, str(len(both)), f"{fmean(both):.3f} ± {stdev(both):.3f}", *map(interval_text, gains)]]
