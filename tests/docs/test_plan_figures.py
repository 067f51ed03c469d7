"""What docs/choosing.md says of the plan is what results/plan/ has.

One row of FIGURES a sentence: the sentence with a group for each figure, and where the figures come from.
"""

import re
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from deepauc.metrics.mean_interval import mean_interval
from deepauc.paper.plan_changes import BASE, NOW, PLANNED, SETS
from deepauc.paper.plan_page import WITH_COPIES, Found, differences, recorded, same_network
from deepauc.training.plan import Fingerprint, PlanOptions, make_plan
from deepauc.training.plan_length import LEAST_EPOCHS, MOST_EPOCHS, STEPS

ROOT = Path(__file__).parents[2]
AUC = r"([+-]?\.\d+)"
INTERVAL = rf"{AUC} \[{AUC}, {AUC}\]"
FEW = [name for name, data in SETS.items() if data.few]


@cache
def found() -> Found:
    return recorded(ROOT / "results")


def shown(value: float, *, sign: bool = False) -> str:
    return f"{value:{'+' if sign else ''}.3f}".replace("0.", ".", 1)


def gain(change: str, base: str, *on: str) -> tuple[str, ...]:
    """Mean difference on these sets, and its interval."""
    interval = mean_interval(differences(found(), change, base, list(on)))
    return tuple(shown(value, sign=True) for value in (interval.value, interval.low, interval.high))


def means(on: str, *changes: str) -> tuple[str, ...]:
    return tuple(shown(fmean(found()[on][change].values())) for change in changes)


def quarters() -> tuple[str, ...]:
    changes = ("a quarter positives in both", "a quarter positives in CE")
    return tuple(figure for change in changes for on in FEW for figure in gain(change, BASE, on))


def contrastive() -> tuple[str, ...]:
    first = "contrastive first, 50 epochs"
    assert means("pneumonia", BASE) == means("pneumonia", first)
    by_set = {on: means(on, BASE, first) for on in SETS}
    return (*by_set["C2"], *by_set["breast"], by_set["pneumonia"][0], *by_set["path"], *by_set["ham"])


def left_for_auc() -> tuple[str, ...]:
    """The rule's change beside `now` on four sets, and over them; cross-entropy alone over all five."""
    sets = ("C2", "ham", "path", "pneumonia")
    each = tuple(figure for on in sets for figure in means(on, NOW, PLANNED))
    others = [on for on in SETS if on != "C2"]
    alone = gain("now, CE alone, as long", NOW, *SETS)
    longer = gain("now, CE alone, twice as long", "now, twice as long", *SETS)
    return (*each, *gain(PLANNED, NOW, *SETS), *alone, *longer, *gain(PLANNED, NOW, *others))


def copies() -> tuple[str, ...]:
    """By the same network on each set and over all; between two trainings; of cross-entropy alone."""
    change, alone = WITH_COPIES
    by_set, of_ce = (same_network(ROOT / "results", one) for one in (change, alone))
    each = tuple(shown(fmean(by_set[on]), sign=True) for on in ("breast", "pneumonia", "path", "ham", "C2"))
    assert min(map(fmean, by_set.values())) > 0
    over_all = (mean_interval([x for some in one.values() for x in some]) for one in (by_set, of_ce))
    same, ce = (tuple(shown(x, sign=True) for x in (one.value, one.low, one.high)) for one in over_all)
    return (*each, *same, *gain(change, PLANNED, *SETS), *ce)


def rows_with_time(shape: tuple[int, int, int]) -> str:
    """The most training rows, a tenth positive, in steps of 250, for which a CPU's plan has an AUC stage."""

    def stages(rows: int) -> int:
        counts = {"positives": {"train": (rows // 10,)}, "negatives": {"train": (rows - rows // 10,)}}
        data = Fingerprint(rows={"train": rows}, **counts, shape=shape, file_sizes={}, groups=None)
        return len(make_plan(data, PlanOptions(), "cpu").recipe.stages)

    return f"{max(rows for rows in range(500, 16_000, 250) if stages(rows) == 2):,}"


def rule() -> tuple[str, ...]:
    sizes = ((28, 28, 1), (32, 32, 3), (64, 64, 3))
    return f"{STEPS[0]:,}", str(MOST_EPOCHS[0]), str(LEAST_EPOCHS), *map(rows_with_time, sizes)


FIGURES = [
    (r"it is to have \(([\d,]+) steps, but (\d+) epochs at most\), leaves (\d+) epochs or more .*? up to ([\d,]+) grey "
     r"images of 28 pixels, ([\d,]+) of 32 pixels in colour or ([\d,]+) of 64", rule),
    (rf"C2 rose from {AUC} to {AUC}, HAM10000 from {AUC} to {AUC}, PathMNIST went from {AUC} to {AUC} and "
     rf"PneumoniaMNIST from {AUC} to {AUC}, in all by {INTERVAL}; BreastMNIST .*? above the two by {INTERVAL} over the "
     rf"five sets; with twice the time for either, by {INTERVAL}\. Nearly all of that is C2: without it the rule "
     rf"is worth {INTERVAL},", left_for_auc),
    (rf"worth {INTERVAL} on PathMNIST .*?, {INTERVAL} on HAM10000 .*? and {INTERVAL} on C2 .*? "
     rf"alone {INTERVAL}, {INTERVAL} and {INTERVAL}\.", quarters),
    (rf"C2 rose from {AUC} to {AUC}, but BreastMNIST, .*? from {AUC} to {AUC}, PneumoniaMNIST stayed at {AUC}, "
     rf"PathMNIST fell from {AUC} to {AUC} and HAM10000 from {AUC} to {AUC}\.", contrastive),
    (rf"same network by {AUC} on BreastMNIST, {AUC} on PneumoniaMNIST, {AUC} on PathMNIST, {AUC} on HAM10000 and "
     rf"{AUC} on C2, in all by {INTERVAL}\. .*? differ by {INTERVAL}, .*? alone it is {INTERVAL} by "
     r"the same network\.", copies),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "source"), FIGURES, ids=range(len(FIGURES)))
def test_the_page_quotes_the_record(sentence, source):
    page = " ".join((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").split())
    (quoted,) = re.finditer(sentence, page)
    assert quoted.groups() == source()
