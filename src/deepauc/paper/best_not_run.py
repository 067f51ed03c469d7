"""What of `best` is declared and has no record, with the GPU minutes it would take by the records there are."""

from __future__ import annotations

from statistics import fmean

from deepauc.data.imbalance import positives_for
from deepauc.paper.benchmark_page import NEGATIVES
from deepauc.paper.benchmark_tables import Cell
from deepauc.paper.best import TITLES
from deepauc.paper.best_decisions import Decision, decisions
from deepauc.paper.best_levers import CELLS, FOLDS, FOLLOWERS, LEVERS, LOSSES, SELECTION_SETS
from deepauc.reporting.tables import markdown_table
from deepauc.studies.records import RecordBook

SEEDS = 5


def not_run_section(book: RecordBook) -> list[str]:
    """Markdown; nothing where all is there."""
    rows = [*_searches(book), *_cells(book)]
    if not rows:
        return []
    return [
        "## Not run",
        "GPU minutes from the measured seconds of this page's records with the same network (a search of a loss that "
        "follows AUC-M: of AUC-M's runs with what it has chosen); `-` without.",
        markdown_table(("what", "runs missing", "GPU minutes"), rows),
    ]


def _searches(book: RecordBook) -> list[list[str]]:
    """Of the losses that follow AUC-M; as long as AUC-M's own search is open there is nothing to follow."""
    last = decisions(book, LOSSES[0])[-1]
    if last.chosen is None:
        return []
    rows = []
    for loss in FOLLOWERS:
        wanted = sum(len(lever.settings) for lever in LEVERS[loss]) * FOLDS * len(SELECTION_SETS)
        missing = wanted - sum(len(one.records) for one in decisions(book, loss))
        if missing > 0:
            minutes = _minutes(missing, _seconds_a_fold(last))
            rows.append([f"search of {TITLES[loss]}", f"{missing} of {wanted}", minutes])
    return rows


def _seconds_a_fold(last: Decision) -> float | None:
    """Of a second stage with what the search has chosen; its first stage is shared and kept."""
    assert last.chosen is not None
    runs = [r for r in last.records if all(r["config"].get(axis) == value for axis, value in last.chosen.items())]
    seconds = [record["seconds"] for record in runs if not record["hardware"].startswith("CPU")]
    return fmean(seconds) if seconds else None


def _cells(book: RecordBook) -> list[list[str]]:
    rows = []
    for cell in CELLS:
        losses = (*LOSSES, *(FOLLOWERS if cell == CELLS[0] else ()))
        there = {loss: len(book.final(f"{cell.name}-{loss}")) for loss in losses}
        missing = {loss: SEEDS - count for loss, count in there.items() if count < SEEDS}
        if missing:
            seconds = _seconds_a_set(book, cell, tuple(missing))
            runs = ", ".join(f"{TITLES[loss]} {count}" for loss, count in missing.items())
            rows.append([cell.name, runs, _minutes(max(missing.values()), seconds)])
    return rows


def _minutes(count: int, seconds: float | None) -> str:
    return "-" if seconds is None else f"{count * seconds / 60:.0f}"


def _seconds_a_set(book: RecordBook, cell: Cell, losses: tuple[str, ...]) -> float | None:
    """GPU seconds of one training set: its first stage and these losses' runs, from the same network's records.

    A loss that follows AUC-M is as long as AUC-M.
    """
    rows = NEGATIVES[cell.benchmark] + positives_for(NEGATIVES[cell.benchmark], cell.percent / 100)
    total = 0.0
    firsts: list[float] = []
    for loss in losses:
        records = [
            record
            for other in CELLS
            if other.network == cell.network
            for record in book.final(f"{other.name}-{LOSSES[0] if loss in FOLLOWERS else loss}")
            if not record["hardware"].startswith("CPU")
        ]
        if not records:
            return None
        # Steps grow with the rows of a training set.
        total += fmean(record["seconds"] * rows / record["task"]["rows"]["train"] for record in records)
        firsts = firsts or [  # shared by all losses
            r["first_stage"]["seconds"] * rows / r["first_stage"]["rows"] for r in records if r.get("first_stage")
        ]
    return total + (fmean(firsts) if firsts else 0.0)
