"""Running studies: idempotent, the same by every road, a failure costs no other run, no test score while tuning."""

import csv
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.metrics.auroc import auroc
from deepauc.metrics.average_precision import average_precision
from deepauc.metrics.partial import partial_auroc
from deepauc.models.build import FactorySpec
from deepauc.studies.chosen import RecordedSettings
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.status import status_of
from deepauc.studies.running import execution, runner
from deepauc.studies.running.execution import OutOfTime, time_limit
from deepauc.studies.running.missing import MissingRuns, TaskShelf, same_shape
from deepauc.studies.running.runner import _keep_key, _score_key, _Session, _speed_key, run_studies
from deepauc.studies.sources import Place
from deepauc.studies.study import Inherits, Study, StudySet
from deepauc.text_tables import percent_text
from deepauc.training.engine.trainer import Trainer
from deepauc.training.run.interrupt import InterruptFlag
from experiments.benchmarks import smoke
from experiments.benchmarks.recipes import METHODS
from experiments.benchmarks.smoke import DigitsSource

auc_m, ce = METHODS["auc_m"], METHODS["ce"]

SMALL = {"network": "S", "batch_size": 64, "augmented": False, "precision": "float32", "epochs": 2}


def a_study(name="m", **changes):
    given = {
        "task": DigitsSource(imratio=0.1),
        "method": auc_m,
        "fixed": SMALL,
        "grid": {"margin": (0.3, 1.0), "lr": (0.1,)},
        "tuning": {"epochs": 1},
        "seeds": (0, 1),
        "group": "g",
    }
    return Study(name=name, **{**given, **changes})


def replace_needs(source, names):
    """The source, which must wait for final runs of these studies."""

    class Waiting(type(source)):
        needs = names

    return Waiting(imratio=source.imratio)


