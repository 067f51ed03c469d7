"""Folds as tasks: what a fold may see, first stages shared and never leaking, a chain of selections, no refit."""

import json
import shutil
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from deepauc.data.datasets.benchmarks.load import load_balanced
from deepauc.data.imbalance import imbalance_task
from deepauc.data.task import ArrayInputs, Task
from deepauc.studies.records.book import RecordBook
from deepauc.studies.running import first_stages
from deepauc.studies.running.execution import _first_stages
from deepauc.studies.running.first_stages import FirstStages
from deepauc.studies.running.missing import MissingRuns
from deepauc.studies.running.runner import _goes_on, run_studies
from deepauc.studies.sources import BenchmarkSource, FoldSource, Place
from deepauc.studies.study import Inherits, Study
from deepauc.training.engine.trainer import Trainer
from deepauc.training.plain import recipe_hash
from deepauc.training.run.folder import RunFolder
from experiments.benchmarks.smoke import DigitsSource
from experiments.search import recipe as best_module
from experiments.search.recipe import best

DIGITS = DigitsSource(imratio=0.2)
SMALL = {
    "network": "S",
    "precision": "float32",
    "batch_size": 64,
    "positives": 16,
    "affine": False,
    "colour": False,
    "cutout": False,
    "first_batch": 64,
    "first_epochs": 1,
    "epochs": 1,
}


class RecordingInputs(ArrayInputs):
    """Remembers which rows were asked for."""

    asked: ClassVar[set[int]] = set()

    def __call__(self, indices):
        RecordingInputs.asked |= set(np.asarray(indices).tolist())
        return super().__call__(indices)


@dataclass(frozen=True, kw_only=True)
class Watched(DigitsSource):
    """Digits that remember which rows were asked for."""

    def load(self, seed, *, tuning, place):
        task = super().load(seed, tuning=tuning, place=place)
        return replace(task, source=RecordingInputs(task.source.array))


def a_study(name="f", source=DIGITS, **changes):
    folds = FoldSource(source=source, folds=3)
    given = {
        "task": folds,
        "method": best,
        "fixed": {**SMALL, "first_stage": "simclr"},
        "grid": {"lr": (0.1, 0.01)},
        "tuning_seeds": folds.seeds((7,)),
    }
    return Study(name=name, **{**given, **changes})


def run(studies, folder, **options):
    place = Place(runs=folder / "runs", results=folder / "results")
    return run_studies("s", studies, place=place, **{"device": "cpu", **options}), RecordBook(folder / "results" / "s")


def test_folds_partition_a_training_set_and_hold_nothing_else():
    source = FoldSource(source=DIGITS, folds=4)
    assert source.seeds((100, 101)) == tuple(range(400, 408))
    assert [source.place_of(seed) for seed in (400, 403, 404)] == [(100, 0), (100, 3), (101, 0)]
    whole = DIGITS.load(100, tuning=False, place=Place())
    tasks = [source.load(seed, tuning=True, place=Place()) for seed in source.seeds((100,))]
    held_out = np.concatenate([task.part("validation") for task in tasks])
    assert np.array_equal(np.sort(held_out), np.sort(whole.part("train")))
    for task in tasks:
        assert set(task.parts) == {"train", "validation"}
        assert set(task.part("train")) | set(task.part("validation")) == set(whole.part("train"))
        assert not set(task.part("train")) & set(task.part("validation"))
        share = task.labels[task.part("validation")].mean()
        assert share == pytest.approx(whole.labels[whole.part("train")].mean(), abs=0.02)


def test_folds_are_for_choosing_only():
    with pytest.raises(ValueError, match="for choosing"):
        FoldSource(source=DIGITS).load(0, tuning=False, place=Place())
    with pytest.raises(ValueError, match="two folds"):
        FoldSource(source=DIGITS, folds=1)


