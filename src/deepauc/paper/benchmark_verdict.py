"""The verdict on the benchmark tables, made of records: is the paper's order AUC-M, AUC-S, CE confirmed or refuted?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev
from typing import Literal

from deepauc.metrics.mean_interval import MeanInterval, mean_interval
from deepauc.paper.benchmark_settings import learning_rate_inherited
from deepauc.paper.benchmark_tables import CELLS, LOSSES, REMARKS, Cell
from deepauc.paper.recipes import RECIPES, TITLES
from deepauc.reporting.tables import markdown_table
from deepauc.studies.records import Record, RecordBook

COMPARED = (("auc_m", "ce"), ("auc_m", "auc_s"), ("auc_s", "ce"))
IMRATIOS = (1, 10)
Judgement = Literal["confirmed", "refuted", "open"]

# ResNet20 on C10 at 10 %, one seed, as printed in LibAUC's own notebooks.
LIBAUC_CELL = Cell(benchmark="C10", network="R", percent=10)
LIBAUC = {"compositional training, last epoch": 0.917, "CE, then AUC-M": 0.912}

ABOUT = (
    "The paper's claim is the order AUC-M above AUC-S above CE. A difference is paired by training set; a cell "
    "confirms or refutes it where its 95 % t-interval leaves out 0. `pooled`: the mean of the cells' means, with a "
    "95 % t-interval whose variance is that between training sets inside a set of images (C10, C2, C100 are strata; "
    "both networks on one training set count as one draw; degrees of freedom by Welch and Satterthwaite). It speaks "
    "of these cells with other training sets, not of other images; the test images are fixed; nothing is adjusted for "
    "the number of comparisons."
)


def judged(interval: MeanInterval) -> Judgement:
    """By an interval of what should be above 0."""
    if interval.low > 0:
        return "confirmed"
    return "refuted" if interval.high < 0 else "open"


@dataclass(frozen=True)
class Difference:
    """One loss minus another in a cell, by training set, at least two of them."""

    cell: Cell
    first: str
    second: str
    by_set: Mapping[int, float]

    @property
    def sets(self) -> int:
        return len(self.by_set)

    @property
    def mean(self) -> float:
        return fmean(self.by_set.values())

    @property
    def interval(self) -> MeanInterval:
        return mean_interval(list(self.by_set.values()))

    @property
    def verdict(self) -> Judgement:
        return judged(self.interval)


def paired(book: RecordBook, cell: Cell, recipe: str, first: str, second: str) -> Difference | None:
    """Test AUC of `first` minus `second`, training set by training set; None with fewer than two in common."""
    a, b = (
        {record["seed"]: record["auc"]["test"][0] for record in book.final(cell.study_name(recipe, loss))}
        for loss in (first, second)
    )
    common = sorted(set(a) & set(b))
    if len(common) < 2:
        return None
    return Difference(cell, first, second, {seed: a[seed] - b[seed] for seed in common})


def pooled(differences: Sequence[Difference]) -> MeanInterval:
    """Mean of the cells' means with the stratified 95 % t-interval.

    A stratum is a set of images, its draws are training sets s. With d_cs the difference in cell c, n_c sets in it and
    C cells, u_s = sum_c (d_cs - mean_c) / (C n_c) is what a training set adds, and a stratum of n sets has the
    variance v = n/(n - 1) sum_s u_s²: with the same sets in all its cells that of the mean of their averages. Degrees
    of freedom: (sum v)² / sum v²/(n - 1) over strata.
    """
    from scipy import stats

    cells = len(differences)
    variances, freedoms = [], []
    by_images = sorted(differences, key=lambda one: one.cell.benchmark)
    for _, group in groupby(by_images, key=lambda one: one.cell.benchmark):
        added: dict[int, float] = {}
        for one in group:
            for seed, value in one.by_set.items():
                added[seed] = added.get(seed, 0.0) + (value - one.mean) / (cells * one.sets)
        variances.append(len(added) / (len(added) - 1) * math.fsum(u * u for u in added.values()))
        freedoms.append(len(added) - 1)
    mean, total = fmean(one.mean for one in differences), math.fsum(variances)
    if not total:
        return MeanInterval(mean, mean, mean)
    freedom = total**2 / math.fsum(v * v / n for v, n in zip(variances, freedoms, strict=True))
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)
    return MeanInterval(mean, mean - half, mean + half)


def interval_text(found: MeanInterval) -> str:
    """`+0.012 [-0.003, +0.027]`."""
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


@dataclass(frozen=True)
class Order:
    """The paper's order over some cells; differences by pair of losses."""

    cells: tuple[Cell, ...]
    differences: Mapping[tuple[str, str], tuple[Difference, ...]]

    @property
    def verdict(self) -> Judgement:
        """Confirmed where both steps of the order are; refuted where any of the three differences is."""
        found = {pair: judged(pooled(some)) for pair, some in self.differences.items() if some}
        if "refuted" in found.values():
            return "refuted"
        steps = [found.get(pair) for pair in (("auc_m", "auc_s"), ("auc_s", "ce"))]
        return "confirmed" if steps == ["confirmed", "confirmed"] else "open"


