"""What a label is worth within the folds of cross-validation: AUC, curves, and each fold by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from deepauc.metrics.crossval.fold_curves import (
    fold_average_precision_interval,
    fold_bands,
    fold_curves,
    fold_partial_auroc_interval,
)
from deepauc.metrics.crossval.folds import fold_auroc_interval
from deepauc.metrics.intervals import Estimate, auroc_with_limits
from deepauc.metrics.partial import Region
from deepauc.reporting.evaluation.findings import AucResult, Curves, FoldRow, Resamples
from deepauc.reporting.evaluation.sample import Floats, Sample, attempt

DRAWN_POINTS = 400  # a curve with more corners is drawn on a grid


def part_interval(sample: Sample) -> Estimate[float]:
    """AUC with its interval, clustered by patient where a patient has several rows: DeLong's, or that within folds."""
    if sample.folds is not None:
        return fold_auroc_interval(sample.scores, sample.labels, sample.folds, groups=sample.clusters).floats()
    return auroc_with_limits(sample.scores, sample.labels, groups=sample.clusters)


def auc_within_folds(sample: Sample, resamples: Resamples) -> AucResult:
    """The mean AUC within folds, and the average precision of counts summed over folds."""
    scores, labels, folds = sample.scores, sample.labels, sample.folds
    assert folds is not None
    limits = attempt(
        lambda: fold_average_precision_interval(
            scores, labels, folds, groups=sample.clusters, n_resamples=resamples.others, seed=0
        )
    )
    return AucResult(
        delong=fold_auroc_interval(scores, labels, folds).floats(),
        delong_by_patient=None if sample.clusters is None else part_interval(sample),
        bootstrap=None,
        average_precision=fold_curves(scores, labels, folds).average_precision,
        average_precision_interval=limits,
    )


def curves_within_folds(sample: Sample, resamples: Resamples) -> Curves:
    """The mean ROC curve and the precision of summed counts, with bands, and the ROC curve of each fold."""
    scores, labels, folds = sample.scores, sample.labels, sample.folds
    assert folds is not None
    found = fold_curves(scores, labels, folds)
    bands = fold_bands(scores, labels, folds, groups=sample.groups, n_resamples=resamples.others, seed=0)
    fpr, tpr, recall, precision = found.fpr, found.tpr, found.recall, found.precision
    if fpr.size > 4 * DRAWN_POINTS:
        fpr, tpr = np.append(0.0, bands[0].x), np.append(0.0, bands[0].value)
    if recall.size > DRAWN_POINTS:
        recall, precision = bands[1].x, bands[1].value
    return Curves(
        fpr=fpr,
        tpr=tpr,
        roc_band=bands[0],
        recall=recall,
        precision=precision,
        precision_band=bands[1],
        each_roc=tuple(_thinned(*one) for one in found.each_roc),
    )


def partial_auc_within_folds(sample: Sample, resamples: Resamples, region: Region) -> Estimate[float]:
    """The region's area under the mean ROC curve."""
    assert sample.folds is not None
    return fold_partial_auroc_interval(
        sample.scores,
        sample.labels,
        sample.folds,
        max_fpr=region.max_fpr,
        min_tpr=region.min_tpr,
        groups=sample.clusters,
        n_resamples=resamples.others,
        seed=0,
    )


def each_fold(sample: Sample, names: Sequence[str], *, label: str) -> list[FoldRow]:
    """Every fold with its own AUC."""
    sample = sample.labelled()
    assert sample.folds is not None
    found = []
    for fold in names:
        own = replace(sample.rows(sample.folds == fold), folds=None)
        auc = attempt(partial(part_interval, own))
        positives = int(own.labels.sum())
        found.append(FoldRow(fold=fold, label=label, rows=len(own.labels), positives=positives, auc=auc))
    return found


def _thinned(fpr: Floats, tpr: Floats) -> tuple[Floats, Floats]:
    step = max(1, fpr.size // DRAWN_POINTS)
    return np.append(fpr[::step], 1.0), np.append(tpr[::step], 1.0)
