"""Figures that the pages quote are those of results/summary.json, of other records, or of the code they speak of.

What is marked with a name (experiments/figures.py) is held against the summary. Of a sentence without
marks FIGURES has a row: the page, the sentence with a group for each figure, and where the figures come from.
A test that fails here says that a record or a constant has moved on: `make figures`, or write the new figures.
"""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from deepauc.metrics.comparison import compare_auroc
from deepauc.reporting.evaluation.resamples import FULL, FULL_ROWS
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import read_named
from deepauc.training.plan import first_stage as plan_first_stage
from deepauc.training.plan.cost import multiply_adds
from deepauc.training.plan.decision import Decision as PlanDecision
from deepauc.training.plan.length import BUDGET
from deepauc.training.plan.make import Fingerprint, PlanOptions, make_plan
from deepauc.training.recipe import Recipe
from experiments import figures
from experiments.benchmarks.tables import paper_tables
from experiments.search.decisions import Decision, decisions
from experiments.search.levers import lever_name
from experiments.search.page import TARGETS, agreement, averaged_models

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MARK = figures.MARK
BOOK = RecordBook(RESULTS / "paper-tables")
TUNED = ("C10-R-1", "C2-R-1", "C100-R-1", "C10-R-10", "C2-R-10", "C100-R-10")
MILLIONS = (1_000_000, 5_000_000)


