"""Scores and labels of rows: the scores.csv of a run folder, written and read, and any such file of other programs."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepauc.data.table.compact import NumberColumn
from deepauc.data.table.header import table_header
from deepauc.data.table.rows import read_rows
from deepauc.data.task import Task
from deepauc.labels import NO_NAME
from deepauc.names import find_alike, group_word, loose_form, one_form
from deepauc.training.run.output_file import write_atomically
from deepauc.training.run.own_files import SCORES

Floats = npt.NDArray[np.float64]
Strings = npt.NDArray[np.str_]

OOF = "oof"  # the part of rows that cross-validation held out
ID, PART, GROUP, FOLD = "id", "part", "group", "fold"  # the names of a run folder's scores.csv
OtherLabels = Literal["refused", "missing", "kept"]
_TRUE, _FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})  # in lower case, a cell that says nothing


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """n rows, L labels. labels: 0, 1, NaN where missing; in a run's own file also soft and uncertain ones, as written.

    scores: as they came, so NaN and infinity are possible.
    """

    source: str
    label_names: tuple[str, ...]
    labels: Floats  # (n, L)
    scores: Floats  # (n, L)
    lines: npt.NDArray[np.int64]  # (n,) where each row stands in the file
    ids: Strings | None = None  # (n,)
    parts: Strings | None = None
    groups: Strings | None = None  # patients; a row without one is a patient of its own
    folds: Strings | None = None  # of cross-validation; empty for rows of another part
    group_word: str = "patient"  # what one of them is called
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Parts in the order they first come up."""
        return () if self.parts is None else tuple(dict.fromkeys(self.parts.tolist()))

    def rows(self, chosen: npt.NDArray[Any]) -> Scores:
        """Some rows, by mask or by number."""
        return replace(
            self,
            labels=self.labels[chosen],
            scores=self.scores[chosen],
            lines=self.lines[chosen],
            ids=None if self.ids is None else self.ids[chosen],
            parts=None if self.parts is None else self.parts[chosen],
            groups=None if self.groups is None else self.groups[chosen],
            folds=None if self.folds is None else self.folds[chosen],
        )

    def part(self, name: str) -> Scores:
        """The rows of a part; a ValueError names the parts there are."""
        if name not in self.part_names or self.parts is None:
            there = ", ".join(self.part_names) or "it has no part column"
            raise ValueError(f"{self.source} has no part {name!r} (there: {there}).")
        return self.rows(self.parts == name)

    def require_finite_scores(self) -> None:
        """ValueError, with the first line, where a labelled row has no finite score."""
        bad = (~np.isfinite(self.scores) & ~np.isnan(self.labels)).any(axis=1)
        if bad.any():
            other = ""
            if "test" in self.part_names and "test" not in self.rows(np.flatnonzero(bad)).part_names:
                other = ", or judge the test part alone, which has all its scores (--part test)"
            raise ValueError(
                f"{self.source}: labelled rows without a finite score: {int(bad.sum())}, the first in line "
                f"{int(self.lines[bad][0])}. Drop them, or find out why the model gave none{other}."
            )


def read_scores(
    path: str | Path,
    *,
    label_columns: Sequence[str] = (),
    score_columns: Sequence[str] = (),
    group_column: str | None = None,
    part_column: str | None = None,
    id_column: str | None = None,
    positive: str | None = None,
    other_labels: OtherLabels = "refused",
) -> Scores:
    """Read a .csv, .tsv (both also .gz) or .parquet of scores and labels.

    Without names the columns are those of a run folder: `label` and `score`, or `label:NAME` and `score:NAME`; `id`,
    `part` and `group` where they are there. Labels are 0 and 1 (or true and false, yes and no); `positive` names the
    positive class where they are words or class numbers. other_labels: what becomes of any other, which in
    a run's own file marks an uncertain or a soft label.
    """
    path, positive = Path(path), None if positive is None else one_form(positive)
    header = table_header(path, latin_1=True)
    asked = bool(label_columns or score_columns)
    names, label_columns, score_columns = _pairs(path, header, label_columns, score_columns)
    extra = {
        "ids": id_column or (ID if ID in header else None),
        "parts": part_column or (PART if PART in header else None),
        "groups": group_column or (GROUP if GROUP in header else None),
        "folds": FOLD if FOLD in header else None,
    }
    wanted = [*label_columns, *score_columns, *(column for column in extra.values() if column)]
    numbers = set(score_columns) - set(extra.values())
    cells = read_rows(path, list(dict.fromkeys(wanted)), numbers=numbers)
    if cells.problems:
        first = cells.problems[0]
        raise ValueError(f"{path}, line {first.row}: {first.message} ({len(cells.problems)} such rows).")
    lines = np.array(cells.lines, dtype=np.int64)
    notes: list[str] = []
    if not asked and (alone := [c for c in header if c.startswith("score:") and c not in score_columns]):
        notes.append(f"{', '.join(alone)}: it has no column of labels, so it is not judged.")
    labels = [_labels(path, c, cells.columns[c], lines, positive, other_labels, notes) for c in label_columns]
    scores = [_scores(path, c, cells.numbers(c), lines) for c in score_columns]
    columns = {name: None if column is None else cells.columns[column].names() for name, column in extra.items()}
    word = group_word(extra["groups"])
    groups = _groups(columns["groups"], word, notes)
    if columns["groups"] is not None:
        alike = find_alike(columns["groups"].tolist(), what="group", column=extra["groups"])
        notes += [] if alike is None else [alike.text(word)]
    if groups is None and columns["ids"] is not None:
        notes += _repeated(columns["ids"])
    if group_column is not None and groups is None:
        raise ValueError(
            f"{path}: column {group_column!r} is empty in every row: leave --group-column out, or fill it in."
        )
    return Scores(
        source=str(path),
        label_names=names,
        labels=np.stack(labels, axis=1),
        scores=np.stack(scores, axis=1),
        lines=lines,
        ids=columns["ids"],
        parts=columns["parts"],
        groups=groups,
        folds=columns["folds"],
        group_word=word,
        notes=tuple(notes),
    )


