"""How the settings of a row of the benchmark tables were found, in words: selected, inherited, cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from deepauc.paper.benchmark_tables import CELLS, Cell, cell_study
from deepauc.studies.records import Record, RecordBook

SELECTED_NAMES = {"margin": "m", "focal_alpha": "alpha"}


@dataclass(frozen=True)
class Inheritance:
    """Axes of a final run's setting that another study has selected, by the name of that study."""

    study: str
    axes: tuple[str, ...]

    @property
    def place(self) -> str:
        """The cell it comes from."""
        return next((c.name for c in CELLS if self.study.startswith(f"{c.name}-")), self.study)


def inheritance(cell: Cell, recipe: str, loss: str, record: Record) -> Inheritance | None:
    """What a final run took over; None where all was chosen in its own cell.

    A run with a rule of its own has tuned what the declaration does not inherit, and one of a grid cut to a single
    configuration has taken that for it; any other has its whole setting from the study that its record names.
    """
    selection = record.get("selection") or {}
    declared = cell_study(cell, recipe, loss).inherits
    study = selection.get("inherited from") or (None if declared is None else declared.study)
    if study is None:
        return None
    known = tuple(record["config"])
    if "rule" in selection or "configs" in record["cut"]:
        known = tuple(axis for axis in known if declared is not None and axis in declared.axes)
    return Inheritance(study, known) if known else None


def as_declared(cell: Cell, recipe: str, loss: str, record: Record) -> bool:
    """Whether a final run took over no more than its study inherits as it is declared now."""
    found, declared = inheritance(cell, recipe, loss, record), cell_study(cell, recipe, loss).inherits
    return found is None or set(found.axes) <= set(() if declared is None else declared.axes)


def learning_rate_inherited(cell: Cell, recipe: str, loss: str, records: Sequence[Record]) -> bool:
    """Whether any of these runs has its learning rate from another network."""
    found = [inheritance(cell, recipe, loss, record) for record in records]
    return any(one is not None and "lr" in one.axes for one in found)


def settings_text(config: Mapping[str, Any]) -> str:
    """`m 0.5, gamma 1/300, lr 0.1`."""
    shown = []
    for name, value in config.items():
        if name == "gamma" and isinstance(value, float) and value:
            shown.append(f"gamma 1/{1 / value:.0f}")
        else:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            shown.append(f"{SELECTED_NAMES.get(name, name)} {number}")
    return ", ".join(shown)


def tuning_text(cell: Cell, recipe: str, loss: str, records: Sequence[Record], book: RecordBook) -> str:
    """Runs and seconds of the row's own tuning, and what it took over from where."""
    parts = []
    tuning = book.tuning(cell.study_name(recipe, loss))
    if tuning:
        failed = sum("failed" in record for record in tuning)
        seconds = sum(record.get("seconds", 0.0) for record in tuning)
        used = any(as_declared(cell, recipe, loss, record) for record in records)
        remark = (f", {failed} diverged" if failed else "") + ("" if used else ", not used by these final runs")
        parts.append(f"{len(tuning)} runs, {seconds:.0f} s{remark}")
    for found in dict.fromkeys(inheritance(cell, recipe, loss, record) for record in records):
        if found is not None:
            axes = ", ".join(SELECTED_NAMES.get(axis, axis) for axis in found.axes)
            parts.append(f"{axes} inherited from {found.place}")
    return "; ".join(parts) or "-"


def cut_text(cell: Cell, recipe: str, loss: str, records: Sequence[Record], book: RecordBook) -> str:
    """What was left out of the row's own study, and of the one it inherits from."""
    parts = dict.fromkeys(settings_text(record["cut"]) for record in records)
    for found in dict.fromkeys(inheritance(cell, recipe, loss, record) for record in records):
        for parent in () if found is None else book.final(found.study):
            if parent["cut"]:
                parts[f"in {found.place}: {settings_text(parent['cut'])}" if found else ""] = None
    return "; ".join(part for part in parts if part) or "-"


def tried_text(tuning: Sequence[Record]) -> tuple[int, str] | None:
    """Tuning sets, and each setting with its mean validation AUC ± standard error over sets, best first."""
    by_setting: dict[str, list[float]] = {}
    for record in tuning:
        if "failed" not in record:
            by_setting.setdefault(settings_text(record["config"]), []).append(record["auc"]["validation"][0])
    if not by_setting:
        return None
    best_first = sorted(by_setting.items(), key=lambda item: -fmean(item[1]))
    shown = "; ".join(f"{_with_error(values)} ({setting})" for setting, values in best_first)
    return max(len(values) for values in by_setting.values()), shown


def _with_error(values: Sequence[float]) -> str:
    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{error}"
