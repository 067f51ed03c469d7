"""Columns kept block by block: the same cells, numbers and messages as cell by cell, in a fraction of the room."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.table import compact
from deepauc.data.table.compact import NumberColumn, TextBlock, TextColumn, rows_of_block
from deepauc.data.table.read import check_table, read_table
from deepauc.data.table.rows import read_rows
from deepauc.names import one_form

CELLS = st.lists(st.one_of(st.sampled_from(["", " ", "0", "é", "日本", "😀", "\ufeff", "a,b"]), st.text(max_size=9)))
NUMBERS = ["1", " 2.5 ", "-0", "1e-320", "3.4e38", "１２"]
NO_NUMBERS = ["", "nan", "inf", "1e39", "1_0", "x", "0x1", "true"]


def blocks_of(cells, size):
    return [cells[start : start + size] for start in range(0, len(cells), size)]


def text_column(cells, size=3):
    return TextColumn([TextBlock(block) for block in blocks_of(cells, size)])


@settings(derandomize=True, deadline=None)
@given(cells=CELLS, size=st.integers(1, 4))
def test_a_column_of_text_is_the_list_it_was_made_of(cells, size):
    cells = [cell for cell in cells if cell.isprintable()]
    column = text_column(cells, size)
    assert list(column) == cells
    assert len(column) == len(cells)
    assert [column[row] for row in range(-len(cells), len(cells))] == cells * 2
    assert column[1:3] == cells[1:3]
    assert list(column.changed(str.upper)) == [cell.upper() for cell in cells]
    keep = np.arange(len(cells)) % 3 != 1
    assert list(column.rows(keep)) == [cell for cell, kept in zip(cells, keep.tolist(), strict=True) if kept]
    assert column.names().tolist() == np.array([one_form(cell) for cell in cells], dtype=str).tolist()
    with pytest.raises(IndexError):
        column[len(cells)]


@settings(derandomize=True, deadline=None)
@given(cells=st.lists(st.sampled_from(NUMBERS * 3 + NO_NUMBERS)), size=st.integers(1, 5))
def test_numbers_are_kept_as_such_and_a_block_with_anything_else_as_its_text(cells, size):
    column = NumberColumn(blocks_of(cells, size))
    texts = {
        row: block[place] for rows, block in column.texts for place, row in enumerate(range(rows.start, rows.stop))
    }
    values = column.values()
    assert len(values) == len(column) == len(cells)
    for row, cell in enumerate(cells):
        if row in texts:
            assert math.isnan(values[row])
            assert texts[row] == cell
        else:
            assert values[row] == float(cell)
            assert cell not in NO_NUMBERS
    with_a_fault = [number for number, block in enumerate(blocks_of(cells, size)) if set(block) & set(NO_NUMBERS)]
    assert [rows.start // size for rows, _ in column.texts] == with_a_fault


def odd_table(rows=40):
    """Numbers, and a fault of every kind, in blocks of their own and beside each other."""
    text = "f;g;target;who;w;m\n"
    for row in range(rows):
        f = {7: "", 8: "x", 20: "1e39", 21: "1_0"}.get(row, f"{row},25")
        g = "True" if row % 2 else "false"
        w = {11: "-1,50", 12: "heavy"}.get(row, "0,5")
        target = {15: "maybe", 16: ""}.get(row, str(row % 3 % 2))
        text += f"{f};{g};{target};{f'p{row}' if row != 30 else ''};{w};{row if row % 9 else ''}\n"
        text += "9;1\n" * (row == 25) + "\n" * (row == 27) + f"1;1;0;{'é' * 1001};1;2\n" * (row == 28)
    return text + "0,25;false;0;p0;0,5;\n"


OPTIONS = {
    "label_columns": ["target"],
    "kind": "binary",
    "feature_columns": ["f", "g"],
    "group_column": "who",
    "weight_column": "w",
    "metadata_columns": ["m", "f"],
}


@pytest.mark.parametrize("rows", [1, 2, 7, 8192])
def test_nothing_depends_on_where_a_block_ends(tmp_path, monkeypatch, rows):
    path = tmp_path / "t.csv"
    path.write_text(odd_table(), encoding="utf-8")
    monkeypatch.setattr(compact, "BLOCK_ROWS", (rows, rows))
    assert rows_of_block(6) == rows
    report = check_table(path, **OPTIONS)
    assert [(p.row, p.column, p.kind, p.message.split(":")[0]) for p in report.problems] == [
        (9, "f", "NaN feature", "the cell is empty"),
        (10, "f", "NaN feature", "'x'"),
        (13, "w", "bad weight", "'-1.50'"),
        (14, "w", "bad weight", "'heavy'"),
        (17, "target", "unknown label value", "'maybe'"),
        (22, "f", "NaN feature", "'1e39'"),
        (23, "f", "NaN feature", "'1_0'"),
        (28, None, "wrong number of fields", "2 fields under 6 column names"),
        (33, "who", "cell too long", "a cell of 1,001 characters; 1,000 is the most"),
        (35, "who", "missing group", "the cell is empty"),
        (45, None, "duplicate row", "the same row as in row 2"),
    ]
    task, _ = read_table(path, **OPTIONS, skip_bad=True)
    good = [row for row in range(40) if row not in (7, 8, 11, 12, 15, 20, 21, 30)]
    expected = np.array([[row + 0.25, row % 2] for row in good], dtype=np.float32)
    np.testing.assert_array_equal(task.inputs(np.arange(len(task))), expected)
    assert task.groups.tolist() == [f"p{row}" for row in good]
    np.testing.assert_array_equal(task.metadata["m"], [row if row % 9 else np.nan for row in good])
    assert task.metadata["f"].tolist() == [row + 0.25 for row in good]  # a feature, and text until it is known


@pytest.mark.parametrize(
    ("written", "most"),
    [
        (lambda x: f"{x:.8f}", 3),
        (lambda x: str(x > 0), 4),  # as pandas writes what get_dummies made
        (lambda x: f"{x:.8f}" if abs(x) < 3 else "", 5),  # some cell in every block is no number
    ],
    ids=["numbers", "truth", "gaps"],
)
def test_reading_a_table_takes_a_few_times_the_room_of_its_numbers(tmp_path, written, most):
    """Held as Python strings it took 13 times that of 64-bit numbers."""
    numbers = np.random.default_rng(0).normal(size=(8000, 20))
    names = [f"x{place}" for place in range(20)]
    lines = [",".join([*map(written, row), str(number % 2)]) for number, row in enumerate(numbers.tolist())]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join([*names, "target"]), *lines, ""]))
    read_rows(path, ["x0"])  # what is imported on the way counts for nothing
    tracemalloc.start()
    try:
        cells = read_rows(path, [*names, "target"], numbers=names)
        if most == 3:
            del cells
            read_table(path, label_columns=["target"], kind="binary", feature_columns=names)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most * numbers.nbytes
