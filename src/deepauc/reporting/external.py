"""A finished model on labelled rows from elsewhere, such as another hospital, beside its figures in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.table.cautions import label_cautions
from deepauc.data.table.frame import Table, name_of
from deepauc.data.table.header import table_header
from deepauc.metrics.calibration import brier_score
from deepauc.metrics.intervals import Estimate
from deepauc.metrics.operating_points import operating_point
from deepauc.metrics.partial import Region
from deepauc.metrics.pooling import ScorePooling
from deepauc.names import rows_have
from deepauc.reporting.evaluation.findings import ONLY_IF_ASKED, Absent, PartialAuc
from deepauc.reporting.evaluation.label import WHOLE, partial_auc_of, rows_of
from deepauc.reporting.evaluation.sample import Sample
from deepauc.reporting.evaluation.within_folds import part_interval
from deepauc.text_tables import auc_text, markdown_table
from deepauc.training.predict.table import predict_table
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.run import Run

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AtThreshold:
    """What a threshold of training gives on the new rows. name: what it reached there, as `specificity 0.9`."""

    name: str
    threshold: float
    sensitivity: Estimate[float]
    specificity: Estimate[float]


@dataclass(frozen=True, kw_only=True)
class ExternalLabel:
    """One label on the new rows. training: the AUC that the run was given when it was trained; part: on which rows.

    mean_probability: beside the share of positives, how far the probabilities are off in the mean; trained_prevalence:
    that share in the run's own table. shift: what
    recalibration to the local prevalence adds to the log odds; the Brier score after it is on the same rows.
    """

    name: str
    rows: int
    positives: int
    auc: Estimate[float]
    training: Estimate[float] | None
    part: str | None
    trained_prevalence: float | None = None
    mean_probability: float | None = None
    brier: float | None = None
    shift: float | None = None
    recalibrated_brier: float | None = None
    thresholds: tuple[AtThreshold, ...] = ()
    partial_auc: PartialAuc | Absent | None = field(default=None, metadata=ONLY_IF_ASKED)

    @property
    def prevalence(self) -> float:
        return self.positives / self.rows


@dataclass(frozen=True, kw_only=True)
class External:
    """The model on a table; labels: those that have both classes there.

    rows_seen: how many rows are named like ones that it was trained on.
    """

    table: str
    labels: tuple[ExternalLabel, ...]
    rows_seen: int = 0
    notes: tuple[str, ...] = ()

    @property
    def auc(self) -> Estimate[float]:
        """Of the first label that has one."""
        return self.labels[0].auc

    @property
    def aucs(self) -> dict[str, Estimate[float]]:
        return {one.name: one.auc for one in self.labels}

    def rows(self) -> list[list[str]]:
        """A table for people, a label a row; see `HEADER`."""
        return [
            [
                one.name,
                f"{one.rows:,}",
                f"{one.positives:,}",
                _auc(one.auc),
                "-" if one.training is None else f"{_auc(one.training)} ({rows_of(one.part or WHOLE)})",
                f"{one.prevalence:.3f} / {'-' if one.trained_prevalence is None else f'{one.trained_prevalence:.3f}'}",
                "-" if one.mean_probability is None else f"{one.mean_probability:.3f}",
                "-" if one.brier is None else f"{one.brier:.4f}",
                "-" if one.recalibrated_brier is None else f"{one.recalibrated_brier:.4f}",
            ]
            for one in self.labels
        ]

    def __str__(self) -> str:
        return "\n".join([markdown_table(list(HEADER), self.rows()), *self.notes])


HEADER = (
    *("label", "rows", "positives", "AUC here", "AUC of the run"),
    *("share of positives here / of the run", "mean probability", "Brier", "Brier, recalibrated"),
)


def evaluate_table(
    run_dir: str | Path,
    table: Table,
    *,
    label_columns: Sequence[str] = (),
    image_column: str | None = None,
    image_root: str | Path | None = None,
    group_column: str | None = None,
    recalibrate: bool = False,
    per_group: ScorePooling | None = None,
    bag_column: str | None = None,
    positive: str | None = None,
    region: Region | None = None,
    device: Any = None,
    force: bool = False,
) -> External:
    """Score a table by a finished run and judge the scores by the table's labels; columns default to the run's.

    per_group: judge groups, the scores of their rows pooled. bag_column: of a run that scores bags. region: also the
    partial AUC there.
    recalibrate: shift the probabilities so that their mean is the share of positives here. The Brier score after it is
    taken on the rows that the shift was found on: one number, so little is gained by chance.
    """
    run, bundle = Run(Path(run_dir)), Bundle.load(run_dir)
    record = run.record
    data = record.data
    names = record.task.labels
    columns = tuple(label_columns) or data.label_columns or names
    if len(columns) != len(names):
        raise ValueError(f"the run has {len(names)} labels ({', '.join(names)}): name as many columns, in this order.")
    calibrated = all(name in bundle.calibration for name in bundle.label_names)
    if recalibrate and not calibrated:
        raise ValueError(f"{run.path} has no probabilities to recalibrate: it was trained without a validation part.")
    group_column = group_column if group_column is not None else _there(data.group_column, table)
    found = predict_table(
        [run.path],
        table,
        image_column=image_column,
        image_root=image_root,
        label_columns=columns,
        group_column=group_column,
        id_column=_there(data.id_column, table),
        bag_column=bag_column,
        per_group=per_group,
        probability=calibrated,
        positive=positive,
        device=device,
        force=force,
    )
    trained, part = _training(record.results.auc)
    labels, notes = [], []
    for j, (name, column) in enumerate(zip(names, columns, strict=True)):
        known = ~np.isnan(found.labels[column])
        truth, scores = found.labels[column][known], found.scores[known, j].astype(np.float64)
        if len(np.unique(truth)) < 2:
            notes.append(
                f"Label {column!r} is left out: {name_of(table)} has only one class of it, and an AUC needs both."
            )
            continue
        groups = None if found.groups is None else found.groups[known]
        sample = Sample(scores=scores, labels=truth, groups=groups)
        probabilities = None if found.probabilities is None else found.probabilities[known, j]
        labels.append(
            ExternalLabel(
                name=name,
                rows=len(truth),
                positives=int(truth.sum()),
                auc=part_interval(sample).floats(),
                training=trained.get(name),
                part=part,
                trained_prevalence=data.prevalence(name),
                **_probabilities(probabilities, truth, recalibrate=recalibrate),
                # Those of training are for single rows' scores.
                thresholds=()
                if per_group is not None
                else _at_thresholds(bundle.thresholds.get(name, {}), scores, truth, groups),
                partial_auc=partial_auc_of(sample, region),
            )
        )
    if not labels:
        raise ValueError(" ".join(notes))
    positives = {one.name: one.positives for one in labels}
    negatives = {one.name: one.rows - one.positives for one in labels}
    notes += [f"Caution: {text}" for text in label_cautions(positives, negatives, grouped=True)]
    if found.rows_seen:
        notes.append(
            f"Caution. {rows_have(found.rows_seen)} the name of a row that the run was trained on. An AUC on such "
            "rows is too good."
        )
    return External(table=name_of(table), labels=tuple(labels), rows_seen=found.rows_seen, notes=tuple(notes))


def prevalence_shift(probabilities: Floats, share: float) -> float:
    """What must be added to the log odds so that the probabilities have this mean, between 0 and 1."""
    odds = np.log(probabilities) - np.log1p(-probabilities)
    low, high = -50.0, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        if float(np.mean(1 / (1 + np.exp(-(odds + middle))))) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _probabilities(probabilities: Floats | None, truth: Floats, *, recalibrate: bool) -> dict[str, Any]:
    if probabilities is None:
        return {}
    found: dict[str, Any] = {
        "mean_probability": float(probabilities.mean()),
        "brier": float(brier_score(probabilities, truth)),
    }
    if recalibrate:
        inside = np.clip(probabilities, 1e-12, 1 - 1e-12)
        shift = prevalence_shift(inside, float(truth.mean()))
        odds = np.log(inside) - np.log1p(-inside) + shift
        found |= {"shift": shift, "recalibrated_brier": float(brier_score(1 / (1 + np.exp(-odds)), truth))}
    return found


def _at_thresholds(
    thresholds: Mapping[str, float], scores: Floats, truth: Floats, groups: npt.NDArray[Any] | None
) -> tuple[AtThreshold, ...]:
    found = []
    for name, cut in thresholds.items():
        point = operating_point(scores, truth, cut, groups=groups)
        sensitivity, specificity = point.sensitivity.floats(), point.specificity.floats()
        found.append(AtThreshold(name=name, threshold=cut, sensitivity=sensitivity, specificity=specificity))
    return tuple(found)


def _training(aucs: Mapping[str, Mapping[str, Estimate[float]]]) -> tuple[Mapping[str, Estimate[float]], str | None]:
    """Of the rows that were least seen: a test part, held-out folds, validation."""
    part = next((name for name in ("test", "oof", "validation") if name in aucs), None)
    return ({}, None) if part is None else (aucs[part], part)


def _there(column: str | None, table: Table) -> str | None:
    """The run's own column, where this table has it too."""
    if column is None:
        return None
    if isinstance(table, str | Path):
        return column if column in table_header(Path(table), latin_1=True) else None
    return column if column in table.columns else None


def _auc(value: Estimate[float]) -> str:
    return auc_text(value.value, value.low, value.high) if math.isfinite(value.low) else f"{value.value:.3f}"
