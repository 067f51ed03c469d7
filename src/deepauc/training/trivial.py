"""Trivial baselines: what a network must beat to be worth its training.

Logistic regression on 16 x 16 pixels, or on a table's numbers, and on the mean brightness. Each becomes a linear torch
module with a bundle of its own, so that it is scored, averaged, saved and exported as any run; nothing is pickled.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deepauc.data.bags import BagInputs, image_rows
from deepauc.data.counter import fixed_permutation
from deepauc.data.splits import fold_numbers
from deepauc.data.task import Array, Indices, Task, feature_columns
from deepauc.metrics.crossval.folds import fold_auroc
from deepauc.metrics.recalibration import TemperatureScaling
from deepauc.models.bags import BagNetwork
from deepauc.models.build import BagSpec, MLPSpec, ModelSpec, ThumbnailSpec, build_model
from deepauc.models.thumbnail import ThumbnailLinear
from deepauc.training.prepare.encoded_metadata import EncodedMetadata
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.run.bundle import Bundle, save_weights

Floats = npt.NDArray[np.float64]

FOLDER = "trivial"  # in that of a run: a folder for each baseline that was fitted beside it
TITLES = {"logistic": "logistic regression", "brightness": "mean brightness"}  # of these folders, for people
MOST_ROWS = 20_000  # that a fit looks at: all of the rarer class up to half of them
CHUNK = 256
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # scikit-learn's C: larger means less shrinkage
WITHOUT_CHOICE = 1e-2  # where a class is too small for inner folds
INNER_FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class Trivial:
    """A fitted baseline: `model` scores what `bundle.preprocessing` makes of the inputs, as a run's network does."""

    model: nn.Module
    bundle: Bundle
    strengths: tuple[float, ...]  # C, by label

    def save(self, folder: Path) -> None:
        """bundle.json and model.safetensors, into a folder that is there."""
        save_weights(folder / "model.safetensors", self.model)
        self.bundle.save(folder)


def trivial_specs(task: Task) -> dict[str, ModelSpec]:
    """The baselines that such inputs have, by their folders; of bags, on the mean over their images."""
    specs: dict[str, ModelSpec] = {"logistic": MLPSpec(hidden=())}
    if len(task.source.shape) == 3:
        specs = {"logistic": ThumbnailSpec(), "brightness": ThumbnailSpec(size=1, grey=True)}
    if isinstance(task.source, BagInputs):
        return {name: BagSpec(image=spec, pooling="mean") for name, spec in specs.items()}
    return specs


def fit_trivial(spec: ModelSpec, task: Task, *, seed: int = 0) -> Trivial:
    """Fit on the labelled rows of the training part; the shrinkage of each label by AUC in three inner folds.

    A label with one class only keeps a score of 0 for all rows. Patients stay whole in the inner folds.
    """
    images = len(task.source.shape) == 3
    preprocessing = Preprocessing.none(task) if images else Preprocessing.of(task)  # the fit standardises by itself
    model = build_model(spec, in_channels=task.source.shape[-1], num_outputs=task.num_labels, seed=0)
    of_image = model.image if isinstance(model, BagNetwork) else model
    head = of_image.get_submodule("head")
    assert isinstance(head, nn.Linear)
    strengths = []
    read: Indices | None = None
    with torch.no_grad():
        for j in range(task.num_labels):
            labels = task.labels.reshape(len(task), -1)[:, j]
            rows = _rows(labels, task.labelled("train"), seed)
            if rows is None:
                strengths.append(WITHOUT_CHOICE)
                continue
            if read is None or not np.array_equal(rows, read):  # labels often have the same rows
                read, features = rows, _features(of_image, task, rows, preprocessing)
            weights = _row_weights(task, labels, rows)
            groups = None if task.groups is None else task.groups[rows]
            fitted = _fit(features, labels[rows] == 1, weights, groups, seed)
            head.weight[j] = torch.from_numpy(fitted.weight)
            head.bias[j] = fitted.bias
            strengths.append(fitted.strength)
    own = TemperatureScaling(slope=1.0, intercept=0.0).to_dict()  # a logistic regression's scores are log odds
    bundle = Bundle(
        model=spec,
        shape=tuple(task.source.shape),
        kind=task.kind,
        label_names=task.label_names,
        preprocessing=preprocessing,
        calibration=dict.fromkeys(task.label_names, own),
        metadata=task.source.encoder.to_dict() if isinstance(task.source, EncodedMetadata) else None,
        features=feature_columns(task.source),
        window=getattr(task.source, "window", None),
    )
    return Trivial(model=model.eval(), bundle=bundle, strengths=tuple(strengths))


