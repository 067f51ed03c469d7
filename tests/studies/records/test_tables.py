"""Tables of made-up records against means and intervals by hand; what is missing, diverged or cannot be paired."""

import json

import numpy as np
import pytest
from scipy import stats

from deepauc.metrics.intervals import Estimate
from deepauc.studies.records import tables
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.tables import Page, Row, Table, between, counted, differences, study_table, update_summary

CE, AUC_M = [0.70, 0.72, 0.69, 0.71, 0.73], [0.72, 0.75, 0.70, 0.73, 0.75]


def final(study, seed, auc, **more):
    return {
        "study": study,
        "run": f"{study}{seed}",
        "phase": "final",
        "seed": seed,
        "config": {"margin": 0.5, "gamma": 1 / 300, "lr": 0.1},
        "cut": {},
        "fixed": {"network": "R"},
        "auc": {"test": [auc, auc - 0.01, auc + 0.01]},
        "alpha_zero_share": 0.25,
        "seconds": 12.0,
        **more,
    }


def page(*columns):
    rows = (
        Row(labels=("AUC-M",), study="auc_m", versus="ce", paper=(0.715, 0.008)),
        Row(labels=("CE",), study="ce"),
        Row(labels=("never run",), study="focal"),
    )
    table = study_table("mine", title="Cells", labels=("loss",), rows=rows, columns=columns)
    return Page(name="mine", title="Mine", note="A note.", tables=(table,))


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.fixture
def book(tmp_path):
    book = RecordBook(tmp_path / "mine")
    for study, values in (("ce", CE), ("auc_m", AUC_M)):
        for seed, value in enumerate(values):
            book.add(final(study, seed, value))
    return book


def test_means_and_paired_intervals_are_those_by_hand(book, tmp_path):
    made = page(tables.PAPER, tables.MEAN, tables.SETS, tables.PAIRS, tables.DIFFERENCE, tables.VERDICT)
    header, _, *rows = rows_of(made.markdown(tmp_path))
    assert header == ["loss", "paper", "test AUC", "sets", "pairs", "difference [95 %]", "verdict"]
    gain = np.subtract(AUC_M, CE)
    low, high = stats.ttest_1samp(gain, 0).confidence_interval()
    shown = f"{gain.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    mean = f"{np.mean(AUC_M):.3f} ± {np.std(AUC_M, ddof=1):.3f}"
    assert rows == [
        ["AUC-M", "0.715 ± 0.008", mean, "5", "5", shown, "confirmed"],
        ["CE", "-", f"{np.mean(CE):.3f} ± {np.std(CE, ddof=1):.3f}", "5", "-", "-", "-"],
    ]


def test_settings_shares_seconds_and_cuts(book, tmp_path):
    book.add(final("ce", 5, 0.7, config={"lr": 0.3}, cut={"epochs": 2}, first_stage={"seconds": 30.0}))
    made = page(tables.SETTINGS, tables.ALPHA_ZERO, tables.SECONDS, tables.CUT)
    *_, mine, other = rows_of(made.markdown(tmp_path))
    assert mine[1:] == ["margin 0.5, gamma 1/300, lr 0.1", "25.0 %", "12", "-"]
    assert other[1:] == ["margin 0.5, gamma 1/300, lr 0.1; lr 0.3", "25.0 %", "12 + 30", "epochs 2"]


def test_training_auc_and_the_highest_epoch(tmp_path):
    histogram = {"low": 0.0, "high": 1.0, "negative": [5, 3, 1, 0], "positive": [0, 1, 3, 5]}
    more = {"score_histogram": {"train": histogram}}
    for seed, curve in enumerate(([0.5, 0.8, 0.6], [0.5, 0.6, 0.7])):
        RecordBook(tmp_path / "mine").add(final("ce", seed, 0.65, test_curve=curve, **more))
    *_, row = rows_of(page(tables.TRAINING, tables.HIGHEST).markdown(tmp_path))
    pairs = (1 * (5 + 3 / 2) + 3 * (8 + 1 / 2) + 5 * 9) / 81  # inside a bin a pair counts half
    assert row[1:] == [f"{pairs:.2f}", "0.700"]  # of the mean over the sets, not of each


