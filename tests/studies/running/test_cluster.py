"""Runs as tasks of a cluster: none lost, none twice, the records those of one process; whatever becomes of workers."""

import fcntl
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from deepauc.cli.main import run as main
from deepauc.models.build import FactorySpec
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.file import read_runs
from deepauc.studies.running import runner
from deepauc.studies.running.cluster import Cluster, carry_out, lock_path, packs
from deepauc.studies.running.missing import MissingRuns
from deepauc.studies.running.runner import run_studies
from deepauc.studies.sources import Place
from tests.studies.running.test_runner import SMALL, a_study, ce

PAPER = str(Path(__file__).parents[3] / "experiments" / "paper.py")
OF_A_MOMENT = ("seconds", "hardware", "commit")  # of a record: they are those of the machine and its source tree


class Hands:
    """Carries out orders in this process. lost: how often an order with this run is lost for good."""

    threads, local = 1, False

    def __init__(self, *, slots=2, lost=(), elsewhere=None):
        self.slots, self.lost, self.elsewhere = slots, Counter(lost), elsewhere
        self.waiting, self.orders = [], []

    def begin(self, order):
        self.waiting.append(order)
        self.orders.append(order.ids)

    def next_ended(self):
        order = self.waiting.pop()  # the last one first: answers come in any order
        for one in order.ids:
            if self.lost[one]:
                self.lost[one] -= 1
                return order, "its worker was lost"
        sent = order if self.elsewhere is None else replace(order, place=self.elsewhere, mark=self.elsewhere.runs / "x")
        return order, carry_out(sent)


def run(studies, folder, monkeypatch=None, hands=None, **options):
    """By these hands, or in this process."""
    if hands is not None:

        @contextmanager
        def joined(cluster, device):
            yield hands, torch.device("cpu")

        monkeypatch.setattr(runner, "joined", joined)
        options["cluster"] = Cluster()
    place = Place(runs=folder / "runs", results=folder / "results")
    outcome = run_studies("s", studies, place=place, **{"device": "cpu", **options})
    return outcome, RecordBook(folder / "results" / "s")


