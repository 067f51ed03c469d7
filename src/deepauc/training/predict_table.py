"""Scores of a table's rows by trained runs, each fed as it was trained: its columns, its image size."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.decode import ImageFileInputs
from deepauc.data.table import TableInputs, read_inputs
from deepauc.data.task import Array, Inputs, Task
from deepauc.metrics.recalibration import IsotonicScaling, LabelwiseScaling, TemperatureScaling
from deepauc.models.fusion import CategoricalColumn, MetadataEncoder, NumericColumn, ensemble
from deepauc.training.bundle import Bundle
from deepauc.training.checkpoint import write_atomically
from deepauc.training.copies import Copies, passes, shifted_progress
from deepauc.training.folder import RunFolder
from deepauc.training.known_rows import known_rows
from deepauc.training.predict import Scores, predict, require_images_for, wanted_copies
from deepauc.training.run import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePrediction:
    """n rows, L labels. meaning, probability_meaning: what a score and a probability are, in words.

    parts: those that the rows had in training, where they were asked for. rows_seen: how many rows are named like ones
    that a run was trained or chosen on. caution: where thresholds and probabilities of a run belong to scores made
    otherwise than these; split_caution: where the runs had rows of this table in different parts.
    """

    ids: Array  # (n,)
    groups: Array | None
    labels: Mapping[str, npt.NDArray[np.float64]]  # column -> (n,), NaN where empty
    label_names: tuple[str, ...]
    scores: Scores  # (n, L)
    meaning: str
    skipped: tuple[int, ...]
    probabilities: npt.NDArray[np.float64] | None = None  # (n, L), where they were asked for
    probability_meaning: str | None = None
    caution: str | None = None
    parts: Array | None = None  # (n,)
    rows_seen: int = 0
    split_caution: str | None = None

    def __post_init__(self) -> None:
        """Columns are written row by row: one that is longer or shorter would stand beside other rows' ids."""
        given = {"parts": self.parts, "groups": self.groups, "scores": self.scores, "probabilities": self.probabilities}
        columns = {**given, **self.labels}
        wrong = {name: len(one) for name, one in columns.items() if one is not None and len(one) != len(self.ids)}
        if wrong:
            raise ValueError(f"{len(self.ids)} ids, but {', '.join(f'{n} of {name}' for name, n in wrong.items())}.")

    def columns(self) -> list[str]:
        """Of the file that `write` makes: those of a run's scores.csv, as far as they are known."""
        one = len(self.label_names) == 1
        labels = ["label" if one and len(self.labels) == 1 else f"label:{name}" for name in self.labels]
        kinds = ["score"] if self.probabilities is None else ["score", "probability"]
        values = [kind if one else f"{kind}:{name}" for kind in kinds for name in self.label_names]
        extra = [name for name, column in (("part", self.parts), ("group", self.groups)) if column is not None]
        return ["id", *extra, *labels, *values]

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
            extra = [column[row] for column in (self.parts, self.groups) if column is not None]
            scores = [f"{score:.{digits}g}" for score in self.scores[row]]
            # As short as reads back exactly: rounded ones would tie.
            probabilities = [] if self.probabilities is None else map(repr, self.probabilities[row].tolist())
            writer.writerow([name, *extra, *labels, *scores, *probabilities])
        write_atomically(path, text.getvalue().encode())


