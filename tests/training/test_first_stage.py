"""First stages kept by hash: what the hash depends on, what is read, one training for many that ask."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deepauc.data.augment.batch import Augment
from deepauc.data.imbalance import imbalance_task
from deepauc.data.splits import k_fold
from deepauc.data.task import ArrayInputs
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive, SupervisedContrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training import first_stage as module
from deepauc.training.engine import trainer
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.first_stage import after_first_stage, first_stage, first_stages, seen_task
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.run import Run
from tests.training.watched import Killed, RecordingInputs, killed_at_checkpoint

MODEL = SmallCNNSpec(widths=(4, 8))


def views(**options):
    defaults = {"objective": Contrastive(), "optimizer": SGDSpec(lr=0.05), "epochs": 2, "batch_size": 16, "views": 2}
    return Stage(**{**defaults, "projection": (8, 4), "augment": Augment(crop_padding=1, brightness=0.3), **options})


def second(**options):
    defaults = {"objective": CrossEntropy(), "optimizer": SGDSpec(lr=0.05), "epochs": 1, "batch_size": 16}
    return Stage(**{**defaults, **options})


def recipe(first=None, then=None, model=MODEL, **options):
    return Recipe(model=model, stages=(first or views(), then or second()), **options)


@pytest.fixture
def cell(image_task):
    """A benchmark cell with unlabelled rows: 0 and 1 of a patient in train, 95 of one in test; positives removed."""
    labels = image_task.labels.copy()
    labels[[0, 1, 95]] = np.nan
    groups = image_task.groups.copy()
    groups[95] = groups[130]
    task = replace(image_task, labels=labels, groups=groups)
    found = imbalance_task(task.with_parts({**task.parts, "train": task.labelled("train")}), imratio=0.2, seed=0)
    rows = np.sort(np.concatenate([found.rows, [0, 1, 95]]))
    return task.with_parts({**task.parts, "train": rows}), found.removed


def name(tmp_path, task, *, seed=0, **options):
    """Where it would be kept, without training it."""
    return module._Wanted.of(recipe(**options), task, seed=seed, cache_dir=tmp_path).path.name


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_it_reads_training_rows_only(cell, tmp_path, engine):
    task, removed = cell
    source = RecordingInputs(task.source.array)
    task = replace(task, source=source)
    path = first_stage(recipe(), task, seed=0, cache_dir=tmp_path, engine=engine, device="cpu")
    assert {(row["rows"], row["unlabelled_rows"]) for row in Run(path).history} == {(str(len(source.asked)), "2")}
    assert source.asked == set(task.part("train").tolist()) - {95}
    assert {0, 1} <= source.asked
    assert len(removed) > 0
    assert not source.asked & {95, *removed.tolist(), *task.part("validation").tolist(), *task.part("test").tolist()}


def test_removed_positives_are_not_in_the_task_it_trains_on(cell):
    task, removed = cell
    seen = seen_task(task, (views(),))
    assert seen.parts.keys() == {"train"}
    assert len(seen) == len(task.part("train")) - 1
    there = {image.tobytes() for image in seen.inputs(np.arange(len(seen)))}
    gone = [*removed.tolist(), 95, *task.part("validation").tolist(), *task.part("test").tolist()]
    assert not there & {image.tobytes() for image in task.inputs(gone)}


def test_a_fold_sees_the_other_folds_only(image_task, tmp_path):
    whole = image_task.with_parts({"train": np.arange(160)})
    folds = k_fold(replace(whole, groups=None), folds=4, seed=0)
    for fold in folds:
        source = RecordingInputs(image_task.source.array)
        first_stage(recipe(views(epochs=1)), replace(fold, source=source), seed=0, cache_dir=tmp_path)
        assert source.asked == set(fold.part("train").tolist())
    assert len([p for p in tmp_path.iterdir() if not p.name.startswith(".")]) == 4


def test_the_name_is_that_of_what_is_seen(cell, tmp_path):
    task, removed = cell
    own = name(tmp_path, task)
    pixels = task.source.array.copy()
    pixels[[*removed, 95, *task.part("validation"), *task.part("test")]] = 0
    flipped = np.where(np.isnan(task.labels), np.nan, 1 - task.labels)
    same = [
        task.with_labels(flipped),
        replace(task, source=ArrayInputs(pixels)),
        task.subset(np.sort(np.concatenate([task.part("train"), task.part("test")]))),  # other row numbers
        replace(task, name="other", metadata={}, weights=np.ones(160)),
    ]
    assert {name(tmp_path, other) for other in same} == {own}
    assert name(tmp_path, task, then=second(epochs=7)) == own  # shared by all second stages
    assert name(tmp_path, task, then=second(), test_curve=True) == own
    assert name(tmp_path, task, evaluate_every=10) == own  # nothing is evaluated there
    touched = task.source.array.copy()
    touched[0, 0, 0] += 1
    others = [
        name(tmp_path, replace(task, source=ArrayInputs(touched))),
        name(tmp_path, task, seed=1),
        name(tmp_path, task, first=views(epochs=3)),
        name(tmp_path, task, first=views(projection=(8, 5))),
        name(tmp_path, task, first=views(objective=Contrastive(temperature=0.3))),
        name(tmp_path, task, model=SmallCNNSpec(widths=(4, 4))),
        name(tmp_path, task.with_parts({**task.parts, "train": task.part("train")[:-2]})),
        name(tmp_path, task.with_parts({"train": task.part("train")})),  # now the patient of row 95 is in no other part
    ]
    assert len({own, *others}) == 9


def test_labels_enter_where_they_are_used(cell, tmp_path):
    task, _ = cell
    flipped = task.with_labels(np.where(np.isnan(task.labels), np.nan, 1 - task.labels))
    for first in (views(objective=SupervisedContrastive()), views(positives_per_batch=4)):
        assert name(tmp_path, task, first=first) != name(tmp_path, flipped, first=first)


def test_it_is_the_first_stage_of_the_whole_run(cell, tmp_path, monkeypatch):
    """To the bit: kept and started from, or run in one go."""
    task, _ = cell
    begun = {}
    begin = trainer.Trainer._begin_stage

    def watch(self, stage, *, resumed):
        begin(self, stage, resumed=resumed)
        begun[len(begun)] = {k: v.clone() for k, v in self.model.state_dict().items()}

    path = first_stage(recipe(), task, seed=3, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(trainer.Trainer, "_begin_stage", watch)
    train(recipe(), task, seed=3, run_dir=tmp_path / "whole")
    train(after_first_stage(recipe(), path), task, seed=3, run_dir=tmp_path / "onwards")
    kept = load_file(path / "model.safetensors")
    assert all(torch.equal(begun[1][k], tensor) for k, tensor in kept.items())
    assert begun[1].keys() == begun[2].keys()
    assert all(torch.equal(begun[1][k], begun[2][k]) for k in begun[1])  # the classifier too: the seed's own
    assert any(not torch.equal(begun[0][k], begun[1][k]) for k in kept)


def test_the_second_time_nothing_is_trained(image_task, tmp_path, monkeypatch):
    path = first_stage(recipe(), image_task, seed=0, cache_dir=tmp_path)
    assert Run(path).record.plain["recipe"]["stages"][0]["objective"]["type"] == "Contrastive"
    monkeypatch.setattr(module, "train", None)
    other = recipe(then=second(objective=AUCMargin(), optimizer=PESGSpec(), positives_per_batch=4))
    assert first_stage(other, image_task, seed=0, cache_dir=tmp_path) == path


def test_weights_may_lack_the_classifier_or_have_another(image_task, multilabel_task, tmp_path):
    path = first_stage(recipe(), image_task, seed=0, cache_dir=tmp_path / "cache")
    several = train(after_first_stage(recipe(), path), multilabel_task, seed=0, run_dir=tmp_path / "several")
    assert several.scores("test")[0].shape == (32, 2)
    from_several = Recipe(model=MODEL, stages=(second(start_from=str(several.path)),))
    train(from_several, image_task, seed=0, run_dir=tmp_path / "one")  # a classifier of two labels, not of one
    wrong = Recipe(model=SmallCNNSpec(widths=(4, 6)), stages=(second(start_from=str(path)),))
    with pytest.raises(ValueError, match="another network"):
        train(wrong, image_task, seed=0, run_dir=tmp_path / "wrong")


def test_killed_it_is_resumed_by_the_next(image_task, tmp_path):
    whole = first_stage(recipe(), image_task, seed=0, cache_dir=tmp_path / "whole")
    with pytest.raises(Killed), killed_at_checkpoint(2):
        first_stage(recipe(), image_task, seed=0, cache_dir=tmp_path / "killed")
    assert not (tmp_path / "killed" / whole.name).exists()
    steps = []
    path = first_stage(recipe(), image_task, seed=0, cache_dir=tmp_path / "killed", progress=steps.append)
    assert len(steps) == 6  # the second epoch
    for file in ("model.safetensors", "history.csv"):
        assert (path / file).read_bytes() == (whole / file).read_bytes()


PROGRAM = """
import sys
import numpy as np
from deepauc import Recipe, Stage, Task
from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.standard import SGDSpec
from deepauc.training.first_stage import first_stage

