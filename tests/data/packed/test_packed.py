"""Packed sets: exact, atomic, cheap to open, and suspicious of every file."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepauc.data.packed import manifest as packed_manifest
from deepauc.data.packed.sets import PackedInputs, open_packed, pack
from deepauc.data.task import ArrayInputs, Inputs, Task
from tests.fuzz import share_of

FUZZ = share_of(2)


def images(count: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 6, 5, 3), dtype=np.uint8)


def binary_task(count: int = 20) -> Task:
    labels = (np.arange(count) % 3 == 0).astype(np.float32)
    labels[4], labels[5] = np.nan, -1
    return Task(
        name="made up",
        kind="binary",
        source=ArrayInputs(images(count)),
        labels=labels,
        label_names=("ill",),
        parts={"train": np.arange(0, count - 6), "test": np.arange(count - 6, count)},
        groups=np.array([f"patient {i // 2}" for i in range(count)]),
        metadata={
            "age": np.linspace(20, 90, count),
            "sex": np.array(["f", "m"] * (count // 2)),
            "größe": np.arange(count),
        },
        weights=np.linspace(0.5, 1, count).astype(np.float32),
        ids=np.array([f"é{i}.png" for i in range(count)]),
    )


def test_a_packed_task_is_the_task(tmp_path):
    task = binary_task()
    calls = []
    packed = pack(task, tmp_path / "set", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(20, 20)]
    assert isinstance(packed, Inputs)
    assert packed.shape == (6, 5, 3)
    assert packed.dtype == np.uint8
    assert len(packed) == 20
    rows = np.array([3, 3, 19, 0])
    assert np.array_equal(packed(rows), images()[rows])
    again = open_packed(tmp_path / "set", verify="full", source=task).task()
    assert again.data_hash() == task.data_hash()
    assert again.name == task.name
    assert again.ids is not None
    assert again.ids.tolist() == task.ids.tolist()
    assert np.array_equal(again.inputs([7]), task.inputs([7]))
    assert np.load(tmp_path / "set" / "inputs.npy").shape == (20, 6, 5, 3)  # plain: anyone can read it
    assert sorted(os.listdir(tmp_path)) == ["set"]


def test_several_labels(tmp_path):
    several = Task(
        name="several",
        kind="multilabel",
        source=ArrayInputs(images()),
        labels=np.stack([np.arange(20) % 2, np.arange(20) % 5 == 0], axis=1),
        label_names=("a", "b"),
        parts={"train": np.arange(20)},
    )
    packed = pack(several, tmp_path / "several").task()
    assert packed.labels.tolist() == several.labels.tolist()
    assert packed.data_hash() == several.data_hash()


def test_features_and_bare_inputs(tmp_path):
    features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    packed = pack(ArrayInputs(features), tmp_path / "deep" / "features")
    assert np.array_equal(packed(np.arange(9)), features)
    assert packed.digest() == ArrayInputs(features).digest()
    with pytest.raises(ValueError, match="pack a Task"):
        packed.task()
    with pytest.raises(ValueError, match="nothing to pack"):
        pack(ArrayInputs(features[:0]), tmp_path / "none")


def test_names_of_columns_are_kept_also_of_some_rows_and_packed_again(tmp_path):
    source = ArrayInputs(np.zeros((9, 2), dtype=np.float32), feature_columns=["größe", "age"])
    task = Task(
        name="named", kind="binary", source=source, labels=np.arange(9) % 2, label_names=("ill",),
        parts={"train": np.arange(9)}, groups=np.arange(9).astype(str), group_column="well",
    )  # fmt: skip
    unnamed = replace(task, source=ArrayInputs(source.array), group_column=None)
    assert task.data_hash() == unnamed.data_hash()
    assert pack(unnamed, tmp_path / "unnamed").feature_columns == ()
    first = pack(task, tmp_path / "first").task()
    again = pack(first.subset([1, 4, 6]), tmp_path / "again").task()
    for one in (first, again):
        assert one.source.feature_columns == ("größe", "age")
        assert one.group_column == "well"
    with pytest.raises(ValueError, match="2 feature columns do not fit inputs of shape"):
        ArrayInputs(np.zeros((9, 3)), feature_columns=["a", "b"])
    manifest = json.loads((tmp_path / "first" / "manifest.json").read_text())["manifest"]
    manifest["feature_columns"] = ["age"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    checked = {"manifest": manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (tmp_path / "first" / "manifest.json").write_text(json.dumps(checked))
    with pytest.raises(ValueError, match="names of its feature columns do not fit"):
        open_packed(tmp_path / "first")


def test_many_chunks_and_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_manifest, "CHUNK_BYTES", 1000)
    monkeypatch.setattr("deepauc.data.packed.sets._BLOCK_BYTES", 7 * 90)
    calls = []
    pack(binary_task(50), tmp_path / "set", progress=lambda done, total: calls.append(done))
    assert calls == [*range(7, 50, 7), 50]
    content = (tmp_path / "set" / "inputs.npy").read_bytes()
    file = packed_manifest.read_manifest(tmp_path / "set").inputs[0]
    assert list(file.chunks) == [
        hashlib.sha256(content[i : i + 1000]).hexdigest() for i in range(0, len(content), 1000)
    ]
    assert np.array_equal(open_packed(tmp_path / "set", verify="full")(np.arange(50)), images(50))
    # A byte in the middle: quick does not look there, full names the file and the place.
    altered = bytearray(content)
    altered[2500] ^= 1
    (tmp_path / "set" / "inputs.npy").write_bytes(altered)
    open_packed(tmp_path / "set")
    with pytest.raises(ValueError, match=r"inputs\.npy is altered in or after byte 2000"):
        open_packed(tmp_path / "set", verify="full")


@pytest.mark.parametrize("verify", ["quick", "full"])
@pytest.mark.parametrize("name", ["inputs.npy", "column-000.npy", "column-002.npy"])
def test_changed_files_are_named(tmp_path, name, verify):
    pack(binary_task(), tmp_path / "set")
    path = tmp_path / "set" / name
    content = path.read_bytes()
    for changed, word in (
        (content[:-1], "cut off"),
        (content + b"x", "altered"),
        (content[:-3] + b"abc", "altered"),
        (content.replace(b"'fortran_order': False", b"'fortran_order': True "), "altered"),
        (b"x" * len(content), "altered"),
        (b"", "cut off"),
    ):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=f"{name} is {word}"):
            open_packed(tmp_path / "set", verify=verify)
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        open_packed(tmp_path / "set", verify=verify)
    os.mkfifo(path)  # not opened: that would wait for ever
    with pytest.raises(ValueError, match=f"{name} is missing"):
        open_packed(tmp_path / "set", verify=verify)


def test_a_changed_source_is_noticed(tmp_path):
    task = binary_task()
    pack(task, tmp_path / "set")
    other = images()
    other[3, 0, 0, 0] ^= 1
    with pytest.raises(ValueError, match="has changed since it was packed"):
        open_packed(tmp_path / "set", source=ArrayInputs(other))
    open_packed(tmp_path / "set", source=task.source)
    with pytest.raises(ValueError, match="'quick' or 'full'"):
        open_packed(tmp_path / "set", verify="never")


def test_changed_manifests_are_named(tmp_path):
    pack(binary_task(), tmp_path / "set")
    path = tmp_path / "set" / "manifest.json"
    content = path.read_text()
    for changed in (content[:-5], "", "[]", "{}", content.replace('"binary"', '"multilabel"'), "[" * 100_000, "\xff"):
        path.write_text(changed, encoding="latin-1")
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            open_packed(tmp_path / "set")
    path.unlink()
    with pytest.raises(ValueError, match="not a packed set"):
        open_packed(tmp_path / "set")
    with pytest.raises(ValueError, match="not a packed set"):
        open_packed(tmp_path / "missing")


def test_existing_folders_are_safe(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="is not a packed set"):
            pack(binary_task(), tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    first = pack(binary_task(), tmp_path / "set")
    with pytest.raises(ValueError, match="overwrite=True"):
        pack(ArrayInputs(images(8, seed=1)), tmp_path / "set")
    second = pack(ArrayInputs(images(8, seed=1)), tmp_path / "set", overwrite=True)
    assert np.array_equal(second(np.arange(8)), images(8, seed=1))
    assert np.array_equal(first(np.arange(20)), images())  # still mapped by whoever had it open
    assert sorted(os.listdir(tmp_path)) == ["mine", "set"]
    (tmp_path / "set" / "run").mkdir()
    with pytest.raises(ValueError, match=r"would be lost \(run\): move it away first"):
        pack(binary_task(), tmp_path / "set", overwrite=True)
    (tmp_path / "set" / "run").rmdir()
    (tmp_path / "link").symlink_to(tmp_path / "set")
    third = pack(ArrayInputs(images(8, seed=2)), tmp_path / "link", overwrite=True)
    assert third.folder == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()  # and its target is written
    assert np.array_equal(open_packed(tmp_path / "set")(np.arange(8)), images(8, seed=2))


class BrokenInputs(ArrayInputs):
    def __call__(self, indices):
        if indices[-1] >= 10:
            raise OSError("scan-10.png cannot be read")
        return super().__call__(indices)


class WrongInputs(ArrayInputs):
    def __call__(self, indices):
        return super().__call__(indices)[:, :3]


def test_a_failed_pack_leaves_nothing(tmp_path):
    for source, error in ((BrokenInputs(images()), OSError), (WrongInputs(images()), ValueError)):
        with pytest.raises(error):
            pack(source, tmp_path / "set")
        assert os.listdir(tmp_path) == []


SLOW_PACK = """
import sys, time
import numpy as np
from deepauc.data.packed import sets as packed
from deepauc.data.task import ArrayInputs