@pytest.mark.parametrize("road", [{}, {"pack": 3}])
def test_first_stages_of_folds_read_neither_the_fold_nor_removed_positives(tmp_path, monkeypatch, road):
    """What is read while a fold's first stage is trained is exactly its training part."""
    read = {}
    real = {name: getattr(first_stages, name) for name in ("first_stage", "first_stages")}

    def alone(recipe, task, *, seed, **options):
        RecordingInputs.asked = set()
        found = real["first_stage"](recipe, task, seed=seed, **options)
        read[seed] = (set(RecordingInputs.asked), task)
        return found

    def together(jobs, **options):
        found = []
        for job in jobs:  # one at a time, to tell apart who reads what
            RecordingInputs.asked = set()
            found += real["first_stages"]([job], **options)
            read[job.seed] = (set(RecordingInputs.asked), job.task)
        return found

    monkeypatch.setattr(first_stages, "first_stage", alone)
    monkeypatch.setattr(first_stages, "first_stages", together)
    watched = Watched(imratio=0.2)
    outcome, _ = run([a_study(source=watched)], tmp_path, **road)
    assert (outcome.done, outcome.failed) == (6, [])
    balanced = Task(
        name="",
        kind="binary",
        source=ArrayInputs(np.zeros((1797, 8, 8, 1), dtype=np.uint8)),
        labels=DIGITS.load(7, tuning=False, place=Place()).labels,
        label_names=("y",),
        parts={"train": _balanced_rows()},
    )
    removed = set(imbalance_task(balanced, imratio=0.2, seed=7).removed.tolist())
    test = set(DIGITS.load(7, tuning=False, place=Place()).part("test").tolist())
    assert len(removed) > 100
    assert sorted(read) == [21, 22, 23]
    for asked, task in read.values():
        assert asked == set(task.part("train").tolist())
        assert not asked & {*task.part("validation").tolist(), *removed, *test}


def _balanced_rows():
    from deepauc.demo import digits

    return digits.load()[2]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds")
    first = a_study()
    then = a_study("g", grid={"mixup": (0.0, 0.5)}, inherits=Inherits(study="f", axes=("lr",)))
    outcome, book = run([first, then], folder)
    return folder, [first, then], outcome, book


def test_selection_without_refit_and_the_next_begins_there(done):
    _, _, outcome, book = done
    assert (outcome.failed, outcome.unavailable) == ([], {})
    assert book.final("f") == book.final("g") == []
    assert len(book.tuning("f")) == len(book.tuning("g")) == 6
    means = {}
    for record in book.tuning("f"):
        assert set(record["auc"]) == {"validation"}
        means.setdefault(record["config"]["lr"], []).append(record["auc"]["validation"][0])
    chosen = max(means, key=lambda lr: sum(means[lr]))
    assert {record["config"]["lr"] for record in book.tuning("g")} == {chosen}


def test_one_first_stage_a_fold_for_all_settings(done):
    folder, _, outcome, book = done
    kept = [path for path in (folder / "runs" / "first-stages").iterdir() if not path.name.startswith(".")]
    assert len(kept) == 3
    told = {(record["seed"], record["first_stage"]["name"]) for s in "fg" for record in book.tuning(s)}
    assert {name for _, name in told} == {path.name for path in kept}
    assert len(told) == 3
    record = book.tuning("f")[0]
    assert record["first_stage"]["rows"] == record["task"]["rows"]["train"]
    assert 0 < record["first_stage"]["seconds"] < outcome.seconds
    task = FoldSource(source=DIGITS, folds=3).load(record["seed"], tuning=True, place=Place())
    negatives = int((task.labels[task.part("train")] == 0).sum())
    assert record["steps"] == negatives // (64 - 16)  # of its own stage, one epoch


def test_records_know_no_place(done):
    folder, studies, _, book = done
    record = book.tuning("f")[0]
    assert str(folder) not in json.dumps(record)
    assert "start_from" not in json.dumps(record["recipe"])
    assert record["identity"]["recipe"] == recipe_hash(studies[0].recipe(record["config"], "tuning"))


