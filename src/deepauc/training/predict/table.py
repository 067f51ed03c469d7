"""Scores of a table's rows by trained runs, each fed as it was trained: its columns, its image size."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deepauc.data.bags import BagColumn
from deepauc.data.images.decode import ImageFileInputs
from deepauc.data.table.columns import LABELS, parse_labels
from deepauc.data.table.frame import Table
from deepauc.data.table.label_values import label_key, value_problems
from deepauc.data.table.read import TableInputs, read_inputs
from deepauc.data.task import Array, Inputs, Task
from deepauc.metrics.pooling import ScorePooling, pool_scores
from deepauc.models.fusion import CategoricalColumn, MetadataEncoder, NumericColumn, Scale
from deepauc.training.predict.average import GivenAverage
from deepauc.training.predict.columns import (
    bag_column_of,
    id_column_of,
    input_columns,
    recorded_positive,
    require_own_inputs,
)
from deepauc.training.predict.known_rows import NO_PART, known_rows
from deepauc.training.predict.predict import Members, ScoreArray, predict
from deepauc.training.predict.validation_weights import ValidationWeights, validation_weights
from deepauc.training.run.bundle import Bundle
from deepauc.training.run.output_file import require_output, write_output
from deepauc.training.test_time import Copies, passes, shifted_progress

PART_ORDER = ("train", "validation", "oof", "test", NO_PART)  # of a group's rows the first part counts
POOLED: Mapping[ScorePooling, str] = {
    "max": "the highest score of a group's rows",
    "mean": "the mean score of a group's rows",
    "noisy-or": "1 - (1 - p)(1 - p)... over the probabilities p of a group's rows",
}
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a cell begins with that spreadsheets compute


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePrediction:
    """n rows, L labels. meaning, probability_meaning: what a score and a probability are, in words.

    parts: those that the rows had in training, where they were asked for. rows_seen: how many rows are named like ones
    that a run was trained or chosen on. caution: where thresholds and probabilities of a run belong to scores made
    otherwise than these; split_caution: where the runs had rows of this table in different parts. learned_weights:
    what each run counts, where that was to be learned. unseen: of the metadata, the categories that a run's training
    rows did not have, with how many rows hold each: they count as empty cells. file_cautions: files
    of the runs that are not their own.
    """

    ids: Array  # (n,)
    groups: Array | None
    labels: Mapping[str, npt.NDArray[np.float64]]  # column -> (n,), NaN where empty
    label_names: tuple[str, ...]
    scores: ScoreArray  # (n, L)
    meaning: str
    skipped: tuple[int, ...]
    probabilities: npt.NDArray[np.float64] | None = None  # (n, L), where they were asked for
    probability_meaning: str | None = None
    caution: str | None = None
    parts: Array | None = None  # (n,)
    rows_seen: int = 0
    split_caution: str | None = None
    learned_weights: Mapping[str, tuple[float, ...]] | None = None  # label -> one a run
    unseen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # column -> category -> rows
    file_cautions: tuple[str, ...] = ()

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

    def without_labels(self) -> tuple[str, ...]:
        """Labels of the runs that `evaluate` cannot judge, since of several only others were copied, by these names."""
        if not self.labels or len(self.label_names) == 1:
            return ()
        return tuple(name for name in self.label_names if name not in self.labels)

    def per_group(self, how: ScorePooling, *, probability: bool) -> TablePrediction:
        """Each group as one row, its rows' scores pooled; "noisy-or" pools their probabilities.

        A group is positive where a row of it is, and was in training where a row of it was. probability: also pool
        these.
        """
        assert self.groups is not None
        values = self.probabilities if how == "noisy-or" else self.scores
        assert values is not None
        names, first, number_of = np.unique(self.groups, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")

        def pooled(columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
            return pool_scores(columns, number_of, how)[1][order]

        parts = None
        if self.parts is not None:
            rank = np.array([PART_ORDER.index(part) for part in self.parts.tolist()])
            earliest = np.full(len(names), len(PART_ORDER))
            np.minimum.at(earliest, number_of, rank)
            parts = np.array(PART_ORDER)[earliest[order]]
        labels = {}
        for name, column in self.labels.items():
            highest = pool_scores(np.where(np.isnan(column), -np.inf, column), number_of, "max")[1][order]
            labels[name] = np.where(np.isinf(highest), np.nan, highest)
        return replace(
            self,
            ids=names[order],
            groups=None,
            labels=labels,
            parts=parts,
            scores=pooled(values),
            probabilities=pooled(self.probabilities) if probability and self.probabilities is not None else None,
            meaning=f"{POOLED[how]}; a row's score: {self.meaning}",
        )

    def write(self, path: str | Path, *, spreadsheet_safe: bool = False) -> None:
        """The rows as csv, whole or not at all; `-` is the standard output.

        spreadsheet_safe: ids, groups and names that a spreadsheet would take for a formula begin with an apostrophe.
        """
        path = Path(path)
        require_output(path, "the scores:")
        digits = 9 if self.scores.dtype == np.float32 else 17  # so many hold the number exactly
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        shown = _no_formula if spreadsheet_safe else str
        writer.writerow(map(shown, self.columns()))
        for row, name in enumerate(self.ids):
            labels = ["" if np.isnan(column[row]) else f"{column[row]:g}" for column in self.labels.values()]
            extra = [shown(column[row]) for column in (self.parts, self.groups) if column is not None]
            scores = [f"{score:.{digits}g}" for score in self.scores[row]]
            # As short as reads back exactly: rounded ones would tie.
            probabilities = [] if self.probabilities is None else map(repr, self.probabilities[row].tolist())
            writer.writerow([shown(name), *extra, *labels, *scores, *probabilities])
        write_output(path, text.getvalue().encode())


def predict_table(
    runs: Sequence[str | Path],
    table: Table,
    *,
    image_column: str | None = None,
    image_root: str | Path | None = None,
    feature_columns: Sequence[str] = (),
    label_columns: Sequence[str] = (),
    group_column: str | None = None,
    id_column: str | None = None,
    bag_column: str | None = None,
    per_group: ScorePooling | None = None,
    positive: str | None = None,
    tta: int | None = None,
    scale: Scale | None = None,
    weights: Sequence[float] | Literal["learned"] | None = None,
    probability: bool = False,
    parts: bool = False,
    seed: int | None = None,
    device: str | torch.device | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TablePrediction:
    """Score a table (a file or a DataFrame) that needs no labels. Columns that are not named are the first run's.

    Runs may differ in image size; they are averaged per label as in `predict`. label_columns: copied, not used.
    positive: the value that is 1 in them; by default 1, or the runs' own positive value where the column has it.
    id_column: names of rows that are numbers, copied too; without one, here and in training, they are called by their
    lines.
    bag_column: of runs that score bags; their rows are then bags. per_group: pool the scores of a group's rows, so that
    each group is one row; "noisy-or" pools probabilities.
    tta: as in `predict`. weights: how much each run counts, in scores and probabilities; all alike by default, and with
    "learned" as a logistic regression on the runs' validation part says, whose probabilities are then given; this
    table's labels are not looked at.
    seed: of the copies, 0 by default; an error where none are made.
    probability: recalibrate each run's raw scores (with tta their mean) as its bundle says, which was fitted on
    validation scores as the run's recipe makes them; of several runs, the mean of these probabilities whatever the
    scale of the scores. parts: also say which part of the runs each row was in, `none` for a row that they do not know;
    refused where it is not the same in all of them. A run on metadata finds its columns by their names.
    force: score by a run's folder although a file in it is not the one that the run wrote.
    progress: called with (done, in all): each row counts once when it is read, and once for each time it is scored.
    """
    members = Members.of(runs, scale=scale, weights=weights, tta=tta, parts=parts, force=force)
    folders, bundles, copies = members.folders, members.bundles, members.copies
    names, recalibrated = bundles[0].label_names, probability or per_group == "noisy-or"
    average: GivenAverage | ValidationWeights
    if isinstance(weights, str):
        average = validation_weights(weights, folders, names)
    else:
        average = GivenAverage.of(folders, bundles, weights, scale=members.scale, recalibrated=recalibrated)
    if seed is not None and not any(copies):
        raise ValueError(
            "seed chooses the augmented copies of --tta, and there are none: leave out the seed, or set tta."
        )
    if per_group is not None and group_column is None:
        raise ValueError("--per-group needs the column of groups: add --group-column.")
    bag_column = bag_column_of(folders, bundles, bag_column)
    each = [passes(some) for some in copies]
    named = bool(feature_columns)
    others = [both for both in zip(folders, bundles, strict=True) if both[1].metadata is None or both[1].picture]
    if others:
        image_column, feature_columns = input_columns(*others[0], image_column, feature_columns)
    elif image_column is not None or feature_columns:
        raise ValueError(
            "a run on metadata finds its columns by name: leave out --image-column and --feature-column (--id-column "
            "names the column of ids)."
        )
    for folder, bundle in others:
        require_own_inputs(folder, bundle, image_column, tuple(feature_columns), named=named)
    encoded = [column for bundle in bundles for column in _metadata_columns(bundle)]
    metadata = {column.name for column in encoded}
    id_column = id_column or id_column_of(folders, table)
    shape = others[0][1].image_shape if others else None
    inputs = read_inputs(
        table,
        image_column=image_column,
        image_root=image_root,
        feature_columns=feature_columns,
        group_column=group_column,
        id_column=id_column,
        metadata_columns=list(
            dict.fromkeys([*label_columns, *sorted(metadata), *([bag_column] if bag_column else [])])
        ),
        number_columns=sorted({column.name for column in encoded if isinstance(column, NumericColumn)}),
        window=others[0][1].window if others else None,
        size=shape[:2] if shape is not None else (lambda sizes: next(iter(sizes), None)),
        skip_bad=skip_bad,
        allow_outside=allow_outside,
        progress=None if progress is None else lambda done, rows: progress(done, (1 + sum(each)) * rows),
    )
    recorded = recorded_positive(folders)
    labels = {name: _labels(inputs, name, positive, recorded) for name in label_columns}
    images, bags = inputs.source, None
    if bag_column is not None:
        inputs, labels, bags = _in_bags(inputs, labels, bag_column)
    known = known_rows(folders, inputs.ids.tolist(), named=id_column is not None or bags is not None)
    row_parts = known.require_parts() if parts else None
    task = _unlabelled_task(inputs, names, metadata)  # with ids: `predict` names the rows that it cannot score
    found, rows = [], len(inputs.ids)
    for number, (folder, bundle) in enumerate(zip(folders, bundles, strict=True)):
        source = _resized(images, bundle)
        fed = replace(task, source=source if bags is None else bags.of_images(source))
        before = (1 + sum(each[:number])) * rows
        scores = predict(
            folder,
            fed,
            tta=tta,
            seed=seed or 0,
            device=device,
            force=True,  # asked above
            progress=shifted_progress(progress, before, (1 + sum(each)) * rows),
        )
        found.append(scores.reshape(len(scores), -1))
    prediction = TablePrediction(
        ids=inputs.ids,
        groups=inputs.groups,
        labels=labels,
        label_names=names,
        scores=average.scores(found),
        meaning=average.meaning + _copies_meaning(copies),
        skipped=inputs.report.skipped,
        probabilities=average.probabilities(found) if recalibrated else None,
        probability_meaning=average.probability_meaning if probability else None,
        caution=_copies_caution(folders, bundles, copies, learned=isinstance(average, ValidationWeights)),
        parts=row_parts,
        rows_seen=known.seen,
        split_caution=known.conflict,
        learned_weights=average.shares if isinstance(average, ValidationWeights) else None,
        unseen=_unseen(encoded, inputs),
        file_cautions=members.cautions,
    )
    return prediction if per_group is None else prediction.per_group(per_group, probability=probability)


def _in_bags(
    inputs: TableInputs, labels: Mapping[str, npt.NDArray[np.float64]], column: str
) -> tuple[TableInputs, dict[str, npt.NDArray[np.float64]], BagColumn]:
    """The rows as bags, their labels, and which row is in which bag."""
    cells = inputs.metadata[column]
    texts = [f"{cell:g}" if isinstance(cell, float) and not np.isnan(cell) else str(cell) for cell in cells.tolist()]
    bags = BagColumn(
        np.array(["" if text == "nan" else text for text in texts]),
        column=column,
        row_name=lambda row: str(inputs.ids[row]),
    )
    groups = None if inputs.groups is None else bags.agreed(inputs.groups, "group")
    found = replace(inputs, source=bags.of_images(inputs.source), ids=bags.ids, groups=groups)
    own = {name: bags.stated(values, f"label {name!r}", silent=np.isnan(values)) for name, values in labels.items()}
    return found, own, bags


def _no_formula(cell: str) -> str:
    """The cell with an apostrophe before it where a spreadsheet would compute it: =1+1, but not -1.5 or +7."""
    if not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _metadata_columns(bundle: Bundle) -> tuple[NumericColumn | CategoricalColumn, ...]:
    return MetadataEncoder.from_dict(bundle.metadata).columns if bundle.metadata else ()


def _unseen(encoded: Sequence[NumericColumn | CategoricalColumn], inputs: TableInputs) -> dict[str, Mapping[str, int]]:
    """column -> category -> rows, of those that a run does not know."""
    found: dict[str, Mapping[str, int]] = {}
    for column in encoded:
        if isinstance(column, CategoricalColumn) and (unseen := column.unseen(inputs.metadata[column.name])):
            found[column.name] = {**found.get(column.name, {}), **unseen}
    return found


def _copies_meaning(copies: Sequence[Copies | None]) -> str:
    """`, each the mean over 8 augmented copies of an image`, of several runs with different numbers all of them."""
    numbers = [0 if some is None else some.number for some in copies]
    if not any(numbers):
        return ""
    alike = dict.fromkeys(numbers)
    named = f"{numbers[0]:,}" if len(alike) == 1 else " or ".join(f"{n:,}" if n else "no" for n in alike)
    return f", each the mean over {named} augmented cop{'y' if set(numbers) == {1} else 'ies'} of an image"


def _copies_caution(
    folders: Sequence[Path], bundles: Sequence[Bundle], copies: Sequence[Copies | None], *, learned: bool
) -> str | None:
    """Thresholds and recalibration are of validation scores as the run makes them, not as it was asked to here."""
    what = "thresholds, probabilities and learned weights" if learned else "thresholds and probabilities"
    for folder, bundle, asked in zip(folders, bundles, copies, strict=True):
        fitted = bundle.thresholds or bundle.calibration
        if fitted and bundle.preprocessing.images and asked != bundle.copies:
            number = 0 if bundle.copies is None else bundle.copies.number
            own = f"means over {number:,} copies" if number else "scores of images as they are"
            return f"{what} of {folder} were fitted on {own}, not on scores like these"
    return None


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
        ids=inputs.ids,
        metadata={name: inputs.metadata[name] for name in sorted(metadata)},
    )


def _resized(source: Inputs, bundle: Bundle) -> Inputs:
    """The same files at the size and with the channels that a run was trained on."""
    if not isinstance(source, ImageFileInputs) or bundle.image_shape is None:
        return source
    return ImageFileInputs(
        source.paths, shape=bundle.image_shape, file_digests=source.file_digests, window=bundle.window
    )


def _labels(inputs: TableInputs, column: str, positive: str | None, recorded: str | None) -> npt.NDArray[np.float64]:
    """0, 1 or NaN, read as in training. recorded: the runs' positive value, which another clinic may not use."""
    cells = [f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in inputs.metadata[column].tolist()]
    wanted = None if positive is not None or recorded is None else label_key(recorded)
    if wanted is not None and (wanted.isdecimal() or wanted in set(map(label_key, cells))):
        positive = recorded  # a number always: of 1 and 2, a table may hold the 1 alone
    elif whole := value_problems(cells, column, known=LABELS, positive=positive, keep=np.ones(len(cells), np.bool_)):
        raise ValueError(f"label column {column!r}: {whole[0].message.removesuffix('.')}.")
    values, problems = parse_labels(cells, range(len(cells)), column, positive=positive)
    if problems:
        first = problems[0]
        raise ValueError(
            f"label column {column!r}, row {inputs.ids[first.row]}: {first.message}. Rows with such a cell: "
            f"{len(problems):,}. Correct them, or leave out --label-column: scores need no labels."
        )
    return values.astype(np.float64)
