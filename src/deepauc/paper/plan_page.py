"""results/plan.md: what the changes of `plan_changes` do, a table a round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from deepauc.metrics.mean_interval import mean_interval
from deepauc.paper.plan_changes import (
    BASE,
    CHANGES,
    FIRST_ROUND,
    FOLDS,
    NOW,
    PLANNED,
    SECOND_ROUND,
    SET,
    SETS,
    cost_of,
    planned,
)
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.records import RecordBook
from deepauc.training.recipe import Recipe

Found = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Validation AUC by set, change and fold."""

INTRODUCTION = (
    "Made by `deepauc study table plan` from `results/plan.jsonl`; `deepauc study run plan` makes the records. A "
    "column is a training set (positives of rows in four of its folds): mean validation AUC over the folds, weights of "
    "the last epoch. `base`: cross-entropy (AdamW, lr .002, cosine), then AUC-M (m .5, gamma .002, lr .1 in steps, an "
    "eighth of a batch positive at least) with a fresh classifier; network, batch and epochs as the budget of `deepauc "
    "train` for a CPU allows, small shifts and turns. The other rows differ in what they name; `=`: on this set it is "
    "the first row (a quarter of its rows are positives as they come). `minus`: mean difference to the first row on "
    "the same folds with a 95 % t-interval over all folds of the sets that are complete (they share training images, "
    "so it is somewhat too narrow). `cost`: multiply-adds over those of the first row, mean over sets."
)
SECOND = (
    "`now`: where fewer than a quarter of the rows are positive (path, ham, C2), a quarter of every batch is, in both "
    "stages; epochs fewer for it, within the same budget. Rows as above, shares of positives for these three sets "
    f"alone. `{PLANNED}`: the AUC stage has the epochs that the budget lasts for once cross-entropy has 2,000 steps, "
    "and none if they are fewer than three (ham, C2). It is what `deepauc train` plans since; it was thought "
    "of when `now, CE alone, as long` had been seen on these folds, so its own figures are somewhat too kind. "
    "`8 copies`: in the first round, but for breast, changed for each row by itself, since then alike for all rows."
)
COPIES = (
    "Between rows of the tables above lie two trainings. Here is the AUC of the mean over 8 copies minus that of the "
    "images as they are, by the very same network: mean over the folds of a set, and over all with its interval."
)
WITH_COPIES = (f"{PLANNED}, 8 copies", "now, CE alone, as long, 8 copies")  # those whose copies are alike for all rows


def page(results: Path) -> str:
    """results/plan.md."""
    found = recorded(results)
    parts = ["# The plan of `deepauc train`, one change at a time", INTRODUCTION]
    parts.append(_table(found, list(FIRST_ROUND), BASE) or "No run is recorded yet.")
    few = [name for name in SETS if SETS[name].few and NOW in found[name]]
    begun = [change for change in SECOND_ROUND if any(change in found[name] for name in few)]
    if begun and (second := _table(found, [NOW, BASE, *begun[1:]], NOW)):
        parts += ["## Second round: with more positives", SECOND, second]
    if rows := [row for change in WITH_COPIES if (row := _copies_row(results, change)) is not None]:
        header = ("change", *SETS, "all [95 %]")
        parts += ["## Copies, by the same network", COPIES, markdown_table(header, rows)]
    return "\n\n".join(parts) + "\n"


def recorded(results: Path) -> Found:
    """What the records under results/plan.jsonl say."""
    book = RecordBook(results / SET)
    return {name: _by_change(book, name) for name in SETS}


def differences(found: Found, change: str, base: str, on: list[str]) -> list[float]:
    """By fold, of the sets on which both are complete and not the same recipe."""
    values = []
    for name in on:
        mine, first = found[name].get(change, {}), found[name].get(base, {})
        if planned(on=name, change=change) != planned(on=name, change=base) and len(mine) == len(first) == FOLDS:
            values += [mine[fold] - first[fold] for fold in sorted(mine)]
    return values


def same_network(results: Path, change: str) -> dict[str, list[float]]:
    """By set and fold, what the copies of a change add to the AUC of its own network; only sets with all folds."""
    book, gains = RecordBook(results / SET), {}
    for name in SETS:
        wanted = planned(on=name, change=change)
        records = [r for r in book.tuning(f"plan-{name}") if "failed" not in r]
        own = [r for r in records if planned(on=name, change=r["config"]["change"]) == wanted]
        plain = [(r["auc"]["validation"][0], (r.get("history", {}).get("validation_auc") or [None])[-1]) for r in own]
        if len(plain) == FOLDS and all(auc is not None for _, auc in plain):
            gains[name] = [with_copies - auc for with_copies, auc in plain]
    return gains


def _copies_row(results: Path, change: str) -> list[str] | None:
    gains = same_network(results, change)
    if set(gains) != set(SETS):
        return None
    found = mean_interval([gain for name in SETS for gain in gains[name]])
    each = (f"{fmean(gains[name]):+.3f}" for name in SETS)
    return [change, *each, f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"]


def _table(found: Found, changes: list[str], base: str) -> str | None:
    there = [name for name in SETS if base in found[name]]
    rows = [_row(change, base, found, there) for change in changes if any(change in found[name] for name in there)]
    if not rows:
        return None
    header = ("change", *(f"{name} ({SETS[name].positives:,} of {SETS[name].rows:,})" for name in there))
    return markdown_table((*header, f"minus {base} [95 %]", "cost"), rows)


def _by_change(book: RecordBook, name: str) -> dict[str, dict[int, float]]:
    """Validation AUC by change and fold; runs that diverged are left out.

    Changes with one recipe on this set are one run, which is recorded under the name of one of them.
    """
    by_recipe: dict[Recipe, dict[int, float]] = {}
    for record in book.tuning(f"plan-{name}"):
        if "failed" not in record:
            folds = by_recipe.setdefault(planned(on=name, change=record["config"]["change"]), {})
            folds[record["seed"]] = record["auc"]["validation"][0]
    recipes = {change: planned(on=name, change=change) for change in CHANGES}
    return {change: by_recipe[recipe] for change, recipe in recipes.items() if recipe in by_recipe}


def _row(change: str, base: str, found: Found, there: list[str]) -> list[str]:
    cells = []
    for name in there:
        mine = found[name].get(change, {})
        if change != base and planned(on=name, change=change) == planned(on=name, change=base):
            cells.append("=")
        else:
            cells.append(auc_text(fmean(mine.values())) if len(mine) == FOLDS else "-")
    by_fold = differences(found, change, base, there)
    if change == base or len(by_fold) < 2:
        minus = "-"
    else:
        interval = mean_interval(by_fold)
        minus = f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
    cost = fmean(cost_of(name, change, base) for name in there)
    return [change, *cells, minus, f"{cost:.2f}"]