def test_a_run_that_another_study_has_recorded_is_not_trained_again(done, tmp_path):
    """The setting a lever begins with is the one chosen before; without run folders its record is enough."""
    folder, *_ = done
    (tmp_path / "results").mkdir()
    shutil.copy(folder / "results" / "s.jsonl", tmp_path / "results")
    again = a_study("h", grid={"lr": (0.1,), "mixup": (0.0, 0.5)})
    outcome, book = run([again], tmp_path)
    trained = [path for path in (tmp_path / "runs").iterdir() if path.name != "first-stages"]
    assert len(book.tuning("h")) == 6
    mixed = 0 if any(r["config"] == {"lr": 0.1, "mixup": 0.5} for r in book.tuning("g")) else 3
    assert (outcome.failed, len(trained)) == ([], mixed)
    assert {record["study"] for record in book.tuning("h")} == {"h"}


def test_until_the_last_is_selected_the_one_before_counts(done, tmp_path):
    _, studies, _, book = done
    place = Place(runs=tmp_path, results=tmp_path)
    unfinished = a_study("u", grid={"mixup": (0.2, 0.3)}, inherits=Inherits(study="g", axes=("lr",)))
    after = Inherits.after(("f", "g", "u"), axes=("lr", "mixup", "epochs"))
    assert (after.study, after.otherwise) == ("u", ("g", "f"))
    child = Study(
        name="child",
        task=DIGITS,
        method=best,
        fixed={k: v for k, v in SMALL.items() if k != "epochs"},
        inherits=after,
        seeds=(0,),
    )
    planner = MissingRuns([*studies, unfinished, child], book, place)
    config, selection = planner.selected(child)
    assert selection == {"inherited from": "g"}
    assert config == {**planner.selected(studies[1])[0], "epochs": 1}


def test_packed_runs_give_the_same(done, tmp_path):
    _, studies, _, book = done
    outcome, packed = run([studies[0]], tmp_path, pack=6)
    assert outcome.done == 6
    mine, theirs = ({r["run"]: r["auc"]["validation"][0] for r in b.tuning("f")} for b in (book, packed))
    assert mine.keys() == theirs.keys()
    assert all(theirs[name] == pytest.approx(value, abs=5e-3) for name, value in mine.items())


def test_the_seconds_of_a_first_stage_count_the_calls_that_were_stopped(tmp_path, monkeypatch):
    study = a_study(fixed={**SMALL, "first_stage": "simclr", "first_epochs": 2})
    with monkeypatch.context() as stopped:
        stopped.setattr(Trainer, "_stop_asked", lambda _: True)  # after the first epoch
        stopped.setattr(Trainer, "seconds", lambda _: 3000.0)
        with pytest.raises(KeyboardInterrupt):
            run([study], tmp_path, pack=6)
    assert len(list((tmp_path / "runs" / "first-stages").glob(".*.part"))) == 3
    outcome, book = run([study], tmp_path, pack=6)
    told = [record["first_stage"]["seconds"] for record in book.tuning("f")]
    assert len(told) == 6  # three of them in a pack: a thousand seconds each, and a share of this call's
    assert all(1000 < seconds < 1000 + outcome.seconds for seconds in told)


