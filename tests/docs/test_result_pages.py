"""What results/ holds is what its records make: `make figures` leaves the pages and summary.json as they are."""

import json
from pathlib import Path

import pytest

from experiments import bags
from experiments.figures import entries, recorded, summary_of

RESULTS = Path(__file__).parents[2] / "results"
RECORDED = list(recorded())


def test_most_studies_have_records():
    assert {"paper-tables", "ablations", "medical", "chest", "chest-printed", "best", "plan", "toy"} <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_the_page_is_what_its_records_make(name):
    written = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert entries()[name].markdown(RESULTS) == written, f"run `deepauc study table {name}`"


def test_the_page_of_bags_is_what_its_records_make():
    assert bags.page(RESULTS) == (RESULTS / "bags.md").read_text(encoding="utf-8"), "run `python -m experiments.bags`"


def test_the_summary_is_what_the_records_make():
    written = json.loads((RESULTS / "summary.json").read_text(encoding="utf-8"))
    assert written == summary_of(recorded().values())
    studies = {"cells", "contrasts", "ablations", "medical", "best", "plan", "objectives-cpu", "notebook", "causes"}
    others = {"pretrained", "speed", "rules", "large_table", "gammas", "momentum", "folds", "bags"}
    assert studies | others == written.keys()
