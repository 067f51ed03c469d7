"""`best` on the medical stand-ins: settings from the search or defaults, first stages of the training part alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deepauc.cli.main import run as run_command
from deepauc.data.task import ArrayInputs, Task
from deepauc.studies.records.book import RecordBook
from deepauc.studies.running.runner import run_studies
from deepauc.studies.sources import Place
from deepauc.studies.study import cut_all
from deepauc.training.engine.stream import Stream
from deepauc.training.first_stage import first_stage, seen_task
from experiments.clinical import page as medical_page
from experiments.clinical import tasks as medical_tasks
from experiments.clinical.best import DEFAULTS, LENGTHS, SOURCES, best_cells, chosen_setting, settled
from experiments.clinical.studies import medical
from experiments.search.levers import LEVERS, LOSSES, lever_name
from experiments.search.recipe import best

MEDICAL = str(Path(__file__).parents[3] / "experiments" / "medical.py")
SMALL = {
    "network": "S",
    "epochs": 1,
    "first_epochs": 1,
    "first_batch": 16,
    "first_warmup": 1,
    "batch_size": 16,
    "positives": 4,
    "precision": "float32",
}


def add_lever(book, loss, number, aucs, folds=2, **before):
    """Tuning records of a lever: an AUC a setting, the same on all folds but for a little."""
    lever = LEVERS[loss][number - 1]
    for place, (setting, auc) in enumerate(zip(lever.settings, aucs, strict=True)):
        for fold in range(folds):
            book.add(
                {
                    "study": lever_name(loss, number),
                    "phase": "tuning",
                    "run": f"{loss}-{number}-{place}-{fold}",
                    "seed": 500 + fold,
                    "config": {**before, **setting},
                    "fixed": {"loss": loss},
                    "tuning": {},
                    "cut": {},
                    "alpha_zero_share": None,
                    "recipe": {},
                    "history": {"validation_auc": [auc + fold / 1000 - place * fold / 1e5]},
                }
            )


def test_the_cells_are_declared():
    names = [study.name for study in best_cells()]
    assert names == [f"{task}-R-best-{loss}" for task in ("breast", "pneumonia", "path", "ham") for loss in LOSSES]
    assert set(names) <= {study.name for study in medical().studies}
    for study in best_cells():
        assert study.seeds == (0, 1, 2, 3, 4)
        first, second = study.recipe({}, "final").stages
        assert first.on_views
        assert first.schedule.warmup < first.epochs * 30  # far below the stage's steps, unlike four an epoch
        assert second.positives_per_batch == 32


def test_without_a_search_the_defaults_count_and_are_named(tmp_path):
    whole = medical().studies
    found, sources = settled(whole, tmp_path)
    assert [one.name for one in sources] == [DEFAULTS]
    for before, after in zip(whole, found, strict=True):
        if after.method is best:
            assert after.inherits.study == DEFAULTS
            assert after.fixed == before.fixed
        else:
            assert after is before


def test_the_last_complete_lever_counts_in_the_tasks_own_steps(tmp_path):
    book = RecordBook(tmp_path / "best")
    assert chosen_setting(book, "auc_m") == (DEFAULTS, {})
    add_lever(book, "auc_m", 1, [0.7, 0.8])  # none, simclr
    add_lever(book, "auc_m", 2, [0.70, 0.71, 0.72, 0.70, 0.73, 0.90], first_stage="simclr")  # ema .998, 40 epochs
    lever = LEVERS["auc_m"][2]
    partial = RecordBook(tmp_path / "partial")
    add_lever(partial, "auc_m", 3, [0.9] * len(lever.settings), first_stage="simclr")
    for record in partial.tuning(lever_name("auc_m", 3))[:-1]:  # one run is missing: the lever is not complete
        book.add(record)
    book = RecordBook(tmp_path / "best")
    origin, setting = chosen_setting(book, "auc_m")
    assert origin == "best-levers-auc_m-02-length"
    assert setting == {"first_stage": "simclr", "ema": 0.998, "epochs": 40}
    found, sources = settled(best_cells(), tmp_path)
    assert {one.name for one in sources} == {DEFAULTS, origin}  # CE has no search yet
    by_name = {study.name: study for study in found}
    breast = by_name["breast-R-best-auc_m"].fixed
    assert (breast["epochs"], breast["first_epochs"]) == (300, 500)
    # The same share of the stage: 4,160 steps at .998 and 600 steps forget as much.
    assert breast["ema"] ** 600 == pytest.approx(0.998**4160, rel=1e-3)
    assert by_name["breast-R-best-ce"].fixed["epochs"] == 150
    before = {"lr": 0.01, "momentum": 0.95, "batch_size": 256, "positives": 0, "tta": 8}
    so_far = {}
    for number, lever in enumerate(LEVERS["ce"][:-1], start=1):
        fits = [
            0.9 if all(before.get(axis, value) == value for axis, value in s.items()) else 0.7 for s in lever.settings
        ]
        add_lever(book, "ce", number, fits, **so_far)
        so_far |= lever.settings[fits.index(0.9)]
    add_lever(book, "ce", 12, [0.7, 0.7, 0.9, 0.7, 0.7], **so_far)
    assert chosen_setting(book, "ce")[1]["tta"] == 8
    (ce,) = [study for study in settled(best_cells(), tmp_path)[0] if study.name == "path-R-best-ce"]
    assert (ce.fixed["first_epochs"], ce.fixed["first_warmup"]) == (300, 780)
    assert "tta" not in ce.fixed  # `medical` has copies of its own
    assert (ce.fixed["lr"], ce.fixed["momentum"], ce.fixed["batch_size"], ce.fixed["positives"]) == (0.01, 0.95, 256, 0)
    (by_hand,) = settled(cut_all([ce], options={"first_epochs": 7}), tmp_path)[0]
    assert by_hand.fixed["first_epochs"] == 7
    assert by_hand.fixed["lr"] == 0.01


def status_of_breast(results, capsys):
    """Final runs that are asked for and outdated ones, as `study status` tells them."""
    with pytest.raises(SystemExit) as ended:
        run_command(
            ["study", "status", MEDICAL, "medical", "--cells", "breast-R-best", "--results", str(results), "--json"]
        )
    assert ended.value.code == 0
    found = {one["study"]: one for one in json.loads(capsys.readouterr().out)["medical"]}
    return {loss: tuple(found[f"breast-R-best-{loss}"][name] for name in ("final", "outdated")) for loss in LOSSES}


def test_status_calls_records_of_an_earlier_setting_of_the_search_outdated(tmp_path, capsys):
    def add(seed, cut):
        chosen = cut_all(medical().chosen(["breast-R-best"]), options=cut)
        for study in settled(chosen, tmp_path)[0]:
            about = {"study": study.name, "phase": "final", "run": f"{study.name}-{seed}", "seed": seed, "config": {}}
            about |= {"fixed": dict(study.fixed), "cut": dict(study.cut), "numerics": 1}
            RecordBook(tmp_path / "medical").add(about)

    add(0, {})
    add(1, {"epochs": 7})
    assert status_of_breast(tmp_path, capsys) == {"auc_m": (2, 0), "ce": (2, 0)}
    add_lever(RecordBook(tmp_path / "best"), "auc_m", 1, [0.9, 0.8])  # no first stage, which is not the default
    assert status_of_breast(tmp_path, capsys) == {"auc_m": (0, 2), "ce": (2, 0)}
    add(2, {})
    add(3, {"epochs": 7})
    assert status_of_breast(tmp_path, capsys) == {"auc_m": (2, 2), "ce": (4, 0)}


def grey_file(path):
    """BreastMNIST's layout: 60, 12 and 24 grey images of 28 pixels; class 0 is brighter and rarer."""
    generator, arrays = np.random.default_rng(0), {}
    for part, rows in (("train", 60), ("val", 12), ("test", 24)):
        labels = (np.arange(rows) % 3 > 0).astype(np.uint8)
        images = generator.integers(0, 150, (rows, 28, 28)) + 60 * (labels[:, None, None] == 0)
        arrays |= {f"{part}_images": images.astype(np.uint8), f"{part}_labels": labels[:, None]}
    np.savez(path, **arrays)


