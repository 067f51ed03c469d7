"""What thresholds do: the table of operating points with its confusion matrices, and rows beside patients."""

from __future__ import annotations

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.blocks import Block, DataTable, Missing, Paragraph, TableCell
from deepauc.reporting.document.cells import cells, interval_cell, share_cell
from deepauc.reporting.evaluation.findings import Absent, LabelEvaluation, OperatingRow, PatientLevel
from deepauc.reporting.evaluation.label import rows_of
from deepauc.text_tables import percent_text
from deepauc.training.run.scores import OOF

_CHOSEN = (
    "Each threshold was chosen on rows held out from training and is judged here on other rows. So the value "
    "reached differs from the value asked for."
)
_CHOSEN_ON_FOLDS = (
    "In each fold the threshold is the one that the other folds choose, and the counts are summed over folds. No "
    "row helps to choose its own threshold, so the value reached differs from the value asked for. The column "
    "Threshold is the choice of all held-out rows, in log odds, which deepauc predict and the bundle use."
)
_SCORE_WORDS = {"highest": "its highest score", "mean": "the mean of its scores"}


def operating_blocks(label: LabelEvaluation) -> tuple[Block, ...]:
    """Thresholds at fixed specificity and at fixed sensitivity, each with its confusion matrix."""
    fixed, sensitive = label.operating_points, label.sensitivity_points
    if isinstance(fixed, Absent):
        return (Missing("operating points", fixed.why),)
    rows = (*fixed, *(() if isinstance(sensitive, Absent) else sensitive))
    how = f", clustered by {label.counts.group_word}" if label.counts.clustered else ""
    return (_table(f"Operating points on {rows_of(label.part)}, with 95 % intervals (Wilson{how})", rows),)


def threshold_words(label: LabelEvaluation) -> str:
    """How a threshold was chosen, and what it may be read for."""
    share = percent_text(label.counts.positives / label.counts.rows)
    return (
        f"{_CHOSEN_ON_FOLDS if label.part == OOF else _CHOSEN} A score at or above it counts as positive. Positive "
        f"and negative predictive values (PPV, NPV) hold for the share of positives here ({share})."
        + ("" if label.operating_points_left_out is None else f" Left out: {label.operating_points_left_out.why}")
    )


def patient_blocks(label: LabelEvaluation) -> tuple[Block, ...]:
    """Rows beside patients, where a patient has several rows."""
    if not label.patients or isinstance(label.auc, Absent):
        return ()
    word = label.counts.group_word
    judged: list[tuple[str, Estimate[float] | Absent, LabelEvaluation | PatientLevel]] = [
        (f"Each row on its own (intervals clustered by {word})", label.auc.headline, label),
        *((f"Every {word} by {_SCORE_WORDS[level.score]}", level.auc, level) for level in label.patients),
    ]
    rows = tuple(
        cells(what, one.counts.rows, one.counts.positives, interval_cell(auc), *_at_ninety(one))
        for what, auc, one in judged
    )
    return (
        DataTable(
            caption=f"By row and by {word}, with 95 % intervals",
            header=(
                *("What is judged", "Number", "Positive", "AUC"),
                *("Sensitivity, % (threshold for 90 % specificity)", "Specificity, % (threshold for 90 % sensitivity)"),
            ),
            rows=rows,
        ),
        Paragraph(
            f"A {word} is positive if one of its rows is. Thresholds are chosen on the {word}s of "
            f"{'the other folds' if label.part == OOF else 'validation'} in the same way. Rows without a label are "
            "ignored."
        ),
    )


def patient_tables(label: LabelEvaluation) -> tuple[Block, ...]:
    """The operating points of both ways to judge a patient."""
    return tuple(_patient_table(label, level) for level in label.patients)


def _patient_table(label: LabelEvaluation, level: PatientLevel) -> Block:
    word, how = label.counts.group_word, _SCORE_WORDS[level.score]
    if isinstance(level.operating_points, Absent) or isinstance(level.sensitivity_points, Absent):
        why = next(one.why for one in (level.operating_points, level.sensitivity_points) if isinstance(one, Absent))
        return Missing(f"operating points of {word}s by {how}", why)
    caption = f"Operating points by {word} (each {word} is judged by {how}), with 95 % intervals (Wilson)"
    return _table(caption, (*level.operating_points, *level.sensitivity_points))


def _table(caption: str, rows: tuple[OperatingRow, ...]) -> DataTable:
    return DataTable(
        caption=caption,
        header=(
            *("Chosen for", "Threshold", "Positives: found, missed", "Negatives: cleared, false alarms"),
            *("Sensitivity, %", "Specificity, %", "PPV, %", "NPV, %"),
        ),
        rows=tuple(_row(row) for row in rows),
    )


def asked_text(row: OperatingRow) -> str:
    """`90 % specificity`, `95 % sensitivity`."""
    if row.asked_sensitivity is not None:
        return f"{100 * row.asked_sensitivity:g} % sensitivity"
    return f"{100 * (row.asked_specificity or 0):g} % specificity"


def _row(row: OperatingRow) -> tuple[TableCell, ...]:
    return cells(
        asked_text(row).replace(" ", "\u00a0"),
        TableCell(f"{row.threshold:.4g}", row.threshold),
        TableCell(f"{row.true_positives:,}, {row.false_negatives:,}", row.true_positives),
        TableCell(f"{row.true_negatives:,}, {row.false_positives:,}", row.true_negatives),
        share_cell(row.sensitivity),
        share_cell(row.specificity),
        share_cell(row.positive_predictive_value),
        share_cell(row.negative_predictive_value),
    )


def _at_ninety(one: LabelEvaluation | PatientLevel) -> tuple[TableCell, TableCell]:
    fixed, sensitive = _rows(one.operating_points), _rows(one.sensitivity_points)
    sensitivity = next((row.sensitivity for row in fixed if row.asked_specificity == 0.9), None)
    specificity = next((row.specificity for row in sensitive if row.asked_sensitivity == 0.9), None)
    return share_cell(sensitivity), share_cell(specificity)


def _rows(found: tuple[OperatingRow, ...] | Absent) -> tuple[OperatingRow, ...]:
    return () if isinstance(found, Absent) else found
