"""results/best.md: what the levers have chosen and why, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.metrics.mean_interval import stratified_interval
from deepauc.models.fusion import ensemble
from deepauc.studies.records import tables as t
from deepauc.studies.records.book import Record
from deepauc.text_tables import auc_text, percent_text
from experiments.benchmarks.page import pooled
from experiments.benchmarks.tables import BenchmarkCell
from experiments.search.cells import BEST_CELLS, FREE, read_ranks
from experiments.search.lever_results import LeverResult, lever_results, longer_first_result
from experiments.search.levers import FOLLOWERS, LOSSES, SET
from experiments.search.menu import MENU, NETWORKS, ROUNDS
from experiments.search.recipe import TITLES

ALL_LOSSES = (*LOSSES, *FOLLOWERS)
FIRST, SECOND = LOSSES  # AUC-M minus cross-entropy
MINUS = f"{FIRST}-{SECOND}"
# Test AUC that AUC-M is to reach, set before the search; C2 and C100: the paper's best with ResNet20 plus .10 and .06.
TARGETS = {"C10-R-1": 0.88, "C10-D-1": 0.91, "C10-R-10": 0.95, "C10-D-10": 0.96, "C2-R-1": 0.856, "C100-R-1": 0.656}
# The same before the second search.
SECOND_TARGETS = {
    **dict.fromkeys(("C10-R-1", "C10-D-1"), 0.885),
    "C2-R-1": 0.89,
    "C100-R-1": 0.67,
    "C10-R-10": 0.95,
    "C10-D-10": 0.955,
    "C10-best-1": 0.91,
    "C2-best-1": 0.91,
    "C100-best-1": 0.69,
}
# Two models of one training set: the first column is the loss of either, in its first or second draw.
PAIRS = {"both": (FIRST, SECOND), **{loss: (loss, f"again-{loss}") for loss in LOSSES}}


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
        raise ValueError("the records to average have different test images: delete those of other data.")
    return [ranks for ranks, _ in kept], labels


def agreement(records: Sequence[Record]) -> float:
    """Mean correlation of two models' ranks."""
    found = _ranks(records)
    assert found is not None
    return fmean(float(np.corrcoef(a, b)[0, 1]) for a, b in combinations(found[0], 2))


def _pairs(books: t.Books, cell: BenchmarkCell) -> dict[str, dict[int, float]]:
    """Test AUC of the average of two models on one training set, by set; only where several sets have both."""
    found = {}
    for name, studies in PAIRS.items():
        first, second = ({r["seed"]: r for r in books(SET).final(f"{cell.name}-{one}")} for one in studies)
        ranks = {seed: averaged_models([first[seed], second[seed]]) for seed in sorted(first.keys() & second.keys())}
        both = {seed: float(auroc(*one)) for seed, one in ranks.items() if one is not None}
        if len(both) > 1:
            found[name] = both
    return found


def _both_losses(books: t.Books) -> Iterator[tuple[str, list[float], dict[str, Estimate[float] | None]]]:
    """Cell; test AUC of the average of both losses' models on one training set, by set; its gain over either."""
    for cell in BEST_CELLS:
        if both := _pairs(books, cell).get("both"):
            finals = {loss: books(SET).final(f"{cell.name}-{loss}") for loss in LOSSES}
            yield (
                cell.name,
                list(both.values()),
                {loss: t.paired(both, t.by_set(records)) for loss, records in finals.items()},
            )


def _gain(cells: Sequence[tuple[BenchmarkCell, dict[str, dict[int, float]]]], loss: str) -> Estimate[float] | None:
    """The average of both losses minus that of two models of one; strata are sets of images."""
    by_cell = []
    for cell, pairs in cells:
        both, one = pairs["both"], pairs.get(loss, {})
        if len(common := sorted(both.keys() & one.keys())) > 1:
            by_cell.append((cell.benchmark, {seed: both[seed] - one[seed] for seed in common}))
    return stratified_interval(by_cell) if by_cell else None


def _averages_of_two(books: t.Books) -> Iterator[tuple[str, dict[str, dict[int, float]], dict[str, Estimate[float]]]]:
    """Cell, the averages of `PAIRS` and what `_gain` says; at last the gains over all cells."""
    cells = [(cell, pairs) for cell in BEST_CELLS if "both" in (pairs := _pairs(books, cell))]
    for name, some in (*((one[0].name, [one]) for one in cells), ("all cells", cells)):
        gains = {loss: gain for loss in LOSSES if (gain := _gain(some, loss)) is not None}
        yield name, some[0][1] if name != "all cells" else {}, gains


def _two_models(books: t.Books) -> Iterator[list[str]]:
    for cell, pairs, gains in _averages_of_two(books):
        if gains:
            shown = (t.mean_text(list(pairs[name].values())) if name in pairs else "-" for name in PAIRS)
            yield [cell, *shown, *(t.interval_text(gains.get(loss)) for loss in LOSSES)]


