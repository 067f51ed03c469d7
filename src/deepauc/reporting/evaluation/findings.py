"""What a report can say, as plain frozen data; `to_json` writes the whole tree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepauc.metrics.calibration import ReliabilityCurve
from deepauc.metrics.curves import Band
from deepauc.metrics.decisions import DecisionCurve
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.partial import Region
from deepauc.training.run.record import RunRecord

Floats = npt.NDArray[np.float64]
ONLY_IF_ASKED: Mapping[str, bool] = {"only_if_asked": True}  # of a field that JSON leaves out where it is None


@dataclass(frozen=True)
class Absent:
    """A result that could not be had, and why."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Labelled rows of a part; patients is None where none are named."""

    rows: int
    positives: int
    negatives: int
    missing: int
    patients: int | None
    patients_with_positive: int | None
    patients_with_negative: int | None
    group_word: str = "patient"  # what the report calls a patient: `group` where the column is named otherwise

    @property
    def clustered(self) -> bool:
        """Whether some patient has several rows."""
        return self.patients is not None and self.patients < self.rows


@dataclass(frozen=True, kw_only=True)
class Resamples:
    """How many bootstrap samples were drawn; others: for bands, average precision and calibration."""

    auc: int
    others: int


@dataclass(frozen=True, kw_only=True)
class AucResult:
    """delong: rows taken as independent. The other two respect patients where some have several rows.

    Of cross-validation they are the mean AUC within folds, and there is no bootstrap, which is too narrow there.
    corrected: for the choice among candidates that was made on the same rows.
    """

    delong: Estimate[float]
    delong_by_patient: Estimate[float] | None
    bootstrap: Estimate[float] | None
    average_precision: float
    average_precision_interval: Estimate[float] | Absent
    corrected: Estimate[float] | None = field(default=None, metadata=ONLY_IF_ASKED)

    @property
    def headline(self) -> Estimate[float]:
        return self.corrected or self.delong_by_patient or self.delong


