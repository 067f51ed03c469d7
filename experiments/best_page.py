"""results/best.md: what the levers have chosen and why, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.metrics.mean_interval import mean_interval
from deepauc.models.fusion import ensemble
from deepauc.studies.records.book import Record
from deepauc.studies.records.tables import (
    ALPHA_ZERO,
    CUT,
    MEAN,
    SECONDS,
    SETS,
    Books,
    Figures,
    Page,
    Row,
    Table,
    between,
    differences,
    each_once,
    figures_of,
    interval_figures,
    interval_text,
    mean_text,
    merged,
    settings_text,
    study_table,
)
from deepauc.text_tables import auc_text, percent_text
from experiments.benchmark_page import pooled
from experiments.best_decisions import Decision, decisions, end_of_search
from experiments.best_levers import CELLS, FOLLOWERS, LOSSES, SET, read_ranks
from experiments.best_recipe import TITLES

ALL_LOSSES = (*LOSSES, *FOLLOWERS)
FIRST, SECOND = LOSSES  # AUC-M minus cross-entropy
# Test AUC that AUC-M is to reach, set before the search; C2 and C100: the paper's best with ResNet20 plus .10 and .06.
TARGETS = {"C10-R-1": 0.88, "C10-D-1": 0.91, "C10-R-10": 0.95, "C10-D-10": 0.96, "C2-R-1": 0.856, "C100-R-1": 0.656}


def averaged_models(records: Sequence[Record]) -> tuple[Any, Any] | None:
    """Scores of the average of these runs' models, as ranks, and the labels; None with fewer than two."""
    found = _ranks(records)
    return None if found is None else (ensemble(list(found[0]), scale="rank"), found[1])


def _ranks(records: Sequence[Record]) -> tuple[list[Any], Any] | None:
    kept = [read_ranks(record["test_ranks"]) for record in records if "test_ranks" in record]
    if len(kept) < 2:
        return None
    labels = kept[0][1]
    if any(not np.array_equal(labels, other) for _, other in kept[1:]):
        raise ValueError("the records to be averaged are of different test images: delete those of other data.")
    return [ranks for ranks, _ in kept], labels


def agreement(records: Sequence[Record]) -> float:
    """Mean correlation of two models' ranks."""
    found = _ranks(records)
    assert found is not None
    return fmean(float(np.corrcoef(a, b)[0, 1]) for a, b in combinations(found[0], 2))


def both_losses(books: Books, cell: str) -> dict[int, float]:
    """Test AUC of the average of both losses' models on the same training set, by set."""
    first, second = ({r["seed"]: r for r in books(SET).final(f"{cell}-{loss}")} for loss in LOSSES)
    pairs = {seed: averaged_models([first[seed], second[seed]]) for seed in sorted(first.keys() & second.keys())}
    return {seed: float(auroc(*found)) for seed, found in pairs.items() if found is not None}


def _over_cells(books: Books) -> Estimate[float] | None:
    return pooled(books(SET), CELLS, "{cell}-{loss}", (FIRST, SECOND))


def _differences(books: Books) -> Iterator[list[str]]:
    for cell in CELLS:
        mine, other = (books(SET).final(f"{cell.name}-{loss}") for loss in LOSSES)
        if (found := between(mine, other)) is not None:
            yield [cell.name, str(len(differences(mine, other))), interval_text(found)]
    if (over := _over_cells(books)) is not None:
        yield ["all", "-", interval_text(over)]


def _averages(books: Books) -> Iterator[list[str]]:
    for cell in CELLS:
        beside = books(SET).final(f"{cell.name}-{SECOND}")
        for loss in ALL_LOSSES:
            records = books(SET).final(f"{cell.name}-{loss}")
            mine, other = averaged_models(records), averaged_models(beside)
            if mine is not None:
                found, minus = auroc_interval(*mine), "-"
                if loss != SECOND and other is not None and len(records) == len(beside):
                    by_test = compare_auroc(mine[0], other[0], mine[1])
                    minus = interval_text(Estimate(*map(float, (by_test.difference, by_test.low, by_test.high))))
                shown = auc_text(float(found.value), float(found.low), float(found.high))
                yield [cell.name, TITLES[loss], str(len(records)), shown, minus, f"{agreement(records):.2f}"]


