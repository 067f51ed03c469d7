"""The report's figures of one label: each a `Picture` made of a drawing, a caption and its words for the blind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deepauc.metrics.decisions import DecisionCurve
from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.blocks import Picture, shown
from deepauc.reporting.evaluation.findings import (
    Absent,
    AucResult,
    Calibration,
    CalibrationState,
    Curves,
    Floats,
    Histogram,
    OperatingRow,
    Paired,
)
from deepauc.reporting.figures.canvas import FAINT, INK
from deepauc.reporting.figures.plots import BLUE, VERMILION
from deepauc.text_tables import auc_text, small_text

MARKERS = "osD^vP"  # one a threshold
DASHED, DOTTED = (0, (5, 2)), (0, (1, 1.5))


def roc_picture(
    name: str,
    curves: Curves,
    auc: AucResult | Absent,
    points: tuple[OperatingRow, ...] | Absent,
    other: tuple[str, Paired] | None,
) -> Picture:
    """The ROC curve with its band, the operating points and the curve of another network, by its name."""
    marks, folds = () if isinstance(points, Absent) else points, curves.each_roc is not None

    def draw(axes: Any) -> None:
        band = curves.roc_band
        axes.fill_between(band.x, band.low, band.high, color=BLUE, alpha=0.18, linewidth=0, label="95 % band")
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=DOTTED, label="chance")
        if other is not None:
            axes.plot(
                other[1].baseline_fpr,
                other[1].baseline_tpr,
                color=VERMILION,
                linewidth=1.5,
                linestyle=DASHED,
                label=other[0],
            )
        for place, (fpr, tpr) in enumerate(curves.each_roc or ()):
            name_of = "each fold" if place == 0 else None
            axes.plot(fpr, tpr, color=FAINT, linewidth=0.7, alpha=0.8, label=name_of)
        axes.plot(curves.fpr, curves.tpr, color=BLUE, linewidth=2, label="mean of folds" if folds else "this run")
        for place, (row, marker) in enumerate(zip(marks, MARKERS, strict=False)):
            axes.plot(
                1 - row.specificity.value,
                row.sensitivity.value,
                marker=marker,
                color=INK,
                markersize=5.5,
                markerfacecolor="none",
                linestyle="none",
                zorder=5 + place,
                label=f"threshold at {specificity_text(row)}",
            )
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.set(xlabel="1 - specificity (false positive rate)", ylabel="sensitivity (true positive rate)")
        axes.legend(loc="lower right", fontsize=8.5, frameon=False)

    height = curves.roc_band.value[np.searchsorted(curves.roc_band.x, 0.1)]
    area = "" if isinstance(auc, Absent) else f" AUC {interval_text(auc.headline)}."
    asked = ", ".join(specificity_text(row) for row in marks)
    where = "the other folds" if folds else "validation"
    marked = f" Marks: thresholds chosen on {where} for a specificity of {asked}." if marks else ""
    what = "Mean ROC curve of the folds" if folds else "ROC curve"
    mean = " The bold curve is the mean of the folds' curves, weighted by their pairs." if folds else ""
    return Picture(
        name=name,
        caption=f"ROC curve with a pointwise 95 % band.{mean}{marked}",
        alt=f"{what}.{area} At a false positive rate of 10 % the sensitivity is {height:.2f}.",
        draw=draw,
    )


def specificity_text(row: OperatingRow) -> str:
    """`95 %`, `99.5 %`: what a threshold was asked for."""
    return "—" if row.asked_specificity is None else f"{100 * row.asked_specificity:g} %"


def precision_recall_picture(name: str, curves: Curves, auc: AucResult, prevalence: float) -> Picture:
    """Precision against recall, in steps, with its band and the chance level."""

    def draw(axes: Any) -> None:
        band = curves.precision_band
        axes.fill_between(
            band.x, band.low, band.high, step="pre", color=BLUE, alpha=0.18, linewidth=0, label="95 % band"
        )
        axes.axhline(prevalence, color=FAINT, linewidth=1, linestyle=DOTTED, label=f"chance ({prevalence:.2g})")
        axes.plot(curves.recall, curves.precision, drawstyle="steps-pre", color=BLUE, linewidth=2, label=run)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02 * top, 1.02 * top))
        axes.set(xlabel="recall (sensitivity)", ylabel="precision (PPV)")
        axes.legend(loc="best", fontsize=8.5, frameon=False)

    run = "this run" if curves.each_roc is None else "all folds"
    top = _end_of_axis(curves.precision, curves.precision_band.high)
    area = figure_text(auc.average_precision, auc.average_precision_interval)
    return Picture(
        name=name,
        caption="Precision-recall curve with a pointwise 95 % band; chance is the share of positives."
        + (" Counts at each fold's own threshold are summed over folds." if curves.each_roc is not None else "")
        + _short_axes("The axis of precision ends", top),
        alt=f"Precision-recall curve. Average precision {area} where chance gives {small_text(prevalence)}.",
        draw=draw,
    )


def histogram_picture(name: str, histogram: Histogram, cuts: tuple[float, ...]) -> Picture:
    """Scores of positives (filled) and negatives (outlined), each class scaled to itself; `cuts` are thresholds."""

    def draw(axes: Any) -> None:
        axes.stairs(
            histogram.negatives, histogram.edges, color=VERMILION, linewidth=1.8, linestyle=DASHED, label="negatives"
        )
        axes.stairs(histogram.positives, histogram.edges, fill=True, facecolor=BLUE, alpha=0.22, linewidth=0)
        axes.stairs(histogram.positives, histogram.edges, color=BLUE, linewidth=1.8, label="positives (filled)")
        for place, cut in enumerate(cuts):
            label = "thresholds" if place == 0 else None
            axes.axvline(cut, color=INK, linewidth=0.9, linestyle=DOTTED, label=label)
        axes.set(xlabel="score", ylabel="share of the class")
        axes.set_ylim(bottom=0)
        axes.figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)

    centres = (histogram.edges[1:] + histogram.edges[:-1]) / 2
    medians = [
        float(centres[np.searchsorted(np.cumsum(shares), 0.5 - 1e-9)])
        for shares in (histogram.positives, histogram.negatives)
    ]
    beyond = ""
    if histogram.beyond:
        beyond = f" The outermost bins hold {histogram.beyond:,} score{'s' * (histogram.beyond > 1)} from further out."
    return Picture(
        name=name,
        caption="Scores of positives (filled, solid line) and negatives (dashed), each class scaled to itself."
        + (" Dotted: the thresholds of the table." if cuts else "")
        + beyond,
        alt=f"Histogram of scores. Positives centre near {medians[0]:.2g}, negatives near {medians[1]:.2g}.",
        draw=draw,
    )


def reliability_picture(name: str, calibration: Calibration) -> Picture:
    """Observed share against predicted probability, before and after recalibration."""
    states: list[tuple[str, CalibrationState, str, str, Any]] = []
    if isinstance(calibration.before, CalibrationState):
        states.append(("before", calibration.before, VERMILION, "o", DASHED))
    if isinstance(calibration.after, CalibrationState):
        states.append(("after", calibration.after, BLUE, "s", "solid"))

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=DOTTED, label="perfect")
        for label, state, colour, marker, line in states:
            curve = state.reliability
            reach = np.clip([curve.observed - curve.low, curve.high - curve.observed], 0, None)
            drawn = axes.errorbar(
                curve.predicted,
                curve.observed,
                yerr=reach,
                color=colour,
                marker=marker,
                markersize=5,
                linestyle=line,
                linewidth=1.5,
                elinewidth=0.9,
                capsize=2,
                label=f"{label} recalibration" if len(states) > 1 else "recalibrated",
            )
            drawn[0].set_markerfacecolor("none" if label == "before" else colour)
        axes.set(xlim=(-0.02 * top, 1.02 * top), ylim=(-0.02 * top, 1.02 * top))
        axes.set(xlabel="predicted probability", ylabel="observed share of positives")
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)

    ends = [_end_of_axis(state.reliability.predicted, state.reliability.high) for _, state, *_ in states]
    # Scores of an AUC loss are no probabilities before recalibration: they must not hide those that are.
    top = max(ends) if max(ends) <= 3 * ends[-1] else ends[-1]
    beyond = " Points before recalibration lie beyond." if top < max(ends) else ""
    said = "; ".join(
        f"{label} recalibration Brier score {figure_text(state.brier, state.brier_interval)}, calibration error "
        f"{figure_text(state.expected_calibration_error, state.expected_calibration_error_interval)}"
        for label, state, *_ in states
    )
    return Picture(
        name=name,
        caption="Reliability in ten bins of equally many rows, with Wilson's 95 % limits; the diagonal is perfect."
        + _short_axes("Both axes end", top)
        + beyond,
        alt=f"Reliability plot: {said}.",
        draw=draw,
    )


def decision_picture(name: str, decision: DecisionCurve, prevalence: float) -> Picture:
    """Net benefit of acting on the recalibrated model, on everybody and on nobody."""
    useful = useful_ranges(decision)
    stop = float(np.clip(1.25 * max(useful[-1][1] if useful else 0.0, 2 * prevalence), 0.01, 0.99))
    shown_to = decision.thresholds <= stop

    def draw(axes: Any) -> None:
        t = decision.thresholds[shown_to]
        axes.plot(t, decision.model[shown_to], color=BLUE, linewidth=2, label="act on the model")
        axes.plot(
            t, decision.treat_all[shown_to], color=VERMILION, linewidth=1.5, linestyle=DASHED, label="act on everybody"
        )
        axes.axhline(0, color=FAINT, linewidth=1.2, linestyle=DOTTED, label="act on nobody")
        top = max(float(decision.model[shown_to].max()), prevalence)
        axes.set(xlim=(0, stop), ylim=(-0.2 * top, 1.1 * top), xlabel="threshold probability", ylabel="net benefit")
        axes.legend(loc="upper right", fontsize=8.5, frameon=False)

    said = "is nowhere better than both acting on everybody and acting on nobody"
    if useful:
        said = f"is better than both at threshold probabilities of {ranges_text(useful)}"
    return Picture(
        name=name,
        caption="Decision curve of the recalibrated probabilities: net benefit per row, in true positives.",
        alt=f"Decision curve. Acting on the model {said}.",
        draw=draw,
    )


def useful_ranges(decision: DecisionCurve) -> list[tuple[float, float]]:
    """The ranges of thresholds in which the model beats acting on everybody and on nobody."""
    better = decision.model > np.maximum(decision.treat_all, 0) + 1e-12
    edges = np.flatnonzero(np.diff(np.concatenate([[False], better, [False]])))
    found = zip(edges[::2], edges[1::2], strict=True)
    return [(float(decision.thresholds[start]), float(decision.thresholds[end - 1])) for start, end in found]


def ranges_text(ranges: Sequence[tuple[float, float]]) -> str:
    """`0.04 to 0.08, 0.1 to 0.43`."""
    return ", ".join(f"{low:.2g} to {high:.2g}" if low < high else f"{low:.2g}" for low, high in ranges)


def forest_picture(
    name: str, rows: list[tuple[str, Estimate[float]]], *, overall: float | None, caption: str, alt: str
) -> Picture:
    """Intervals one under the other, with a line where the whole stands."""

    def draw(axes: Any) -> None:
        places = np.arange(len(rows))[::-1]
        for place, (_, one) in zip(places, rows, strict=True):
            axes.plot([one.low, one.high], [place, place], color=BLUE, linewidth=1.8)
            axes.plot(one.value, place, marker="o", color=BLUE, markersize=5.5)
        if overall is not None:
            axes.axvline(overall, color=FAINT, linewidth=1.2, linestyle=DASHED)
        if min(one.low for _, one in rows) < 0.55:
            axes.axvline(0.5, color=FAINT, linewidth=1, linestyle=DOTTED)
        axes.set_yticks(places, [shown(label, longest=28) for label, _ in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel("AUC")
        axes.grid(visible=False, axis="y")

    return Picture(name=name, caption=caption, alt=alt, draw=draw, height=1.1 + 0.27 * len(rows))


def _end_of_axis(*values: Floats) -> float:
    """1 for shares and probabilities, or less where all of them are small: rare positives would lie on the axis."""
    most = max(float(np.nanmax(one)) for one in values)
    return 1.0 if most > 0.5 or most <= 0 else 1.05 * most


def _short_axes(which: str, end: float) -> str:
    return "" if end == 1 else f" {which} at {end:.2g}, not at 1."


def figure_text(value: float, limits: Estimate[float] | Absent) -> str:
    """A figure that may be small, with its interval, where there is one."""
    return small_text(value) if isinstance(limits, Absent) else small_text(limits.value, limits.low, limits.high)


def interval_text(one: Estimate[float]) -> str:
    """`0.876 [0.841, 0.904]`."""
    return auc_text(one.value, one.low, one.high)


def signed_text(one: Estimate[float]) -> str:
    """`+0.012 [-0.003, +0.027]`: a difference."""
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"
