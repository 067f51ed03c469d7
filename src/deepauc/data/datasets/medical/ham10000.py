"""HAM10000 (Tschandl, Rosendahl, Kittler, Scientific Data 5:180161, 2018): the download, and a small file of 64 px.

Melanoma, or another diagnosis, against the rest. The diagnosis and how it was made are no metadata: they give the
answer away.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from deepauc.data.datasets.medical.csv_columns import read_columns
from deepauc.data.datasets.sheets import Sheets, read_sheets
from deepauc.data.images.decode import files_at
from deepauc.data.task import Array, ArrayInputs, Indices, Task

Diagnosis = Literal["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]
Division = Literal["balanced", "dermamnist", "none"]

TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata")
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images", "images")
SEXES = ("male", "female", "unknown")
_IMAGE_ID = re.compile(r"ISIC_\d{7}")
_LESION_ID = re.compile(r"HAM_\d{7}")
_NAMES = {"mel": "melanoma"}
_TEST_2018 = "test2018"


def load_ham10000(
    root: str | os.PathLike[str], *, size: int | tuple[int, int] = 224, positive: Diagnosis = "mel"
) -> Task:
    """The complete set, 10,015 RGB images of 7,470 lesions, all in train; `data.splits` divides them by lesion.

    root: holds HAM10000_metadata (with or without .csv) and the images in HAM10000_images_part_1/ and _part_2/.
    Images are decoded when asked for and resized to `size`. Groups are lesions; metadata: age, sex and site.
    """
    _require_diagnosis(positive)
    folder = Path(os.path.abspath(root))
    table_path = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if table_path is None:
        raise ValueError(f"{folder} has no {TABLES[0]}. Download the whole data set there.")
    table = read_columns(table_path, ["lesion_id", "image_id", "dx", "age", "sex", "localization"])
    table.matching("image_id", _IMAGE_ID)
    table.matching("lesion_id", _LESION_ID)
    table.require_distinct("image_id")
    dx = table.one_of("dx", get_args(Diagnosis))
    metadata = {"age": table.ages("age"), "sex": table.one_of("sex", SEXES), "site": table.text("localization")}
    places: dict[str, str] = {}
    for images in (folder / name for name in (*FOLDERS, *(name.lower() for name in FOLDERS))):
        if images.is_dir():
            with os.scandir(images) as entries:
                places |= {entry.name: entry.path for entry in entries if entry.name.endswith(".jpg")}
    files = [places.get(f"{name}.jpg", str(folder / FOLDERS[0] / f"{name}.jpg")) for name in table["image_id"]]
    return Task(
        name="HAM10000",
        kind="binary",
        source=files_at(files, size=size, channels=3, where=str(folder)),
        labels=dx == positive,
        label_names=(_NAMES.get(positive, positive),),
        parts={"train": np.arange(len(table))},
        groups=table.text("lesion_id"),
        metadata=metadata,
        ids=table.text("image_id"),
    )


def load_ham10000_sheets(
    path: str | os.PathLike[str],
    *,
    positive: Diagnosis = "mel",
    division: Division = "balanced",
    with_2018: bool = True,
) -> Task:
    """ham10000_64.npz: 5,984 lesions of HAM10000, one image each, and 1,511 test images of ISIC 2018, at 64 x 64.

    division: `balanced` has enough melanomas everywhere (train 4,043, validation 1,033: those of the development
    images whose number is divisible by 5, test 2,419); `dermamnist` is that of DermaMNIST-C, with the images of 2018
    in test too; `none` puts all in train, for folds. with_2018: False leaves those out, which have neither age nor
    sex nor site. Groups are lesions; an image of 2018, whose lesion is not named, is a group of its own.
    """
    _require_diagnosis(positive)
    if division not in get_args(Division):
        raise ValueError(f"division must be one of {', '.join(get_args(Division))}, not {division!r}.")
    sheets = read_sheets(path)
    names = [str(name) for name in sheets.arrays.get("dx_names", np.array([], dtype=str)).ravel()]
    dx, images, split = sheets.column("dx"), sheets.column("image_id"), sheets.column("split")
    if names != list(get_args(Diagnosis)) or dx.dtype.kind not in "iu" or not np.isin(dx, range(len(names))).all():
        raise ValueError(f"{path} does not hold the 7 diagnoses of HAM10000.")
    known = ("train", "val", "test", _TEST_2018)
    if not (np.isin(split, known).all() and all(_IMAGE_ID.fullmatch(name) for name in images.tolist())):
        raise ValueError(f"{path} must hold the parts {', '.join(known)} and names of the form ISIC_<7 digits>.")
    lesions = sheets.column("lesion_id")
    task = Task(
        name="HAM10000, 64 px",
        kind="binary",
        source=ArrayInputs(sheets.images),
        labels=dx == names.index(positive),
        label_names=(_NAMES.get(positive, positive),),
        parts=_divide(images, split, division),
        groups=np.where(lesions == "unknown", images, lesions),
        metadata=_sheet_metadata(sheets),
        ids=images,
    )
    return task if with_2018 else task.subset(np.flatnonzero(split != _TEST_2018))


def _require_diagnosis(positive: str) -> None:
    if positive not in get_args(Diagnosis):
        raise ValueError(f"positive must be one of {', '.join(get_args(Diagnosis))}, not {positive!r}.")


def _divide(images: Array, split: Array, division: Division) -> dict[str, Indices]:
    if division == "none":
        return {"train": np.arange(len(images))}
    test = np.isin(split, ("test", _TEST_2018))
    if division == "dermamnist":
        validation = split == "val"
    else:
        validation = ~test & np.array([int(name[5:]) % 5 == 0 for name in images.tolist()], dtype=bool)
    masks = {"train": ~test & ~validation, "validation": validation, "test": test}
    return {part: np.flatnonzero(mask) for part, mask in masks.items()}


def _sheet_metadata(sheets: Sheets) -> dict[str, Array]:
    age = sheets.column("age").astype(np.float64)
    return {
        "age": np.where(age < 0, math.nan, age),
        "sex": sheets.column("sex"),
        "site": sheets.column("localization"),
    }
