"""Pictures from plain arrays. Colours are Okabe and Ito's, told apart by people with any colour vision.

Every function writes one PNG and returns its path. Nothing here opens a window or touches pyplot's global state.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deepauc.training.run.output_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK = (
    *("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000"),
)
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DOTS_PER_INCH = 150


@dataclass(frozen=True, kw_only=True)
class BoundaryPanel:
    """One picture of the plane. field (G, G): positive on the positives' side; places (N, 2), labels (N,)."""

    title: str
    field: Floats
    places: Floats
    labels: Floats
    flipped: npt.NDArray[np.bool_]  # (N,): ringed
    before: Floats | None = None  # (G, G): an earlier boundary, dashed
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line with a band; all (n,)."""

    name: str
    x: Floats
    y: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class IntervalColumn:
    """Values with limits, all (n,), drawn side by side above one name."""

    name: str
    values: Floats
    low: Floats
    high: Floats


def boundaries(
    path: Path,
    rows: Sequence[Sequence[BoundaryPanel]],
    *,
    row_titles: Sequence[str],
    window: tuple[tuple[float, float], tuple[float, float]],
) -> Path:
    """A grid of planes with decision boundaries (solid), the earlier ones dashed, flipped points ringed."""
    height, width = len(rows), len(rows[0])
    figure = _figure(3.4 * width, 2.75 * height + 0.7)
    axes = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
    (left, right), (bottom, top) = window
    for row, (panels, row_title) in enumerate(zip(rows, row_titles, strict=True)):
        axes[row, 0].set_ylabel(row_title, fontsize=12, fontweight="bold")
        for axis, panel in zip(axes[row], panels, strict=True):
            x = np.linspace(left, right, panel.field.shape[1])
            y = np.linspace(bottom, top, panel.field.shape[0])
            axis.contourf(x, y, panel.field > 0, levels=[-0.5, 0.5, 1.5], colors=[ORANGE, BLUE], alpha=0.13)
            _level(axis, x, y, panel.field, linestyles="solid")
            if panel.before is not None:
                _level(axis, x, y, panel.before, linestyles="dashed")
            for label, colour, marker in ((1, BLUE, "o"), (0, VERMILION, "^")):
                chosen = panel.labels == label
                axis.scatter(*panel.places[chosen].T, s=13, c=colour, marker=marker, linewidths=0, alpha=0.85)
            ringed = panel.places[panel.flipped]
            axis.scatter(*ringed.T, s=60, facecolors="none", edgecolors=BLACK, linewidths=0.9)
            if row == 0:
                axis.set_title(panel.title, fontsize=11)
            axis.text(0.97, 0.04, panel.note, transform=axis.transAxes, ha="right", fontsize=9, bbox=_BOX)
            axis.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")
    figure.legend(handles=_boundary_legend(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return _save(figure, path)


def curves(
    path: Path,
    panels: Sequence[tuple[str, Sequence[Curve]]],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    mark_x: float | None = None,
) -> Path:
    """Curves with bands, one panel beside the other on the same axes; `mark_x` draws a thin upright line."""
    figure = _figure(3.5 * len(panels) + 0.3, 3.7)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels, strict=True):
        widths = np.linspace(4.2, 1.2, len(lines))  # where curves coincide, each is seen inside the one before
        for line, colour, width in zip(lines, CYCLE, widths, strict=False):
            axis.plot(line.x, line.y, color=colour, linewidth=width, label=line.name)
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.13, linewidth=0)
        if mark_x is not None:
            axis.axvline(mark_x, color="0.55", linewidth=0.8)
        if log_x:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(title, fontsize=11)
        axis.set_xlabel(x_label)
        _plain(axis)
    axes[0].set_ylim(bottom=0)  # after the last panel is drawn: it ends the autoscaling of all
    axes[0].set_ylabel(y_label)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)
    return _save(figure, path)


def intervals(path: Path, columns: Sequence[IntervalColumn], *, y_label: str) -> Path:
    """Dots with upright error bars, one group a column, the group's mean as a short line."""
    figure = _figure(1.3 * len(columns) + 1.2, 3.7)
    axis = figure.subplots()
    for place, (column, colour) in enumerate(zip(columns, CYCLE, strict=False)):
        x = place + np.linspace(-0.22, 0.22, len(column.values)) if len(column.values) > 1 else np.array([place])
        reach = np.stack([column.values - column.low, column.high - column.values])
        axis.errorbar(x, column.values, yerr=reach, fmt="o", markersize=4, linewidth=1.2, capsize=2, color=colour)
        axis.hlines(column.values.mean(), place - 0.34, place + 0.34, color=BLACK, linewidth=1.4)
    axis.set_xticks(range(len(columns)), [column.name for column in columns])
    axis.set_ylabel(y_label)
    _plain(axis)
    return _save(figure, path)


_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> Path:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DOTS_PER_INCH)
    write_atomically(path, content.getvalue())
    return path


def _plain(axis: Any) -> None:
    axis.grid(axis="y", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _level(axis: Any, x: Floats, y: Floats, field: Floats, *, linestyles: str) -> None:
    if (field > 0).any() and (field <= 0).any():  # contour warns where there is nothing to draw
        axis.contour(x, y, field, levels=[0], colors=BLACK, linewidths=1.5, linestyles=linestyles)


def _boundary_legend() -> list[Any]:
    from matplotlib.lines import Line2D

    def points(label: str, colour: str, marker: str) -> Line2D:
        return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=label)

    ring = Line2D([], [], marker="o", markerfacecolor="none", markeredgecolor=BLACK, markersize=8, linestyle="none")
    ring.set_label("flipped label")
    return [
        points("labelled positive", BLUE, "o"),
        points("labelled negative", VERMILION, "^"),
        ring,
        Line2D([], [], color=BLACK, label="boundary"),
        Line2D([], [], color=BLACK, linestyle="dashed", label="initial boundary"),
    ]
