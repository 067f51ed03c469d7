"""What the scores of one part are worth: everything a report says about a label, as one frozen tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.table.cautions import FEW as TOO_FEW
from deepauc.metrics.average_precision import average_precision, average_precision_interval
from deepauc.metrics.calibration import (
    ReliabilityCurve,
    brier_score,
    calibration_intervals,
    expected_calibration_error,
    reliability_curve,
)
from deepauc.metrics.curves import (
    PrecisionRecallCurve,
    RocCurve,
    both_bands,
    precision_recall_curve,
    roc_curve,
)
from deepauc.metrics.decisions import DecisionCurve, decision_curve
from deepauc.metrics.intervals import auroc_with_limits
from deepauc.metrics.partial import Region, partial_auroc_interval
from deepauc.metrics.recalibration import TemperatureScaling, fit_temperature
from deepauc.reporting.evaluation.findings import (
    Absent,
    AucResult,
    Calibration,
    CalibrationState,
    Counts,
    Curves,
    Histogram,
    LabelEvaluation,
    PartialAuc,
    Resamples,
)
from deepauc.reporting.evaluation.operating import (
    at_sensitivities,
    at_specificities,
    few_for_thresholds,
    fewest_negatives,
    left_out,
    patient_levels,
)
from deepauc.reporting.evaluation.resamples import fewer_told, resamples_of
from deepauc.reporting.evaluation.sample import Floats, Sample, attempt, count_rows
from deepauc.reporting.evaluation.within_folds import (
    DRAWN_POINTS,
    auc_within_folds,
    curves_within_folds,
    partial_auc_within_folds,
)
from deepauc.training.run.scores import OOF

WHOLE = "all"  # the name of a table that has no parts
NO_PART = "(no part)"  # that of rows without one in a table that has some
CALIBRATION_BINS = 10
THRESHOLDS = np.concatenate([np.arange(1, 10) / 1000, np.arange(1, 100) / 100])
FEW = 10  # samples of the rarer class at which intervals are known to be too narrow
# Measured by tests/reporting/evaluation/test_report_coverage.py (slow).
COVERAGE_NOTE = (
    "In simulations (normal scores, AUC .7 to .9) nominal 95 % DeLong intervals contained the true AUC in 87 to 94 "
    "% of the samples with 10 positives and in 86 to 89 % with 5."
)
FOLDS_NOTE = "Intervals within folds were tried in simulations with 15 positives and more, not with fewer."
NO_RAW = "scores.csv of a run with folds holds recalibrated scores."


def evaluate_label(
    sample: Sample,
    *,
    name: str,
    part: str,
    validation: Sample | Absent,
    probabilities: bool = False,
    curves: bool = True,
    tell_resamples: bool = True,
    region: Region | None = None,
    log_odds: bool = False,
) -> LabelEvaluation:
    """All of it for one label; what cannot be had is `Absent` with the reason, never an exception.

    validation: where thresholds and recalibration come from. probabilities: the scores are probabilities already, not
    a network's raw output. curves: also curves, histograms and bands (the slow half). tell_resamples: a caution where
    fewer bootstrap samples than usual are drawn; of several labels one has it for all. region: also the partial AUC
    there. log_odds: the scores are recalibrated already.

    A sample with folds is judged within them, and is its own validation, fold by fold (`operating`).
    """
    counts = count_rows(sample)
    resamples, fewer = resamples_of(counts), fewer_told(counts) if tell_resamples else None
    sample = sample.labelled()
    obstacle = _obstacle(sample, part)
    if obstacle is not None:
        return _nothing(name, part, counts, obstacle, region)
    folds = sample.folds is not None
    held_out = sample if folds else _usable_validation(validation)
    auc = attempt(lambda: (auc_within_folds if folds else _auc)(sample, resamples))
    curves_of = curves_within_folds if folds else _curves
    few = () if isinstance(held_out, Absent) else few_for_thresholds(count_rows(held_out), folds=folds)
    probable = _as_probabilities(sample, held_out, given=probabilities, log_odds=log_odds)
    return LabelEvaluation(
        name=name,
        part=part,
        counts=counts,
        auc=auc,
        curves=attempt(lambda: curves_of(sample, resamples)) if curves else Absent("not asked for."),
        histogram=_histogram(sample),
        operating_points=at_specificities(sample, held_out),
        operating_points_left_out=(
            None if isinstance(held_out, Absent) else left_out(fewest_negatives(sample, held_out), folds=folds)
        ),
        sensitivity_points=at_sensitivities(sample, held_out),
        patients=patient_levels(sample, held_out),
        too_few=too_few(counts),
        calibration=_calibration(sample, probable, resamples),
        decision=_decision(sample, probable.after),
        cautions=(*_cautions(counts, folds), *_backwards(auc), *few, *(() if fewer is None else (fewer,))),
        resamples=resamples,
        partial_auc=partial_auc_of(sample, region),
    )


def rows_of(part: str) -> str:
    """`the test part`: what judged rows are called."""
    return {WHOLE: "the table", OOF: "the held-out rows of all folds"}.get(part, f"the {part} part")


def _obstacle(sample: Sample, part: str) -> Absent | None:
    rows, where = len(sample.labels), rows_of(part)
    if rows == 0:
        return Absent(f"{where} {'have' if part == OOF else 'has'} no labelled row.")
    if (bad := int((~np.isfinite(sample.scores)).sum())) > 0:
        return Absent(
            f"scores in {where} that are NaN or infinite: {bad:,} of {rows:,}. Drop these rows, or find out why the "
            "model gave none. If the training diverged, train again with bounded scores (bound='sigmoid') or a "
            "lower lr."
        )
    positives = int(sample.labels.sum())
    if positives in (0, rows):
        kind = "negative" if positives == 0 else "positive"
        return Absent(f"all {rows} labelled rows of {where} are {kind}: AUC needs both classes.")
    return None


def _nothing(name: str, part: str, counts: Counts, why: Absent, region: Region | None) -> LabelEvaluation:
    return LabelEvaluation(
        name=name,
        part=part,
        counts=counts,
        auc=why,
        curves=why,
        histogram=why,
        operating_points=why,
        sensitivity_points=why,
        calibration=why,
        decision=why,
        cautions=(),
        resamples=resamples_of(counts),
        partial_auc=None if region is None else why,
    )


def _usable_validation(validation: Sample | Absent) -> Sample | Absent:
    if isinstance(validation, Absent):
        return validation
    sample = validation.labelled()
    return _obstacle(sample, "validation") or sample


def _auc(sample: Sample, resamples: Resamples) -> AucResult:
    scores, labels, groups = sample.scores, sample.labels, sample.clusters
    by_patient = None if groups is None else auroc_with_limits(scores, labels, groups=groups)
    return AucResult(
        delong=auroc_with_limits(scores, labels),
        delong_by_patient=by_patient,
        bootstrap=auroc_with_limits(
            scores, labels, method="bootstrap", groups=groups, n_resamples=resamples.auc, seed=0
        ),
        average_precision=float(average_precision(scores, labels)),
        average_precision_interval=attempt(
            lambda: average_precision_interval(
                scores, labels, groups=groups, n_resamples=resamples.others, seed=0
            ).floats()
        ),
    )


def partial_auc_of(sample: Sample, region: Region | None) -> PartialAuc | Absent | None:
    """Of labelled rows, within folds where they have some; None where no region was asked for."""
    if region is None:
        return None
    return attempt(lambda: _partial_auc(sample, resamples_of(count_rows(sample)), region))


def _partial_auc(sample: Sample, resamples: Resamples, region: Region) -> PartialAuc:
    if sample.folds is not None:
        area = partial_auc_within_folds(sample, resamples, region)
    else:
        area = partial_auroc_interval(
            sample.scores,
            sample.labels,
            max_fpr=region.max_fpr,
            min_tpr=region.min_tpr,
            groups=sample.clusters,
            n_resamples=resamples.others,
            seed=0,
        ).floats()
    return PartialAuc(region=region, area=area, chance=region.chance, most=region.most)


def _curves(sample: Sample, resamples: Resamples) -> Curves:
    scores, labels, groups = sample.scores, sample.labels, sample.groups
    roc, pr = roc_curve(scores, labels), precision_recall_curve(scores, labels)
    bands = both_bands(scores, labels, groups=groups, n_resamples=resamples.others, seed=0)
    assert isinstance(roc, RocCurve)
    assert isinstance(pr, PrecisionRecallCurve)
    fpr, tpr, recall, precision = roc.fpr, roc.tpr, pr.recall, pr.precision
    if fpr.size > DRAWN_POINTS:
        grid = np.linspace(0, 1, DRAWN_POINTS) ** 2  # dense where the specificity is high
        fpr, tpr = np.append(0.0, grid), np.append(0.0, roc.tpr_at(grid))
        recall, precision = bands[1].x, bands[1].value
    return Curves(fpr=fpr, tpr=tpr, roc_band=bands[0], recall=recall, precision=precision, precision_band=bands[1])


def _histogram(sample: Sample) -> Histogram:
    positive = sample.labels == 1
    rarer = min(positive.sum(), (~positive).sum())
    bins = int(np.clip(2 * np.sqrt(rarer), 8, 40))
    low, high = zip(*(_without_outliers(sample.scores[rows]) for rows in (positive, ~positive)), strict=True)
    inside = np.clip(sample.scores, min(low), max(high))
    edges = np.histogram_bin_edges(inside, bins=bins)
    shares = [np.histogram(inside[rows], edges)[0] / rows.sum() for rows in (positive, ~positive)]
    beyond = int(np.count_nonzero(inside != sample.scores))
    return Histogram(edges=edges, positives=shares[0], negatives=shares[1], beyond=beyond)


def _without_outliers(scores: Floats) -> tuple[float, float]:
    """From where to where a class lies, less what Tukey (1977) calls far out: one such score would fill the axis."""
    least, low, high, most = map(float, np.quantile(scores, [0, 0.25, 0.75, 1]))
    reach = 3 * (high - low)
    if reach == 0:  # ties: nothing can be said about the spread
        return least, most
    return max(least, low - reach), min(most, high + reach)


@dataclass(frozen=True, eq=False)
class _Probabilities:
    """What the scores of a sample say as probabilities, (n,) each. source, recalibration: as in `Calibration`."""

    source: str
    before: Floats | Absent
    after: Floats | Absent
    recalibration: dict[str, Any] | None = None


def _as_probabilities(sample: Sample, validation: Sample | Absent, *, given: bool, log_odds: bool) -> _Probabilities:
    """given: they are probabilities as they come. log_odds: they are recalibrated, so there is nothing before."""
    as_it_is = TemperatureScaling(slope=1.0, intercept=0.0)
    if log_odds:
        of = "each fold's network, recalibrated on the other folds" if sample.folds is not None else "the average"
        return _Probabilities(f"the probability of {of}", Absent(NO_RAW), as_it_is.apply(sample.scores))
    source = "the scores as they are" if given else "the sigmoid of the network's output"
    before = sample.scores if given else as_it_is.apply(sample.scores)
    if isinstance(validation, Absent):
        return _Probabilities(source, before, validation)
    fitted = attempt(lambda: fit_temperature(validation.scores, validation.labels))
    if isinstance(fitted, Absent):
        return _Probabilities(source, before, fitted)
    return _Probabilities(source, before, fitted.apply(sample.scores), fitted.to_dict())


def _calibration(sample: Sample, probable: _Probabilities, resamples: Resamples) -> Calibration | Absent:
    def state(probabilities: Floats | Absent) -> CalibrationState | Absent:
        if isinstance(probabilities, Absent):
            return probabilities
        return attempt(lambda: _calibration_state(probabilities, sample.labels, sample.clusters, resamples))

    before = state(probable.before)
    if isinstance(before, Absent) and not isinstance(probable.before, Absent):
        return before
    return Calibration(
        source=probable.source,
        before=before,
        after=state(probable.after),
        recalibration=probable.recalibration,
    )


def _calibration_state(
    probabilities: Floats, labels: Floats, groups: npt.NDArray[np.str_] | None, resamples: Resamples
) -> CalibrationState:
    curve = reliability_curve(probabilities, labels, bins=CALIBRATION_BINS)
    assert isinstance(curve, ReliabilityCurve)
    limits = attempt(
        lambda: calibration_intervals(
            probabilities, labels, bins=CALIBRATION_BINS, groups=groups, n_resamples=resamples.others, seed=0
        )
    )
    return CalibrationState(
        brier=float(brier_score(probabilities, labels)),
        brier_interval=limits if isinstance(limits, Absent) else limits.brier.floats(),
        expected_calibration_error=float(expected_calibration_error(probabilities, labels, bins=CALIBRATION_BINS)),
        expected_calibration_error_interval=(
            limits if isinstance(limits, Absent) else limits.calibration_error.floats()
        ),
        mean_prediction=float(probabilities.mean()),
        observed_share=float(labels.mean()),
        reliability=curve,
    )


def _decision(sample: Sample, probabilities: Floats | Absent) -> DecisionCurve | Absent:
    if isinstance(probabilities, Absent):
        return probabilities
    return attempt(lambda: decision_curve(probabilities, sample.labels, thresholds=THRESHOLDS))


def _backwards(auc: AucResult | Absent) -> tuple[str, ...]:
    """Said of an AUC that is not 0.5 by chance, and below it."""
    if isinstance(auc, Absent) or not auc.headline.high < 0.5:
        return ()
    return (
        "The whole interval lies below 0.5: higher scores go with label 0. Check that the scores are those of the "
        "class labelled 1.",
    )


def too_few(counts: Counts) -> str | None:
    """Said instead of an AUC where a class has fewer rows than TOO_FEW, or, of patients with several, patients."""
    for kind, rows, patients in (
        ("positives", counts.positives, counts.patients_with_positive),
        ("negatives", counts.negatives, counts.patients_with_negative),
    ):
        if rows < TOO_FEW:
            return f"too few {kind} to estimate ({rows})"
        if counts.clustered and patients is not None and patients < TOO_FEW:
            return f"too few {counts.group_word}s with {kind} to estimate ({patients})"
    return None


def _cautions(counts: Counts, folds: bool) -> tuple[str, ...]:
    found, note = [], FOLDS_NOTE if folds else COVERAGE_NOTE
    rarer, kind = min((counts.positives, "positive"), (counts.negatives, "negative"), key=lambda pair: pair[0])
    of_one = {"positive": counts.patients_with_positive == 1, "negative": counts.patients_with_negative == 1}
    if rarer == 1 or (counts.clustered and any(of_one.values())):
        patients_of = next((name for name, one in of_one.items() if one), kind)
        single = f"{kind} row" if rarer == 1 else f"{counts.group_word} with {patients_of} rows"
        found.append(f"Only 1 {single}: the error of the AUC cannot be estimated, so its interval is 0 to 1.")
    elif rarer <= FEW:
        found.append(f"Only {rarer} {kind} row{'s' * (rarer != 1)}: every interval here is likely too narrow. {note}")
    elif counts.clustered and counts.patients_with_positive is not None and counts.patients_with_positive <= FEW:
        found.append(
            f"The {counts.positives} positive rows come from only {counts.patients_with_positive} "
            f"{counts.group_word}s: every interval here is likely too narrow. {note}"
        )
    return tuple(found)
