"""What a table's check says of things that are no fault by themselves, and how messages name the remedy."""

import numpy as np
import pytest
from PIL import Image

from deepauc.data.images.decode import ImageError, examine_image
from deepauc.data.table.problems import LargestGroup, TableError
from deepauc.data.table.read import check_table, read_table

NUMBERS = {"label_columns": ["target"], "kind": "binary", "feature_columns": ["f"]}


def table(folder, header, rows):
    path = folder / "t.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def checked(folder, names):
    rows = [f"{number},{number % 2},{name}" for number, name in enumerate(names)]
    return check_table(table(folder, "f,target,patient", rows), **NUMBERS, group_column="patient")


@pytest.mark.parametrize("name", ["unknown", "NA", "?", "0"])
def test_nobody_is_no_patient(tmp_path, name):
    report = checked(tmp_path, [name, "a", "b", name, "c", "d"])
    assert report.largest_group == LargestGroup(name=name, rows=2)
    assert f"groups: 5; the largest is {name!r}, with 2 rows. If that is not one patient" in str(report)


def test_the_largest_patient_is_named_and_doubted_only_where_it_is_large(tmp_path):
    few = str(checked(tmp_path, ["a", "a", "b", "c"]))
    assert "groups: 3; the largest is 'a', with 2 rows\n" in few
    assert "If that is not one patient" in str(checked(tmp_path, ["a"] * 12 + ["b", "c"]))
    assert "If that is not one patient" not in str(checked(tmp_path, ["a"] * 12 + [f"b{n}" for n in range(120)]))
    assert "groups: 2\n" in str(checked(tmp_path, ["a", "b"]))


def test_identical_images_of_several_patients_and_with_different_labels(tmp_path):
    generator = np.random.default_rng(0)
    rows = []
    # Pairs of one picture under two names: alike in all; of two patients; with two labels; one label missing
    for number, (labels, patients) in enumerate([("00", "aa"), ("11", "bc"), ("01", "dd"), ("1-", "ee")]):
        picture = Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8))
        for copy in range(2):
            picture.save(tmp_path / f"{number}-{copy}.png")
            rows.append(f"{number}-{copy}.png,{labels[copy].strip('-')},{patients[copy]}")
    path = table(tmp_path, "file,target,patient", rows)
    report = check_table(path, label_columns=["target"], kind="binary", image_column="file", group_column="patient")
    assert report.duplicates == ((2, 3), (4, 5), (6, 7), (8, 9))
    assert report.shared == ((4, 5),)
    assert report.disputed == ((6, 7),)  # a missing label contradicts none
    lines = str(report).splitlines()
    assert "identical images: rows 2, 3" in lines
    assert "identical images: rows 4, 5 (of several patients)" in lines
    assert "identical images: rows 6, 7 WITH DIFFERENT LABELS" in lines


@pytest.mark.parametrize(
    ("cell", "remedy"), [('"3,5"', "write a decimal point, 3.5"), ('"-0,25"', "-0.25"), ('"1,234,5"', ""), ("high", "")]
)
def test_a_decimal_comma(tmp_path, cell, remedy):
    report = check_table(table(tmp_path, "f,target", [f"{cell},1", "2,0"]), **NUMBERS)
    (problem,) = report.problems
    assert ("; write a decimal point" in problem.message) == bool(remedy)
    assert problem.message.endswith(remedy)


def test_a_column_of_decimal_commas_is_one_problem(tmp_path):
    rows = [f'"{row},5",{row % 2}' for row in range(20)] + ["high,0"]
    (problem,) = check_table(table(tmp_path, "f,target", rows), **NUMBERS).problems
    assert (problem.row, problem.column) == (None, "f")
    assert problem.message.startswith("its numbers have decimal commas, such as '0,5': write decimal points")