def order_of(book: RecordBook, cells: Sequence[Cell], recipe: str) -> Order | None:
    """None where no cell has a pair."""
    found = {
        pair: tuple(one for cell in cells if (one := paired(book, cell, recipe, *pair)) is not None)
        for pair in COMPARED
    }  # fmt: skip
    names = {one.cell.name for some in found.values() for one in some}
    return Order(tuple(cell for cell in cells if cell.name in names), found) if names else None


def verdict_section(book: RecordBook) -> list[str]:
    """Markdown; nothing where no cell has two losses."""
    parts, rows = [], []
    for recipe in RECIPES:
        for percent in IMRATIOS:
            cells = [cell for cell in CELLS if cell.percent == percent]
            order = order_of(book, cells, recipe)
            if order is not None:
                parts.append(_order_text(book, order, recipe, percent))
                rows += [row for cell in cells if (row := _cell_row(book, cell, recipe))]
    if not parts:
        return []
    header = ("cell", "recipe", "paper's AUC-M", "our AUC-M", "reached", "best loss", "lead over the next [95 %]")
    return [
        "## Verdict",
        ABOUT,
        *parts,
        "### Cell by cell",
        "`best loss`: the highest mean test AUC of those recorded; its lead is paired over training sets. "
        + _reached_text(book),
        markdown_table(header, rows),
        *_libauc(book),
    ]


def _order_text(book: RecordBook, order: Order, recipe: str, percent: int) -> str:
    """A heading, the verdict in a sentence, the table of the three differences."""
    untuned = [cell for cell in order.cells if _lr_inherited(book, cell, recipe)]
    tuned = [cell for cell in order.cells if cell not in untuned]
    verdict = (
        f"At {percent} % the order AUC-M, AUC-S, CE is **{order.verdict}** with recipe `{recipe}` "
        f"({_counted(len(order.cells), 'cell')}: {', '.join(cell.name for cell in order.cells)}): "
        f"{_differences_text(order)}."
    )
    rows = _order_rows(order, "all")
    own = order_of(book, tuned, recipe) if untuned else None
    if own is not None:
        names = ", ".join(cell.name for cell in untuned)
        verdict += (
            f" Without {names}, where the learning rate was tuned for another network, it is **{own.verdict}**: "
            f"{_differences_text(own)}."
        )
        rows += _order_rows(own, f"without {names}")
    header = ("difference", "cells", "confirmed", "refuted", "open", "pooled [95 %]", "cell means", "verdict")
    parts = [f"### {percent} %, recipe `{recipe}`", verdict, *_alpha_text(book, order, recipe)]
    return "\n\n".join([*parts, markdown_table(header, rows)])


def _differences_text(order: Order) -> str:
    return "; ".join(
        f"{TITLES[first]} is {side_text(found)} {TITLES[second]}, {interval_text(found)}"
        for (first, second), some in order.differences.items()
        if some
        for found in [pooled(some)]
    )


def side_text(found: MeanInterval) -> str:
    """Of the first loss to the second, by the interval of their difference."""
    return {"confirmed": "above", "refuted": "below", "open": "not told apart from"}[judged(found)]


def _order_rows(order: Order, scope: str) -> list[list[str]]:
    rows = []
    for (first, second), some in order.differences.items():
        if not some:
            continue
        by_verdict: dict[Judgement, list[str]] = {"confirmed": [], "refuted": [], "open": []}
        for one in some:
            by_verdict[one.verdict].append(one.cell.name)
        found = pooled(some)
        means = [one.mean for one in some]
        rows.append(
            [
                f"{TITLES[first]} - {TITLES[second]}",
                f"{len(some)} ({scope})",
                *(f"{len(names)}: {', '.join(names)}" if names else "0" for names in by_verdict.values()),
                interval_text(found),
                f"{min(means):+.3f} to {max(means):+.3f}",
                judged(found),
            ]
        )
    return rows


