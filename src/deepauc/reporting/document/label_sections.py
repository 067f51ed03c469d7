"""What the report says about one label: curves, thresholds, calibration, decisions."""

from __future__ import annotations

from collections.abc import Iterator

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.blocks import (
    Beside,
    Block,
    DataTable,
    Gallery,
    Missing,
    Paragraph,
    Picture,
    TableCell,
)
from deepauc.reporting.document.cells import brier_cell, cells, decimals, figure_cell, interval_cell
from deepauc.reporting.document.operating_sections import patient_tables, threshold_words
from deepauc.reporting.evaluation.findings import (
    Absent,
    AucResult,
    CalibrationState,
    Histogram,
    LabelEvaluation,
    Paired,
)
from deepauc.reporting.evaluation.label import rows_of
from deepauc.reporting.figures.label import (
    decision_picture,
    figure_text,
    histogram_picture,
    precision_recall_picture,
    ranges_text,
    reliability_picture,
    roc_picture,
    useful_ranges,
)
from deepauc.text_tables import small_text
from deepauc.training.plain import objective_type
from deepauc.training.run.scores import OOF

_BRACKETS = (
    "Brackets are 95 % intervals from a bootstrap over {over} ({samples:,} samples) that takes the recalibration as "
    "given. By chance alone the calibration error is above 0: if its interval starts at 0, the calibration may be "
    "perfect."
)
_FOLD_PROBABILITIES = (
    "A probability is that of a fold's network for a row that it was not trained on, recalibrated on the held-out "
    "rows of the other folds. Probabilities have one scale, so those of all folds are judged together. The average "
    "of all networks, which deepauc predict uses, is not judged here."
)
_AVERAGE_PROBABILITIES = (
    "A probability is the mean of the recalibrated probabilities of all networks, as in deepauc predict."
)
Topic = tuple[str, str, tuple[Block, ...]]  # anchor, title, blocks


def label_topics(
    label: LabelEvaluation, prefix: str, *, other: tuple[str, Paired] | None, objective: str
) -> list[Topic]:
    """The topics of a label in reading order; `prefix` keeps anchors and figure names of several labels apart.

    other: a network to draw beside this one, by its name. objective: what the judged network was trained by last.
    """
    return [
        (f"{prefix}curves", "Curves", _curves(label, prefix, other)),
        (f"{prefix}thresholds", "Scores and thresholds", _thresholds(label, prefix)),
        (f"{prefix}calibration", "Calibration", _calibration(label, prefix, objective)),
        (f"{prefix}decision", "Decision curve", _decision(label, prefix)),
    ]


def interval_table(label: LabelEvaluation) -> tuple[Block, ...]:
    """The AUC's intervals by method, and average precision with its own."""
    if isinstance(label.auc, Absent):
        return (Missing("AUC", label.auc.why),)
    auc, counts = label.auc, label.counts
    folds = "mean within folds, " if label.part == OOF else ""
    rows = [_interval_row(f"DeLong, {folds}rows taken as independent", auc.delong)]
    if auc.delong_by_patient is not None:
        by_patient = f"DeLong, {folds}clustered by {counts.group_word} (Obuchowski)"
        rows.append(_interval_row(by_patient, auc.delong_by_patient))
    if auc.corrected is not None:
        rows.append(_interval_row("The same, corrected for the choice among candidates", auc.corrected))
    over = f"over {counts.group_word}s" if counts.clustered else "over rows"
    if auc.bootstrap is not None:
        rows.append(_interval_row(f"Bootstrap {over} (BCa, {label.resamples.auc:,} samples)", auc.bootstrap))
    table = DataTable(
        caption="AUC with 95 % confidence intervals",
        header=("Method", "AUC", "from", "to"),
        rows=tuple(rows),
    )
    patients = "The table names no patients or other groups, so rows are taken as independent."
    if counts.patients is not None:
        patients = f"Every {counts.group_word} has one row, so intervals are by {counts.group_word}."
        if counts.clustered:
            word = counts.group_word
            patients = f"{counts.patients:,} {word}s have {counts.rows:,} rows: quote the interval by {word}."
    share, limits = counts.positives / counts.rows, auc.average_precision_interval
    missing: tuple[Block, ...] = ()
    method = ""
    if isinstance(limits, Absent):
        missing = (Missing("interval of average precision", limits.why),)
    else:
        method = f" (95 % interval: percentiles of a bootstrap {over}, {label.resamples.others:,} samples)"
    precision = Paragraph(
        f"Average precision is {figure_text(auc.average_precision, limits)}{method}, where chance gives the share of "
        f"positives, {share:.3g}. {patients}"
    )
    return (table, precision, *missing, *_partial_table(label, over))


def _partial_table(label: LabelEvaluation, over: str) -> tuple[Block, ...]:
    found = label.partial_auc
    if found is None:
        return ()
    if isinstance(found, Absent):
        return (Missing("partial AUC", found.why),)
    method = f"bootstrap {over}, {label.resamples.others:,} samples"
    return (
        DataTable(
            caption=f"Partial AUC ({found.region}) with its 95 % interval ({method})",
            header=("Region", "Partial AUC", "from", "to", "Chance", "At most"),
            rows=((*_interval_row(str(found.region), found.area), decimals(found.chance), decimals(found.most)),),
        ),
    )


def _interval_row(name: str, one: Estimate[float]) -> tuple[TableCell, ...]:
    return cells(name, decimals(one.value), decimals(one.low), decimals(one.high))


