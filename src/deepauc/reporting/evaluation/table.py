"""Scores and labels from any file, judged part by part, and two files of scores compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import Comparison, compare_auroc
from deepauc.metrics.crossval.fold_curves import FoldCurves, fold_curves
from deepauc.metrics.crossval.folds import FoldComparison, compare_fold_auroc, fold_auroc
from deepauc.metrics.curves import RocCurve, roc_curve
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.partial import Region, compare_partial_auroc, partial_auroc
from deepauc.reporting.evaluation.findings import Absent, LabelEvaluation, Paired, PairedPartial
from deepauc.reporting.evaluation.label import NO_PART, WHOLE, evaluate_label
from deepauc.reporting.evaluation.pairing import Pairing, pair_rows
from deepauc.reporting.evaluation.sample import Sample, attempt, sample_of
from deepauc.reporting.evaluation.within_folds import DRAWN_POINTS
from deepauc.training.run.scores import OOF, Floats, Scores, Strings

NO_TEST = "thresholds and recalibration come from validation and are judged on test; there is no test part."
NO_VALIDATION = "thresholds and recalibration come from validation, and there is no such part."
NO_TEST_WITHIN = Absent("partial AUCs within folds have no paired test; on a test part they have one.")
NOT_TEST = "thresholds and recalibration from validation are judged on test alone."


@dataclass(frozen=True, kw_only=True)
class TableComparison:
    """Two tables on the same rows, label by label. groups_differ: rows of one patient in a are not of one in b."""

    part: str
    rows: int
    positives: tuple[int, ...]  # by label
    paired_by: str
    clustered: bool
    labels: tuple[Paired | Absent, ...]
    group_word: str = "patient"
    groups_differ: bool = False


def evaluate_part(
    table: Scores,
    part: str | None,
    *,
    curves: bool,
    probabilities: bool,
    region: Region | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LabelEvaluation, ...]:
    """Every label of a part (None: of the whole table); thresholds for test come from validation, where it is there.

    Held-out rows of cross-validation (part oof) are judged within folds; thresholds for a test part beside them are
    those of all held-out rows. region: also the partial AUC there. progress: called with (labels done, labels in all).
    """
    judged = table if part is None else table.part(part)
    folds = OOF in table.part_names and table.folds is not None
    found = []
    for number, name in enumerate(table.label_names):
        validation: Sample | Absent = Absent(NO_VALIDATION)
        if part == "validation" and "test" not in table.part_names:
            validation = Absent(NO_TEST)
        elif part == "test" and folds:
            validation = sample_of(table.part(OOF), number)
        elif part not in (None, "test"):
            validation = Absent(NOT_TEST)
        elif part == "test" and "validation" in table.part_names:
            validation = sample_of(table.part("validation"), number)
        found.append(
            evaluate_label(
                sample_of(judged, number, part=part if folds else None),
                name=name,
                part=WHOLE if part is None else part or NO_PART,
                validation=validation,
                probabilities=probabilities,
                curves=curves,
                tell_resamples=number == 0,
                region=region,
                log_odds=folds and part in (OOF, "test"),
            )
        )
        if progress is not None:
            progress(number + 1, len(table.label_names))
    return tuple(found)


def compare_tables(
    a: Scores, b: Scores, *, part: str | None, common: bool = False, region: Region | None = None
) -> TableComparison:
    """The paired test of a's AUC against b's on the same rows; clustered where patients have several.

    region: also of their partial AUCs there. Held-out rows of cross-validation (part oof) are compared within folds,
    which must be the same in both.
    """
    if part is not None:
        a = a.part(part) if a.parts is not None else a
        b = b.part(part) if b.parts is not None else b
    pairing = pair_rows(a, b, common=common)
    folds = _shared_folds(pairing) if part == OOF else None
    groups = pairing.a.groups if pairing.a.groups is not None else pairing.b.groups
    labelled = ~np.isnan(pairing.a.labels).all(axis=1)
    clustered = groups is not None and np.unique(groups[labelled]).size < labelled.sum()
    labels = range(len(pairing.a.label_names))
    return TableComparison(
        part=part or WHOLE,
        rows=int(labelled.sum()),
        positives=tuple(int(np.nansum(pairing.a.labels[:, number])) for number in labels),
        paired_by=pairing.how,
        clustered=clustered,
        group_word=(pairing.a if pairing.a.groups is not None else pairing.b).group_word,
        groups_differ=_groups_differ(pairing),
        labels=tuple(_paired(pairing, number, clustered, region, folds) for number in labels),
    )


def _shared_folds(pairing: Pairing) -> Strings:
    """The fold of each row: scores of different networks are ranked among their own alone."""
    a, b = pairing.a.folds, pairing.b.folds
    if a is None or b is None or not np.array_equal(a, b):
        raise ValueError(
            "the held-out rows (part oof) have different folds in the two files: train both on the same table with "
            "the same folds, or compare them on a test part or a new table (deepauc predict, then deepauc compare)."
        )
    return a


def _groups_differ(pairing: Pairing) -> bool:
    """Whether the tables part the rows otherwise; the groups may have other names."""
    mine, other = pairing.a.groups, pairing.b.groups
    if mine is None or other is None:
        return False
    a, b = (np.unique(groups, return_inverse=True)[1] for groups in (mine, other))
    pairs = np.unique(np.stack([a, b]), axis=1).shape[1]
    return not pairs == a.max() + 1 == b.max() + 1


def _paired(
    pairing: Pairing, number: int, clustered: bool, region: Region | None, folds: Strings | None
) -> Paired | Absent:
    labels = pairing.a.labels[:, number]
    known = ~np.isnan(labels)
    labels = labels[known]
    ours, theirs = (table.scores[known, number] for table in (pairing.a, pairing.b))
    groups = pairing.a.groups if pairing.a.groups is not None else pairing.b.groups
    chosen = groups[known] if clustered and groups is not None else None
    own = None if folds is None else folds[known]
    found = attempt(lambda: _tested(ours, theirs, labels, chosen, own))
    if isinstance(found, Absent):
        return found
    test, auc, baseline_auc = found
    curve = roc_curve(theirs, labels) if own is None else fold_curves(theirs, labels, own)
    assert isinstance(curve, RocCurve | FoldCurves)
    step = max(1, curve.fpr.size // DRAWN_POINTS)
    partial: PairedPartial | Absent | None = None
    if region is not None:
        partial = (
            attempt(lambda: _paired_partial(ours, theirs, labels, chosen, region)) if own is None else NO_TEST_WITHIN
        )
    return Paired(
        label=pairing.a.label_names[number],
        auc=auc,
        baseline_auc=baseline_auc,
        difference=Estimate(test.difference, test.low, test.high).floats(),
        p_value=float(test.p_value),
        same_scores=bool(np.array_equal(ours, theirs)),
        baseline_fpr=np.append(curve.fpr[::step], 1.0),
        baseline_tpr=np.append(curve.tpr[::step], 1.0),
        partial=partial,
    )


def _tested(
    ours: Floats, theirs: Floats, labels: Floats, groups: Strings | None, folds: Strings | None
) -> tuple[Comparison | FoldComparison, float, float]:
    """The paired test and both AUCs, within folds where there are any."""
    if folds is None:
        found = compare_auroc(ours, theirs, labels, groups=groups)
        return found, float(auroc(ours, labels)), float(auroc(theirs, labels))
    within = compare_fold_auroc(ours, theirs, labels, folds, groups=groups)
    return within, float(fold_auroc(ours, labels, folds)), float(fold_auroc(theirs, labels, folds))


def _paired_partial(
    ours: Floats, theirs: Floats, labels: Floats, groups: Strings | None, region: Region
) -> PairedPartial:
    max_fpr, min_tpr = region.max_fpr, region.min_tpr
    found = compare_partial_auroc(ours, theirs, labels, max_fpr=max_fpr, min_tpr=min_tpr, groups=groups)
    return PairedPartial(
        region=region,
        area=float(partial_auroc(ours, labels, max_fpr=max_fpr, min_tpr=min_tpr)),
        baseline_area=float(partial_auroc(theirs, labels, max_fpr=max_fpr, min_tpr=min_tpr)),
        difference=Estimate(float(found.difference), float(found.low), float(found.high)),
        p_value=float(found.p_value),
    )