def test_a_missing_set_is_left_out_of_the_pairs_alone(book, tmp_path):
    for seed in (7, 8):
        book.add(final("auc_m", seed, 0.99))
    *_, mine, _ = rows_of(page(tables.SETS, tables.PAIRS, tables.DIFFERENCE).markdown(tmp_path))
    assert mine[1:3] == ["7", "5"]
    assert mine[3].startswith(f"{np.mean(np.subtract(AUC_M, CE)):+.3f} [")
    assert between(book.final("auc_m")[:1], book.final("ce")) is None  # one pair has no interval


def test_other_training_sets_are_refused(book):
    others = [final("auc_m", seed, 0.8) for seed in (10, 11)]
    with pytest.raises(ValueError, match=r"auc_m has \[10, 11\], ce has .* the same training sets"):
        differences(others, book.final("ce"))
    assert differences([], book.final("ce")) == {}


def test_another_network_is_no_pair(book):
    others = [final("auc_m", seed, 0.8, fixed={"network": "D"}) for seed in range(5)]
    assert differences(others, book.final("ce")) == {}


def test_diverged_runs_are_counted(book, tmp_path):
    for study, seed in (("ce", 5), ("focal", 0), ("focal", 1)):
        book.add(final(study, seed, 0.5, failed="the loss is NaN"))
    rows = rows_of(page(tables.MEAN, tables.DIVERGED).markdown(tmp_path))[2:]
    assert [row[2] for row in rows] == ["-", "1", "2"]
    assert rows[2] == ["never run", "-", "2"]
    assert len(rows_of(page(tables.MEAN).markdown(tmp_path))) == 2 + 2  # without that column it has nothing to show


def test_tuning_runs_and_settings_from_elsewhere(book, tmp_path):
    for seed in range(3):
        book.add({"study": "auc_m", "phase": "tuning", "run": f"t{seed}", **({"failed": "NaN"} if seed else {})})
    book.add(final("ce", 0, 0.7, selection={"inherited from": "other"}))
    *_, mine, other = rows_of(page(tables.TUNING).markdown(tmp_path))
    assert (mine[1], other[1]) == ("3, 2 diverged", "from other")


def test_a_page_without_records_and_one_without_titles(tmp_path):
    assert page(tables.MEAN).markdown(tmp_path) == (
        "# Mine\n\nMade from the records by `deepauc study table`.\n\nA note.\n\nNo run is recorded yet.\n"
    )
    table = Table(header=("a", "b"), lines=lambda _: [("1", "2")])
    made = Page(name="mine", title="Mine", note="", tables=(table,)).markdown(tmp_path)
    assert "##" not in made
    assert rows_of(made)[2:] == [["1", "2"]]


def test_counts_go_by_the_intervals():
    found = [Estimate(0.1, 0.05, 0.15), Estimate(0.1, -0.1, 0.3), Estimate(-0.1, -0.2, -0.01)]
    assert counted(found) == {"all": 3, "above": 1, "level": 1, "below": 1}


def test_the_summary_keeps_what_other_pages_have_written(tmp_path):
    update_summary(tmp_path, {"cells": {"C2": {"paper": {"mean": 0.5}}}, "plan": {"base": 1}})
    path = update_summary(tmp_path, {"cells": {"C2": {"best": {"mean": 0.7}, "paper": {"mean": 0.6}}}})
    assert json.loads(path.read_text()) == {
        "cells": {"C2": {"paper": {"mean": 0.6}, "best": {"mean": 0.7}}},
        "plan": {"base": 1},
    }
    made = Page(name="m", title="M", note="", tables=(), figures=lambda _: {"a": {"sets": [1 / 3], "n": 2, "x": None}})
    assert made.summary(tmp_path) == {"a": {"sets": [0.333333], "n": 2, "x": None}}
