"""The page's list of what is declared and not run, against the count that `study status` has."""

import re
from pathlib import Path

import pytest

from deepauc.paper.best import TITLES
from deepauc.paper.best_levers import FOLLOWERS, LEVERS, LOSSES, best_set, lever_name
from deepauc.paper.best_not_run import not_run_section
from deepauc.studies.records import RecordBook
from deepauc.studies.status import status_of

RESULTS = Path(__file__).parents[2] / "results"


def rows_of(section):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in section[-1].splitlines()[2:]]


@pytest.fixture(scope="module")
def missing():
    """Of the records of this repository: runs missing by study."""
    found = status_of(best_set(), best_set().studies, RESULTS)
    return {one.study: (one.to_tune - one.tuned - one.failed) + (one.seeds - one.final) for one in found}


def test_what_is_missing_is_what_is_declared_and_has_no_record(missing):
    rows = rows_of(not_run_section(RecordBook(RESULTS / "best")))
    told = {}
    for what, runs, minutes in rows:
        assert re.fullmatch(r"\d+", minutes)  # both networks and AUC-M's search have records
        for loss in (*LOSSES, *FOLLOWERS):
            if what == f"search of {TITLES[loss]}":
                told[lever_name(loss, len(LEVERS[loss]))] = int(runs.split(" of ")[0])
            elif found := re.search(rf"(?:^|, ){TITLES[loss]} (\d+)", runs):
                told[f"{what}-{loss}"] = int(found[1])
    assert told == {study: count for study, count in missing.items() if count}


def test_without_records_nothing_is_estimated_and_no_follower_can_begin(tmp_path):
    rows = rows_of(not_run_section(RecordBook(tmp_path)))
    assert all(minutes == "-" for *_, minutes in rows)
    assert not any(what.startswith("search") for what, *_ in rows)
