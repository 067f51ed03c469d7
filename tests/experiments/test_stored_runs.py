"""Every stored run has the name that today's code would give it."""

from pathlib import Path

import pytest

from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import read_named
from deepauc.training.plain import from_plain, recipe_hash, run_id
from experiments.figures import entries

RESULTS = Path(__file__).parents[2] / "results"
SETS = [name for name, entry in entries().items() if entry.cells and (RESULTS / f"{name}.jsonl").exists()]


def stored(name):
    books = [RecordBook(RESULTS / name, other=other) for other in ("", *RecordBook(RESULTS / name).others())]
    return [record for book in books for record in book.everything()]


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


def test_results_stay_small():
    """Records of 4,414 runs took 33 MB in 1,488 files once."""
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    runs = sum(len(stored(name)) for name in SETS)
    runs += sum(len(read_named(RESULTS / f"{name}.jsonl")) for name in ("bags", "folds"))  # of benchmarks, with a name
    assert len(files) <= 60 + 2 * 5  # records and page of each study with the releases' settings
    assert sum(path.stat().st_size for path in files) <= 16_000_000 + 3_000 * (runs - 4_414)
