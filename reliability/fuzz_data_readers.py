"""Readers of what people bring: tables, pictures, TFRecords, npz sheets, packed sets."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fuzz_reader import CSV_WORDS, JSON_WORDS, NUMBERS, Reader, Target, parquet
from PIL import Image

from deepauc.data.datasets.medical.tfrecord import masked_crc32c, parse_example, read_records
from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.images.decode import decode_image
from deepauc.data.packed.sets import open_packed, pack
from deepauc.data.table.read import check_table, read_table
from deepauc.data.task import ArrayInputs, Task


def tables() -> Reader:
    header = b"f,file,target,other,who,part,w\n"
    rows = b"1,a.png,0,x,p1,train,1\n2,b.png,1,y,p2,train,1\n3,./b.png,1,,p2,train,0\n"
    options = {"group_column": "who", "split_column": "part", "weight_column": "w", "metadata_columns": ["other"]}

    def read(folder: Path, name: str) -> None:
        for inputs in ({"feature_columns": ["f"]}, {"image_column": "file"}):
            given = {"label_columns": ["target"], "kind": "binary", **options, **inputs}
            str(check_table(folder / name, **given))
            task, _ = read_table(folder / name, **given, skip_bad=True, size=4)
            task.inputs(np.arange(len(task)))
            task.data_hash()

    words = (b"../a.png", b"/dev/zero", b"=1+1", b"\xef\xbb\xbf", b"train", b"\xff\xfe")
    return Reader(
        targets=(
            Target(name="t.csv", good=(header + rows,)),
            Target(name="t.csv.gz", good=(gzip.compress(header + rows),)),
            Target(name="t.csv.gz", good=(header + rows,), made=lambda some: gzip.compress(some, 1)),
            Target(name="t.parquet", good=(parquet(header + rows),)),
        ),
        read=read,
        files={f"{name}.png": _picture("png", seed=number) for number, name in enumerate("ab")},
        words=(*CSV_WORDS, *words, *NUMBERS),
    )


def _picture(kind: str, *, seed: int = 0, side: int = 4, **options: str) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def pictures() -> Reader:
    kinds = (("png", {}), ("jpeg", {}), ("tiff", {}), ("tiff", {"compression": "tiff_lzw"}), ("webp", {}))
    dicom = b"\0" * 128 + b"DICM" + b"\x02\0\0\0UL\x04\0\0\0\0\0" * 3

    def read(folder: Path, name: str) -> None:
        pixels = decode_image((folder / name).read_bytes(), size=(8, 8))
        assert pixels.dtype == np.uint8
        assert pixels.shape[:2] == (8, 8)

    good = (*(_picture(kind, side=24, **options) for kind, options in kinds), dicom)
    words = (b"IHDR", b"IDAT", b"\xff\xd8\xff", b"\xff\xc0", b"II*\0", b"MM\0*", b"RIFF", b"WEBP", b"VP8L", b"DICM")
    return Reader(targets=(Target(name="p", good=good),), read=read, files={}, words=words)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _framed(content: bytes) -> bytes:
    head = struct.pack("<Q", len(content))
    return head + struct.pack("<I", masked_crc32c(head)) + content + struct.pack("<I", masked_crc32c(content))


def tfrecord() -> Reader:
    label = _field(1, _field(1, b"label") + _field(2, _field(3, _field(1, b"\x01"))))
    image = _field(1, _field(1, b"image") + _field(2, _field(1, _field(1, b"pixels"))))
    weight = _field(1, _field(1, b"weight") + _field(2, _field(2, _field(1, struct.pack("<f", 0.5)))))
    example = _field(1, label + image + weight)
    return Reader(
        targets=(
            Target(name="r", good=(_framed(example) * 2,)),
            Target(name="r", good=(example,), made=_framed),
        ),
        read=lambda folder, name: [parse_example(record.content) for record in read_records(folder / name)],
        files={},
        words=(b"\xff" * 9 + b"\x01", b"\x80" * 12, b"label", _field(1, b"x"), struct.pack("<Q", 1 << 40)),
    )


def _zipped(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def sheets() -> Reader:
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 3), dtype=np.uint8)
    columns = []
    for start in range(0, len(images), 3):
        buffer = io.BytesIO()
        Image.fromarray(images[start : start + 3].reshape(-1, 4, 3)).save(buffer, "webp", lossless=True, quality=100)
        columns.append(buffer.getvalue())
    arrays = {
        "data": np.frombuffer(b"".join(columns), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, columns)]),
        "hw": np.array(images.shape[1:3]),
        "codec": np.array("webp-lossless"),
        "mode": np.array("RGB"),
        "labels": np.arange(len(images), dtype=np.uint8),
    }
    good = _zipped(arrays)
    members = {}
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def with_member(name: str) -> Callable[[bytes], bytes]:
        def made(content: bytes) -> bytes:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                for other, original in members.items():
                    archive.writestr(other, content if other == name else original)
            return buffer.getvalue()

        return made

    inside = tuple(Target(name="s.npz", good=(members[name],), made=with_member(name)) for name in members)
    return Reader(
        targets=(Target(name="s.npz", good=(good,)), *inside),
        read=lambda folder, name: read_sheets(folder / name, max_bytes=1 << 24),
        files={},
        words=(b"'<f8'", b"'|O'", b"(9999999999,)", b"True", b"RIFF", b"PK\x03\x04", *NUMBERS),
    )


def packed_sets() -> Reader:
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    task = Task(
        name="made up",
        kind="binary",
        source=ArrayInputs(images),
        labels=(np.arange(20) % 3 == 0).astype(np.float32),
        label_names=("ill",),
        parts={"train": np.arange(14), "test": np.arange(14, 20)},
        groups=np.array([f"patient {row // 2}" for row in range(20)]),
        metadata={"age": np.linspace(20, 90, 20)},
    )
    with tempfile.TemporaryDirectory() as place:
        pack(task, Path(place) / "set")
        files = {path.name: path.read_bytes() for path in (Path(place) / "set").iterdir()}

    def signed(content: bytes) -> bytes:
        """By someone who can compute a checksum."""
        try:
            body = json.loads(content)
            text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        except (ValueError, RecursionError):
            return content
        return json.dumps({"manifest": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()

    def read(folder: Path, name: str) -> None:
        found = open_packed(folder, verify="quick" if name == "manifest.json" else "full")
        found(np.arange(len(found)))
        found.task()

    body = json.dumps(json.loads(files["manifest.json"])["manifest"]).encode()
    return Reader(
        targets=(
            *(Target(name=name, good=(content,)) for name, content in files.items()),
            Target(name="manifest.json", good=(body,), made=signed),
        ),
        read=read,
        files=files,
        words=(b'"../inputs.npy"', b'"/dev/zero"', b'"<f4"', b'"|O"', *JSON_WORDS),
    )
