"""A8 for melanoma: do the training scores of the two classes make two separate modes, with AUC-M and with CE?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from deepauc.metrics.mean_interval import mean_interval
from deepauc.paper.medical_cells import CELLS, Cell
from deepauc.paper.recipes import TITLES
from deepauc.paper.score_histograms import TWO_MODES_FROM, Separation, separation
from deepauc.paper.study_figures import draw_scores
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook

LOSSES = ("auc_m", "ce")
HEADER = ("cell", "loss", "folds", "class means apart, sd", "minus CE [95 %]", "histograms overlap", "two modes")
ABOUT = (
    "The paper's claim: with AUC-M (and metadata) the training predictions make two well-separated patterns, with CE "
    "they are more mixed together. Here: raw scores of the last epoch. `class means apart`: in root mean square "
    "standard deviations of the two classes, mean ± standard deviation over folds (without those in which a few scores "
    "far out leave most of both classes in one bin of 40); `minus CE`: by fold, with a 95 % t-interval (folds share "
    "training rows: it is too narrow). Two normals of one width and one weight have a single "
    f"mode up to {TWO_MODES_FROM:g}; `two modes`: the mean over folds is above that. `histograms overlap`: the area "
    "that the classes' histograms (40 bins, area 1 each) have in common. isic-M and -meta cells see age, sex and site "
    "alone, no pixels."
)


def mode_sections(book: RecordBook, cells: Sequence[Cell]) -> list[str]:
    """Markdown; nothing where no melanoma cell has kept its training scores."""
    rows = []
    for cell in _melanoma(cells):
        by_loss = {loss: separations(book.final(f"{cell.name}-{loss}")) for loss in LOSSES}
        rows += [_row(cell, loss, found, by_loss["ce"]) for loss, found in by_loss.items() if found]
    return ["## A8: training scores of melanoma and the rest", ABOUT, markdown_table(HEADER, rows)] if rows else []


def pictures(results: Path, *, name: str = "medical") -> list[Path]:
    """AUC-M beside CE, first fold, for each melanoma cell that has both and whose bins tell their scores apart."""
    book, rows = RecordBook(results / name), []
    for cell in _melanoma(CELLS[name]):
        pair = [(f"{cell.name}: {TITLES[loss]}", _kept(book.final(f"{cell.name}-{loss}"))[:1]) for loss in LOSSES]
        if all(records and separations(records) for _, records in pair):
            rows.append([(title, records[0]) for title, records in pair])
    return [draw_scores(results / name / "A8.png", rows)] if rows else []


def separations(records: Sequence[Record]) -> dict[int, Separation]:
    """By fold, of the training scores of each run that has kept them."""
    found = {record["seed"]: separation(record["score_histogram"]["train"]) for record in _kept(records)}
    return {fold: one for fold, one in found.items() if one is not None}


def _row(cell: Cell, loss: str, found: Mapping[int, Separation], baseline: Mapping[int, Separation]) -> list[str]:
    apart = [one.apart for one in found.values()]
    spread = f" ± {stdev(apart):.2f}" if len(apart) > 1 else ""
    common = sorted(set(found) & set(baseline))
    difference = "-"
    if loss != "ce" and len(common) > 1:
        more = mean_interval([found[fold].apart - baseline[fold].apart for fold in common])
        difference = f"{more.value:+.2f} [{more.low:+.2f}, {more.high:+.2f}]"
    return [
        cell.name,
        TITLES[loss],
        str(len(found)),
        f"{fmean(apart):.2f}{spread}",
        difference,
        percent_text(fmean(one.overlap for one in found.values())),
        "yes" if fmean(apart) > TWO_MODES_FROM else "no",
    ]


def _melanoma(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.folds]  # no other task is tested by folds


def _kept(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "train" in record.get("score_histogram", {})]