def _both(books: Books) -> Iterator[list[str]]:
    for cell in CELLS:
        both = both_losses(books, cell.name)
        if len(both) > 1:
            gains = (interval_text(_gain_of_both(books, cell.name, both, loss)) for loss in LOSSES)
            yield [cell.name, str(len(both)), mean_text(list(both.values())), *gains]


def _gain_of_both(books: Books, cell: str, both: Mapping[int, float], loss: str) -> Estimate[float]:
    alone = {record["seed"]: record["auc"]["test"][0] for record in books(SET).final(f"{cell}-{loss}")}
    return mean_interval([value - alone[seed] for seed, value in both.items()])


def _chosen(books: Books) -> Iterator[list[str]]:
    for loss in ALL_LOSSES:
        for found in decisions(books(SET), loss):
            if found.tried:
                chosen = settings_text(found.chosen) if found.chosen else "open"
                again = "yes" if found.trained_again else ""
                yield [TITLES[loss], found.lever.name, chosen, interval_text(found.gain()), again]


def _tried(books: Books) -> Iterator[list[str]]:
    for loss in ALL_LOSSES:
        for found in decisions(books(SET), loss):
            for tried in found.tried:
                diverged = sum(value is None for value in tried.aucs.values())
                yield [
                    *(TITLES[loss], found.lever.name, settings_text(tried.setting)),
                    f"{tried.mean:.4f}" if tried.complete else f"diverged on {diverged}",
                    str(len(tried.aucs)),
                    interval_text(found.difference(tried)),
                    "-" if tried.alpha_zero is None else percent_text(tried.alpha_zero),
                    "yes" if found.chosen is not None and dict(tried.setting) == dict(found.chosen) else "",
                    each_once(settings_text(_still_cut(record["cut"], found.folds)) for record in found.records),
                ]


def _still_cut(cut: Mapping[str, Any], folds: int) -> dict[str, Any]:
    """Without what a later call has made up for: `tune_sets` where all folds are there by now."""
    return {key: value for key, value in cut.items() if key != "tune_sets" or folds < int(str(value).split()[-1])}


def _ends(books: Books) -> Iterator[list[str]]:
    ends = {loss: end for loss in LOSSES if (end := end_of_search(books(SET), loss)) is not None}
    minus = _end_difference(books)
    for loss, end in ends.items():
        shown = interval_text(minus) if loss == FIRST else "-"
        yield [TITLES[loss], str(len(end)), f"{fmean(end.values()):.4f}", shown]


def _end_difference(books: Books) -> Estimate[float] | None:
    first, second = (end_of_search(books(SET), loss) or {} for loss in LOSSES)
    common = sorted(first.keys() & second.keys())
    return mean_interval([first[fold] - second[fold] for fold in common]) if len(common) > 1 else None


def _figures(books: Books) -> Figures:
    """cells.CELL.best: both losses, their difference, their average; best: the search, and all cells together."""
    parts: list[Figures] = []
    for cell in CELLS:
        finals = {loss: books(SET).final(f"{cell.name}-{loss}") for loss in ALL_LOSSES}
        found: Figures = {loss: figures_of(records) for loss, records in finals.items() if records}
        if (minus := between(finals[FIRST], finals[SECOND])) is not None:
            found[f"{FIRST}-{SECOND}"] = interval_figures(minus)
        both = both_losses(books, cell.name)
        if len(both) > 1:
            found["both"] = {"mean": fmean(both.values()), "sets": list(both.values())}
            for loss in LOSSES:
                found[f"both-{loss}"] = interval_figures(_gain_of_both(books, cell.name, both, loss))
        if found:
            parts.append({"cells": {cell.name: {"best": found}}})
            parts.append({"best": {"targets": {cell.name: TARGETS.get(cell.name)}}})
    for loss in ALL_LOSSES:
        levers = {one.lever.name: _lever_figures(one) for one in decisions(books(SET), loss) if one.tried}
        parts += [{"best": {"levers": {loss: levers}}}] if levers else []
    named = {"end": _end_difference(books), "pooled": _over_cells(books)}
    parts += [
        {"best": {n: {f"{FIRST}-{SECOND}": interval_figures(one)}}} for n, one in named.items() if one is not None
    ]
    return merged(parts)


