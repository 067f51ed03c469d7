"""Pages of `reproduction`: the paper's figures beside ours, its claim cell by cell, what each cause does.

The claim is that AUC-M ranks better than cross-entropy; a cell confirms or refutes it where its interval leaves out 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

from deepauc.metrics.intervals import Estimate
from deepauc.studies.records import tables as t
from deepauc.studies.records.book import Record, RecordBook
from deepauc.studies.study import StudySet
from experiments.benchmarks import reproduction
from experiments.benchmarks.page import COMPARED, pooled, tried_settings
from experiments.benchmarks.recipes import TITLES
from experiments.benchmarks.reproduction import ABLATIONS, NETWORKS
from experiments.benchmarks.tables import LOSSES, PAPER_CELLS, BenchmarkCell

RECIPE_NAMES = {"untuned": "released-untuned", "tuned": "released", "fair": "fair"}  # in results/summary.json
COLUMNS = (t.MEAN, t.SETS, t.ALPHA_ZERO, t.TRAINING, t.SECONDS, t.SETTINGS, t.TUNING, t.CUT, t.DIVERGED)
LEAST_MISS = {"C2": 0.02}  # its pixels are others than the paper's
WHERE = {f"{network}-{percent}": (network, percent) for network in NETWORKS for percent in (1, 10)}
BELOW = (
    "`level with the paper`: our mean of AUC-M is at least the paper's minus the larger of its standard deviation and "
    ".01 (C2, which has other pixels: .02). `AUC-M - CE`: paired by training set, 95 % t-interval; the claim that it "
    "is above 0 is confirmed or refuted where the interval leaves out 0."
)


def study_of(kind: str, cell: BenchmarkCell, loss: str) -> str:
    """Cross-entropy has no printed grid: untuned and tuned are one."""
    return cell.study_name("untuned" if (kind, loss) == ("tuned", "ce") else kind, loss)


def paper_table(set_name: str, kind: str, *, title: str) -> t.Table:
    """Rows and losses as the paper prints them."""

    def cells(books: t.Books) -> Iterator[tuple[BenchmarkCell, dict[str, list[Record]], Estimate[float] | None]]:
        for cell in sorted(PAPER_CELLS, key=lambda one: (one.percent, one.network)):
            finals = {loss: books(set_name).final(study_of(kind, cell, loss)) for loss in LOSSES}
            if finals["auc_m"]:
                yield cell, finals, t.between(finals["auc_m"], finals["ce"]) if finals["ce"] else None

    def lines(books: t.Books) -> Iterator[list[str]]:
        for cell, finals, found in cells(books):
            shown = [text for loss in LOSSES for text in _beside(cell, loss, finals[loss])]
            verdict = "-" if found is None else t.judged(found)
            yield [cell.name, *shown, _level(cell, finals["auc_m"]), t.interval_text(found), verdict]

    def figures(books: t.Books) -> t.Figures:
        return t.merged(
            {"cells": {cell.name: {RECIPE_NAMES[kind]: {"auc_m-ce": t.interval_figures(found)}}}}
            for cell, _, found in cells(books)
            if found is not None
        )

    header = [f"{TITLES[loss]}{whose}" for loss in LOSSES for whose in (", paper", ", ours")]
    closing = ("level with the paper", "AUC-M - CE [95 %]", "verdict")
    return t.Table(title=title, note=BELOW, header=("cell", *header, *closing), lines=lines, figures=figures)


def _beside(cell: BenchmarkCell, loss: str, records: Sequence[Record]) -> tuple[str, str]:
    ours = t.mean_text(list(t.by_set(records).values())) if records else "-"
    return " ± ".join(f"{value:.3f}" for value in cell.published(loss)), ours


def _level(cell: BenchmarkCell, records: Sequence[Record]) -> str:
    mean, sd = cell.published("auc_m")
    reached = fmean(t.by_set(records).values()) >= mean - max(sd, LEAST_MISS.get(cell.benchmark, 0.01))
    return "yes" if reached else "no"


Contrast = tuple[str, str, tuple[str, str], Estimate[float], int]


def contrasts(book: RecordBook, kinds: Sequence[str]) -> Iterator[Contrast]:
    """Kind, network and imratio, pair of losses; over the cells that have both, and how many these are."""
    for kind in kinds:
        for where, (network, percent) in WHERE.items():
            cells = [one for one in PAPER_CELLS if (one.network, one.percent) == (network, percent)]
            for pair in COMPARED:
                both = [cell for cell in cells if all(len(book.final(study_of(kind, cell, loss))) > 1 for loss in pair)]
                found = pooled(book, both, partial(study_of, kind), pair)
                if found is not None:
                    yield kind, where, pair, found, len(both)


def pooled_table(set_name: str, kinds: Sequence[str]) -> t.Table:
    """Pooled over the cells of a network and imratio."""

    def lines(books: t.Books) -> Iterator[list[str]]:
        for kind, where, pair, found, count in contrasts(books(set_name), kinds):
            minus = " - ".join(TITLES[loss] for loss in pair)
            yield [kind, where, minus, str(count), t.interval_text(found), t.judged(found)]

    def figures(books: t.Books) -> t.Figures:
        return t.merged(
            {"contrasts": {RECIPE_NAMES[kind]: {where: {"-".join(pair): t.interval_figures(found) | {"cells": count}}}}}
            for kind, where, pair, found, count in contrasts(books(set_name), kinds)
        )

    return t.Table(
        title="Pooled over cells",
        note=(
            "Mean of the cells' means with a 95 % t-interval stratified by set of images. `fair`'s contrast that was "
            "named before any run is AUC-M - CE at 1 %, one for each network."
        ),
        header=("settings", "network and %", "difference", "cells", "pooled [95 %]", "verdict"),
        lines=lines,
        figures=figures,
    )


def _all_studies(studies: StudySet, kinds: Sequence[str]) -> t.Table:
    rows = []
    for study in studies.studies:
        *cell, kind, loss = study.name.split("-")
        key = ("cells", "-".join(cell), RECIPE_NAMES[kind], loss) if kind in kinds else ()
        rows.append(t.Row(labels=(study.name,), study=study.name, key=key))
    return t.study_table(studies.name, title="All studies", labels=("study",), rows=rows, columns=COLUMNS)


def _tried(set_name: str, studies: Sequence[str]) -> t.Table:
    def lines(books: t.Books) -> Iterator[list[str]]:
        for name in studies:
            tried = tried_settings(books(set_name), name)
            for setting, values in sorted(tried.items(), key=lambda item: -fmean(item[1])):
                yield [name, setting, str(len(values)), t.mean_text(values)]

    note = "Mean ± standard deviation over the tuning sets, which no final run has (numbers 100 and up)."
    header = ("study", "setting", "sets", "validation AUC")
    return t.Table(title="What tuning saw", note=note, header=header, lines=lines)


def released_page() -> t.Page:
    """The paper's two tables, untuned and with what the printed grids give."""
    studies = reproduction.released_set()

    def untuned(books: t.Books) -> t.Figures:
        """`released` of a loss with nothing to tune, or not tuned yet: its untuned runs, whose `settings` are empty."""
        book = books("released")
        parts = []
        for cell, loss in ((cell, loss) for cell in PAPER_CELLS for loss in LOSSES):
            runs = book.final(cell.study_name("untuned", loss))
            if runs and not book.final(cell.study_name("tuned", loss)):
                parts.append({"cells": {cell.name: {"released": {loss: t.figures_of(runs)}}}})
        return t.merged(parts)

    return t.Page(
        name="released",
        title=studies.title,
        note=(
            "Test AUC of the last epoch, mean ± standard deviation over random training sets. Where m = 1 lies beyond "
            "the reach of normalised scores alpha is never 0, and untuned AUC-M is AUC-S."
        ),
        tables=(
            paper_table("released", "tuned", title="With m and gamma from the printed grids"),
            paper_table("released", "untuned", title="Untuned: m 1, gamma 1/500"),
            pooled_table("released", ("tuned", "untuned")),
            _all_studies(studies, ("untuned", "tuned")),
            _tried("released", [study.name for study in studies.studies if study.tuned]),
        ),
        figures=untuned,
    )