def test_true_and_false_are_1_and_0(tmp_path):
    """As pandas writes what get_dummies makes of a category."""
    path = table(tmp_path, "f,target", ["True,1", "False,0", " FALSE ,1", "2.5,0", "yes,1"])
    (problem,) = check_table(path, **NUMBERS).problems
    assert (problem.row, problem.kind) == (6, "NaN feature")
    task, _ = read_table(path, **NUMBERS, skip_bad=True)
    assert task.inputs(np.arange(4)).tolist() == [[1.0], [0.0], [0.0], [2.5]]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_separators(tmp_path, mark):
    path = table(tmp_path, mark.join(['"a, b; c"', "f", "target"]), [mark.join(["x", "2.5", "1"]), mark.join("x10")])
    assert check_table(path, **NUMBERS).ok
    task, _ = read_table(path, **NUMBERS)
    assert task.inputs(np.arange(2)).tolist() == [[2.5], [1.0]]
    assert task.labels.tolist() == [1, 0]


def test_decimal_commas_where_semicolons_separate(tmp_path):
    path = table(tmp_path, "f;target;age;site;w", ["2,5;1;61,5;3,1 cm;0,5", "-1e1;0;70;left;1", "1,234,5;1;9;x;2"])
    options = {**NUMBERS, "metadata_columns": ["age", "site"], "weight_column": "w"}
    (problem,) = check_table(path, **options).problems
    assert (problem.row, problem.column) == (4, "f")
    task, _ = read_table(path, **options, skip_bad=True)
    assert task.inputs(np.arange(2)).tolist() == [[2.5], [-10.0]]
    assert task.metadata["age"].tolist() == [61.5, 70]
    assert task.metadata["site"].tolist() == ["3,1 cm", "left"]
    assert task.weights.tolist() == [0.5, 1]


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (["0,5;1;1", "1.234;0;2"], {}),
        (["0,5;1;1", "20;0;2.345.678"], {"feature_columns": ["f", "g"]}),
        (["20;1;0,5", "10;0;1.234"], {"metadata_columns": ["g"]}),
        (["20;1;0,5", "10;0;1.234"], {"weight_column": "g"}),
    ],
)
def test_a_point_between_thousands_is_no_decimal_point(tmp_path, rows, columns):
    path = table(tmp_path, "f;target;g", rows)
    with pytest.raises(ValueError, match="is the point a thousands separator"):
        check_table(path, **{**NUMBERS, **columns})
    path = table(tmp_path, "f;target;g", [row.replace(",", ".") for row in rows[:1]] + ["1.5;0;1"])
    assert check_table(path, **{**NUMBERS, **columns}).ok  # no comma says which point it is


@pytest.mark.parametrize("inputs", ["feature_columns", "metadata_columns"])
def test_a_number_that_may_mean_not_known_is_told_of(tmp_path, inputs):
    def codes(cells):
        path = table(tmp_path, "f,target", [f"{cell},{number % 2}" for number, cell in enumerate(cells)])
        report = check_table(path, label_columns=["target"], kind="binary", **{inputs: ["f"]})
        assert ("If it means that the value is unknown" in str(report)) is bool(report.missing_codes)
        return [(one.column, one.value, one.rows, one.others) for one in report.missing_codes]

    assert codes([20, -999, 31.5, -999, 44, 57]) == [("f", -999, 2, (20, 57))]
    assert codes([20, 999, 31.5, 999, 999, 57]) == [("f", 999, 3, (20, 57))]
    assert codes([20, -999, 31.5, 43, 44, 57]) == []  # once may be anything
    assert codes([20, 99, 31.5, 99, 44, 85]) == []  # an age
    assert codes([-600, -999, 800, -999, 0, 3000]) == []  # a radiodensity


def test_lines_of_separators_alone_are_empty_lines(tmp_path):
    path = table(tmp_path, "f,target,", ["1,0,", "2,1,", ",,", ",,"])
    report = check_table(path, label_columns=["target"], kind="binary", metadata_columns=["f"])
    assert (report.ok, report.rows) == (True, 2)


def test_rows_between_two_lost_quotation_marks_are_not_lost(tmp_path):
    rows = [f"{number},{number % 2},p{number},,,note" for number in range(9)]
    header = "f,target,patient,x,y,note"

    def lines(*changed):
        given = table(tmp_path, header, [dict(changed).get(number, row) for number, row in enumerate(rows)])
        return [(one.row, one.kind) for one in check_table(given, **NUMBERS, group_column="patient").problems]

    assert lines((3, '3,1,"p3,,,note'), (6, '6,0,p6",,,note')) == [(5, "wrong number of fields")]
    assert lines((3, '3,1,p3,,,"note'), (6, '6,0,p6,,,note"')) == [(5, "wrong number of fields")]
    assert lines((3, '3,1,p3,,,"note'), (4, '4,0,p4,,,note"')) == [(5, "wrong number of fields")]
    assert lines((3, '3,1,p3,,,"first, second\nthird, fourth\nfifth"')) == []
    assert lines((3, '3,1,"p\n3",,,note')) == []