def run(studies, folder, **options):
    place = Place(runs=folder / "runs", results=folder / "results")
    return run_studies("s", studies, place=place, **{"device": "cpu", **options}), RecordBook(folder / "results" / "s")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two studies, one by one; the second has nothing to tune."""
    folder = tmp_path_factory.mktemp("done")
    studies = [a_study(test_curve=True, alpha_curve=True), a_study("c", method=ce, grid={})]
    steps = []
    outcome, book = run(studies, folder, report=steps.append)
    return folder, studies, outcome, book, steps


def test_tunes_selects_and_refits(done):
    _, _studies, outcome, book, _ = done
    assert (outcome.done, outcome.failed, outcome.out_of_time) == (2 + 2 + 2, [], False)
    tuning = {record["config"]["margin"]: record["auc"]["validation"][0] for record in book.tuning("m")}
    finals = book.final("m")
    assert [record["seed"] for record in finals] == [0, 1]
    assert {record["config"]["margin"] for record in finals} == {max(tuning, key=tuning.get)}
    assert finals[0]["selection"]["rule"]["type"] == "BestMeanValidation"
    assert book.tuning("c") == []
    assert book.final("c")[0]["config"] == {}


def test_tuning_runs_have_no_test_score(done):
    folder, _, _, book, _ = done
    for record in book.tuning("m"):
        assert set(record["auc"]) == {"validation"}
        assert "test" not in record["task"]["rows"]
        assert "test" not in json.loads((folder / "runs" / record["run"] / "run.json").read_text())["results"]["auc"]
        assert {p.name for p in (folder / "runs" / record["run"]).iterdir()} <= {"run.json", "history.csv", "DONE"}


def test_final_runs_are_refits_on_all_of_it_with_curves(done):
    folder, _, _, book, _ = done
    record = book.final("m")[0]
    assert set(record["task"]["rows"]) == {"train", "test"}
    assert record["task"]["rows"]["train"] > book.tuning("m")[0]["task"]["rows"]["train"]
    value, low, high = record["auc"]["test"]
    assert low < value < high
    assert record["test_curve"][-1] == pytest.approx(value, abs=1e-4)
    assert len(record["test_curve"]) == 2
    assert len(record["alpha"]["value"]) == len(record["alpha"]["step"]) == record["steps"]
    zero = sum(v == 0 for v in record["alpha"]["value"]) / record["steps"]
    assert record["alpha_zero_share"] == pytest.approx(zero, abs=1e-6)
    with (folder / "runs" / record["run"] / "scores.csv").open() as file:
        assert {row["part"] for row in csv.DictReader(file)} == {"train", "test"}
    assert "test_curve" not in book.final("c")[0]
    assert book.final("c")[0]["alpha_zero_share"] is None


def test_progress_counts_down_to_nothing(done):
    *_, steps = done
    assert [step.done for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [step.left for step in steps] == [5, 4, 3, 2, 1, 0]
    assert steps[-1].seconds_left == 0


def test_again_does_nothing_and_needs_no_run_folders(done, tmp_path):
    folder, studies, *_ = done
    place = Place(runs=tmp_path / "others", results=folder / "results")
    assert run_studies("s", studies, place=place, device="cpu").done == 0
    assert not (tmp_path / "others").exists()


def test_a_lost_record_is_distilled_again_from_its_folder(done, monkeypatch):
    folder, studies, _, _book, _ = done
    path = folder / "results" / "s.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    (before,) = [r for r in RecordBook(path).final("m") if r["seed"] == 1]
    path.write_text("".join(line for line in lines if not ('"phase":"final"' in line and before["run"] in line)))
    monkeypatch.setattr(execution, "train", lambda *_, **__: pytest.fail("trained again"))
    outcome, again = run(studies, folder)
    assert outcome.done == 1
    assert again.final("m")[1] == before


def same_results(book, other, study, seeds=(0, 1)):
    records = [record for record in book.final(study) if record["seed"] in seeds]
    for mine, theirs in zip(records, other.final(study), strict=True):
        assert mine["run"] == theirs["run"]
        assert mine["auc"]["test"] == pytest.approx(theirs["auc"]["test"], abs=2e-3)


def test_packed_runs_give_the_same(done, tmp_path):
    _, studies, _, book, _ = done
    outcome, packed = run(studies, tmp_path, pack=3)
    assert outcome.done == 6
    assert sorted(r["packed"] for s in "mc" for r in packed.final(s)) == [2, 2, 2, 2]
    for study in "mc":
        same_results(book, packed, study)


def in_pieces(*, lr=0.1):
    """Which the fast engine does not take."""
    recipe = ce(**SMALL, lr=lr)
    return replace(recipe, stages=tuple(replace(stage, accumulate=2) for stage in recipe.stages))


def test_runs_for_the_plain_engine_are_trained_alone_where_others_are_packed(tmp_path):
    studies = [
        a_study(name="pieces", method=in_pieces, fixed={}, grid={}, tuning={}),
        a_study(name="whole", method=ce, grid={}),
    ]
    outcome, book = run(studies, tmp_path, pack=4)
    assert (outcome.done, outcome.failed) == (4, [])
    assert [record["packed"] for record in book.final("pieces")] == [1, 1]
    assert [record["packed"] for record in book.final("whole")] == [2, 2]


def test_local_processes_give_the_same(done, tmp_path):
    _, studies, _, book, _ = done
    outcome, spawned = run([replace(studies[1], seeds=(1,))], tmp_path, jobs=2)
    assert outcome.done == 1
    same_results(book, spawned, "c", seeds=(1,))


def may_die(*, fatal=False, lr=0.1):
    """Cross-entropy, or a network that takes its process with it when it is built."""
    recipe = ce(**SMALL, lr=lr)
    return replace(recipe, model=FactorySpec(factory="os:_exit", arguments={"status": 3})) if fatal else recipe


@pytest.mark.slow
def test_a_killed_process_costs_no_other_run(tmp_path):
    studies = [
        a_study("dies", method=may_die, grid={}, fixed={"fatal": True}, tuning={}, seeds=(0,)),
        a_study("lives", method=may_die, grid={}, fixed={}, tuning={}, seeds=(0, 1)),
    ]
    outcome, book = run(studies, tmp_path, jobs=2)
    ((text, message),) = outcome.failed
    assert text.startswith("dies")
    assert "killed" in message
    assert [record["seed"] for record in book.final("lives")] == [0, 1]


def test_a_diverging_run_costs_no_other_and_is_not_tried_again(tmp_path):
    wild = a_study(method=ce, grid={"lr": (0.1, 1e30)}, seeds=(0,))
    for road in ({"pack": 4}, {"pack": 1}):
        outcome, book = run([wild], tmp_path / str(road), **road)
        ((text, message),) = outcome.failed
        assert "lr=1e+30" in text
        assert "NaN or infini" in message
        assert outcome.done == 2
        assert book.final("m")[0]["config"] == {"lr": 0.1}
        assert run([wild], tmp_path / str(road), **road)[0].done == 0
        shown = status_of(StudySet(name="s", title="", studies=(wild,)), (wild,), tmp_path / str(road) / "results")
        assert shown[0].failed == 1


def test_a_final_run_that_diverges_leaves_a_record_and_is_not_tried_again(tmp_path):
    wild = a_study(method=ce, grid={}, fixed={**SMALL, "lr": 1e30}, tuning={}, seeds=(0, 1))
    outcome, book = run([wild], tmp_path)
    assert (outcome.done, len(outcome.failed), book.final("m")) == (0, 2, [])
    again, book = run([wild], tmp_path)
    assert (again.done, again.failed) == (0, [])
    assert sorted(record["seed"] for record in book.diverged("m")) == [0, 1]
    assert all("NaN or infini" in record["failed"] and record["hardware"] for record in book.diverged("m"))
    assert not any(str(tmp_path) in record["failed"] for record in book.diverged("m"))
    (shown,) = status_of(StudySet(name="s", title="", studies=(wild,)), (wild,), tmp_path / "results")
    assert (shown.final, shown.failed, shown.outdated) == (0, 2, 0)
    later = a_study("later", task=replace_needs(wild.task, ("m",)))
    planner = MissingRuns([wild, later], book, Place(runs=tmp_path / "runs", results=tmp_path / "results"))
    assert "some of m have diverged" in planner.waiting()["later"]
    tamed = a_study(method=ce, grid={}, fixed={**SMALL, "lr": 0.1}, tuning={}, seeds=(0, 1))
    assert run([tamed], tmp_path)[0].done == 2
    (shown,) = status_of(StudySet(name="s", title="", studies=(tamed,)), (tamed,), tmp_path / "results")
    assert (shown.final, shown.failed) == (2, 0)  # those of another setting are none of its own


def test_a_study_whose_settings_all_diverge_costs_no_other(tmp_path):
    studies = [
        a_study("wild", method=ce, grid={"lr": (1e29, 1e30)}, seeds=(0,)),
        a_study("tame", method=ce, grid={"lr": (0.1, 0.01)}, seeds=(0,)),
    ]
    for _ in range(2):  # the second call finds the records
        outcome, book = run(studies, tmp_path)
        assert outcome.unavailable.keys() == {"wild"}
        assert "nothing to choose" in outcome.unavailable["wild"]
    assert [len(book.final(name)) for name in ("wild", "tame")] == [0, 1]
    assert len(status_of(StudySet(name="s", title="", studies=tuple(studies)), studies, tmp_path / "results")) == 2


def test_a_pack_that_does_not_fit_into_memory_is_halved(tmp_path, monkeypatch):
    real, sizes = execution.train_together, []

    def small_device(jobs, **options):
        sizes.append(len(jobs))
        if len(jobs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(jobs, **options)

    monkeypatch.setattr(execution, "train_together", small_device)
    outcome, book = run([a_study(method=ce, grid={}, seeds=(0, 1, 2))], tmp_path, pack=4)
    assert (sizes, outcome.done, outcome.failed) == ([3, 1, 2], 3, [])
    assert [record["packed"] for record in book.final("m")] == [1, 2, 2]


def test_an_unfinished_run_of_other_code_is_begun_again(done, tmp_path):
    _, studies, _, book, _ = done
    record = book.final("c")[0]
    folder = tmp_path / "runs" / record["run"]
    folder.mkdir(parents=True)
    stale = {"identity": {**record["identity"], "recipe": "of another version"}}
    (folder / "run.json").write_text(json.dumps(stale))
    outcome, again = run([replace(studies[1], seeds=(0,))], tmp_path)
    assert (outcome.done, outcome.failed) == (1, [])
    assert again.final("c")[0]["auc"] == record["auc"]


def test_other_failures_are_tried_again(tmp_path, monkeypatch):
    study = a_study(method=ce, grid={}, seeds=(0, 1))
    real = execution.train

    def unlucky(recipe, task, *, seed, **options):
        if seed == 0:
            raise RuntimeError("the disk is full")
        return real(recipe, task, seed=seed, **options)

    monkeypatch.setattr(execution, "train", unlucky)
    outcome, book = run([study], tmp_path)
    assert outcome.done == 1
    assert outcome.failed[0][1] == "the disk is full"
    monkeypatch.setattr(execution, "train", real)
    outcome, book = run([study], tmp_path)
    assert outcome.done == 1
    assert [r["seed"] for r in book.final("m")] == [0, 1]


def test_a_task_that_does_not_load_is_reported(tmp_path):
    bad = a_study("bad", task=DigitsSource(imratio=0.9), grid={})
    outcome, _ = run([bad, a_study("c", method=ce, grid={}, seeds=(0,))], tmp_path)
    assert outcome.done == 1
    assert "imratio" in outcome.unavailable["bad"]


def test_inherited_settings_come_from_the_parents_records(done, tmp_path):
    folder, studies, _, book, _ = done
    child = a_study(
        "child", grid={}, fixed={**SMALL, "epochs": 1}, inherits=Inherits(study="m", axes=("margin", "lr")), seeds=(0,)
    )
    outcome, book = run([child], folder, parents=[studies[0]])
    assert outcome.done == 1
    record = book.final("child")[0]
    assert record["config"] == book.final("m")[0]["config"]
    assert record["recipe"]["stages"][0]["objective"]["margin"] == record["config"]["margin"]
    other = replace(studies[0], tuning={"epochs": 2})  # has no tuning records: the refit says what was selected
    child = replace(child, name="other_child")
    assert run([child], folder, parents=[other])[1].final("other_child")[0]["config"] == record["config"]
    alone = a_study("alone", inherits=Inherits(study="m", axes=("gamma",)))
    assert run([alone], tmp_path, parents=[studies[0]])[0].done == 0  # nothing is selected there yet


def test_a_setting_that_is_chosen_again_in_another_way_is_told_and_not_trained(done, tmp_path):
    folder, studies, _, book, _ = done
    kept = book.final("m")
    shutil.copytree(folder / "results", tmp_path / "results")
    for record in kept:  # as if it had been taken over from elsewhere, and tuned only now
        RecordBook(tmp_path / "results" / "s").add({**record, "selection": {"inherited from": "another"}})
    outcome, book = run(studies, tmp_path)
    assert outcome.done == len(kept)
    assert book.final("m") == kept
    assert not (tmp_path / "runs").exists()
    assert run(studies, tmp_path)[0].done == 0


def test_final_runs_of_two_settings_are_never_in_one_row(tmp_path):
    before = a_study("m", grid={}, fixed={**SMALL, "epochs": 1})
    _, book = run([before, replace(before, name="other", method=ce)], tmp_path)
    old = json.loads(json.dumps(book.final("m")))
    outcome, book = run([replace(before, fixed={**before.fixed, "margin": 0.3}, seeds=(1,))], tmp_path)
    assert outcome.done == 1
    assert [(record["seed"], record["fixed"]["margin"]) for record in book.final("m")] == [(1, 0.3)]
    assert len(book.final("other")) == 2
    aside = [record for record in RecordBook(book.path).everything() if record.get("replaced")]
    assert aside == [{**record, "replaced": True} for record in old]


@pytest.mark.parametrize("road", [{}, {"pack": 2}])
def test_out_of_time_stops_and_saves(tmp_path, monkeypatch, road):
    trains, after_step, waits = threading.Event(), Trainer.after_step, []

    def noted(self, *step):
        trains.set()
        after_step(self, *step)

    class RingsInTraining(threading.Timer):
        """However long a busy machine takes to get there."""

        def run(self):
            waits.append(self.interval)
            while not self.finished.wait(0.02):
                if trains.is_set():
                    self.function()
                    return

    monkeypatch.setattr(Trainer, "after_step", noted)
    monkeypatch.setattr(threading, "Timer", RingsInTraining)
    long = a_study(method=ce, grid={}, fixed={**SMALL, "epochs": 100_000})
    outcome, _ = run([long], tmp_path, max_minutes=60, **road)
    assert len(waits) == 1
    assert 0 < waits[0] <= 3600
    assert outcome.out_of_time
    assert outcome.done == 0
    assert outcome.failed == []
    assert list((tmp_path / "runs").glob("*/checkpoint.safetensors"))


def test_a_time_limit_rings_where_ctrl_c_is_ignored_and_ctrl_c_stays_ignored():
    """In a process that a script has sent to the background."""
    heard = []

    def waits():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        heard.append("Ctrl-C went by")
        time.sleep(60)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(OutOfTime), time_limit(time.monotonic() + 2):
            waits()
        assert heard == ["Ctrl-C went by"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with time_limit(time.monotonic() + 600):
            pass
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_ctrl_c_stays_so_while_a_run_is_trained_and_the_limit_is_heard():

    def trains():
        with InterruptFlag() as flag:
            for _ in range(200):
                time.sleep(0.05)
                if flag.raised:
                    raise KeyboardInterrupt  # as training does once it has saved

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with time_limit(time.monotonic() + 600), InterruptFlag() as flag:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            assert not flag.raised
        with pytest.raises(OutOfTime), time_limit(time.monotonic() + 0.1):
            trains()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_time_limit_rings_at_once_in_the_middle_and_at_the_last_moment(monkeypatch):
    with pytest.raises(OutOfTime), time_limit(time.monotonic() + 0.2):
        time.sleep(600)

    class RingsAtOnce(threading.Timer):
        def start(self):
            super().start()
            self.function()

    class RingsAtTheEnd(threading.Timer):
        def cancel(self):
            super().cancel()
            self.function()

    for timer in (RingsAtOnce, RingsAtTheEnd):
        monkeypatch.setattr(threading, "Timer", timer)
        with pytest.raises(OutOfTime), time_limit(time.monotonic() + 3600):
            pass


def test_on_windows_a_time_limit_does_not_end_the_process(monkeypatch):
    """There os.kill ends a process, whatever signal it is told."""
    ended = []

    def waits():
        for _ in range(100):
            time.sleep(0.05)

    monkeypatch.setattr(os, "kill", lambda *told: ended.append(told))
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OutOfTime), time_limit(time.monotonic() + 0.1):
        waits()
    assert ended == []


def test_a_pack_that_would_not_end_in_time_is_not_begun(tmp_path):
    planner = MissingRuns([a_study(grid={}, seeds=tuple(range(12)))], RecordBook(tmp_path), Place(runs=tmp_path))
    ready = planner.ready()
    session = _Session("s", None, None, Place(), None, time.monotonic() + 100, None, time.monotonic(), 1)
    assert session.fitting(ready) == 12  # nothing is known yet
    session._rates[_speed_key(ready[0])] = 9.2 / ready[0].steps  # seconds a step: ten runs fit
    assert session.fitting(ready) == 10
    session.deadline = time.monotonic() - 1
    assert session.fitting(ready) == 0


def test_what_is_kept_of_a_run_counts_as_part_of_it(tmp_path):
    planner = MissingRuns([a_study(grid={}, seeds=tuple(range(12)))], RecordBook(tmp_path), Place(runs=tmp_path))
    ready = planner.ready()
    session = _Session("s", None, None, Place(), None, time.monotonic() + 100, None, time.monotonic(), 1)
    session._keeping[_keep_key(ready[0])] = 30.2
    assert session.fitting(ready) == 3  # how long training takes is not known
    session._rates[_speed_key(ready[0])] = 9.2 / ready[0].steps
    assert session.fitting(ready) == 2
    for pack, kept in ((1, 1), (2, 2), (24, 12)):  # those of a pack end together
        assert session._end_of_training(ready, pack=pack) == pytest.approx(session.deadline - 30.2 * kept)
    tuning = [replace(one, phase="tuning") for one in ready]
    assert session._end_of_training(tuning, pack=24) == session.deadline
    session.deadline = None
    assert session._end_of_training(ready, pack=24) is None


def test_final_scores_count_by_their_copies(tmp_path):
    planner = MissingRuns([a_study(grid={}, seeds=tuple(range(12)))], RecordBook(tmp_path), Place(runs=tmp_path))
    plain = planner.ready()
    shifted = Augment(crop_padding=1)
    stages = tuple(replace(stage, augment=shifted) for stage in plain[0].recipe.stages)
    copied = [replace(one, recipe=replace(one.recipe, stages=stages, tta=32)) for one in plain]
    session = _Session("s", None, None, Place(), None, time.monotonic() + 100, None, time.monotonic(), 1)
    session._rates[_speed_key(plain[0])] = 0.2 / plain[0].steps
    assert (session.fitting(plain), session.fitting(copied)) == (12, 12)
    session._scoring[_score_key(plain[0])] = {0: 0.5}
    assert (session.fitting(plain), session.fitting(copied)) == (12, 6)  # 16 s each, as nobody has seen copies yet
    session._scoring[_score_key(plain[0])] = {0: 0.5, 32: 24.2}
    assert (session.fitting(plain), session.fitting(copied)) == (12, 4)
    assert session.fitting([*plain[:6], *copied]) == 6 + 3  # 4.2 s and three times 24.4


@pytest.mark.parametrize("road", [{}, {"pack": 4}])
def test_the_pace_of_steps_is_without_final_scores(tmp_path, monkeypatch, road):
    """Final scores that take 50 s by a clock that is put forward."""
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + Clock.ahead)
    scores, sessions, do_all = Trainer.scores, [], runner._do_all

    def slow(self, part, *, final=False):
        Clock.ahead += 50 if final else 0
        return scores(self, part, final=final)

    def noted(session, *others):
        sessions.append(session)
        do_all(session, *others)

    monkeypatch.setattr(Trainer, "scores", slow)
    monkeypatch.setattr(runner, "_do_all", noted)
    outcome, book = run([a_study(method=ce, grid={}, seeds=(0, 1))], tmp_path, **road)
    assert (outcome.done, outcome.failed) == (2, [])
    (session,) = sessions
    ((rate,), (scoring,)) = session._rates.values(), session._scoring.values()
    assert 0 < rate * book.final("m")[0]["steps"] < 50
    assert 100 <= scoring[0] < 150  # train and test


@dataclass(frozen=True, kw_only=True)
class LongToKeep(DigitsSource):
    """What it keeps takes `seconds`, by a clock that is put forward."""

    seconds: float

    def keep(self, run, task, *, device):
        Clock.ahead += self.seconds
        return {"kept": run.path.name, "kept_on": str(device)}


class Clock:
    ahead = 0.0


@pytest.mark.parametrize("road", [{}, {"pack": 3}])
def test_what_there_is_no_time_to_keep_is_left_to_the_next_call_and_nothing_is_trained_again(
    tmp_path, monkeypatch, road
):
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + Clock.ahead)
    source = LongToKeep(imratio=0.1, seconds=1000.0)
    studies = [a_study(method=ce, grid={}, task=source, seeds=(0, 1, 2))]
    steps = []
    outcome, book = run(studies, tmp_path, max_minutes=40, report=steps.append, **road)
    assert (outcome.done, outcome.failed, outcome.out_of_time) == (2, [], True)  # the first one's time was not known
    assert {record["kept_on"] for record in book.final("m")} == {"cpu"}
    assert outcome.seconds < 40 * 60
    assert [record["seed"] for record in book.final("m")] == [0, 1]
    assert steps[-1].text.endswith("set 2: trained; the next call writes its record")
    assert len(list((tmp_path / "runs").glob("*/DONE"))) == 3
    for name in ("train", "train_together"):
        monkeypatch.setattr(execution, name, lambda *_, **__: pytest.fail("trained again"))
    outcome, book = run(studies, tmp_path, max_minutes=40, **road)
    assert (outcome.done, outcome.failed, outcome.out_of_time) == (1, [], False)
    assert [record["kept"] for record in book.final("m")] == [record["run"] for record in book.final("m")]
    assert run(studies, tmp_path, max_minutes=40, **road)[0].done == 0


@pytest.mark.parametrize(("seconds", "kept"), [(1.5, 5), (3.0, 3), (4.0, 2)])
def test_what_is_quick_to_keep_is_kept_however_late_it_is_for_some_seconds(tmp_path, monkeypatch, seconds, kept):
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + Clock.ahead)
    source = LongToKeep(imratio=0.1, seconds=seconds)
    studies = [a_study(method=ce, grid={}, task=source, seeds=(0, 1, 2, 3, 4))]
    trained = execution.train_together

    def late(*words, **options):
        runs = trained(*words, **options)
        Clock.ahead += 3600
        return runs

    monkeypatch.setattr(execution, "train_together", late)
    outcome, book = run(studies, tmp_path, max_minutes=40, pack=5)
    assert (outcome.done, outcome.failed, outcome.out_of_time) == (kept, [], kept < 5)
    assert len(book.final("m")) == kept
    monkeypatch.setattr(execution, "train_together", lambda *_, **__: pytest.fail("trained again"))
    assert run(studies, tmp_path, max_minutes=40, pack=5)[0].done == 5 - kept


def test_packs_hold_one_shape_and_tuning_comes_first(tmp_path):
    studies = [a_study("a"), a_study("b", method=ce, grid={}), a_study("l", grid={}, fixed={**SMALL, "epochs": 3})]
    place = Place(runs=tmp_path, results=tmp_path)
    ready = MissingRuns(studies, RecordBook(tmp_path), place).ready()
    assert [r.phase for r in ready] == ["tuning"] * 2 + ["final"] * 4
    assert len(same_shape(ready, pack=24)) == 2
    assert [len(same_shape(ready[2:] * 5, pack=pack)) for pack in (24, 6, 1)] == [10, 5, 1]
    assert len({id(r.task.source) for r in ready if r.seed == 0 and r.phase == "final"}) == 1


def test_packs_are_as_large_as_each_study_says_on_a_gpu(tmp_path, monkeypatch):
    calls = []

    def recorded(session, group, *, pack):
        calls.append((pack, [run.study.name for run in group]))
        session.left_out |= {run.id for run in group}

    monkeypatch.setattr(runner._Session, "execute", recorded)
    monkeypatch.setattr(runner, "chosen_device", torch.device)
    studies = [
        a_study(name, method=ce, grid={}, fixed={**SMALL, "lr": lr}, group=group)
        for name, lr, group in (("a", 0.1, "g"), ("b", 0.2, "g"), ("c", 0.3, "g"), ("d", 0.4, "h"))
    ]
    sizes = {"a": 3, "b": 1, "c": 3, "d": 24}
    run(studies, tmp_path, device="cuda", pack=lambda study: sizes[study.name])
    assert calls == [(3, ["a", "a"]), (1, ["b", "b"]), (3, ["c", "c"]), (24, ["d", "d"])]
    for options, pack in (({"device": "cpu"}, 1), ({"device": "cuda", "pack": 8}, 8), ({"device": "cuda"}, 24)):
        calls.clear()
        run(studies, tmp_path, **{"pack": (lambda _: 5) if pack == 1 else None, **options})
        assert {size for size, _ in calls} == {pack}
    for pack in (None, 2):
        with pytest.raises(ValueError, match="jobs 2 starts processes"):
            run(studies, tmp_path, device="cuda", jobs=2, pack=pack)


def test_one_training_for_two_studies_that_need_the_same_run(tmp_path):
    pair = [a_study(name, method=ce, grid={}, seeds=(0,)) for name in ("one", "two")]
    outcome, book = run(pair, tmp_path)
    assert outcome.done == 2
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert book.final("one")[0]["run"] == book.final("two")[0]["run"]


def measures():
    return {"ap": average_precision, "tpr": lambda s, y: partial_auroc(s, y, min_tpr=0.8)}


@pytest.mark.parametrize("pack", [1, 2])
def test_a_study_may_measure_and_choose_by_other_metrics(tmp_path, pack):
    """Validation while tuning, test at the end, both from the scores; the selection is that metric's."""
    studies = [a_study(name, measures=measures(), chosen_by=by) for name, by in (("a", "auc"), ("b", "ap"))]
    outcome, book = run(studies, tmp_path, pack=pack)
    assert outcome.done == 2 * (2 + 2)
    assert not outcome.failed
    tuned = book.tuning("b")
    values = {record["config"]["margin"]: record["measures"]["validation"]["ap"] for record in tuned}
    (final, _) = book.final("b")
    assert final["config"]["margin"] == max(values, key=values.get)
    assert final["selection"]["validation_ap"] == [round(max(values.values()), 5)]
    assert set(tuned[0]["measures"]) == {"validation"}
    assert set(final["measures"]) == {"test"}
    assert [record["run"] for record in tuned] == [record["run"] for record in book.tuning("a")]  # trained once
    with (tmp_path / "runs" / final["run"] / "scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"]
    scores, labels = (np.array([float(row[name]) for row in rows]) for name in ("score", "label"))
    assert final["measures"]["test"] == {
        name: pytest.approx(of(scores, labels), abs=1e-6) for name, of in measures().items()
    }
    settings = RecordedSettings(studies, book)
    assert settings.selected(studies[1])[0]["margin"] == final["config"]["margin"]