def kept(folder):
    """All records, without what is of the moment; each run of a study once."""
    records = [record for _, record in read_runs(folder / "results" / "s.jsonl")]
    keys = [(record["study"], record["phase"], record["run"]) for record in records]
    assert len(set(keys)) == len(keys)
    return {key: {k: v for k, v in r.items() if k not in OF_A_MOMENT} for key, r in zip(keys, records, strict=True)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The records of one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert run([a_study()], folder)[0].done == 4
    return kept(folder)


def test_tasks_leave_the_records_of_one_process(alone, tmp_path, monkeypatch):
    hands = Hands()
    outcome, _ = run([a_study()], tmp_path, monkeypatch, hands)
    assert (outcome.done, outcome.failed) == (4, [])
    assert kept(tmp_path) == alone
    assert [len(ids) for ids in hands.orders] == [1] * 4
    assert not list((tmp_path / "runs").glob(".cluster-*"))
    assert run([a_study()], tmp_path, monkeypatch, hands)[0].done == 0


def test_a_folder_that_is_not_shared_is_sent_back(alone, tmp_path, monkeypatch):
    hands = Hands(elsewhere=Place(runs=tmp_path / "their runs"))
    outcome, _ = run([a_study()], tmp_path, monkeypatch, hands)
    assert (outcome.done, outcome.failed) == (4, [])
    assert kept(tmp_path) == alone
    final = next(one for _, phase, one in alone if phase == "final")
    for name in ("scores.csv", "model.safetensors", "DONE"):
        theirs = tmp_path / "their runs" / final / name
        assert (tmp_path / "runs" / final / name).read_bytes() == theirs.read_bytes()


def test_a_pack_is_spread_over_the_slots_and_taken_apart_when_it_is_lost(tmp_path, monkeypatch):
    study = a_study(method=ce, grid={}, seeds=(0, 1, 2, 3, 4))
    missing = MissingRuns([study], RecordBook(tmp_path), Place(runs=tmp_path)).ready()
    assert [len(some) for some in packs(missing, pack=24, slots=1)] == [5]
    assert [len(some) for some in packs(missing, pack=24, slots=2)] == [3, 2]
    assert [len(some) for some in packs(missing, pack=2, slots=1)] == [2, 2, 1]
    assert [len(some) for some in packs(missing, pack=24, slots=9)] == [1] * 5

    third = missing[2].id
    hands = Hands(lost={third: 2})  # with its pack, and alone
    outcome, book = run([study], tmp_path, monkeypatch, hands, pack=3)
    ((text, message),) = outcome.failed
    assert "set 2" in text
    assert "lost" in message
    assert [len(ids) for ids in hands.orders] == [3, 2, 1, 1, 1]
    assert [(r["seed"], r["packed"]) for r in book.final("m")] == [(0, 1), (1, 1), (3, 2), (4, 2)]
    outcome, book = run([study], tmp_path, monkeypatch, hands, pack=3)
    assert (outcome.done, [r["seed"] for r in book.final("m")]) == (1, [0, 1, 2, 3, 4])


def test_a_failed_run_costs_no_other(tmp_path, monkeypatch):
    wild = a_study(method=ce, grid={"lr": (0.1, 1e30)}, seeds=(0,))
    outcome, book = run([wild], tmp_path, monkeypatch, Hands())
    ((text, message),) = outcome.failed
    assert "lr=1e+30" in text
    assert "NaN or infini" in message
    assert outcome.done == 2
    assert book.final("m")[0]["config"] == {"lr": 0.1}
    (failed,) = [record for record in book.tuning("m") if "failed" in record]
    assert failed["numerics"] == book.final("m")[0]["numerics"]


def test_a_worker_waits_for_the_one_that_has_the_folder(tmp_path, monkeypatch):
    study = a_study(method=ce, grid={}, seeds=(0,))
    place = Place(runs=tmp_path / "runs")
    (missing,) = MissingRuns([study], RecordBook(tmp_path), place).ready()
    lock = lock_path(missing.folder(place))
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome, _ = run([study], tmp_path, monkeypatch, Hands(), max_minutes=2 / 60)
        assert (outcome.done, outcome.out_of_time) == (0, True)
        assert not (missing.folder(place) / "run.json").exists()
        letting_go = threading.Timer(1, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        letting_go.start()
        assert run([study], tmp_path, monkeypatch, Hands())[0].done == 1
        letting_go.join()
    assert lock.read_text().split()[1] == str(os.getpid())


def test_a_worker_without_a_mask_of_signals(tmp_path, monkeypatch):
    monkeypatch.delattr(signal, "pthread_sigmask")  # as on Windows
    study = a_study(method=ce, grid={}, seeds=(0,))
    assert run([study], tmp_path, monkeypatch, Hands())[0].done == 1


def test_what_a_cluster_cannot_be_asked_for(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="at least 1 CPU"):
        Cluster(cpus=0)
    with pytest.raises(ValueError, match="local processes"):
        run([a_study()], tmp_path, cluster=Cluster(), jobs=2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"deepauc\[cluster\]"):
        run([a_study()], tmp_path, cluster=Cluster())


def test_the_command_says_where_and_with_what(tmp_path, monkeypatch):
    asked = []

    @contextmanager
    def joined(cluster, device):
        asked.append((cluster, device))
        yield Hands(), torch.device("cpu")

    monkeypatch.setattr(runner, "joined", joined)
    monkeypatch.chdir(tmp_path)
    small = ["--cells", "*-ce", "--configs", "1", "--seeds", "0", "--set", "epochs=1"]
    options = ["--cluster", "node0:6379", "--task-gpus", "0.5", "--task-cpus", "2", "--retries", "1", "--quiet"]
    with pytest.raises(SystemExit) as leaving:
        main(["study", "run", PAPER, "smoke", *small, *options])
    assert not leaving.value.code
    assert asked == [(Cluster(address="node0:6379", gpus=0.5, cpus=2, retries=1), None)]
    assert len(read_runs(tmp_path / "results" / "smoke.jsonl")) == 1  # relative folders are those of the command


COUNTING = """
import os, time
import torch


class Counting(torch.nn.Module):
    '''A byte for every training step, whichever process makes it.'''

    def __init__(self, in_channels, num_outputs):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * in_channels, num_outputs))

    def forward(self, x):
        if self.training:
            file = os.open(os.environ["COUNT_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, b".")
            os.close(file)
            time.sleep(0.004)
        return self.layers(x)
"""


def counted(*, lr, epochs=40):
    recipe = ce(**{**SMALL, "epochs": epochs}, lr=lr)
    return replace(recipe, model=FactorySpec(factory="counting_network:Counting"))


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra `cluster`)")


@pytest.mark.slow
@needs_ray
def test_tasks_of_a_real_cluster_stop_in_time(tmp_path):
    long = a_study(method=ce, grid={}, fixed={**SMALL, "epochs": 1_000_000})
    outcome, _ = run([long], tmp_path, cluster=Cluster(), max_minutes=0.4)
    assert (outcome.done, outcome.failed, outcome.out_of_time) == (0, [], True)
    assert list((tmp_path / "runs").glob("*/checkpoint.safetensors"))


@pytest.mark.slow
@needs_ray
def test_a_worker_of_a_real_cluster_is_killed(tmp_path, monkeypatch):
    (tmp_path / "counting_network.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    study = a_study(method=counted, fixed={}, grid={"lr": (0.03, 0.1, 0.3)}, tuning={"epochs": 30})

    def steps_of(folder, **options):
        folder.mkdir()
        monkeypatch.setenv("COUNT_STEPS", str(folder / "steps"))
        outcome, _ = run([study], folder, **options)
        assert (outcome.done, outcome.failed) == (3 + 2, [])
        return (folder / "steps").stat().st_size, kept(folder)

    def kill_one(folder, phase, killed):
        """kill -9 of a worker between two checkpoints of its run."""
        until = time.monotonic() + 120
        while time.monotonic() < until and len(killed) < phase:
            for checkpoint in (folder / "runs").glob("*/checkpoint.safetensors"):
                run_dir = checkpoint.parent
                half = (run_dir / "history.csv").exists() and len((run_dir / "history.csv").read_text().split()) > 10
                if half and not (run_dir / "DONE").exists() and run_dir.name not in killed:
                    _, pid = lock_path(run_dir).read_text().split()
                    os.kill(int(pid), signal.SIGKILL)
                    killed.append(run_dir.name)
                    break
            time.sleep(0.02)

    expected, records = steps_of(tmp_path / "alone")
    killed = []
    killer = threading.Thread(target=kill_one, args=(tmp_path / "cluster", 2, killed))
    killer.start()
    done, on_cluster = steps_of(tmp_path / "cluster", cluster=Cluster())
    killer.join()
    assert len(killed) == 2
    assert on_cluster.keys() == records.keys()
    for run_of, record in records.items():
        assert [on_cluster[run_of][name] for name in record] == list(record.values()), run_of
    an_epoch = 1 + max(record["steps"] for record in records.values()) // 30
    assert expected <= done <= expected + 2 * an_epoch  # each resumed within the epoch it was killed in
