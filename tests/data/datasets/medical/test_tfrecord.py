"""TFRecord files: checksums against the definition, records and examples against an encoder of our own."""

import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.datasets.medical.tfrecord import (
    MAX_RECORD_BYTES,
    Feature,
    masked_crc32c,
    parse_example,
    read_records,
)


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number, content, wire=2):
    body = varint(len(content)) + content if wire == 2 else content
    return varint(number << 3 | wire) + body


def example(features, *, packed=True):
    """Name -> bytes, list of ints or list of floats, as a serialised tf.train.Example."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif all(isinstance(one, int) for one in value):
            each = [varint(one) for one in value]
            feature = field(3, field(1, b"".join(each)) if packed else b"".join(field(1, one, wire=0) for one in each))
        else:
            each = [struct.pack("<f", one) for one in value]
            feature = field(2, field(1, b"".join(each)) if packed else b"".join(field(1, one, wire=5) for one in each))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def framed(content):
    head = struct.pack("<Q", len(content))
    return b"".join([head, struct.pack("<I", masked_crc32c(head)), content, struct.pack("<I", masked_crc32c(content))])


def test_masked_checksum():
    """An empty record as TensorFlow writes it: eight zero bytes, 29 03 98 07, d8 ea 82 a2."""
    assert struct.pack("<I", masked_crc32c(bytes(8))) == bytes.fromhex("29039807")
    assert struct.pack("<I", masked_crc32c(b"")) == bytes.fromhex("d8ea82a2")


def test_without_the_extra_the_remedy_is_told(tmp_path, monkeypatch):
    path = tmp_path / "some.tfrecords"
    path.write_bytes(framed(b"one"))
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ValueError, match=r"pip install 'deepauc\[tfrecord\]'"):
        list(read_records(path))


def test_records(tmp_path):
    contents = [b"", b"one", bytes(70_000), b"last"]
    path = tmp_path / "some.tfrecords"
    path.write_bytes(b"".join(map(framed, contents)))
    records = list(read_records(path))
    assert [record.content for record in records] == contents
    whole = path.read_bytes()
    assert all(whole[one.offset : one.offset + len(one.content)] == one.content for one in records)
    path.write_bytes(b"")
    assert list(read_records(path)) == []


def test_every_cut_is_noticed(tmp_path):
    path, whole = tmp_path / "cut.tfrecords", framed(b"first") + framed(b"the second")
    boundary = len(framed(b"first"))
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        if length == boundary:  # cut between two records: nothing in the file tells
            assert len(list(read_records(path))) == 1
            continue
        with pytest.raises(ValueError, match=r"cut.tfrecords, record [01] is cut off"):
            list(read_records(path))


def test_every_changed_byte_is_noticed(tmp_path):
    path, whole = tmp_path / "changed.tfrecords", framed(b"some content")
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"record 0: .*checksum"):
            list(read_records(path))


@pytest.mark.parametrize("length", [MAX_RECORD_BYTES + 1, (1 << 64) - 1, 1 << 40, 1000])
def test_a_length_is_not_believed(tmp_path, length):
    head = struct.pack("<Q", length)
    (tmp_path / "huge").write_bytes(head + struct.pack("<I", masked_crc32c(head)) + b"little")
    with pytest.raises(ValueError, match=r"record 0 (claims|is cut off)"):
        list(read_records(tmp_path / "huge"))


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        list(read_records(tmp_path / "nothing"))


@pytest.mark.parametrize("packed", [True, False])
def test_examples(packed):
    content = example(
        {"label": [3], "negative": [-1, 2**62], "score": [0.5, -2.0], "image": b"\x00\xffpixels"}, packed=packed
    )
    found = parse_example(content)
    assert found["label"] == Feature(integers=(3,))
    assert found["negative"].integers == (-1, 2**62)
    assert found["score"] == Feature()  # nothing here is a float
    ((start, stop),) = found["image"].spans
    assert content[start:stop] == b"\x00\xffpixels"


def test_unknown_fields_are_skipped_and_the_last_of_a_name_counts():
    strange = field(9, varint(5), wire=0) + field(8, bytes(8), wire=1) + field(7, bytes(4), wire=5) + field(6, b"text")
    content = strange + example({"label": [1]}) + example({"label": [2]})
    assert parse_example(content)["label"].integers == (2,)
    assert parse_example(b"") == {}


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length beyond all memory
        b"\x0a\x05abc",  # a length beyond the end
        b"\x80" * 11,  # a number without end
        b"\xff" * 9 + b"\x7f",  # a number of more than 64 bits
        b"\x0b",  # a group, which no Example has
        b"\x02\x00",  # field 0
        b"\x08\x01",  # features as a number
        field(1, field(1, field(1, b"\xff\xfe"))),  # a name that is no UTF-8
        field(1, field(1, field(1, b"x") + field(2, field(3, field(1, bytes(4), wire=5))))),
    ],
)
def test_hostile_examples(content):
    with pytest.raises(ValueError, match=r"not a readable tf.train.Example"):
        parse_example(content)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.data())
def test_any_damage_is_one_error_or_none(data):
    content = bytearray(example({"label": [1], "image": b"abcdefgh", "score": [1.5]}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = parse_example(damaged)
    except ValueError:
        return
    for feature in found.values():
        assert all(0 <= start <= stop <= len(damaged) for start, stop in feature.spans)
