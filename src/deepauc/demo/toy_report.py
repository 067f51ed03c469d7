"""Figure 1 as tables and pictures, with what is to be seen in them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.demo.toy import SETS, WINDOW, Floats, ToyResult
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import mean_interval
from deepauc.reporting.figures.plots import BoundaryPanel, Curve, boundaries, curves
from deepauc.text_tables import markdown_table, percent_text

HEADER = ("added", "m", "AUC-S moved", "AUC-M moved", "AUC-S minus AUC-M, paired", "AUC-M", "steps with alpha = 0")
CLAIM = (
    "The paper says that AUC-S's boundary moves and AUC-M's hardly does. `less`: AUC-M's boundary moved less than "
    "AUC-S's, so the claim holds. `undecided`: the interval of the paired difference includes 0."
)
EXPLANATION = (
    "Why do the two losses differ? The scores after pre-training are much further apart than 1, so every point is "
    "easy. AUC-S's alpha turns negative and pushes the classes together. AUC-M's alpha stays at 0, and only the spread "
    "within the classes shrinks. The difference should vanish in time: raw scores can be scaled freely, so both losses "
    "have the same minimisers up to the factor m. Until then flipped labels do more harm the smaller m is, because "
    "nothing keeps the classes apart until their distance is m."
)


@dataclass(frozen=True)
class ToyComparison:
    """Share of the window that changed side after `step` steps, mean over seeds with a 95 % interval."""

    added: str
    step: int
    margin: float
    square: Estimate[float]
    with_margin: Estimate[float]
    difference: Estimate[float]  # AUC-S minus AUC-M, seed by seed
    alpha_zero: float

    @property
    def verdict(self) -> str:
        """What the interval of the difference says of AUC-M: `less`, `more`, or `undecided`."""
        if self.difference.low > 0:
            return "less"
        return "more" if self.difference.high < 0 else "undecided"


def compare(result: ToyResult, *, added: str, step: int) -> list[ToyComparison]:
    """One comparison a margin."""
    chosen, mark = SETS.index(added), result.marks.index(step)
    square = result.moved_square[chosen, mark]
    return [
        ToyComparison(
            added=added,
            step=step,
            margin=margin,
            square=mean_interval(square),
            with_margin=mean_interval(moved),
            difference=mean_interval(square - moved),
            alpha_zero=float(alpha_zero),
        )
        for margin, moved, alpha_zero in zip(
            result.settings.margins,
            result.moved_margin[chosen, mark],
            result.alpha_zero[chosen, mark],
            strict=True,
        )
    ]


def scores_text(result: ToyResult) -> str:
    """Which scores the losses saw."""
    return "Behind a sigmoid" if result.settings.sigmoid else "Raw scores"


def steps_reported(result: ToyResult) -> tuple[int, ...]:
    """The step of the picture and the last one."""
    return tuple(sorted({result.settings.shown_step, result.settings.steps}))


def rows(result: ToyResult, *, step: int) -> list[list[str]]:
    """The table under HEADER; margins that gave the same (alpha was 0 for all of them) share a row."""
    table = []
    for added in SETS:
        groups: dict[tuple[str, ...], list[float]] = {}
        for c in compare(result, added=added, step=step):
            cells = (*map(_shown, (c.square, c.with_margin, c.difference)), c.verdict, percent_text(c.alpha_zero))
            groups.setdefault(cells, []).append(c.margin)
        for cells, margins in groups.items():
            everything = len(margins) == len(result.settings.margins)
            table.append([added, "every" if everything else _listed(margins), *cells])
    return table


def section(raw: ToyResult, bounded: ToyResult, *, boundaries_picture: str, paths_picture: str) -> str:
    """The part of a markdown report: the run on raw scores with its pictures, the one behind a sigmoid beside it."""
    settings = raw.settings
    lines = [
        f"A two-layer ELU network ({settings.hidden} hidden units) is trained on two clouds of {settings.points} "
        f"points with cross-entropy, then retrained with AUC-S or AUC-M: same start, learning rate ({settings.lr:g}) "
        f"and number of steps, raw scores. Nothing is added for the retraining, or {settings.easy} easy positives, or "
        f"{settings.flipped} points of each class with the other's label. The boundary is where the score equals "
        f"(a + b)/2. The table shows the share of the window below that changes side ({settings.seeds} seeds, 95 % "
        "t-intervals).",
        "",
        f"![Boundaries of seed {settings.first_seed} after {settings.shown_step} steps]({boundaries_picture})",
        "",
        f"The picture is of step {settings.shown_step}. All steps, with 95 % intervals over seeds:",
        "",
        f"![Share of the window that changed side against the retraining step]({paths_picture})",
        "",
        f"The claim has the best chance with raw scores and a start from cross-entropy. The same was run again with "
        f"scores behind a sigmoid (learning rate {bounded.settings.lr:g}), as this package recommends.",
        "",
    ]
    for result in (raw, bounded):
        for step in steps_reported(result):
            lines += [
                f"{scores_text(result)}, after {step} steps:",
                "",
                markdown_table(HEADER, rows(result, step=step)),
                "",
            ]
    return "\n".join([*lines, CLAIM, "", EXPLANATION])


def record(result: ToyResult) -> dict[str, Any]:
    """Everything as plain numbers."""
    return {
        "settings": asdict(result.settings),
        "comparisons": [
            {**asdict(comparison), "verdict": comparison.verdict}
            for step in steps_reported(result)
            for added in SETS
            for comparison in compare(result, added=added, step=step)
        ],
    }


def draw_boundaries(result: ToyResult, path: Path) -> Path:
    """Figure 1: rows AUC-S and AUC-M, columns initial, easy points added, flipped labels added; the first seed."""
    settings, mark = result.settings, result.marks.index(result.settings.shown_step)
    column = settings.margins.index(settings.shown_margin)
    moved = (result.moved_square[:, mark, 0], result.moved_margin[:, mark, column, 0])
    panel_rows = []
    for fields, shares in zip((result.square_fields, result.margin_fields), moved, strict=True):
        panels = [_panel(result, 0, "initial (pre-trained)", result.initial_field)]
        for chosen in (1, 2):
            note = f"{percent_text(shares[chosen])} changed side"
            panels.append(_panel(result, chosen, f"+ {SETS[chosen].removesuffix(' added')}", fields[chosen], note))
        panel_rows.append(panels)
    return boundaries(path, panel_rows, row_titles=("AUC-S", f"AUC-M, m = {settings.shown_margin:g}"), window=WINDOW)


def draw_paths(result: ToyResult, path: Path) -> Path:
    """The share moved against the step, AUC-S beside AUC-M at the smallest, a middle and the largest margin."""
    margins = result.settings.margins
    shown = sorted({0, len(margins) // 2, len(margins) - 1})
    panels = []
    for chosen, title in enumerate(SETS):
        lines = [("AUC-S", result.moved_square[chosen])]
        lines += [(f"AUC-M, m = {margins[column]:g}", result.moved_margin[chosen, :, column]) for column in shown]
        panels.append((title, [_curve(name, result.marks, moved) for name, moved in lines]))
    return curves(
        path,
        panels,
        x_label="retraining step",
        y_label="share of the window\nthat changed side (%)",
        log_x=True,
        mark_x=result.settings.shown_step,
    )


def _panel(result: ToyResult, chosen: int, title: str, field: Floats, note: str = "") -> BoundaryPanel:
    points = result.points[chosen]
    return BoundaryPanel(
        title=title,
        field=field,
        places=points.places[0].double().numpy(),
        labels=points.labels.double().numpy(),
        flipped=points.flipped.numpy(),
        before=result.initial_field if chosen else None,
        note=note,
    )


def _curve(name: str, marks: tuple[int, ...], moved: Floats) -> Curve:
    """moved: (marks, seeds)."""
    each = [mean_interval(100 * row) for row in moved]
    value, low, high = (np.array([getattr(i, part) for i in each]) for part in ("value", "low", "high"))
    return Curve(name=name, x=np.array(marks, dtype=float), y=value, low=low.clip(min=0), high=high)


def _listed(margins: list[float]) -> str:
    return ", ".join(f"{margin:g}" for margin in margins)


def _shown(interval: Estimate[float]) -> str:
    return percent_text(interval.value, interval.low, interval.high)
