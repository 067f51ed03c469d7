"""Figures that the pages mark with a name (experiments/figures.py) are those of results/summary.json.

Below, what some pages say in words is held against the records. A test that fails here says that a record or a rule has
moved on: `make figures`, or write the page anew.
"""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from deepauc.metrics.comparison import compare_auroc
from deepauc.studies.records.book import RecordBook
from experiments import figures
from experiments.benchmarks.tables import paper_tables
from experiments.search.levers import lever_name
from experiments.search.page import TARGETS, agreement, averaged_models

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MARK = figures.MARK
BEST = ("C10-R-1", "C2-R-1", "C100-R-1", "C10-D-1")
"""Cells of `best` that have been run."""


def record(path: str) -> dict:
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def best_cell(cell: str, loss: str) -> list[float]:
    """Test AUC of a cell of `best`, by training set."""
    runs = RecordBook(RESULTS / "best").final(f"{cell}-{loss}")
    assert [run["seed"] for run in runs] == list(range(5))
    return [run["auc"]["test"][0] for run in runs]


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_marked_figures_are_those_of_the_summary(page):
    text = page.read_text(encoding="utf-8")
    assert figures.renewed(text, record("summary.json")) == text, "run `make figures`"


def test_the_pages_have_marks():
    assert sum(len(MARK.findall(page.read_text(encoding="utf-8"))) for page in figures.PAGES) > 100


SUMMARY = {
    "cells": {"C2": {"ce": {"mean": 0.73456}, "auc_m": {"mean": 0.8}, "sets": [0.5, 0.25]}, "n": 1200},
    "minus": {"mean": 0.0123, "low": -0.0041, "high": 0.02},
    "share": 0.0846,
}


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("an AUC of .700<!-- fig: cells.C2.ce.mean -->.", "an AUC of .735<!-- fig: cells.C2.ce.mean -->."),
        ("| C2, 1 % | .1, **.2** <!-- fig: cells.C2.{ce,auc_m}.mean --> |",
         "| C2, 1 % | .735, **.800** <!-- fig: cells.C2.{ce,auc_m}.mean --> |"),
        ("by +.1\n  [-.1, +.2]<!-- fig: minus -->", "by +.012 [-.004, +.020]<!-- fig: minus -->"),
        ("by +.012\n  [-.004, +.020]<!-- fig: minus -->", "by +.012\n  [-.004, +.020]<!-- fig: minus -->"),
        ("at 8 %<!-- fig: share:.1% --> of 5<!-- fig: cells.n -->",
         "at 8.5 %<!-- fig: share:.1% --> of 1,200<!-- fig: cells.n -->"),
        (".1 and .2<!-- fig: cells.C2.sets:.2f -->", ".50 and .25<!-- fig: cells.C2.sets:.2f -->"),
        ("took 0.1<!-- fig: share:0.2f --> ms", "took 0.08<!-- fig: share:0.2f --> ms"),
    ],
)  # fmt: skip
def test_a_figure_that_has_moved_on_is_rewritten(page, expected):
    assert figures.renewed(page, SUMMARY) == expected
    assert figures.renewed(expected, SUMMARY) == expected


def test_a_name_may_begin_with_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    (tmp_path / "some").mkdir()
    record = {"auc": {"both, sigmoid": {"value": 0.8857, "low": 0.84, "high": 0.9}}, "seconds": 159.2}
    (tmp_path / "some" / "run-64.json").write_text(json.dumps(record))
    page = "took 1<!-- fig: some/run-64.seconds:.0f --> s: +.1 [-.1, +.2]<!-- fig: some/run-64.auc.both_sigmoid -->"
    renewed = figures.renewed(page, {})
    assert renewed.startswith("took 159<!--")
    assert "s: +.886 [+.840, +.900]<!--" in renewed
    with pytest.raises(ValueError, match=r"results/some/run-64.json has no 'auk' there"):
        figures.renewed(".7<!-- fig: some/run-64.auk -->", {})


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (".7<!-- fig: cells.C3.ce.mean -->", "has no 'C3' there"),
        ("C2 has <!-- fig: cells.C2.ce.mean -->", "1 figures are named, but 0 stand before the mark"),
        (".7<!-- fig: cells.C2.ce -->", "is no figure but dict"),
    ],
)
def test_a_mark_without_a_figure_is_refused(page, message):
    with pytest.raises(ValueError, match=message):
        figures.renewed(page, SUMMARY)


def test_a_free_alpha_went_below_0_at_no_step():
    """As findings/auc-m.md says."""
    for network in ("D", "R"):
        runs = RecordBook(RESULTS / "ablations").final(f"A5-{network}-alpha-free")
        assert [run["alpha_negative_share"] for run in runs] == [0.0] * 5


def test_raw_scores_do_not_train_densenet():
    """Four of five runs diverged within two epochs, as findings/settings.md says."""
    book = RecordBook(RESULTS / "ablations")
    name = "A2-D-C2_1-raw"
    assert (sorted(run["seed"] for run in book.diverged(name)), len(book.final(name))) == ([0, 1, 3, 4], 1)
    steps = [int(re.search(r"stopped at step (\d+)", run["failed"])[1]) for run in book.diverged(name)]
    assert max(steps) < 2 * (10_101 // 128)


def test_with_a_quota_alpha_was_0_at_no_step_of_the_search():
    """As best.md says."""
    book = RecordBook(RESULTS / "best")
    runs = [run for lever in range(1, 13) for run in book.tuning(lever_name("auc_m", lever))]
    assert {run["alpha_zero_share"] for run in runs if run["config"].get("positives") != 0} == {0.0}
    assert max(run["alpha_zero_share"] for run in runs) > 0  # without one, at a few


def test_which_loss_is_above_in_the_cells_of_best():
    """AUC-M reaches the target in one; averaged models are below cross-entropy's in three, and more alike: best.md."""
    book = RecordBook(RESULTS / "best")
    reached = [cell for cell in BEST if fmean(best_cell(cell, "auc_m")) >= TARGETS[cell]]
    assert reached == ["C2-R-1"]
    averaged = {cell: [averaged_models(book.final(f"{cell}-{loss}")) for loss in ("auc_m", "ce")] for cell in BEST}
    found = [compare_auroc(mine[0], other[0], mine[1]) for mine, other in averaged.values()]
    assert sum(one.high < 0 for one in found) == 3
    for cell in BEST:
        alike, other = (agreement(book.final(f"{cell}-{loss}")) for loss in ("auc_m", "ce"))
        assert alike > other


def test_the_table_of_unbounded_scores_is_the_measured_one():
    measured = [
        " ".join(row.split()) for row in (RESULTS / "unbounded-scores.md").read_text().splitlines() if "|" in row
    ]
    assert len(measured) == 8
    page = " ".join((ROOT / "docs" / "findings" / "settings.md").read_text(encoding="utf-8").split())
    assert all(row in page for row in measured if "---" not in row)


def test_the_cell_to_begin_with_is_one_cell():
    (cell,) = re.findall(
        r"study run experiments/paper.py paper-tables --cells (\S+)", (ROOT / "docs" / "reproduce.md").read_text()
    )
    assert {study.name.rsplit("-", 2)[0] for study in paper_tables().chosen([cell])} == {"C10-R-1"}
