"""AUC within groups of patients: by the values of any metadata column, numbers cut at their quartiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.table.header import table_header
from deepauc.data.table.rows import read_rows
from deepauc.metrics.operating_points import OperatingPoint, operating_point
from deepauc.names import find_alike, one_form
from deepauc.reporting.evaluation.findings import Absent, OperatingRow, SubgroupFinding, SubgroupRow
from deepauc.reporting.evaluation.sample import Sample, attempt, sample_of
from deepauc.reporting.evaluation.within_folds import part_interval
from deepauc.training.run.scores import MISSING, Scores

Strings = npt.NDArray[np.str_]

MOST_GROUPS = 12  # of a column of words; the rarer ones are put together
FEWEST_NUMBERS = 9  # a column of numbers with fewer distinct values is taken as it is


@dataclass(frozen=True, eq=False)
class Metadata:
    """Columns that describe the rows of scores.csv, by id."""

    ids: Sequence[Any]  # (M,)
    columns: Mapping[str, Sequence[Any]]  # name -> (M,)

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if len(column) != len(self.ids):
                raise ValueError(f"metadata column {name!r} has {len(column)} entries for {len(self.ids)} ids.")

    def aligned(self, ids: Strings) -> dict[str, Strings]:
        """The columns as text in the order of these ids, "" where an id is not there."""
        place: dict[str, int] = {}
        for number, one in enumerate(self.ids):
            if place.setdefault(one_form(str(one)), number) != number:
                raise ValueError(
                    f"the metadata name {str(one)[:60]!r} twice; ids must be unique (name another --id-column)."
                )
        rows = [place.get(one, -1) for one in ids.tolist()]
        if rows and max(rows) < 0:
            remedy = "name the right column with --id-column."
            if all(one.isdecimal() for one in ids.tolist()):
                remedy += (
                    " Rows of a numeric table have their line in it as id (the header is line 1): add a column of "
                    "these to the metadata."
                )
            raise ValueError(
                f"no id of scores.csv (such as {str(ids[0])[:60]!r}) is among the metadata's ids "
                f"(such as {str(self.ids[0])[:60] if len(self.ids) else ''!r}): {remedy}"
            )
        every = {name: list(column) for name, column in self.columns.items()}
        return {
            name: np.array([_text(column[row]) if row >= 0 else "" for row in rows], dtype=np.str_)
            for name, column in every.items()
        }

    def alike(self, names: Iterable[str]) -> list[str]:
        """A caution for each of these columns with categories that are written in several ways."""
        found = (find_alike(map(_text, self.columns[name]), what="category", column=name) for name in names)
        return [one.text() for one in found if one is not None]


def read_metadata(
    path: str | Path, *, id_column: str, columns: Sequence[str] = (), without: Sequence[str] = ()
) -> Metadata:
    """Metadata from a .csv, .tsv (both also .gz) or .parquet; without `columns` all but the ids and these."""
    path = Path(path)
    header = table_header(path, latin_1=True)
    if id_column not in header:
        there = ", ".join(map(repr, header[:30]))
        raise ValueError(f"{path} has no column {id_column!r}: name the ids with --id-column (there are: {there}).")
    chosen = list(columns) or [name for name in header if name not in (id_column, *without) and name.strip()]
    cells = read_rows(path, list(dict.fromkeys([id_column, *chosen])))
    if cells.problems:
        first = cells.problems[0]
        raise ValueError(f"{path}, line {first.row}: {first.message} ({len(cells.problems)} such rows).")
    return Metadata(cells.columns[id_column], {name: cells.pointed(name) for name in chosen})


def find_subgroups(
    table: Scores,
    metadata: Metadata,
    *,
    at: Mapping[str, OperatingRow] | None = None,
    part: str | None = None,
) -> tuple[SubgroupFinding, ...] | Absent:
    """The AUC of each label in each group of each column; a column that names single rows is left out.

    at: by label, where the sensitivity and the specificity of each group are counted too. part: of which the rows are.
    """
    if table.ids is None:
        return Absent("scores.csv has no id column, so metadata cannot be joined to it.")
    found = []
    for column, values in metadata.aligned(table.ids).items():
        grouping = group_rows(values)
        if grouping is None:
            continue
        names, group_of = grouping
        for number, label in enumerate(table.label_names):
            point = (at or {}).get(label)
            sample = sample_of(table, number, part=part)
            rows = tuple(_row(sample, name, group_of == place, point) for place, name in enumerate(names))
            cut = None if point is None else point.threshold
            found.append(SubgroupFinding(column=column, label=label, rows=rows, threshold=cut))
    return tuple(found) or Absent("no metadata column has groups of several rows.")


def group_rows(values: Strings) -> tuple[list[str], npt.NDArray[np.int64]] | None:
    """Names of the groups in order, and the group of each row; None for a column that hardly repeats a value."""
    known = np.array([text.lower() not in MISSING for text in values.tolist()], dtype=bool)
    texts = values[known]
    if (numbers := _numbers(texts)) is not None:  # 1, 1.0 and 01 are one category, called as its first row has it
        _, first, number_of = np.unique(numbers, return_index=True, return_inverse=True)
        texts = texts[first][number_of]
    distinct, counts = np.unique(texts, return_counts=True)
    group_of = np.empty(len(values), dtype=np.int64)
    if numbers is not None and distinct.size >= FEWEST_NUMBERS:
        edges = np.unique(np.quantile(numbers, [0.25, 0.5, 0.75]))
        edges = edges[edges < numbers.max()]  # nothing is above the largest
        if not edges.size:
            edges = np.array([np.max(numbers[numbers < numbers.max()])])
        limits = [f"{edge:.0f}" if abs(edge) >= 1000 else f"{edge:.4g}" for edge in edges]
        names = [f"up to {limits[0]}"]  # a limit belongs to the group below it
        names += [f"above {low}, up to {high}" for low, high in pairwise(limits)]
        names.append(f"above {limits[-1]}")
        group_of[known] = np.searchsorted(edges, numbers, side="left")
    elif distinct.size == 0 or distinct.size > known.sum() / 2:
        return None
    else:
        frequent = distinct[np.argsort(-counts, kind="stable")][:MOST_GROUPS].tolist()
        names = sorted(frequent, key=float) if numbers is not None else sorted(frequent)
        place = {name: number for number, name in enumerate(names)}
        group_of[known] = [place.get(text, len(names)) for text in texts.tolist()]
        if distinct.size > len(names):
            names.append(f"(the {distinct.size - len(names)} rarer values)")
    if not known.all():
        group_of[~known] = len(names)
        names.append("(missing)")
    return names, group_of


def _numbers(texts: Strings) -> npt.NDArray[np.float64] | None:
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _text(value: Any) -> str:
    return "" if value is None or value != value else one_form(str(value))  # noqa: PLR0124  (NaN alone differs)


def _row(sample: Sample, name: str, chosen: npt.NDArray[np.bool_], at: OperatingRow | None) -> SubgroupRow:
    sample = sample.rows(chosen).labelled()
    point: OperatingPoint | Absent = Absent("there is no threshold.")
    if at is not None:
        above = sample.scores - at.cuts(sample.folds, len(sample.scores))
        point = attempt(lambda: operating_point(above, sample.labels, 0.0, groups=sample.clusters))
    return SubgroupRow(
        group=name,
        rows=len(sample.labels),
        positives=int(sample.labels.sum()),
        auc=attempt(lambda: part_interval(sample)),
        sensitivity=None if isinstance(point, Absent) else point.sensitivity.floats(),
        specificity=None if isinstance(point, Absent) else point.specificity.floats(),
    )
