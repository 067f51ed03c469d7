"""State survives to the bit; damage and pickles are named; a failed write loses nothing."""

import errno
import os
import pickle

import pytest
import torch

from deepauc.training.run.checkpoint import load_state, save_state
from deepauc.training.run.output_file import write_atomically

STATE = {
    "a": [1, 2.5, None, True, "x"],
    3: (torch.arange(4), {"deep": torch.tensor(0.1, dtype=torch.bfloat16)}),
    "nan": float("nan"),
    "empty": {},
}


def test_round_trip(tmp_path):
    save_state(tmp_path / "c", STATE)
    found = load_state(tmp_path / "c")
    assert found["a"] == STATE["a"]
    assert torch.equal(found[3][0], STATE[3][0])
    assert found[3][1]["deep"].dtype == torch.bfloat16
    assert found["nan"] != found["nan"]
    assert isinstance(found[3], tuple)
    assert found["empty"] == {}


def test_layout_does_not_matter(tmp_path):
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    save_state(tmp_path / "c", {"x": x, "y": x[:, 1], "again": x})
    found = load_state(tmp_path / "c")
    assert torch.equal(found["x"], x)
    assert torch.equal(found["y"], x[:, 1])


def test_pickles_are_refused(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "a")
    (tmp_path / "b").write_bytes(pickle.dumps({"w": 1}))
    for name in "ab":
        with pytest.raises(ValueError, match="pickle"):
            load_state(tmp_path / name)


@pytest.mark.parametrize("cut", [0, 5, 40, -3])
def test_damage_is_named(tmp_path, cut):
    save_state(tmp_path / "c", STATE)
    content = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(content[:cut])
    with pytest.raises(ValueError, match="damaged"):
        load_state(tmp_path / "c")


def test_missing_file(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_state(tmp_path / "c")


def test_a_full_disk_keeps_the_old_file_and_leaves_no_rubbish(tmp_path, monkeypatch):
    write_atomically(tmp_path / "c", b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="untouched"):
        write_atomically(tmp_path / "c", b"new")
    assert (tmp_path / "c").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["c"]


def test_a_file_is_written_where_folders_cannot_be_opened(tmp_path, like_windows):
    for content in (b"old", b"new"):
        write_atomically(tmp_path / "c", content)
    assert (tmp_path / "c").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["c"]


def test_what_was_loaded_lets_go_of_the_file(tmp_path):
    """On Windows a file that is mapped cannot be replaced: a resumed run could not have written its next checkpoint."""
    path = tmp_path / "c"
    save_state(path, {"x": torch.arange(1000.0)})
    found = load_state(path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))  # seen through a mapping
    assert torch.equal(found["x"], torch.arange(1000.0))


def test_what_cannot_be_saved_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="object"):
        save_state(tmp_path / "c", {"x": object()})
