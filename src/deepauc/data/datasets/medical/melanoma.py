"""SIIM-ISIC melanoma 2020: the competition's files, the resized editions, and outside images merged into train.

Competition: `train.csv` and `jpeg/train/<image_name>.jpg`. Resized editions ("jpeg-melanoma-NxN"): `train.csv` with a
column `tfrecord`, a leak-free fold number where -1 marks duplicates to be dropped, and `train/<image_name>.jpg`.
The labels of test.csv were never published, so its images are in no task. The ISIC 2020 ground truth (Rotemberg et al.,
Scientific Data 8:34, 2021) is the same patients without images.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepauc.data.datasets.medical.csv_columns import CsvColumns, one_part_each, read_columns
from deepauc.data.images.decode import files_at
from deepauc.data.task import Array, ArrayInputs, Floats, Indices, Task

AGE, SEX, SITE = "age_approx", "sex", "anatom_site_general_challenge"
TARGET, PATIENT, IMAGE, FOLD = "target", "patient_id", "image_name", "tfrecord"
SEXES = ("male", "female", "")
SITES = ("torso", "lower extremity", "upper extremity", "head/neck", "palms/soles", "oral/genital", "")

_IMAGE_NAME = re.compile(r"ISIC_\d{7}")
_PATIENT_ID = re.compile(r"IP_\d{7}")
_FOLD_NUMBER = re.compile(r"-1|\d{1,3}")
_TARGETS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}
# Outside sets are named by many: no folder in it, nothing that a file system could take for one.
_OUTSIDE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_TORSO = ("anterior torso", "posterior torso", "lateral torso")  # in ISIC 2019
_UNKNOWN_PATIENTS = ("", "-1", "-1.0", "nan")


@dataclass(frozen=True, kw_only=True)
class OutsideImages:
    """Another collection to train on, never to be held out: a csv and a folder of <image name>.jpg.

    The table needs an image column (names without .jpg) and a target column (0 or 1); age, sex, site and patient are
    used where the competition's columns of that name are there. ISIC 2018 and 2019: image_column="image",
    target_column="MEL".
    """

    name: str
    table: str | os.PathLike[str]
    folder: str | os.PathLike[str]
    image_column: str = IMAGE
    target_column: str = TARGET


def load_melanoma(
    root: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] = 256,
    outside: Sequence[OutsideImages] = (),
    table: str | os.PathLike[str] | None = None,
) -> Task:
    """Melanoma against the rest, RGB, decoded when asked for and resized to `size`.

    root: holds train.csv, and jpeg/train/ (competition) or train/ (resized edition). table: a resized edition's
    train.csv for root's images, so that both have the same rows: the competition's own still has duplicates. outside:
    collections that join the training part, where all rows are, for folds; `outside_rows` says which these are. Groups
    are patients; metadata: age, sex and site. The row ids are image names, those of outside sets NAME/IMAGE.
    """
    folder = Path(os.path.abspath(root))
    images = next((place for place in (folder / "jpeg" / "train", folder / "train") if place.is_dir()), None)
    if images is None:
        raise ValueError(f"{folder} has neither jpeg/train/ (competition) nor train/ (resized edition).")
    rows = read_melanoma_table(folder / "train.csv" if table is None else Path(table))
    if FOLD in rows.columns:
        numbers = rows.text(FOLD)
        folds = {number: np.flatnonzero(numbers == number) for number in np.unique(numbers).tolist()}
        one_part_each(rows.text(PATIENT), folds, where=str(rows.path), what="patient")
    outsiders = [_read_outside(one) for one in outside]
    names = [name for one in outsiders for name in one.images]
    _require_new(names, set(rows[IMAGE]))
    sources = [_Rows.of(rows, images), *outsiders]
    labels = np.concatenate([one.target for one in sources])
    return Task(
        name=f"{folder.name}{''.join(f' + {one.name}' for one in outside)}",
        kind="binary",
        source=files_at([path for one in sources for path in one.files], size=size, channels=3, where=str(folder)),
        labels=labels,
        label_names=("melanoma",),
        parts={"train": np.arange(len(labels))},
        groups=np.concatenate([one.groups for one in sources]),
        metadata={key: np.concatenate([one.metadata[key] for one in sources]) for key in ("age", "sex", "site")},
        ids=np.array([name for one in sources for name in one.ids]),
    )


def load_isic2020_table(path: str | os.PathLike[str]) -> Task:
    """Melanoma from age, sex and site alone: 33,126 rows in train, for patient folds at true scale.

    Features, (N, 10) float32: age in centuries (the mean where missing), 1 where it is missing, then one column for
    each sex and each body site; all of those are 0 where the table has nothing. Groups are patients.
    """
    table = read_melanoma_table(Path(path))
    metadata = table_metadata(table)
    age, known = metadata["age"], ~np.isnan(metadata["age"])
    filled = np.where(known, age, age[known].mean() if known.any() else 0.0) / 100
    columns = [filled, ~known]
    columns += [metadata["sex"] == sex for sex in SEXES if sex]
    columns += [metadata["site"] == site for site in SITES if site]
    return Task(
        name="ISIC 2020 metadata",
        kind="binary",
        source=ArrayInputs(np.stack(columns, axis=1).astype(np.float32)),
        labels=targets(table),
        label_names=("melanoma",),
        parts={"train": np.arange(len(table))},
        groups=table.text(PATIENT),
        metadata=metadata,
        ids=table.text(IMAGE),
    )


def outside_rows(task: Task) -> Indices:
    """The rows of a melanoma task that came from outside collections."""
    if task.ids is None:
        raise ValueError(f"task {task.name!r} has no row ids, so outside images cannot be recognised.")
    return np.flatnonzero(np.char.find(task.ids, "/") >= 0)


def read_melanoma_table(path: Path) -> CsvColumns:
    """The competition's train.csv, or the ISIC 2020 ground truth: checked, without the rows marked as duplicates."""
    table = read_columns(path, [IMAGE, PATIENT, SEX, AGE, SITE, TARGET], optional=[FOLD])
    if FOLD in table.columns:
        table.matching(FOLD, _FOLD_NUMBER)
        table = table.select(table.text(FOLD) != "-1")
    table.matching(IMAGE, _IMAGE_NAME)
    table.matching(PATIENT, _PATIENT_ID)
    table.require_distinct(IMAGE)
    return table


