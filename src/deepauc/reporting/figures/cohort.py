"""The cohort flow: rows read, rows left out and why, rows of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepauc.reporting.document.blocks import Picture, shown
from deepauc.reporting.evaluation.findings import CohortFlow, FoldRow, PartCounts
from deepauc.reporting.figures.canvas import FAINT, INK

_HEIGHT, _STEP = 0.9, 1.7  # of a box, and from one row of boxes to the next
MOST_FOLDS = 12  # that are listed one by one


def cohort_picture(flow: CohortFlow, parts: Sequence[PartCounts], folds: Sequence[FoldRow] = ()) -> Picture:
    """Boxes from the table to its parts; folds share one.

    parts, folds: counts, of which those of the first label are named if it is alone.
    """
    alone = len({one.label for one in parts}) == 1
    used = [_part_text(name, rows, parts if alone else ()) for name, rows in flow.parts.items()]
    if flow.folds:
        used.insert(0, _folds_text(flow.folds, folds if alone else ()))
    left_out = [f"{rows:,}: {reason}" for reason, rows in flow.left_out.items()]
    lines = max(text.count("\n") + 1 for text in used) if used else 0
    deep = 0.27 * max(0, lines - 4)  # how much further down the boxes of many lines reach

    def draw(axes: Any) -> None:
        axes.set_axis_off()
        axes.grid(visible=False)
        top = 2 * _STEP
        _box(axes, 0, top, f"Rows read\n{flow.read:,}")
        if left_out:
            _box(axes, 1.5, top - _STEP / 2, "Left out\n" + "\n".join(left_out), faint=True, side="left")
            _arrow(axes, (0, top - _STEP / 2), (1.35, top - _STEP / 2))
        places = [2.1 * (place - (len(used) - 1) / 2) for place in range(len(used))]
        for x, text in zip(places, used, strict=True):
            _box(axes, x, _HEIGHT / 2, text, anchor="top")
            _arrow(axes, (0, top - _HEIGHT / 2), (0, _STEP * 0.72), head=False)
            _arrow(axes, (x, _STEP * 0.72), (x, _HEIGHT / 2 + 0.16))
        if len(places) > 1:
            _arrow(axes, (places[0], _STEP * 0.72), (places[-1], _STEP * 0.72), head=False)
        axes.set(xlim=(-3.3, 3.5), ylim=(-0.75 - deep, top + 0.7))

    said = "; ".join(text.replace("\n", ", ") for text in used)
    gone = f" Left out: {', '.join(left_out)}." if left_out else " None was left out."
    return Picture(
        name="cohort-flow",
        caption=f"Cohort flow: from the rows of the table to the {'folds' if flow.folds else 'parts'}.",
        alt=f"Cohort flow. {flow.read:,} rows were read.{gone} Then: {said}.",
        draw=draw,
        width=6.4,
        height=3.2 + 0.6 * deep,
    )


def _folds_text(folds: Mapping[str, int], rows: Sequence[FoldRow]) -> str:
    positives = {one.fold: one.positives for one in rows}
    lines = [f"{len(folds)} folds, {sum(folds.values()):,} rows"]
    for name, count in list(folds.items())[:MOST_FOLDS]:
        found = f", {positives[name]:,} positive" if name in positives else ""
        lines.append(f"{shown(name, longest=20)}: {count:,}{found}")
    return "\n".join(lines + ["…"] * (len(folds) > MOST_FOLDS))


def _part_text(name: str, rows: int, parts: Sequence[PartCounts]) -> str:
    text = f"{shown(name, longest=20)}\n{rows:,} rows"
    counts = next((one.counts for one in parts if one.part == name), None)
    if counts is None:
        return text
    text += f"\n{counts.positives:,} positive"
    return text if counts.patients is None else f"{text}\n{counts.patients:,} {counts.group_word}s"


def _box(
    axes: Any, x: float, y: float, text: str, *, faint: bool = False, anchor: str = "center", side: str = "center"
) -> None:
    colour = FAINT if faint else INK
    style = {"boxstyle": "round,pad=0.45", "facecolor": "none", "edgecolor": colour, "linewidth": 1.1}
    axes.text(x, y, text, ha=side, va=anchor, fontsize=10.5, color=colour, bbox=style)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], *, head: bool = True) -> None:
    style = {"arrowstyle": "-|>" if head else "-", "color": FAINT, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