def test_the_measure_decides_and_not_the_auc(tmp_path):
    """A measure that prefers what the AUC ranks last."""
    study = a_study(measures={"worse": lambda s, y: -float(auroc(s, y))}, chosen_by="worse", seeds=(0,))
    _, book = run([study], tmp_path)
    aucs = {record["config"]["margin"]: record["auc"]["validation"][0] for record in book.tuning("m")}
    assert book.final("m")[0]["config"]["margin"] == min(aucs, key=aucs.get)
    assert len(set(aucs.values())) == 2


def test_records_from_before_a_study_had_measures_are_made_again_once(done, tmp_path):
    folder, (before, _), _, _, _ = done
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    study = replace(before, measures=measures(), chosen_by="ap")
    outcome, book = run([study], tmp_path)
    assert outcome.done == 2 + 2
    assert all("measures" in record for record in (*book.tuning("m"), *book.final("m")))
    assert run([study], tmp_path)[0].done == 0
    assert run([before], tmp_path)[0].done == 2  # chosen by the AUC again: told, not trained


def test_a_measure_has_a_name_of_its_own_and_is_declared():
    with pytest.raises(ValueError, match="records have the AUC anyway"):
        a_study(measures={"auc": auroc})
    with pytest.raises(ValueError, match="'aq' is not a known measure of study m; there are ap, auc, tpr"):
        a_study(measures=measures(), chosen_by="aq")


