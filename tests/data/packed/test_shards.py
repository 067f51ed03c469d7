"""Packed sets of several files: the same set for whoever reads it; and a set in its place at every moment."""

import json
import os
import pickle
import sys

import numpy as np
import pytest

from deepauc.data.packed import manifest as packed_manifest
from deepauc.data.packed import place as packed_place
from deepauc.data.packed.sets import open_packed, pack
from deepauc.data.task import ArrayInputs, Task

ROW = 6 * 5 * 3


def task(count=50, seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (count, 6, 5, 3), dtype=np.uint8)
    labels = (np.arange(count) % 3 == 0).astype(np.float32)
    parts = {"train": np.arange(count)}
    return Task(name="t", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)


@pytest.mark.parametrize(
    ("shard_bytes", "files"), [(None, 1), (10**9, 1), (50 * ROW, 1), (49 * ROW, 2), (7 * ROW, 8), (1, 50)]
)
def test_any_number_of_files_is_the_same_set(tmp_path, shard_bytes, files):
    source, calls = task(), []
    packed = pack(source, tmp_path / "set", shard_bytes=shard_bytes, progress=lambda done, total: calls.append(done))
    assert len(list((tmp_path / "set").glob("inputs*.npy"))) == files
    assert calls[-1] == 50
    assert len(packed) == 50
    assert packed.shape == (6, 5, 3)
    assert packed.dtype == np.uint8
    everything = source.inputs(np.arange(50))
    rng = np.random.default_rng(1)
    for rows in (np.arange(50), rng.integers(0, 50, 200), rng.integers(-50, 50, 30), np.array([], dtype=np.int64)):
        assert np.array_equal(packed(rows), everything[rows])
        assert packed(rows).dtype == np.uint8
    for impossible in (50, -51):
        with pytest.raises(IndexError):
            packed(np.array([3, impossible]))
    opened = open_packed(tmp_path / "set", verify="full", source=source)
    assert opened.task().data_hash() == source.data_hash()
    assert np.array_equal(pickle.loads(pickle.dumps(opened))([49]), everything[[49]])
    first = sorted((tmp_path / "set").glob("inputs*.npy"))[0]
    assert np.array_equal(np.load(first), everything[: len(np.load(first))])  # plain: anyone can read it


def test_features_and_a_wrong_size(tmp_path):
    features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    packed = pack(ArrayInputs(features), tmp_path / "set", shard_bytes=40)
    assert np.array_equal(packed(np.array([8, 0, 3])), features[[8, 0, 3]])
    with pytest.raises(ValueError, match="shard_bytes must be at least 1"):
        pack(ArrayInputs(features), tmp_path / "other", shard_bytes=0)


def test_a_damaged_or_missing_shard_is_named(tmp_path):
    pack(task(), tmp_path / "set", shard_bytes=20 * ROW)
    path = tmp_path / "set" / "inputs-00001.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"inputs-00001\.npy is altered"):
        open_packed(tmp_path / "set")
    path.unlink()
    with pytest.raises(ValueError, match=r"inputs-00001\.npy is missing"):
        open_packed(tmp_path / "set")


@pytest.mark.parametrize("change", ["other shape", "other type", "none", "version"])
def test_shards_that_do_not_fit_together_are_refused(tmp_path, change):
    pack(task(), tmp_path / "set", shard_bytes=20 * ROW)
    path = tmp_path / "set" / "manifest.json"
    body = json.loads(path.read_text())["manifest"]
    assert body["version"] == 2
    if change == "other shape":
        body["inputs"][1]["shape"][1] = 7
    elif change == "other type":
        body["inputs"][1]["dtype"] = "<f4"
    elif change == "none":
        body["inputs"] = []
    else:
        body["version"] = 3
    path.write_text(json.dumps({"manifest": body, "sha256": packed_manifest._hash_of(body)}))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        open_packed(tmp_path / "set")


def test_one_file_is_what_older_versions_read(tmp_path):
    pack(task(), tmp_path / "set")
    body = json.loads((tmp_path / "set" / "manifest.json").read_text())["manifest"]
    assert body["version"] == 1
    assert [file["name"] for file in body["inputs"]] == ["inputs.npy"]


def test_while_a_set_is_replaced_there_is_always_one(tmp_path):
    if not packed_place._exchanged(*(_folder(tmp_path, name) for name in ("x", "y"))):
        pytest.skip("this system cannot exchange two folders at once")
    pack(task(), tmp_path / "set")
    for seed in range(1, 4):
        assert _calls_without_a_set(task(seed=seed), tmp_path / "set") == []
        assert open_packed(tmp_path / "set", source=task(seed=seed))


def _calls_without_a_set(source, place):
    """Replaces the set. Before and after every call, so between any two of the system's: where none was there."""
    missing = []

    def look(frame, event, _):
        if not os.path.exists(place / "manifest.json"):
            missing.append((event, frame.f_code.co_name, frame.f_lineno))

    sys.setprofile(look)
    try:
        pack(source, place, overwrite=True)
    finally:
        sys.setprofile(None)
    return missing


def _folder(parent, name):
    (parent / name).mkdir()
    return parent / name


def test_without_an_exchange_two_renames_do(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_place, "_exchanged", lambda one, other: False)
    pack(task(), tmp_path / "set")
    assert "move_into_place" in {name for _, name, _ in _calls_without_a_set(task(seed=1), tmp_path / "set")}
    packed = open_packed(tmp_path / "set")
    assert np.array_equal(packed(np.arange(50)), task(seed=1).inputs(np.arange(50)))
    assert os.listdir(tmp_path) == ["set"]


def test_what_a_dead_process_left_goes_and_what_a_living_one_holds_stays(tmp_path):
    left = [_folder(tmp_path, f".set.packing-{name}") for name in ("dead", "living", "new", "of-others")]
    (left[0] / "inputs.npy").write_bytes(b"half a file")
    for folder in left[:2]:
        os.utime(folder, (0, 0))
    held = os.open(left[1], os.O_RDONLY)
    assert packed_place._lock(held)
    pack(task(), tmp_path / "set")
    os.close(held)
    assert sorted(os.listdir(tmp_path)) == sorted(["set", *(folder.name for folder in left[1:])])


def test_a_system_that_opens_no_folders_and_renames_onto_nothing(tmp_path, monkeypatch, like_windows):
    monkeypatch.setattr(packed_place, "_exchanged", lambda one, other: False)
    left = _folder(tmp_path, ".set.packing-held-or-not")
    os.utime(left, (0, 0))
    pack(task(), tmp_path / "set")
    pack(task(seed=1), tmp_path / "set", overwrite=True)
    packed = open_packed(tmp_path / "set")
    assert np.array_equal(packed(np.arange(50)), task(seed=1).inputs(np.arange(50)))
    assert sorted(os.listdir(tmp_path)) == [left.name, "set"]
