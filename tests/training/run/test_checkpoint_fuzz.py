"""Whatever a checkpoint holds: the state, or one ValueError that names the file. Nothing is unpickled on the way."""

import json
import struct
import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from deepauc.training.run.checkpoint import _checksum, load_state, save_state
from tests.fuzz import share_of

FUZZ = share_of(3)
STATE = {"a": [1, 2.5, None, "x"], 3: (torch.arange(4), {"deep": torch.ones(2, 2).bfloat16()}), "empty": {}}
with tempfile.TemporaryDirectory() as _place:
    save_state(Path(_place) / "c", STATE)
    GOOD = (Path(_place) / "c").read_bytes()  # once: a write waits for the disk
SKELETON = {"dict": [["a", {"tuple": [1, {"tensor": "0"}]}], ["b", [{"tensor": "1"}, None]]]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda some: (
        st.lists(some, max_size=4)
        | st.dictionaries(st.sampled_from(["tensor", "tuple", "dict", "x", "0"]), some, max_size=2)
    ),
    max_leaves=8,
)


def outcome(path):
    try:
        return [load_state(path)]
    except ValueError as error:
        fault = error
    assert type(fault) is ValueError
    assert str(path) in str(fault)
    return None


@FUZZ
@given(
    edits=st.lists(st.tuples(st.integers(0, 700), st.binary(max_size=4)), max_size=4),
    end=st.integers(0, 700) | st.none(),
    bare=st.booleans(),
)
def test_altered_files(tmp_path, edits, end, bare):
    path = tmp_path / "c"
    content = bytearray(b"" if bare else GOOD)
    for place, some in edits:
        content[place : place + len(some)] = some
    path.write_bytes(bytes(content[:end]))
    if (found := outcome(path)) is not None:  # then nothing has changed but blanks of the header
        assert found[0]["a"] == STATE["a"]
        assert torch.equal(found[0][3][0], STATE[3][0])
        assert torch.equal(found[0][3][1]["deep"], STATE[3][1]["deep"])


@FUZZ
@given(skeleton=JSON, deep=st.sampled_from([0, 0, 0, 20_000]), valid=st.booleans())
def test_forged_skeletons(tmp_path, skeleton, deep, valid):
    path = tmp_path / "c"
    text = "[" * deep + json.dumps([SKELETON, skeleton] if valid else skeleton) + "]" * deep
    tensors = {"0": torch.ones(2), "1": torch.zeros(0)}  # by someone who can compute a checksum
    path.write_bytes(save(tensors, metadata={"state": text, "sha256": _checksum(text, tensors)}))
    outcome(path)


@FUZZ
@given(
    header=st.dictionaries(
        st.sampled_from(["0", "1", "__metadata__", "é"]),
        JSON
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "BF16", "I64", "F8_E4M3", "Q", "C64"]) | JSON,
                "shape": st.lists(st.integers(-1, 2**64), max_size=3) | JSON,
                "data_offsets": st.lists(st.integers(-1, 2**64) | st.integers(0, 16), min_size=2, max_size=2) | JSON,
            }
        ),
        max_size=3,
    ),
    length=st.none() | st.integers(0, 2**64 - 1),
    body=st.binary(max_size=16),
)
def test_forged_headers(tmp_path, header, length, body):
    path = tmp_path / "c"
    text = json.dumps({"__metadata__": {"state": json.dumps(SKELETON)}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    outcome(path)


def test_any_one_changed_byte_is_noticed(tmp_path):
    save_state(tmp_path / "c", {"x": torch.arange(4), "y": [torch.zeros(()), "text"]})
    good = (tmp_path / "c").read_bytes()
    for place in range(len(good)):
        (tmp_path / "c").write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert outcome(tmp_path / "c") is None or good[place : place + 1].isspace(), place


def test_the_good_state_is_read(tmp_path):
    save_state(tmp_path / "c", STATE)
    assert outcome(tmp_path / "c")[0]["a"] == STATE["a"]


def test_an_empty_tensor_of_absurd_shape_is_refused(tmp_path):
    """It takes no bytes, so that no size is wrong; torch raises RuntimeError."""
    skeleton = json.dumps({"tensor": "0"})
    header = {"__metadata__": {"state": skeleton, "sha256": "0" * 64}}
    for shape in ([0, 3, 2**62], [2**62, 2**62, 0], [0, 2**63 - 1, 2**63 - 1]):
        text = json.dumps({**header, "0": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        (tmp_path / "c").write_bytes(struct.pack("<Q", len(text)) + text)
        assert outcome(tmp_path / "c") is None
