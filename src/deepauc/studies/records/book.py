"""The records of a set of studies, RESULTS/NAME.jsonl: every run with its recipe, history and results, a line each.

`phase` tells tuning runs from final ones, `failed` those that went astray, `replaced` those whose setting is not the
chosen one any more. Tables read these and nothing else; neither images nor run folders are needed for them. The format
stands in `file.py`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.intervals import Estimate
from deepauc.studies.records.file import append, read_runs
from deepauc.studies.study import AUC, Metric
from deepauc.training.run.run import Run
from deepauc.training.run.scores import read_run_scores

Record = dict[str, Any]
BINS = 40
OUTER = 0.01  # of a class, at each end, that may lie beyond the bins
ALPHA_EVERY = 20  # after the first two epochs, of which every step is kept
KEPT_COLUMNS = ("loss", "validation_auc", "alpha_zero_share", "train_auc", "weight_square")


class RecordBook:
    """The records of one set of studies, read once and kept up to date.

    path: RESULTS/NAME.jsonl, or without the ending. other: of linked runs, those with settings that are not the
    study's own, by the text that says which.
    """

    def __init__(self, path: Path, *, other: str = "") -> None:
        self.path = path.with_name(f"{path.name.removesuffix('.jsonl')}.jsonl")
        self.other = other
        self._by_study: dict[str, dict[tuple[str, str], tuple[float, Record]]] | None = None  # by phase and run

    @classmethod
    def of(cls, results: Path, set_name: str) -> RecordBook:
        """By the name of a set: NAME, or NAME/OTHER of runs with other settings."""
        name, _, other = set_name.partition("/")
        return cls(results / name, other=other)

    def tuning(self, study: str) -> list[Record]:
        """Tuning runs in the order in which they ended; of two records of one run the later one."""
        return [record for _, record in self._of(study).values() if record["phase"] == "tuning"]

    def diverged(self, study: str) -> list[Record]:
        """Final runs that went astray (`failed` says how): no row of a table, and not tried again."""
        return [one for _, one in self._of(study).values() if one["phase"] == "final" and "failed" in one]

    def final(self, study: str) -> list[Record]:
        """Final runs, by seed; of two with one seed the later one."""
        latest = sorted(self._of(study).values(), key=lambda found: found[0])
        by_seed = {record["seed"]: record for _, record in latest if _counts(record)}
        return [record for _, record in sorted(by_seed.items())]

    def studies(self) -> list[str]:
        """Names of all studies that have a record."""
        return sorted(
            name
            for name, runs in self._read().items()
            if any(record["phase"] == "tuning" or _counts(record) for _, record in runs.values())
        )

    def everything(self) -> list[Record]:
        """All runs, also those that have failed and those that were replaced."""
        return [record for runs in self._read().values() for _, record in runs.values()]

    def others(self) -> list[str]:
        """Which other settings have records."""
        return sorted({_other(record) for _, record in read_runs(self.path)} - {""})

    def find(self, study: str, phase: str, run: str) -> Record | None:
        """The record of this run, if it is there."""
        if phase == "tuning":
            return self._of(study).get((phase, run), (0.0, None))[1]
        return next((record for record in self.final(study) if record["run"] == run), None)

    def add(self, record: Record) -> None:
        """Write a record down before anything else happens."""
        runs = self._read().setdefault(record["study"], {})
        key = (record["phase"], record["run"])
        runs[key] = (append(self.path, record, after=runs.get(key, (0.0, None))[0]), record)

    def set_aside_other_settings(self, record: Record) -> None:
        """Final runs of this one's study with another setting leave the table: a row of it is of one setting.

        Their records stay, marked as `replaced`.
        """
        for other in self.final(record["study"]):
            if as_text(arguments({**record, **other})) != as_text(arguments(record)):
                self.add({**other, "replaced": True})

    def _of(self, study: str) -> dict[tuple[str, str], tuple[float, Record]]:
        return self._read().get(study, {})

    def _read(self) -> dict[str, dict[tuple[str, str], tuple[float, Record]]]:
        if self._by_study is None:
            self._by_study = {}
            own = (found for found in read_runs(self.path) if _other(found[1]) == self.other)
            # Sorting keeps the order of lines that have the same time: the last one counts.
            for when, record in sorted(own, key=lambda one: one[0]):
                runs = self._by_study.setdefault(record["study"], {})
                runs[record["phase"], record["run"]] = (when, record)
        return self._by_study


def as_text(config: Mapping[str, Any]) -> str:
    """A setting as records keep it, where a tuple is a list and NaN is NaN: equal texts are equal settings."""
    return json.dumps(dict(config), sort_keys=True)


def arguments(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the method was called with; whether a study fixes an argument or inherits it is no matter of the setting."""
    return {**record.get("fixed", {}), **record.get("config", {})}


def _counts(record: Record) -> bool:
    """Whether a record is that of a final run which has ended, with the setting that is chosen."""
    return record["phase"] == "final" and "failed" not in record and not record.get("replaced")


def _other(record: Record) -> str:
    """Of a record's set what follows its name: the settings that are not the study's own."""
    return str(record.get("set", "")).partition("/")[2]


