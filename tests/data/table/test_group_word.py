"""Patients where the user's column says so, or says nothing; groups otherwise."""

import pytest

from deepauc.data.group_word import group_word
from deepauc.data.table.read import check_table


@pytest.mark.parametrize(
    ("column", "word"),
    [(None, "patient"), ("patient_id", "patient"), ("Patient", "patient"), ("account", "group"), ("group", "group")],
)
def test_word(column, word):
    assert group_word(column) == word


@pytest.mark.parametrize(("column", "word"), [("account", "group"), ("patient", "patient")])
def test_the_check_of_a_table_uses_it(tmp_path, column, word):
    path = tmp_path / "t.csv"
    path.write_text(f"f,target,{column},part\n1,0,x,train\n2,1,x,test\n3,1,y,train\n4,0,z,test\n")
    options = {"label_columns": ["target"], "kind": "binary", "feature_columns": ["f"]}
    report = check_table(path, **options, group_column=column, split_column="part")
    assert f"leak: {word} x is in 2 parts (train: 2; test: 3)" in str(report)
    path.write_text(f"f,target,{column}\n1,0,unknown\n2,1,unknown\n3,1,y\n")
    report = check_table(path, **options, group_column=column)
    assert f"the largest 'unknown' with 2 rows: if that is not one {word}, give" in str(report)
