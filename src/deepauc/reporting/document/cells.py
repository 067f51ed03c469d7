"""The cells of a report's tables: counts, figures with their intervals, differences, and a dash where there is none."""

from __future__ import annotations

import math

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.blocks import TableCell
from deepauc.reporting.evaluation.findings import Absent, CalibrationState
from deepauc.reporting.figures.label import figure_text, interval_text, signed_text
from deepauc.text_tables import percent_text

DASH = TableCell("—")


def cells(*values: str | int | TableCell) -> tuple[TableCell, ...]:
    """A row: a text as it is, a count with its thousands apart, any other figure as a cell of its own."""
    return tuple(
        TableCell(f"{one:,}", one) if isinstance(one, int) else TableCell(one) if isinstance(one, str) else one
        for one in values
    )


def decimals(value: float) -> TableCell:
    """`0.876`."""
    return TableCell(f"{value:.3f}", value)


def interval_cell(one: Estimate[float] | Absent) -> TableCell:
    """`0.876 [0.841, 0.904]`."""
    return DASH if isinstance(one, Absent) else TableCell(interval_text(one), one.value)


def signed_cell(one: Estimate[float]) -> TableCell:
    """`+0.012 [-0.003, +0.027]`: a difference."""
    return TableCell(signed_text(one), one.value)


def p_cell(p_value: float) -> TableCell:
    return TableCell(p_text(p_value), p_value)


def p_text(p_value: float) -> str:
    """`p = 0.012`, or `p < 0.0001`."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.2g}"


def share_cell(one: Estimate[float] | None) -> TableCell:
    """A share in per cent with its limits; a dash where nothing was counted."""
    if one is None or math.isnan(one.value):
        return DASH
    return TableCell(percent_text(one.value, one.low, one.high).replace(" %", ""), one.value)


def figure_cell(value: float, limits: Estimate[float] | Absent) -> TableCell:
    """A figure with its limits, where it has some."""
    return TableCell(figure_text(value, limits), value)


def brier_cell(state: CalibrationState) -> TableCell:
    """The Brier score with its interval."""
    return figure_cell(state.brier, state.brier_interval)