def fair_page() -> t.Page:
    """Every loss with sixteen settings of one menu."""
    studies = reproduction.fair_set()
    return t.Page(
        name="fair",
        title=studies.title,
        note=(
            "Sixteen settings a loss, drawn by seed, on two training sets of C2; the best five on two further sets of "
            "C2, C10 and C100 each, where the highest mean validation AUC chooses. Final runs have sets 0 and up."
        ),
        tables=(
            paper_table("fair", "fair", title="The paper's table"),
            pooled_table("fair", ("fair",)),
            t.Table(
                title="The choice made again",
                note=(
                    "The best five were tried on other sets once more. `regret`: validation AUC there of the setting "
                    "that won there, minus that of the chosen one."
                ),
                header=("network", "loss", "chosen", "again", "regret"),
                lines=_choices,
            ),
            _all_studies(studies, ("fair",)),
            _tried("fair", [study.name for study in studies.studies if study.tuned]),
        ),
    )


def _choices(books: t.Books) -> Iterator[list[str]]:
    """By network and loss: what either round chooses, and what the first choice costs in the second."""
    for network in NETWORKS:
        for loss in LOSSES:
            rounds = [tried_settings(books("fair"), f"{network}-fair-{loss}-{turn}") for turn in ("second", "again")]
            means = [{setting: fmean(values) for setting, values in one.items()} for one in rounds]
            if all(means):
                chosen, again = (max(one, key=one.__getitem__) for one in means)
                regret = means[1][again] - means[1][chosen] if chosen in means[1] else None
                yield [network, TITLES[loss], chosen, again, "-" if regret is None else f"{regret:.3f}"]


def _last(name: str) -> Callable[[t.Line], str]:
    """The mean over runs of a column of the history at its last epoch."""

    def text(line: t.Line) -> str:
        values = [record["history"][name][-1] for record in line.final if record["history"].get(name)]
        return f"{fmean(values):.4g}" if values else ""

    return text