@dataclass(frozen=True, kw_only=True)
class PartialAuc:
    """The area within a region of the ROC plane; the interval is a bootstrap's, over patients as that of the AUC is."""

    region: Region
    area: Estimate[float]
    chance: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Curves:
    """ROC and precision-recall, each with a band. each_roc: of every fold (fpr, tpr), where there are some."""

    fpr: Floats
    tpr: Floats
    roc_band: Band
    recall: Floats
    precision: Floats
    precision_band: Band
    each_roc: tuple[tuple[Floats, Floats], ...] | None = field(default=None, metadata=ONLY_IF_ASKED)


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Shares of each class by bin of the score."""

    edges: Floats  # (B + 1,)
    positives: Floats  # (B,), sums to 1
    negatives: Floats
    beyond: int = 0  # scores outside the edges, counted in the outermost bins


@dataclass(frozen=True, kw_only=True)
class OperatingRow:
    """A threshold that has this specificity, or this sensitivity, on validation; what it does on the judged part.

    fold_thresholds: of cross-validation, by fold the one that the other folds choose, which the counts are of.
    `threshold` is then the choice of all held-out rows.
    """

    asked_specificity: float | None
    threshold: float
    sensitivity: Estimate[float]
    specificity: Estimate[float]
    positive_predictive_value: Estimate[float]
    negative_predictive_value: Estimate[float]
    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int
    asked_sensitivity: float | None = None
    fold_thresholds: Mapping[str, float] | None = field(default=None, metadata=ONLY_IF_ASKED)

    @property
    def asked(self) -> str:
        """As bundle.json calls a threshold: `specificity 0.9`."""
        if self.asked_sensitivity is not None:
            return f"sensitivity {self.asked_sensitivity:g}"
        return f"specificity {self.asked_specificity:g}"

    def cuts(self, folds: npt.NDArray[np.str_] | None, rows: int) -> Floats:
        """The threshold of each row, (rows,)."""
        if self.fold_thresholds is None or folds is None:
            return np.full(rows, self.threshold)
        return np.array([self.fold_thresholds.get(one, self.threshold) for one in folds.tolist()])


@dataclass(frozen=True, kw_only=True)
class PatientLevel:
    """Every patient as one row, positive where one of its rows is.

    score: which of a patient's scores counts: the highest, that of the worst image, or their mean.
    """

    score: Literal["highest", "mean"]
    counts: Counts
    auc: Estimate[float] | Absent
    operating_points: tuple[OperatingRow, ...] | Absent
    sensitivity_points: tuple[OperatingRow, ...] | Absent


@dataclass(frozen=True, kw_only=True)
class CalibrationState:
    """Probabilities against outcomes on the judged part; intervals respect patients as those of the AUC do."""

    brier: float
    brier_interval: Estimate[float] | Absent
    expected_calibration_error: float
    expected_calibration_error_interval: Estimate[float] | Absent
    mean_prediction: float
    observed_share: float
    reliability: ReliabilityCurve


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """before: `source` says what was taken as a probability. after: recalibrated on validation, or on other folds."""

    source: str
    before: CalibrationState | Absent
    after: CalibrationState | Absent
    recalibration: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class LabelEvaluation:
    """One label on one part."""

    name: str
    part: str
    counts: Counts
    auc: AucResult | Absent
    curves: Curves | Absent
    histogram: Histogram | Absent
    operating_points: tuple[OperatingRow, ...] | Absent
    calibration: Calibration | Absent
    decision: DecisionCurve | Absent
    cautions: tuple[str, ...]
    resamples: Resamples
    operating_points_left_out: Absent | None = None  # rows that there are too few negatives for
    sensitivity_points: tuple[OperatingRow, ...] | Absent = ()
    patients: tuple[PatientLevel, ...] = ()  # where a patient has several rows
    too_few: str | None = None  # why the AUC is not to be quoted, where a class has hardly a row
    partial_auc: PartialAuc | Absent | None = field(default=None, metadata=ONLY_IF_ASKED)


@dataclass(frozen=True, kw_only=True)
class PartCounts:
    """One label in one part of the data."""

    part: str
    label: str
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class PairedPartial:
    """The same of the two partial AUCs, by a bootstrap."""

    region: Region
    area: float
    baseline_area: float
    difference: Estimate[float]
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The paired test of a label against a baseline on the same rows."""

    label: str
    auc: float
    baseline_auc: float
    difference: Estimate[float]
    p_value: float
    same_scores: bool  # row by row: the two are one network
    baseline_fpr: Floats
    baseline_tpr: Floats
    partial: PairedPartial | Absent | None = field(default=None, metadata=ONLY_IF_ASKED)


@dataclass(frozen=True, kw_only=True)
class BaselineFinding:
    """Another network on the same samples; differences are this run's minus the other's."""

    name: str
    objective: str
    part: str
    paired_by: str
    clustered: bool
    labels: tuple[Paired | Absent, ...]
    cautions: tuple[str, ...]
    group_word: str = "patient"


@dataclass(frozen=True, kw_only=True)
class StageFinding:
    """One stage of the run on validation; `last_minus_this` is the recorded paired test, where there is one."""

    number: int
    objective: str
    validation_auc: float
    kept: bool
    last_minus_this: Estimate[float] | None
    p_value: float | None


@dataclass(frozen=True, kw_only=True)
class SubgroupRow:
    """The AUC within one value (or range) of a metadata column."""

    group: str
    rows: int
    positives: int
    auc: Estimate[float] | Absent
    sensitivity: Estimate[float] | None = None  # at the threshold of the finding
    specificity: Estimate[float] | None = None


