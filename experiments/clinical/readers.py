"""Radiologists beside the ensemble: NRBC, the number of readers beaten (Table 3), from points that the user gives.

`readers.csv`, one line a reader and label, a reader's false and true positive rate on the test part:

    label,reader,fpr,tpr
    Cardiomegaly,reader 1,0.10,0.62
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.datasets.medical.csv_columns import CsvColumns, read_columns
from deepauc.metrics.readers import readers_beaten
from deepauc.models.fusion import ensemble
from deepauc.studies.sources import Place
from deepauc.training.run.output_file import write_atomically
from experiments.clinical.scores import read_scores

COLUMNS = ("label", "reader", "fpr", "tpr")
Floats = npt.NDArray[np.float64]


def given_readers(folder: Path | None, label_names: Sequence[str]) -> tuple[Floats, Floats] | None:
    """The points of readers.csv in the folder of the images; None where there is none."""
    path = None if folder is None else folder / "readers.csv"
    return read_readers(path, label_names) if path is not None and path.is_file() else None


def read_readers(path: Path, label_names: Sequence[str]) -> tuple[Floats, Floats]:
    """(FPR, TPR), each (readers, labels); NaN where a reader has no line for a label."""
    table = read_columns(path, COLUMNS)
    table.one_of("label", label_names)
    table.require([bool(name) for name in table["reader"]], "reader", "give the reader a name or a number")
    pairs = list(zip(table["reader"], table["label"], strict=True))
    first = {pair: row for row, pair in reversed(list(enumerate(pairs)))}
    once = [first[pair] == row for row, pair in enumerate(pairs)]
    table.require(once, "reader", "this reader has a point for this label already")
    names, labels = sorted(set(table["reader"])), list(label_names)
    at = tuple(np.array([(names.index(reader), labels.index(label)) for reader, label in pairs]).T)
    fpr, tpr = (np.full((len(names), len(labels)), math.nan) for _ in range(2))
    fpr[at], tpr[at] = _rates(table, "fpr"), _rates(table, "tpr")
    return fpr, tpr


def _rates(table: CsvColumns, column: str) -> Floats:
    rates = np.full(len(table), math.nan)
    for row, cell in enumerate(table[column]):
        try:
            rates[row] = float(cell.replace(",", "."))  # 0,5 of a table with semicolons
        except ValueError:
            continue
    table.require((rates >= 0) & (rates <= 1), column, "fpr and tpr are numbers between 0 and 1")
    return rates


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
        found.append((ensemble([column[known] for column in columns]), truth[known]))
    return found


def note_readers(
    set_name: str,
    records: Sequence[Mapping[str, Any]],
    label_names: Sequence[str],
    readers: tuple[Floats, Floats] | None,
    place: Place,
) -> dict[str, Any] | None:
    """Readers beaten by the ensemble of each loss, also in RESULTS/SET/readers.json; None without points.

    The mean is over the labels that somebody has read; `per_label` is None for the others.
    """
    if readers is None:
        return None
    fpr, tpr = readers
    counts: dict[str, Any] = {"phase": "readers", "labels": list(label_names), "readers": len(fpr)}
    for loss in dict.fromkeys(r["loss"] for r in records if "loss" in r):
        for apart in (True, False):
            found = disease_ensembles(records, label_names, loss, apart=apart)
            if found:
                each = [readers_beaten(*both, fpr[:, at], tpr[:, at]) for at, both in enumerate(found)]
                beaten = [int(one.per_label[0]) if one.readers[0] else None for one in each]
                mean = fmean(count for count in beaten if count is not None)
                counts[f"{loss}, {'each disease' if apart else 'all at once'}"] = {"per_label": beaten, "mean": mean}
    folder = place.results / set_name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "readers.json", (json.dumps(counts, indent=1) + "\n").encode())
    return counts