def _of_the_menu(books: t.Books) -> Iterator[list[str]]:
    """Of the second search, the best settings of each round first; then the networks."""
    for loss in LOSSES:
        axes = {**{f"menu-{loss}-{turn}": tuple(MENU[loss]) for turn in ROUNDS}, f"networks-{loss}": tuple(NETWORKS[0])}
        for name, own in axes.items():
            tried: dict[str, list[Record]] = {}
            for record in books(SET).tuning(name):
                tried.setdefault(t.settings_text(record["config"]), []).append(record)
            lines = []
            for runs in tried.values():
                aucs = [record["auc"]["validation"][0] for record in runs if "failed" not in record]
                setting = t.settings_text({axis: runs[0]["config"][axis] for axis in own})
                mean = f"{fmean(aucs):.4f}" if len(aucs) == len(runs) else f"diverged on {len(runs) - len(aucs)}"
                lines.append([name, setting, str(len(runs)), mean])
            yield from sorted(lines, key=lambda line: "" if "diverged" in line[3] else line[3], reverse=True)


def _averages(books: t.Books) -> Iterator[list[str]]:
    for cell in BEST_CELLS:
        beside = books(SET).final(f"{cell.name}-{SECOND}")
        for loss in ALL_LOSSES:
            records = books(SET).final(f"{cell.name}-{loss}")
            mine, other = averaged_models(records), averaged_models(beside)
            if mine is not None:
                found, minus = auroc_interval(*mine), "-"
                if loss != SECOND and other is not None and len(records) == len(beside):
                    by_test = compare_auroc(mine[0], other[0], mine[1])
                    minus = t.interval_text(Estimate(*map(float, (by_test.difference, by_test.low, by_test.high))))
                shown = auc_text(float(found.value), float(found.low), float(found.high))
                yield [cell.name, TITLES[loss], str(len(records)), shown, minus, f"{agreement(records):.2f}"]


def _decided(books: t.Books) -> Iterator[tuple[str, LeverResult]]:
    for loss in ALL_LOSSES:
        yield from ((loss, found) for found in lever_results(books(SET), loss) if found.tried)
    for loss in LOSSES:
        if (found := longer_first_result(books(SET), loss)).tried:
            yield loss, found


def _chosen(books: t.Books) -> Iterator[list[str]]:
    for loss, found in _decided(books):
        chosen = t.settings_text(found.chosen) if found.chosen else "open"
        again = "yes" if found.trained_again else ""
        yield [TITLES[loss], found.lever.name, chosen, t.interval_text(found.gain()), again]


def _tried(books: t.Books) -> Iterator[list[str]]:
    for loss, found in _decided(books):
        for tried in found.tried:
            diverged = sum(value is None for value in tried.aucs.values())
            yield [
                *(TITLES[loss], found.lever.name, t.settings_text(tried.setting)),
                f"{tried.mean:.4f}" if tried.complete else f"diverged on {diverged}",
                *(str(len(tried.aucs)), t.interval_text(found.difference(tried))),
                "-" if tried.alpha_zero is None else percent_text(tried.alpha_zero),
                "yes" if tried is found.end else "",
            ]


def _ends(books: t.Books) -> Estimate[float] | None:
    """Of both searches, on the folds that both have."""
    first, second = (lever_results(books(SET), loss)[-1].end for loss in LOSSES)
    return None if first is None or second is None else t.paired(first.values, second.values)


def _pooled(books: t.Books) -> Estimate[float] | None:
    return pooled(books(SET), BEST_CELLS, lambda cell, loss: f"{cell.name}-{loss}", (FIRST, SECOND))


def _together(books: t.Books) -> Iterator[list[str]]:
    for what, found in (("test, all cells", _pooled(books)), ("validation, the ends of both searches", _ends(books))):
        if found is not None:
            yield [what, t.interval_text(found)]


def _figures(books: t.Books) -> t.Figures:
    """cells.CELL.best: the average of both losses; best-average: of two models, whichever; best: the searches, and all
    cells together."""
    parts: list[t.Figures] = []
    for cell, both, gains in _both_losses(books):
        found: t.Figures = {"both": {"mean": fmean(both), "sets": both}}
        found |= {f"both-{loss}": t.interval_figures(gain) for loss, gain in gains.items() if gain is not None}
        parts += [{"cells": {cell: {"best": found}}}, {"best": {"targets": {cell: TARGETS.get(cell)}}}]
    for loss, one in _decided(books):
        lever: t.Figures = {
            "settings": [dict(tried.setting) for tried in one.tried],
            "means": [tried.mean if tried.complete else None for tried in one.tried],
            "chosen": None if one.chosen is None else dict(one.chosen),
        }
        if (gain := one.gain()) is not None:
            lever["gain"] = t.interval_figures(gain)
        parts.append({"best": {"levers": {loss: {one.lever.name: lever}}}})
    for cell, pairs, over in _averages_of_two(books):
        two: t.Figures = {name: {"mean": fmean(a.values()), "sets": list(a.values())} for name, a in pairs.items()}
        two |= {f"both-{loss}": t.interval_figures(gain) for loss, gain in over.items()}
        if two:
            parts.append({"cells": {cell: {"best-average": two}}} if pairs else {"best": {"average": two}})
    if parts:
        parts.append({"best": {"second_targets": SECOND_TARGETS}})
    named = {"end": _ends(books), "pooled": _pooled(books)}
    parts += [{"best": {n: {MINUS: t.interval_figures(one)}}} for n, one in named.items() if one is not None]
    return t.merged(parts)