generator = np.random.default_rng(0)
images = generator.integers(0, 200, (64, 8, 8, 1)).astype(np.uint8)
labels = np.tile([0.0, 1.0], 32).astype(np.float32)
task = Task(name="t", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",),
            parts={"train": np.arange(64)})
stage = Stage(objective=Contrastive(), optimizer=SGDSpec(), epochs=30, batch_size=16, views=2, augment=Augment())
recipe = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(stage,))
steps = []
print("ready", flush=True)
sys.stdin.readline()
path = first_stage(recipe, task, seed=0, cache_dir=sys.argv[1], progress=steps.append)
print(path.name, len(steps))
"""


def test_of_processes_that_ask_at_once_one_trains(tmp_path):
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline().strip() == "ready", process.stderr.read()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=600)[0].split() for process in processes]
    assert told[0][0] == told[1][0]
    assert sorted(int(steps) for _, steps in told) == [0, 120]
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == [told[0][0]]


def test_jobs_share_what_is_missing(image_task, tmp_path):
    thens = [second(), second(optimizer=SGDSpec(lr=0.01))]
    jobs = [
        Job(recipe=recipe(then=then), task=image_task, seed=seed, run_dir=tmp_path / f"{seed}-{number}")
        for seed in (0, 1)
        for number, then in enumerate(thens)
    ]
    alone = first_stage(recipe(), image_task, seed=1, cache_dir=tmp_path / "alone", engine="fast", device="cpu")
    found = first_stages(jobs, cache_dir=tmp_path / "cache", device="cpu")
    onwards = [replace(job, recipe=after_first_stage(job.recipe, path)) for job, path in zip(jobs, found, strict=True)]
    kept = [p for p in (tmp_path / "cache").iterdir() if not p.name.startswith(".")]
    assert len(kept) == 2
    assert found[:2] == [found[0]] * 2
    there = tmp_path / "cache" / alone.name
    assert (there / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()
    assert found[2] == there
    assert len(train_together(onwards, device="cpu")) == 4


def test_what_makes_no_sense_is_refused(image_task, tmp_path):
    with pytest.raises(ValueError, match="does not begin"):
        first_stage(Recipe(model=MODEL, stages=(second(),)), image_task, seed=0, cache_dir=tmp_path)
    with pytest.raises(ValueError, match="nothing comes after"):
        after_first_stage(Recipe(model=MODEL, stages=(views(),)), tmp_path)
