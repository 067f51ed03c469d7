"""From a table or packed set to the Task a run trains on: read, split where it has no parts, searched for leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.bags import BagInputs, bag_task, linked_bags
from deepauc.data.packed.manifest import MANIFEST_NAME
from deepauc.data.splits import check_leaks, input_digests, inseparable, split_by_fractions
from deepauc.data.table.cautions import label_cautions
from deepauc.data.table.frame import Table
from deepauc.data.table.problems import TableReport
from deepauc.data.table.read import read_table
from deepauc.data.task import Array, Task, feature_columns
from deepauc.names import count_possible_leaks, group_word
from deepauc.training.config import AUTO, DataSettings, Settings, SplitSettings
from deepauc.training.plan.decision import Decision, DeviceKind, Fact
from deepauc.training.plan.network import planned_size
from deepauc.training.predict.known_rows import parts_decision, split_like
from deepauc.training.prepare.encoded_metadata import (
    encoding_decision,
    metadata_task,
    require_categories,
    whole_encoder,
)
from deepauc.training.prepare.in_memory import kept_in_memory
from deepauc.training.prepare.packed import label_counts, read_packed, require_only_packed
from deepauc.training.run.record import PackedData

ReadingProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows as they were read, in the parts that their table names, and what their check has found.

    digests: of the inputs, where any images are identical. packed: where there is no table. folds: (N,) the cells of
    the column that names them, where one does.
    """

    task: Task
    report: TableReport
    digests: Array | None = None
    packed: PackedData | None = None
    folds: Array | None = None

    @property
    def together(self) -> Array | None:
        """(N,) what no part and no fold may tear apart: patients, and identical images."""
        return inseparable(self.task.groups, self.digests)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A task with its parts, what the check of its rows has found, and how many leaks there are, by kind.

    rows: what the task was made of, for another split. drawn: how the parts were drawn, where deepauc has drawn them.
    possible_leaks: patients that are in two parts if names that may be meant alike are one patient's.
    """

    rows: Rows
    task: Task
    split: Decision
    drawn: SplitSettings | None
    leaks: dict[str, int]
    possible_leaks: int = 0
    metadata: Decision | None = None  # how its columns were taken, where they are the inputs

    @property
    def report(self) -> TableReport:
        return self.rows.report

    @property
    def packed(self) -> PackedData | None:
        return self.rows.packed


def prepare(settings: Settings, device_kind: DeviceKind, *, progress: ReadingProgress | None = None) -> Prepared:
    """Read, check and split the rows; see `read_rows`."""
    return split_rows(read_rows(settings, device_kind, progress=progress), settings)


def split_rows(rows: Rows, settings: Settings) -> Prepared:
    """The rows in the parts of one split."""
    data = settings.data
    if data.split_of is not None:
        (task, split), drawn = _with_parts_of(rows.task, Path(data.split_of), settings, rows.packed), None
    else:
        drawn = None if "validation" in rows.task.parts else settings.split
        task, split = _with_parts(rows.task, settings, rows.digests)
    return _prepared(rows, task, split, drawn=drawn, metadata=has_metadata(data))


def unsplit_rows(rows: Rows, settings: Settings, split: Decision) -> Prepared:
    """The rows in the parts that their table names, for folds.

    Metadata that are the inputs are encoded by all rows but the test part, with a feature for missing cells in every
    column: no network is trained on that, each fold encodes by its own training rows.
    """
    plain = _prepared(rows, rows.task, split, drawn=None, metadata=False)
    if not has_metadata(settings.data):
        return plain
    encoder, both = whole_encoder(rows.task), has_both(settings.data)
    task = plain.task if both else metadata_task(rows.task, encoder)[0]
    return replace(plain, task=task, metadata=encoding_decision(encoder, beside_images=both))


def has_metadata(data: DataSettings) -> bool:
    """Whether columns of metadata are inputs."""
    return bool(data.metadata_columns or data.category_columns)


def has_both(data: DataSettings) -> bool:
    """Whether images and columns of metadata are inputs."""
    return data.image_column is not None and has_metadata(data)


def read_rows(
    settings: Settings,
    device_kind: DeviceKind,
    *,
    frame: Table | None = None,
    progress: ReadingProgress | None = None,
) -> Rows:
    """Read and check the rows; a TableError lists all that is wrong with a table. progress: (rows done, in all).

    frame: a DataFrame in place of the settings' table.
    """
    data, pretrained = settings.data, bool(settings.plan.pretrained)
    require_complete(data, table=data.table if frame is None else frame)
    if has_both(data) and (settings.plan.tta or (settings.recipe is not None and settings.recipe.tta)):
        raise ValueError("tta does not work with images and metadata together: leave it out.")
    own = (*data.metadata_columns, *data.category_columns)
    if data.bag_column is not None and data.bag_column in (*own, *data.feature_columns):
        raise ValueError(f"the bag column {data.bag_column!r} is not an input: do not name it as another column too.")
    of_folds = settings.folds if isinstance(settings.folds, str) and settings.folds != AUTO else None
    packed, digests = None, None
    if data.packed is not None:
        if of_folds is not None:
            raise ValueError(
                f"folds {of_folds!r} is a column of a table, and a packed set has none: give a number of folds."
            )
        task, report, digests, packed = read_packed(data.packed, progress=progress)
    else:
        # Read beside the inputs, as text; none of the metadata unless it is an input, too.
        beside = [name for name in (data.bag_column, of_folds) if name is not None and name not in own]
        task, report = read_table(
            str(data.table) if frame is None else frame,
            label_columns=data.label_columns,
            kind="binary" if len(data.label_columns) == 1 else "multilabel",
            image_column=data.image_column,
            image_root=data.image_root,
            feature_columns=data.feature_columns,
            group_column=data.group_column,
            id_column=data.id_column,
            split_column=data.split_column,
            weight_column=data.weight_column,
            positive=data.positive,
            metadata_columns=data.metadata_columns,
            category_columns=(*data.category_columns, *beside),
            size=data.image_size or (lambda sizes: planned_size(sizes, device_kind, pretrained=pretrained)),
            skip_bad=data.skip_bad,
            allow_outside=data.allow_outside,
            progress=progress,
        )
        task = kept_in_memory(task, progress=progress)
    images = data.image_column is not None if packed is None else packed.images
    if not report.duplicates or not images:  # numbers repeat by chance, pictures do not
        digests = None
    elif digests is None:
        digests = input_digests(task.source, progress=progress)
    rows = Rows(task=task, report=report, digests=digests, packed=packed)
    if data.bag_column is not None:
        rows = _in_bags(rows, data.bag_column)
    if of_folds is None:
        return rows
    kept = {name: cells for name, cells in rows.task.metadata.items() if name in own}
    return replace(rows, task=replace(rows.task, metadata=kept), folds=rows.task.metadata[of_folds])


def _in_bags(rows: Rows, column: str) -> Rows:
    """The rows as images of bags; what is counted from here on are bags."""
    cells = rows.task.metadata[column]
    metadata = {name: values for name, values in rows.task.metadata.items() if name != column}
    task = bag_task(replace(rows.task, metadata=metadata), cells, column=column)
    assert isinstance(task.source, BagInputs)
    counts, of_rows = label_counts(task), rows.report
    of_images = label_cautions(of_rows.positives, of_rows.negatives, grouped=task.groups is not None)
    counts["cautions"] += tuple(text for text in of_rows.cautions if text not in of_images)
    kept = {name: how for name, how in of_rows.metadata.items() if name != column}
    report = replace(of_rows, metadata=kept, **counts)
    digests = None if rows.digests is None else linked_bags(task.source, rows.digests)
    return replace(rows, task=task, report=report, digests=digests)


def _prepared(rows: Rows, task: Task, split: Decision, *, drawn: SplitSettings | None, metadata: bool) -> Prepared:
    """task: the rows in their parts. metadata: its columns are the inputs, or are used beside images."""
    encoding = None
    if metadata:
        encoded, encoder = metadata_task(task)
        require_categories(task, encoder)
        images = len(task.source.shape) == 3
        task, encoding = task if images else encoded, encoding_decision(encoder, beside_images=images)
    return Prepared(
        rows=rows,
        task=task,
        split=split,
        drawn=drawn,
        leaks=_leaks(task, rows.digests),
        possible_leaks=_possible_leaks(task) if any(one.what == "group" for one in rows.report.alike) else 0,
        metadata=encoding,
    )


def require_complete(data: DataSettings, *, table: Table | None = None) -> None:
    """ValueError where the settings do not say what to read, or say two things. table: what is read in the end."""
    table = data.table if table is None else table
    if data.packed is not None:
        require_only_packed(data)
        return
    if table is None:
        raise ValueError("--table is required, for example --table data.csv, or --packed DIR for a packed set.")
    if data.table is not None and (Path(data.table) / MANIFEST_NAME).is_file():
        raise ValueError(f"{data.table} is a packed set: name it with --packed, without any columns.")
    if not data.label_columns:
        raise ValueError('a label column is required, for example --label-column target (in Python label="target").')
    metadata = has_metadata(data)
    if data.bag_column is not None and metadata:
        raise ValueError("a bag column and metadata columns cannot be used together: leave one of them out.")
    if data.bag_column is not None and data.split_of is not None:
        raise ValueError("--split-of cannot be used with a bag column: leave it out.")
    if data.feature_columns and (data.image_column is not None or metadata):
        other = "metadata columns" if metadata else "an image column"
        raise ValueError(
            f"feature columns and {other} cannot be used together: leave one of them out"
            + (" (metadata columns may hold numbers too)." if metadata else ", or train on images and metadata.")
        )
    if not (data.image_column or data.feature_columns or metadata):
        raise ValueError(
            "the input columns are missing: name a column of image files (--image-column, in Python image=), of "
            "numbers (--feature-column, features=), or of numbers and words (--metadata-column, metadata=)."
        )
    if data.image_column is not None and data.id_column is not None:
        raise ValueError("an id column is for feature columns: the ids of images are their file names.")
    if data.image_column is None and data.image_size is not None:
        raise ValueError("an image size needs an image column: without it there are no images to resize.")
    if data.image_column is None and data.image_root is not None:
        raise ValueError("an image root needs an image column: without it there are no image files to find.")


def _with_parts_of(task: Task, run: Path, settings: Settings, packed: PackedData | None) -> tuple[Task, Decision]:
    data = settings.data
    if packed is not None:
        if settings.split != SplitSettings() or set(task.parts) != {"train"}:
            raise ValueError(
                "--split-of takes its split from a run: leave out [split], and pack the table without its split column."
            )
        if not packed.named_rows:
            raise ValueError(
                f"--split-of finds rows by id, and those of {packed.path} have none, or numbers that may be lines of a "
                "table: pack it with a column of ids, --id-column."
            )
        return split_like(task, run)
    if data.split_column is not None or settings.split != SplitSettings():
        raise ValueError("--split-of takes its split from a run: leave out the split column and [split].")
    if data.image_column is None and data.id_column is None:
        raise ValueError("--split-of finds rows by id: name the column of ids, --id-column.")
    return split_like(task, run)


def _with_parts(task: Task, settings: Settings, digests: Array | None) -> tuple[Task, Decision]:
    """The task with a validation and, unless it has a split of its own, a test part.

    digests: of the inputs, where any are identical.
    """
    split = settings.split
    whose = "table" if settings.data.packed is None else "packed set"
    nowhere = len(task) - sum(map(len, task.parts.values()))  # rows of validation and test without a label
    if nowhere and not {"validation", "test"} & set(task.parts):
        raise ValueError(
            f"the {whose} puts {nowhere:,} rows into validation and test, and none of them has a label: label some, or "
            "leave out the split column, and a new split of the labelled rows is drawn."
        )
    left_out = ("unlabelled left out",) if nowhere else ()
    facts: dict[str, Fact] = {"source": whose, "left_out": nowhere}
    if "validation" in task.parts:
        if split != SplitSettings():
            or_else = ", or the split column" if settings.data.packed is None else ""
            raise ValueError(f"the {whose} has parts of its own: leave out [split]{or_else}.")
        test = () if "test" in task.parts else ("no test",)
        return task, parts_decision(task, ("own split", *test, *left_out), facts)
    reason: tuple[str, ...]
    if "test" in task.parts:
        whole = split.train + split.validation
        fractions = {"train": split.train / whole, "validation": split.validation / whole}
        reason = ("own test", *left_out)
    else:
        fractions = {"train": split.train, "validation": split.validation, "test": split.test}
        reason = ("drawn",)
    groups = inseparable(task.groups, digests)
    grouped = split_by_fractions(replace(task, groups=groups), fractions=fractions, seed=split.seed)
    reason += ("one per group",) if task.groups is not None else ()
    reason += ("identical together",) if digests is not None else ()
    facts |= {"shares": fractions, "group": group_word(task.group_column), "split_seed": split.seed}
    task = task.with_parts(grouped.parts)
    return task, parts_decision(task, (*reason, "own seed"), facts)


def _leaks(task: Task, digests: Array | None) -> dict[str, int]:
    """Patients in two parts; identical inputs too where there are any at all."""
    if digests is not None:
        return dict(Counter(leak.what for leak in check_leaks(task, digests=digests)))
    if task.groups is None:
        return {}
    owners = [set(task.groups[rows].tolist()) for rows in task.parts.values()]
    several = Counter(name for names in owners for name in names)
    count = sum(parts > 1 for parts in several.values())
    return {"patient": count} if count else {}


def _possible_leaks(task: Task) -> int:
    """How many patients are in two parts only under names that differ."""
    if task.groups is None:
        return 0
    parts = np.full(len(task), "", dtype="U10")  # rows in no part are in nobody's way
    for name, rows in task.parts.items():
        parts[rows] = name
    inside = parts != ""
    return count_possible_leaks(task.groups[inside], parts[inside])


def data_record(settings: Settings, prepared: Prepared) -> dict[str, Any]:
    """What run.json keeps of the data: columns, split, counts; no names of patients or files."""
    data, report, bags = settings.data, prepared.report, prepared.task.source
    return {
        "table": data.table,
        "packed": None if prepared.packed is None else asdict(prepared.packed),
        "image_column": data.image_column,
        **({} if data.image_root is None else {"image_root": data.image_root}),
        "label_columns": list(data.label_columns),
        "feature_columns": list(feature_columns(prepared.task.source)),
        "metadata_columns": list(data.metadata_columns),
        "category_columns": list(data.category_columns),
        "group_column": prepared.task.group_column,
        "id_column": data.id_column,
        "split_column": data.split_column,
        "split_of": data.split_of,
        "weight_column": data.weight_column,
        "split": None if prepared.drawn is None else asdict(prepared.drawn),
        "rows": report.rows,
        "labelled": report.labelled,
        "unlabelled": report.unlabelled,
        "positives": dict(report.positives),
        "negatives": dict(report.negatives),
        "groups": report.groups,
        "skipped_rows": list(report.skipped),
        "sets_of_identical_inputs": len(report.duplicates),
        "alike": [asdict(one) for one in report.alike],
        **({} if data.positive is None else {"positive": data.positive}),
        **({"bag_column": data.bag_column, "images": len(bags.members)} if isinstance(bags, BagInputs) else {}),
        **({"few": list(report.few)} if report.few else {}),
    }
