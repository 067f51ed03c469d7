"""The package's readers as a fuzzer sees them: good files, and what must hold of any bytes put in the place of one.

A reader gives a result or one ValueError; anything else (another exception, a hang, memory without bound) is a fault
and leaves `Reader.read_changed` as it is. `fuzz_mutations.py` and `fuzz_coverage.py` think of the bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from deepauc.data.augment import Augment
from deepauc.data.decode import decode_image
from deepauc.data.medical.crc32c import masked_crc32c
from deepauc.data.medical.tfrecord import parse_example, read_records
from deepauc.data.packed import open_packed, pack
from deepauc.data.sheets import read_sheets
from deepauc.data.table import check_table, read_table
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import FactorySpec, MLPSpec, SmallCNNSpec, build_model
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.reporting.scores_file import read_scores
from deepauc.training.bundle import Bundle, save_weights
from deepauc.training.checkpoint import _checksum, load_state, save_state
from deepauc.training.config import DataSettings, Settings, read_settings, settings_toml
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps


def _as_it_is(content: bytes) -> bytes:
    return content


@dataclass(frozen=True, kw_only=True)
class Target:
    """A file to be changed. made: from the changed bytes to the file, so that checksums around them are right again."""

    name: str
    good: tuple[bytes, ...]
    made: Callable[[bytes], bytes] = _as_it_is


@dataclass(frozen=True, kw_only=True)
class Reader:
    """files: what else lies in the folder. read: of the folder, given the name of the changed file."""

    targets: tuple[Target, ...]
    read: Callable[[Path, str], object]
    files: dict[str, bytes]
    words: tuple[bytes, ...] = ()

    def lay_out(self, folder: Path) -> None:
        """The good files."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def read_changed(self, folder: Path, target: Target, content: bytes) -> bool:
        """Whether there was a result; False for a message. The folder is good again afterwards."""
        path = folder / target.name
        path.write_bytes(target.made(content))
        try:
            self.read(folder, target.name)
        except ValueError as error:
            if type(error) is not ValueError and type(error).__module__.partition(".")[0] != "deepauc":
                raise AssertionError(f"a {type(error).__name__} is no message of this package") from error
            if not str(error):
                raise AssertionError("an empty message") from error
            return False
        finally:
            if target.name in self.files:
                path.write_bytes(self.files[target.name])
        return True


NUMBERS = tuple(text.encode() for text in ("-1", "0", "1e400", "nan", "-inf", "9" * 400, "2.5", "18446744073709551616"))
JSON_WORDS = (*NUMBERS, b"null", b"true", b"[", b"]", b"{}", b'""', b'"\\u0000"', b'"../x"', b"[" * 2000, b'{"a":' * 99)


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

    words = (
        b",",
        b'"',
        b"\n",
        b"\r",
        b"\t",
        b"../a.png",
        b"/dev/zero",
        b"=1+1",
        b"\xef\xbb\xbf",
        b"train",
        b"\xff\xfe",
    )
    return Reader(
        targets=(
            Target(name="t.csv", good=(header + rows,)),
            Target(name="t.csv.gz", good=(gzip.compress(header + rows),)),
            Target(name="t.csv.gz", good=(header + rows,), made=lambda some: gzip.compress(some, 1)),
            Target(name="t.parquet", good=(_parquet(header + rows),)),
        ),
        read=read,
        files={f"{name}.png": _picture("png", seed=number) for number, name in enumerate("ab")},
        words=(*words, *NUMBERS),
    )


def _parquet(table: bytes) -> bytes:
    import pandas as pd

    buffer = io.BytesIO()
    pd.read_csv(io.BytesIO(table)).to_parquet(buffer)
    return buffer.getvalue()


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


def toml() -> Reader:
    stages = (
        Stage(objective=CrossEntropy(), optimizer=SGDSpec(), epochs=2, uncertain={"a": "ones"}),
        Stage(
            objective=AUCMargin(margin=(0.5, 1)),
            optimizer=PESGSpec(),
            iterations=7,
            schedule=Steps(milestones=(2, 4)),
            augment=Augment(rotation=8, scale=(0.9, 1.1)),
            positives_per_batch=4,
        ),
    )
    text = settings_toml(
        Settings(
            seed=3,
            data=DataSettings(table="a.csv", label_columns=("x", "y"), image_size=(28, 30)),
            recipe=Recipe(model=FactorySpec(factory="a.b:c", arguments={"n": 3}), stages=stages, guard=True),
        )
    )
    words = ("[]", "{}", "{type = 3}", "{type = []}", "'AUCMargin'", "=", "[[x]]", "1979-05-27T07:32:00Z", '"\\ud800"')
    return Reader(
        targets=(Target(name="run.toml", good=(text.encode(), b"seed = 1\n")),),
        read=lambda folder, name: read_settings(folder / name),
        files={},
        words=(*(word.encode() for word in words), b"[" * 2000, b"{a=" * 2000, b"\0", *NUMBERS),
    )


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
        found.class_rows(1)

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


