"""Radiologists beside the ensemble: NRBC, the number of readers beaten (Table 3), from points that the user gives.

`readers.csv`, one line a reader and label, a reader's false and true positive rate on the test part:

    label,reader,fpr,tpr
    Cardiomegaly,reader 1,0.10,0.62
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.metrics.readers import readers_beaten
from deepauc.paper.medical_scores import joined_scores, read_scores
from deepauc.studies.sources import Place
from deepauc.training.checkpoint import write_atomically

COLUMNS = ("label", "reader", "fpr", "tpr")
Floats = npt.NDArray[np.float64]


def read_readers(path: Path, label_names: Sequence[str]) -> tuple[Floats, Floats]:
    """(FPR, TPR), each (readers, labels); NaN where a reader has no line for a label."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or []) != list(COLUMNS):
            raise ValueError(
                f"{path} needs the columns {', '.join(COLUMNS)}, not {', '.join(reader.fieldnames or [])}."
            )
        lines = list(reader)
    names = sorted({line["reader"] for line in lines})
    fpr, tpr = (np.full((len(names), len(label_names)), math.nan) for _ in range(2))
    for number, line in enumerate(lines, start=2):
        if line["label"] not in label_names:
            raise ValueError(f"{path}, line {number}: {line['label']!r} is none of {', '.join(label_names)}.")
        place = names.index(line["reader"]), list(label_names).index(line["label"])
        if not math.isnan(fpr[place]):
            raise ValueError(f"{path}, line {number}: {line['reader']} has a point for {line['label']} already.")
        try:
            fpr[place], tpr[place] = float(line["fpr"]), float(line["tpr"])
        except (TypeError, ValueError):
            raise ValueError(f"{path}, line {number}: fpr and tpr are numbers between 0 and 1.") from None
        if not (0 <= fpr[place] <= 1 and 0 <= tpr[place] <= 1):
            raise ValueError(f"{path}, line {number}: fpr and tpr are numbers between 0 and 1.")
    return fpr, tpr


def disease_ensembles(
    records: Sequence[Mapping[str, Any]], label_names: Sequence[str], loss: str, *, apart: bool
) -> list[tuple[Floats, Floats]]:
    """By disease, scores and labels: the mean of all networks and seeds of a loss, after a sigmoid.

    apart: each disease by its own networks, as the paper has it; else by those trained on all at once. Empty where
    runs are missing.
    """
    found = []
    for number, name in enumerate(label_names):
        wanted = name if apart else "all"
        own = [read_scores(r) for r in records if r.get("loss") == loss and r.get("labels") == wanted]
        if not own:
            return []
        columns = [scores.best if apart else scores.best[:, number] for scores in own]
        truth = own[0].labels if apart else own[0].labels[:, number]
        known = ~np.isnan(truth)
        found.append((joined_scores([column[known] for column in columns]), truth[known]))
    return found


def note_readers(
    set_name: str, records: Sequence[Mapping[str, Any]], label_names: Sequence[str], path: Path | None, place: Place
) -> dict[str, Any] | None:
    """Readers beaten by the ensemble of each loss, also in RESULTS/SET/readers.json; None without points."""
    if path is None or not path.is_file():
        return None
    fpr, tpr = read_readers(path, label_names)
    counts: dict[str, Any] = {"phase": "readers", "labels": list(label_names), "readers": len(fpr)}
    for loss in dict.fromkeys(r["loss"] for r in records if "loss" in r):
        for apart in (True, False):
            found = disease_ensembles(records, label_names, loss, apart=apart)
            if found:
                beaten = [
                    int(readers_beaten(*both, fpr[:, number], tpr[:, number]).per_label[0])
                    for number, both in enumerate(found)
                ]
                key = f"{loss}, {'each disease' if apart else 'all at once'}"
                counts[key] = {"per_label": beaten, "mean": float(np.mean(beaten))}
    folder = place.results / set_name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "readers.json", (json.dumps(counts, indent=1) + "\n").encode())
    return counts
