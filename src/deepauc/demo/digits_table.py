"""scikit-learn's bundled digits as a user's data would lie there: png files and one csv with a split column."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from deepauc.data.export import TABLE_NAME, Exported, export_task
from deepauc.data.imbalance import binarise, make_imbalanced, positive_classes
from deepauc.data.splits import split_by_fractions
from deepauc.data.task import ArrayInputs, Task

IMRATIO = 0.1  # 100 positives beside all 901 negatives
FRACTIONS = {"train": 0.5, "validation": 0.25, "test": 0.25}  # 25 positives are the fewest an epoch is chosen by


def digits_task() -> Task:
    """Classes 5 to 9 against 0 to 4, positives reduced to 10 %, cut into three parts; the same on every machine.

    Images are uint8 (8, 8, 1). Unlike the paper's protocol the positives are rare in validation and test too, as they
    are in a clinic's own table.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    chosen = make_imbalanced(binarise(digits.target, positive_classes(10)), imratio=IMRATIO, seed=0)
    images = np.rint(digits.images[chosen.rows] * (255 / 16)).astype(np.uint8)  # the files count grey from 0 to 16
    whole = Task(
        name="digits",
        kind="binary",
        source=ArrayInputs(images),
        labels=chosen.labels,
        label_names=("five to nine",),
        parts={"train": np.arange(len(chosen.rows))},
    )
    return split_by_fractions(whole, fractions=FRACTIONS, seed=0)


def write_digits_table(folder: Path) -> Exported:
    """PART/ROW.png and table.csv, all or nothing, in place of what an earlier call wrote; anything else is refused.

    A folder is an earlier call's if it holds the same table and no file that is not written here.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        work = Path(name)
        exported = export_task(digits_task(), work / "new")
        if os.path.lexists(folder):
            _require_own(folder, work / "new")
            folder.rename(work / "old")
        (work / "new").rename(folder)
    return replace(exported, table=folder / TABLE_NAME)


def _require_own(folder: Path, new: Path) -> None:
    remedy = "Move it away, or choose another folder; nothing was changed."
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of the demo. {remedy}")
    if strange := sorted(_files(folder) - _files(new)):
        raise ValueError(f"{folder / strange[0]} was not written by the demo. {remedy}")
    table = folder / TABLE_NAME
    if any(folder.iterdir()) and not (table.is_file() and table.read_bytes() == (new / TABLE_NAME).read_bytes()):
        raise ValueError(f"{table} is not the table that the demo writes. {remedy}")


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
