"""Scores of a table's rows by trained runs, each fed as it was trained: its columns, its image size."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.decode import ImageFileInputs
from deepauc.data.table import TableInputs, read_inputs
from deepauc.data.task import Array, Inputs, Task
from deepauc.models.fusion import MetadataEncoder, ensemble
from deepauc.training.bundle import Bundle
from deepauc.training.checkpoint import write_atomically
from deepauc.training.folder import RunFolder
from deepauc.training.predict import Scores, predict


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePrediction:
    """n rows, L labels. meaning: what a score is, in words."""

    ids: Array  # (n,)
    groups: Array | None
    labels: Mapping[str, npt.NDArray[np.float64]]  # column -> (n,), NaN where empty
    label_names: tuple[str, ...]
    scores: Scores  # (n, L)
    meaning: str
    skipped: tuple[int, ...]

    def columns(self) -> list[str]:
        """Of the file that `write` makes: those of a run's scores.csv, as far as they are known."""
        one = len(self.label_names) == 1
        labels = ["label" if one and len(self.labels) == 1 else f"label:{name}" for name in self.labels]
        scores = ["score"] if one else [f"score:{name}" for name in self.label_names]
        return ["id", *(["group"] if self.groups is not None else []), *labels, *scores]

    def write(self, path: str | Path) -> None:
        """The rows as csv, whole or not at all."""
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"{path}: name a file in a folder that is there.")
        digits = 9 if self.scores.dtype == np.float32 else 17  # so many hold the number exactly
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns())
        for row, name in enumerate(self.ids):
            labels = ["" if np.isnan(column[row]) else f"{column[row]:g}" for column in self.labels.values()]
            group = [self.groups[row]] if self.groups is not None else []
            writer.writerow([name, *group, *labels, *(f"{score:.{digits}g}" for score in self.scores[row])])
        write_atomically(path, text.getvalue().encode())


def predict_table(
    runs: Sequence[str | Path],
    table: str | Path,
    *,
    image_column: str | None = None,
    feature_columns: Sequence[str] = (),
    label_columns: Sequence[str] = (),
    group_column: str | None = None,
    tta: int = 0,
    scale: Literal["sigmoid", "rank"] = "sigmoid",
    seed: int = 0,
    device: str | torch.device | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TablePrediction:
    """Score a table that needs no labels. Columns that are not named are called as the first run's were.

    Runs may differ in image size; they are averaged per label as in `predict`. label_columns: copied, not used.
    """
    if not runs:
        raise ValueError("predict needs at least one run.")
    folders = [Path(run) for run in runs]
    bundles = [Bundle.load(folder) for folder in folders]
    names = bundles[0].label_names
    if any(bundle.label_names != names for bundle in bundles):
        raise ValueError("the runs have different labels and cannot be averaged.")
    image_column, feature_columns = _input_columns(folders[0], bundles[0], image_column, feature_columns)
    metadata = {c.name for b in bundles if b.metadata for c in MetadataEncoder.from_dict(b.metadata).columns}
    inputs = read_inputs(
        table,
        image_column=image_column,
        feature_columns=feature_columns,
        group_column=group_column,
        metadata_columns=list(dict.fromkeys([*label_columns, *sorted(metadata)])),
        size=bundles[0].shape[:2] if len(bundles[0].shape) == 3 else (lambda sizes: next(iter(sizes), None)),
        skip_bad=skip_bad,
        allow_outside=allow_outside,
        progress=progress,
    )
    task = _unlabelled_task(inputs, names, metadata)
    members = []
    for folder, bundle in zip(folders, bundles, strict=True):
        fed = replace(task, source=_resized(inputs.source, bundle))
        scores = predict(folder, fed, tta=tta, seed=seed, device=device)
        members.append(scores.reshape(len(scores), -1))
    several = len(members) > 1
    return TablePrediction(
        ids=inputs.ids,
        groups=inputs.groups,
        labels={name: _numbers(inputs, name) for name in label_columns},
        label_names=names,
        scores=ensemble(members, scale=scale) if several else members[0],
        meaning=f"mean over {len(members)} runs after {'a sigmoid' if scale == 'sigmoid' else 'ranking'}"
        if several
        else "raw scores of one run, higher for more likely positive",
        skipped=inputs.report.skipped,
    )


def _input_columns(
    folder: Path, bundle: Bundle, image_column: str | None, feature_columns: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """As named, else as the run's record has them."""
    if image_column is not None or feature_columns:
        return image_column, tuple(feature_columns)
    known: dict[str, Any] = {}
    if (folder / "run.json").exists():
        known = RunFolder(folder).record().get("data") or {}
    if known.get("image_column") or known.get("feature_columns"):
        return known.get("image_column"), tuple(known.get("feature_columns") or ())
    wanted = "--image-column" if len(bundle.shape) == 3 else f"its {bundle.shape[0]} columns in order, --feature-column"
    raise ValueError(f"{folder} does not record its columns: name them ({wanted}).")


def _unlabelled_task(inputs: TableInputs, names: tuple[str, ...], metadata: set[str]) -> Task:
    """A task in no part; its labels are never looked at, but a Task must have some."""
    shape = (len(inputs.ids),) if len(names) == 1 else (len(inputs.ids), len(names))
    return Task(
        name="prediction",
        kind="binary" if len(names) == 1 else "multilabel",
        source=inputs.source,
        labels=np.zeros(shape, dtype=np.float32),
        label_names=names,
        parts={},
        metadata={name: inputs.metadata[name] for name in sorted(metadata)},
    )


def _resized(source: Inputs, bundle: Bundle) -> Inputs:
    """The same files at the size and with the channels that a run was trained on."""
    if not isinstance(source, ImageFileInputs) or len(bundle.shape) != 3:
        return source
    height, width, channels = bundle.shape
    return ImageFileInputs(
        source.paths, shape=(height, width, channels), file_digests=source.file_digests, window=source.window
    )


def _numbers(inputs: TableInputs, column: str) -> npt.NDArray[np.float64]:
    values = inputs.metadata[column]
    if values.dtype.kind != "f" or not np.isin(values[~np.isnan(values)], (0, 1)).all():
        raise ValueError(f"label column {column!r} holds more than 0, 1 and empty cells.")
    return values.astype(np.float64)