def test_a_picture_cut_short(tmp_path):
    path = tmp_path / "a.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ImageError, match="damaged or cut short"):
        examine_image(str(path))


def test_all_misspelt_columns_are_named_at_once(tmp_path):
    path = table(tmp_path, "size,target,patient", ["1,0,a", "2,1,b"])
    message = r"no column 'taget'\. Did you mean 'target'\? Also missing: 'sise' \(did you mean 'size'\?\), 'xyz'\."
    with pytest.raises(ValueError, match=message):
        check_table(path, label_columns=["taget"], kind="binary", feature_columns=["sise"], group_column="xyz")


def test_one_column_is_not_suggested_for_several_missing_ones(tmp_path):
    """The 0/1 columns of a category, asked of a table that has the category itself."""
    path = table(tmp_path, "country,target", ["DE,1", "FR,0"])
    with pytest.raises(ValueError) as error:
        read_table(path, label_columns=["target"], kind="binary", feature_columns=["country_DE", "country_FR"])
    text = str(error.value).removeprefix(str(path))
    assert text == " has no column 'country_DE'. It has: 'country', 'target'. Also missing: 'country_FR'."


@pytest.mark.parametrize("note", ["sep=;\n", '"sep=,"\r\n', "SEP=\t\n", "\ufeffsep=;\n"])
def test_excels_note_about_the_separator_is_named(tmp_path, note):
    (tmp_path / "t.csv").write_text(note + "x;y\n1;0\n2;1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a note for Excel: delete that line"):
        read_table(tmp_path / "t.csv", **NUMBERS)


def test_numbers_that_single_precision_blurs_are_told(tmp_path):
    draw = np.random.default_rng(0)
    for offset, blurred in ((0.0, False), (1e4, False), (1e9, True)):
        rows = [f"{offset + value:.6f},{number % 2}" for number, value in enumerate(draw.normal(size=40))]
        path = table(tmp_path, "f,target", rows)
        report = check_table(path, **NUMBERS)
        assert [problem.kind for problem in report.problems] == ["numbers too close"] * blurred
        if blurred:
            with pytest.raises(TableError, match="subtract the smallest one"):
                read_table(path, **NUMBERS)
        else:
            read_table(path, **NUMBERS)
    days = [f"{1.7e12 + 86.4e6 * day:.0f},{day % 2}" for day in range(365)]  # milliseconds since 1970
    assert check_table(table(tmp_path, "f,target", days), **NUMBERS).ok


def test_labels_in_words_are_one_problem_and_a_typing_error_another(tmp_path):
    path = table(tmp_path, "size,target", ["1,not ill", "2,ill", "3,not ill", "4,ill", "5,il", "6,not ill"])
    problems = check_table(path, label_columns=["target"], kind="binary", feature_columns=["size"]).problems
    assert [one.row for one in problems] == [6, None]
    assert "'il'" in problems[0].message
    assert "--positive ill" in problems[1].message
    path = table(tmp_path, "size,target", ["1,benign", "2,benign", "3,not so", "4,not so", "5,benign"])
    (problem,) = check_table(path, label_columns=["target"], kind="binary", feature_columns=["size"]).problems
    assert "--positive 'not so'" in problem.message


def test_decimal_commas_between_commas_are_named_and_nothing_is_said_of_what_was_not_read(tmp_path):
    path = table(tmp_path, "size,age,target", ["1,5,30,0", "2,5,40,1"])
    report = check_table(
        path, label_columns=["target"], kind="binary", feature_columns=["size"], metadata_columns=["age"], positive="1"
    )
    assert [(one.row, one.kind) for one in report.problems] == [
        (2, "wrong number of fields"),
        (3, "wrong number of fields"),
        (None, "no labelled row"),
    ]
    assert "decimal point" in report.problems[0].message
    assert not report.metadata
