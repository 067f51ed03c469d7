"""Files from strangers: loading them runs none of their code, opens no pickle, starts no process, calls nobody."""

import json
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.npy import read_npz
from deepauc.data.packed.sets import open_packed, pack
from deepauc.data.task import ArrayInputs
from deepauc.models.build import FactorySpec, MLPSpec, build_model
from deepauc.models.factory import PERMITTED
from deepauc.training.predict.predict import predict
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle, load_weights, save_weights
from deepauc.training.run.checkpoint import load_state


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return open, (self.place, "w")


def bundle_in(folder, model=None):
    folder.mkdir()
    spec = MLPSpec(hidden=(4,))
    bundle = Bundle(
        model=model or spec,
        shape=(3,),
        kind="binary",
        label_names=("y",),
        preprocessing=Preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3, images=False),
    )
    bundle.save(folder)
    save_weights(folder / "model.safetensors", build_model(spec, in_channels=3, num_outputs=1, seed=0))
    return bundle


def pickles(tmp_path):
    """A payload in every wrapping that some library would open."""
    payload, mark = Payload(tmp_path / "ran"), tmp_path / "ran"
    kinds = {f"protocol {number}": pickle.dumps(payload, protocol=number) for number in range(6)}
    torch.save(payload, tmp_path / "saved.pt")
    kinds["torch.save"] = (tmp_path / "saved.pt").read_bytes()
    torch.save(payload, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    kinds["old torch.save"] = (tmp_path / "old.pt").read_bytes()
    np.save(tmp_path / "array.npy", np.array([payload], dtype=object), allow_pickle=True)
    kinds["npy"] = (tmp_path / "array.npy").read_bytes()
    np.savez(tmp_path / "arrays.npz", a=np.array([payload], dtype=object))
    kinds["npz"] = (tmp_path / "arrays.npz").read_bytes()
    mark.unlink(missing_ok=True)
    return kinds, mark


def test_a_pickle_under_any_name_is_refused_and_not_opened(tmp_path):
    kinds, mark = pickles(tmp_path)
    bundle_in(tmp_path / "bundle")
    pack(ArrayInputs(np.zeros((4, 2, 2, 1), dtype=np.uint8)), tmp_path / "set")
    readers = {
        tmp_path / "bundle" / "model.safetensors": lambda: Bundle.load(tmp_path / "bundle").network(
            tmp_path / "bundle"
        ),
        tmp_path / "bundle" / "bundle.json": lambda: Bundle.load(tmp_path / "bundle"),
        tmp_path / "bundle" / "checkpoint.safetensors": lambda: load_state(
            tmp_path / "bundle" / "checkpoint.safetensors"
        ),
        tmp_path / "set" / "inputs.npy": lambda: open_packed(tmp_path / "set"),
        tmp_path / "set" / "manifest.json": lambda: open_packed(tmp_path / "set"),
        tmp_path / "arrays.npz": lambda: read_npz(tmp_path / "arrays.npz"),
    }
    for path, read in readers.items():
        before = path.read_bytes() if path.exists() else None
        for kind, content in kinds.items():
            path.write_bytes(content)
            with pytest.raises(ValueError, match=path.parent.name):
                read()
            assert not mark.exists(), (kind, path)
        if before is not None:
            path.write_bytes(before)
    pickle.loads(kinds["protocol 4"]).close()  # the payload is real
    assert mark.exists()


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        ("os:system", {"command": "touch {mark}"}),
        ("builtins:exec", {"source": "open('{mark}', 'w')"}),
        ("pathlib:Path.touch", {"self": "{mark}"}),
        ("torch:load", {"f": "{mark}", "weights_only": False}),
        ("hostile_module:anything", {}),
    ],
)
def test_a_bundle_that_names_code_is_refused_before_anything_is_imported(tmp_path, monkeypatch, factory, arguments):
    mark = tmp_path / "ran"
    (tmp_path / "hostile_module.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    arguments = {name: v.format(mark=mark) if isinstance(v, str) else v for name, v in arguments.items()}
    bundle_in(tmp_path / "bundle", FactorySpec(factory=factory, arguments=arguments))
    loaded = Bundle.load(tmp_path / "bundle")
    for load in (lambda: loaded.network(tmp_path / "bundle"), lambda: predict(tmp_path / "bundle", features_task())):
        with pytest.raises(ValueError, match=f"If you trust it, set {PERMITTED}={factory}"):
            load()
    assert not mark.exists()
    assert "hostile_module" not in sys.modules


def features_task():
    from deepauc.data.task import Task

    return Task(
        name="t",
        kind="binary",
        source=ArrayInputs(np.zeros((4, 3), dtype=np.float32)),
        labels=np.array([0, 1, 0, 1]),
        label_names=("y",),
        parts={},
    )


def test_a_factory_that_the_user_has_named_is_called(tmp_path, monkeypatch):
    spec = FactorySpec(factory="torch.nn:Linear", arguments={"in_features": 3, "out_features": 1})
    bundle = bundle_in(tmp_path / "bundle", spec)
    save_weights(tmp_path / "bundle" / "model.safetensors", torch.nn.Linear(3, 1))
    with pytest.raises(ValueError, match="If you trust it"):
        bundle.network(tmp_path / "bundle")
    monkeypatch.setenv(PERMITTED, "other:thing, torch.nn:Linear")
    assert isinstance(bundle.network(tmp_path / "bundle"), torch.nn.Linear)
    monkeypatch.delenv(PERMITTED)
    assert isinstance(bundle.network(tmp_path / "bundle"), torch.nn.Linear)  # called before in this process
    mine = FactorySpec(factory="torch.nn:LazyLinear", arguments={"out_features": 1})
    with pytest.raises(ValueError, match="If you trust it"):
        replace(bundle, model=mine).network(tmp_path / "bundle")


def test_absurd_headers_take_no_memory(tmp_path):
    bundle_in(tmp_path / "bundle")
    weights = tmp_path / "bundle" / "model.safetensors"
    entry = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    text = json.dumps({"head.weight": entry}).encode()
    for content in (struct.pack("<Q", 1 << 62), struct.pack("<Q", len(text)) + text, b"\xff" * 64, b""):
        weights.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            load_weights(weights, torch.nn.Linear(3, 1))
    described = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    described["model"]["hidden"] = [10**7, 10**7]  # 400 TB of weights
    (tmp_path / "bundle" / "bundle.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="takes 400,"):
        Bundle.load(tmp_path / "bundle").network(tmp_path / "bundle")


WATCHED = """
import sys
from pathlib import Path
import numpy as np
from deepauc.data.task import ArrayInputs, Task
from deepauc.training.run.bundle import Bundle
from deepauc.training.predict.predict import predict
import safetensors.torch

task = Task(name="t", kind="binary", source=ArrayInputs(np.zeros((4, 3), dtype=np.float32)),
            labels=np.array([0, 1, 0, 1]), label_names=("y",), parts={})
predict(sys.argv[1], task)  # everything that is imported on the way is there
seen = []
WATCH = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "socket.connect",
         "import", "compile", "marshal.loads", "ctypes.dlopen")
sys.addaudithook(lambda event, arguments: seen.append((event, arguments)) if event in WATCH else None)
predict(sys.argv[1], task)
Bundle.load(sys.argv[1]).network(sys.argv[1])
print(seen)
"""


def test_loading_a_bundle_unpickles_imports_compiles_and_starts_nothing(tmp_path):
    bundle_in(tmp_path / "bundle")
    # Set by Lightning where a test before this one imports it; torch then opens the driver's library at every look.
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_NVML_BASED_CUDA_CHECK"}
    found = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "bundle")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"
