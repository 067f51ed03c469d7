"""Small records of finished runs: one line of a jsonl file for a tuning run, one json file for a final run.

    RESULTS/SET/tuning/STUDY.jsonl        RESULTS/SET/STUDY-SEED.json        RESULTS/SET/diverged/STUDY.jsonl

Tables read these and nothing else; neither images nor run folders are needed for them.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.training.checkpoint import write_atomically
from deepauc.training.folder import made_by
from deepauc.training.run import Run

Record = dict[str, Any]
BINS = 40
OUTER = 0.01  # of a class, at each end, that may lie beyond the bins
ALPHA_EVERY = 20  # after the first two epochs, of which every step is kept
KEPT_COLUMNS = ("loss", "validation_auc", "alpha_zero_share")


class RecordBook:
    """The records of one set of studies, read once and kept up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[Path, dict[str, Record]] = {}  # by file and run
        self._final: dict[str, dict[int, Record]] | None = None

    def tuning(self, study: str) -> list[Record]:
        """Tuning runs in the order in which they ended; of two records of one run the later one."""
        return list(self._lines_of(self._path("tuning", study)).values())

    def diverged(self, study: str) -> list[Record]:
        """Final runs that went astray (`failed` says how): no row of a table, and not tried again."""
        return list(self._lines_of(self._path("diverged", study)).values())

    def final(self, study: str) -> list[Record]:
        """Final runs, by seed."""
        if self._final is None:
            self._final = {}
            for path in sorted(self.folder.glob("*.json")):
                record = _parsed(path.read_text(encoding="utf-8"), path)
                if isinstance(record, dict) and record.get("phase") == "final":
                    self._final.setdefault(record["study"], {})[record["seed"]] = record
        return [record for _, record in sorted(self._final.get(study, {}).items())]

    def studies(self) -> list[str]:
        """Names of all studies that have a record."""
        self.final("")
        tuned = {path.stem for path in self.folder.glob("tuning/*.jsonl")}
        return sorted(tuned | set(self._final or {}))

    def find(self, study: str, phase: str, run: str) -> Record | None:
        """The record of this run, if it is there."""
        if phase == "tuning":
            return self._lines_of(self._path("tuning", study)).get(run)
        return next((record for record in self.final(study) if record["run"] == run), None)

    def add(self, record: Record) -> None:
        """Write a record down before anything else happens."""
        study = record["study"]
        if record["phase"] == "tuning" or "failed" in record:
            path = self._path("tuning" if record["phase"] == "tuning" else "diverged", study)
            known = self._lines_of(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, json.dumps(record, separators=(",", ":")))
            known[record["run"]] = record
            return
        self.final(study)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{study}-{record['seed']}.json"
        write_atomically(path, (_readable(record) + "\n").encode())
        for left in self.folder.glob(f".{path.name}.*.part"):  # by a process that was killed in the middle of a write
            left.unlink(missing_ok=True)
        assert self._final is not None
        self._final.setdefault(study, {})[record["seed"]] = record

    def set_aside_other_settings(self, record: Record) -> None:
        """Final runs of this one's study with another setting leave the table: a row of it is of one setting.

        Their records stay in the folder `replaced`.
        """
        for other in self.final(record["study"]):
            if any(other[name] != record[name] for name in ("config", "fixed")):
                path = self.folder / f"{other['study']}-{other['seed']}.json"
                aside = self.folder / "replaced" / f"{path.stem}-{other['run']}.json"
                aside.parent.mkdir(exist_ok=True)
                path.replace(aside)
                assert self._final is not None
                del self._final[other["study"]][other["seed"]]

    def _path(self, kind: str, study: str) -> Path:
        return self.folder / kind / f"{study}.jsonl"

    def _lines_of(self, path: Path) -> dict[str, Record]:
        if path not in self._lines:
            content = path.read_bytes() if path.exists() else b""
            lines = content[: _whole(content)].decode("utf-8").splitlines()
            records = [_parsed(line, path) for line in lines if line.strip()]
            self._lines[path] = {record["run"]: record for record in records}
        return self._lines[path]


def distil(run: Run, *, about: Mapping[str, Any], phase: str, packed: int) -> Record:
    """What is kept of a finished run. packed: how many runs shared the device, and so the seconds.

    Final: test AUC with DeLong's interval, curves where the recipe asked for them, the recipe in full. Tuning: the
    validation AUC of each epoch; the recipe without what is at its default (`identity` has the hash of the whole).
    """
    found = run.record
    results = found["results"]
    history = run.history
    record: Record = {**about, "phase": phase, "identity": found["identity"], "task": found["task"]}
    record["recipe"] = found["recipe"] if phase == "final" else None
    record["history"] = {
        column: [_rounded(row[column]) for row in history if row.get(column)]
        for column in KEPT_COLUMNS
        if any(row.get(column) for row in history)
    }
    part = "test" if phase == "final" else "validation"
    (auc,) = results["auc"].get(part, {None: [math.nan] * 3}).values()
    record["auc"] = {part: [round(value, 6) for value in auc]}
    shares = [float(row["alpha_zero_share"]) for row in history if row.get("alpha_zero_share")]
    record["alpha_zero_share"] = round(sum(shares) / len(shares), 6) if shares else None
    if phase == "final":
        record |= _curves(run)
        record["score_histogram"] = _histograms(run.path / "scores.csv")
    record["steps"] = sum(_stage_steps(history).values())
    record["seconds"] = round(results["seconds"] / packed, 3)
    record["packed"] = packed
    return record | made_by(found)


def validation_curve(record: Record) -> tuple[float, ...]:
    """What a tuning run is chosen by: validation AUC after each epoch, not a number where it failed.

    Epochs score the images as they are. Where the recipe's own score is the mean over copies of an image, the only
    value is that of the final scores: it is with them that the setting would be used, and a mean over the last epochs
    would be one of two kinds of score.
    """
    if "failed" in record:
        return (math.nan,)
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


def curve_epochs(record: Record) -> list[int]:
    """Epochs over at each point of a record's `test_curve`; without an entry of their own it has all of them."""
    kept: list[int] = record.get("test_curve_epochs") or list(range(1, len(record["test_curve"]) + 1))
    return kept


def _histograms(path: Path) -> dict[str, Record]:
    """By part, in one reading of scores.csv. The tasks of studies have one label: id, part, group, label, score."""
    with path.open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    parts = np.array([row[1] for row in rows])
    labels, scores = np.array([row[3:5] for row in rows], dtype=np.float32).T
    return {str(part): _histogram(scores[parts == part], labels[parts == part]) for part in np.unique(parts)}


def _histogram(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> Record:
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


def _readable(record: Record) -> str:
    """JSON with one line an entry: a curve of a hundred epochs is one line."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    return "{\n " + ",\n ".join(lines) + "\n}"


def _append(path: Path, line: str) -> None:
    """One more line, on the disk when this returns; what a write that was cut off has left at the end goes."""
    with path.open("a+b") as file:
        file.seek(0)
        content = file.read()
        whole = _whole(content)
        if whole < len(content):
            file.truncate(whole)
        ends = content[:whole][-1:] in (b"", b"\n")
        file.write(f"{'' if ends else chr(10)}{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def _whole(content: bytes) -> int:
    """Bytes up to the end of the last whole line: what follows is the beginning of one whose write was cut off."""
    start = content.rfind(b"\n") + 1
    try:
        json.loads(content[start:])
    except ValueError:  # bytes that are no text are no record either
        return start
    return len(content)


def _parsed(text: str, path: Path) -> Record:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}). Delete what does not read as JSON.") from None
