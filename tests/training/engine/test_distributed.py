"""k processes end where one does: at every step, in every kind of stage, after a stop, and after a loss."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from deepauc.training.engine.distributed import ALONE, Ranks, fresh_store

PROGRAM = Path(__file__).with_name("ranks_program.py")
FILES = ("history.csv", "scores.csv", "model.safetensors", "bundle.json")


def run_jobs(folder, jobs):
    """What each rank of each job has seen; a rank that was killed has seen nothing."""
    jobs = [{"run": job["name"], **job} for job in jobs]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), json.dumps(jobs)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for job in jobs:
        files = [folder / f"{job['name']}.{rank}.json" for rank in range(job["ranks"])]
        found[job["name"]] = [json.loads(f.read_text()) if f.exists() else None for f in files]
    return found


def on_ranks(scenario, numbers=(1, 2, 3)):
    return [{"name": f"{scenario} {k}", "scenario": scenario, "ranks": k} for k in numbers]


def assert_same_end(one, other, *, tolerance=1e-5):
    """Two run folders hold the same run up to rounding: weights, a, b, alpha, losses, AUCs, scores."""
    weights, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    for name in weights:
        np.testing.assert_allclose(others[name], weights[name], rtol=tolerance, atol=tolerance, err_msg=name)
    for name in ("history.csv", "scores.csv"):
        rows, other_rows = (list(csv.DictReader((f / name).open(newline=""))) for f in (one, other))
        assert len(rows) == len(other_rows) > 0
        for row, other_row in zip(rows, other_rows, strict=True):
            assert row.keys() == other_row.keys()
            for column, value in row.items():
                if column in ("id", "part", "group") or not value:
                    assert value == other_row[column]
                else:
                    close = math.isclose(float(value), float(other_row[column]), rel_tol=1e-4, abs_tol=10 * tolerance)
                    assert close, (name, column, value, other_row[column])


def assert_ranks_agree(seen):
    assert [s["ended"] for s in seen] == ["done"] * len(seen), seen
    assert len({s["weights"] for s in seen}) == 1
    assert len({json.dumps(s["history"]) for s in seen}) == 1  # the validation AUC among it, to the bit


def assert_bytes_as_expected(seen):
    """What was exchanged is what the recipe comes to."""
    for rank in seen:
        counted = {what: rank["exchanged"].get(what, 0) for what in rank["expected"]}
        assert counted == rank["expected"]
        assert (counted["gradients"] > 0) == (len(seen) > 1)


def test_two_stages_on_1_2_and_3_ranks_and_stopped_on_the_way(tmp_path):
    stop = {"scenario": "two stages", "ranks": 2, "happens": "interrupt", "at": 25}  # in the middle of an epoch
    jobs = [
        *on_ranks("two stages"),
        {"name": "stopped", **stop},
        {"name": "resumed", "scenario": "two stages", "ranks": 2, "run": "stopped"},
        {"name": "stopped too", **stop},
        {"name": "resumed on 3", "scenario": "two stages", "ranks": 3, "run": "stopped too"},
        {"name": "again", "scenario": "two stages", "ranks": 2, "run": "stopped"},
    ]
    seen = run_jobs(tmp_path, jobs)
    for k in (1, 2, 3):
        assert_ranks_agree(seen[f"two stages {k}"])
        assert_same_end(tmp_path / "two stages 1", tmp_path / f"two stages {k}")
    assert json.loads((tmp_path / "two stages 3" / "run.json").read_text())["ranks"] == 3

    assert [s["ended"] for s in seen["stopped"]] == ["Interrupted"] * 2  # only rank 1 was asked to
    assert all("Run the same command again" in s["message"] for s in seen["stopped"])
    assert_ranks_agree(seen["resumed"])
    for name in FILES:
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "two stages 2" / name).read_bytes(), name
    assert_ranks_agree(seen["resumed on 3"])
    assert_same_end(tmp_path / "two stages 1", tmp_path / "stopped too")
    assert [s["ended"] for s in seen["again"]] == ["done", "done"]
    assert "history" not in seen["again"][0]  # finished: nothing was done


def test_score_norm_several_labels_views_and_mixup(tmp_path):
    names = ("score norm", "several labels", "beyond AUROC", "views", "mixup in pieces", "dropout", "dropout in pieces")
    jobs = [job for name in names for job in on_ranks(name)]
    seen = run_jobs(tmp_path, [*jobs, *on_ranks("batch norm in pieces", (3,))])
    for name in names:
        for k in (1, 2, 3):
            assert_ranks_agree(seen[f"{name} {k}"])
            assert_same_end(tmp_path / f"{name} 1", tmp_path / f"{name} {k}")
            assert_bytes_as_expected(seen[f"{name} {k}"])
    assert_ranks_agree(seen["batch norm in pieces 3"])
    assert_bytes_as_expected(seen["batch norm in pieces 3"])


def test_bags(tmp_path):
    """Ranks have as many bags, and not as many images: statistics, dropout and gradients are of all of them."""
    names = ("bags", "bags in pieces")
    stop = {"scenario": "bags", "ranks": 2, "run": "stopped"}
    stopped = [{"name": "stopped", **stop, "happens": "interrupt", "at": 13}, {"name": "resumed", **stop}]
    seen = run_jobs(tmp_path, [*(job for name in names for job in on_ranks(name)), *stopped])
    for name in names:
        for k in (1, 2, 3):
            assert_ranks_agree(seen[f"{name} {k}"])
            assert_same_end(tmp_path / f"{name} 1", tmp_path / f"{name} {k}")
            assert_bytes_as_expected(seen[f"{name} {k}"])
    for name in FILES:
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "bags 2" / name).read_bytes(), name


def test_a_stop_is_heard_while_copies_are_scored_and_all_ranks_leave_together(tmp_path):
    """Whoever is asked breaks off at once, and the others leave with it when their share of the part is done."""
    run = {"scenario": "mixup in pieces", "ranks": 2}  # 3 batches of validation, in 3 copies each
    jobs = [{**run, "name": "whole"}]
    for to in (0, 1):
        jobs.append({**run, "name": f"stopped {to}", "in_scores_of": "validation", "to": to})
        jobs.append({**run, "name": f"resumed {to}", "run": f"stopped {to}"})
    seen = run_jobs(tmp_path, jobs)
    for to in (0, 1):
        stopped = seen[f"stopped {to}"]
        assert [s["ended"] for s in stopped] == ["Interrupted"] * 2
        assert all("Run the same command again" in s["message"] for s in stopped)
        assert stopped[to]["batches"] == 1
        assert_ranks_agree(seen[f"resumed {to}"])
        for name in FILES:
            assert (tmp_path / f"stopped {to}" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_first_stage_is_kept_by_all_ranks_together(tmp_path):
    """One lock for all of them: with one each, the first would wait for the others and they for its lock."""
    seen = run_jobs(tmp_path, on_ranks("first stage", (1, 2)))
    (name,) = seen["first stage 1"][0]["kept"]
    assert [rank["kept"] for rank in seen["first stage 2"]] == [[name]] * 2
    folders = [tmp_path / f"first stage {ranks}" / name for ranks in (1, 2)]
    assert all((folder / "DONE").exists() for folder in folders)
    weights, others = (load_file(folder / "model.safetensors") for folder in folders)
    assert weights.keys() == others.keys()
    for key in weights:
        np.testing.assert_allclose(others[key], weights[key], rtol=1e-5, atol=1e-5, err_msg=key)


def test_no_rank_leaves_before_all_have_connected(tmp_path):
    seen = run_jobs(tmp_path, on_ranks("slow to join", (2, 3)))
    for ranks in seen.values():
        assert min(rank["left"] for rank in ranks) > max(rank["connected"] for rank in ranks)


def test_what_goes_wrong_on_one_rank_ends_all_of_them(tmp_path):
    two = {"scenario": "two stages", "ranks": 2}
    jobs = [
        *on_ranks("batch norm"),
        {**two, "name": "killed", "ranks": 3, "happens": "kill", "at": 14},
        {**two, "name": "after the loss", "run": "killed"},
        {**two, "name": "whole"},
        {**two, "name": "error", "happens": "error", "at": 3},
        {**two, "name": "leader's error", "happens": "error", "at": 3, "to": 0},
        {**two, "name": "other data", "differs": True},
        {"name": "other run", "scenario": "score norm", "ranks": 2, "run": "whole"},
        {"name": "empty slice", "scenario": "too few rows", "ranks": 3},
    ]
    seen = run_jobs(tmp_path, jobs)

    whole = seen["batch norm 1"][0]["found"]
    for k in (2, 3):  # uneven: 7 rows
        for rank in seen[f"batch norm {k}"]:
            for ours, torchs in zip(rank["found"], whole, strict=True):
                np.testing.assert_allclose(ours, torchs, rtol=1e-12, atol=1e-12)

    first, lost, last = seen["killed"]
    assert lost is None
    for rank, survivor in ((0, first), (2, last)):
        assert survivor["ended"] == "TrainingStopped"
        assert f"rank {rank} of 3 lost another rank" in survivor["message"]
        assert "run the same command again" in survivor["message"]
    assert_ranks_agree(seen["after the loss"])
    assert_same_end(tmp_path / "whole", tmp_path / "killed")

    assert [s["ended"] for s in seen["error"]] == ["TrainingStopped", "ValueError"]
    assert seen["error"][1]["message"] == "image 7 cannot be read"
    assert [s["ended"] for s in seen["leader's error"]] == ["ValueError", "TrainingStopped"]
    for job, message in (
        ("other data", "rank 1 differs from rank 0 in recipe, data or seed"),
        ("other run", "holds another run"),
        ("empty slice", "a batch of 2 in 1 piece cannot be shared by 3 ranks"),
    ):
        assert {s["ended"] for s in seen[job]} == {"ValueError"}, seen[job]
        assert all(message in s["message"] for s in seen[job])


@pytest.mark.parametrize("total", [1, 7, 16, 513])
@pytest.mark.parametrize("unit", [1, 4, 256])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_are_a_partition_in_whole_units(total, unit, size):
    shares = []
    for rank in range(size):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, size
        shares.append(ranks.share(total, unit=unit))
    assert [row for share in shares for row in range(total)[share]] == list(range(total))
    assert all(share.start % unit == 0 or share.start == total for share in shares)
    units = [-(-(share.stop - share.start) // unit) for share in shares]
    assert max(units) - min(units) <= 1


def test_alone_nothing_is_exchanged():
    x = torch.randn(3, 2, requires_grad=True)
    assert ALONE.gather_outputs(x, 3) is x
    assert ALONE.share(5) == slice(0, 5)
    assert ALONE.told("x") == "x"
    assert not ALONE.stop_asked()
    assert not ALONE.exchanged


def test_a_restart_finds_a_store_without_what_the_last_start_left_in_it():
    store, starts = torch.distributed.HashStore(), []
    for ranks in ((0, 1), (0, 1, 2), (2, 0, 1)):  # at the first start rank 2 was lost before it came here
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(fresh_store, store, rank, len(ranks)) for rank in ranks]
            found = {rank: result.result(timeout=600) for rank, result in zip(ranks, waiting, strict=True)}
        found[0].set("address", str(len(starts)))
        starts.append(found)
    for number, found in enumerate(starts):
        assert {part.get("address") for part in found.values()} == {str(number).encode()}


def write_table(folder, rows=240):
    generator = np.random.default_rng(0)
    label = (generator.random(rows) < 0.3).astype(int)
    x = generator.normal(size=(rows, 3)) + label[:, None] * [1.0, 0.5, 0.0]
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x1", "x2", "x3", "y"])
        writer.writerows([*map(float, row), int(y)] for row, y in zip(x, label, strict=True))


def command(out, *options):
    features = [word for name in ("x1", "x2", "x3") for word in ("--feature-column", name)]
    return ["-m", "deepauc.cli.main", "train", "--table", "table.csv", *features, "--label-column", "y", "--out", out,
            "--device", "cpu", *options]  # fmt: skip


def torchrun(folder, words, *, ranks=2, restarts=0):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(
        [*launcher, "--max-restarts", str(restarts), *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_torchrun_of_the_command_is_the_command(tmp_path):
    write_table(tmp_path)
    alone = subprocess.run([sys.executable, *command("alone")], cwd=tmp_path, capture_output=True, check=False)
    assert alone.returncode == 0, alone.stderr
    both = torchrun(tmp_path, command("both", "--tune", "2"))
    out, err = both.communicate(timeout=600)
    assert both.returncode == 0, err
    assert out.count("report.html") == 1  # one rank speaks
    both = torchrun(tmp_path, command("untuned"))
    out, err = both.communicate(timeout=600)
    assert both.returncode == 0, err
    assert_same_end(tmp_path / "alone", tmp_path / "untuned", tolerance=1e-4)
    assert (tmp_path / "untuned" / "report.html").exists()
    again = torchrun(tmp_path, command("untuned"))
    out, err = again.communicate(timeout=600)
    assert again.returncode == 0, err
    assert "nothing was changed" in out


def children(pid):
    """Processes below this one."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.slow
def test_kill_9_of_a_rank_under_torchrun_resumes_by_itself(tmp_path):
    write_table(tmp_path)
    whole = torchrun(tmp_path, command("whole", "--epochs", "40"))
    assert whole.wait(600) == 0, whole.stderr.read()
    for restarts in (1, 0):
        run = tmp_path / f"killed {restarts}"
        job = torchrun(tmp_path, command(run.name, "--epochs", "40"), restarts=restarts)
        until = time.monotonic() + 300
        while not (run / "history.csv").exists() and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(max(children(job.pid)), signal.SIGKILL)
        _, err = job.communicate(timeout=600)
        if restarts:
            assert job.returncode == 0, err
            for name in FILES:
                assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
        else:
            assert job.returncode != 0
            assert "lost another rank" in err
            assert (run / "checkpoint.safetensors").exists()
            assert not (run / "DONE").exists()
