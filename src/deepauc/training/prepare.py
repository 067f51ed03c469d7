"""From a table on disk to the Task a run trains on: read, split where the table does not, searched for leaks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.group_word import group_word
from deepauc.data.problems import TableReport
from deepauc.data.splits import check_leaks, equal_sets, split_by_fractions
from deepauc.data.table import read_table
from deepauc.data.task import Array, Task
from deepauc.training.choice import Choice, DeviceKind
from deepauc.training.config import DataSettings, Settings, SplitSettings
from deepauc.training.encoded_metadata import encoding_choice, metadata_task, require_categories
from deepauc.training.in_memory import InMemoryInputs, fits_in_memory
from deepauc.training.known_rows import split_like
from deepauc.training.plan_network import planned_size

ReadingProgress = Callable[[int, int], None]
CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A task with its parts, what the table's check has found, and how many leaks there are, by kind."""

    task: Task
    report: TableReport
    split: Choice
    leaks: dict[str, int]
    metadata: Choice | None = None  # how its columns were taken, where they are the inputs


def prepare(settings: Settings, device_kind: DeviceKind, *, progress: ReadingProgress | None = None) -> Prepared:
    """Read and check the table; a TableError lists all that is wrong with it. progress: (rows done, rows in all)."""
    data = settings.data
    _require_complete(data)
    task, report = read_table(
        str(data.table),
        label_columns=data.label_columns,
        kind="binary" if len(data.label_columns) == 1 else "multilabel",
        image_column=data.image_column,
        feature_columns=data.feature_columns,
        group_column=data.group_column,
        id_column=data.id_column,
        split_column=data.split_column,
        weight_column=data.weight_column,
        metadata_columns=data.metadata_columns,
        category_columns=data.category_columns,
        size=data.image_size or (lambda sizes: planned_size(sizes, device_kind)),
        skip_bad=data.skip_bad,
        allow_outside=data.allow_outside,
        progress=progress,
    )
    if fits_in_memory(task.source):
        task = replace(task, source=InMemoryInputs(task.source, progress=progress))
    # Numbers repeat by chance, pictures do not.
    identical = bool(report.duplicates) and data.image_column is not None
    if data.split_of is not None:
        task, split = _with_parts_of(task, Path(data.split_of), settings)
    else:
        task, split = _with_parts(task, settings.split, identical=identical, word=group_word(data.group_column))
    metadata = None
    if data.metadata_columns or data.category_columns:
        encoded, encoder = metadata_task(task)
        require_categories(task, encoder)
        task, metadata = encoded, encoding_choice(encoder)
    leaks = _leaks(task, identical=identical)
    return Prepared(task=task, report=report, split=split, leaks=leaks, metadata=metadata)


def _require_complete(data: DataSettings) -> None:
    if data.table is None:
        raise ValueError("which table? Name it: --table data.csv.")
    if not data.label_columns:
        raise ValueError("which column holds the labels? Name it: --label-column target.")
    metadata = bool(data.metadata_columns or data.category_columns)
    if data.image_column is not None and metadata:
        raise ValueError(
            "a run learns from images (--image-column) or from metadata (--metadata-column): train one of each, the "
            "second with --split-of the first, and deepauc predict averages them."
        )
    if data.feature_columns and (data.image_column is not None or metadata):
        other = "--metadata-column" if metadata else "--image-column"
        raise ValueError(
            f"--feature-column and {other} are two kinds of inputs, and a run has one: leave one of them out"
            + (" (--metadata-column takes numbers too)." if metadata else ", or train on metadata beside the images.")
        )
    if not (data.image_column or data.feature_columns or metadata):
        raise ValueError(
            "name the column of image files (--image-column), or columns of numbers (--feature-column), or of numbers "
            "and words (--metadata-column)."
        )
    if data.image_column is not None and data.id_column is not None:
        raise ValueError("--id-column goes with --feature-column: rows of images are called by their files.")
    if data.image_column is None and data.image_size is not None:
        raise ValueError("--image-size goes with --image-column: there are no images to resize.")


def _with_parts_of(task: Task, run: Path, settings: Settings) -> tuple[Task, Choice]:
    data = settings.data
    if data.split_column is not None or settings.split != SplitSettings():
        raise ValueError("--split-of takes the parts of a run: leave out the split column and [split].")
    if data.image_column is None and data.id_column is None:
        raise ValueError("--split-of finds rows by their names: name their column, --id-column.")
    return split_like(task, run)