class Slow(ArrayInputs):
    def __call__(self, indices):
        if indices[0] > 0:
            print("packing", flush=True)
            time.sleep(60)
        return super().__call__(indices)

packed._BLOCK_BYTES = 90
packed.pack(Slow(np.zeros((20, 6, 5, 3), dtype=np.uint8)), sys.argv[1])
"""


def test_a_killed_pack_leaves_nothing_that_is_believed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SLOW_PACK, str(tmp_path / "set")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"packing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    left = os.listdir(tmp_path)
    assert len(left) == 1  # the hidden work folder
    for name in ("set", left[0]):
        with pytest.raises(ValueError, match="not a packed set"):
            open_packed(tmp_path / name)
    assert len(pack(ArrayInputs(images()), tmp_path / "set")) == 20


def test_travels_to_other_processes_by_name(tmp_path):
    packed = pack(ArrayInputs(images(5000)), tmp_path / "set")
    content = pickle.dumps(packed)
    assert len(content) < 1000
    assert isinstance(pickle.loads(content), PackedInputs)
    rows = [np.arange(i, i + 3) for i in range(4)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for some, found in zip(rows, pool.map(packed, rows), strict=True):
            assert np.array_equal(found, images(5000)[some])


# --- whatever lies in the folder: a result or a ValueError -----------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "set"
    pack(binary_task(), folder)
    return folder


def result_or_message(folder: Path, verify: str) -> PackedInputs | None:
    try:
        packed = open_packed(folder, verify=verify)
    except ValueError as error:
        if str(folder) not in str(error):
            raise AssertionError("the message does not name the place") from error
        return None
    assert len(packed(np.arange(len(packed)))) == len(packed)
    with contextlib.suppress(ValueError):
        packed.task()
    return packed


@FUZZ
@given(
    name=st.sampled_from(["manifest.json", "inputs.npy", "column-000.npy", "column-001.npy"]),
    edits=st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=3)), max_size=4),
    end=st.integers(0, 4000) | st.none(),
)
def test_damaged_files(tmp_path, good, name, edits, end):
    folder = tmp_path / "set"
    shutil.copytree(good, folder, dirs_exist_ok=True)
    before = (folder / name).read_bytes()
    content = bytearray(before)
    for place, some in edits:
        content[place : place + len(some)] = some
    (folder / name).write_bytes(bytes(content[:end]))
    packed = result_or_message(folder, "full")
    if name.endswith(".npy"):
        assert (packed is not None) == ((folder / name).read_bytes() == before)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=5), some, max_size=3),
    max_leaves=8,
)


@st.composite
def forged(draw: st.DrawFn, body: object) -> object:
    """A JSON value in which one or more places hold something else."""
    if draw(st.integers(0, 7)) == 0:
        return draw(JSON)
    if isinstance(body, dict) and body:
        key = draw(st.sampled_from(sorted(body)))
        return body | {key: draw(forged(body[key]))}
    if isinstance(body, list) and body:
        place = draw(st.integers(0, len(body) - 1))
        return [*body[:place], draw(forged(body[place])), *body[place + 1 :]]
    return draw(JSON | st.integers(0, 50) | st.sampled_from(["../inputs.npy", "/dev/zero", "column-001.npy", "<f4"]))


@FUZZ
@given(data=st.data())
def test_forged_manifests_with_a_right_checksum(good, data):
    """Someone who can compute a checksum still gets no crash, no other file opened, no memory."""
    path = good / "manifest.json"
    original = path.read_bytes()
    body = data.draw(forged(json.loads(original)["manifest"]))
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    try:
        path.write_text(json.dumps({"manifest": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
        result_or_message(good, "quick")
    finally:
        path.write_bytes(original)


def test_sets_with_an_index_of_classes_are_still_read(tmp_path):
    """Earlier versions stored one, in a column of its own."""
    task = binary_task()
    pack(task, tmp_path / "set")
    path = tmp_path / "set" / "manifest.json"
    body = json.loads(path.read_bytes())["manifest"]
    rows = np.arange(18)
    file = packed_manifest.write_array(tmp_path / "set", "index.npy", [rows], shape=rows.shape, dtype=rows.dtype)
    body["columns"]["class_rows"] = asdict(file)
    body["task"]["class_counts"] = [[12, 6]]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"manifest": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    assert open_packed(tmp_path / "set", verify="full").task().data_hash() == task.data_hash()


@pytest.mark.parametrize("name", ["x" * 5000 + ".npy", "é" * 90 + ".npy", "a\udc80.npy"])
def test_names_that_no_system_takes_are_refused(good, name):
    path = good / "manifest.json"
    original = path.read_bytes()
    body = json.loads(original)["manifest"]
    body["columns"]["labels"]["name"] = name
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    try:
        path.write_text(json.dumps({"manifest": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
        with pytest.raises(ValueError, match="not a file of this folder"):
            open_packed(good)
    finally:
        path.write_bytes(original)


def test_characters_beyond_unicode_are_refused(tmp_path):
    task = binary_task()
    groups = np.full(len(task), 0x110000, dtype=np.uint32).view("U1")
    packed = pack(replace(task, groups=groups), tmp_path / "set")
    with pytest.raises(ValueError, match=r"column 'groups': .*invalid character"):
        packed.task()


# --- size ------------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


MEASURE = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import deepauc.data.packed.sets as packed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before, start = resident(), time.perf_counter()
inputs = packed.open_packed(sys.argv[1])
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "bytes": resident() - before, "rows": len(inputs)}))
"""


