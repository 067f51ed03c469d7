"""results/best.md: what the levers have chosen and why, and what it is worth; made from the records alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from deepauc.paper import best_levers
from deepauc.paper.benchmark_tables import Cell
from deepauc.paper.benchmark_verdict import interval_text
from deepauc.paper.best import TITLES
from deepauc.paper.best_averages import averages_section
from deepauc.paper.best_decisions import Decision, Tried, decisions
from deepauc.paper.best_levers import (
    CELLS,
    FOLLOWERS,
    LOSSES,
    lever_name,
)
from deepauc.paper.best_not_run import not_run_section
from deepauc.paper.best_verdict import cell_records, target_of, verdict_section, what_decides
from deepauc.reporting.tables import markdown_table, percent_text
from deepauc.studies.records import Record, RecordBook
from deepauc.training.folder import by_other_numerics

NOTHING = "No run is recorded yet."


def page(results: Path) -> str:
    """The whole page as markdown."""
    book = RecordBook(results / best_levers.SET)
    parts = ["# One recipe for few positives", _introduction(book), "## Test AUC", _cells_text(book)]
    parts += [*verdict_section(book), *averages_section(book)]
    parts += ["## What was chosen", _chosen_text(book)]
    if decides := what_decides(book):
        parts += ["## What decides", *decides]
    parts += ["## Lever by lever", *_levers(book)]
    parts += not_run_section(book)
    return "\n\n".join(parts) + "\n"


def _introduction(book: RecordBook) -> str:
    finals = [record for name in book.studies() for record in book.final(name)]
    lines = [
        "Made by `deepauc study table best` from `results/best.jsonl`; `deepauc study run best` makes the records. "
        "Selection is by cross-validation inside training sets 100 and 101 of C10 at 1 % with ResNet20, five folds "
        "each; the sets reported are 0 to 4, and the setting is used unchanged in all other cells. A fold's first "
        "stage sees the other four folds only; positives removed to make the imbalance are seen by no stage. Test AUC "
        "is that of the last epoch, or of the averaged weights where that was selected; where `tta` was, a score is "
        "the mean over so many copies of the image, changed as in training.",
        "",
        "Levers come in a fixed order, each with what those before it have chosen. Of its settings, listed from the "
        "simplest on, the first is chosen whose paired difference to the best is within one standard error over the "
        "folds. Cross-entropy has the same number of settings and runs. Folds of one training set share images, so "
        "the intervals of the levers are somewhat too narrow.",
    ]
    if finals:
        machines = sorted({record["hardware"] for record in finals})
        other = by_other_numerics(finals)
        made = f"{len(finals)} final runs on {', '.join(machines)}"
        lines += ["", made + (f"; {other} of them by another numerics version." if other else ".")]
    return "\n".join(lines)


def _cells_text(book: RecordBook) -> str:
    rows = []
    for cell in CELLS:
        for loss in (*LOSSES, *FOLLOWERS):
            records = cell_records(book, cell, loss)
            if records:
                rows.append(_cell_row(cell, loss, records))
    if not rows:
        return NOTHING
    header = ("cell", "loss", "test AUC", "sets", "paper's AUC-M", "target", "reached", "alpha = 0", "GPU s", "cut")
    explained = (
        "Mean ± standard deviation over training sets. GPU s: of one run, its first stage included, each its share of "
        "a pack. alpha = 0: share of steps; at 0 % AUC-M is the square loss with margin m. target: set beforehand; for "
        "C2 and C100 the paper's best loss with ResNet20 (.756 and .596; with DenseNet121 it has .809 and .614) plus "
        ".10 and .06."
    )
    return f"{explained}\n\n{markdown_table(header, rows)}"


def _cell_row(cell: Cell, loss: str, records: Sequence[Record]) -> list[str]:
    values = [record["auc"]["test"][0] for record in records]
    shares = [r["alpha_zero_share"] for r in records if r["alpha_zero_share"] is not None and loss == "auc_m"]
    seconds = [r["seconds"] + ((r.get("first_stage") or {}).get("seconds", 0.0)) for r in records]
    mixed = len({json.dumps([r["config"], r["fixed"]], sort_keys=True) for r in records}) > 1
    return [
        cell.name,
        TITLES[loss] + (" (settings differ between sets)" if mixed else ""),
        f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""),
        str(len(values)),
        f"{cell.published('auc_m')[0]:.3f}",
        *_against_target(cell, fmean(values)),
        percent_text(fmean(shares)) if shares else "-",
        f"{fmean(seconds):.0f}",
        "; ".join(dict.fromkeys(settings_text(record["cut"]) for record in records)) or "-",
    ]


def _against_target(cell: Cell, value: float) -> list[str]:
    target = target_of(cell)
    return ["-", "-"] if target is None else [f"{target:.3f}", "yes" if value >= target else "no"]


def _chosen_text(book: RecordBook) -> str:
    """One column a lever, one table a loss with a search of its own."""
    tables = []
    for loss in (*LOSSES, *FOLLOWERS):
        found = decisions(book, loss)
        if any(one.tried for one in found):
            header = ("loss", *(one.lever.name for one in found))
            row = [TITLES[loss], *(settings_text(one.chosen, short=True) if one.chosen else "open" for one in found)]
            tables.append(markdown_table(header, [row]))
    return "\n\n".join(tables) or NOTHING


def _levers(book: RecordBook) -> list[str]:
    header = ("setting", "validation AUC", "folds", "minus the best [95 %]", "alpha = 0", "chosen")
    parts = []
    if cuts := _cuts(book):
        parts.append(f"Cut, of what is declared: {cuts}.")
    if again := _trained_again(book):
        parts.append(
            "First stages were trained anew in the course of the search, with the same seeds; a GPU does not repeat "
            "one to the bit, so in these levers a fold's settings begin with two trainings of the same first stage, "
            f"and their paired differences hold that noise too: {again}."
        )
    for loss in (*LOSSES, *FOLLOWERS):
        for found in decisions(book, loss):
            if found.tried:
                rows = [_tried_row(found, tried) for tried in found.tried]
                parts += [f"### {TITLES[loss]}: {found.lever.name}", markdown_table(header, rows)]
    return parts or [NOTHING]


def _cuts(book: RecordBook) -> str:
    """What the searches left out, by lever: `tune_sets 5 of 10 (levers-ce-01-first, ...)`."""
    where: dict[str, list[str]] = {}
    searched = []
    for loss in (*LOSSES, *FOLLOWERS):
        for number, found in enumerate(decisions(book, loss), start=1):
            name, records = lever_name(loss, number), found.records
            searched += [name] * bool(records)
            for cut in dict.fromkeys(settings_text(_still_cut(record["cut"], found.folds)) for record in records):
                where.setdefault(cut, []).append(name)
    where.pop("", None)
    return "; ".join(cut if names == searched else f"{cut} ({', '.join(names)})" for cut, names in where.items())


def _trained_again(book: RecordBook) -> str:
    found = ((TITLES[loss], [d.lever.name for d in decisions(book, loss) if d.trained_again]) for loss in LOSSES)
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in found if names)


def _still_cut(cut: Mapping[str, Any], folds: int) -> dict[str, Any]:
    """Without what a later call has made up for: `tune_sets` where all folds are there by now."""
    return {key: value for key, value in cut.items() if key != "tune_sets" or folds < int(str(value).split()[-1])}


def _tried_row(found: Decision, tried: Tried) -> list[str]:
    difference = found.difference(tried)
    diverged = sum(value is None for value in tried.aucs.values())
    return [
        settings_text(tried.setting),
        f"{tried.mean:.4f}" if tried.complete else f"diverged on {diverged}",
        str(len(tried.aucs)),
        "-" if difference is None else interval_text(difference),
        "-" if tried.alpha_zero is None else percent_text(tried.alpha_zero),
        "yes" if found.chosen is not None and dict(tried.setting) == dict(found.chosen) else "",
    ]


def settings_text(config: Mapping[str, Any], *, short: bool = False) -> str:
    """`lr 0.03, weight_decay 0.001`; short: the values alone, where a column's title names them."""
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in config.values()]
    return ", ".join(shown if short else (f"{name} {text}" for name, text in zip(config, shown, strict=True)))