def shown(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """.706 and, as a difference, -.031."""
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("0.", ".", 1)


def signed(*values: float) -> tuple[str, ...]:
    return tuple(shown(value, sign=True) for value in values)


def record(path: str) -> dict:
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def large_table(what: str, rows: int) -> dict:
    (found,) = (one for one in record("large-table.json")["measured"] if (one["what"], one["rows"]) == (what, rows))
    return found


def reading_a_large_table() -> tuple[str, ...]:
    one, five = (large_table("read", rows) for rows in MILLIONS)
    times = one["bytes"] / (8 * 20 * one["rows"])
    first = (f"{one['file_bytes'] / 1e6:.0f}", f"{one['seconds']:.0f}", f"{one['bytes'] / 1e6:.0f}", f"{times:.1f}")
    return *first, f"{five['seconds']:.0f}", f"{five['bytes'] / 1e6:,.0f}"


def samples_of_large_tables() -> tuple[str, ...]:
    ((auc, others),) = {
        (large_table(what, rows)["auc_samples"], large_table(what, rows)["other_samples"])
        for what, rows in product(("report", "report by patient"), MILLIONS)
    }
    return f"{FULL_ROWS:,}", f"{FULL.auc:,}", f"{FULL.others:,}", f"{auc}", f"{others}"


@cache
def tuning(cell: str, loss: str) -> dict[tuple[tuple[str, float], ...], float]:
    """Mean validation AUC by setting."""
    found: dict = {}
    for run in BOOK.tuning(f"{cell}-paper-{loss}"):
        found.setdefault(tuple(sorted(run["config"].items())), []).append(run["auc"]["validation"][0])
    return {setting: fmean(values) for setting, values in found.items()}


def first_rule() -> tuple[str, ...]:
    rule = plan_first_stage
    values = (rule.MOST_OF_RARER_CLASS, rule.LEAST_IMAGES, rule.LARGEST_SIDE, rule.LEAST_EPOCHS)
    return tuple(f"{value:,}" for value in (*values, *rule.MOST_EPOCHS.values()))


def planned_first(rows: int, positives: int, shape: tuple[int, int, int], kind: str) -> tuple[PlanDecision, Recipe]:
    counts = {"positives": {"train": (positives,)}, "negatives": {"train": (rows - positives,)}}
    data = Fingerprint(rows={"train": rows}, **counts, shape=shape, file_sizes={}, groups=None)
    plan = make_plan(data, PlanOptions(), kind)
    (decision,) = [one for one in plan.decisions if one.name == "first stage"]
    return decision, plan.recipe


def first_on_a_gpu() -> tuple[str, ...]:
    """Epochs, images, share of the budget; measured epochs and their seconds."""
    (row,) = read_named(RESULTS / "speed.jsonl")["first-stage"]["rows"]
    _, recipe = planned_first(25_253, 253, (32, 32, 3), "cuda")
    stage = recipe.stages[0]
    assert stage.batch_size == row["batch"]
    images = 25_253 // stage.batch_size * stage.batch_size
    share = 2 * 3 * stage.epochs * images * multiply_adds(recipe.model, (32, 32, 3)) / BUDGET["cuda"]
    budget = f"{share:.0%}".replace("%", " %")
    return str(stage.epochs), "25,253", budget, str(row["epochs"]), f"{row['seconds']:.0f}"


def first_on_a_cpu() -> tuple[str, ...]:
    """The minutes that are named."""
    found = (planned_first(8000, 500, (28, 28, 1), "cpu"), planned_first(25_253, 253, (32, 32, 3), "cpu"))
    return tuple(" or ".join(decision.rests_on["options"]) for decision, _ in found)


def lever(loss: str, name: str) -> Decision:
    (found,) = [one for one in decisions(RecordBook(RESULTS / "best"), loss) if one.lever.name == name]
    assert found.folds == 10
    return found


def gains(name: str) -> tuple[str, ...]:
    """What was chosen minus the simplest setting, for both losses, each with its interval."""
    found = (lever(loss, name).gain() for loss in ("auc_m", "ce"))
    return tuple(text for gain in found for text in signed(gain.value, gain.low, gain.high))


def best_cell(cell: str, loss: str) -> list[float]:
    """Test AUC of a cell of `best`, by training set."""
    runs = RecordBook(RESULTS / "best").final(f"{cell}-{loss}")
    assert [run["seed"] for run in runs] == list(range(5))
    return [run["auc"]["test"][0] for run in runs]


def gammas() -> tuple[str, ...]:
    """AUC-S with gamma 1/300 beside 1/100: better in how many of how many pairs, by how much; by the rate how much."""
    at = {(cell, g, lr): tuning(cell, "auc_s")[("gamma", 1 / g), ("lr", lr)]
          for cell, g, lr in product(TUNED, (100, 300), (0.03, 0.3))}  # fmt: skip
    gains = [at[cell, 300, lr] - at[cell, 100, lr] for cell, lr in product(TUNED, (0.03, 0.3))]
    by_rate = max(abs(at[cell, g, 0.3] - at[cell, g, 0.03]) for cell, g in product(TUNED, (100, 300)))
    worse = [gain for gain in gains if gain <= 0]
    assert len(worse) == 1
    return str(len(gains) - 1), str(len(gains)), shown(max(gains)), shown(-worse[0]), shown(by_rate)


def quotas() -> tuple[str, ...]:
    """What is planned for many rows with 1 % of positives."""
    counts = {"positives": {"train": (1000,)}, "negatives": {"train": (99_000,)}}
    rows = Fingerprint(rows={"train": 100_000}, **counts, shape=(28, 28, 1), file_sizes={}, groups=None)
    plans = [make_plan(rows, PlanOptions(), kind).recipe.stages[-1] for kind in ("cpu", "cuda")]
    return tuple(str(value) for stage in plans for value in (stage.positives_per_batch, stage.batch_size))


def with_momentum() -> tuple[str, ...]:
    runs = [r for r in record("unbounded-scores.json")["runs"] if (r["loss"], r["bound"]) == ("AUC-M, PESG", "sigmoid")]
    return tuple(shown(r["training_auc"], 2) for r in runs if (r["lr"], r["momentum"]) == (0.1, 0.9))


def loss_over_bce() -> tuple[str, ...]:
    (row,) = (row for row in read_named(RESULTS / "speed.jsonl")["cpu"]["rows"]["losses"] if row["size"] == 65_536)
    return (f"{row['over_bce']['AUCMarginLoss']:.2f}",)


def resnet20_steps(*runs: int) -> tuple[str, ...]:
    """Milliseconds a step and run of AUC-M, with so many runs side by side."""
    rows = [row for row in read_named(RESULTS / "speed.jsonl")["fast-step-tiles"]["rows"] if row["engine"] == "fast"]
    steps = {row["runs"]: row["step_ms_a_run"] for row in rows if (row["model"], row["loss"]) == ("ResNet20", "AUC-M")}
    return tuple(f"{steps[count]:.2f}" for count in runs)


AUC = r"([+-]?\.\d+)"
BEST = {
    "C10-R-1": "C10, ResNet20",
    "C2-R-1": "C2, ResNet20",
    "C100-R-1": "C100, ResNet20",
    "C10-D-1": "C10, DenseNet121",
}
"""Cells of `best` that have been run, by what docs/best.md calls them."""
FIGURES = [
    ("choosing.md", r"(\d+) of (\d+) on a CPU, (\d+) of (\d+) on a GPU", quotas),
    ("choosing.md", rf"(\d+) of (\d+) pairs .*?at most {AUC} .*?worse by {AUC} .*?up to {AUC}\.", gammas),
    ("choosing.md", rf"training AUC {AUC} and {AUC} against 1\.00", with_momentum),
    ("choosing.md", r"takes ([\d.]+) times torch's BCE", loss_over_bce),
    ("choosing.md", r"few rows \| ([\d,]+) at most .*? without \| ([\d,]+) at least .*? up to (\d+) pixels .*?"
     r"(\d+) epochs at least, (\d+) at most on a CPU, (\d+) on a GPU", first_rule),
    ("choosing.md", r"a GPU (\d+) epochs on ([\d,]+) images of 32 pixels are (\d+ %) of the budget; "
     r"(\d+) take (\d+) s on an H200",
     first_on_a_gpu),
    ("choosing.md", r"too small for it unless the images are tiny: .*? names `([^`]+)`, .*? in colour `([^`]+)`\.",
     first_on_a_cpu),
    ("scale.md", r"a file of (\d+) MB, took (\d+) s and at most (\d+) MB beside the program itself, ([\d.]+) times the "
     r"numbers in 64 bits; five million took (\d+) s and ([\d,]+) MB\.", reading_a_large_table),
    ("scale.md", r"took (\d+) s for a million rows and (\d+) s for five million \((\d+) s and (\d+) s with patients",
     lambda: tuple(f"{large_table(what, rows)['seconds']:.0f}" for what in ("report", "report by patient")
                   for rows in MILLIONS)),
    ("scale.md", r"Up to ([\d,]+) labelled rows it draws ([\d,]+) bootstrap samples for the AUC and ([\d,]+) for "
     r"bands, .*? from a million on (\d+) and (\d+),", samples_of_large_tables),
    ("scale.md", r"bfloat16 takes ([\d.]+) ms, and ([\d.]+) ms a step and run with 8", lambda: resnet20_steps(1, 8)),
]  # fmt: skip


def text_of(page: str) -> str:
    return " ".join(MARK.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8")).split())


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


@pytest.mark.parametrize(
    ("page", "sentence", "source"), FIGURES, ids=[f"{page}-{n}" for n, (page, *_) in enumerate(FIGURES)]
)
def test_a_page_quotes_the_record(page, sentence, source):
    (found,) = re.finditer(sentence, text_of(page))
    assert found.groups() == source()


def test_a_free_alpha_went_below_0_at_no_step():
    assert "a free alpha went below 0 at no step of five runs with either network" in text_of("choosing.md")
    for network in ("D", "R"):
        runs = RecordBook(RESULTS / "ablations").final(f"A5-{network}-alpha-free")
        assert [run["alpha_negative_share"] for run in runs] == [0.0] * 5


def test_raw_scores_do_not_train_densenet():
    assert "four of five runs diverged within two epochs" in text_of("choosing.md")
    book = RecordBook(RESULTS / "ablations")
    name = "A2-D-C2_1-raw"
    assert (sorted(run["seed"] for run in book.diverged(name)), len(book.final(name))) == ([0, 1, 3, 4], 1)
    steps = [int(re.search(r"stopped at step (\d+)", run["failed"])[1]) for run in book.diverged(name)]
    assert max(steps) < 2 * (10_101 // 128)


def test_with_a_quota_alpha_was_0_at_no_step_of_the_search():
    assert "With a quota of positives alpha was 0 at no step" in text_of("best.md")
    book = RecordBook(RESULTS / "best")
    runs = [run for lever in range(1, 13) for run in book.tuning(lever_name("auc_m", lever))]
    assert {run["alpha_zero_share"] for run in runs if run["config"].get("positives") != 0} == {0.0}
    assert max(run["alpha_zero_share"] for run in runs) > 0  # without one, at a few


def test_which_loss_is_above_in_the_cells_of_best():
    text = text_of("best.md")
    book = RecordBook(RESULTS / "best")
    reached = [cell for cell in BEST if fmean(best_cell(cell, "auc_m")) >= TARGETS[cell]]
    assert reached == ["C2-R-1"]
    assert "it is below that of cross-entropy in three cells" in text
    averaged = {cell: [averaged_models(book.final(f"{cell}-{loss}")) for loss in ("auc_m", "ce")] for cell in BEST}
    found = [compare_auroc(mine[0], other[0], mine[1]) for mine, other in averaged.values()]
    assert sum(one.high < 0 for one in found) == 3
    assert "Models of AUC-M on different training sets are more alike" in text
    for cell in BEST:
        alike, other = (agreement(book.final(f"{cell}-{loss}")) for loss in ("auc_m", "ce"))
        assert alike > other


def test_the_table_of_unbounded_scores_is_the_measured_one():
    measured = [
        " ".join(row.split()) for row in (RESULTS / "unbounded-scores.md").read_text().splitlines() if "|" in row
    ]
    assert len(measured) == 8
    assert all(row in text_of("faq.md") for row in measured if "---" not in row)


def test_the_cell_to_begin_with_is_one_cell():
    (cell,) = re.findall(
        r"study run experiments/paper.py paper-tables --cells (\S+)", (ROOT / "docs" / "reproduce.md").read_text()
    )
    assert {study.name.rsplit("-", 2)[0] for study in paper_tables().chosen([cell])} == {"C10-R-1"}
