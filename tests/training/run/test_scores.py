"""Any csv of scores: columns, labels, patients, parts; and two of them row by row."""

import gzip

import numpy as np
import pytest

from deepauc.data.table import compact
from deepauc.reporting.evaluation.pairing import pair_rows
from deepauc.training.run.scores import read_scores


@pytest.fixture
def write(tmp_path):
    def make(text, name="scores.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_the_columns_of_a_run_folder_are_known(write):
    table = read_scores(write("id,part,group,label,score\na,test,p,1,.5\nb,train,,0,-2\nc,test,q,,3\n"))
    assert table.label_names == ("label",)
    assert table.scores[:, 0].tolist() == [0.5, -2, 3]
    assert table.labels[:2, 0].tolist() == [1, 0]
    assert np.isnan(table.labels[2, 0])
    assert table.part_names == ("test", "train")
    assert table.part("test").ids.tolist() == ["a", "c"]
    assert len(set(table.groups.tolist())) == 3  # the row without a patient is one of its own
    assert table.notes


@pytest.mark.parametrize("nobody", ["", "nan", "None", "<NA>"])
def test_rows_that_name_nobody_are_not_one_patient(write, nobody):
    table = read_scores(write(f"group,label,score\n{nobody},1,1\np,0,0\n{nobody},0,2\np,1,3\n"))
    assert len(set(table.groups.tolist())) == 3
    assert table.groups[1] == table.groups[3]
    assert "Rows without a" in table.notes[0]
    assert read_scores(write(f"group,label,score\n{nobody},1,1\n{nobody},0,2\n")).groups is None


def test_ids_in_several_rows_are_told_of_where_no_group_joins_them(write):
    rows = "a,p,1,1\na,p,0,0\nb,q,1,2\n,q,0,1\n,q,0,3\n"
    (note,) = read_scores(write("id,who,label,score\n" + rows)).notes
    assert "1 id is in several rows (a)" in note
    assert read_scores(write("id,who,label,score\n" + rows), group_column="who").notes == ()
    assert read_scores(write("id,label,score\na,1,1\nb,0,0\n")).notes == ()


@pytest.mark.parametrize("row", ["1_0,.5", "1,1_0"])
def test_an_underscore_makes_no_number(write, row):
    with pytest.raises(ValueError, match="1_0"):
        read_scores(write(f"label,score\n0,1\n{row}\n"))
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        read_scores(write("label,score\n0,1\n0_1,1\n"))


def test_several_labels_by_name_and_by_option(write):
    path = write("label:x,score:x,label:y,score:y\n1,.1,0,.2\n0,.3,1,.4\n")
    assert read_scores(path).label_names == ("x", "y")
    table = read_scores(path, label_columns=["label:y"], score_columns=["score:x"])
    assert table.labels[:, 0].tolist() == [0, 1]
    assert table.scores[:, 0].tolist() == [0.1, 0.3]
    with pytest.raises(ValueError, match="label and score at once"):
        read_scores(path, label_columns=["label:y"], score_columns=["label:y"])
    with pytest.raises(ValueError, match="as many --label-column"):
        read_scores(path, label_columns=["label:y"], score_columns=["score:x", "score:y"])


@pytest.mark.parametrize("cells", [("1", "0"), ("1.0", "0.0"), ("True", "False"), ("yes", "no")])
def test_ways_to_write_a_label(write, cells):
    table = read_scores(write(f"label,score\n{cells[0]},1\n{cells[1]},2\nNaN,3\n"))
    assert table.labels[:2, 0].tolist() == [1, 0]
    assert np.isnan(table.labels[2, 0])


def test_the_positive_class_has_a_name(write):
    path = write("y,p\nmalignant,.9\nbenign,.2\n,.1\n")
    table = read_scores(path, label_columns=["y"], score_columns=["p"], positive="malignant")
    assert table.labels[:2, 0].tolist() == [1, 0]
    assert np.isnan(table.labels[2, 0])
    with pytest.raises(ValueError, match="check --positive"):
        read_scores(path, label_columns=["y"], score_columns=["p"], positive="Malignant")


def test_compressed_and_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "scores.tsv.gz"
    path.write_bytes(gzip.compress("\ufefflabel\tscore\n1\t2\n".encode()))
    assert read_scores(path).scores.tolist() == [[2.0]]


def test_latin_1_is_read(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_bytes("Präp;label;score\nä;1;0,75\n".encode("latin-1"))
    assert read_scores(path, id_column="Präp").ids.tolist() == ["ä"]


def test_semicolons_and_decimal_commas_as_excel_writes_them(write):
    table = read_scores(write("label;score\n1;0,75\n0;-1,5e-2\n"))
    assert table.scores.tolist() == [[0.75], [-0.015]]
    assert read_scores(write("label\tscore\n1\t2\n")).scores.tolist() == [[2.0]]
    with pytest.raises(ValueError, match=r"line 2: the score '0,75' .* not a number"):
        read_scores(write('label,score\n1,"0,75"\n'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("label,score\n", "no rows"),
        ("y,score\n1,2\n", r"name it with --label-column \(there are: 'y', 'score'\)"),
        ("id,score\nx,2\n", r"'score'\)\. deepauc predict copies labels from its table with --label-column\."),
        ("label,score\n2,1\n", r"line 2: the label '2' .* --positive"),
        ("label,score\n0,1\n1,high\n", "line 3: the score 'high' .* not a number"),
        ("label,score\n1,2,3\n", "line 2: 3 fields under 2"),
    ],
)
def test_bad_files_are_refused_with_a_remedy(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_scores(write(text))


def test_other_labels_of_a_run_count_as_missing(write):
    table = read_scores(write("label,score\n-1,1\n0.7,2\n1,3\n0,4\n"), other_labels="missing")
    assert np.isnan(table.labels[:2]).all()
    assert "count as missing: 2" in table.notes[0]


def test_a_row_without_a_score_is_an_error_only_where_it_is_labelled(write):
    read_scores(write("label,score\n,nan\n1,2\n")).require_finite_scores()
    with pytest.raises(ValueError, match="first in line 3"):
        read_scores(write("label,score\n1,2\n0,inf\n")).require_finite_scores()


def test_rows_are_joined_on_ids_in_any_order(write):
    a = read_scores(write("id,label,score\nx,1,1\ny,0,2\nz,1,3\n"))
    b = read_scores(write("id,label,score\nz,1,30\nx,1,10\ny,0,20\n", "b.csv"))
    pairing = pair_rows(a, b)
    assert "joined on 3 ids" in pairing.how
    assert pairing.a.scores[:, 0].tolist() == [1, 2, 3]
    assert pairing.b.scores[:, 0].tolist() == [10, 20, 30]


def test_without_ids_order_and_labels_decide(write):
    a = read_scores(write("label,score\n1,1\n0,2\n"))
    assert "row by row" in pair_rows(a, read_scores(write("id,label,score\nq,1,5\nr,0,6\n", "b.csv"))).how
    with pytest.raises(ValueError, match=r"labels differ in 2 of 2 rows \(first: line 2"):
        pair_rows(a, read_scores(write("label,score\n0,1\n1,2\n", "c.csv")))
    with pytest.raises(ValueError, match=r"has 2 rows and .* has 1: give both an id column"):
        pair_rows(a, read_scores(write("label,score\n1,1\n", "d.csv")))


def test_rows_of_only_one_file_need_leave(write):
    a = read_scores(write("id,label,score\nx,1,1\ny,0,2\nz,1,3\n"))
    b = read_scores(write("id,label,score\ny,0,20\nx,1,10\nw,0,0\n", "b.csv"))
    with pytest.raises(ValueError, match=r"ids in both files: 2; only in .*: 1; .* --common"):
        pair_rows(a, b)
    pairing = pair_rows(a, b, common=True)
    assert pairing.b.scores[:, 0].tolist() == [10, 20]
    with pytest.raises(ValueError, match="is in several rows"):
        pair_rows(a, read_scores(write("id,label,score\nx,1,1\nx,0,2\nz,1,3\n", "c.csv")))


def test_labels_are_matched_by_name(write):
    a = read_scores(write("label:x,score:x,label:y,score:y\n1,.1,0,.2\n"))
    b = read_scores(write("label:y,score:y,label:x,score:x\n0,.8,1,.9\n", "b.csv"))
    assert pair_rows(a, b).b.scores.tolist() == [[0.9, 0.8]]
    with pytest.raises(ValueError, match="choose the same ones"):
        pair_rows(a, read_scores(write("label:x,score:x,label:z,score:z\n1,.1,0,.2\n", "c.csv")))


@pytest.mark.parametrize("rows", [1, 3, 8192])
def test_scores_are_the_same_in_blocks(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(compact, "BLOCK_ROWS", (rows, rows))
    path = tmp_path / "scores.csv"
    path.write_text("id,label,score\n" + "".join(f"a{n},{n % 2},{n / 8}\n" for n in range(9)) + "b,1,NA\nc,0,inf\n")
    scores = read_scores(path)
    np.testing.assert_array_equal(scores.scores[:, 0], [*(n / 8 for n in range(9)), np.nan, np.inf])
    assert read_scores(path, score_columns=["score"], id_column="score").ids.tolist()[:2] == ["0.0", "0.125"]
    path.write_text(path.read_text() + "d,1,high\n")
    with pytest.raises(ValueError, match=r"line 13: the score 'high' in column 'score' is not a number"):
        read_scores(path)