def distil(
    run: Run, *, about: Mapping[str, Any], phase: str, packed: int, measures: Mapping[str, Metric] | None = None
) -> Record:
    """What is kept of a finished run. packed: how many runs shared the device, and so the seconds.

    measures: further metrics, of the part whose AUC is kept.

    Final: test AUC with DeLong's interval, curves where the recipe asked for them, the recipe in full. Tuning: the
    validation AUC of each epoch; the recipe without what is at its default (`identity` has the hash of the whole).
    Where a task has several labels, the AUC is by label.
    """
    found = run.record
    results = found.results
    history = run.history
    record: Record = {**about, "phase": phase, "identity": asdict(found.identity), "task": found.plain["task"]}
    record["recipe"] = found.plain["recipe"] if phase == "final" else None
    record["history"] = {
        column: [_rounded(row[column]) for row in history if row.get(column)]
        for column in KEPT_COLUMNS
        if any(row.get(column) for row in history)
    }
    part = "test" if phase == "final" else "validation"
    aucs = results.auc.get(part) or {"": Estimate(math.nan, math.nan, math.nan)}
    each = {name: [round(value, 6) for value in (auc.value, auc.low, auc.high)] for name, auc in aucs.items()}
    record["auc"] = {part: each if len(each) > 1 else next(iter(each.values()))}
    if measures:
        scores, labels = run.scores(part)
        record["measures"] = {part: {name: round(float(of(scores, labels)), 6) for name, of in measures.items()}}
    shares = [float(row["alpha_zero_share"]) for row in history if row.get("alpha_zero_share")]
    record["alpha_zero_share"] = round(sum(shares) / len(shares), 6) if shares else None
    if phase == "final":
        record |= _curves(run)
        if len(aucs) == 1:
            record["score_histogram"] = _histograms(run)
    record["steps"] = sum(_stage_steps(history).values())
    record["seconds"] = round((results.seconds or 0.0) / packed, 3)
    record["packed"] = packed
    return record | found.made_by


def is_measured(record: Record, measures: Collection[str]) -> bool:
    """Whether a record has all of these, or the run has failed; one from before a study had them may not."""
    parts = record.get("measures", {}).values()
    return "failed" in record or not measures or any(set(measures) <= part.keys() for part in parts)


def validation_curve(record: Record, chosen_by: str = AUC) -> tuple[float, ...]:
    """What a tuning run is chosen by: validation AUC after each epoch, not a number where it failed.

    chosen_by: another measure of the study, which is of the final scores alone.

    Epochs score the images as they are. Where the recipe's own score is the mean over copies of an image, the only
    value is that of the final scores: it is with them that the setting would be used, and a mean over the last epochs
    would be one of two kinds of score.
    """
    if "failed" in record:
        return (math.nan,)
    if chosen_by != AUC:
        return (record["measures"]["validation"][chosen_by],)
    if record["recipe"].get("tta"):
        return (record["auc"]["validation"][0],)
    return tuple(record["history"]["validation_auc"])


def _stage_steps(history: Sequence[Mapping[str, str]]) -> dict[str, int]:
    return {row["stage"]: int(row["iteration"]) for row in history}  # the last row of a stage counts all its steps


def _curves(run: Run) -> Record:
    curves: Record = {}
    if (path := run.path / "test_curve.csv").exists():
        rows = _rows(path)
        curves["test_curve"] = [_rounded(row["test_auc"]) for row in rows]
        epochs = _running_epochs(rows, run.history)
        if epochs != list(range(1, len(rows) + 1)):
            curves["test_curve_epochs"] = epochs
    if (path := run.path / "alpha.csv").exists():
        values = [float(row["alpha0"]) for row in _rows(path)]
        steps_per_epoch = next(int(row["iteration"]) for row in run.history if row.get("alpha_zero_share"))
        curves["alpha_negative_share"] = round(sum(value < 0 for value in values) / len(values), 6)
        steps = [t for t in range(len(values)) if t < 2 * steps_per_epoch or t % ALPHA_EVERY == 0]
        curves["alpha"] = {
            "steps_per_epoch": steps_per_epoch,
            "step": steps,
            "value": [float(f"{values[t]:.4g}") for t in steps],
        }
    return curves


def _running_epochs(rows: Sequence[Mapping[str, str]], history: Sequence[Mapping[str, str]]) -> list[int]:
    """Epochs that were over at each point of a curve, those of earlier stages counted."""
    lengths = {int(row["stage"]): int(row["epoch"]) + 1 for row in history}  # the last row of a stage: its last epoch
    return [int(row["epoch"]) + 1 + sum(n for s, n in lengths.items() if s < int(row["stage"])) for row in rows]


def _histograms(run: Run) -> dict[str, Record]:
    """By part, in one reading of scores.csv, of a task with one label."""
    table = read_run_scores(run.path)
    found = {name: table.part(name) for name in sorted(table.part_names)}
    scores = {name: (rows.scores[:, 0].astype(np.float32), rows.labels[:, 0]) for name, rows in found.items()}
    return {name: _histogram(*both) for name, both in scores.items()}


def _histogram(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float64]) -> Record:
    """Counts of the raw scores of either class in BINS bins of equal width; the outer ones hold what lies beyond, too.

    The bins reach over the middle of either class, all but a hundredth at each end: one score far out (a network may
    give -270 where the others lie between -5 and 0) would leave all others in one bin.
    """
    classes = {"negative": scores[labels == 0], "positive": scores[labels == 1]}
    ends = [np.quantile(some, (OUTER, 1 - OUTER)) for some in classes.values() if some.size] or [(0.0, 1.0)]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    if not high > low:
        high = low + 1.0
    counts = {
        name: np.histogram(np.clip(some, low, high), bins=BINS, range=(low, high))[0].tolist()
        for name, some in classes.items()
    }
    return {"low": float(f"{low:.6g}"), "high": float(f"{high:.6g}"), **counts}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _rounded(text: str) -> float:
    return float(f"{float(text):.5g}")