def test_status_flags_records_of_other_code(done, tmp_path):
    folder, studies, *_ = done
    study_set = StudySet(name="s", title="", studies=tuple(studies))
    record = RecordBook(folder / "results" / "s").final("c")[0]
    for one in (record, record | {"seed": 1, "run": "other", "numerics": 0}):
        RecordBook(tmp_path / "s").add(one)
    m, c = status_of(study_set, studies, tmp_path)
    assert (m.final, m.to_tune, c.final, c.other) == (0, 2, 2, 1)


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_text("{\n{}\n")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1, is damaged"):
        RecordBook(tmp_path / "x").final("x")


def test_tuning_needs_a_validation_part(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Whole(DigitsSource):
        def load(self, seed, *, tuning, place):
            return super().load(seed, tuning=False, place=place)

    outcome, _ = run([replace(a_study(), task=Whole(imratio=0.1))], tmp_path)
    assert "validation" in outcome.unavailable["m"]


def test_what_has_no_single_auc_is_refused_before_training(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Odd(DigitsSource):
        one_class: bool

        def load(self, seed, *, tuning, place):
            task = super().load(seed, tuning=tuning, place=place)
            if self.one_class:
                rows = task.part("test")
                return task.with_parts({**task.parts, "test": rows[task.labels[rows] == 0]})
            names, labels = ("odd", "small"), np.stack([task.labels, 1 - task.labels], axis=1)
            return replace(task, kind="multilabel", labels=labels, label_names=names)

    for one_class, said in ((True, "test part .* one class only"), (False, "has 2 labels")):
        study = replace(a_study(), task=Odd(imratio=0.1, one_class=one_class))
        outcome, _ = run([study], tmp_path / str(one_class))
        assert re.search(said, outcome.unavailable["m"])


def test_the_smoke_study_in_its_smallest_form(tmp_path):
    studies = [s.cut_to(configs=2, tune_epochs=1, options={"epochs": 2}) for s in smoke.smoke().studies]
    studies = [replace(s, seeds=(0, 1)) for s in studies]
    place = Place(runs=tmp_path / "runs", results=tmp_path)
    assert run_studies("smoke", studies, place=place, device="cpu").done == 4 * (2 + 2)
    page = smoke.PAGE.markdown(tmp_path)
    assert all(f"| {study.name} " in page for study in studies)
    lines = {line.split("|")[1].strip(): line.split("|")[5].strip() for line in page.splitlines() if line[:1] == "|"}
    share = fmean(r["alpha_zero_share"] for r in RecordBook(tmp_path / "smoke").final("digits-S-10-paper-auc_m"))
    assert lines["study"] == "alpha = 0"
    assert [lines[f"digits-S-10-paper-{loss}"] for loss in ("auc_m", "ce")] == [percent_text(share), "-"]


def test_stages_that_see_other_rows_of_one_task_have_their_own_steps():
    task = DigitsSource(imratio=0.1).load(0, tuning=False, place=Place())
    labels, rows = task.labels.copy(), task.part("train")
    labels[rows[:200]] = -1
    uncertain = task.with_labels(labels)
    recipe, shelf, steps = ce(**SMALL), TaskShelf(Place()), {}
    for choice in ("zeros", "ignore"):
        stages = tuple(replace(stage, uncertain=choice) for stage in recipe.stages)
        ((_, steps[choice], batch),) = shelf.steps(uncertain, replace(recipe, stages=stages), 0)
    assert steps == {"zeros": len(rows) // batch, "ignore": (len(rows) - 200) // batch}
