"""Test scores inside a record, so that intervals, paired tests, ensembles and fusion need no run folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.task import Task
from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import Comparison, compare_auroc
from deepauc.metrics.intervals import Estimate, auroc_interval
from deepauc.metrics.learned_weights import learn_weights, standardised
from deepauc.models.fusion import ensemble
from deepauc.studies.records.file import dense_ranks
from deepauc.training.predict.predict import kept_augment, predict
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True, eq=False)
class TestScores:
    """The test part as one run scored it. plain, labels: (n,) or (n, L). groups: numbers of patients, (n,)."""

    __test__ = False  # no test case, whatever pytest reads into the name

    plain: Floats
    labels: Floats
    tta: Floats | None
    groups: npt.NDArray[np.int64] | None

    @property
    def best(self) -> Floats:
        """With test-time augmentation where there is any."""
        return self.plain if self.tta is None else self.tta


def kept_scores(
    run: Run, task: Task, *, tta: int, device: torch.device | None = None, ranked: Collection[str] = ()
) -> dict[str, Any]:
    """The entry `test_scores` of a record: raw scores, plain and as the mean of `tta` copies.

    ranked: which of these ("plain", "tta") are in no average of models: of them ranks are enough for AUCs and tests.
    """
    rows = task.labelled("test")
    scores, labels = run.scores("test")
    if Bundle.load(run.path).copies is not None:  # the run's own scores are means over copies: these are not plain
        scores = predict(run, task, rows=rows, tta=0, device=device).astype(np.float32)
    copies = tta if kept_augment(run.path) is not None and len(task.source.shape) == 3 else 0
    entry: dict[str, Any] = {
        "labels": task.num_labels,
        "plain": scores.astype("<f4"),
        "truth": labels.astype("<f4").astype("i1") if not np.isnan(labels).any() else labels.astype("<f4"),
        "tta_copies": copies,
    }
    if copies:
        entry["tta"] = predict(run, task, rows=rows, tta=copies, device=device).astype("<f4").reshape(labels.shape)
        entry["tta_auc"] = _rounded(auroc(entry["tta"].astype(np.float64), labels))
    if task.groups is not None:
        groups = np.unique(task.groups[rows], return_inverse=True)[1]
        entry["groups"] = groups.astype("<i4")
    return {"test_scores": entry | {name: dense_ranks(entry[name]) for name in ranked if name in entry}}


def read_scores(record: Mapping[str, Any]) -> TestScores:
    """What `kept_scores` wrote."""
    entry = record["test_scores"]
    shape = (-1,) if entry["labels"] == 1 else (-1, entry["labels"])
    return TestScores(
        plain=np.asarray(entry["plain"], dtype=np.float64).reshape(shape),
        labels=np.asarray(entry["truth"], dtype=np.float64).reshape(shape),
        tta=np.asarray(entry["tta"], dtype=np.float64).reshape(shape) if "tta" in entry else None,
        groups=np.asarray(entry["groups"], dtype=np.int64) if "groups" in entry else None,
    )


def pooled(folds: Sequence[TestScores], values: Sequence[Floats] | None = None) -> TestScores:
    """Out-of-fold scores of several folds as one set: ranks within each fold, since models share no scale."""
    own = [fold.best for fold in folds] if values is None else list(values)
    ranks = [ensemble([scores], scale="rank") for scores in own]
    groups, start = [], 0
    for fold in folds:
        numbers = np.arange(len(fold.labels)) if fold.groups is None else fold.groups
        groups.append(numbers + start)  # folds share no patient
        start += int(numbers.max()) + 1
    return TestScores(
        plain=np.concatenate(ranks),
        labels=np.concatenate([fold.labels for fold in folds]),
        tta=None,
        groups=np.concatenate(groups),
    )


def learned_scores(
    images: Mapping[int, Floats], patients: Mapping[int, Floats], labels: Mapping[int, Floats]
) -> dict[int, Floats]:
    """By fold: image and metadata scores by the weights that the other folds' scores give; see `learn_weights`.

    Models of two folds share no scale, so scores are standardised within their fold.
    """
    scaled = {fold: (standardised(images[fold]), standardised(patients[fold])) for fold in images}
    joined = {}
    for fold, own in scaled.items():
        others = [other for other in scaled if other != fold]
        columns = [np.concatenate([scaled[other][column] for other in others]) for column in range(len(own))]
        weights = learn_weights(columns, np.concatenate([labels[other] for other in others]))
        joined[fold] = weights.score(own)
    return joined


def interval(scores: Floats, test: TestScores, *, method: str = "delong") -> Estimate[float]:
    """By patient where patients are known; the bootstrap takes a hundred times as long, .5 s for 6,000 images."""
    return auroc_interval(scores, test.labels, method=method, groups=test.groups, n_resamples=RESAMPLES).floats()


def against(scores: Floats, other: Floats, test: TestScores) -> Comparison:
    """The paired test of two scores of one test part."""
    return compare_auroc(scores, other, test.labels, groups=test.groups)


def comparison_text(found: Comparison) -> str:
    """`+0.012 [-0.003, +0.027], p .11`."""
    p = float(found.p_value)
    shown = "p < .001" if p < 0.001 else f"p {p:.3f}".replace("0.", ".")
    return f"{float(found.difference):+.3f} [{float(found.low):+.3f}, {float(found.high):+.3f}], {shown}"


def _rounded(value: Any) -> Any:
    return np.round(value, 6).tolist() if np.ndim(value) else round(float(value), 6)
