"""The pages in results/ are what their records make: `deepauc study table NAME` leaves each as it is."""

from pathlib import Path

import pytest

from deepauc.paper.catalogue import entries

RESULTS = Path(__file__).parents[2] / "results"
RECORDED = [name for name in entries() if (RESULTS / f"{name}.jsonl").exists() or name == "toy"]


def test_most_studies_have_records():
    assert {"paper-tables", "ablations", "medical", "chest", "chest-printed", "best", "plan", "toy"} <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_the_page_is_what_its_records_make(name):
    written = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    made = entries()[name].table(RESULTS)
    assert made == written, f"run `deepauc study table {name}`"
