"""Tables: every problem at once with its line, what skip_bad drops, and the Task that comes out."""

import gzip
import os

import numpy as np
import pytest
from PIL import Image

from deepauc.data.splits import check_leaks
from deepauc.data.table.problems import Problem, TableError
from deepauc.data.table.read import check_table, read_inputs, read_table
from deepauc.data.table.rows import read_rows

IMAGES = {"image_column": "file", "label_columns": ["target"], "kind": "binary"}
NUMBERS = {"feature_columns": ["f", "g"], "label_columns": ["target"], "kind": "binary"}
FEATURES = "f,g,target\n1,2,0\n3,4,1\n5,6,0\n"


def write(folder, text, name="table.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def picture(path, seed=0, size=(6, 5), mode="RGB"):
    shape = size if mode == "L" else (*size, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def pictures(folder, count):
    return [picture(folder / f"{i}.png", seed=i) for i in range(count)]


def problems_of(path, **options):
    with pytest.raises(TableError) as caught:
        read_table(path, **options)
    assert isinstance(caught.value, ValueError)
    return caught.value.problems


def found(problems):
    return [(p.row, p.column, p.kind) for p in problems]


def test_images(tmp_path):
    pixels = pictures(tmp_path, 4)
    picture(tmp_path / "deeper" / "4.png", seed=4)
    path = write(tmp_path, "file,target\n0.png,0\n1.png,1.0\n2.png,False\n3.png,true\ndeeper/4.png,\n")
    task, report = read_table(path, **IMAGES)
    assert task.kind == "binary"
    assert task.name == "table"
    assert task.inputs([3, 0]).dtype == np.uint8
    np.testing.assert_array_equal(task.inputs([3, 0]), [pixels[3], pixels[0]])
    np.testing.assert_array_equal(task.labels, [0, 1, 0, 1, np.nan])
    np.testing.assert_array_equal(task.parts["train"], range(5))
    assert task.ids.tolist() == ["0.png", "1.png", "2.png", "3.png", "deeper/4.png"]
    assert (report.rows, report.labelled, report.unlabelled) == (5, 4, 1)
    assert (report.positives, report.negatives) == ({"target": 2}, {"target": 2})
    assert report.sizes == {(6, 5): 5}
    assert report.ok
    assert "5 rows, 4 labelled, 1 unlabelled" in str(report)


def test_the_hash_follows_the_content_not_the_place(tmp_path):
    hashes = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        pictures(tmp_path / place, 3)
        path = write(tmp_path / place, "file,target\n0.png,0\n1.png,1\n2.png,0\n")
        hashes.append(read_table(path, **IMAGES)[0].data_hash())
    picture(tmp_path / "there" / "2.png", seed=99)
    changed = read_table(tmp_path / "there" / "table.csv", **IMAGES)[0].data_hash()
    assert hashes[0] == hashes[1] != changed


def test_features_weights_groups_metadata(tmp_path):
    text = (
        "f,g,target,w,who,part,age,sex\n1,2e0,0,1,a,train,50,m\n-3,4,1,0.5,b,Train,,f\n5,6,0,0,c,val,70,\n"
        "5,7,1,0,c,valid,70,\n8,9,1,2,d,TEST,70,f\n8,9.5,0,2,d,test,70,f\n"
    )
    task, report = read_table(
        write(tmp_path, text),
        **NUMBERS,
        weight_column="w",
        group_column="who",
        split_column="part",
        metadata_columns=["age", "sex", "who"],
    )
    np.testing.assert_array_equal(task.inputs([1, 0]), np.array([[-3, 4], [1, 2]], np.float32))
    np.testing.assert_array_equal(task.weights, np.array([1, 0.5, 0, 0, 2, 2], np.float32))
    assert {name: rows.tolist() for name, rows in task.parts.items()} == {
        "train": [0, 1],
        "validation": [2, 3],
        "test": [4, 5],
    }
    assert task.groups.tolist() == list("abccdd")
    np.testing.assert_array_equal(task.metadata["age"], [50, np.nan, 70, 70, 70, 70])
    assert task.metadata["sex"].tolist() == ["m", "f", "", "", "f", "f"]
    assert report.groups == 4
    assert task.ids.tolist() == ["2", "3", "4", "5", "6", "7"]


def test_ids_of_rows_of_numbers(tmp_path):
    text = "payment,f,g,target\n 0017,1,2,0\nb,3,4,1\nc,5,6,0\n"
    task, _ = read_table(write(tmp_path, text), **NUMBERS, id_column="payment")
    assert task.ids.tolist() == ["0017", "b", "c"]
    assert task.source.shape == (2,)
    assert task.data_hash() == read_table(tmp_path / "table.csv", **NUMBERS)[0].data_hash()
    text += ",7,8,1\nb,9,9,1\n"
    problems = problems_of(write(tmp_path, text), **NUMBERS, id_column="payment")
    assert found(problems) == [(5, "payment", "missing id"), (6, "payment", "duplicate id")]
    assert "'b' is also the id of row 3" in problems[1].message
    inputs = read_inputs(tmp_path / "table.csv", feature_columns=["f"], id_column="payment", skip_bad=True)
    assert inputs.ids.tolist() == ["0017", "b", "c", "b"]  # to be scored, a row may come twice
    assert inputs.report.skipped == (5,)


def test_several_labels(tmp_path):
    path = write(tmp_path, "f,a,b\n1,0,1\n2,1,\n3,,\n4,,0\n5,1,1\n")
    options = {"feature_columns": ["f"], "label_columns": ["b", "a"]}
    task, report = read_table(path, kind="multilabel", **options)
    np.testing.assert_array_equal(task.labels, [[1, 0], [np.nan, 1], [np.nan, np.nan], [0, np.nan], [1, 1]])
    assert task.label_names == ("b", "a")
    assert (report.labelled, report.unlabelled, report.positives) == (4, 1, {"b": 2, "a": 2})
    with pytest.raises(ValueError, match="declare kind='multilabel'"):
        read_table(path, kind="binary", **options)


def test_all_problems_at_once_with_the_lines_of_the_file(tmp_path):
    pictures(tmp_path, 7)
    (tmp_path / "broken.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "empty.png").touch()
    text = (
        "file,target,who,part,w\r\n"
        "0.png,0,a,train,1\r\n"  # line 2
        "\r\n"
        "1.png,1,b,train,1\r\n"  # line 4
        "2.png,0,c,test,1\r\n"
        "3.png,1,c,test,1\r\n"
        "gone.png,0,d,train,1\r\n"  # line 7
        "broken.png,0,e,train,1\r\n"
        "text.jpg,malignant,f,train,1\r\n"  # line 9, two problems
        '4.png,2,"g\r\nh",train,1\r\n'  # lines 10 and 11
        "4.png,0,i,train,1\r\n"  # line 12
        "../table.csv,0,j,train,1\r\n"
        "/etc/hostname,0,k,train,1\r\n"
        "5.png,1,a,test,1\r\n"  # line 15: patient a is in train in line 2
        ",0,l,somewhere,-1\r\n"  # line 16, three problems
        "empty.png,0,,train,x\r\n"  # line 17, three problems
        "short,0\r\n"
        "1.png,1,b,train,1,,,\r\n"  # line 19: empty fields at the end do no harm; the image is there twice
        "6.png,0,m,train,1\r\n"
    )
    path = write(tmp_path, text)
    options = {**IMAGES, "group_column": "who", "split_column": "part", "weight_column": "w"}
    problems = problems_of(path, **options)
    assert sorted(found(problems), key=str) == sorted(
        [
            (2, "who", "patient in two splits"),
            (7, "file", "missing file"),
            (8, "file", "unreadable image"),
            (9, "file", "unreadable image"),
            (9, "target", "unknown label value"),
            (10, "target", "unknown label value"),
            (12, "file", "duplicate row"),
            (13, "file", "path leaves folder"),
            (14, "file", "path leaves folder"),
            (16, "file", "missing file"),
            (16, "part", "bad split value"),
            (16, "w", "bad weight"),
            (17, "file", "unreadable image"),
            (17, "who", "missing group"),
            (17, "w", "bad weight"),
            (18, None, "wrong number of fields"),
            (19, "file", "duplicate row"),
        ],
        key=str,
    )
    assert [p.row for p in problems] == sorted(p.row for p in problems)

    report = check_table(path, **options)
    assert report.problems == problems
    assert report.rows == 17
    assert not report.ok

    task, skipped = read_table(path, **options, skip_bad=True)
    assert task.ids.tolist() == ["1.png", "2.png", "3.png", "5.png", "6.png"]
    assert skipped.skipped == (2, 7, 8, 9, 10, 12, 13, 14, 16, 17, 18, 19)
    assert skipped.problems == problems
    assert skipped.rows == 17


def test_the_message_is_a_plain_table(tmp_path):
    pictures(tmp_path, 2)
    with pytest.raises(TableError) as caught:
        read_table(write(tmp_path, "file,target\n0.png,0\n1.png,1\nx.png,maybe\n"), **IMAGES)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("2 problems: unknown label value (1), missing file (1)")
    assert lines[1].split() == ["row", "column", "kind", "message"]
    assert lines[2].startswith("4    target  unknown label value  'maybe': write 1 for")
    assert lines[3] == "4    file    missing file         'x.png': the file does not exist"


def test_images_are_called_by_one_form_of_their_names_and_opened_by_the_true_one(tmp_path):
    for number, name in enumerate(("e\u0301.png", "b\u200b.png", "é.png")):
        picture(tmp_path / name, seed=number)
    table = write(tmp_path, "file,target\ne\u0301.png,0\nb\u200b.png,1\n")
    task, _ = read_table(table, **IMAGES)
    assert task.ids.tolist() == ["é.png", "b.png"]
    table = write(tmp_path, "file,target\ne\u0301.png,0\nb\u200b.png,1\né.png,1\n")
    assert found(problems_of(table, **IMAGES)) == [(4, "file", "duplicate id")]


def test_label_values(tmp_path):
    accepted = ["0", "1", "0.0", "1.0", "True", "False", "true", "FALSE", " 1 ", "１", "\u200b0", "", "nan", "NaN"]
    rows = "".join(f"{i},{cell}\n" for i, cell in enumerate(accepted))
    task, report = read_table(
        write(tmp_path, "f,y\n" + rows), feature_columns=["f"], label_columns=["y"], kind="binary"
    )
    np.testing.assert_array_equal(task.labels, [0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, np.nan, np.nan, np.nan])
    assert report.unlabelled == 3
    refused = ["2", "-1", "yes", "no", "0.5", "1_0", "inf", "10", "malignant", "١"]
    rows = "".join(f"{i},{cell}\n" for i, cell in enumerate(refused))
    problems = problems_of(
        write(tmp_path, "f,y\n100,0\n101,1\n" + rows), feature_columns=["f"], label_columns=["y"], kind="binary"
    )
    assert found(problems) == [(4 + i, "y", "unknown label value") for i in range(len(refused))]


def test_features_must_be_finite_float32(tmp_path):
    cells = ["", "nan", "inf", "-inf", "1e308", "1e39", "text", "0x10", "1_0", "3.5e38"]
    rows = "".join(f"{cell},{i},{i % 2}\n" for i, cell in enumerate(cells))
    problems = problems_of(write(tmp_path, "f,g,target\n" + rows), **NUMBERS)
    assert found(problems) == [(2 + i, "f", "NaN feature") for i in range(len(cells))]
    rows = "3.4e38,1,0\n-3.4e38,2,1\n1e-320,3,1\n"
    task, _ = read_table(write(tmp_path, "f,g,target\n" + rows), **NUMBERS)
    assert np.isfinite(task.inputs(range(3))).all()


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("f,g,target,part\n1,2,0,\n3,4,0,\n", "target", "the table has 0 positives and 2 negatives"),
        ("f,g,target,part\n1,2,,\n3,4,,\n", None, "no labelled row is left"),
        ("f,g,target,part\n1,2,1,train\n3,4,0,test\n1,1,0,train\n", "target", "the test part has 0 positives"),
        ("f,g,target,part\n1,2,1,train\n3,4,0,test\n1,1,1,test\n", "target", "the train part has 1 positive and"),
    ],
)
def test_one_class_only(tmp_path, text, column, message):
    path = write(tmp_path, text)
    split = {"split_column": "part"} if "train" in text else {}
    for skip_bad in (False, True):  # nothing that leaving out rows could mend
        (problem, *_) = problems_of(path, **NUMBERS, **split, skip_bad=skip_bad)
        assert problem.row is None
        assert problem.column == column
        assert message in problem.message
    assert not check_table(path, **NUMBERS, **split).ok


def test_skipping_may_leave_one_class(tmp_path):
    path = write(tmp_path, "f,g,target\n1,2,0\n3,4,0\nx,6,1\n")
    problems = problems_of(path, **NUMBERS, skip_bad=True)
    assert [p.kind for p in problems] == ["NaN feature", "one class only"]


def test_a_rare_label_may_be_missing_from_test(tmp_path):
    text = "f,a,b,part\n1,0,0,train\n2,1,1,train\n3,0,0,test\n4,1,0,test\n"
    options = {"feature_columns": ["f"], "label_columns": ["a", "b"], "kind": "multilabel", "split_column": "part"}
    task, _ = read_table(write(tmp_path, text), **options)
    assert set(task.parts) == {"train", "test"}
    problems = problems_of(write(tmp_path, text.replace("2,1,1,", "2,1,0,").replace("4,1,0", "4,1,1")), **options)
    assert [(p.column, p.kind) for p in problems] == [("b", "one class only")]


def test_unlabelled_rows_and_splits(tmp_path):
    text = (
        "f,g,target,part,who\n1,0,0,train,a\n2,0,1,train,b\n3,0,0,test,c\n4,0,1,test,d\n"
        "5,0,,train,e\n6,0,,test,f\n7,0,,,g\n8,0,,,c\n"
    )
    task, report = read_table(write(tmp_path, text), **NUMBERS, split_column="part", group_column="who")
    # In no test part (6), in train where nothing is said (7), nowhere where the patient is in test (8).
    assert task.parts["train"].tolist() == [0, 1, 4, 6]
    assert task.parts["test"].tolist() == [2, 3]
    assert (report.labelled, report.unlabelled, report.parts) == (4, 4, {"train": 4, "test": 2})
    assert check_leaks(task) == ()


def test_all_weights_zero(tmp_path):
    path = write(tmp_path, "f,g,target,w\n1,2,0,0\n3,4,1,0\n")
    (problem,) = problems_of(path, **NUMBERS, weight_column="w")
    assert (problem.row, problem.kind) == (None, "bad weight")


def test_weights_that_are_missing_are_not_called_zero(tmp_path):
    found = problems_of(write(tmp_path, "f,g,target,w\n1,2,0,\n3,4,1,\n"), **NUMBERS, weight_column="w")
    assert [problem.row for problem in found] == [2, 3]
    assert all("the cell is empty" in problem.message for problem in found)


def test_duplicate_rows_of_numbers_are_whole_rows(tmp_path):
    path = write(tmp_path, "id,f,g,target\n1,0,0,0\n2,0,0,0\n3,1,1,1\n3,1,1,1\n")
    assert found(problems_of(path, **NUMBERS)) == [(5, None, "duplicate row")]
    task, report = read_table(path, **NUMBERS, allow_duplicates=True)
    assert len(task) == 4
    assert report.duplicates == ((2, 3), (4, 5))


def test_identical_pictures_under_two_names_are_reported_not_refused(tmp_path):
    pictures(tmp_path, 4)
    Image.open(tmp_path / "1.png").save(tmp_path / "copy.tif")
    text = "file,target,part\n0.png,0,train\n1.png,1,train\n2.png,0,test\n3.png,1,test\ncopy.tif,1,test\n"
    task, report = read_table(write(tmp_path, text), **IMAGES, split_column="part")
    assert report.duplicates == ((3, 6),)
    (leak,) = report.leaks
    assert (leak.what, leak.rows) == ("image", {"train": (3,), "test": (6,)})
    assert "1.png = copy.tif" in str(report)
    assert [leak.name for leak in check_leaks(task)] == ["1.png = copy.tif"]


def test_paths_that_leave_the_folder(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    pictures(inside, 2)
    picture(outside / "x.png", seed=7)
    picture(tmp_path / "inside2" / "y.png", seed=8)
    os.symlink(outside / "x.png", inside / "link.png")
    os.symlink(outside, inside / "folder")
    os.symlink(inside / "0.png", inside / "harmless.png")
    cells = ["../outside/x.png", str(outside / "x.png"), "link.png", "folder/x.png", "a/../../outside/x.png"]
    cells += ["../inside2/y.png"]
    text = "file,target\n0.png,0\n1.png,1\n" + "".join(f"{cell},1\n" for cell in cells)
    problems = problems_of(write(inside, text), **IMAGES)
    assert found(problems) == [(4 + i, "file", "path leaves folder") for i in range(len(cells))]
    assert all("--allow-outside" in p.message for p in problems)
    task, _ = read_table(write(inside, text), **IMAGES, allow_outside=True, allow_duplicates=True)
    np.testing.assert_array_equal(task.inputs([2])[0], task.inputs([5])[0])
    fine = "file,target\n0.png,0\nfolder/../1.png,1\n./1.png,1\nharmless.png,0\n"
    problems = problems_of(write(inside, fine), **IMAGES)
    assert found(problems) == [
        (3, "file", "path leaves folder"),  # folder/.. is outside: the link is followed first
        (5, "file", "duplicate row"),
    ]


def test_hints_for_missing_files(tmp_path):
    pictures(tmp_path, 2)
    (tmp_path / "directory").mkdir()
    text = "file,target\n0,0\nfolder\\9.png,1\ndirectory,1\n" + "x" * 300 + ".png,0\n0.png/a.png,0\n"
    problems = problems_of(write(tmp_path, text), **IMAGES)
    assert [p.kind for p in problems] == ["missing file"] * 5
    assert "there is one that ends in .png" in problems[0].message
    assert "this is not a file" in problems[2].message


def test_folders_as_windows_writes_them(tmp_path):
    (tmp_path / "table" / "sub").mkdir(parents=True)
    pictures(tmp_path / "table" / "sub", 2)
    pictures(tmp_path, 1)
    task, _ = read_table(write(tmp_path / "table", "file,target\nsub\\0.png,0\nsub\\1.png,1\n"), **IMAGES)
    assert list(task.ids) == ["sub\\0.png", "sub\\1.png"]
    problems = problems_of(write(tmp_path / "table", "file,target\nsub\\0.png,0\n..\\0.png,1\n"), **IMAGES)
    assert found(problems) == [(3, "file", "path leaves folder")]


def test_a_pipe_is_not_waited_for(tmp_path):
    pictures(tmp_path, 2)
    os.mkfifo(tmp_path / "pipe.png")
    problems = problems_of(write(tmp_path, "file,target\n0.png,0\n1.png,1\npipe.png,1\n"), **IMAGES)
    assert found(problems) == [(4, "file", "missing file")]


def test_differing_sizes(tmp_path):
    picture(tmp_path / "a.png", size=(6, 5))
    picture(tmp_path / "b.png", size=(8, 8), mode="L")
    path = write(tmp_path, "file,target\na.png,0\nb.png,1\n")
    (problem,) = problems_of(path, **IMAGES)
    assert (problem.row, problem.kind) == (None, "differing sizes")
    assert "size=(height, width)" in problem.message
    report = check_table(path, **IMAGES)
    assert report.ok
    assert report.sizes == {(6, 5): 1, (8, 8): 1}
    assert read_table(path, **IMAGES, size=4)[0].inputs([0, 1]).shape == (2, 4, 4, 3)
    assert read_table(path, **IMAGES, size=(3, 4))[0].inputs([0, 1]).shape == (2, 3, 4, 3)
    chosen, _ = read_table(path, **IMAGES, size=max)  # any function of the sizes: here the largest
    assert chosen.inputs([0]).shape == (1, 8, 8, 3)
    with pytest.raises(ValueError, match="size must be"):
        read_table(path, **IMAGES, size=0)


def test_a_file_that_vanishes_after_the_check_is_named(tmp_path):
    pictures(tmp_path, 2)
    task, _ = read_table(write(tmp_path, "file,target\n0.png,0\n1.png,1\n"), **IMAGES)
    (tmp_path / "1.png").unlink()
    with pytest.raises(ValueError, match=r"1\.png: the file does not exist"):
        task.inputs([0, 1])


def test_progress(tmp_path):
    pictures(tmp_path, 3)
    calls = []
    read_table(
        write(tmp_path, "file,target\n0.png,0\n1.png,1\n2.png,1\n"),
        **IMAGES,
        progress=lambda *call: calls.append(call),
    )
    assert calls[-1] == (3, 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n\n", "is empty"),
        ("t.csv", b"\xef\xbb\xbf", "is empty"),
        ("t.csv", b"f,g,target\n", "no rows"),
        ("t.csv", b"f,g,target\n\n\r\n\n", "no rows"),
        ("t.csv", b"f,g,tarket\n1,2,0\n", "no column 'target'. Did you mean 'tarket'"),
        ("t.csv", b"a,b\n1,2\n", "no column 'target'. It has: 'a', 'b'"),
        ("t.csv", b"f,g,target,f\n1,2,0,3\n", "2 columns named 'f'"),
        ("t.csv", "f,g,target\n1,2,0\n".encode("utf-16"), "NUL byte"),
        ("t.csv", b"f,g,target\n1,\x00,0\n", "line 2 holds a NUL byte"),
        ("t.csv", b'f,g,target\n1,2,0\n"3,4,1\n5,6,1\n', "quotation mark"),
        ("t.csv", b"f,g,target\n1," + b"9" * 200_000 + b",0\n", "field larger than field limit"),
        ("t.csv.gz", b"not gzip", "cannot be read"),
        ("t.csv.gz", gzip.compress(b"f,g,target\n" * 1000, mtime=0)[:-20], "cannot be read"),
        ("t.parquet", b"not parquet", "cannot be read as a Parquet"),
        ("t.parquet", b"", "cannot be read as a Parquet"),
    ],
)
def test_files_that_are_no_table(tmp_path, name, content, message):
    for function in (check_table, read_table):
        with pytest.raises(ValueError, match=message):
            function(write(tmp_path, content, name), **NUMBERS)


def test_no_such_table(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        check_table(tmp_path / "none.csv", **NUMBERS)
    with pytest.raises(ValueError, match=r"is a folder: name the table in it\.$"):
        check_table(tmp_path, **NUMBERS)
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ValueError, match=r"is a folder: .*\(open_packed\)"):
        check_table(tmp_path, **NUMBERS)


def test_a_text_that_never_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("deepauc.data.table.rows.MAX_LINE_CHARACTERS", 1000)
    with pytest.raises(ValueError, match="line 2: the text is too long"):
        check_table(write(tmp_path, "f,g,target\n" + "1" * 5000), **NUMBERS)
    monkeypatch.setattr("deepauc.data.table.rows.MAX_TABLE_CHARACTERS", 2000)
    with pytest.raises(ValueError, match="the text is too long"):
        check_table(write(tmp_path, gzip.compress(b"f,g,target\n" + b"1,2,0\n" * 1000, mtime=0), "t.csv.gz"), **NUMBERS)
    monkeypatch.setattr("deepauc.data.table.rows.MAX_ROWS", 2)
    with pytest.raises(ValueError, match="more than 2 rows"):
        check_table(write(tmp_path, FEATURES), **NUMBERS)


def test_one_long_cell_does_not_widen_a_whole_column(tmp_path):
    """Its row is a problem: an array of text has as much room in every row as the longest cell takes."""
    text = "f,target,patient,note\n1,0,a,\n2,1,b,\n3,1," + "x" * 1001 + ",\n4,0,c," + "y" * 5000 + "\n"
    report = check_table(write(tmp_path, text), **{**NUMBERS, "feature_columns": ["f"]}, group_column="patient")
    (problem,) = report.problems
    assert (problem.row, problem.column, problem.kind) == (4, "patient", "cell too long")
    assert "1,001 characters; 1,000 is the most" in problem.message  # a column that is not used may be longer


@pytest.mark.parametrize("rows", [3, 600])
def test_parquet_is_read_in_pieces_and_its_text_is_limited(tmp_path, monkeypatch, rows):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    columns = {"f": np.arange(rows) / 4, "g": [None] * rows, "target": np.arange(rows) % 2, "note": ["z" * 3000] * rows}
    pandas.DataFrame(columns).to_parquet(path)
    cells = read_rows(path, ["f", "g", "target"])
    assert {name: list(column) for name, column in cells.columns.items()} == {
        "f": [str(n / 4) for n in range(rows)],
        "g": [""] * rows,
        "target": [str(n % 2) for n in range(rows)],
    }
    assert list(cells.lines) == list(range(2, rows + 2))
    assert len(set(cells.digests)) == rows
    assert [problem.row for problem in read_rows(path, ["note"]).problems] == list(cells.lines)
    monkeypatch.setattr("deepauc.data.table.rows.MAX_TABLE_CHARACTERS", 3000 * rows)
    with pytest.raises(ValueError, match=r"t\.parquet: the text is too long \(a table may have [\d,]+ characters\)"):
        read_rows(path, ["f"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", FEATURES.encode()),
        ("t.csv", b"\xef\xbb\xbf" + FEATURES.encode()),
        ("t.csv", FEATURES.replace("\n", "\r\n").encode()),
        ("t.csv", FEATURES.replace("\n", "\r").encode()),
        ("t.csv", FEATURES.rstrip("\n").encode()),
        ("t.csv", FEATURES.replace("1,2", '"1"," 2 "').encode()),
        ("t.csv", FEATURES.replace("f,g", "f,g,x,x").replace(",2,", ",2,,,").encode().replace(b",4,", b",4,,,")
         .replace(b",6,", b",6,,,")),
        ("t.txt", FEATURES.encode()),
        ("t.csv.gz", gzip.compress(FEATURES.encode(), mtime=0)),
        ("t.tsv", FEATURES.replace(",", "\t").encode()),
        ("t.tsv.gz", gzip.compress(FEATURES.replace(",", "\t").encode(), mtime=0)),
    ],
)  # fmt: skip
def test_ways_of_writing_the_same_table(tmp_path, name, content):
    task, _ = read_table(write(tmp_path, content, name), **NUMBERS)
    np.testing.assert_array_equal(task.inputs(range(3)), [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(task.labels, [0, 1, 0])


def test_patients_that_pandas_could_not_name_are_not_one_patient(tmp_path):
    cells = ["nan", "None", "<NA>", "NaT", " nan ", "Nan", "a"]  # the last two are names
    text = "f,g,target,who\n" + "".join(f"{row},1,{row % 2},{cell}\n" for row, cell in enumerate(cells))
    problems = problems_of(write(tmp_path, text), **NUMBERS, group_column="who")
    assert found(problems) == [(row, "who", "missing group") for row in range(2, 7)]
    assert "'nan': name the patient" in problems[0].message


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {
            "f": [1.5, 2.5, 3.5, float("nan")],
            "g": [1, 2, 3, 4],
            "target": [True, False, None, True],
            "who": ["a", "b", "c", None],
            "unused": pandas.Categorical(["x", "y", "x", "y"]),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    problems = problems_of(tmp_path / "t.parquet", **NUMBERS, group_column="who")
    assert found(problems) == [(5, "who", "missing group"), (5, "f", "NaN feature")]
    task, report = read_table(tmp_path / "t.parquet", **NUMBERS, group_column="who", skip_bad=True)
    np.testing.assert_array_equal(task.inputs(range(3)), [[1.5, 1], [2.5, 2], [3.5, 3]])
    np.testing.assert_array_equal(task.labels, [1, 0, np.nan])
    assert report.unlabelled == 1
    with pytest.raises(ValueError, match="Did you mean 'target'"):
        read_table(tmp_path / "t.parquet", **{**NUMBERS, "label_columns": ["targe"]})
    frame.iloc[:0].to_parquet(tmp_path / "empty.parquet", index=False)
    with pytest.raises(ValueError, match="no rows"):
        read_table(tmp_path / "empty.parquet", **NUMBERS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_columns": [], "kind": "binary", "feature_columns": ["f"]}, "at least one column"),
        ({"label_columns": "target", "kind": "binary", "feature_columns": ["f"]}, "as a list"),
        ({"label_columns": ["target"], "kind": "binary"}, "an image column or feature columns"),
        ({**NUMBERS, "image_column": "f"}, "an image column or feature columns"),
        ({**NUMBERS, "feature_columns": ["f", "target"]}, "'target' is named for two purposes"),
        ({**NUMBERS, "id_column": "f"}, "'f' is named for two purposes"),
        ({**NUMBERS, "feature_columns": [], "image_column": "f", "id_column": "g"}, "identified by their file names"),
        ({**NUMBERS, "metadata_columns": ["target"]}, "give the answer away"),
        ({**NUMBERS, "kind": "multiclass"}, "'binary' or 'multilabel'"),
    ],
)
def test_options_that_contradict_each_other(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path, FEATURES), **options)


def test_inputs_without_labels(tmp_path):
    pixels = pictures(tmp_path, 2)
    path = write(tmp_path, "file,who,age\n1.png,a,3\n0.png,b,4\n1.png,a,5\n")
    rows = read_inputs(path, image_column="file", group_column="who", metadata_columns=["age"])
    np.testing.assert_array_equal(rows.source(np.array([0, 1, 2])), [pixels[1], pixels[0], pixels[1]])
    assert rows.groups.tolist() == ["a", "b", "a"]
    assert rows.ids.tolist() == ["1.png", "0.png", "1.png"]
    np.testing.assert_array_equal(rows.metadata["age"], [3, 4, 5])
    bad = write(tmp_path, "file\n1.png\ngone.png\n", "bad.csv")
    with pytest.raises(TableError):
        read_inputs(bad, image_column="file")
    assert read_inputs(bad, image_column="file", skip_bad=True).report.skipped == (3,)
    with pytest.raises(ValueError, match="nothing to predict"):
        read_inputs(write(tmp_path, "file\ngone.png\n", "gone.csv"), image_column="file", skip_bad=True)


@pytest.mark.data
def test_the_real_isic_table(data_root):
    task, report = read_table(
        data_root / "isic2020_train_metadata.csv.gz",
        label_columns=["target"],
        kind="binary",
        feature_columns=["age_approx"],
        group_column="patient_id",
        metadata_columns=["sex", "anatom_site_general_challenge"],
        skip_bad=True,
    )
    assert report.rows == 33_126
    assert len(report.skipped) == 68  # empty ages
    assert report.positives["target"] + report.negatives["target"] == 33_126 - 68
    full = check_table(
        data_root / "isic2020_train_metadata.csv.gz",
        label_columns=["target"],
        kind="binary",
        feature_columns=["age_approx"],
        group_column="patient_id",
    )
    assert full.positives == {"target": 584}
    assert full.groups == 2_056
    assert len(full.problems) == 68
    assert set(task.metadata["sex"]) == {"male", "female"}  # no sex only where there is no age


def test_a_problem_without_a_row_shows_a_dash():
    error = TableError("t.csv", [Problem(row=None, column=None, kind="no labelled row", message="none")])
    assert str(error).splitlines()[2].split() == ["-", "-", "no", "labelled", "row", "none"]


@pytest.mark.parametrize(("column", "word"), [("account", "group"), ("patient", "patient")])
def test_patients_are_called_so_only_where_the_column_says_so(tmp_path, column, word):
    path = tmp_path / "t.csv"
    path.write_text(f"f,target,{column},part\n1,0,x,train\n2,1,x,test\n3,1,y,train\n4,0,z,test\n")
    options = {"label_columns": ["target"], "kind": "binary", "feature_columns": ["f"]}
    report = check_table(path, **options, group_column=column, split_column="part")
    assert f"leak: {word} x is in 2 parts (train: 2; test: 3)" in str(report)
    path.write_text(f"f,target,{column}\n1,0,unknown\n2,1,unknown\n3,1,y\n")
    report = check_table(path, **options, group_column=column)
    assert f"the largest is 'unknown', with 2 rows. If that is not one {word}, give" in str(report)
