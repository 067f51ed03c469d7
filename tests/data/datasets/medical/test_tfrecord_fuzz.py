"""Whatever a TFRecord file holds: its records and examples, or one ValueError."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepauc.data.datasets.medical.tfrecord import masked_crc32c, parse_example, read_records
from tests.fuzz import share_of

FUZZ = share_of(3)


def field(number, wire, content):
    tag = bytes([number << 3 | wire])
    return tag + (bytes([len(content)]) + content if wire == 2 else content)


EXAMPLE = field(
    1,
    2,
    field(1, 2, field(1, 2, b"label") + field(2, 2, field(3, 2, field(1, 2, b"\x01"))))
    + field(1, 2, field(1, 2, b"image") + field(2, 2, field(1, 2, field(1, 2, b"pixels")))),
)


def framed(content):
    head = struct.pack("<Q", len(content))
    return head + struct.pack("<I", masked_crc32c(head)) + content + struct.pack("<I", masked_crc32c(content))


def outcome(path):
    try:
        return [parse_example(record.content) for record in read_records(path)]
    except ValueError as error:
        fault = error
    assert type(fault) is ValueError
    assert str(fault)
    return None


@FUZZ
@given(content=st.binary(max_size=200), checked=st.booleans())
def test_any_bytes(tmp_path, content, checked):
    (tmp_path / "r").write_bytes(framed(content) if checked else content)
    outcome(tmp_path / "r")


@FUZZ
@given(
    edits=st.lists(st.tuples(st.integers(0, 2 * len(EXAMPLE)), st.binary(max_size=3)), max_size=4),
    end=st.integers(0, 2 * len(EXAMPLE)) | st.none(),
)
def test_altered_files(tmp_path, edits, end):
    content = bytearray(framed(EXAMPLE) * 2)
    for place, some in edits:
        content[place : place + len(some)] = some
    (tmp_path / "r").write_bytes(bytes(content[:end]))
    found = outcome(tmp_path / "r")
    assert found is None or all(set(example) == {"label", "image"} for example in found)  # checksums see to that


@FUZZ
@given(edits=st.lists(st.tuples(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_altered_examples_with_right_checksums(tmp_path, edits):
    content = bytearray(EXAMPLE)
    for place, value in edits:
        content[place] = value
    (tmp_path / "r").write_bytes(framed(bytes(content)))
    outcome(tmp_path / "r")


def test_the_good_file_is_read_and_absurd_lengths_are_not(tmp_path):
    (tmp_path / "r").write_bytes(framed(EXAMPLE) * 2)
    assert [example["label"].integers for example in outcome(tmp_path / "r")] == [(1,), (1,)]
    for length in (2**63, 2**64 - 1, 1 << 40):
        head = struct.pack("<Q", length)
        (tmp_path / "r").write_bytes(head + struct.pack("<I", masked_crc32c(head)) + b"x" * 30)
        with pytest.raises(ValueError, match="claims"):
            list(read_records(tmp_path / "r"))
