"""Copies of an image: which they are, who asks for how many, and what happens when one is told to stop meanwhile."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs
from deepauc.models.build import SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training import scoring
from deepauc.training.engine.loop import train
from deepauc.training.engine.trainer import Trainer
from deepauc.training.predict.predict import predict
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.interrupt import Interrupted
from deepauc.training.test_time import Copies, score_copies

MODEL = SmallCNNSpec(widths=(4, 8))
SHIFT = Augment(crop_padding=2)


def recipe(*, tta=3, guard=False):
    ce = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=2, batch_size=16, augment=SHIFT)
    auc = Stage(objective=AUCMargin(), optimizer=PESGSpec(), epochs=2, batch_size=16, augment=SHIFT)
    return Recipe(model=MODEL, stages=(ce, auc), tta=tta, guard=guard)


@pytest.fixture
def run(image_task, tmp_path):
    return train(recipe(), image_task, seed=0, run_dir=tmp_path / "run")


@pytest.fixture
def alone(run, tmp_path):
    """Its bundle in a folder of its own, as `deepauc export --bundle` leaves it."""
    folder = tmp_path / "alone"
    folder.mkdir()
    for name in ("bundle.json", "model.safetensors"):
        shutil.copy(run.path / name, folder / name)
    return folder


def test_a_whole_number_written_as_a_fraction_is_one(run, image_task, tmp_path):
    same = train(recipe(tta=3.0), image_task, seed=0, run_dir=tmp_path / "same")
    assert same.record.plain["identity"] == run.record.plain["identity"]
    np.testing.assert_array_equal(same.scores("test")[0], run.scores("test")[0])
    np.testing.assert_array_equal(predict(run, image_task, tta=3.0), predict(run, image_task))


@pytest.mark.parametrize("number", [2.5, float("nan"), float("inf"), "8"])
def test_no_number_of_copies_is_refused_by_recipe_and_predict(run, image_task, number):
    with pytest.raises(ValueError, match="1 to 1000 copies"):
        recipe(tta=number)
    if not isinstance(number, str):
        with pytest.raises(ValueError, match="copies"):
            predict(run, image_task, tta=number)


def test_a_bundle_alone_makes_another_number_of_its_copies(run, alone, image_task):
    np.testing.assert_array_equal(predict(alone, image_task, tta=5), predict(run, image_task, tta=5))


def test_a_bundle_that_knows_no_copies_says_where_they_are_known(run, alone, image_task):
    plain = json.loads((alone / "bundle.json").read_text())
    (alone / "bundle.json").write_text(json.dumps({**plain, "copies": None}))
    with pytest.raises(ValueError, match="name the run it comes from, or pass augment"):
        predict(alone, image_task, tta=5)
    expected = predict(run, image_task, tta=5)
    np.testing.assert_array_equal(predict(alone, image_task, tta=5, augment=SHIFT), expected)


def test_mixup_is_left_out_of_an_augmentation_however_many_copies_are_asked_for(run, image_task):
    mixed = Augment(crop_padding=1, mixup=0.3)
    expected = predict(run, image_task, tta=3, augment=replace(mixed, mixup=0.0))
    for tta in (None, 3):
        np.testing.assert_array_equal(predict(run, image_task, tta=tta, augment=mixed), expected)


def test_copies_without_the_image_are_refused(run, alone, image_task):
    away = Augment(crop_padding=8)  # of 8 pixels
    with pytest.raises(ValueError, match="out of the picture"):
        predict(run, image_task, augment=away)
    with pytest.raises(ValueError, match="out of the picture"):
        predict(run, image_task, tta=2, augment=away)
    plain = json.loads((alone / "bundle.json").read_text())
    plain["copies"]["augment"]["crop_padding"] = 8
    (alone / "bundle.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="copies do not fit the inputs"):
        Bundle.load(alone)


def test_copies_follow_from_the_seed_alone_and_a_score_from_the_image(run, image_task, monkeypatch):
    bundle, rows = Bundle.load(run.path), np.arange(96, 160)
    given = (bundle.network(run.path), image_task, rows, bundle.preprocessing, torch.device("cpu"))

    def scores(number, some=rows):
        copies = Copies(number=number, augment=SHIFT)
        return score_copies(given[0], image_task, some, *given[3:], copies=copies).astype(np.float64)

    two, three = scores(2), scores(3)
    third = 3 * three - 2 * two  # the mean of three is that of the first two and one more
    assert np.abs(third - scores(1)).max() > 1e-3
    changes, images = Copies(number=3, augment=SHIFT).changes(), torch.from_numpy(image_task.inputs(rows))
    by_hand = [given[0](bundle.preprocessing(SHIFT.apply(images, change.expand(64, -1)))) for change in changes]
    np.testing.assert_allclose(torch.stack(by_hand).mean(0).detach(), three, atol=1e-5)
    np.testing.assert_allclose(by_hand[2].detach(), third, atol=1e-4)
    order = np.random.default_rng(0).permutation(rows)
    np.testing.assert_allclose(scores(3, order), three[order - 96], atol=1e-5)
    monkeypatch.setattr(scoring, "BATCH", 7)
    np.testing.assert_allclose(scores(3), three, atol=1e-5)
    longer = replace(image_task, source=ArrayInputs(np.concatenate([image_task.inputs(np.arange(160))] * 2)),
                     labels=np.tile(image_task.labels, 2), groups=None, metadata={})  # fmt: skip
    np.testing.assert_allclose(predict(run, longer, rows=rows), three[:, 0], atol=1e-5)
    np.testing.assert_allclose(predict(run, longer, rows=rows + 160), three[:, 0], atol=1e-5)  # wherever it stands


def test_another_seed_makes_other_copies_and_the_same_one_the_same():
    copies = Copies(number=40, augment=Augment(crop_padding=2, rotation=5.0))
    first, again, other = copies.changes(3), copies.changes(3), copies.changes(4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(replace(copies, number=7).changes(3), first[:7])
    assert len(torch.unique(first, dim=0)) == 40
    assert set(first[:, 0].tolist()) == {0.0, 1.0}  # mirrored and not


@pytest.mark.parametrize("guard", [False, True])
def test_told_to_stop_while_copies_are_scored_it_stops_and_goes_on(image_task, tmp_path, monkeypatch, guard):
    whole = train(recipe(guard=guard), image_task, seed=0, run_dir=tmp_path / "whole")
    scores, rang = Trainer.scores, []

    def rings(self, part, *, final=False):
        if final and part == "test" and not rang:
            rang.append(part)
            os.kill(os.getpid(), signal.SIGINT)
        return scores(self, part, final=final)

    monkeypatch.setattr(Trainer, "scores", rings)
    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted, match="again to resume"):
        train(recipe(guard=guard), image_task, seed=0, run_dir=folder)
    assert not (folder / "DONE").exists()
    train(recipe(guard=guard), image_task, seed=0, run_dir=folder)
    for name in ("scores.csv", "model.safetensors", "bundle.json", "history.csv"):
        assert (folder / name).read_bytes() == (whole.path / name).read_bytes(), name


class CountedInputs(ArrayInputs):
    """Counts the images that were read."""

    read = 0

    def __call__(self, indices):
        self.read += len(indices)
        return super().__call__(indices)


@pytest.mark.parametrize("held", [1, 40 * 64, 1 << 28])  # bytes: a batch at a time, some batches, all
def test_an_image_is_read_once_for_all_its_copies(run, image_task, monkeypatch, held):
    monkeypatch.setattr(scoring, "BATCH", 7)
    bundle, rows = Bundle.load(run.path), np.random.default_rng(1).choice(160, 60)  # in any order, some twice
    given = (rows, bundle.preprocessing, torch.device("cpu"))
    network = bundle.network(run.path)
    resident = torch.from_numpy(image_task.inputs(np.arange(160)))
    expected = score_copies(network, image_task, *given, copies=bundle.copies, resident=resident)
    monkeypatch.setattr("deepauc.training.test_time.HELD_BYTES", held)
    source = CountedInputs(image_task.inputs(np.arange(160)))
    told = []
    found = score_copies(network, replace(image_task, source=source), *given, copies=bundle.copies,
                         progress=lambda *at: told.append(at))  # fmt: skip
    np.testing.assert_array_equal(found, expected)
    assert source.read == len(rows)
    assert told[-1] == (180, 180)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