def read_run_scores(folder: Path, *, other_labels: OtherLabels = "missing") -> Scores:
    """The scores.csv of a run folder, whichever version wrote it."""
    path = folder / SCORES
    found = read_scores(path, other_labels=other_labels)
    if found.parts is None:
        raise ValueError(f"{path} has no column 'part'; `deepauc evaluate` reads any csv of scores.")
    # The file holds float32 in nine digits: as such, thresholds are those of the bundle to the bit.
    return replace(found, scores=found.scores.astype(np.float32).astype(np.float64))


def write_run_scores(folder: Path, task: Task, scores: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """scores.csv: id, part, group, label, score; for several labels label:NAME and score:NAME.

    scores: (n, L) by part, of its labelled rows.
    """
    blocks = [ScoredRows(part=part, rows=task.labelled(part), scores=values) for part, values in scores.items()]
    write_scored_rows(folder, task, blocks)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRows:
    """Rows of a task with their scores, (n, L). fold: its name, where the rows were held out as one."""

    part: str
    rows: npt.NDArray[np.int64]
    scores: npt.NDArray[np.floating[Any]]
    fold: str | None = None


def write_scored_rows(folder: Path, task: Task, blocks: Sequence[ScoredRows]) -> None:
    """scores.csv of these rows; with a column `fold` where any have one."""
    folds = any(block.fold is not None for block in blocks)
    names = [""] if task.kind == "binary" else [f":{name}" for name in task.label_names]
    text = io.StringIO()  # a row at a time: as Python objects a million rows would take a gigabyte
    writer = csv.writer(text, lineterminator="\n")
    header = [ID, PART, *([FOLD] if folds else []), GROUP]
    writer.writerow([*header, *(kind + name for name in names for kind in ("label", "score"))])
    for block in blocks:
        for row, score in zip(block.rows, block.scores.reshape(len(block.scores), -1), strict=True):
            label = task.labels[row].reshape(-1)
            line = [
                task.ids[row] if task.ids is not None else int(row),
                block.part,
                *([block.fold or ""] if folds else []),
                task.groups[row] if task.groups is not None else "",
            ]
            for y, s in zip(label, score, strict=True):
                line += ["" if np.isnan(y) else f"{y:.9g}", f"{s:.9g}"]  # nine digits hold a float32 exactly
            writer.writerow(line)
    write_atomically(folder / SCORES, text.getvalue().encode())


def _pairs(
    path: Path, header: Sequence[str], label_columns: Sequence[str], score_columns: Sequence[str]
) -> tuple[tuple[str, ...], Sequence[str], Sequence[str]]:
    """Names of the labels, and for each its label and its score column."""
    if not label_columns and not score_columns:
        named = [column[6:] for column in header if column.startswith("score:") and f"label:{column[6:]}" in header]
        if named and "score" not in header:
            return tuple(named), [f"label:{name}" for name in named], [f"score:{name}" for name in named]
    label_columns = label_columns or ["label"]
    score_columns = score_columns or ["score"]
    if len(label_columns) != len(score_columns):
        raise ValueError(
            f"{len(label_columns)} label columns but {len(score_columns)} score columns: give as many --label-column "
            "as --score-column, in the same order."
        )
    if both := set(label_columns) & set(score_columns):
        raise ValueError(f"column {min(both)!r} cannot be label and score at once: an AUC of 1 would say nothing.")
    if not any(name.strip() for name in header):
        raise ValueError(f"{path} is empty; its first line must name the columns.")
    for column, option in [(c, "--label-column") for c in label_columns] + [
        (c, "--score-column") for c in score_columns
    ]:
        if column not in header:
            there = ", ".join(map(repr, header[:30]))
            hint = f"name it with {option} (there are: {there})."
            if column == "label":
                hint += " deepauc predict copies labels from its table with --label-column."
            raise ValueError(f"{path} has no column {column!r}: {hint}")
    return tuple(label_columns), label_columns, score_columns


def _labels(
    path: Path,
    column: str,
    cells: Sequence[str],
    lines: npt.NDArray[np.int64],
    positive: str | None,
    other_labels: OtherLabels,
    notes: list[str],
) -> Floats:
    values = np.full(len(cells), np.nan)
    others = 0
    for row, cell in enumerate(cells):
        text = one_form(cell)
        value = _label(text, positive)
        if value is not None:
            values[row] = value
        elif text.lower() not in MISSING:
            if other_labels == "kept" and (soft := _number(text)) is not None:
                values[row] = soft
                continue
            if other_labels != "missing":
                raise ValueError(
                    f"{path}, line {lines[row]}: the label {text[:60]!r} in column {column!r} is neither 0 nor 1. "
                    "Name the positive class with --positive, for example --positive malignant."
                )
            others += 1
    if positive is not None:
        _require_positives(path, column, cells, values, positive, notes)
    if others:
        notes.append(f"{column}: labels that are uncertain or soft (neither 0 nor 1) count as missing: {others:,}.")
    return values


def _require_positives(
    path: Path, column: str, cells: Sequence[str], values: Floats, positive: str, notes: list[str]
) -> None:
    """ValueError where no label is the positive one, or some are it but for capitals; a note of what is negative."""
    negatives = Counter(one_form(cell) for cell, value in zip(cells, values.tolist(), strict=True) if value == 0)
    there = ", ".join(f"{text[:30]} ({count:,})" for text, count in negatives.most_common(6))
    there += f" and {len(negatives) - 6:,} others" if len(negatives) > 6 else ""
    if not (values == 1).any():
        raise ValueError(
            f"{path}: no label in column {column!r} is {positive!r}; check --positive. There are: {there}."
        )
    if alike := [text for text in negatives if loose_form(text) == loose_form(positive)]:
        raise ValueError(
            f"{path}: column {column!r} has {alike[0]!r} too, which differs from --positive {positive!r} only in "
            "capitals or look-alike letters and would count as negative: write them alike."
        )
    if len(negatives) > 1:
        notes.append(f"{column}: all but {positive!r} counts as negative: {there}.")


def _label(text: str, positive: str | None) -> float | None:
    lowered, number = text.lower(), _number(text)
    if positive is not None:
        if lowered in MISSING and text != positive:
            return None
        # Of class numbers: 3.0, as pandas writes a column with gaps, is 3.
        return float(text == positive or (number is not None and number == _number(positive)))
    if lowered in _TRUE or lowered in _FALSE:
        return float(lowered in _TRUE)
    return number if number in (0.0, 1.0) else None


def _scores(path: Path, column: str, cells: NumberColumn, lines: npt.NDArray[np.int64]) -> Floats:
    values = cells.values()
    for rows, block in cells.texts:
        values[rows] = _scores_of(path, column, block.cells(), lines[rows])
    return values


def _scores_of(path: Path, column: str, cells: Sequence[str], lines: npt.NDArray[np.int64]) -> Floats:
    """Scores with some among them that are missing, not finite, or no numbers."""
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        text = cell.strip()
        value = np.nan if text.lower() in MISSING else _number(text)
        if value is None:
            raise ValueError(
                f"{path}, line {lines[row]}: the score {text[:60]!r} in column {column!r} is not a number. "
                "Name the column of scores with --score-column."
            )
        values[row] = value
    return values


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return None if "_" in text else float(text)  # float() takes 1_000 for a number
    return None


def _repeated(ids: Strings) -> list[str]:
    """A note where rows have the id of another one, and no group says that they belong together."""
    names, counts = np.unique(ids[ids != ""], return_counts=True)
    if not (repeated := names[counts > 1]).size:
        return []
    found = f"1 id is in several rows ({repeated[0]!s})" if len(repeated) == 1 else ""
    found = found or f"{len(repeated):,} ids are in several rows each (the first: {repeated[0]!s})"
    return [
        f"{found}. These rows count as independent, which makes the intervals too narrow. If they are the same row, "
        "keep one of them; if the id is a patient, name the column with --group-column."
    ]


def _groups(groups: Strings | None, word: str, notes: list[str]) -> Strings | None:
    """Groups (patients) of all rows, or None where no row names one."""
    if groups is None or (empty := np.isin(groups, NO_NAME)).all():
        return None
    if empty.any():
        notes.append(f"Rows without a {word}: {int(empty.sum()):,}. Each of them counts as a {word} of its own.")
        own = np.array([f"row {i} (no {word})" for i in range(len(groups))], dtype=np.str_)
        return np.where(empty, own, groups)
    return groups