def _lever_figures(found: Decision) -> Figures:
    """means: validation AUC of the settings, in their order; None where one diverged."""
    gain = found.gain()
    return {
        "settings": [dict(tried.setting) for tried in found.tried],
        "means": [tried.mean if tried.complete else None for tried in found.tried],
        "chosen": None if found.chosen is None else dict(found.chosen),
        **({} if gain is None else {"gain": interval_figures(gain)}),
    }


PAGE = Page(
    name=SET,
    title="One recipe for few positives",
    note=(
        "Selection is by cross-validation inside training sets 100 and 101 of C10 at 1 % with ResNet20, five folds "
        "each; the sets reported are 0 to 4, and the setting is used unchanged in all other cells. A fold's first "
        "stage sees the other four folds only; positives removed to make the imbalance are seen by no stage. Levers "
        "come in a fixed order, each with what those before it have chosen: the simplest setting whose paired "
        "difference to the best is within one standard error over the folds. Cross-entropy has the same number of "
        "settings and runs. Folds of one training set share images, so the intervals of the levers are somewhat too "
        "narrow."
    ),
    tables=(
        study_table(
            SET,
            title="Test AUC",
            note=(
                "Of the last epoch, or of the averaged weights where that was selected; with `tta`, of the mean over "
                "copies of the image. `target`: set beforehand. `s per run`: its share of a pack on an H200, then that "
                "of the first stage. Where `alpha = 0` is 0 %, AUC-M is the square loss with margin m."
            ),
            labels=("cell", "loss", "paper's AUC-M", "target"),
            rows=tuple(
                Row(
                    labels=(
                        *(cell.name, TITLES[loss], f"{cell.published('auc_m')[0]:.3f}"),
                        f"{TARGETS[cell.name]:.3f}" if cell.name in TARGETS else "-",
                    ),
                    study=f"{cell.name}-{loss}",
                )
                for cell in CELLS
                for loss in ALL_LOSSES
            ),
            columns=(MEAN, SETS, ALPHA_ZERO, SECONDS, CUT),
        ),
        Table(
            title="AUC-M minus cross-entropy",
            note="Paired, with 95 % t-intervals; `all` is pooled as in `paper-tables.md`.",
            header=("cell", "sets", "mean [95 %]"),
            lines=_differences,
        ),
        Table(
            title="Averages over training sets",
            note=(
                "One model of all training sets: ranks over the test images, averaged, with DeLong's interval; minus "
                "CE's by paired DeLong. Such an average has seen several times the positives of one model. "
                "`agreement`: mean correlation of two models' ranks."
            ),
            header=("cell", "loss", "sets", "test AUC [95 %]", "minus CE's [95 %]", "agreement"),
            lines=_averages,
        ),
        Table(
            title="Averages of both losses",
            note=(
                "AUC-M and CE trained on the same set, after the same first stage; gains paired over the sets. Looked "
                "at after the runs; nothing in it is chosen."
            ),
            header=("cell", "sets", "both", *(f"minus {TITLES[loss]} [95 %]" for loss in LOSSES)),
            lines=_both,
        ),
        Table(
            title="What decides",
            note=(
                "`gain`: what was chosen minus the simplest setting of the lever, paired over the folds that chose "
                "it, so somewhat too high. `again`: a fold's settings begin with two trainings of the same first "
                "stage, which a GPU does not repeat to the bit."
            ),
            header=("loss", "lever", "chosen", "gain [95 %]", "again"),
            lines=_chosen,
        ),
        Table(
            title="The ends of both searches",
            header=("loss", "folds", "validation AUC", "minus CE [95 %]"),
            lines=_ends,
        ),
        Table(
            title="Lever by lever",
            header=(
                *("loss", "lever", "setting", "validation AUC", "folds", "minus the best [95 %]"),
                *("alpha = 0", "chosen", "cut"),
            ),
            lines=_tried,
        ),
    ),
    figures=_figures,
)
