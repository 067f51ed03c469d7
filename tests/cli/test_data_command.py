"""`deepauc data`: the commands as a user types them; what they print, and their exit codes."""

import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from deepauc.cli.main import run
from deepauc.data.datasets.benchmarks.load import load
from deepauc.data.datasets.catalogue import CATALOGUE
from deepauc.data.datasets.medical.medmnist import load_medmnist
from deepauc.data.packed.sets import open_packed
from deepauc.data.table.read import read_table

COLUMNS = ("--image-column", "file", "--label-column", "target", "--split-column", "split")


@pytest.fixture
def deepauc(capsys):
    """Run the command; (exit code, stdout, stderr)."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            run(["data", *map(str, words)])
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with one data set in MedMNIST's layout."""
    monkeypatch.delenv("DEEPAUC_DATA", raising=False)
    folder, rng = tmp_path / "root", np.random.default_rng(0)
    folder.mkdir()
    arrays = {}
    for part, count in (("train", 40), ("val", 10), ("test", 20)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 6, 6), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 2).astype(np.uint8)[:, None]
    np.savez(folder / "breastmnist.npz", **arrays)
    return folder


# --- a table with every fault --------------------------------------------------------------------------------------


def bomb(width, height):
    """A png of a few bytes that claims to be huge."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


BAD_ROWS = """\
file,target,patient_id,split,weight,size_mm,depth_mm
good0.png,0,p0,train,1,1.5,1
good1.png,1,p1,train,1,2.5,1
missing.png,0,p2,train,1,3.5,1
truncated.png,1,p3,train,1,nan,1
bomb.png,0,p4,train,1,5.5,
../outside.png,1,p5,train,1,inf,1
good2.png,maybe,p6,train,1,7.5,1
good3.png,0,p7,holiday,1,8.5,1
good4.png,1,p8,train,-2,9.5,1
good5.png,0,,train,1,10.5,1
good6.png,1,p9
good0.png,1,p10,train,1,11.5,1
good7.png,0,p11,train,1,12.5,1
good8.png,1,p11,test,1,13.5,1
good9.png,,p12,train,1,14.5,1
good5.png,0,p13,test,1,15.5,1
good6.png,0,p14,train,heavy,16.5,1
good1.png,1,p1,train,1,2.5,1
fine.png,0,p15,test,1,17.5,1
"""
OF_ROWS = [  # wrong whether the inputs are pictures or numbers
    (8, "target", "unknown label value", "'maybe'"),
    (9, "split", "bad split value", "'holiday'"),
    (10, "weight", "bad weight", "'-2'"),
    (11, "patient_id", "missing group", "name the patient"),
    (12, "-", "wrong number of fields", "3 fields under 7"),
    (14, "patient_id", "patient in two splits", "p11 is in train here and in test in row 15"),
    (18, "weight", "bad weight", "'heavy'"),
]
OF_PICTURES = [
    (4, "file", "missing file", "'missing.png'"),
    (5, "file", "unreadable image", "'truncated.png'"),
    (6, "file", "decompression bomb", "more than 89,478,485 pixels"),
    (7, "file", "path leaves folder", "'../outside.png'"),
    (13, "file", "duplicate row", "row 2, with another label"),
    (17, "file", "duplicate row", "row 11"),
    (19, "file", "duplicate row", "row 3"),
]
OF_NUMBERS = [
    (5, "size_mm", "NaN feature", "'nan'"),
    (6, "depth_mm", "NaN feature", "empty"),
    (7, "size_mm", "NaN feature", "'inf'"),
    (19, "-", "duplicate row", "row 3"),
]
ALL_COLUMNS = ("--label-column", "target", "--group-column", "patient_id", "--split-column", "split")
ALL_COLUMNS += ("--weight-column", "weight")


@pytest.fixture
def bad_table(tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"good{number}" for number in range(10)), "fine", "truncated", "../outside"):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{name}.png")
    whole = (folder / "truncated.png").read_bytes()
    (folder / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (folder / "bomb.png").write_bytes(bomb(60_000, 60_000))
    (folder / "bad.csv").write_text(BAD_ROWS)
    return folder / "bad.csv"


def problem_lines(out):
    """The lines of the table of problems as (row, column, kind, message)."""
    lines = out.splitlines()
    start = next(at for at, line in enumerate(lines) if re.fullmatch(r"row +column +kind +message", line))
    return [tuple(re.split(r"  +", line, maxsplit=3)) for line in lines[start + 1 : -1]]


@pytest.mark.parametrize(
    ("inputs", "own"),
    [
        (("--image-column", "file"), OF_PICTURES),
        (("--feature-column", "size_mm", "--feature-column", "depth_mm"), OF_NUMBERS),
    ],
)
def test_every_fault_in_one_table(deepauc, bad_table, inputs, own):
    code, out, err = deepauc("check", bad_table, *inputs, *ALL_COLUMNS)
    assert code == 2
    assert err.endswith("or leave them out with train --skip-bad.\n")
    expected = sorted([*OF_ROWS, *own])
    found = problem_lines(out)
    assert len(found) == len(expected)
    for (row, column, kind, words), line in zip(expected, found, strict=True):
        assert line[:3] == (str(row), column, kind)
        assert words in line[3]
    assert out.splitlines()[-1].startswith(f"{len(expected)} problems: ")
    assert "19 rows" in out
    assert "1 unlabelled" in out


def test_every_fault_as_json(deepauc, bad_table):
    code, out, _ = deepauc("check", bad_table, "--image-column", "file", *ALL_COLUMNS, "--json")
    assert code == 2
    record = json.loads(out)
    assert record["ok"] is False
    found = [(one["row"], one["column"] or "-", one["kind"]) for one in record["problems"]]
    assert found == [one[:3] for one in sorted([*OF_ROWS, *OF_PICTURES])]
    assert record["sizes"] == [{"height": 16, "width": 16, "files": 14}]


def test_outside_files_when_allowed(deepauc, bad_table):
    _, out, _ = deepauc("check", bad_table, "--image-column", "file", *ALL_COLUMNS, "--allow-outside")
    assert "path leaves folder" not in out
    assert len(problem_lines(out)) == len(OF_ROWS) + len(OF_PICTURES) - 1


def test_one_class_only(deepauc, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,0\n2,0\n3,\n")
    code, out, _ = deepauc("check", path, "--feature-column", "x", "--label-column", "y")
    assert code == 2
    assert problem_lines(out) == [
        ("-", "y", "one class only", "the table has 0 positives and 2 negatives; both are needed")
    ]
    path.write_text("x,y\n1,\n2,\n")
    code, out, _ = deepauc("check", path, "--feature-column", "x", "--label-column", "y")
    assert code == 2
    assert problem_lines(out)[0][2] == "no labelled row"


def test_in_a_terminal_nothing_is_cut_off(bad_table):
    """80 columns wide, as a terminal sees it: long messages are folded."""
    child, parent = pty.openpty()
    words = ["data", "check", str(bad_table), "--image-column", "file", *ALL_COLUMNS]
    code = f"from deepauc.cli.main import run; run({words!r})"
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=parent, stderr=parent, env=environment)
    os.close(parent)
    shown = b""
    while True:
        try:
            piece = os.read(child, 65536)
        except OSError:  # Linux reports the end of a terminal so
            break
        if not piece:
            break
        shown += piece
    os.close(child)
    assert process.wait() == 2
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "…" not in text
    rows = [int(row) for row in re.findall(r"^ *(\d+) +(?:file|target|patient_id|split|weight|-) ", text, re.MULTILINE)]
    assert rows == [one[0] for one in sorted([*OF_ROWS, *OF_PICTURES])]
    together = "".join(text.split())
    assert "writetrain,validationortest" in together
    assert f"{len(OF_ROWS) + len(OF_PICTURES)}problems:" in together


# --- tables that are fine --------------------------------------------------------------------------------------------


def test_a_good_table(deepauc, root, tmp_path):
    assert deepauc("export", "breastmnist", "--root", root, "--out", tmp_path / "out")[0] == 0
    table = tmp_path / "out" / "table.csv"
    code, out, _ = deepauc("check", table, *COLUMNS)
    assert code == 0
    assert "70 rows, 70 labelled, 0 unlabelled" in out
    assert "35 positive (50.00%), 35 negative" in out
    assert "train 40, validation 10, test 20" in out
    assert out.splitlines()[-1] == "no problems"
    record = json.loads(deepauc("check", table, *COLUMNS, "--json")[1])
    assert record["ok"] is True
    assert record["parts"] == {"train": 40, "validation": 10, "test": 20}


def test_duplicates_and_leaks_are_shown(deepauc, tmp_path):
    Image.fromarray(np.full((4, 4), 7, dtype=np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.full((4, 4), 7, dtype=np.uint8)).save(tmp_path / "b.png")
    Image.fromarray(np.full((4, 4), 9, dtype=np.uint8)).save(tmp_path / "c.png")
    Image.fromarray(np.full((4, 4), 8, dtype=np.uint8)).save(tmp_path / "d.png")
    (tmp_path / "t.csv").write_text("file,target,split\na.png,0,train\nb.png,1,test\nc.png,1,train\nd.png,0,test\n")
    code, out, _ = deepauc("check", tmp_path / "t.csv", *COLUMNS)
    assert code == 0
    assert "identical images: rows 2, 3" in out
    assert "leak: image a.png = b.png is in 2 parts (train: 2; test: 3)" in out


def test_control_characters_reach_no_terminal(deepauc, tmp_path):
    rows = ["x,y,who,split", '1,0,"p\x1b[31m\np",train', '2,1,"p\x1b[31m\np",test', "3,1,q,train", "4,0,r,test"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    options = ("--feature-column", "x", "--label-column", "y", "--group-column", "who", "--split-column", "split")
    code, out, _ = deepauc("check", tmp_path / "t.csv", *options)
    assert code == 2
    assert "\x1b" not in out
    assert problem_lines(out)[0][2:] == (
        "patient in two splits",
        "p[31m p is in train here and in test in row 4",
    )
    assert "leak: group p[31m p is in 2 parts" in out  # a name has none of them; a path has
    shutil.copy(tmp_path / "t.csv", tmp_path / "t\x1b.csv")
    _, out, _ = deepauc("check", tmp_path / "t\x1b.csv", *options)
    assert "\x1b" not in out
    assert r"t\x1b.csv: 4 rows" in out


# --- named data sets -------------------------------------------------------------------------------------------------


def test_list(deepauc, root, monkeypatch):
    code, out, _ = deepauc("list")
    assert code == 0
    assert "set DEEPAUC_DATA" in out
    _, named, _ = deepauc("list", "--root", root)
    monkeypatch.setenv("DEEPAUC_DATA", str(root))
    assert deepauc("list")[1] == named
    lines = {line.split()[0]: line.split()[-1] for line in named.splitlines()}
    assert lines["breastmnist"] == "yes"
    assert lines["C10"] == lines["pneumoniamnist"] == "-"
    record = json.loads(deepauc("list", "--json")[1])
    assert record["sets"].keys() == CATALOGUE.keys() >= {"C2", "C10", "C100", "S10"}
    assert record["sets"]["breastmnist"]["found"] == ["breastmnist.npz"]
    assert all(one["licence"] and one["get"] and one["citation"] for one in record["sets"].values())
    (root / "cifar-10-batches-py").mkdir()
    assert json.loads(deepauc("list", "--json")[1])["sets"]["C10"]["found"] == ["cifar-10-batches-py"]


def test_info(deepauc, root):
    code, out, _ = deepauc("info", "breastmnist", "--root", root)
    assert code == 0
    assert re.search(r"^validation +class 0 +10 +5 +50.00%$", out, re.MULTILINE)
    task = load_medmnist(root / "breastmnist.npz", positive=0)
    assert f"data hash: {task.data_hash()}" in out
    record = json.loads(deepauc("info", "breastmnist", "--root", root, "--imratio", "0.2", "--seed", "3", "--json")[1])
    assert record["parts"]["train"]["class 0"] == {"rows": 25, "positives": 5, "share": 0.2}
    assert record["parts"]["test"]["class 0"]["positives"] == 10
    assert record["in_no_part"] == 15
    other = json.loads(deepauc("info", "breastmnist", "--root", root, "--imratio", "0.2", "--seed", "4", "--json")[1])
    assert other["data_hash"] != record["data_hash"]


def test_export_round_trip(deepauc, root, tmp_path):
    words = ("breastmnist", "--root", root, "--imratio", "0.2", "--part", "train", "--part", "test")
    code, out, _ = deepauc("export", *words, "--out", tmp_path / "out")
    assert code == 0
    options = f"--table {tmp_path / 'out' / 'table.csv'} --image-column file --label-column target --split-column split"
    assert f"deepauc train {options} --out DIR" in out
    task, _ = read_table(
        tmp_path / "out" / "table.csv",
        label_columns=["target"],
        kind="binary",
        image_column="file",
        split_column="split",
    )
    assert {part: len(rows) for part, rows in task.parts.items()} == {"train": 25, "test": 20}
    with np.load(root / "breastmnist.npz") as arrays:
        np.testing.assert_array_equal(task.inputs(task.part("test"))[..., 0], arrays["test_images"])
        np.testing.assert_array_equal(task.labels[task.part("test")], arrays["test_labels"][:, 0] == 0)


def test_pack_a_name_and_look_into_it(deepauc, root, tmp_path):
    code, out, _ = deepauc("pack", "breastmnist", "--root", root, "--out", tmp_path / "set")
    assert code == 0
    task = load_medmnist(root / "breastmnist.npz", positive=0)
    assert f"data hash: {task.data_hash()}" in out
    assert open_packed(tmp_path / "set", verify="full").task().data_hash() == task.data_hash()
    record = json.loads(deepauc("info", tmp_path / "set", "--json")[1])
    assert record["data_hash"] == task.data_hash()
    assert deepauc("pack", "breastmnist", "--root", root, "--out", tmp_path / "set")[0] == 2
    assert deepauc("pack", "breastmnist", "--root", root, "--out", tmp_path / "set", "--overwrite")[0] == 0


def test_pack_a_table(deepauc, bad_table, tmp_path):
    words = ("pack", bad_table, "--image-column", "file", *ALL_COLUMNS, "--out", tmp_path / "set")
    code, out, _ = deepauc(*words)
    assert code == 2
    assert [line[0] for line in problem_lines(out)] == [str(one[0]) for one in sorted([*OF_ROWS, *OF_PICTURES])]
    assert not (tmp_path / "set").exists()
    code, out, _ = deepauc(*words, "--skip-bad", "--size", "8x4", "--metadata-column", "size_mm", "--json")
    assert code == 0
    record = json.loads(out)
    assert record["shape"] == [8, 4, 3]
    assert record["skipped"] == sorted({one[0] for one in [*OF_ROWS, *OF_PICTURES]})
    task = open_packed(tmp_path / "set").task()
    assert list(task.ids) == ["good0.png", "good1.png", "good8.png", "good9.png", "fine.png"]
    np.testing.assert_array_equal(task.metadata["size_mm"], [1.5, 2.5, 13.5, 14.5, 17.5])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "c10"], r"Did you mean C10\?"),
        (["info", "breastmnist", "--imratio", "0.2"], "set DEEPAUC_DATA"),
        (["info", "S10", "--root", "."], "does not hold STL-10. To get it"),
        (["info", "breastmnist", "--root", "ROOT", "--imratio", "0.9"], "choose a smaller imratio"),
        (["info"], "NAME"),
        (["check", "nowhere.csv", *COLUMNS], "does not exist"),
        (["check", "nowhere.csv"], "--label-column"),
        (["check", "nowhere.csv", "--no-such-option"], "--no-such-option"),
        (["export", "breastmnist", "--root", "ROOT", "--out", "NEW", "--part", "half"], "has no half part"),
        (["export", "breastmnist", "--root", "ROOT", "--out", "ROOT"], "exists already"),
        (["pack", "breastmnist", "--root", "ROOT", "--out", "NEW", *COLUMNS], "is not a table"),
        (["info", "breastmnist", "--root", "ROOT", "--seed", "0"], "--seed chooses which positives --imratio keeps"),
        (["export", "breastmnist", "--root", "ROOT", "--out", "NEW", "--seed", "1"], "or leave out --seed"),
        (["pack", "breastmnist", "--root", "ROOT", "--out", "NEW", "--seed", "1"], "or leave out --seed"),
        (["pack", "BAD", "--out", "NEW", *COLUMNS, "--seed", "1"], "or leave out --seed"),
        (["pack", "BAD", "--out", "NEW", *COLUMNS, "--root", "ROOT"], "and this is a table: leave --root out"),
        (["info", "ROOT", "--root", "ROOT"], "is a folder itself: leave it out"),
        (["pack", "BAD", "--image-column", "file", "--out", "NEW"], "--label-column"),
        (["pack", "BAD", "--label-column", "target", "--out", "NEW"], "or numeric columns"),
        (["pack", "BAD", *COLUMNS, "--out", "NEW", "--size", "0x9x"], "--size 0x9x"),
        (["pack", "BAD", "--label-column", "y", "--feature-column", "x", "--out", "NEW", "--size", "8"], "to resize"),
        (["pack", "BAD", "--image-column", "fil", "--label-column", "target", "--out", "NEW"], "Did you mean 'file'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(deepauc, root, bad_table, tmp_path, words, message):
    places = {"ROOT": root, "BAD": bad_table, "NEW": tmp_path / "new"}
    code, _, err = deepauc(*(places.get(word, word) for word in words))
    assert code == 2
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_alone_it_shows_its_help(deepauc):
    assert deepauc() == deepauc("--help")


@pytest.mark.data
def test_real_files(deepauc, data_root):
    record = json.loads(deepauc("list", "--root", data_root, "--json")[1])
    assert all(record["sets"][name]["found"] for name in ("C2", "C10", "C100", "breastmnist", "pneumoniamnist"))
    record = json.loads(deepauc("info", "C2", "--root", data_root, "--imratio", "0.1", "--seed", "2", "--json")[1])
    assert record["data_hash"] == load("C2", imratio=0.1, seed=2, validation=False, root=data_root).data_hash()
    assert record["parts"]["train"]["dog"] == {"rows": 11111, "positives": 1111, "share": pytest.approx(0.1, abs=1e-4)}


def test_a_wrong_column_is_asked_about(deepauc, tmp_path):
    rows = "".join(f"{number}.png,{number % 2},name{number}\n" for number in range(60))
    (tmp_path / "table.csv").write_text("file,target,name\n" + rows)
    words = ("check", tmp_path / "table.csv", "--image-column", "file", "--label-column", "name")
    code, out, _ = deepauc(*words)
    assert code == 2
    assert out.count("unknown label value  ") == 1  # one fault, though each row has another name
    assert "'name0', ...: " in out
    assert "column 'name': unknown label value in 60 rows. Is it the right column" in out
    assert "121 problems: unknown label value (60), missing file (60), no labelled row (1)" in out


def test_a_terminal_is_not_flooded(deepauc, tmp_path, monkeypatch):
    rows = "".join(f"{number},{number % 2}\n" for number in range(60))
    (tmp_path / "table.csv").write_text("x,target\n" + rows + rows)
    words = ("check", tmp_path / "table.csv", "--feature-column", "x", "--label-column", "target")
    code, out, _ = deepauc(*words)
    assert code == 2
    assert out.count("the same row as in row") == 60  # a line a problem where nobody reads along
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = deepauc(*words)
    assert code == 2
    assert out.count("the same row as in row") == 20
    assert "40 more of the same kinds" in out
