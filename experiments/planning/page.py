"""results/plan.md: what the changes of `changes` do, a table for each round."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from deepauc.metrics.mean_interval import mean_interval
from deepauc.studies.records import tables as t
from deepauc.training.recipe import Recipe
from experiments.planning.changes import (
    ALONE,
    BASE,
    CHANGES,
    FIRST_ROUND,
    FOLDS,
    NOW,
    ON_SMALL,
    PLANNED,
    SECOND_ROUND,
    SET,
    SETS,
    SMALL,
    THIRD_ROUND,
    cost_of,
    planned,
)

Found = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Validation AUC by set, change and fold."""

WITH_COPIES = (f"{PLANNED}, 8 copies", "now, CE alone, as long, 8 copies")  # those whose copies are alike for all rows
CE_ALONE = "now, CE alone, as long"
SIZES, SMALL_SIZES = (
    tuple(f"{name.removeprefix('small-')} ({data.positives:,} of {data.rows:,})" for name, data in sets.items())
    for sets in (SETS, SMALL)
)


def recorded(books: t.Books) -> Found:
    """What the records say; runs that diverged are left out.

    Changes with one recipe on a set are one run, which is recorded under the name of one of them.
    """
    found = {}
    for name in (*SETS, *SMALL):
        by_recipe: dict[Recipe, dict[int, float]] = {}
        for record in books(SET).tuning(f"plan-{name}"):
            if "failed" not in record:
                folds = by_recipe.setdefault(planned(on=name, change=record["config"]["change"]), {})
                folds[record["seed"]] = record["auc"]["validation"][0]
        recipes = {change: planned(on=name, change=change) for change in (CHANGES if name in SETS else ON_SMALL)}
        found[name] = {change: by_recipe[recipe] for change, recipe in recipes.items() if recipe in by_recipe}
    return found


def differences(found: Found, change: str, base: str, on: Sequence[str]) -> list[float]:
    """By fold, of the sets on which both are complete and not the same recipe."""
    values = []
    for name in on:
        mine, first = found[name].get(change, {}), found[name].get(base, {})
        if planned(on=name, change=change) != planned(on=name, change=base) and len(mine) == len(first) == FOLDS:
            values += [mine[fold] - first[fold] for fold in sorted(mine)]
    return values