def _curves(label: LabelEvaluation, prefix: str, other: tuple[str, Paired] | None) -> tuple[Block, ...]:
    pictures: list[Picture] = []
    missing: list[Block] = []
    if isinstance(label.curves, Absent):
        missing.append(Missing("ROC and precision-recall curves", label.curves.why))
    else:
        pictures.append(roc_picture(f"{prefix}roc", label.curves, label.auc, label.operating_points, other))
        if isinstance(label.auc, AucResult):
            share = label.counts.positives / label.counts.rows
            pictures.append(precision_recall_picture(f"{prefix}pr", label.curves, label.auc, share))
    return (*((Gallery(tuple(pictures)),) if pictures else ()), *missing)


def _thresholds(label: LabelEvaluation, prefix: str) -> tuple[Block, ...]:
    """How the classes overlap, how thresholds were chosen; the table itself stands with the result."""
    found = label.operating_points
    cuts: tuple[float, ...] = ()
    words: Paragraph | Missing
    if isinstance(found, Absent):
        words = Missing("thresholds", found.why)
    else:
        cuts = tuple(row.threshold for row in found)
        words = Paragraph(threshold_words(label))
    beside: tuple[Block, ...] = (words,)
    if isinstance(label.histogram, Histogram):
        beside = (Beside((words,), histogram_picture(f"{prefix}scores", label.histogram, cuts)),)
    elif not isinstance(found, Absent) or found != label.histogram:
        beside = (words, Missing("score histograms", label.histogram.why))
    return (*beside, *(() if isinstance(found, Absent) else patient_tables(label)))


def _calibration(label: LabelEvaluation, prefix: str, objective: str) -> tuple[Block, ...]:
    found = label.calibration
    if isinstance(found, Absent):
        return (Missing("calibration", found.why),)
    states, missing = list[tuple[str, CalibrationState]](), tuple[Missing, ...]()
    if isinstance(found.before, CalibrationState):
        states.append(("Before", found.before))
    if isinstance(found.after, CalibrationState):
        states.append(("After", found.after))
    else:
        missing = (Missing("recalibration", found.after.why),)
    fitted = ""
    if found.recalibration is not None:
        slope, intercept = found.recalibration.get("slope"), found.recalibration.get("intercept")
        fitted = f" Recalibrated probability: sigmoid({slope:.4g} · score {intercept:+.4g}), fitted on validation."
    words = Paragraph(f"{_scores_as_probabilities(objective)} Before means {found.source}.{fitted}")
    caption = f"Calibration on {rows_of(label.part)} before and after recalibration"
    if isinstance(found.before, Absent):
        words = Paragraph(_FOLD_PROBABILITIES if label.part == OOF else _AVERAGE_PROBABILITIES)
        caption = f"Calibration on {rows_of(label.part)}"
    limits = states[0][1].brier_interval if states else Absent("there are no probabilities.")
    if isinstance(limits, Absent):
        missing = (*missing, Missing("intervals of Brier score and calibration error", limits.why))
        brackets: tuple[Paragraph, ...] = ()
    else:
        over = f"{label.counts.group_word}s" if label.counts.clustered else "rows"
        brackets = (Paragraph(_BRACKETS.format(over=over, samples=label.resamples.others)),)
    table = DataTable(
        caption=caption,
        header=("Measure", *(name if len(states) > 1 else "Value" for name, _ in states)),
        rows=tuple(_calibration_rows([state for _, state in states])),
    )
    return (Beside((words, table, *brackets, *missing), reliability_picture(f"{prefix}reliability", found)),)


def _scores_as_probabilities(objective: str) -> str:
    """What the loss that trained the judged network says about its scores."""
    spec = objective_type(objective)
    if getattr(spec, "gives_probabilities", False):
        return (
            "The judged network was trained by cross-entropy, so the sigmoid of a score is a probability for the "
            "share of positives in training. The values before recalibration show how well that holds here."
        )
    if getattr(spec, "ranks", False):
        return "Scores of an AUC loss are not probabilities: training fixes only their order."
    return "The scores of this network may not be probabilities."


def _calibration_rows(states: list[CalibrationState]) -> Iterator[tuple[TableCell, ...]]:
    yield TableCell("Brier score"), *(brier_cell(state) for state in states)
    yield (
        TableCell("Calibration error (ECE)"),
        *(figure_cell(one.expected_calibration_error, one.expected_calibration_error_interval) for one in states),
    )
    yield (
        TableCell("Mean prediction"),
        *(TableCell(small_text(state.mean_prediction), state.mean_prediction) for state in states),
    )
    yield (
        TableCell("Observed share of positives"),
        *(TableCell(small_text(state.observed_share), state.observed_share) for state in states),
    )


def _decision(label: LabelEvaluation, prefix: str) -> tuple[Block, ...]:
    found = label.decision
    if isinstance(found, Absent):
        return (Missing("decision curve", found.why),)
    useful = useful_ranges(found)
    said = (
        "On these rows, acting on the recalibrated model is never better than both acting on everybody and acting "
        "on nobody."
    )
    if useful:
        said = (
            "On these rows, acting on the recalibrated model is better than acting on everybody and better than acting "
            f"on nobody at threshold probabilities of {ranges_text(useful)}. The threshold "
            "probability is the risk at which one would be indifferent between acting and not."
        )
    positives = label.counts.positives
    said += (
        f" The curve has no interval: it rests on {positives:,} positive row{'s' * (positives != 1)}, and other rows "
        "would give another curve."
    )
    picture = decision_picture(f"{prefix}decision-curve", found, label.counts.positives / label.counts.rows)
    return (Beside((Paragraph(said),), picture),)


def auc_cell(label: LabelEvaluation) -> TableCell:
    """AUC with its interval, or the reason in short."""
    if isinstance(label.auc, AucResult) and label.too_few is not None:
        return TableCell(label.too_few)
    return interval_cell(label.auc if isinstance(label.auc, Absent) else label.auc.headline)
