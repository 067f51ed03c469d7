"""A user's own table as the task of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from deepauc.data.bags import bag_task
from deepauc.data.imbalance import tuning_task
from deepauc.data.table.read import read_table
from deepauc.data.task import Task
from deepauc.studies.sources import Place, TaskSource, fold_task
from deepauc.training.prepare.encoded_metadata import metadata_task
from deepauc.training.prepare.in_memory import kept_in_memory


@dataclass(frozen=True, kw_only=True)
class TableSource(TaskSource):
    """A table (csv, parquet) with a column of image files, or with columns of numbers and words (`metadata`).

    Args:
        table: A relative path is looked for in the folder of `--data`, without it in the current folder.
        label: The column of labels, 0 or 1.
        image: The column of image files.
        metadata: The columns of numbers and words.
        group: The column of patients, whose rows stay together.
        split: The column with the table's own parts. The seed is then only the network's; after tuning on the
            validation part (without one: on a tenth of train) a final run learns from train and validation.
        size: Side of the images, needed where they differ.
        folds: Without a split, how many folds the rows are cut into; the seed of a run is the number of the fold that
            is its test part.
        bag: The column that says which rows are images of one exam, patient or slide; rows of the task are then bags,
            and the network of a recipe a `BagSpec`.
    """

    table: str | Path
    label: str
    image: str | None = None
    metadata: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    size: int | None = None
    folds: int = 5
    bag: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metadata, str) or (self.image is None) == (not self.metadata):
            raise ValueError(
                "a table's inputs are either one column of image files, such as image='file', or columns of numbers "
                "and words, such as metadata=('age', 'sex')."
            )
        if self.bag is not None and self.image is None:
            raise ValueError("bag holds images together: leave it out, or name their column, such as image='file'.")

    @property
    def name(self) -> str:
        return Path(self.table).name

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        whole = _read(self, (place.data or Path()) / self.table)
        task = self._fold(whole, seed, tuning) if self.split is None else _own_parts(whole, seed, tuning)
        return metadata_task(task)[0] if self.metadata else task

    def _fold(self, task: Task, seed: int, tuning: bool) -> Task:
        divided = fold_task(task, fold=seed, folds=self.folds, tuning=tuning)
        return replace(divided, name=f"{task.name}, fold {seed + 1} of {self.folds}")


@cache
def _read(source: TableSource, path: Path) -> Task:
    """Once in a process, whatever the fold."""
    task, _ = read_table(
        path,
        label_columns=[source.label],
        kind="binary",
        image_column=source.image,
        metadata_columns=source.metadata,
        category_columns=() if source.bag is None else (source.bag,),
        group_column=source.group,
        split_column=source.split,
        size=source.size,
    )
    task = kept_in_memory(task)
    if source.bag is None:
        return task
    return bag_task(replace(task, metadata={}), task.metadata[source.bag], column=source.bag)


def _own_parts(task: Task, seed: int, tuning: bool) -> Task:
    if "test" not in task.parts:
        raise ValueError(f"{task.name}: its split column names no test row; leave it out for cross-validation.")
    if tuning:
        return task if "validation" in task.parts else tuning_task(task, seed=seed)
    known = [task.part(part) for part in ("train", "validation") if part in task.parts]
    return task.with_parts({"train": np.sort(np.concatenate(known)), "test": task.part("test")})
