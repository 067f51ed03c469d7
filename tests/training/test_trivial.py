"""Trivial baselines: they rank what a line can rank, as torch modules that are saved, scored and exported as runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from deepauc import auroc
from deepauc.data.task import ArrayInputs, Task
from deepauc.training import trivial
from deepauc.training.predict.predict import predict
from deepauc.training.scoring import score_rows
from deepauc.training.trivial import fit_trivial, trivial_specs


def scores(fitted, task, part="test"):
    return score_rows(fitted.model, task, task.part(part), fitted.bundle.preprocessing, torch.device("cpu"))


def fit_all(task):
    return {name: fit_trivial(spec, task) for name, spec in trivial_specs(task).items()}


def test_pixels_beat_brightness_where_the_place_matters(image_task):
    pixels, brightness = fit_all(image_task).values()
    aucs = [
        auroc(scores(one, image_task)[:, 0], image_task.labels[image_task.part("test")]) for one in (pixels, brightness)
    ]
    assert aucs[0] > 0.97
    assert 0.6 < aucs[1] <= aucs[0]


def test_brightness_is_a_line_over_the_mean_of_all_pixels(image_task):
    images = np.repeat(image_task.source.array, 3, axis=3)
    task = replace(image_task, source=ArrayInputs(images))
    found = scores(fit_all(task)["brightness"], task)[:, 0]
    mean = images[task.part("test")].mean(axis=(1, 2, 3))
    assert np.corrcoef(found, mean)[0, 1] == pytest.approx(1, abs=1e-4)


def features_task(seed=0, n=400):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 5)) * [1, 10, 1e4, 1e-6, 1] + [0, 100, 1e6, 0, 3]
    x[:, 4] = 3  # constant
    z = (x[:, 0] + (x[:, 1] - 100) / 10) / np.sqrt(2)
    labels = (rng.random(n) < 1 / (1 + np.exp(1.5 - 2 * z))).astype(np.float32)
    parts = {"train": np.arange(300), "test": np.arange(300, n)}
    return Task(name="numbers", kind="binary", source=ArrayInputs(x), labels=labels, label_names=("y",), parts=parts)


def test_numbers_as_scikit_learn_has_them():
    task = features_task()
    (fitted,) = fit_all(task).values()
    x, train, test = task.source.array.astype(np.float64), task.part("train"), task.part("test")
    scaler = StandardScaler().fit(x[train])
    known = LogisticRegression(C=fitted.strengths[0], tol=1e-8, max_iter=1000)
    known.fit(scaler.transform(x[train]), task.labels[train])
    np.testing.assert_allclose(
        scores(fitted, task)[:, 0], known.decision_function(scaler.transform(x[test])), atol=0.02
    )


def test_its_probabilities_have_the_share_of_positives(image_task, monkeypatch):
    """Also where it looks at some of the negatives only."""
    images = np.tile(image_task.source.array, (4, 1, 1, 1))
    labels = np.tile(image_task.labels, 4)
    task = Task(
        name="many",
        kind="binary",
        source=ArrayInputs(images),
        labels=labels,
        label_names=("spot",),
        parts={"train": np.arange(640)},
    )
    monkeypatch.setattr(trivial, "MOST_ROWS", 300)
    fitted = fit_all(task)["brightness"]
    probabilities = fitted.bundle.recalibration().apply(scores(fitted, task, "train"))
    assert probabilities.mean() == pytest.approx(labels.mean(), abs=0.02)


def test_several_labels_with_missing_ones_are_each_by_itself(multilabel_task):
    pixels = fit_all(multilabel_task)["logistic"]
    found = scores(pixels, multilabel_task, "train")
    for j in range(2):
        one = replace(
            multilabel_task,
            kind="binary",
            labels=multilabel_task.labels[:, j],
            label_names=(multilabel_task.label_names[j],),
        )
        alone = fit_all(one)["logistic"]
        assert alone.strengths[0] == pixels.strengths[j]
        np.testing.assert_allclose(found[:, j], scores(alone, one, "train")[:, 0], rtol=1e-4)


def test_a_label_with_one_class_scores_nothing(multilabel_task):
    labels = multilabel_task.labels.copy()
    labels[:, 1] = 0
    fitted = fit_all(multilabel_task.with_labels(labels))["brightness"]
    assert (scores(fitted, multilabel_task)[:, 1] == 0).all()


def test_test_rows_change_nothing(image_task):
    spoilt = image_task.source.array.copy()
    spoilt[image_task.part("test")] = 255
    spoilt[image_task.part("validation")] = 0
    for before, after in zip(
        fit_all(image_task).values(), fit_all(replace(image_task, source=ArrayInputs(spoilt))).values(), strict=True
    ):
        for name, weights in before.model.state_dict().items():
            assert torch.equal(weights, after.model.state_dict()[name])


def test_a_saved_one_predicts_as_a_run_does(image_task, tmp_path):
    for name, fitted in fit_all(image_task).items():
        folder = tmp_path / name
        folder.mkdir()
        fitted.save(folder)
        assert {path.name for path in folder.iterdir()} == {"bundle.json", "model.safetensors"}
        rows = image_task.part("test")
        assert np.array_equal(predict(folder, image_task, rows=rows), scores(fitted, image_task)[:, 0])