def _rows(labels: Array, rows: Indices, seed: int) -> Indices | None:
    """Labelled rows to fit on, some MOST_ROWS at most; None where a class has none."""
    of_class = [rows[labels[rows] == value] for value in (0, 1)]
    rarer = min(map(len, of_class))
    if rarer == 0:
        return None
    room = min(rarer, MOST_ROWS // 2)
    kept = []
    for one in of_class:
        limit = room if len(one) == rarer else MOST_ROWS - room
        kept.append(one[np.sort(fixed_permutation(len(one), seed=seed, stream="trivial")[:limit])])
    return np.sort(np.concatenate(kept))


def _row_weights(task: Task, labels: Array, rows: Indices) -> Floats:
    """The task's own weights; a class of which some rows were left out counts as all of them."""
    weights = np.ones(len(rows)) if task.weights is None else task.weights[rows].astype(np.float64)
    whole = task.labelled("train")
    for value in (0, 1):
        inside = labels[rows] == value
        weights[inside] *= (labels[whole] == value).sum() / inside.sum()
    return weights


def _features(model: nn.Module, task: Task, rows: Indices, preprocessing: Preprocessing) -> npt.NDArray[np.float32]:
    """What the head weighs, (n, F), a few rows of inputs at a time; of bags the mean over their images."""
    source, images = image_rows(task.source, rows)
    sizes = task.source.sizes[rows] if isinstance(task.source, BagInputs) else np.ones(len(rows), dtype=np.int64)
    row_of = np.repeat(np.arange(len(rows)), sizes)
    found: npt.NDArray[np.float32] | None = None
    for start in range(0, len(images), CHUNK):
        inputs = preprocessing(torch.from_numpy(source(images[start : start + CHUNK])))
        part = (model.features(inputs) if isinstance(model, ThumbnailLinear) else inputs).numpy()
        if found is None:
            found = np.zeros((len(rows), part.shape[1]), dtype=np.float32)
        own = row_of[start : start + CHUNK]
        np.add.at(found, own, part / sizes[own, None].astype(np.float32))
    assert found is not None
    return found


@dataclass(frozen=True)
class _Fitted:
    weight: Floats
    bias: float
    strength: float


def _fit(
    features: npt.NDArray[np.float32],
    positive: npt.NDArray[np.bool_],
    weights: Floats,
    groups: Array | None,
    seed: int,
) -> _Fitted:
    mean, scale = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    scale = np.where(scale > 1e-9 * np.maximum(np.abs(mean), 1e-6), scale, np.inf)  # a constant pixel counts nothing
    z = (features - mean) / scale
    strength = _chosen_strength(z, positive, weights, groups, seed)
    model = _logistic(z, positive, weights, strength)
    weight = model.coef_[0] / scale
    return _Fitted(weight, float(model.intercept_[0] - weight @ mean), strength)


def _chosen_strength(
    z: Floats, positive: npt.NDArray[np.bool_], weights: Floats, groups: Array | None, seed: int
) -> float:
    if z.shape[1] == 1:
        return STRENGTHS[-1]  # one number: shrinkage changes no ranking
    units = [int(of.sum()) if groups is None else len(np.unique(groups[of])) for of in (positive, ~positive)]
    if min(units) < 2 * INNER_FOLDS:
        return WITHOUT_CHOICE
    folds = fold_numbers(positive.astype(np.float32), folds=INNER_FOLDS, seed=seed, groups=groups)
    scores = np.empty((len(z), len(STRENGTHS)))
    for fold in range(INNER_FOLDS):
        inside, start = folds != fold, None
        for column, strength in enumerate(STRENGTHS):  # from most to least shrinkage: each starts from the one before
            start = _logistic(z[inside], positive[inside], weights[inside], strength, start=start)
            scores[~inside, column] = start.decision_function(z[~inside])
    aucs = [float(fold_auroc(of, positive, folds)) for of in scores.T]
    return STRENGTHS[int(np.argmax(aucs))]  # the first of equals: the stronger shrinkage


def _logistic(
    z: Floats, positive: npt.NDArray[np.bool_], weights: Floats, strength: float, *, start: Any = None
) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=100, tol=1e-3, warm_start=True)
    if start is not None:
        model.coef_, model.intercept_, model.classes_ = start.coef_.copy(), start.intercept_.copy(), start.classes_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline that stops a little early ranks as well
        return model.fit(z, positive, sample_weight=weights)