def causes_page() -> t.Page:
    """What is undone, one at a time, beside the base of its loss."""
    studies = reproduction.causes()
    rows = []
    for study in studies.studies:
        cell, _, change = study.name.partition("-causes-")
        loss, _, cause = change.partition("-")
        base = None if cause == "base" else f"{cell}-causes-{loss}-base"
        rows.append(
            t.Row(
                labels=(cell, TITLES[loss], cause),
                study=study.name,
                versus=base,
                key=("causes", cell.replace("-", "_"), loss, cause),
            )
        )
    columns = (t.MEAN, t.PAIRS, t.DIFFERENCE)
    watched = (t.Column("train AUC", _last("train_auc")), t.Column("|w|²", _last("weight_square")))
    return t.Page(
        name=studies.name,
        title=studies.title,
        note=(
            "`base` is the releases' settings; every other row undoes one of them. `difference`: to the base of the "
            "same loss, paired by training set, 95 % t-interval. `train AUC` (of the scores the loss saw) and `|w|²` "
            "(of the layers' weights) are those of the last epoch."
        ),
        tables=(
            t.study_table(
                studies.name,
                labels=("cell", "loss", "undone"),
                rows=rows,
                columns=(*columns, *watched, t.ALPHA_ZERO, t.SECONDS, t.CUT, t.DIVERGED),
            ),
            t.Table(
                title="AUC-M minus CE under the same change",
                header=("cell", "undone", "AUC-M - CE [95 %]", "verdict"),
                lines=_cause_lines,
                figures=_cause_figures,
            ),
        ),
    )


def _under_each_cause(books: t.Books) -> Iterator[tuple[str, str, Estimate[float]]]:
    """Also AUC-M's base beside the two forms of CE that separate the loss from its weights."""
    pairs = {name: (name, name) for name in reproduction.BOTH_CAUSES}
    pairs |= {"decay": ("decay", "decay"), "CE weighted": ("base", "prior_weights"), "CE at a third": ("base", "third")}
    for cell in ("C2-D-1", "C10-D-1"):
        for title, (mine, theirs) in pairs.items():
            names = f"{cell}-causes-auc_m-{mine}", f"{cell}-causes-ce-{theirs}"
            finals = [books("causes").final(name) for name in names]
            found = t.between(*finals) if all(finals) else None
            if found is not None:
                yield cell, title, found


def _cause_lines(books: t.Books) -> Iterator[list[str]]:
    for cell, title, found in _under_each_cause(books):
        yield [cell, title, t.interval_text(found), t.judged(found)]


def _cause_figures(books: t.Books) -> t.Figures:
    """causes.CELL.auc_m-ce.CHANGE, with _ for what a path cannot hold."""
    return t.merged(
        {"causes": {re.sub(r"\W", "_", cell): {"auc_m-ce": {title.replace(" ", "_"): t.interval_figures(found)}}}}
        for cell, title, found in _under_each_cause(books)
    )


VERSUS: Mapping[str, str] = {"auc_m": "auc_s", "auc_m_reachable": "auc_s", "l2": "sigmoid", "constrained": "free"}


def ablations_page() -> t.Page:
    """A2 to A5: each claim's first study beside its second."""
    studies = reproduction.released_ablations()
    rows = []
    for study in studies.studies:
        place, _, last = study.name.rpartition("-")
        other = f"{place}-{VERSUS[last]}" if last in VERSUS else None
        rows.append(t.Row(labels=(study.name,), study=study.name, versus=other, key=(ABLATIONS, study.name)))
    columns = (t.MEAN, t.SETS, t.DIFFERENCE, t.VERDICT, t.ALPHA_ZERO, t.HIGHEST, t.SECONDS, t.CUT, t.DIVERGED)
    return t.Page(
        name=studies.name,
        title=studies.title,
        note=(
            "`difference`: AUC-M to AUC-S, normalised scores to a sigmoid, alpha >= 0 to a free alpha; paired by "
            "training set, 95 % t-interval. `reachable`: m = 0.1, at which alpha does reach 0."
        ),
        tables=(t.study_table(studies.name, labels=("study",), rows=rows, columns=columns),),
    )


def notebook_page() -> t.Page:
    """One study, its training AUC beside the test AUC."""
    studies = reproduction.notebook()
    row = t.Row(labels=("ours",), study=studies.studies[0].name, key=("notebook", "auc_m"))
    watched = t.Column("train AUC", _last("train_auc"))
    return t.Page(
        name=studies.name,
        title=studies.title,
        note="The notebook prints a test AUC of .895 at the last epoch, and a training AUC of .976 (June 2022).",
        tables=(
            t.study_table(
                studies.name,
                labels=("whose",),
                rows=(row,),
                columns=(t.MEAN, t.SETS, watched, t.HIGHEST, t.ALPHA_ZERO, t.SECONDS, t.CUT),
            ),
        ),
    )


PAGES: Mapping[str, t.Page] = {
    one.name: one for one in (notebook_page(), released_page(), causes_page(), fair_page(), ablations_page())
}
