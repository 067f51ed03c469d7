"""Training through a packed set several times larger than the memory that training may take."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deepauc.data.packed.sets import pack
from deepauc.data.task import Task

FEATURES = 1024
CHILD = """
import json, resource, sys
from pathlib import Path
import numpy as np
import torch
from deepauc import Recipe, Stage, train
from deepauc.data.packed.sets import open_packed
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import MLPSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec

def in_use():  # private memory of this process; pages of a mapped file are the system's, to take back as it likes
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmData")).split()[1])

def trained(task, folder):
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.01), epochs=1, batch_size=256)
    return train(Recipe(model=MLPSpec(hidden=()), stages=(stage,)), task, seed=0, run_dir=folder, device="cpu")

torch.set_num_threads(1)
large, run_dir, cap = sys.argv[1], sys.argv[2], int(sys.argv[3])
few = np.random.default_rng(0).normal(size=(600, 1024)).astype(np.float32)
parts = {"train": np.arange(300), "validation": np.arange(300, 600)}
small = Task(name="few", kind="binary", source=ArrayInputs(few), labels=np.arange(600) % 2, label_names=("y",),
             parts=parts)
trained(small, run_dir + "-few")  # what is imported and set up on the way
before = in_use()
resource.setrlimit(resource.RLIMIT_DATA, (before + cap, before + cap))
try:
    np.ones(2 * cap, dtype=np.uint8)
except MemoryError:
    refused = True
else:
    refused = False
run = trained(open_packed(large).task(), run_dir)
print(json.dumps({"refused": refused, "iterations": int(run.history[-1]["iteration"])}))
"""


class MadeUp:
    """Features made as they are asked for: the set never lies in the memory of this process either."""

    shape, dtype = (FEATURES,), np.dtype(np.float32)

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __call__(self, indices):
        noise = np.random.default_rng(0).random((1, FEATURES), dtype=np.float32)
        return (
            noise + (indices % 5 == 0).astype(np.float32)[:, None] + (indices % 977).astype(np.float32)[:, None] / 977
        )

    def digest(self):
        return f"made up {self.count}"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("rows", "cap"), [(50_000, 40_000_000), pytest.param(500_000, 100_000_000, marks=pytest.mark.slow)]
)
def test_a_set_several_times_larger_than_the_memory_allowed(tmp_path, rows, cap):
    size = rows * FEATURES * 4
    assert size > 5 * cap
    part = rows // 10
    task = Task(
        name="large",
        kind="binary",
        source=MadeUp(rows),
        labels=np.arange(rows) % 5 == 0,
        label_names=("y",),
        parts={"train": np.arange(rows - part), "validation": np.arange(rows - part, rows)},
    )
    pack(task, tmp_path / "set", shard_bytes=size // 3)
    found = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "set"), str(tmp_path / "run"), str(cap)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    said = json.loads(found.stdout)
    assert said["refused"]  # the limit is real
    assert said["iterations"] == (rows - part) // 256
