"""On a CUDA device: a rank under torchrun with NCCL, and two ranks that share the GPU over gloo, end where one does.

NCCL refuses two ranks on one GPU. So with one GPU it is one rank: as it is and in a group of NCCL's, which exchange
nothing, and made to exchange everything, which takes each of NCCL's collectives that a step and a scoring need.
"""

import csv
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

DEVICE, EXCHANGE = "cuda", "nccl"
PROGRAM = """
import json, os, sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine import distributed as ours
from deepauc.training.engine import loop
from deepauc.training.recipe import Recipe, Stage

torch.backends.cudnn.allow_tf32 = False
ROWS, BATCH = 700, 17  # on two ranks slices of 8 and 9
generator = np.random.default_rng(0)
labels = (generator.random(ROWS) < 0.3).astype(np.float32)
images = generator.integers(0, 150, (ROWS, 8, 8, 1)).astype(np.uint8)
images[:, 2:5, 2:5, 0] += (40 * labels).astype(np.uint8)[:, None, None]
task = Task(
    name="spots", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",),
    parts={"train": np.arange(96), "validation": np.arange(96, 660), "test": np.arange(660, ROWS)},
)
recipe = Recipe(
    model=SmallCNNSpec(widths=(4, 8)),
    stages=(
        Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), iterations=10, batch_size=BATCH,
              augment=Augment(crop_padding=1)),
        Stage(objective=AUCMargin(margin=0.5), optimizer=PESGSpec(lr=0.05, momentum=0.5), iterations=50,
              batch_size=BATCH, positives_per_batch=4, ema=0.9),
    ),
    deterministic=True,
)


def run(name, device):
    loop.train(recipe, task, seed=3, run_dir=Path(sys.argv[1]) / name, device=device, engine="plain")


class Exchanging(ours.Ranks):
    alone = False


@contextmanager
def one_that_exchanges():
    group = distributed.new_group(backend="gloo")
    ranks = Exchanging(group)
    yield ranks
    seen["exchanged"] = dict(ranks.exchanged)


what, device, seen = sys.argv[2], sys.argv[3], {}
if what == "without torchrun":
    run(what, device)
elif what == "one rank":
    run(what, device)  # torchrun's single process needs no process group
    if device == "cuda":
        torch.cuda.set_device(0)
        distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
    else:
        distributed.init_process_group("gloo")
    run("one rank in a group", device)
    loop.all_ranks = one_that_exchanges
    run("one rank that exchanges", device)
    seen["backend"] = distributed.get_backend()
    distributed.destroy_process_group()
else:
    distributed.init_process_group("gloo")
    run(what, device + ":0" if device == "cuda" else device)
    seen["backend"] = distributed.get_backend()
    distributed.barrier()
    distributed.destroy_process_group()
Path(sys.argv[1], f"{what}.{os.environ.get('RANK', 0)}.json").write_text(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All runs of this page, begun at once."""
    place = tmp_path_factory.mktemp("ranks")
    program = place / "program.py"
    program.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    starts = {
        "without torchrun": [sys.executable],
        "one rank": [*torchrun, "1"],
        "two ranks on one GPU": [*torchrun, "2"],
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    going = [
        subprocess.Popen(
            [*start, str(program), str(place), what, DEVICE],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for what, start in starts.items()
    ]
    said = [process.communicate(timeout=300)[0] for process in going]
    assert [process.returncode for process in going] == [0, 0, 0], "\n\n".join(said)
    return place


def seen(folder, what, rank=0):
    return json.loads((folder / f"{what}.{rank}.json").read_text())


def assert_close(one, other):
    weights, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == others.keys()
    for name in weights:
        np.testing.assert_allclose(others[name], weights[name], rtol=1e-4, atol=1e-4, err_msg=name)
    for name in ("history.csv", "scores.csv"):
        rows, other_rows = (list(csv.DictReader((run / name).open(newline=""))) for run in (one, other))
        assert len(rows) == len(other_rows) > 0
        for row, other_row in zip(rows, other_rows, strict=True):
            for column, value in row.items():
                if column not in ("id", "part", "group") and value:
                    close = math.isclose(float(value), float(other_row[column]), rel_tol=1e-3, abs_tol=1e-3)
                    assert close, (name, column, value, other_row[column])


def test_a_rank_under_torchrun_is_the_command_without_it_to_the_bit(folder):
    assert EXCHANGE in seen(folder, "one rank")["backend"]
    for run in ("one rank", "one rank in a group"):
        for name in ("history.csv", "scores.csv", "model.safetensors", "bundle.json"):
            assert (folder / run / name).read_bytes() == (folder / "without torchrun" / name).read_bytes(), (run, name)


def test_every_exchange_of_a_step_goes_through_nccl(folder):
    exchanged = seen(folder, "one rank")["exchanged"]
    assert all(exchanged[what] > 0 for what in ("gradients", "outputs", "statistics", "flags"))
    assert_close(folder / "without torchrun", folder / "one rank that exchanges")


def test_two_ranks_on_one_gpu_end_where_one_does(folder):
    assert [seen(folder, "two ranks on one GPU", rank)["backend"] for rank in (0, 1)] == ["gloo", "gloo"]
    assert json.loads((folder / "two ranks on one GPU" / "run.json").read_text())["ranks"] == 2
    assert_close(folder / "without torchrun", folder / "two ranks on one GPU")
