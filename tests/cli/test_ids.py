"""Patients, rows and categories that are written in two ways, through the commands: one patient, or a caution."""

import csv
import json
import shutil

import numpy as np
import pytest

from deepauc.data.packed.sets import open_packed

TABLE = ("--feature-column", "x", "--label-column", "y", "--group-column", "patient")
SHORT = ("--epochs", "1")
LOOK_THE_SAME = {
    "decomposed": ("Jos\u00e9 {}", "Jose\u0301 {}"),
    "zero width": ("P{}", "P\u200b{}"),
    "byte order mark": ("P{}", "\ufeffP{}"),
    "two blanks": ("P {}", "P  {}"),
    "full width": ("P1{}", "P\uff11{}"),
}
MAYBE_ALIKE = {
    "decimal": ("{}", "{}.0"),
    "zeros": ("{}", "00{}"),
    "capitals": ("P{}", "p{}"),
    "Cyrillic": ("P{}", "\u0420{}"),
}


def patients(forms, count=60):
    """Two rows for each patient, one in each form."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(10, 10 + count):
        label = int(number % 3 == 0)
        rows += [{"x": draw.normal(label), "y": label, "patient": form.format(number)} for form in forms]
    return rows


def scores(run):
    with (run / "scores.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("forms", LOOK_THE_SAME.values(), ids=LOOK_THE_SAME)
def test_patients_whose_names_look_the_same_are_in_one_part(deepauc, no_report, tmp_path, write_table, forms):
    table = write_table(tmp_path / "t.csv", patients(forms))
    code, said, _ = deepauc("train", "--table", table, *TABLE, "--out", tmp_path / "run", *SHORT)
    assert code == 0
    assert "none found" in said
    rows = scores(tmp_path / "run")
    parts = {}
    for row in rows:
        parts.setdefault(row["group"], set()).add(row["part"])
    assert len(parts) == 60
    assert all(len(part) == 1 for part in parts.values())
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["data"]["groups"] == 60
    assert record["possible_leaks"] == 0


@pytest.mark.parametrize("forms", MAYBE_ALIKE.values(), ids=MAYBE_ALIKE)
def test_patients_who_may_be_one_get_a_caution_with_examples(deepauc, tmp_path, write_table, forms):
    table = write_table(tmp_path / "t.csv", patients(forms))
    code, said, _ = deepauc("data", "check", table, *TABLE, "--json")
    assert code == 0
    (alike,) = json.loads(said)["alike"]
    assert (alike["what"], alike["column"], alike["count"]) == ("group", "patient", 60)
    assert alike["examples"][0] == [form.format(10) for form in forms]
    shown = [repr(form.format(10)) for form in forms]
    _, said, _ = deepauc("data", "check", table, *TABLE)
    assert all(name in said for name in shown)

    code, said, _ = deepauc("train", "--table", table, *TABLE, "--out", tmp_path / "run", *SHORT)
    assert code == 0
    assert "none found" not in said
    assert all(name in said for name in shown)
    possible = json.loads((tmp_path / "run" / "run.json").read_text())["possible_leaks"]
    assert 10 < possible <= 60
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    (note,) = report["notes"]
    assert all(name in note for name in shown)  # of the scores: the first patients there
    assert report["leaks"]["patients_in_two_parts"] == 0
    assert report["leaks"]["possible"] == possible
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(name in page.replace("&#39;", "'").replace("&#x27;", "'") for name in shown)


def test_a_patient_in_two_splits_is_found_under_another_form_of_the_name(deepauc, tmp_path, write_table):
    rows = [{**row, "split": ("train", "test")[i % 2]} for i, row in enumerate(patients(("é{}", "e\u0301{}")))]
    table = write_table(tmp_path / "t.csv", rows)
    code, said, _ = deepauc("data", "check", table, *TABLE, "--split-column", "split", "--json")
    assert code == 2
    assert {problem["kind"] for problem in json.loads(said)["problems"]} == {"patient in two splits"}


def test_split_values_and_row_ids_are_read_in_one_form(deepauc, tmp_path, write_table):
    rows = patients(("P{}",))
    for number, row in enumerate(rows):
        row |= {"name": f"r{number}", "split": ("train", "\ufefftest")[number % 2]}
    words = (*TABLE, "--id-column", "name", "--split-column", "split", "--json")
    code, said, _ = deepauc("data", "check", write_table(tmp_path / "t.csv", rows), *words)
    assert (code, json.loads(said)["parts"]) == (0, {"train": 30, "test": 30})
    rows[7]["name"] = "r3\u200b"
    code, said, _ = deepauc("data", "check", write_table(tmp_path / "t.csv", rows), *words)
    assert code == 2
    assert [problem["kind"] for problem in json.loads(said)["problems"]] == ["duplicate id"]
    rows[7]["name"] = "R3"
    code, said, _ = deepauc("data", "check", write_table(tmp_path / "t.csv", rows), *words)
    (alike,) = json.loads(said)["alike"]
    assert (code, alike["what"], alike["examples"]) == (0, "id", [["r3", "R3"]])


def metadata_words(folder):
    columns = ("--metadata-column", "sex", "--label-column", "y", "--group-column", "patient", "--id-column", "name")
    return "--table", folder / "t.csv", *columns, "--out", folder / "run", *SHORT


@pytest.fixture
def metadata_run(deepauc, tmp_path, write_table):
    rows = patients(("P{}", "P{}"))
    for number, row in enumerate(rows):
        row |= {"name": f"r{number}", "sex": (" m", "f", "m\u200b", "M")[number % 4]}
    write_table(tmp_path / "t.csv", rows)
    code, said, errors = deepauc("train", *metadata_words(tmp_path))
    assert (code, errors) == (0, "")
    return tmp_path / "run", rows, said


def test_categories_in_two_ways_are_told(metadata_run):
    run, _, said = metadata_run
    assert "'m' and 'M'" in said
    (column,) = json.loads((run / "bundle.json").read_text())["metadata"]["columns"]
    assert column["categories"] == ["M", "f", "m"]
    (note,) = json.loads((run / "report.json").read_text())["notes"]
    assert "'m' and 'M'" in note


def test_categories_in_two_ways_are_told_in_subgroups_and_as_json(deepauc, metadata_run, tmp_path, write_table):
    run, rows, _ = metadata_run
    sites = [{"id": row["name"], "site": ("Ulm", "ulm", "1", "1.0")[i % 4]} for i, row in enumerate(rows)]
    sites = write_table(tmp_path / "sites.csv", sites)
    code, said, _ = deepauc("report", run, "--metadata", sites, "--out", tmp_path / "by-site", "--json")
    assert code == 0
    notes = json.loads((tmp_path / "by-site" / "report.json").read_text())["notes"]
    assert [note for note in notes if "'site'" in note and "'Ulm' and 'ulm'" in note]
    code, said, _ = deepauc("train", *metadata_words(tmp_path), "--json")
    assert code == 0
    assert [one["examples"] for one in json.loads(said)["alike"]] == [[["m", "M"]]]


def test_categories_that_training_did_not_have_are_counted_by_predict(deepauc, metadata_run, tmp_path, write_table):
    run, rows, _ = metadata_run
    new = [{"name": f"n{i}", "sex": sex} for i, sex in enumerate(["\u200bm", "F", "F", "diverse", ""])]
    words = ("predict", run, "--table", write_table(tmp_path / "new.csv", new), "--id-column", "name")
    code, said, _ = deepauc(*words, "--out", tmp_path / "s.csv", "--json")
    assert (code, json.loads(said)["unseen_categories"]) == (0, {"sex": {"F": 2, "diverse": 1}})
    _, said, _ = deepauc(*words, "--out", tmp_path / "s.csv")
    assert "'F' (2), 'diverse' (1)" in said
    known = [{"name": row["name"], "sex": "m"} for row in rows]
    words = ("predict", run, "--table", write_table(tmp_path / "known.csv", known), "--id-column", "name")
    assert json.loads(deepauc(*words, "--out", tmp_path / "s.csv", "--json")[1])["unseen_categories"] == {}


def test_rows_of_an_older_run_are_known_whatever_their_form(deepauc, metadata_run, tmp_path, write_table):
    run, rows, _ = metadata_run
    older = tmp_path / "older"
    shutil.copytree(run, older)
    record = json.loads((older / "run.json").read_text())
    (older / "run.json").write_text(json.dumps({name: record[name] for name in record if name != "sha256"}))
    with (older / "scores.csv").open("w", newline="", encoding="utf-8") as file:  # as it was written once
        writer = csv.DictWriter(file, list(scores(run)[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "id": row["id"].replace("r", "r\u200b")} for row in scores(run))
    table = write_table(tmp_path / "again.csv", [{"name": f" {row['name']}", "sex": "f"} for row in rows])
    words = ("--table", table, "--id-column", "name", "--parts", "--out", tmp_path / "s.csv", "--json")
    code, said, _ = deepauc("predict", older, *words)
    learnt = sum(row["part"] != "test" for row in scores(run))
    assert (code, json.loads(said)["rows_seen_in_training"]) == (0, learnt)
    words = ("evaluate", older / "scores.csv", "--part", "test", "--json")
    assert (
        json.loads(deepauc(*words)[1])["results"]
        == json.loads(deepauc("evaluate", run / "scores.csv", *words[2:])[1])["results"]
    )


def test_compare_joins_rows_whose_ids_look_the_same(deepauc, tmp_path, write_table):
    rows = [{"id": f"é {i}", "label": i % 2, "score": (i * 7) % 20, "group": f"g{i // 2}"} for i in range(20)]
    odd = [{**row, "id": row["id"].replace("é ", "e\u0301  "), "group": f"\ufeff{row['group']}"} for row in rows[::-1]]
    a, b = write_table(tmp_path / "a.csv", rows), write_table(tmp_path / "b.csv", odd)
    code, said, _ = deepauc("compare", a, b, "--json")
    assert code == 0
    assert "joined on 20 ids" in said


def test_an_older_packed_set_is_read_in_one_form(deepauc, tmp_path, write_table, monkeypatch):
    table = write_table(tmp_path / "t.csv", patients(("P{}", "P\u200b{}")))
    with monkeypatch.context() as patch:  # as sets were packed once
        patch.setattr("deepauc.data.table.compact.one_form", str.strip)
        patch.setattr("deepauc.data.task.in_one_form", lambda names: names)
        assert deepauc("data", "pack", table, *TABLE, "--out", tmp_path / "set")[0] == 0
        assert len(set(open_packed(tmp_path / "set").task().groups.tolist())) == 120
    assert len(set(open_packed(tmp_path / "set").task().groups.tolist())) == 60
