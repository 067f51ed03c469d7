"""Whatever a bundle's two files hold: a network, or one ValueError that names the file. No code from it is run."""

import json
import os
import resource
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepauc.models.build import MLPSpec, SmallCNNSpec, build_model
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle, save_weights
from tests.fuzz import share_of

FUZZ = share_of(3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=5), some, max_size=3),
    max_leaves=6,
)
ODD = [
    "MLPSpec",
    "SmallCNNSpec",
    "TimmSpec",
    "FactorySpec",
    "Recipe",
    "elu",
    "os:system",
    "../x",
    "binary",
    "multilabel",
]


def good_bundle(folder: Path, spec: MLPSpec | SmallCNNSpec) -> None:
    folder.mkdir(parents=True)
    shape = (3,) if isinstance(spec, MLPSpec) else (4, 4, 3)
    Bundle(
        model=spec,
        shape=shape,
        kind="binary",
        label_names=("y",),
        preprocessing=Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3, images=len(shape) == 3),
        thresholds={"y": {"0.95": 0.5}},
    ).save(folder)
    save_weights(folder / "model.safetensors", build_model(spec, in_channels=3, num_outputs=1, seed=0))


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    good_bundle(root / "mlp", MLPSpec(hidden=(4,)))
    good_bundle(root / "cnn", SmallCNNSpec(widths=(2, 3)))
    return root


@pytest.fixture(autouse=True)
def little_memory():
    """A network of absurd size is refused before it is built, not when memory runs out."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limit)


def outcome(folder):
    try:
        return Bundle.load(folder).network(folder)
    except ValueError as error:
        fault = error
    assert type(fault) is ValueError
    assert str(folder) in str(fault)
    return None


@st.composite
def forged(draw, body):
    """A JSON value in which one place holds something else."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    if isinstance(body, dict) and body:
        key = draw(st.sampled_from(sorted(body)))
        if draw(st.integers(0, 9)) == 0:
            return {k: v for k, v in body.items() if k != key}
        return body | {key: draw(forged(body[key]))}
    if isinstance(body, list) and body:
        place = draw(st.integers(0, len(body) - 1))
        return [*body[:place], draw(forged(body[place])), *body[place + 1 :]]
    sizes = st.sampled_from([0, 1, 4, 10**6, 10**9, 10**12, 2**63, -1])
    return draw(JSON | sizes | st.lists(sizes, max_size=3) | st.sampled_from(ODD))


@FUZZ
@given(data=st.data())
def test_forged_descriptions(good, tmp_path, data):
    source = good / data.draw(st.sampled_from(["mlp", "cnn"]))
    body = data.draw(forged(json.loads((source / "bundle.json").read_text())))
    (tmp_path / "bundle.json").write_text(json.dumps(body))
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    outcome(tmp_path)


@FUZZ
@given(
    edits=st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=4)), max_size=4),
    end=st.integers(0, 900) | st.none(),
    name=st.sampled_from(["bundle.json", "model.safetensors"]),
    prefix=st.sampled_from([b"", b"[" * 20_000, b"\x80\x04", b"PK\x03\x04"]),
)
def test_altered_files(good, tmp_path, edits, end, name, prefix):
    for file in ("bundle.json", "model.safetensors"):
        (tmp_path / file).write_bytes((good / "mlp" / file).read_bytes())
    content = bytearray(prefix + (tmp_path / name).read_bytes())
    for place, some in edits:
        content[place : place + len(some)] = some
    (tmp_path / name).write_bytes(bytes(content[:end]))
    outcome(tmp_path)


@FUZZ
@given(
    dtype=st.sampled_from(["F32", "F64", "I64", "BF16", "Q", "C64", "F8_E4M3", "U16", "BOOL"]),
    shape=st.lists(st.sampled_from([0, 1, 3, 4, 10**9, 2**62, 2**64 - 1, -1]), max_size=3),
    offsets=st.lists(st.sampled_from([0, 4, 16, 48, 2**62, -1]), min_size=2, max_size=2),
    length=st.none() | st.integers(0, 2**64 - 1),
    name=st.sampled_from(["head.weight", "x", "../x", "__metadata__"]),
    body=st.binary(max_size=48),
)
def test_forged_weights(good, tmp_path, dtype, shape, offsets, length, name, body):
    (tmp_path / "bundle.json").write_bytes((good / "mlp" / "bundle.json").read_bytes())
    text = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()
    size = len(text) if length is None else length
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", size) + text + body)
    assert outcome(tmp_path) is None


def test_the_good_bundles_are_read(good):
    assert outcome(good / "mlp") is not None
    assert outcome(good / "cnn") is not None


@pytest.mark.parametrize("shape", [[0, 3, 2**62], [2**62, 2**62, 0], [0, 2**63 - 1, 2**63 - 1]])
def test_an_empty_tensor_of_absurd_shape_is_refused(good, tmp_path, shape):
    """It takes no bytes, so that no size is wrong; torch raises RuntimeError."""
    (tmp_path / "bundle.json").write_bytes((good / "mlp" / "bundle.json").read_bytes())
    text = json.dumps({"head.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert outcome(tmp_path) is None
