"""Files of records: any order, duplicates, cut-off lines, several processes, arrays beside them."""

import random
import subprocess
import sys

import numpy as np
import pytest

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import compare_auroc
from deepauc.metrics.intervals import auroc_interval
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import append, dense_ranks, read_named

RECIPE = {"type": "Recipe", "model": {"type": "MLPSpec"}}


def a_record(run="r", seed=0, phase="final", **more):
    about = {"set": "s", "study": "é", "phase": phase, "run": run, "seed": seed}
    return {**about, "config": {"lr": 0.1}, "fixed": {}, "recipe": RECIPE, "auc": {"test": [0.5, 0.4, 0.6]}, **more}


def test_what_runs_share_is_written_once(tmp_path):
    book = RecordBook(tmp_path / "s")
    for seed in range(3):
        book.add(a_record(f"r{seed}", seed))
    assert book.path == tmp_path / "s.jsonl"
    assert book.path.read_text().count("MLPSpec") == 1
    assert RecordBook(tmp_path / "s.jsonl").final("é") == [a_record(f"r{seed}", seed) for seed in range(3)]


def test_lines_in_any_order_and_twice(tmp_path):
    book = RecordBook(tmp_path / "s")
    for auc in (0.1, 0.2, 0.3):
        book.add(a_record(auc={"test": [auc]}))
        book.add(a_record("t", phase="tuning", auc={"validation": [auc]}))
    book.add(a_record("x", failed="NaN"))
    book.add(a_record("y", 1))
    book.set_aside_other_settings({**a_record("z", 2), "config": {"lr": 0.3}})
    book.add(a_record("z", 2, config={"lr": 0.3}))
    lines = book.path.read_text().splitlines()
    for number in range(20):
        mixed = random.Random(number).choices(lines, k=10) + random.Random(number).sample(lines, k=len(lines))
        (tmp_path / "s.jsonl").write_text("\n".join(mixed) + "\n\n")
        found = RecordBook(tmp_path / "s")
        assert found.final("é") == [a_record("z", 2, config={"lr": 0.3})]
        assert found.tuning("é") == [a_record("t", phase="tuning", auc={"validation": [0.3]})]
        assert found.diverged("é") == [a_record("x", failed="NaN")]
        assert sorted(one["run"] for one in found.everything() if one.get("replaced")) == ["r", "y"]
        assert found.studies() == ["é"]


def test_a_tuple_in_a_setting_is_the_list_that_the_file_has(tmp_path):
    RecordBook(tmp_path / "s").add(a_record("a", fixed={"milestones": (2, 4)}))
    book, later = RecordBook(tmp_path / "s"), a_record("b", 1, fixed={"milestones": (2, 4)})
    book.set_aside_other_settings(later)
    book.add(later)
    assert [one["run"] for one in book.final("é")] == ["a", "b"]


def test_an_argument_may_be_fixed_in_one_record_and_inherited_in_another(tmp_path):
    book = RecordBook(tmp_path / "s")
    book.add(a_record("a", fixed={"momentum": 0.0}))
    book.set_aside_other_settings(a_record("b", 1, config={"lr": 0.1, "momentum": 0.0}))
    assert [one["run"] for one in book.final("é")] == ["a"]
    book.set_aside_other_settings(a_record("b", 1, config={"lr": 0.1, "momentum": 0.9}))
    assert book.final("é") == []


def test_a_record_stays_the_later_one_when_the_clock_goes_back(tmp_path, monkeypatch):
    book = RecordBook(tmp_path / "s")
    book.add(a_record(auc={"test": [0.1]}))
    monkeypatch.setattr("time.time", lambda: 1.0)
    book.add(a_record(auc={"test": [0.2]}))
    assert RecordBook(tmp_path / "s").final("é") == [a_record(auc={"test": [0.2]})]


def test_a_record_whose_write_was_cut_off_is_not_believed_and_costs_no_other(tmp_path):
    path = tmp_path / "s.jsonl"
    records = [a_record(str(number), phase="tuning") for number in range(3)]
    for record in records[:2]:
        RecordBook(path).add(record)
    good = path.read_bytes()
    second = good[:-1].rfind(b"\n") + 1
    for end in range(second, len(good)):
        path.write_bytes(good[:end])
        there = records[: 1 + (end == len(good) - 1)]  # only the newline is missing
        assert RecordBook(path).tuning("é") == there
        RecordBook(path).add(records[2])
        assert RecordBook(path).tuning("é") == [*there, records[2]]
    path.write_bytes(good[: second - 5] + good[second:])
    with pytest.raises(ValueError, match="line 3, is damaged"):
        RecordBook(path).tuning("é")


