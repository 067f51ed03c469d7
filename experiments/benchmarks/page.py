"""results/paper-tables.md: the paper's figures beside ours, and its order of the losses, by cell and pooled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, stdev

from deepauc.metrics.intervals import Estimate
from deepauc.metrics.mean_interval import stratified_interval
from deepauc.studies.records import tables as t
from deepauc.studies.records.book import RecordBook
from experiments.benchmarks.recipes import RECIPES, TITLES
from experiments.benchmarks.tables import LOSSES, PAPER_CELLS, SET, BenchmarkCell

COMPARED = (("auc_m", "ce"), ("auc_m", "auc_s"), ("auc_s", "ce"))
PLACES = {
    **{str(percent): [cell for cell in PAPER_CELLS if cell.percent == percent] for percent in (1, 10)},
    "all": list(PAPER_CELLS),
    "R": [cell for cell in PAPER_CELLS if cell.network == "R"],
}
WHERE = ("cell", "recipe")


def pooled(
    book: RecordBook,
    cells: Sequence[BenchmarkCell],
    name: Callable[[BenchmarkCell, str], str],
    pair: tuple[str, str],
) -> Estimate[float] | None:
    """One loss minus another over cells; strata are sets of images. name: of a loss's study in a cell."""
    found = []
    for cell in cells:
        by_seed = t.differences(*(book.final(name(cell, loss)) for loss in pair))
        if len(by_seed) > 1:
            found.append((cell.benchmark, by_seed))
    return stratified_interval(found) if found else None


def contrasts(
    book: RecordBook, places: Sequence[str]
) -> Iterator[tuple[str, str, tuple[str, str], Estimate[float], dict[str, Estimate[float]]]]:
    """Recipe, place, pair of losses; over the place's cells, and by cell."""
    for recipe in RECIPES:
        for place in places:
            for pair in COMPARED:
                over = pooled(book, PLACES[place], partial(_study_of, recipe), pair)
                finals = {c.name: [book.final(c.study_name(recipe, loss)) for loss in pair] for c in PLACES[place]}
                each = {name: one for name, both in finals.items() if (one := t.between(*both)) is not None}
                if over is not None:
                    yield recipe, place, pair, over, each


def _study_of(recipe: str, cell: BenchmarkCell, loss: str) -> str:
    return cell.study_name(recipe, loss)


def _orders(books: t.Books) -> Iterator[list[str]]:
    for recipe, percent, pair, over, each in contrasts(books(SET), ("1", "10")):
        named = (
            ", ".join(name for name, one in each.items() if t.judged(one) == word) or "-"
            for word in ("confirmed", "refuted", "open")
        )
        means = [one.value for one in each.values()]
        shown = t.interval_text(over), f"{min(means):+.3f} to {max(means):+.3f}", t.judged(over)
        yield [f"{percent} %", recipe, _minus(*pair), str(len(each)), *named, *shown]


def _minus(first: str, second: str) -> str:
    return f"{TITLES[first]} - {TITLES[second]}"


def _tried(books: t.Books) -> Iterator[list[str]]:
    """Validation AUC of each setting, the best first within its study."""
    for cell in PAPER_CELLS:
        for recipe in RECIPES:
            for loss in LOSSES:
                tried = tried_settings(books(SET), cell.study_name(recipe, loss))
                for setting, values in sorted(tried.items(), key=lambda item: -fmean(item[1])):
                    error = f" ± {stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
                    yield [cell.name, recipe, TITLES[loss], setting, str(len(values)), f"{fmean(values):.3f}{error}"]


def tried_settings(book: RecordBook, study: str) -> dict[str, list[float]]:
    """Validation AUC by setting, of the tuning runs that ended."""
    found: dict[str, list[float]] = {}
    for record in book.tuning(study):
        if "failed" not in record:
            found.setdefault(t.settings_text(record["config"]), []).append(record["auc"]["validation"][0])
    return found