def _alpha_text(book: RecordBook, order: Order, recipe: str) -> list[str]:
    """AUC-M differs from a square loss with margin m only where alpha gets to 0."""
    shares = {
        cell.name: fmean(r["alpha_zero_share"] for r in records)
        for cell in order.cells
        if (records := [r for r in _final(book, cell, recipe, "auc_m") if r["alpha_zero_share"] is not None])
    }
    never = [name for name, share in shares.items() if not share]
    if not never:
        return []
    return [
        f"AUC-M's alpha was 0 at no step in {len(never)} of {_counted(len(shares), 'cell')} ({', '.join(never)}): "
        "there it is the square loss with margin m, and its difference to AUC-S is one of m and of the other settings, "
        "not of the constraint alpha >= 0."
    ]


def _cell_row(book: RecordBook, cell: Cell, recipe: str) -> list[str]:
    """Empty with fewer than two losses."""
    means = {
        loss: fmean(r["auc"]["test"][0] for r in records)
        for loss in LOSSES
        if (records := _final(book, cell, recipe, loss))
    }
    if len(means) < 2:
        return []
    best, following = sorted(means, key=lambda loss: -means[loss])[:2]
    lead = paired(book, cell, recipe, best, following)
    missing = [TITLES[loss] for loss in LOSSES if loss not in means]
    remark = f" ({REMARKS[cell.benchmark]})" if cell.benchmark in REMARKS else ""
    published = cell.published("auc_m")[0]
    return [
        cell.name + remark,
        recipe,
        f"{published:.3f}",
        f"{means['auc_m']:.3f}" if "auc_m" in means else "not run",
        ("yes" if means["auc_m"] >= published else "no") if "auc_m" in means else "-",
        f"{TITLES[best]} {means[best]:.3f}" + (f" (without {', '.join(missing)})" if missing else ""),
        f"{TITLES[following]}: " + ("-" if lead is None else interval_text(lead.interval)),
    ]


def _reached_text(book: RecordBook) -> str:
    """How many cells reach the paper's AUC-M, and which loss is best how often; by recipe and imratio."""
    sentences = []
    for recipe in RECIPES:
        for percent in IMRATIOS:
            cells = [cell for cell in CELLS if cell.percent == percent and _final(book, cell, recipe, "auc_m")]
            if not cells:
                continue
            ours = {
                cell.name: {
                    loss: fmean(r["auc"]["test"][0] for r in records)
                    for loss in LOSSES
                    if (records := _final(book, cell, recipe, loss))
                }
                for cell in cells
            }
            reached = [cell.name for cell in cells if ours[cell.name]["auc_m"] >= cell.published("auc_m")[0]]
            whole = {name: means for name, means in ours.items() if len(means) == len(LOSSES)}
            best = [max(means, key=lambda loss: means[loss]) for means in whole.values()]
            counts = {TITLES[loss]: best.count(loss) for loss in LOSSES if loss in best}
            sentence = (
                f"At {percent} % `{recipe}` reaches the paper's AUC-M mean in {len(reached)} of "
                f"{_counted(len(cells), 'cell')}" + (f" ({', '.join(reached)})" if reached else "")
            )
            if counts:
                ranking = ", ".join(f"{name} in {count}" for name, count in counts.items())
                sentence += f"; of the four losses the best is {ranking} of {len(whole)}"
            sentences.append(sentence + ".")
    return " ".join(sentences)


def _libauc(book: RecordBook) -> list[str]:
    """Ours beside what LibAUC's authors have published for one cell."""
    ours = []
    for loss in LOSSES:
        values = [r["auc"]["test"][0] for r in _final(book, LIBAUC_CELL, "paper", loss)]
        if values:
            above = [name for name, value in LIBAUC.items() if fmean(values) > value]
            side = "above both" if len(above) == len(LIBAUC) else f"above {above[0]}" if above else "below both"
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            ours.append(f"{TITLES[loss]} {fmean(values):.3f}{spread} ({side})")
    if not ours:
        return []
    printed = " and ".join(f"{value:.3f} ({name})" for name, value in LIBAUC.items())
    return [
        f"LibAUC's own notebooks print for ResNet20 on C10 at 10 %, one seed: {printed}. Ours in {LIBAUC_CELL.name}, "
        f"recipe `paper`, means over training sets: {', '.join(ours)}."
    ]


def _lr_inherited(book: RecordBook, cell: Cell, recipe: str) -> bool:
    compared = sorted({loss for pair in COMPARED for loss in pair})
    return any(learning_rate_inherited(cell, recipe, loss, _final(book, cell, recipe, loss)) for loss in compared)


def _final(book: RecordBook, cell: Cell, recipe: str, loss: str) -> list[Record]:
    return book.final(cell.study_name(recipe, loss))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