@pytest.mark.parametrize("road", [{}, {"pack": 9}])
def test_a_first_stage_that_diverges_costs_only_those_that_need_it(tmp_path, monkeypatch, road):
    monkeypatch.setitem(best_module.FIRST_LR, "supcon", 1e30)
    trained, real = [], first_stages.first_stages

    def counted(jobs, **options):
        trained.append(len(jobs))
        return real(jobs, **options)

    monkeypatch.setattr(first_stages, "first_stages", counted)
    study = a_study(fixed=SMALL, grid={"first_stage": ("none", "supcon", "simclr"), "lr": (0.1,)})
    outcome, book = run([study], tmp_path, **road)
    assert (outcome.done, len(outcome.failed)) == (6, 3)
    assert all("first stage" in message or "NaN or infini" in message for _, message in outcome.failed)
    failed = [record for record in book.tuning("f") if "failed" in record]
    assert {record["config"]["first_stage"] for record in failed} == {"supcon"}
    assert len(trained) == (4 if road else 0)  # once more for each of the three that fail, without it
    again, _ = run([study], tmp_path, **road)
    assert (again.done, again.failed) == (0, [])


def test_an_unfinished_run_goes_on_where_its_first_stage_is(done, tmp_path):
    folder, studies, _, book = done
    place = Place(runs=folder / "runs", results=folder / "results")
    missing = MissingRuns(studies, book, place).tuning_runs(studies[0])[0]
    path = missing.folder(place)
    assert RunFolder(path).done
    assert _goes_on(path, missing, place)
    assert not _goes_on(path, missing, Place(runs=tmp_path))  # begun from a first stage elsewhere
    other = replace(missing, recipe=studies[0].recipe({"lr": 0.5}, "tuning"))
    assert not _goes_on(path, other, place)


def test_which_first_stage_is_needed_is_worked_out_once(done, monkeypatch):
    folder, studies, _, book = done
    place = Place(runs=folder / "runs", results=folder / "results")
    missing = MissingRuns(studies, book, place).tuning_runs(studies[0])
    jobs = [run.job(place) for run in missing]
    known = _first_stages(place).onwards(jobs, torch.device("cpu"), side_by_side=False)
    monkeypatch.setattr(first_stages, "first_stage", None)
    assert _first_stages(place).onwards(jobs, torch.device("cpu"), side_by_side=False) == known


def test_a_packed_first_stage_that_fails_is_known_by_its_folder(done, tmp_path, monkeypatch):
    """Packed training names the folder on its exception; from there to a job that needs it."""
    folder, studies, _, book = done
    place = Place(runs=folder / "runs", results=folder / "results")
    jobs = [run.job(place) for run in MissingRuns(studies, book, place).tuning_runs(studies[0])]
    kept = {r["seed"]: r["first_stage"]["name"] for r in book.tuning("f")}

    def fails(jobs, **_):
        error = ValueError("the training loss is NaN or infinite")
        error.run_dir = folder / "runs" / "first-stages" / kept[22]
        raise error

    monkeypatch.setattr(first_stages, "first_stages", fails)
    fresh = FirstStages(tmp_path)
    needing = {job.run_dir for job in jobs if job.seed == 22}
    named = set()
    for _ in range(2):  # the second time without training anything
        with pytest.raises(ValueError, match="NaN or infini") as caught:
            fresh.onwards(jobs, torch.device("cpu"), side_by_side=True)
        named.add(caught.value.run_dir)
        monkeypatch.setattr(first_stages, "first_stages", None)
    assert named <= needing


@pytest.mark.data
def test_folds_of_c10_hold_its_253_positives_and_no_removed_one(data_root):
    place = Place(data=data_root)
    c10 = BenchmarkSource(benchmark="C10", imratio=0.01)
    source = FoldSource(source=c10)
    balanced = load_balanced("C10", root=data_root)
    for number in (100, 101):
        found = imbalance_task(balanced, imratio=0.01, seed=number)
        tasks = [source.load(seed, tuning=True, place=place) for seed in source.seeds((number,))]
        positives = [int(task.labels[task.part("validation")].sum()) for task in tasks]
        assert (sum(positives), min(positives), max(positives)) == (253, 50, 51)
        for task in tasks:
            seen = {*task.part("train").tolist(), *task.part("validation").tolist()}
            assert seen == set(found.rows.tolist())
            assert not seen & {*found.removed.tolist(), *balanced.part("test").tolist()}
