"""Figures of the studies, from records: curves over epochs (A3 to A5, A7), alpha over steps (A5), scores (A8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deepauc.paper.ablation_tasks import SET
from deepauc.paper.ablations import NETWORKS
from deepauc.paper.benchmark_tables import CELLS, LOSSES, Cell
from deepauc.paper.recipes import RECIPES, TITLES
from deepauc.reporting.plots import BLUE, CYCLE, VERMILION
from deepauc.studies.records import Record, RecordBook, curve_epochs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH, COLOURS = 80, 64  # a picture stays below 60 kB
Floats = npt.NDArray[np.float64]
Lines = Sequence[tuple[str, Sequence[Record]]]


def ablation_pictures(results: Path) -> list[Path]:
    """A3, A4, A5 by network: test AUC by epoch; A5 also alpha by step. Only those that have records."""
    folder = results / SET
    book = RecordBook(folder)
    return [path for network in NETWORKS for path in _ablation_pictures(folder, book, network)]


def _ablation_pictures(folder: Path, book: RecordBook, network: str) -> list[Path]:
    a3, a4, a5 = (f"{ablation}-{network}" for ablation in ("A3", "A4", "A5"))
    panels: dict[str, list[tuple[str, Lines]]] = {
        a3: [(f"{p} % noise", _lines(book, f"{a3}-noise_{p}", ("auc_m", "auc_s"))) for p in (1, 5)],
        a4: [(f"{p} % easy", _lines(book, f"{a4}-easy_{p}", ("auc_m", "auc_m_reachable", "auc_s"))) for p in (10, 20)],
        a5: [("alpha >= 0 and free", _lines(book, f"{a5}-alpha", ("constrained", "free")))],
    }
    drawn = [
        draw_curves(folder / f"{name}-curves.png", some)
        for name, all_panels in panels.items()
        if (some := [(title, lines) for title, lines in all_panels if _has_curves(lines)])
    ]
    alphas = [(name, [r for r in records if "alpha" in r]) for name, records in panels[a5][0][1]]
    if any(records for _, records in alphas):
        drawn.append(draw_alpha(folder / f"{a5}-alpha.png", alphas))
    return drawn


def table_pictures(results: Path) -> list[Path]:
    """A7: test AUC by epoch of every cell that has curves; A8: scores of AUC-M beside CE, one training set a cell."""
    folder = results / "paper-tables"
    book = RecordBook(folder)
    drawn = []
    for recipe in RECIPES:
        for network in ("R", "D"):
            panels = [
                (cell.name, lines)
                for cell in CELLS
                if cell.network == network and _has_curves(lines := _cell_lines(book, cell, recipe))
            ]
            if panels:
                drawn.append(draw_curves(folder / f"A7-{network}-{recipe}.png", panels))
    rows = []
    for cell in CELLS:
        pair = [
            (f"{cell.name}: {TITLES[loss]}", book.final(cell.study_name("paper", loss))[:1]) for loss in ("auc_m", "ce")
        ]
        if all(records and "score_histogram" in records[0] for _, records in pair):
            rows.append([(name, one[0]) for name, one in pair])
    return [*drawn, draw_scores(folder / "A8.png", rows)] if rows else drawn


def cells_without_curves(book: RecordBook) -> dict[str, list[str]]:
    """By recipe: cells with final runs of which none has a curve, or with the losses that have none."""
    found: dict[str, list[str]] = {}
    for recipe in RECIPES:
        for cell in CELLS:
            there = [(title, records) for title, records in _cell_lines(book, cell, recipe) if records]
            without = [title for title, records in there if not any("test_curve" in record for record in records)]
            if without:
                losses = "" if len(without) == len(there) else f" ({', '.join(without)})"
                found.setdefault(recipe, []).append(cell.name + losses)
    return found


def picture_links(results: Path, set_name: str) -> list[str]:
    """The end of a page: the pictures that lie beside its records; none, nothing."""
    titles = {
        "curves": "test AUC by epoch, mean and range over training sets",
        "alpha": "alpha by step, first training set; inset: the first two epochs",
        "A7": "test AUC by epoch, mean and range over training sets",
        "A8": "training scores of either class, first training set",
    }
    links = []
    for path in sorted((results / set_name).glob("A*.png")):
        words = path.stem.split("-")
        title = next((text for key, text in titles.items() if key in (words[0], words[-1])), "")
        links.append(f"![{path.stem}: {title}]({set_name}/{path.name})")
    return ["## Figures", "\n".join(links)] if links else []


def draw_curves(path: Path, panels: Sequence[tuple[str, Lines]]) -> Path:
    """Mean test AUC by epoch, the band from the lowest to the highest training set."""
    columns = min(len(panels), 3)
    height = -(-len(panels) // columns)
    figure = _figure(3.4 * columns, 2.7 * height + 0.4)
    axes = figure.subplots(height, columns, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, lines) in zip(axes, panels, strict=False):
        for (name, records), colour in zip(lines, CYCLE, strict=False):
            kept = [record for record in records if "test_curve" in record]
            if not kept:
                continue
            epochs, table = _common_epochs(kept)
            axis.plot(epochs, table.mean(0), color=colour, linewidth=1.4, label=f"{name} ({len(kept)})")
            axis.fill_between(epochs, table.min(0), table.max(0), color=colour, alpha=0.13, linewidth=0)
        axis.set(title=title, xlabel="epoch", ylabel="test AUC")
        axis.legend(frameon=False, fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def draw_alpha(path: Path, lines: Lines) -> Path:
    """alpha after each step of the first training set; inset: the first two epochs."""
    figure = _figure(4.6, 3.2)
    axis = figure.subplots()
    inset = axis.inset_axes((0.5, 0.5, 0.47, 0.45))
    for (name, records), colour in zip(lines, CYCLE, strict=False):
        if not records:
            continue
        found = records[0]["alpha"]
        epochs = np.array(found["step"]) / found["steps_per_epoch"]
        values = np.array(found["value"])
        axis.plot(epochs, values, color=colour, linewidth=0.8, label=name)
        inset.plot(epochs[epochs < 2], values[epochs < 2], color=colour, linewidth=0.8)
    axis.set(xlabel="epoch", ylabel="alpha")
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    return _save(figure, path)


def draw_scores(path: Path, rows: Sequence[Sequence[tuple[str, Record]]]) -> Path:
    """Raw training scores of positives and negatives as densities: a row a cell, a panel a loss."""
    figure = _figure(3.4 * len(rows[0]), 2.7 * len(rows))
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False).ravel()
    for axis, (name, record) in zip(axes, (panel for row in rows for panel in row), strict=True):
        found = record["score_histogram"]["train"]
        edges = np.linspace(found["low"], found["high"], len(found["negative"]) + 1)
        for kind, colour in (("negative", VERMILION), ("positive", BLUE)):
            counts = np.array(found[kind], dtype=float)
            axis.stairs(counts / max(counts.sum(), 1), edges, fill=True, alpha=0.5, color=colour, label=kind)
        axis.set(title=f"{name}, {record['task']['name']}", xlabel="training score", ylabel="share of the class")
        axis.title.set_fontsize(8)
        axis.legend(frameon=False, fontsize=7)
    return _save(figure, path)


def _lines(book: RecordBook, prefix: str, names: Sequence[str]) -> list[tuple[str, Sequence[Record]]]:
    titles = {**TITLES, "auc_m_reachable": "AUC-M, m 0.1"}
    return [(titles.get(name, name.replace("_", " ")), book.final(f"{prefix}-{name}")) for name in names]


def _cell_lines(book: RecordBook, cell: Cell, recipe: str) -> list[tuple[str, Sequence[Record]]]:
    return [(TITLES[loss], book.final(cell.study_name(recipe, loss))) for loss in LOSSES]


def _common_epochs(records: Sequence[Record]) -> tuple[list[int], Floats]:
    """Epochs at which every run has a test AUC, and the AUCs: (runs, epochs)."""
    curves = [dict(zip(curve_epochs(record), record["test_curve"], strict=True)) for record in records]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    return epochs, np.array([[curve[epoch] for epoch in epochs] for curve in curves])


def _has_curves(lines: Lines) -> bool:
    return any("test_curve" in record for _, records in lines for record in records)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> Path:
    """With a small palette: bands that overlap would otherwise make a file three times as large."""
    from io import BytesIO

    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, format="png")
    # An octree keeps the colours of the lines; a median cut would merge blue with green.
    method, dither = Image.Quantize.FASTOCTREE, Image.Dither.NONE
    Image.open(drawn).convert("RGB").quantize(COLOURS, method=method, dither=dither).save(path, optimize=True)
    return path
