"""Every stored run has the name that today's code would give it."""

import json
from pathlib import Path

import pytest

from deepauc.paper.catalogue import entries
from deepauc.training.plain import from_plain, recipe_hash, run_id

RESULTS = Path(__file__).parents[2] / "results"
SETS = [name for name, entry in entries().items() if entry.cells and (RESULTS / name).is_dir()]


def stored(name):
    for path in (RESULTS / name).rglob("*.json*"):
        text = path.read_text(encoding="utf-8")
        yield from map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text])


@pytest.mark.parametrize("name", SETS)
def test_the_name_of_every_stored_run(name):
    count = 0
    for record in stored(name):
        recipe = from_plain(record["recipe"])
        origin = (record["parent"] or "") if "parent" in record else None
        assert run_id(recipe, record["identity"]["data"], record["seed"], origin=origin) == record["run"]
        assert record["identity"].get("recipe") in (recipe_hash(recipe), None)
        count += 1
    assert count
