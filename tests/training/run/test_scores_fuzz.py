"""Whatever a file of scores holds: a table, or one ValueError that names the file."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepauc.data.table.rows import MissingColumnError
from deepauc.training.run.scores import read_scores
from tests.fuzz import share_of

FUZZ = share_of(3)
HEADERS = ["id,part,group,label,score", "label:a,score:a,label:b,score:b,id", "score,label", "label,score,label"]
ODD = [
    "0",
    "1",
    "1.0",
    "true",
    "no",
    "",
    " ",
    "nan",
    "inf",
    "-1e400",
    "1_0",
    "０",
    "9" * 400,
    "0x1",
    "None",
    "é",
    '"',
    "'",
]
CELLS = st.sampled_from([*ODD, "test", "train", "\t", ";", "\u2028", "\x1b[31m", "=1+1", "a\nb"]) | st.text(max_size=6)


def _checked(fault, path):
    assert type(fault) in (ValueError, MissingColumnError)
    assert path.name in str(fault) or "columns" in str(fault)


def outcome(path, **options):
    try:
        table = read_scores(path, **options)
    except ValueError as error:
        return _checked(error, path)
    assert table.labels.shape == table.scores.shape == (len(table), len(table.label_names))
    assert np.isin(table.labels[~np.isnan(table.labels)], (0, 1)).all()
    for part in table.part_names:
        assert len(table.part(part)) > 0
    return table


def every_way(path):
    return [
        outcome(path),
        outcome(path, other_labels="missing"),
        outcome(path, label_columns=["label"], score_columns=["score"], positive="1", group_column="group"),
    ]


@FUZZ
@given(content=st.binary(max_size=300), header=st.sampled_from(["", *HEADERS]), zipped=st.booleans())
def test_any_bytes(tmp_path, content, header, zipped):
    whole = header.encode() + b"\n" + content if header else content
    for name in ("s.csv", "s.tsv", "s.csv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(whole) if zipped else whole)
        every_way(tmp_path / name)


@FUZZ
@given(content=st.binary(max_size=200), keep=st.integers(0, 40))
def test_any_bytes_as_parquet_and_as_gzip(tmp_path, content, keep):
    packed = gzip.compress(HEADERS[0].encode() + b"\n1,test,p,1,0.5\n")
    for name, whole in (("s.parquet", b"PAR1" + content + b"PAR1"), ("s.csv.gz", packed[:keep] + content)):
        (tmp_path / name).write_bytes(whole)
        outcome(tmp_path / name)


@FUZZ
@given(
    header=st.sampled_from(HEADERS),
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=6), max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    quote=st.booleans(),
)
def test_any_cells(tmp_path, header, rows, end, quote):
    def written(cell):
        return '"' + cell.replace('"', '""') + '"' if quote else cell

    text = end.join([header, *(",".join(map(written, row)) for row in rows)])
    (tmp_path / "s.csv").write_text(text, encoding="utf-8", errors="replace", newline="")
    every_way(tmp_path / "s.csv")


def test_a_good_file_is_read_and_a_bomb_is_not(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(HEADERS[0] + "\na,test,p,1,0.5\nb,test,q,0,0.25\n")
    assert all(len(found) == 2 for found in every_way(path))
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"label,score\n" + b"1" * (1 << 26)))
    with pytest.raises(ValueError, match="too long"):
        read_scores(bomb)
    bomb.write_bytes(gzip.compress(b"1" * (1 << 26)))
    with pytest.raises(ValueError, match=r"bomb\.csv\.gz"):
        read_scores(bomb)


def test_any_one_changed_byte_of_a_parquet_footer(tmp_path):
    """pyarrow raises OSError where the footer does not decode, and UnicodeDecodeError where a name in it does not."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "s.parquet"
    parquet.write_table(pyarrow.table({"label": [0, 1], "score": [0.25, 0.5]}), path, store_schema=False)
    good = path.read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    refused = 0
    for place in range(footer, len(good)):
        for mask in (0x0F, 0xC0):
            path.write_bytes(good[:place] + bytes([good[place] ^ mask]) + good[place + 1 :])
            refused += outcome(path) is None
    assert refused > 20