class MadeUp:
    """Images made as they are asked for: a set that never lies in memory."""

    shape, dtype = (64, 64, 3), np.dtype(np.uint8)

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __call__(self, indices):
        noise = np.random.default_rng(0).integers(0, 256, (1, *self.shape), dtype=np.uint8)
        return noise + indices.astype(np.uint8)[:, None, None, None]

    def digest(self) -> str:
        return f"made up {self.count}"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_200_000_images_open_at_once_and_in_no_memory(tmp_path):
    """What opening is meant to cost: 200,000 images of 64 x 64, under 1 s and under 100 MB more than before."""
    count = 200_000
    task = Task(
        name="large",
        kind="binary",
        source=MadeUp(count),
        labels=np.arange(count) % 50 == 0,
        label_names=("rare",),
        parts={"train": np.arange(count)},
        groups=np.array([f"patient {i // 3}" for i in range(count)]),
    )
    try:
        pack(task, tmp_path / "large")
        out = subprocess.run(
            [sys.executable, "-c", MEASURE, str(tmp_path / "large")], check=True, capture_output=True, text=True
        ).stdout
        measured = json.loads(out)
        assert measured["rows"] == count
        assert measured["seconds"] < 1
        assert measured["bytes"] < 100e6
        packed = open_packed(tmp_path / "large")
        rows = np.array([0, 199_999, 77])
        assert np.array_equal(packed(rows), MadeUp(count)(rows))
        before = resident_bytes()
        copies = [open_packed(tmp_path / "large") for _ in range(20)]
        assert resident_bytes() - before < 100e6
        assert len(copies) == 20
    finally:
        shutil.rmtree(tmp_path / "large", ignore_errors=True)