def test_two_processes_write_at_once(tmp_path):
    program = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from deepauc.studies.records.book import RecordBook\n"
        "book = RecordBook(Path(sys.argv[1]))\n"
        "for n in range(200):\n"
        "    more = {'test_scores': {'plain': np.arange(3) + n}} if n % 20 == 0 else {}\n"
        "    book.add({'study': sys.argv[2], 'phase': 'tuning', 'run': str(n), 'recipe': {'n': n}, **more})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, tmp_path / "s", name]) for name in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    book = RecordBook(tmp_path / "s")
    for name in "ab":
        found = book.tuning(name)
        assert [(one["run"], one["recipe"]) for one in found] == [(str(n), {"n": n}) for n in range(200)]
        assert np.asarray(found[180]["test_scores"]["plain"]).tolist() == [180, 181, 182]
    assert book.path.read_text().count('"key"') == 200


def test_arrays_lie_beside_the_records_once(tmp_path):
    truth, scores = np.arange(6) % 2, np.linspace(0, 1, 6).astype("f4")
    book = RecordBook(tmp_path / "s")
    for seed in (0, 1):
        book.add(a_record(f"r{seed}", seed, test_scores={"labels": 1, "truth": truth, "plain": scores + seed}))
    with np.load(tmp_path / "s.npz") as found:
        assert len(found.files) == 3
    one, two = RecordBook(tmp_path / "s").final("é")
    assert np.array_equal(np.asarray(two["test_scores"]["plain"]), scores + 1)
    assert one["test_scores"]["truth"] == two["test_scores"]["truth"]
    RecordBook(tmp_path / "copy").add(two)
    (tmp_path / "s.npz").unlink()
    assert RecordBook(tmp_path / "s").final("é")[0]["auc"] == one["auc"]  # needs no scores
    with pytest.raises(ValueError, match="get both files of one commit"):
        np.asarray(one["test_scores"]["plain"])
    (copied,) = RecordBook(tmp_path / "copy").final("é")
    assert np.array_equal(np.asarray(copied["test_scores"]["plain"]), scores + 1)


@pytest.mark.parametrize("rows", [40, 70_000])
def test_ranks_give_the_same_aucs_and_tests_to_the_last_digit(rows):
    generator = np.random.default_rng(0)
    labels, groups = generator.integers(0, 2, rows), generator.integers(0, rows // 3, rows)
    a, b = (np.round(generator.normal(size=rows) + labels, 2 if rows < 100 else 6).astype("f4") for _ in range(2))
    ranks = [dense_ranks(scores) for scores in (a, b)]
    assert ranks[0].dtype == (np.uint16 if rows < 65_536 else np.uint32)
    exact = [scores.astype(np.float64) for scores in (a, b)]
    again = [scores.astype(np.float64) for scores in ranks]
    assert auroc(again[0], labels) == auroc(exact[0], labels)
    for some in (None, groups):
        assert auroc_interval(again[0], labels, groups=some) == auroc_interval(exact[0], labels, groups=some)
        assert compare_auroc(*again, labels, groups=some) == compare_auroc(*exact, labels, groups=some)
    both = dense_ranks(np.stack([a, b], axis=1))
    assert np.array_equal(both, np.stack(ranks, axis=1))


def test_runs_with_other_settings_are_apart(tmp_path):
    book = RecordBook(tmp_path / "s")
    book.add(a_record("r0"))
    book.add(a_record("r9", set="s/lr=0.3"))
    assert RecordBook(tmp_path / "s").others() == ["lr=0.3"]
    for other, run in (("", "r0"), ("lr=0.3", "r9")):
        assert [one["run"] for one in RecordBook(tmp_path / "s", other=other).final("é")] == [run]


def test_named_records(tmp_path):
    for value in (1, 2):
        append(tmp_path / "speed.jsonl", {"name": "cpu", "rows": [value], "versions": {"torch": "2"}})
    assert read_named(tmp_path / "speed.jsonl") == {"cpu": {"name": "cpu", "rows": [2], "versions": {"torch": "2"}}}