def _gains(books: t.Books) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Change; by set and fold what its copies add to the AUC of its own network. Only what has all sets and folds."""
    for change in WITH_COPIES:
        gains = {}
        for name in SETS:
            wanted = planned(on=name, change=change)
            records = [r for r in books(SET).tuning(f"plan-{name}") if "failed" not in r]
            own = [r for r in records if planned(on=name, change=r["config"]["change"]) == wanted]
            plain = [(r.get("history", {}).get("validation_auc") or [None])[-1] for r in own]
            if len(own) == FOLDS and None not in plain:
                gains[name] = [r["auc"]["validation"][0] - auc for r, auc in zip(own, plain, strict=True)]
        if set(gains) == set(SETS):
            yield change, gains


def _round(title: str, changes: Sequence[str], base: str, note: str = "") -> t.Table:
    def lines(books: t.Books) -> Iterator[list[str]]:
        found = recorded(books)
        there = [name for name in SETS if base in found[name]]
        if base in (ALONE, CE_ALONE) and not any(change in some for change in changes[1:] for some in found.values()):
            return
        for change in changes:
            if any(change in found[name] for name in there if base == BASE or SETS[name].few):
                values = differences(found, change, base, there)
                minus = t.interval_text(mean_interval(values)) if change != base and len(values) > 1 else "-"
                cost = fmean(cost_of(name, change, base) for name in there)
                yield [change, *(_cell(found, name, change, base) for name in SETS), minus, f"{cost:.2f}"]

    header = ("change", *SIZES, f"minus {base} [95 %]", "cost")
    return t.Table(title=title, note=note, header=header, lines=lines)


def _cell(found: Found, name: str, change: str, base: str) -> str:
    if base not in found[name]:
        return "-"
    if change != base and planned(on=name, change=change) == planned(on=name, change=base):
        return "="
    mine = found[name].get(change, {})
    return f"{fmean(mine.values()):.3f}" if len(mine) == FOLDS else "-"


def _base_of(change: str) -> str:
    """What a change of the third round, or on small tables, is compared with: the same stages."""
    return {"both": NOW, "ce": CE_ALONE, "auc_m": ALONE}[CHANGES[change].stages]


def _small(books: t.Books) -> Iterator[list[str]]:
    found = recorded(books)
    for change in ON_SMALL:
        if any(change in found[name] for name in SMALL):
            values = differences(found, change, _base_of(change), list(SMALL))
            minus = t.interval_text(mean_interval(values)) if len(values) > 1 else "-"
            yield [change, *(_cell(found, name, change, _base_of(change)) for name in SMALL), minus]


def _copies(books: t.Books) -> Iterator[list[str]]:
    for change, gains in _gains(books):
        over = mean_interval([gain for some in gains.values() for gain in some])
        yield [change, *(f"{fmean(some):+.3f}" for some in gains.values()), t.interval_text(over)]


def key(change: str) -> str:
    """The name of a change in summary.json: `now_CE_alone_as_long`."""
    return re.sub(r"\W+", "_", change)


def _figures(books: t.Books) -> t.Figures:
    """plan.CHANGE.SET: mean; plan.CHANGE.minus_BASE.PLACE: paired differences; plan.CHANGE.copies.

    PLACE: a set, all, but_C2, or small: all small tables.
    """
    found, parts = recorded(books), list[t.Figures]()
    for change in CHANGES:
        folds = {name: found[name][change] for name in SETS if len(found[name].get(change, ())) == FOLDS}
        parts += [{key(change): {name: fmean(values.values()) for name, values in folds.items()}}] if folds else []
    places = {**{name: [name] for name in SETS}, "all": list(SETS), "but_C2": [name for name in SETS if name != "C2"]}
    places["small"] = list(SMALL)
    pairs = [(change, BASE) for change in FIRST_ROUND] + [(change, NOW) for change in SECOND_ROUND]
    pairs += [(change, _base_of(change)) for change in THIRD_ROUND]
    pairs += [(change, _base_of(change)) for change in ON_SMALL]
    pairs += [(WITH_COPIES[0], PLANNED), ("now, CE alone, twice as long", "now, twice as long")]
    for change, base in pairs:
        by_place = {place: differences(found, change, base, names) for place, names in places.items()}
        minus = {place: t.interval_figures(mean_interval(one)) for place, one in by_place.items() if len(one) > 1}
        parts += [{key(change): {f"minus_{key(base)}": minus}}] if minus else []
    for change, gains in _gains(books):
        over = t.interval_figures(mean_interval([gain for some in gains.values() for gain in some]))
        parts.append({key(change): {"copies": {**{name: fmean(some) for name, some in gains.items()}, "all": over}}})
    return {SET: t.merged(parts)} if parts else {}


PAGE = t.Page(
    name=SET,
    title="The plan of `deepauc train`, one change at a time",
    note=(
        "A column is a training set (positives of rows in four of its folds): mean validation AUC over the folds, "
        "weights of the last epoch. `base`: cross-entropy (AdamW, lr .002, cosine), then AUC-M (m .5, gamma .002, lr "
        ".1 in steps, an eighth of a batch positive at least) with a fresh classifier; network, batch and epochs as "
        "the budget of `deepauc train` for a CPU allows, small shifts and turns. The other rows differ in what they "
        "name; `=`: on this set it is the first row. `minus`: mean difference to the first row on the same folds with "
        "a 95 % t-interval over all folds of the sets that are complete (they share training images, so it is "
        "somewhat too narrow). `cost`: multiply-adds over those of the first row, mean over sets."
    ),
    tables=(
        _round("First round", tuple(FIRST_ROUND), BASE),
        _round(
            "Second round: with more positives",
            (NOW, BASE, *(change for change in SECOND_ROUND if change != NOW)),
            NOW,
            "`now`: where fewer than a quarter of the rows are positive (path, ham, C2), a quarter of every "
            "batch is, in both stages; epochs fewer for it, within the same budget. Shares of positives are for "
            f"these three sets alone. `{PLANNED}`: the AUC stage has the epochs that the budget lasts for once "
            "cross-entropy has 2,000 steps, and none if they are fewer than three (ham, C2). `deepauc train` has "
            "had this rule since, and later twice the budget, steps and epochs; the rule was thought of when `now, CE "
            "alone, as long` had been seen on these folds, so its own figures are somewhat too kind. `8 copies`: in "
            "the first round, but for breast, changed for each row by itself, since then alike for all rows.",
        ),
        _round(
            "Third round: the defaults of the AUC margin loss",
            (ALONE, *(change for change in THIRD_ROUND if _base_of(change) == ALONE)),
            ALONE,
            "AUC-M without a stage of cross-entropy before it, so that nothing else differs.",
        ),
        _round(
            "Third round: the same for cross-entropy",
            (CE_ALONE, *(change for change in THIRD_ROUND if _base_of(change) == CE_ALONE)),
            CE_ALONE,
        ),
        t.Table(
            title="Third round, on small tables",
            note=(
                "A hundred positives and three times as many negatives of each set (65 of path), four fifths of them "
                "trained on; batches of 16 with a quarter of positives, the small network, 50 + 25 epochs and longer. "
                f"`minus`: to the row above that starts the group: `{ALONE}`, `{NOW}` or `{CE_ALONE}`."
            ),
            header=("change", *SMALL_SIZES, "minus [95 %]"),
            lines=_small,
        ),
        t.Table(
            title="Copies, by the same network",
            note=(
                "Between rows of the tables above lie two trainings. Here is the AUC of the mean over 8 copies minus "
                "that of the images as they are, by the very same network: mean over the folds of a set, and over all."
            ),
            header=("change", *SETS, "all [95 %]"),
            lines=_copies,
        ),
    ),
    figures=_figures,
)