def test_from_grey_images_to_the_page_in_one_command(tmp_path, capsys):
    grey_file(tmp_path / "breastmnist.npz")
    places = ["--root", tmp_path, "--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    options = [f"--set={name}={value}" for name, value in SMALL.items()]
    with pytest.raises(SystemExit) as ended:
        run_command(list(map(str, ["study", "run", MEDICAL, "medical", "--cells", "breast-R-best", "--seeds", "0,1",
                                   "--device", "cpu", *options, *places])))  # fmt: skip
    assert ended.value.code == 0, capsys.readouterr()
    assert "tuning runs: 0, final runs: 4." in capsys.readouterr().out
    book = RecordBook(tmp_path / "results" / "medical")
    records = {loss: book.final(f"breast-R-best-{loss}") for loss in LOSSES}
    for seed in (0, 1):
        both = [records[loss][seed] for loss in LOSSES]
        assert len({record["first_stage"]["name"] for record in both}) == 1  # trained once for both losses
        assert both[0]["first_stage"]["rows"] == 72  # train and validation, not one of the 24 test images
        assert all(record["selection"] == {"inherited from": DEFAULTS} for record in both)
        assert both[0]["cut"] == SMALL
    assert len([path for path in (tmp_path / "runs" / "first-stages").iterdir() if path.name[0] != "."]) == 2
    text = (tmp_path / "results" / "medical.md").read_text()
    section = text.split("## `best` on the stand-ins")[1].split("\n## ")[0]
    assert DEFAULTS in section
    assert "first_epochs 1" in section


EVERY = np.arange(60)


@pytest.fixture
def skin_task():
    """20 lesions of three images each at 64 x 64 x 3; the darker ones are melanomas."""
    generator = np.random.default_rng(0)
    labels = (np.arange(60) // 3 % 2 == 0).astype(np.float32)
    images = generator.integers(0, 120, (60, 64, 64, 3)) + (60 * labels).astype(int)[:, None, None, None]
    return Task(
        name="skin",
        kind="binary",
        source=ArrayInputs(images.astype(np.uint8)),
        labels=labels,
        label_names=("melanoma",),
        parts={"train": np.arange(60)},
        groups=np.array([f"lesion {row // 3}" for row in range(60)]),
    )


def test_a_folds_first_stage_sees_no_lesion_that_is_held_out(skin_task, tmp_path, monkeypatch):
    def fold(source, seed, tuning, place):
        return medical_tasks._fold(skin_task, seed, tuning, ())

    monkeypatch.setitem(medical_tasks.DATASETS, "ham10000", fold)
    place = Place(runs=tmp_path / "runs", results=tmp_path / "results")
    chosen = cut_all(medical().chosen(["ham-R-best"]), options={**SMALL, "mixup": 0.5})
    chosen, sources = settled(chosen, place.results)
    chosen = [replace(one, seeds=(0, 3), task=replace(one.task, tta=2)) for one in chosen]
    outcome = run_studies("medical", chosen, place=place, parents=sources, device="cpu", pack=4)
    assert (outcome.done, outcome.failed, outcome.unavailable) == (4, [], {})
    book = RecordBook(place.results / "medical")
    firsts = {}
    for record in book.final("ham-R-best-auc_m"):
        task = SOURCES["ham"].load(record["seed"], tuning=False, place=place)
        stage = chosen[0].recipe({}, "final").stages[0]
        seen = seen_task(task, [stage])
        held = skin_task.inputs(task.part("test"))
        mine = seen.inputs(np.arange(len(seen)))
        assert record["first_stage"]["rows"] == len(seen) == len(task.part("train"))
        assert not set(task.groups[task.part("train")]) & set(task.groups[task.part("test")])
        assert not {image.tobytes() for image in mine} & {image.tobytes() for image in held}
        firsts[record["seed"]] = record["first_stage"]["name"]
        # Whatever the held-out lesions look like, it is the same first stage: it is found, not trained again.
        changed = np.where(np.isin(np.arange(60), task.part("test"))[:, None, None, None], 255, skin_task.inputs(EVERY))
        other = replace(task, source=ArrayInputs(changed.astype(np.uint8)))
        with monkeypatch.context() as patch:
            patch.setattr("deepauc.training.first_stage.train", None)
            kept = place.runs / "first-stages"
            found = first_stage(chosen[0].recipe({}, "final"), other, seed=record["seed"], cache_dir=kept)
        assert found.name == record["first_stage"]["name"]
    assert len(set(firsts.values())) == 2
    assert {r["seed"]: r["first_stage"]["name"] for r in book.final("ham-R-best-ce")} == firsts
    text = medical_page.PAGES["medical"].markdown(place.results)
    assert "| ham-R-best " in text.split("## Single models")[1]
    assert json.dumps(book.final("ham-R-best-ce")[0]["selection"]) == json.dumps({"inherited from": DEFAULTS})


@pytest.mark.data
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_those_of_the_real_tasks(name, data_root):
    study = next(study for study in best_cells() if study.name.startswith(f"{name}-"))
    task = study.task.load(0, tuning=False, place=Place(data=data_root))
    stages = study.recipe({}, "final").stages
    steps = [Stream(task, stage, seed=0, number=n).per_epoch * stage.epochs for n, stage in enumerate(stages)]
    length = LENGTHS[name]
    assert steps == [length.first_steps, length.steps]
    assert stages[0].schedule.warmup == steps[0] // 10
    assert int((task.labels[task.labelled("train")] == 1).sum()) >= length.first_batch // 4  # supcon's quarter