def table_metadata(table: CsvColumns) -> dict[str, Array]:
    """Age in years (NaN where missing), sex and site (empty where missing)."""
    return {"age": table.ages(AGE), "sex": table.one_of(SEX, SEXES), "site": table.one_of(SITE, SITES)}


def targets(table: CsvColumns, column: str = TARGET) -> Floats:
    return table.values(column, _TARGETS)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    images: list[str]
    ids: list[str]
    files: list[str]
    target: Floats
    groups: Array
    metadata: dict[str, Array]

    @staticmethod
    def of(table: CsvColumns, folder: Path) -> _Rows:
        images = list(table[IMAGE])
        return _Rows(
            images=images,
            ids=images,
            files=[os.path.join(folder, f"{name}.jpg") for name in images],
            target=targets(table),
            groups=table.text(PATIENT),
            metadata=table_metadata(table),
        )


def _read_outside(one: OutsideImages) -> _Rows:
    if not _OUTSIDE_NAME.fullmatch(one.name):
        raise ValueError(f"the name of an outside set may hold letters, digits, '.', '_' and '-', not {one.name!r}.")
    table = read_columns(
        Path(one.table), [one.image_column, one.target_column], optional=[PATIENT, SEX, AGE, SITE, FOLD]
    )
    if FOLD in table.columns:
        table.matching(FOLD, _FOLD_NUMBER)
        table = table.select(table.text(FOLD) != "-1")
    table.matching(one.image_column, _OUTSIDE_NAME)
    table.require_distinct(one.image_column)
    images, empty = list(table[one.image_column]), [""] * len(table)
    columns = {name: table.columns.get(name, empty) for name in (PATIENT, SEX, AGE, SITE)}
    # Other collections name body sites in other words; what the competition does not know is missing.
    columns[SITE] = ["torso" if cell in _TORSO else cell if cell in SITES else "" for cell in columns[SITE]]
    columns[SEX] = [cell if cell in SEXES else "" for cell in columns[SEX]]
    columns[AGE] = [cell if cell.lower() != "nan" else "" for cell in columns[AGE]]
    # ISIC's patient numbers hold in all its collections; any other name is this set's own, and an unknown patient is
    # nobody else.
    patients = [
        patient if _PATIENT_ID.fullmatch(patient) else f"{one.name}/{name if patient in _UNKNOWN_PATIENTS else patient}"
        for name, patient in zip(images, columns[PATIENT], strict=True)
    ]
    return _Rows(
        images=images,
        ids=[f"{one.name}/{name}" for name in images],
        files=[os.path.join(one.folder, f"{name}.jpg") for name in images],
        target=targets(table, one.target_column),
        groups=np.array(patients, dtype=str),
        metadata=table_metadata(CsvColumns(table.path, columns, table.lines)),
    )


def _require_new(names: Sequence[str], own: set[str]) -> None:
    """An image that is held out must not come back from outside."""
    seen = set(own)
    for name in names:
        if name in seen:
            raise ValueError(
                f"the outside image {name} is also in the competition's table or in another outside set. "
                "Remove it from the outside table; otherwise the network could be trained on a held-out image."
            )
        seen.add(name)