PAGE = t.Page(
    name=SET,
    title="One recipe for few positives",
    note=(
        "The first selection is by cross-validation inside training sets 100 and 101 of C10 at 1 % with ResNet20, "
        "five folds each; the second starts from it, on sets 102 and 103 of C10, C2 and C100, and counts once it is "
        "complete; the sets reported are 0 to 4, and the setting is used unchanged in all other cells. A fold's first "
        "stage sees the other four folds only; positives removed to make the imbalance are seen by no stage. Levers "
        "come in a fixed order, each with what those before it have chosen: the simplest setting whose paired "
        "difference to the best is within one standard error over the folds. Cross-entropy has the same number of "
        "settings and runs. Folds of one training set share images, so the intervals of the levers are somewhat too "
        "narrow."
    ),
    tables=(
        t.study_table(
            SET,
            title="Test AUC",
            note=(
                "Of the last epoch, or of the averaged weights where that was selected; with `tta`, of the mean over "
                "copies of the image. `target`: set before the first search, then before the second. `difference`: "
                "AUC-M minus cross-entropy, paired, with a 95 % t-interval. `s per run`: its share of a pack on an "
                "H200, then that of the first stage. Where `alpha = 0` is 0 %, AUC-M is the square loss with margin m."
            ),
            labels=("cell", "loss", "paper's AUC-M", "target", "second target"),
            rows=tuple(
                t.Row(
                    labels=(
                        *(cell.name, TITLES[loss]),
                        "-" if cell.network == FREE else f"{cell.published('auc_m')[0]:.3f}",
                        *(f"{one[cell.name]:.3f}" if cell.name in one else "-" for one in (TARGETS, SECOND_TARGETS)),
                    ),
                    study=f"{cell.name}-{loss}",
                    versus=f"{cell.name}-{SECOND}" if loss == FIRST else None,
                    key=("cells", cell.name, "best", loss),
                )
                for cell in BEST_CELLS
                for loss in ALL_LOSSES
            ),
            columns=(t.MEAN, t.SETS, t.DIFFERENCE, t.ALPHA_ZERO, t.SECONDS, t.CUT),
        ),
        t.Table(
            title="AUC-M minus cross-entropy",
            note="Test: pooled as in `paper-tables.md`. Validation: on the folds that both have chosen on.",
            header=("where", "mean [95 %]"),
            lines=_together,
        ),
        t.Table(
            title="Averages over training sets",
            note=(
                "One model of all training sets: ranks over the test images, averaged, with DeLong's interval; minus "
                "CE's by paired DeLong. Such an average has seen several times the positives of one model. "
                "`agreement`: mean correlation of two models' ranks."
            ),
            header=("cell", "loss", "sets", "test AUC [95 %]", "minus CE's [95 %]", "agreement"),
            lines=_averages,
        ),
        t.Table(
            title="Averages of both losses",
            note=(
                "AUC-M and CE trained on the same set, after the same first stage; gains paired over the sets. Looked "
                "at after the runs; nothing in it is chosen."
            ),
            header=("cell", "sets", "both", *(f"minus {TITLES[loss]} [95 %]" for loss in LOSSES)),
            lines=lambda books: [
                [cell, str(len(both)), t.mean_text(both), *map(t.interval_text, gains.values())]
                for cell, both, gains in _both_losses(books)
            ],
        ),
        t.Table(
            title="Averages of two models",
            note=(
                "Of one training set, after the same first stage: both losses, or one loss with two draws of the "
                "second stage's random numbers. Over all cells as above."
            ),
            header=(
                *("cell", "AUC-M and CE", *(f"two {TITLES[loss]}" for loss in LOSSES)),
                *(f"both minus two {TITLES[loss]} [95 %]" for loss in LOSSES),
            ),
            lines=_two_models,
        ),
        t.Table(
            title="The second search, then the networks",
            note=(
                "Settings drawn from one menu, the best eight and then the best three tried on more folds; mean "
                "validation AUC over the folds."
            ),
            header=("study", "setting", "folds", "validation AUC"),
            lines=_of_the_menu,
        ),
        t.Table(
            title="What decides",
            note=(
                "`gain`: what was chosen minus the simplest setting of the lever, paired over the folds that chose "
                "it, so somewhat too high. `again`: a fold's settings begin with two trainings of the same first "
                "stage, which a GPU does not repeat to the bit."
            ),
            header=("loss", "lever", "chosen", "gain [95 %]", "again"),
            lines=_chosen,
        ),
        t.Table(
            title="Lever by lever",
            header=(
                *("loss", "lever", "setting", "validation AUC", "folds", "minus the best [95 %]"),
                *("alpha = 0", "chosen"),
            ),
            lines=_tried,
        ),
    ),
    figures=_figures,
)