@dataclass(frozen=True, kw_only=True)
class SubgroupFinding:
    """One label by one metadata column. threshold: for 90 % specificity on validation, where there is one."""

    column: str
    label: str
    rows: tuple[SubgroupRow, ...]
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class CohortFlow:
    """Where the rows of the table went. left_out: reason -> rows; parts: rows that were used, labelled or not.

    folds: those of cross-validation by name, in place of the part that they make up.
    """

    read: int
    left_out: Mapping[str, int]
    parts: Mapping[str, int]
    folds: Mapping[str, int] | None = field(default=None, metadata=ONLY_IF_ASKED)


@dataclass(frozen=True, kw_only=True)
class LeakFinding:
    """patients_in_two_parts: from scores.csv, None where it names no patients. recorded: what training wrote down.

    possible: patients who are in two parts if names that may be meant alike are one patient's.
    """

    patients: int | None
    patients_in_two_parts: int | None
    recorded: Mapping[str, int] | None  # kind -> how many; empty: looked for and not found
    group_word: str = "patient"
    possible: int = 0
    between: Literal["parts", "folds"] = "parts"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row the model is most wrong about."""

    id: str
    label: str
    kind: str  # "negative with a high score" or "positive with a low score"
    score: float
    wrong_side_of: float  # share of the other class that this row is ranked on the wrong side of
    fold: str | None = field(default=None, metadata=ONLY_IF_ASKED)


@dataclass(frozen=True, kw_only=True)
class History:
    """history.csv as columns over epochs, NaN where a stage has no such number; test AUC from a file of its own."""

    stages: tuple[int, ...]  # (E,) the stage of each epoch
    objectives: tuple[str, ...]  # by stage
    columns: Mapping[str, Floats]  # name -> (E,)


@dataclass(frozen=True, kw_only=True)
class FoldRow:
    """One label in one fold, by the network that did not see it."""

    fold: str
    label: str
    rows: int
    positives: int
    auc: Estimate[float] | Absent


@dataclass(frozen=True, kw_only=True)
class RepeatRow:
    """One label of a run with another seed, on the same rows. same_recipe: nothing but the seed differs."""

    run: str
    seed: int | None
    label: str
    auc: Estimate[float] | Absent
    same_recipe: bool


@dataclass(frozen=True, kw_only=True)
class RunFindings:
    """A run folder, judged."""

    run: str
    task: str
    kind: str
    label_names: tuple[str, ...]
    judged_part: str | None
    part_note: str
    parts: tuple[PartCounts, ...]
    labels: tuple[LabelEvaluation, ...]
    mean_auc: float | None
    baseline: BaselineFinding | Absent
    not_kept: BaselineFinding | Absent | None  # the last stage's network, where an earlier stage's was kept
    kept_objective: str  # its type
    stages: tuple[StageFinding, ...]
    subgroups: tuple[SubgroupFinding, ...] | Absent
    history: History | Absent
    leaks: LeakFinding
    cases: tuple[Case, ...]
    notes: tuple[str, ...]
    finished: str
    record: RunRecord
    left_out_of_mean: tuple[str, ...] = ()  # labels with too few of a class
    cohort: CohortFlow | None = None  # of runs whose table was recorded
    trivial: tuple[BaselineFinding, ...] = ()  # baselines that need no network, where training has fitted them
    folds: tuple[FoldRow, ...] = ()  # of cross-validation
    average_on_test: tuple[LabelEvaluation, ...] = ()  # of a run with folds that has a test part
    fold_histories: tuple[History, ...] = ()
    repeats: tuple[RepeatRow, ...] = ()  # this run first, where others were named


def to_json(value: Any) -> Any:
    """Plain data for strict JSON: NaN and infinity become null, what is absent {"absent": why}."""
    if isinstance(value, RunRecord):
        value = value.plain
    elif isinstance(value, Absent):
        value = {"absent": value.why}
    elif is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        left_out = {f.name for f in fields(value) if f.metadata == ONLY_IF_ASKED and named[f.name] is None}
        value = {name: one for name, one in named.items() if name not in left_out}
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
