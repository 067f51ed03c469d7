"""How much the result varies: from fold to fold, and from seed to seed."""

from __future__ import annotations

import numpy as np

from deepauc.metrics.intervals import Estimate
from deepauc.reporting.document.blocks import (
    Beside,
    Block,
    Caution,
    DataTable,
    Missing,
    Paragraph,
    Section,
    TableCell,
    shown,
)
from deepauc.reporting.document.cells import cells, interval_cell
from deepauc.reporting.evaluation.findings import AucResult, RunFindings
from deepauc.reporting.figures.label import forest_picture

_FOLDS = (
    "Each fold is judged by the network that was not trained on it, with DeLong's 95 % interval of that fold alone. "
    "Folds are small: their AUCs differ by chance, and because each network had other training rows."
)
_SEEDS = (
    "The same rows with other random seeds. Such runs differ only in initial weights, order and augmentation, not "
    "in patients. Their spread comes on top of the interval of each run and does not replace it."
)
_NO_SEEDS = (
    "this report is about one run. Add runs with other seeds on the same table: deepauc report RUN --repeat RUN_2 "
    "--repeat RUN_3."
)
_OTHER_RECIPE = "The recipes of these runs differ from this one by more than the seed: {names}."


def variation_section(findings: RunFindings) -> Section:
    """Folds, where there are some, and the runs that were named as repeats."""
    blocks: list[Block] = []
    if findings.folds:
        blocks.append(Paragraph(_FOLDS))
        blocks += [_folds(findings, number, label) for number, label in enumerate(findings.label_names)]
    if findings.repeats:
        blocks.append(Paragraph(_SEEDS))
        others = [one.run for one in findings.repeats if not one.same_recipe]
        if others:
            names = ", ".join(shown(name) for name in dict.fromkeys(others))
            blocks.append(Caution(_OTHER_RECIPE.format(names=names)))
        for number, label in enumerate(findings.label_names):
            blocks += _repeats(findings, number, label)
    else:
        blocks.append(Missing("variation over seeds", _NO_SEEDS))
    return Section(anchor="variation", title="Variation over folds and seeds", blocks=tuple(blocks))


def _of_label(findings: RunFindings, label: str) -> str:
    return f" · {shown(label)}" if len(findings.label_names) > 1 else ""


def _folds(findings: RunFindings, number: int, label: str) -> Block:
    rows = [one for one in findings.folds if one.label == label]
    lines = tuple(
        cells(TableCell(shown(one.fold), place), one.rows, one.positives, interval_cell(one.auc))
        for place, one in enumerate(rows)
    )
    caption = f"Each fold{_of_label(findings, label)}"
    table = DataTable(caption=caption, header=("Fold", "Rows", "Positives", "AUC [95 % interval]"), rows=lines)
    drawn = [(f"fold {one.fold}", one.auc) for one in rows if isinstance(one.auc, Estimate)]
    if len(drawn) < 2:
        return table
    judged = findings.labels[number].auc
    overall = judged.headline.value if isinstance(judged, AucResult) else None
    values = [auc.value for _, auc in drawn]
    alt = f"AUC of {len(drawn)} folds, from {min(values):.3f} to {max(values):.3f}."
    picture = forest_picture(
        f"folds-{number + 1}-auc",
        drawn,
        overall=overall,
        caption="AUC of each fold; dashed: the AUC of this report.",
        alt=alt,
    )
    return Beside((table,), picture)


def _repeats(findings: RunFindings, number: int, label: str) -> list[Block]:
    rows = [one for one in findings.repeats if one.label == label]
    lines = tuple(
        cells(shown(one.run), TableCell("—" if one.seed is None else str(one.seed), one.seed), interval_cell(one.auc))
        for one in rows
    )
    caption = f"Each run{_of_label(findings, label)}"
    table = DataTable(caption=caption, header=("Run", "Seed", "AUC [95 % interval]"), rows=lines)
    drawn = [(f"seed {one.seed}", one.auc) for one in rows if isinstance(one.auc, Estimate)]
    if len(drawn) < 2:
        return [table]
    values = np.array([auc.value for _, auc in drawn])
    said = (
        f"Over {len(drawn)} seeds the AUC is {values.mean():.3f} on average, from {values.min():.3f} to "
        f"{values.max():.3f} (standard deviation {values.std(ddof=1):.3f})."
    )
    picture = forest_picture(
        f"seeds-{number + 1}-auc",
        drawn,
        overall=float(values.mean()),
        caption="AUC of each seed; dashed: their mean.",
        alt=said,
    )
    return [Beside((table, Paragraph(said)), picture)]