def _with_parts(task: Task, split: SplitSettings, *, identical: bool, word: str) -> tuple[Task, Choice]:
    """The task with a validation and, unless the table has a split of its own, a test part."""
    if "validation" in task.parts:
        if split != SplitSettings():
            raise ValueError("the table has parts of its own: leave out [split], or the split column.")
        test = (
            "" if "test" in task.parts else "; there is no test part, so nothing says how good the choice of epochs is"
        )
        return task, Choice(name="parts", value=_counts(task), reason=f"the table's own split{test}")
    if "test" in task.parts:
        whole = split.train + split.validation
        fractions = {"train": split.train / whole, "validation": split.validation / whole}
        reason = "the table's own test part; validation is taken from its training part"
    else:
        fractions = {"train": split.train, "validation": split.validation, "test": split.test}
        reason = "the table has no split"
    groups = _split_groups(task, identical=identical)
    grouped = split_by_fractions(replace(task, groups=groups), fractions=fractions, seed=split.seed)
    task = task.with_parts(grouped.parts)
    shares = " / ".join(f"{share:.0%}" for share in fractions.values())
    kept = [*([word] * (task.groups is not None)), *(["set of identical images"] * identical)]
    reason += f": {shares} of the rows, the share of positives alike in all parts"
    reason += f", each {' and each '.join(kept)} in one part only" if kept else ""
    reason += f". Seed {split.seed} of the split is apart from --seed: runs with other seeds share the test part"
    return task, Choice(name="parts", value=_counts(task), reason=reason)


def _split_groups(task: Task, *, identical: bool) -> Array | None:
    """What must not be torn apart: patients, joined with those they share an identical input with."""
    if not identical:
        return task.groups
    groups = np.arange(len(task)).astype(str) if task.groups is None else task.groups.copy()
    names, codes = np.unique(groups, return_inverse=True)
    owner = np.arange(len(names))

    def root(code: int) -> int:
        while owner[code] != code:
            code = int(owner[code])
        return code

    digests = np.array(
        [
            hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest()
            for start in range(0, len(task), CHUNK)
            for row in task.inputs(np.arange(start, min(start + CHUNK, len(task))))
        ]
    )
    for rows in equal_sets(digests):
        first = root(int(codes[rows[0]]))
        for row in rows[1:]:
            owner[root(int(codes[row]))] = first
    return np.array([names[root(int(code))] for code in codes])


def _leaks(task: Task, *, identical: bool) -> dict[str, int]:
    """Patients in two parts; identical inputs too where the table holds any at all, which takes another pass."""
    if identical:
        return dict(Counter(leak.what for leak in check_leaks(task)))
    if task.groups is None:
        return {}
    owners = [set(task.groups[rows].tolist()) for rows in task.parts.values()]
    several = Counter(name for names in owners for name in names)
    count = sum(parts > 1 for parts in several.values())
    return {"patient": count} if count else {}


def _counts(task: Task) -> str:
    return ", ".join(f"{part} {len(task.labelled(part)):,}" for part in task.parts)


def data_record(settings: Settings, prepared: Prepared) -> dict[str, Any]:
    """What run.json keeps of the table: columns, split, counts; no names of patients or files."""
    data, report, split = settings.data, prepared.report, settings.split
    own = data.split_column is not None
    return {
        "table": data.table,
        "image_column": data.image_column,
        "label_columns": list(data.label_columns),
        "feature_columns": list(data.feature_columns),
        "metadata_columns": list(data.metadata_columns),
        "category_columns": list(data.category_columns),
        "group_column": data.group_column,
        "id_column": data.id_column,
        "split_column": data.split_column,
        "split_of": data.split_of,
        "weight_column": data.weight_column,
        "split": None
        if (own and "validation" in report.parts) or data.split_of is not None
        else {"train": split.train, "validation": split.validation, "test": split.test, "seed": split.seed},
        "rows": report.rows,
        "labelled": report.labelled,
        "unlabelled": report.unlabelled,
        "positives": dict(report.positives),
        "negatives": dict(report.negatives),
        "groups": report.groups,
        "skipped_rows": list(report.skipped),
        "sets_of_identical_inputs": len(report.duplicates),
    }