def _figures(books: t.Books) -> t.Figures:
    """cells.CELL.RECIPE.LOSS: validation AUC of each setting, the best of them, the highest mean test AUC of an epoch;
    contrasts.RECIPE.(1, 10, all or R): pairs, pooled."""
    parts: list[t.Figures] = []
    for cell in PAPER_CELLS:
        for recipe in RECIPES:
            for loss in LOSSES:
                study = cell.study_name(recipe, loss)
                if records := books(SET).final(study):
                    tuning = {_key(name): fmean(some) for name, some in tried_settings(books(SET), study).items()}
                    found = {"tuning": tuning, "validation": max(tuning.values(), default=None)}
                    found["highest"] = t.highest_of_curve(records)
                    shown = {name: value for name, value in found.items() if value}
                    parts.append({"cells": {cell.name: {recipe: {loss: shown}}}})
    for recipe, place, pair, over, each in contrasts(books(SET), list(PLACES)):
        told = {**t.interval_figures(over), "cells": t.counted(each.values())}
        parts.append({"contrasts": {recipe: {place: {"-".join(pair): told}}}})
    return t.merged(parts)


def _key(setting: str) -> str:
    """`lr 0.1, momentum 0` as part of a path: `lr=0_1,momentum=0`."""
    return setting.replace(", ", ",").replace(" ", "=").replace(".", "_")


PAGE = t.Page(
    name=SET,
    title="The paper's benchmark tables",
    note=(
        "Test AUC of the last epoch, mean ± standard deviation over random training sets, beside the paper's. Settings "
        "are chosen on validation AUC (three training sets at 1 %, one at 10 %, fewer where `cut` says so), then "
        "refitted on all training images; no test score has a say. At 1 % a validation part holds 25 positives (C2: "
        "10), so the standard error of one validation AUC is about .05: the selection is noisy. `literal` is Theorem 1 "
        "with its factor p(1 - p) and the printed grids at lr 0.1; `paper` divides by p(1 - p) and tunes the learning "
        "rate of each loss: both are our readings of what the paper leaves unsaid, and the authors' first releases had "
        "other settings. DenseNet121 takes over the margin and gamma that ResNet20 has selected (in `literal` its "
        "whole setting). C2 has other pixels than the paper's; C100 draws from a fixed pool of 8,000 positives."
    ),
    tables=(
        t.Table(
            title="The order AUC-M, AUC-S, CE",
            note=(
                "A cell confirms or refutes a difference where its paired 95 % t-interval leaves out 0. `pooled`: the "
                "mean of the cells' means, with a 95 % t-interval stratified by set of images (both networks on one "
                "training set count as one draw; degrees of freedom by Welch and Satterthwaite). It speaks of these "
                "cells with other training sets, not of other images; nothing is adjusted for the number of "
                "comparisons. Where alpha is never 0 (last column of all cells), AUC-M is the square loss with margin "
                "m."
            ),
            header=(
                *("positives", "recipe", "difference", "cells", "confirmed", "refuted", "open"),
                *("pooled [95 %]", "cell means", "verdict"),
            ),
            lines=_orders,
        ),
        t.study_table(
            SET,
            title="All cells",
            note=(
                "`train AUC`: last epoch, from a histogram of 40 bins (good to about .02). `highest epoch`: of the "
                "mean test AUC by epoch, where it was recorded. `alpha = 0`: share of steps. `s per run`: its share "
                "of a pack on an H200."
            ),
            labels=(*WHERE, "loss"),
            rows=tuple(
                t.Row(
                    labels=(cell.name, recipe, TITLES[loss]),
                    study=cell.study_name(recipe, loss),
                    paper=cell.published(loss),
                    key=("cells", cell.name, recipe, loss),
                )
                for cell in PAPER_CELLS
                for recipe in RECIPES
                for loss in LOSSES
            ),
            columns=(
                *(t.PAPER, t.MEAN, t.SETS, t.TRAINING, t.HIGHEST, t.SETTINGS),
                *(t.ALPHA_ZERO, t.SECONDS, t.TUNING, t.CUT),
            ),
        ),
        t.study_table(
            SET,
            title="Paired differences of test AUC",
            note="Mean over the training sets that both losses have, with a 95 % t-interval.",
            labels=(*WHERE, "difference"),
            rows=tuple(
                t.Row(
                    labels=(cell.name, recipe, _minus(*pair)),
                    study=cell.study_name(recipe, pair[0]),
                    versus=cell.study_name(recipe, pair[1]),
                    key=("cells", cell.name, recipe, pair[0]),
                )
                for cell in PAPER_CELLS
                for recipe in RECIPES
                for pair in COMPARED
            ),
            columns=(t.PAIRS, t.DIFFERENCE, t.VERDICT),
        ),
        t.Table(
            title="What tuning saw",
            note="Validation AUC of each setting: mean over the tuning sets, ± its standard error.",
            header=(*WHERE, "loss", "setting", "sets", "validation AUC"),
            lines=_tried,
        ),
    ),
    figures=_figures,
)
