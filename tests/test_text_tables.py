"""Cells, pipe tables and rich tables."""

import io

import pytest
from rich.console import Console

from deepauc.text_tables import auc_text, markdown_table, percent_text, rich_table


def test_auc_has_three_decimals():
    assert auc_text(0.8764) == "0.876"
    assert auc_text(1) == "1.000"
    assert auc_text(0.9, 0.85, 0.9444) == "0.900 [0.850, 0.944]"


def test_percent():
    assert percent_text(0.0956) == "9.6 %"
    assert percent_text(0.5, 0.401, 0.6) == "50.0 % [40.1, 60.0]"
    assert percent_text(-0.0002, -0.01, -0.00001) == "0.0 % [-1.0, 0.0]"


def test_markdown_table():
    table = markdown_table(["loss", "AUC"], [["CE", "0.871"], ["AUC-M", "0.9"]])
    assert table.splitlines() == [
        "| loss  |   AUC |",
        "| ----- | ----: |",
        "| CE    | 0.871 |",
        "| AUC-M |   0.9 |",
    ]


def test_markdown_table_without_rows_and_with_short_cells():
    assert markdown_table(["m", "n"], []).splitlines() == ["| m   |   n |", "| --- | --: |"]


def test_a_bar_or_a_line_break_in_a_cell_does_not_break_the_table():
    table = markdown_table(["name"], [["a|b\nc"]])
    assert table.splitlines()[2] == "| a\\|b c |"


@pytest.mark.parametrize("make", [markdown_table, rich_table])
def test_a_ragged_row_is_refused(make):
    with pytest.raises(ValueError, match="1 cells, the header 2"):
        make(["a", "b"], [["only one"]])


def test_rich_table_shows_brackets_as_they_are():
    file = io.StringIO()
    Console(file=file, width=80).print(rich_table(["what", "AUC [95 %]"], [["CE", "0.9 [0.8, 0.95]"]], title="Test"))
    out = file.getvalue()
    assert "0.9 [0.8, 0.95]" in out
    assert "AUC [95 %]" in out
    assert "Test" in out
