"""TFRecord files without TensorFlow: the framing with its checksums, and the `tf.train.Example` in each record.

A record is a length (uint64, little endian), the masked CRC-32C of these 8 bytes, the content, and the masked CRC-32C
of the content. The content is protobuf: Example.features = field 1, its map entries = field 1 (key = 1, value = 2),
Feature = one of bytes_list = 1, float_list = 2, int64_list = 3, each with repeated values in field 1.
No length is believed before it is held against the bytes that are there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_RECORD_BYTES = 1 << 28
_HEAD_BYTES, _TAIL_BYTES = 12, 4
_MASK_DELTA = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Record:
    """The content of one record, and where in the file it starts."""

    content: bytes
    offset: int


@dataclass(frozen=True)
class Feature:
    """One named value of an Example, but for floats; `spans`: (start, stop) of byte strings in the content."""

    spans: tuple[tuple[int, int], ...] = ()
    integers: tuple[int, ...] = ()


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a file, one at a time; ValueError, naming the file and record, for a bad length or checksum."""
    if not Path(path).is_file():  # opening a pipe would wait for ever
        raise ValueError(f"{path} does not exist.")
    size, number = os.path.getsize(path), 0
    with open(path, "rb") as file:
        while (start := file.tell()) < size:
            where, offset = f"{path}, record {number}", start + _HEAD_BYTES
            head = file.read(_HEAD_BYTES)
            if len(head) < _HEAD_BYTES:
                raise ValueError(f"{where} is cut off; download the file again.")
            length, length_crc = struct.unpack("<QI", head)
            if masked_crc32c(head[:8]) != length_crc:
                raise ValueError(
                    f"{where}: the checksum of its length is wrong. It is damaged, or not a TFRecord file."
                )
            if length > MAX_RECORD_BYTES:
                raise ValueError(f"{where} claims {length:,} bytes, more than {MAX_RECORD_BYTES:,}.")
            if offset + length + _TAIL_BYTES > size:
                raise ValueError(f"{where} is cut off; download the file again.")
            content = file.read(length)
            (content_crc,) = struct.unpack("<I", file.read(_TAIL_BYTES))
            if masked_crc32c(content) != content_crc:
                raise ValueError(f"{where}: its checksum is wrong. The file is damaged: download it again.")
            yield Record(content=content, offset=offset)
            number += 1


def masked_crc32c(content: bytes) -> int:
    """CRC-32C as TFRecord stores it, so that a checksum of data that holds checksums stays a good one."""
    try:
        import google_crc32c  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise ValueError("TFRecord files need google-crc32c: pip install 'deepauc[tfrecord]'.") from None
    crc = int(google_crc32c.value(content))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def parse_example(content: bytes) -> dict[str, Feature]:
    """The features of a serialised `tf.train.Example`, by name; ValueError for anything else."""
    try:
        return _parse_example(content)
    except (_Malformed, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a readable tf.train.Example ({error})") from None


class _Malformed(Exception):
    """Bytes that are no protobuf message of the expected kind."""


def _parse_example(content: bytes) -> dict[str, Feature]:
    features: dict[str, Feature] = {}
    for _, start, stop in _fields(content, 0, len(content), number=1, wire=_BYTES):
        for _, entry, end in _fields(content, start, stop, number=1, wire=_BYTES):
            key, feature = "", Feature()
            for field, low, high in _fields(content, entry, end, number=None, wire=_BYTES):
                if field == 1:
                    key = content[low:high].decode("utf-8")
                elif field == 2:
                    feature = _parse_feature(content, low, high)
            features[key] = feature
    return features


def _parse_feature(content: bytes, start: int, stop: int) -> Feature:
    feature = Feature()
    for kind, low, high in _fields(content, start, stop, number=None, wire=_BYTES):
        if kind == 1:
            feature = Feature(spans=tuple((a, b) for _, a, b in _fields(content, low, high, number=1, wire=_BYTES)))
        elif kind == 3:
            feature = Feature(integers=_parse_integers(content, low, high))
    return feature


def _parse_integers(content: bytes, start: int, stop: int) -> tuple[int, ...]:
    values: list[int] = []
    for field, wire, low, high in _all_fields(content, start, stop):
        if field != 1:
            continue
        if wire not in (_BYTES, _VARINT):
            raise _Malformed("its integers have an unknown encoding")
        position = low
        while position < high:
            number, position = _varint(content, position, high)
            values.append(number - (1 << 64) if number >> 63 else number)
    return tuple(values)


def _fields(content: bytes, start: int, stop: int, *, number: int | None, wire: int) -> Iterator[tuple[int, int, int]]:
    """(field, start, stop) of each field of this number (None: any) and wire type; unknown ones are skipped."""
    for field, kind, low, high in _all_fields(content, start, stop):
        if number is None or field == number:
            if kind != wire:
                raise _Malformed(f"field {field} has the wrong type")
            yield field, low, high


def _all_fields(content: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    position = start
    while position < stop:
        tag, position = _varint(content, position, stop)
        field, wire = tag >> 3, tag & 7
        low = position
        if wire == _VARINT:
            _, position = _varint(content, position, stop)
        elif wire == _BYTES:
            length, low = _varint(content, position, stop)
            position = low + length
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise _Malformed(f"unknown wire type {wire}")
        if field == 0 or position > stop:
            raise _Malformed("a field is longer than its message")
        yield field, wire, low, position


def _varint(content: bytes, start: int, stop: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the position after it."""
    value = 0
    for place, position in enumerate(range(start, min(stop, start + 10))):
        byte = content[position]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + 1
    raise _Malformed("a number does not end")
