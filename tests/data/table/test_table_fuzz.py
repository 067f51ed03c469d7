"""Whatever the bytes are: a message (ValueError) or a result, never another exception, never a hang."""

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from deepauc.data.images.decode import ImageError, decode_image
from deepauc.data.table.problems import TableReport
from deepauc.data.table.read import check_table, read_table
from deepauc.data.table.rows import MissingColumnError
from tests.fuzz import BUDGET

TABLE_TESTS = 3  # share it
PICTURES = settings(
    derandomize=True,
    deadline=None,
    max_examples=BUDGET,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FUZZ = settings(PICTURES, max_examples=BUDGET // TABLE_TESTS)
HEADER = "f,file,target,other,who,part,w"
OPTIONS = {
    "group_column": "who",
    "split_column": "part",
    "weight_column": "w",
    "metadata_columns": ["other"],
}
NUMBERS = ["0", "1", "1.0", "true", "", " ", "nan", "NaN", "inf", "-1", "1e308", "-1e-320", "9" * 400, "0x1", "1_0"]
NAMES = ["a.png", "b.png", "./a.png", "../a.png", "/", ".", "..", "~", "a.png/", "c" * 5000, "-", "=1+1", "\\", "%s"]
WORDS = ["train", "val", "test", "TRAIN", "p1", "p2", "\u202e", "\ufeff", "é", "１", '"', "'", "\t", "\x1b[31m"]
CELLS = st.one_of(
    st.sampled_from([*NUMBERS, *NAMES, *WORDS]),
    st.text(max_size=12),
    st.floats().map(str),
)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        for seed, file in enumerate(("a.png", "b.png")):
            pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(name) / file)
        yield Path(name)


def result_or_message(function, *arguments, **options):
    """What the function returns, or the ValueError it raises; any other exception fails the test."""
    try:
        return function(*arguments, **options)
    except ValueError as error:
        return error


def outcome(path, **options):
    report = result_or_message(check_table, path, **options)
    assert str(report)
    if not isinstance(report, TableReport):
        assert type(report) in (ValueError, MissingColumnError)
        return "refused"
    for skip_bad in (False, True):
        found = result_or_message(read_table, path, **options, skip_bad=skip_bad, size=4)
        if isinstance(found, ValueError):
            assert str(found)
            continue
        task, _ = found
        assert len(task.inputs(np.arange(len(task)))) == len(task)
        assert len(task.data_hash()) == 64
        return "read"
    return "problems"


def both_ways(path):
    inputs = ({"feature_columns": ["f"]}, {"image_column": "file"})
    return [outcome(path, label_columns=["target"], kind="binary", **OPTIONS, **i) for i in inputs]


@FUZZ
@given(
    content=st.binary(max_size=400), prefix=st.sampled_from([b"", f"{HEADER}\n".encode(), b"\xef\xbb\xbf", b"\x1f\x8b"])
)
def test_any_bytes(folder, content, prefix):
    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        (folder / name).write_bytes(prefix + content)
        both_ways(folder / name)


@FUZZ
@given(
    rows=st.lists(st.lists(CELLS, min_size=6, max_size=8), max_size=8),
    header=st.one_of(st.just(HEADER), st.just(HEADER), st.text(max_size=20)),
    end=st.sampled_from(["\n", "\r\n", "\r", ""]),
    quote=st.booleans(),
)
def test_any_cells(folder, rows, header, end, quote):
    def written(cell):
        return '"' + cell.replace('"', '""') + '"' if quote else cell

    text = end.join([header, *(",".join(map(written, row)) for row in rows)]) + end
    (folder / "t.csv").write_text(text, encoding="utf-8", errors="replace", newline="")
    both_ways(folder / "t.csv")


GOOD = [["1", "a.png", "0", "x", "p1", "train", "1"], ["2", "b.png", "1", "y", "p2", "train", "1"]]


@FUZZ
@given(row=st.integers(0, 2), column=st.integers(0, 6), cell=CELLS)
def test_one_odd_cell_in_a_good_table(folder, row, column, cell):
    rows = [list(line) for line in GOOD] + [["3", "./b.png", "1", "", "p2", "train", "0"]]
    rows[row][column] = cell
    quoted = [",".join('"' + c.replace('"', '""') + '"' for c in line) for line in rows]
    (folder / "t.csv").write_text("\n".join([HEADER, *quoted]), encoding="utf-8", errors="replace", newline="")
    both_ways(folder / "t.csv")


def test_the_good_table_is_read(folder):
    """The tables above are not all refused at the door."""
    (folder / "t.csv").write_text("\n".join([HEADER, *map(",".join, GOOD)]))
    assert both_ways(folder / "t.csv") == ["read", "read"]


def files():
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    made = []
    for kind, options in (("png", {}), ("jpeg", {}), ("tiff", {}), ("tiff", {"compression": "tiff_lzw"}), ("webp", {})):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind, **options)
        made.append(buffer.getvalue())
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 100).save(buffer, "png")
    return [*made, buffer.getvalue(), b"\0" * 128 + b"DICM" + b"\x02\0\0\0UL\x04\0\0\0\0\0" * 3]


FILES = files()


@pytest.mark.filterwarnings("ignore::UserWarning")  # remarks of the decoders on what was done to the files
@PICTURES
@given(
    which=st.sampled_from(range(len(FILES))),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6),
    keep=st.floats(0, 1),
    size=st.sampled_from([None, (8, 8)]),
)
def test_altered_pictures(which, edits, keep, size):
    content = bytearray(FILES[which])
    for place, value in edits:
        content[int(place * (len(content) - 1))] = value
    content = bytes(content[: int(keep * len(content))] if keep < 0.5 else content)
    pixels = result_or_message(decode_image, content, size=size)
    if isinstance(pixels, ValueError):
        assert isinstance(pixels, ImageError)
        assert pixels.kind in ("unreadable image", "decompression bomb")
    else:
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