def predict_table(
    runs: Sequence[str | Path],
    table: str | Path,
    *,
    image_column: str | None = None,
    feature_columns: Sequence[str] = (),
    label_columns: Sequence[str] = (),
    group_column: str | None = None,
    id_column: str | None = None,
    tta: int | None = None,
    scale: Literal["sigmoid", "rank"] = "sigmoid",
    weights: Sequence[float] | None = None,
    probability: bool = False,
    parts: bool = False,
    seed: int | None = None,
    device: str | torch.device | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TablePrediction:
    """Score a table that needs no labels. Columns that are not named are called as the first run's were.

    Runs may differ in image size; they are averaged per label as in `predict`. label_columns: copied, not used.
    id_column: names of rows that are numbers, copied too; without it they are called by their lines.
    tta: as in `predict`. weights: how much each run counts, in scores and probabilities; all alike by default.
    seed: of the copies, 0 by default; an error where none are made.
    probability: recalibrate each run's raw scores (with tta their mean) as its bundle says, which was fitted on
    validation scores as the run's recipe makes them; of several runs, the mean of these probabilities whatever the
    scale of the scores. parts: also say which part of the runs each row was in, `none` for a row that they do not know;
    refused where it is not the same in all of them. A run on metadata finds its columns by their names.
    progress: called with (done, in all): each row counts once when it is read, and once for each time it is scored.
    """
    if not runs:
        raise ValueError("predict needs at least one run.")
    shares = _shares(weights, len(runs))
    folders = [Path(run) for run in runs]
    bundles = [Bundle.load(folder) for folder in folders]
    names = bundles[0].label_names
    if any(bundle.label_names != names for bundle in bundles):
        raise ValueError("the runs have different labels and cannot be averaged.")
    recalibrations = [_recalibration(*both) for both in zip(folders, bundles, strict=True)] if probability else []
    require_images_for(tta, bundles)
    copies = [wanted_copies(*both, tta) for both in zip(folders, bundles, strict=True)]
    if seed is not None and not any(copies):
        raise ValueError(
            "seed says which changed copies of an image are scored, and none are: leave it out, or set tta."
        )
    each = [passes(some) for some in copies]
    named = bool(feature_columns)
    others = [both for both in zip(folders, bundles, strict=True) if both[1].metadata is None]
    if others:
        image_column, feature_columns = _input_columns(*others[0], image_column, feature_columns)
    elif image_column is not None or feature_columns:
        raise ValueError(
            "a run on metadata finds its columns by their names: leave --image-column and --feature-column out "
            "(--id-column says what the rows are called)."
        )
    for folder, bundle in others:
        _require_own_inputs(folder, bundle, image_column, tuple(feature_columns), named=named)
    encoded = [column for bundle in bundles for column in _metadata_columns(bundle)]
    metadata = {column.name for column in encoded}
    shape = others[0][1].shape if others else ()
    inputs = read_inputs(
        table,
        image_column=image_column,
        feature_columns=feature_columns,
        group_column=group_column,
        id_column=id_column,
        metadata_columns=list(dict.fromkeys([*label_columns, *sorted(metadata)])),
        number_columns=sorted({column.name for column in encoded if isinstance(column, NumericColumn)}),
        window=others[0][1].window if others else None,
        size=shape[:2] if len(shape) == 3 else (lambda sizes: next(iter(sizes), None)),
        skip_bad=skip_bad,
        allow_outside=allow_outside,
        progress=None if progress is None else lambda done, rows: progress(done, (1 + sum(each)) * rows),
    )
    known = known_rows(folders, inputs.ids.tolist(), named=id_column is not None)
    row_parts = known.require_parts() if parts else None
    task = _unlabelled_task(inputs, names, metadata)
    members = []
    rows = len(inputs.ids)
    for number, (folder, bundle) in enumerate(zip(folders, bundles, strict=True)):
        fed = replace(task, source=_resized(inputs.source, bundle))
        before = (1 + sum(each[:number])) * rows
        scores = predict(
            folder,
            fed,
            tta=tta,
            seed=seed or 0,
            device=device,
            progress=shifted_progress(progress, before, (1 + sum(each)) * rows),
        )
        members.append(scores.reshape(len(scores), -1))
    several = len(members) > 1
    return TablePrediction(
        ids=inputs.ids,
        groups=inputs.groups,
        labels={name: _numbers(inputs, name) for name in label_columns},
        label_names=names,
        scores=ensemble(members, scale=scale, weights=shares) if several else members[0],
        meaning=(
            f"{_mean_over(shares)} after {'a sigmoid' if scale == 'sigmoid' else 'ranking'}"
            if several
            else "raw scores of one run, higher for more likely positive"
        )
        + _copies_meaning(copies),
        skipped=inputs.report.skipped,
        probabilities=_mean_probability(recalibrations, members, shares) if probability else None,
        probability_meaning=_probability_meaning(folders, names, recalibrations, shares) if probability else None,
        caution=_copies_caution(folders, bundles, copies),
        parts=row_parts,
        rows_seen=known.seen,
        split_caution=known.conflict,
    )


def _metadata_columns(bundle: Bundle) -> tuple[NumericColumn | CategoricalColumn, ...]:
    return MetadataEncoder.from_dict(bundle.metadata).columns if bundle.metadata else ()


def _copies_meaning(copies: Sequence[Copies | None]) -> str:
    """`, each the mean over 8 changed copies of an image`, of several runs with different numbers all of them."""
    numbers = [0 if some is None else some.number for some in copies]
    if not any(numbers):
        return ""
    alike = dict.fromkeys(numbers)
    named = f"{numbers[0]:,}" if len(alike) == 1 else " or ".join(f"{n:,}" if n else "no" for n in alike)
    return f", each the mean over {named} changed cop{'y' if set(numbers) == {1} else 'ies'} of an image"


def _copies_caution(folders: Sequence[Path], bundles: Sequence[Bundle], copies: Sequence[Copies | None]) -> str | None:
    """Thresholds and recalibration are of validation scores as the run makes them, not as it was asked to here."""
    for folder, bundle, asked in zip(folders, bundles, copies, strict=True):
        fitted = bundle.thresholds or bundle.calibration
        if fitted and bundle.preprocessing.images and asked != bundle.copies:
            number = 0 if bundle.copies is None else bundle.copies.number
            own = f"means over {number:,} copies" if number else "scores of images as they are"
            return f"thresholds and probabilities of {folder} were fitted on {own}, not on scores like these"
    return None


def _recalibration(folder: Path, bundle: Bundle) -> LabelwiseScaling:
    try:
        return bundle.recalibration()
    except ValueError as error:
        raise ValueError(f"{folder} gives no probability: {error}") from error


def _shares(weights: Sequence[float] | None, runs: int) -> list[float]:
    """What each run counts, 1 in all; said before anything is read or scored, which may take long."""
    if weights is None:
        return [1 / runs] * runs
    given = [float(weight) for weight in weights]
    if runs == 1:
        raise ValueError("weights say how much each of several runs counts, and this is one: leave them out.")
    if len(given) != runs or not all(0 <= weight < np.inf for weight in given) or not any(given):
        raise ValueError(f"{runs} runs need {runs} weights, one a run in their order, none negative and not all 0.")
    return [weight / sum(given) for weight in given]


def _mean_over(shares: Sequence[float]) -> str:
    """`mean over 2 runs`, or, where they do not count alike, `mean over 2 runs that count 0.8, 0.2`."""
    alike = len(set(shares)) == 1
    return f"mean over {len(shares)} runs" + ("" if alike else f" that count {', '.join(f'{x:.3g}' for x in shares)}")


def _mean_probability(
    recalibrations: Sequence[LabelwiseScaling], members: Sequence[Scores], shares: Sequence[float]
) -> npt.NDArray[np.float64]:
    """p = Σ_m w_m r_m(h_m), of raw scores h_m (n, L) of M runs, each with its recalibration r_m and share w_m."""
    each = [recalibrate.apply(scores) for recalibrate, scores in zip(recalibrations, members, strict=True)]
    return np.clip(np.average(each, axis=0, weights=shares), 0.0, 1.0)  # interpolation may end an ulp above 1


def _probability_meaning(
    folders: Sequence[Path],
    names: tuple[str, ...],
    recalibrations: Sequence[LabelwiseScaling],
    weights: Sequence[float],
) -> str:
    """In one line: how they were made, the share of positives they hold for, and labels without a rising curve."""
    several, there, caution = len(folders) > 1, "", ""
    known = [_validation_prevalence(folder, len(names)) for folder in folders]
    shares = [share for share in known if share is not None]
    if len(shares) == len(folders):
        low, high = ([f"{100 * x:.3g}" for x in limit(shares, axis=0)] for limit in (np.min, np.max))
        each = [f"{a} %" if a == b else f"{a} to {b} %" for a, b in zip(low, high, strict=True)]
        named = each if len(names) == 1 else [f"{name} {share}" for name, share in zip(names, each, strict=True)]
        there = f" ({', '.join(named)} positive)"
    flat = [name for j, name in enumerate(names) if any(_is_flat(one.labels[j]) for one in recalibrations)]
    if flat:
        caution = f". Caution: on validation the scores of {', '.join(flat)} did not rise with the label" + (
            " in some of the runs, which give all rows one probability" if several else ": all rows get one probability"
        )
    made = (
        f"{_mean_over(weights)}, each recalibrated on its own validation part"
        if several
        else "score recalibrated on the validation part"
    )
    return f"probability: {made}; it holds at the prevalence there{there}, not at another clinic's{caution}"


def _is_flat(scaling: TemperatureScaling | IsotonicScaling) -> bool:
    if isinstance(scaling, TemperatureScaling):
        return scaling.slope == 0
    return scaling.probabilities[0] == scaling.probabilities[-1]


def _validation_prevalence(folder: Path, labels: int) -> npt.NDArray[np.float64] | None:
    """The share of positives in the run's validation part by label, (L,); None for a bundle without its scores.csv."""
    with suppress(OSError, ValueError, LookupError, TypeError, csv.Error):  # damage there is no reason to stop
        known = Run(folder).scores("validation")[1].astype(np.float64)
        known = known.reshape(len(known), -1)
        positives, negatives = ((known == value).sum(axis=0) for value in (1, 0))
        if known.shape[1] == labels and (positives + negatives).all():
            return np.asarray(positives / (positives + negatives), dtype=np.float64)
    return None


def _input_columns(
    folder: Path, bundle: Bundle, image_column: str | None, feature_columns: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """As named, else as the run's record has them."""
    if image_column is not None or feature_columns:
        return image_column, tuple(feature_columns)
    known, own = _recorded_data(folder), _recorded_features(folder, bundle)
    if known.get("image_column") or own:
        return known.get("image_column"), own
    wanted = "--image-column" if len(bundle.shape) == 3 else f"its {bundle.shape[0]} columns in order, --feature-column"
    raise ValueError(f"{folder} does not record its columns: name them ({wanted}).")


def _recorded_data(folder: Path) -> dict[str, Any]:
    """What run.json says of the table; nothing for a bundle alone."""
    return (RunFolder(folder).record().get("data") or {}) if (folder / "run.json").exists() else {}


def _recorded_features(folder: Path, bundle: Bundle) -> tuple[str, ...]:
    """The columns of numbers in order, as run.json or an exported bundle has them."""
    return tuple(_recorded_data(folder).get("feature_columns") or ()) or bundle.features


def _require_own_inputs(
    folder: Path, bundle: Bundle, image_column: str | None, columns: tuple[str, ...], *, named: bool
) -> None:
    """Images for a network of images; else the columns that the run was trained on, each in its place.

    named: by the user, who may call a column otherwise than in training, but not take one for another. Columns of the
    first run are those of the others only where they are the same: any two numbers would be scored without a word.
    """
    images = len(bundle.shape) == 3
    if images != (image_column is not None):
        theirs = "images: name their column, --image-column" if images else "numbers: name them, --feature-column"
        raise ValueError(
            f"{folder} was trained on {theirs}. Runs on images and runs on numbers go one by one; "
            "beside images train on metadata (--metadata-column)."
        )
    known = _recorded_features(folder, bundle)
    if not images and not known and not named:
        raise ValueError(
            f"{folder} does not record its columns: name its {bundle.shape[0]} in order, --feature-column."
        )
    if images or not known:
        return
    misplaced = any(name in known and known[place : place + 1] != (name,) for place, name in enumerate(columns))
    if misplaced or (not named and columns != known):
        raise ValueError(
            f"{folder} was trained on the columns {', '.join(known)}, in this order, and would be given "
            f"{', '.join(columns)}. "
            + ("Name them in that order." if named else "Score runs on different columns one by one.")
        )


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
        source.paths, shape=(height, width, channels), file_digests=source.file_digests, window=bundle.window
    )


def _numbers(inputs: TableInputs, column: str) -> npt.NDArray[np.float64]:
    values = inputs.metadata[column]
    if values.dtype.kind != "f" or not np.isin(values[~np.isnan(values)], (0, 1)).all():
        raise ValueError(f"label column {column!r} holds more than 0, 1 and empty cells.")
    return values.astype(np.float64)
