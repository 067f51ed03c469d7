"""Faults of a table that would otherwise cost a training: label values, lost classes, decimal commas, cautions."""

import numpy as np
import pytest
from PIL import Image

from deepauc.data.table.cautions import shrinking_caution
from deepauc.data.table.problems import Problem, TableError, collapsed, format_problems
from deepauc.data.table.read import check_table, read_table

NUMBERS = {"feature_columns": ["f"], "label_columns": ["y"], "kind": "binary"}


def write(folder, labels, more="", encoding="utf-8"):
    path = folder / "t.csv"
    path.write_bytes(f"f,y{more}\n".encode(encoding))
    with path.open("ab") as file:
        for row, label in enumerate(labels):
            file.write(f"{row + 0.5},{label}\n".encode(encoding))
    return path


def whole_table(problems):
    return [(p.kind, p.message) for p in problems if p.row is None]


@pytest.mark.parametrize("positive", ["malignant", " Malignant ", "MALIGNANT"])
def test_words_with_a_positive_one(tmp_path, positive):
    path = write(tmp_path, ["malignant", "benign", "Malignant", "unsure", "", "benign"])
    task, report = read_table(path, **NUMBERS, positive=positive)
    np.testing.assert_array_equal(task.labels, [1, 0, 1, 0, np.nan, 0])
    assert report.unlabelled == 1


@pytest.mark.parametrize(("positive", "expected"), [("2", [0, 1, 1]), ("2.0", [0, 1, 1]), ("1", [1, 0, 0])])
def test_one_and_two(tmp_path, positive, expected):
    task, _ = read_table(write(tmp_path, ["1", "2", "2.0"]), **NUMBERS, positive=positive)
    assert task.labels.tolist() == expected


@pytest.mark.parametrize("skip_bad", [False, True])
def test_three_values_are_refused_with_the_count_of_each(tmp_path, skip_bad):
    path = write(tmp_path, ["0"] * 30 + ["1"] * 8 + ["2"] * 3)
    with pytest.raises(TableError) as caught:
        read_table(path, **NUMBERS, skip_bad=skip_bad)
    kind, message = whole_table(caught.value.problems)[0]
    assert kind == "unknown label value"
    assert "3 values: '0' in 30 rows, '1' in 8 rows, '2' in 3 rows" in message
    assert "--positive 2" in message


def test_a_positive_value_that_no_row_holds(tmp_path):
    report = check_table(write(tmp_path, ["benign", "malignant"]), **NUMBERS, positive="malign")
    (problem,) = report.problems
    assert (problem.row, problem.kind) == (None, "unknown label value")
    assert problem.message.startswith("no row holds the positive value 'malign'. The column holds 2")


def test_skip_bad_may_leave_out_a_slip_of_the_pen(tmp_path):
    task, report = read_table(write(tmp_path, ["0", "1", "l", "0", "1"]), **NUMBERS, skip_bad=True)
    assert (len(task), report.skipped) == (4, (4,))


@pytest.mark.parametrize(("bad", "refused"), [(10, True), (9, True), (8, False)])
def test_skip_bad_may_not_leave_out_nine_tenths_of_a_label(tmp_path, bad, refused):
    """Of ten positives so many have no image."""
    rows = []
    for row in range(40):
        if row >= bad:
            Image.fromarray(np.random.default_rng(row).integers(0, 255, (4, 4), dtype=np.uint8)).save(
                tmp_path / f"{row}.png"
            )
        rows.append(f"{row}.png,{int(row < 10)}\n")
    path = tmp_path / "t.csv"
    path.write_text("file,y\n" + "".join(rows))
    columns = {"image_column": "file", "label_columns": ["y"], "kind": "binary", "skip_bad": True}
    if not refused:
        assert len(read_table(path, **columns)[0]) == 32
        return
    with pytest.raises(TableError) as caught:
        read_table(path, **columns)
    lost = [p for p in caught.value.problems if p.kind == "label value left out"]
    assert [p.message[:42] for p in lost] == [f"{bad} of the 10 rows with the label '1' have a"[:42]]