def scores() -> Reader:
    binary = b"id,part,group,label,score\na,test,p,1,0.5\nb,test,q,0,0.25\nc,train,q,0,1e-3\n"
    several = b"label:a,score:a,label:b,score:b,id\n1,0.5,0,0.1,x\n0,0.25,,2,y\n"

    def read(folder: Path, name: str) -> None:
        ways = (
            {},
            {"other_labels_missing": True},
            {"label_columns": ["label"], "score_columns": ["score"], "positive": "1", "group_column": "group"},
        )
        faults = []
        for options in ways:
            try:
                table = read_scores(folder / name, **options)
            except ValueError as error:
                faults.append(error)
                continue
            assert table.labels.shape == table.scores.shape == (len(table), len(table.label_names))
            assert np.isin(table.labels[~np.isnan(table.labels)], (0, 1)).all()
        if len(faults) == len(ways):
            raise next((fault for fault in faults if type(fault) is not ValueError), faults[0])

    words = (
        b",",
        b'"',
        b"\n",
        b"\r",
        b"\t",
        b";",
        b"label",
        b"score",
        b"1_0",
        "０".encode(),
        b"\x1b[31m",
        b"\xff",
        b"true",
    )
    return Reader(
        targets=(
            Target(name="s.csv", good=(binary, several)),
            Target(name="s.tsv", good=(binary.replace(b",", b"\t"), several.replace(b",", b"\t"))),
            Target(name="s.csv.gz", good=(gzip.compress(binary),)),
            Target(name="s.csv.gz", good=(binary, several), made=lambda some: gzip.compress(some, 1)),
            Target(name="s.parquet", good=(_parquet(binary),)),
        ),
        read=read,
        files={},
        words=(*words, *NUMBERS),
    )


def bundles() -> Reader:
    with tempfile.TemporaryDirectory() as place:
        made = []
        for name, spec, shape in (("mlp", MLPSpec(hidden=(4,)), (3,)), ("cnn", SmallCNNSpec(widths=(2, 3)), (4, 4, 3))):
            folder = Path(place) / name
            folder.mkdir()
            around = Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3, images=len(shape) == 3)
            Bundle(
                model=spec,
                shape=shape,
                kind="binary",
                label_names=("y",),
                preprocessing=around,
                thresholds={"y": {"0.95": 0.5}},
            ).save(folder)
            save_weights(folder / "model.safetensors", build_model(spec, in_channels=3, num_outputs=1, seed=0))
            made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    kinds = (b'"TimmSpec"', b'"FactorySpec"', b'"os:system"', b'"multilabel"', b'"F64"', b'"BF16"', b"1000000000000")
    mlp, cnn = made
    return Reader(
        targets=tuple(Target(name=name, good=(mlp[name], cnn[name])) for name in ("bundle.json", "model.safetensors")),
        read=lambda folder, _: Bundle.load(folder).network(folder),
        files=mlp,
        words=(*kinds, *JSON_WORDS),
    )


def checkpoints() -> Reader:
    state = {"a": [1, 2.5, None, "x"], 3: (torch.arange(4), {"deep": torch.ones(2, 2).bfloat16()}), "empty": {}}
    with tempfile.TemporaryDirectory() as place:
        save_state(Path(place) / "c", state)
        good = (Path(place) / "c").read_bytes()
    skeleton = {"dict": [["a", {"tuple": [1, {"tensor": "0"}]}], ["b", [{"tensor": "1"}, None]]]}
    tensors = {"0": torch.ones(2), "1": torch.zeros(0)}

    def signed(content: bytes) -> bytes:
        """By someone who can compute a checksum."""
        text = content.decode("utf-8", errors="replace")
        return save(tensors, metadata={"state": text, "sha256": _checksum(text, tensors)})

    return Reader(
        targets=(
            Target(name="c", good=(good,)),
            Target(name="c", good=(json.dumps(skeleton).encode(),), made=signed),
        ),
        read=lambda folder, name: load_state(folder / name),
        files={},
        words=(
            b'{"tensor":"0"}',
            b'{"tuple":[]}',
            b'{"dict":[[[],1]]}',
            b'"F8_E4M3"',
            b'"C64"',
            b"\x80\x04",
            *JSON_WORDS,
        ),
    )


READERS: dict[str, Callable[[], Reader]] = {
    "csv and parquet tables": tables,
    "pictures": pictures,
    "TOML settings": toml,
    "TFRecord": tfrecord,
    "npz sheets": sheets,
    "packed sets": packed_sets,
    "scores": scores,
    "bundles": bundles,
    "checkpoints": checkpoints,
}
