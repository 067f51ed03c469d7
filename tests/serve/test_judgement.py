"""What the page says of an image, against `predict`, the recorded scores and counting by hand."""

import base64
import io
import shutil

import numpy as np
import pytest
from PIL import Image

from deepauc.data.images.decode import ImageError
from deepauc.data.task import ArrayInputs
from deepauc.reporting.evaluation.run import evaluate_run
from deepauc.reporting.export import copy_bundle
from deepauc.serve.judgement import ServedRun
from deepauc.training.predict.predict import predict
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

LABELS = {"auc": ("spot",), "multi": ("spot", "coin & <b>", "عِلّة")}


@pytest.mark.parametrize("name", ["auc", "multi"])
def test_scores_and_probabilities_are_those_of_predict(run_folders, spots_task, png, name):
    folder, task = run_folders / name, spots_task(label_names=LABELS[name])
    run = ServedRun(folder)
    rows = task.parts["test"][:5]
    expected = predict(folder, task, rows=rows).reshape(5, -1)
    chances = Bundle.load(folder).recalibration().apply(expected)
    for place, image in enumerate(task.source(rows)):
        found = run.judge(png(image))
        assert tuple(one.label for one in found) == LABELS[name]
        assert [one.score for one in found] == pytest.approx(expected[place], abs=1e-6)
        assert [one.probability for one in found] == pytest.approx(chances[place], abs=1e-6)


def test_a_run_with_copies_is_scored_over_its_copies(run_folders, spots_task, png, tmp_path, copy_to_edit):
    from dataclasses import replace

    from deepauc.data.augment.batch import Augment
    from deepauc.training.test_time import Copies

    folder = copy_to_edit(run_folders / "auc", tmp_path / "run")
    copies = Copies(number=3, augment=Augment(crop_padding=1, rotation=20.0))
    replace(Bundle.load(folder), copies=copies).save(folder)
    task = spots_task()
    row = task.parts["test"][:1]
    run = ServedRun(folder)
    score = run.judge(png(task.source(row)[0]))[0].score
    assert run.copies == 3
    assert score == pytest.approx(float(predict(folder, task, rows=row)[0]), abs=1e-6)
    assert score != pytest.approx(float(predict(folder, task, rows=row, tta=0)[0]), abs=1e-6)


def test_the_position_is_the_share_of_training_rows_below(run_folders, served, spot):
    (one,) = served.judge(spot)
    scores, labels = Run(run_folders / "auc").scores("train")
    for value, share in ((0, one.above_negatives), (1, one.above_positives)):
        others = [s for s, y in zip(scores, labels, strict=True) if y == value]
        assert share == pytest.approx(np.mean([(s < one.score) + (s == np.float32(one.score)) / 2 for s in others]))


def test_thresholds_come_with_what_they_reach_on_test(run_folders, served):
    scores, labels = Run(run_folders / "auc").scores("test")
    recorded = Bundle.load(run_folders / "auc").thresholds["spot"]
    (label,) = served.labels
    assert {one.name: one.value for one in label.thresholds} == recorded
    for one in label.thresholds:
        called = scores >= one.value
        assert one.reached.part == "test"
        assert (one.reached.positives, one.reached.negatives) == ((labels == 1).sum(), (labels == 0).sum())
        assert one.reached.true_positives == (called & (labels == 1)).sum()
        assert one.reached.true_negatives == (~called & (labels == 0)).sum()


def test_the_distribution_holds_every_training_row_once(served):
    (label,) = served.labels
    assert sum(label.distribution.positives) == pytest.approx(1)
    assert sum(label.distribution.negatives) == pytest.approx(1)


def test_the_picture_is_the_image_beside_its_map(served, spots_task, png):
    image = spots_task().source(np.array([-1]))[0]
    (one,) = served.judge(png(image))
    head, data = one.picture.split(",")
    assert head == "data:image/png;base64"
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    side = picture.shape[0]
    large = np.asarray(Image.fromarray(image[..., 0]).resize((side, side), Image.Resampling.NEAREST))
    assert np.array_equal(picture[:, :side, 0], large)
    assert picture.shape[1] > 2 * side


def test_a_bundle_without_its_run_still_scores(run_folders, served, spot, tmp_path):
    copy_bundle(run_folders / "auc", tmp_path / "bundle")
    run = ServedRun(tmp_path / "bundle")
    (one,), (whole,) = run.judge(spot), served.judge(spot)
    assert one.score == whole.score
    assert (one.above_negatives, one.above_positives) == (None, None)
    assert run.labels[0].distribution is None
    assert all(threshold.reached is None for threshold in run.labels[0].thresholds)


def test_a_run_without_recalibration_gives_no_probability(run_folders, spot, tmp_path, copy_to_edit):
    from dataclasses import replace

    folder = copy_to_edit(run_folders / "auc", tmp_path / "run")
    replace(Bundle.load(folder), calibration={}, thresholds={}).save(folder)
    run = ServedRun(folder)
    assert run.judge(spot)[0].probability is None
    assert run.labels[0].thresholds == ()


def test_a_network_without_feature_maps_scores_without_a_picture(run_folders, served, spot, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ValueError("Grad-CAM needs a convolutional network.")

    expected = served.judge(spot)[0].score
    monkeypatch.setattr("deepauc.serve.judgement.grad_cam", refuse)
    run = ServedRun(run_folders / "auc")
    (one,) = run.judge(spot)
    assert one.picture is None
    assert one.score == expected


def test_a_file_of_another_run_is_refused_unless_forced(run_folders, tmp_path):
    shutil.copytree(run_folders / "auc", tmp_path / "run")
    shutil.copy(run_folders / "ce" / "model.safetensors", tmp_path / "run")
    with pytest.raises(ValueError, match="not the file that this run wrote"):
        ServedRun(tmp_path / "run")
    assert len(ServedRun(tmp_path / "run", force=True).cautions) == 1


def test_a_run_on_numbers_is_refused(spots_task, tmp_path):
    from dataclasses import replace

    from deepauc.models.small import MLPSpec
    from deepauc.objectives.baselines import CrossEntropy
    from deepauc.optim.standard import SGDSpec
    from deepauc.training.engine.loop import train
    from deepauc.training.recipe import Recipe, Stage

    task = spots_task(rows=80)
    numbers = replace(task, source=ArrayInputs(np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)))
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=16)
    train(Recipe(model=MLPSpec(hidden=(4,)), stages=(stage,)), numbers, seed=0, run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="not trained on images"):
        ServedRun(tmp_path / "run")


def test_what_is_no_image_is_an_image_error(served):
    with pytest.raises(ImageError, match="not an image that can be read"):
        served.judge(b"%PDF-1.7 a letter")


def test_a_run_with_folds_shows_what_its_report_counts(fold_run):
    folder = fold_run()
    run = ServedRun(folder)
    (label,) = evaluate_run(folder).labels
    rows = {row.asked: row for row in (*label.operating_points, *label.sensitivity_points)}
    assert run.folds
    for threshold in run.labels[0].thresholds:
        row, reached = rows[threshold.name], threshold.reached
        assert (reached.true_positives, reached.true_negatives) == (row.true_positives, row.true_negatives)
        assert (reached.positives, reached.negatives) == (label.counts.positives, label.counts.negatives)
    assert run.labels[0].distribution is not None
    assert ServedRun(fold_run(test=True)).labels[0].thresholds[0].reached.part == "test"