def test_quoted_decimal_commas_are_no_categories(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age,sex,y\n" + "".join(f'"{row},5",{"fm"[row % 2]},{row % 2}\n' for row in range(6)))
    options = {"metadata_columns": ["age", "sex"], "label_columns": ["y"], "kind": "binary"}
    report = check_table(path, **options)
    assert [(p.column, p.kind, "'0,5'" in p.message) for p in report.problems] == [("age", "no number", True)]
    path.write_text("age;sex;y\n" + "".join(f"{row},5;{'fm'[row % 2]};{row % 2}\n" for row in range(6)))
    report = check_table(path, **options)
    assert report.ok
    assert report.metadata == {"age": "numbers from 0.5 to 5.5", "sex": "2 categories ('f', 'm')"}


def test_words_with_commas_are_categories_as_before(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('where,y\n"arm, left",0\n"1,5",1\n,0\n')
    report = check_table(path, metadata_columns=["where"], label_columns=["y"], kind="binary")
    assert report.ok
    assert report.metadata["where"].endswith(", 1 empty")


def test_few_of_a_class_and_no_groups_are_cautions(tmp_path):
    few = check_table(write(tmp_path, ["1"] * 9 + ["0"] * 20), **NUMBERS)
    assert few.few == ("y",)
    assert any("9 positive rows" in text for text in few.cautions)
    assert any("--group-column" in text for text in few.cautions)
    enough = check_table(write(tmp_path, ["1"] * 10 + ["0"] * 20), **NUMBERS)
    assert enough.few == ()
    assert len(enough.cautions) == 1
    path = tmp_path / "g.csv"
    path.write_text("f,y,p\n" + "".join(f"{row},{row % 2},p{row // 2}\n" for row in range(40)))
    assert check_table(path, **NUMBERS, group_column="p").cautions == ()


@pytest.mark.parametrize(("different", "told"), [(30, False), (31, True)])
def test_a_column_of_names_that_training_would_refuse(tmp_path, different, told):
    """Ages of which a few are words are categories, more than half of the cells' number."""
    ages = ["x", *(str(20 + row % (different - 1)) for row in range(59)), ""]
    path = tmp_path / "t.csv"
    path.write_text(
        "f,y,age,sex\n" + "".join(f"{row},{row % 2},{age},{'fm'[row % 2]}\n" for row, age in enumerate(ages))
    )
    report = check_table(path, **NUMBERS, metadata_columns=["age"], category_columns=["sex"])
    assert report.ok
    assert not any("column sex" in text for text in report.cautions)
    assert any("column age has 31 different entries in 60 rows" in text for text in report.cautions) == told


def test_latin_1_is_read_and_told(tmp_path):
    path = write(tmp_path, ["gutartig", "bösartig"] * 10, encoding="latin-1")
    task, report = read_table(path, **NUMBERS, positive="bösartig")
    assert task.labels.sum() == 10
    assert any("Latin-1" in text for text in report.cautions)
    _, report = read_table(write(tmp_path, ["gutartig", "bösartig"] * 10), **NUMBERS, positive="bösartig")
    assert not any("Latin-1" in text for text in report.cautions)


@pytest.mark.parametrize(("size", "told"), [((64, 64), False), ((60, 64), True), (None, False)])
def test_images_that_shrink_more_than_eight_times(tmp_path, size, told):
    rng = np.random.default_rng(0)
    for row in range(2):
        Image.fromarray(rng.integers(0, 255, (512, 512), dtype=np.uint8)).save(tmp_path / f"{row}.png")
    path = tmp_path / "t.csv"
    path.write_text("file,y\n0.png,0\n1.png,1\n")
    _, report = read_table(path, image_column="file", label_columns=["y"], kind="binary", size=size)
    assert any("512 x 512" in text for text in report.cautions) == told


def test_a_few_large_images_among_small_ones_are_no_caution():
    assert shrinking_caution({(64, 64): 90, (2000, 2000): 10}, (64, 64)) is None


def test_many_cells_with_one_fault_are_one_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "x,y\n" + "".join(f'"{row},5",{row % 2}\n' for row in range(9)) + "high,0\nlow,1\n" + "?,1\n" * 6 + "2,0\n"
    )
    with pytest.raises(TableError) as refused:
        read_table(path, feature_columns=["x"], label_columns=["y"], kind="binary")
    assert [(line[0], line[3]) for line in collapsed(refused.value.problems) if line[2] == "NaN feature"] == [
        ("2-10", "'0,5', ...: a feature is a finite number, below 3.4e38; write a decimal point, 0.5 (9 rows)"),
        ("11", "'high': a feature is a finite number, below 3.4e38"),
        ("12", "'low': a feature is a finite number, below 3.4e38"),
        ("13-18", "'?': a feature is a finite number, below 3.4e38 (6 rows)"),
    ]


def test_a_long_list_of_rows_does_not_push_the_others_aside():
    scattered = [Problem(row=row, column="x", kind="bad weight", message="no") for row in range(2, 300, 2)]
    other = Problem(row=None, column="y", kind="one class only", message="all 0")
    first, second, third = format_problems([*scattered, other]).splitlines()
    assert second.startswith("2, 4, 6")
    assert "298" in second
    assert max(len(first), len(third)) < 80


def test_the_same_message_more_than_five_times_is_one_line():
    def problems(count):
        said = "'{}.png': there is no such file"
        return [Problem(row=row, column="file", kind="missing file", message=said.format(row)) for row in count]

    assert collapsed(problems([2]))[0][3] == "'2.png': there is no such file"
    assert len(collapsed(problems([2, 3, 4, 5, 6]))) == 5
    ((rows, _, _, message),) = collapsed(problems([2, 3, 4, 5, 6, 9]))
    assert rows == "2-6, 9"
    assert message == "'2.png', ...: there is no such file (6 rows)"
    assert collapsed(problems(range(2, 90, 2)), most_ranges=2)[0][0] == "2, 4, ..."
    other = Problem(row=7, column="y", kind="unknown label value", message="'x'")
    assert [line.split()[0] for line in format_problems([*problems(range(2, 9)), other]).splitlines()] == [
        "row",
        "2-8",
        "7",
    ]
