"""What docs/choosing.md says of the plan is what results/plan/ has.

One row of FIGURES a sentence: the sentence with a group for each figure, and where the figures come from.
"""

import re
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from deepauc.paper.plan_changes import BASE, SETS
from deepauc.paper.plan_page import Found, differences, recorded
from deepauc.paper.toy import mean_interval

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


FIGURES = [
    (rf"worth {INTERVAL} on PathMNIST .*?, {INTERVAL} on HAM10000 .*? and {INTERVAL} on C2 .*? "
     rf"alone {INTERVAL}, {INTERVAL} and {INTERVAL}\.", quarters),
    (rf"C2 rose from {AUC} to {AUC}, but BreastMNIST, .*? from {AUC} to {AUC}, PneumoniaMNIST stayed at {AUC}, "
     rf"PathMNIST fell from {AUC} to {AUC} and HAM10000 from {AUC} to {AUC}\.", contrastive),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "source"), FIGURES, ids=range(len(FIGURES)))
def test_the_page_quotes_the_record(sentence, source):
    page = " ".join((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").split())
    (quoted,) = re.finditer(sentence, page)
    assert quoted.groups() == source()
