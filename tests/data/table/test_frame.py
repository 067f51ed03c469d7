"""A DataFrame is read as its csv is, but for its rows, which are counted as `iloc` does; images: `image_root`."""

import datetime
import decimal
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from deepauc.data.table import frame as frame_module
from deepauc.data.table.problems import TableError
from deepauc.data.table.read import check_table, read_inputs, read_table
from deepauc.data.table.rows import read_rows
from tests.data.table.test_table import picture, pictures

DAYS = ["2024-01-01", "2024-01-02", None, "2024-01-01"]
TIMES = ["2024-01-01T00:00:00", "2024-01-02T03:04:05", None, "2024-01-01T00:00:00"]
COLUMNS = {
    "float": [0.1, 1e-5, 1e16, np.nan],
    "float32": np.array([0.1, 1e-5, 1e16, np.nan], dtype=np.float32),
    "int": [1, 2, 3, -4],
    "uint8": np.array([1, 2, 3, 255], dtype=np.uint8),
    "bool": [True, False, True, True],
    "numpy bools as objects": np.array([np.True_, np.False_, None, np.True_], dtype=object),
    "Int64 with NA": pd.array([1, None, 3, 4], dtype="Int64"),
    "boolean with NA": pd.array([True, None, False, True], dtype="boolean"),
    "text": ["a", "b, c", 'd"e', None],
    "a line break in a cell": ["a", "b\nc", "d", "e"],
    "string with NA": pd.array(["a", pd.NA, "", " b "], dtype="string"),
    "categories": pd.Categorical(["x", "y", None, "x"]),
    "categories of numbers": pd.Categorical([1, 2, None, 1]),
    "categories of days": pd.Categorical(pd.to_datetime(DAYS)),
    "days": pd.to_datetime(DAYS),
    "times": pd.to_datetime(TIMES),
    "times in a zone": pd.to_datetime(TIMES).tz_localize("UTC"),
    "durations": pd.to_timedelta(["1 days", "2 days", None, "3 hours"]),
    "months": pd.period_range("2024-01", periods=4, freq="M"),
    "date objects": [datetime.date(2024, 1, 1), None, datetime.date(2024, 1, 3), datetime.date(2024, 1, 1)],
    "decimals": [decimal.Decimal("0.10"), None, 1, 2.5],
    "all sorts": [1, "a", 2.5, pd.NA],
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("rows_at_once", [1, 4096])
def test_cells_are_those_of_the_csv(name, rows_at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(frame_module, "BLOCK_ROWS", rows_at_once)
    frame = pd.DataFrame({"row": range(4), name: COLUMNS[name]})
    frame.to_csv(tmp_path / "table.csv", index=False)
    ours, of_csv = (read_rows(table, ["row", name]) for table in (frame, tmp_path / "table.csv"))
    assert list(ours.columns[name]) == list(of_csv.columns[name])
    assert ours.digests.tolist() == of_csv.digests.tolist()


def hospital(rows=40):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=rows), "y": rng.integers(0, 9, rows), "flag": rng.random(rows) < 0.5})
    frame["target"] = pd.array(np.arange(rows) % 3 == 0, dtype="boolean")
    frame.loc[3, "target"] = pd.NA
    frame["patient"] = pd.Categorical([f"p{row // 2}" for row in range(rows)])
    frame["part"] = ["train", "train", "validation", "test"] * (rows // 4)
    frame.loc[:, "part"] = np.repeat(frame["part"].to_numpy()[: rows // 2], 2)  # a patient is in one part
    frame["age"] = np.where(rng.random(rows) < 0.2, np.nan, rng.integers(20, 90, rows))
    frame["seen"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(rows) % 5, unit="D")
    frame["weight"] = rng.random(rows).astype(np.float32)
    return frame


OPTIONS = {
    "label_columns": ["target"],
    "kind": "binary",
    "feature_columns": ["x", "y", "flag"],
    "group_column": "patient",
    "split_column": "part",
    "weight_column": "weight",
    "metadata_columns": ["age", "seen"],
}


def test_a_task_is_that_of_the_csv(tmp_path):
    frame = hospital()
    frame.to_csv(tmp_path / "table.csv", index=False)
    task, report = read_table(frame, **OPTIONS)
    wanted, report_of_csv = read_table(tmp_path / "table.csv", **OPTIONS)
    assert task.data_hash() == wanted.data_hash()
    assert task.name == "table"
    np.testing.assert_array_equal(task.inputs(np.arange(40)), wanted.inputs(np.arange(40)))
    for name in ("labels", "groups", "weights"):
        np.testing.assert_array_equal(getattr(task, name), getattr(wanted, name))
    np.testing.assert_array_equal(task.ids, np.arange(40).astype(str))
    np.testing.assert_array_equal(wanted.ids, np.arange(2, 42).astype(str))
    for name in ("age", "seen"):
        np.testing.assert_array_equal(task.metadata[name], wanted.metadata[name])
    assert str(report).partition(": ")[2] == str(report_of_csv).partition(": ")[2]
    assert report.unlabelled == 1


def test_the_index_plays_no_part():
    frame = hospital()
    shuffled = frame.set_index(np.arange(40)[::-1] * 7)
    assert read_table(shuffled, **OPTIONS)[0].data_hash() == read_table(frame, **OPTIONS)[0].data_hash()


def test_every_problem_at_once_by_its_place(tmp_path):
    frame = hospital().astype({"x": object, "target": object})
    frame.loc[0, "x"], frame.loc[5, "target"], frame.loc[7, "weight"] = "wide", 2, -1
    frame.loc[8, "patient"] = None
    frame.loc[10] = frame.loc[9]
    frame.to_csv(tmp_path / "table.csv", index=False)
    problems = []
    for table in (frame, tmp_path / "table.csv"):
        with pytest.raises(TableError) as caught:
            read_table(table, **OPTIONS)
        problems.append(caught.value.problems)
    by_place, by_line = ([(p.row, p.column, p.kind) for p in found] for found in problems)
    assert by_place == [(row - 2, *rest) for row, *rest in by_line]
    assert {row for row, *_ in by_place} >= {0, 5, 7, 8, 10}
    task, report = read_table(frame, **OPTIONS, skip_bad=True)
    assert len(task) == 40 - len(report.skipped)


def test_a_cell_that_is_too_long_is_a_problem_of_its_row():
    frame = hospital()
    frame.loc[4, "patient"] = np.nan
    frame["note"] = ["x" * 2000 if row == 4 else "" for row in range(40)]
    problems = check_table(frame, **{**OPTIONS, "metadata_columns": ["note"]}).problems
    assert [(p.row, p.column, p.kind) for p in problems] == [(4, "note", "cell too long")]


def test_images_lie_where_image_root_says(tmp_path, monkeypatch):
    pixels = pictures(tmp_path / "images", 2)
    picture(tmp_path / "outside.png", seed=9)
    frame = pd.DataFrame({"file": ["0.png", "1.png"], "target": [0, 1]})
    options = {"image_column": "file", "label_columns": ["target"], "kind": "binary"}
    task, _ = read_table(frame, **options, image_root=tmp_path / "images")
    np.testing.assert_array_equal(task.inputs([0, 1]), pixels)
    monkeypatch.chdir(tmp_path / "images")
    assert read_table(frame, **options)[0].data_hash() == task.data_hash()
    outside = frame.replace("1.png", "../outside.png")
    kinds = [p.kind for p in check_table(outside, **options).problems]
    assert kinds == ["path leaves folder"]
    # The same of a csv that lies elsewhere.
    frame.to_csv(tmp_path / "table.csv", index=False)
    named, _ = read_table(tmp_path / "table.csv", **options, image_root=tmp_path / "images")
    assert named.data_hash() == task.data_hash()


def test_inputs_to_predict(tmp_path):
    frame = hospital().drop(columns=["target", "part", "weight"])
    frame.to_csv(tmp_path / "table.csv", index=False)
    options = {"feature_columns": ["x", "y"], "metadata_columns": ["age"], "group_column": "patient"}
    ours, of_csv = (read_inputs(table, **options) for table in (frame, tmp_path / "table.csv"))
    np.testing.assert_array_equal(ours.source(np.arange(40)), of_csv.source(np.arange(40)))
    np.testing.assert_array_equal(ours.ids, np.arange(40).astype(str))
    np.testing.assert_array_equal(of_csv.ids, np.arange(2, 42).astype(str))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, 2], "a table is the path of a file or a pandas DataFrame, not list"),
        (
            hospital().rename(columns={"patient": "patients"}),
            "the DataFrame has no column 'patient'. Did you mean",
        ),
        (hospital().set_index("patient"), "'patient' is the index of the DataFrame, not a column: call reset_index"),
        (hospital().iloc[:0], "the DataFrame has a header but no rows"),
        (
            hospital().assign(age=pd.Series(["\ud800"] * 40, dtype=object)),
            "holds text that UTF-8 cannot write",
        ),
        (pd.concat([hospital(), hospital()[["x"]]], axis=1), "has 2 columns named 'x'"),
    ],
)
def test_what_is_no_table_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        read_table(table, **OPTIONS)


def test_no_second_table_of_text_is_held():
    """Python strings of all cells at once would take some fifty bytes beside the text of each."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, 10)), columns=list("abcdefghij"))
    frame["target"] = np.arange(20_000) % 2
    options = {"label_columns": ["target"], "kind": "binary", "feature_columns": list("abcdefghij")}
    read_table(frame[:100], **options)
    tracemalloc.start()
    read_table(frame, **options)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 220_000 * 45
