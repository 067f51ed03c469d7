"""What training looked like: AUC, loss and the AUC loss's own a, b and alpha, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepauc.reporting.document.blocks import Picture
from deepauc.reporting.evaluation.findings import Floats, History
from deepauc.reporting.figures.canvas import FAINT
from deepauc.reporting.figures.plots import BLUE, GREEN, VERMILION

DASHED, DOTTED = (0, (5, 2)), (0, (1, 1.5))
Line = tuple[str, str, str, Any]  # column, words, colour, dashes


def history_pictures(histories: Sequence[History], *, several_labels: bool) -> list[Picture]:
    """One figure for each group of numbers that the histories hold; with several labels they hold their means.

    histories: one, or one for each fold, drawn over each other.
    """
    means = " Means over the labels." if several_labels else ""
    means += " One line for each fold." if len(histories) > 1 else ""
    history = tuple(histories)
    found = [
        _picture(
            history,
            "history-auc",
            [("validation_auc", "validation", BLUE, "solid"), ("test_auc", "test (chose nothing)", VERMILION, DASHED)],
            y_label="AUC",
            caption="AUC after each epoch, with DeLong's 95 % interval on validation where there is one label.",
            band=("validation_low", "validation_high"),
        ),
        _picture(
            history,
            "history-loss",
            [
                ("loss", "training loss", BLUE, "solid"),
                ("A_M", "A_M", VERMILION, DASHED),
                ("gap", "duality gap", GREEN, DOTTED),
            ],
            y_label="loss",
            caption=(
                "Training loss. The min-max loss may rise or be negative. A_M is its value at the optimal a, b and "
                "alpha: it is never negative and should fall. The gap shows how far a, b and alpha are from there."
                f"{' One line for each fold.' * (len(history) > 1)}"
            ),
        ),
        _picture(
            history,
            "history-ab",
            [
                ("a", "a", BLUE, "solid"),
                ("a_optimal", "mean score of positives", BLUE, DOTTED),
                ("b", "b", VERMILION, DASHED),
                ("b_optimal", "mean score of negatives", VERMILION, DOTTED),
            ],
            y_label="bounded score",
            caption=f"a and b should follow the mean scores of positives and negatives (dotted).{means}",
        ),
        _picture(
            history,
            "history-alpha",
            [
                ("alpha", "alpha", BLUE, "solid"),
                ("alpha_optimal", "its optimum", BLUE, DOTTED),
                ("alpha_zero_share", "share of steps with alpha = 0", VERMILION, DASHED),
            ],
            y_label="alpha",
            caption=(
                "alpha, its optimum, and the share of steps with alpha = 0. If that share stays 0, the scores never "
                f"meet the margin, and AUC-M is the square loss with that margin.{means}"
            ),
        ),
    ]
    return [picture for picture in found if picture is not None]


def _picture(
    histories: tuple[History, ...],
    name: str,
    lines: Sequence[Line],
    *,
    y_label: str,
    caption: str,
    band: tuple[str, str] | None = None,
) -> Picture | None:
    there = [line for line in lines if any(_known(one, line[0]).size for one in histories)]
    if not there:
        return None
    longest = max(histories, key=lambda one: len(one.stages))
    starts = _starts(longest)

    def draw(axes: Any) -> None:
        for place, history in enumerate(histories):
            if band is not None and all(_known(history, one).size for one in band):
                epochs = np.arange(1, len(history.stages) + 1)
                low, high = (history.columns[one] for one in band)
                axes.fill_between(epochs, low, high, color=BLUE, alpha=0.15, linewidth=0)
            for line in there:
                if _known(history, line[0]).size:
                    _draw_line(axes, history, line, first=place == 0, alone=len(histories) == 1)
        for start, stage in zip(starts, dict.fromkeys(longest.stages), strict=False):
            if start > 1:
                axes.axvline(start - 0.5, color=FAINT, linewidth=1)
            title = longest.objectives[stage] if stage < len(longest.objectives) else f"stage {stage + 1}"
            axes.text(
                start - 0.4, 1.01, title, transform=axes.get_xaxis_transform(), fontsize=8.5, va="bottom", color=FAINT
            )
        axes.set(xlabel="epoch", ylabel=y_label, xlim=(0.5, len(longest.stages) + 0.5))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)

    ends = []
    for column, words, *_ in there:
        known = next(values for one in histories if (values := _known(one, column)).size)
        ends.append(f"{words} from {known[0]:.3g} to {known[-1]:.3g}")
    first = "" if len(histories) == 1 else " in the first of the folds"
    alt = f"Over {len(longest.stages)} epochs{first}: {'; '.join(ends)}."
    return Picture(name=name, caption=caption, alt=alt, draw=draw)


def _draw_line(axes: Any, history: History, line: Line, *, first: bool, alone: bool) -> None:
    column, words, colour, dashes = line
    x, values = np.arange(1, len(history.stages) + 1).astype(float), history.columns[column]
    if column == "loss":  # stages have different losses: no line leads from one to the next
        cuts = np.array(_starts(history)[1:], dtype=np.intp) - 1
        x, values = np.insert(x, cuts, np.nan), np.insert(values, cuts, np.nan)
    marked = marked_points(values, all_of_them=len(history.stages) < 4)
    axes.plot(
        x,
        values,
        color=colour,
        linestyle=dashes,
        linewidth=1.8 if alone else 1.0,
        label=words if first else None,
        marker="o" if marked else None,
        markevery=marked or None,
        markerfacecolor="none" if dashes == DOTTED else colour,  # else a point and its optimum look alike
    )


def _starts(history: History) -> list[int]:
    """The first epoch of each stage."""
    return [1, *(1 + np.flatnonzero(np.diff(history.stages)) + 1).tolist()]


def _known(history: History, column: str) -> Floats:
    values = history.columns.get(column, np.array([]))
    return values[np.isfinite(values)]


def marked_points(values: Floats, *, all_of_them: bool) -> list[int]:
    """Where a line needs a mark to be seen: at a known value without a known neighbour, as in a stage of one epoch."""
    known = np.isfinite(values)
    beside = np.pad(known, 1)
    alone = known & ~beside[:-2] & ~beside[2:]
    return [int(place) for place in np.flatnonzero(known if all_of_them else alone)]
