"""The small form of `make fuzz`'s changed files, and that a fault of a reader would be noticed."""

import random
import sys
import time
import warnings
from pathlib import Path

import pytest

RELIABILITY = Path(__file__).resolve().parents[2] / "reliability"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hangs are ended the way Linux has it")


@pytest.fixture
def mutations(monkeypatch):
    monkeypatch.syspath_prepend(RELIABILITY)
    return pytest.importorskip("fuzz_mutations")


@pytest.mark.parametrize("name", ["csv and parquet tables", "pictures", "TOML settings", "TFRecord", "npz sheets",
                                  "packed sets", "scores", "bundles", "checkpoints"])  # fmt: skip
def test_changed_files_give_a_message_or_a_result(mutations, tmp_path, name):
    reader = mutations.READERS[name]()
    reader.lay_out(tmp_path)
    original = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert all(
        reader.read_changed(tmp_path, target, target.good[0]) for target in reader.targets if target.name != "p"
    )  # what is not changed is read
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mutations.campaign(reader, 120, seed=3, folder=tmp_path)
    assert found["fault"] is None
    assert found["inputs"] == 120
    assert found["read"] < 120
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in original} == original


def test_changes_are_those_of_the_seed_and_change_something(mutations):
    good, words = b"id,label,score\n1,0,0.5\n", (b"nan",)
    draws = [random.Random(5), random.Random(5)]
    first, second = ([mutations.changed(good, [good], words, draw) for _ in range(300)] for draw in draws)
    assert first == second
    assert sum(one != good for one in first) > 250
    assert len(set(first)) > 250


class OwnValueError(ValueError):
    """Of a library, not of the package."""


@pytest.mark.parametrize("fault", [KeyError("x"), MemoryError(), OwnValueError("x"), ValueError(""), "hangs"])
def test_a_reader_that_does_anything_else_is_found_out(mutations, tmp_path, monkeypatch, fault):
    def read(folder, name):
        if len((folder / name).read_bytes()) > 40:
            if fault == "hangs":
                time.sleep(600)
            raise fault
        raise ValueError("too short")

    guarded = mutations.guarded
    if fault == "hangs":  # sooner found out than by default, but never a machine that is only busy
        monkeypatch.setattr(mutations, "guarded", lambda: guarded(5))
    module = sys.modules["fuzz_reader"]
    reader = module.Reader(targets=(module.Target(name="f", good=(b"x" * 40,)),), read=read, files={}, words=())
    found = mutations.campaign(reader, 500, seed=0, folder=tmp_path)
    assert found["fault"] is not None
    assert found["inputs"] < 500
    assert len(bytes.fromhex(found["fault"]["bytes"])) > 40
