"""NIH ChestX-ray14 (Wang et al., CVPR 2017): the complete download, and the small file of its first archive.

Labels were text-mined from reports and are noisy; a row without a finding is negative for all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deepauc.data.datasets.medical.csv_columns import one_part_each, read_columns
from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.images.decode import files_at
from deepauc.data.table.problems import shown
from deepauc.data.task import Array, ArrayInputs, Floats, Indices, Task
from deepauc.names import counted

FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
# In the order of CheXpert's competition labels.
COMPETITION_FINDINGS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Effusion")
TABLES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}

_FILE_NAME = re.compile(r"\d{8}_\d{3}\.png")
_NUMBER = re.compile(r"\d{1,8}")
_MAX_LIST_BYTES = 1 << 24
_SHEET_PARTS = {"train": "train", "val": "validation", "test": "test"}


def load_nih_cxr14(
    root: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] = 224,
    labels: Sequence[str] = FINDINGS,
) -> Task:
    """The complete set with its official lists: train (train_val_list.txt) and test (test_list.txt).

    root: holds Data_Entry_2017_v2020.csv (or Data_Entry_2017.csv), the two lists, and the images in images/ or
    images_001/images/ to images_012/images/. Grey images are decoded when asked for and resized to `size`.
    labels: one alone makes a binary task. Groups are patients; metadata: age, sex and view.
    """
    folder, names = Path(os.path.abspath(root)), _wanted(labels)
    table_path = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    if table_path is None:
        raise ValueError(f"{folder} has neither {TABLES[0]} nor {TABLES[1]}.")
    table = read_columns(
        table_path, ["Image Index", "Finding Labels", "Patient ID", "Patient Age", "Patient Gender", "View Position"]
    )
    table.matching("Image Index", _FILE_NAME)
    table.matching("Patient ID", _NUMBER)
    table.require_distinct("Image Index")
    places = _image_places(folder)
    findings = [set(cell.split("|")) for cell in table["Finding Labels"]]
    known = [found == {"No Finding"} or (bool(found) and found <= set(FINDINGS)) for found in findings]
    table.require(known, "Finding Labels", "it must be 'No Finding', or findings separated by |")
    values = np.array([[name in found for name in names] for found in findings], dtype=np.float32)
    metadata = {
        "age": table.ages("Patient Age"),
        "sex": table.one_of("Patient Gender", ("M", "F")),
        "view": table.one_of("View Position", ("PA", "AP")),
    }
    files = [places.get(name, str(folder / "images" / name)) for name in table["Image Index"]]
    parts = _listed_parts(folder, table["Image Index"])
    groups = np.array([str(int(cell)) for cell in table["Patient ID"]])
    one_part_each(groups, parts, where=str(folder), what="patient")
    return Task(
        name="NIH ChestX-ray14",
        kind="binary" if len(names) == 1 else "multilabel",
        source=files_at(files, size=size, channels=1, where=str(folder)),
        labels=_columns(values, names),
        label_names=names,
        parts=parts,
        groups=groups,
        metadata=metadata,
        ids=table.text("Image Index"),
    )


def load_nih_sheets(path: str | os.PathLike[str], *, labels: Sequence[str] = FINDINGS) -> Task:
    """nih_cxr14_96.npz: 4,999 frontal views at 96 x 96, in its own parts, which share no patient.

    labels: one alone makes a binary task. Hernia has one positive in validation and one in test: it cannot be
    evaluated there. Groups are patients; metadata: age, sex and view.
    """
    names, sheets = _wanted(labels), read_sheets(path)
    there = [str(name) for name in sheets.arrays.get("label_names", np.array([], dtype=str)).ravel()]
    found = sheets.column("labels")
    if there != list(FINDINGS) or found.shape[1:] != (len(FINDINGS),) or not np.isin(found, (0, 1)).all():
        raise ValueError(f"{path} does not hold the 14 findings of NIH ChestX-ray14 as 0 and 1.")
    values = found[:, [FINDINGS.index(name) for name in names]].astype(np.float32)
    split, groups = sheets.column("split"), sheets.column("patient_id").astype(str)
    if unknown := set(np.unique(split).tolist()) - set(_SHEET_PARTS):
        raise ValueError(f"{path}: the part {shown(min(unknown))} is unknown; it must be {' or '.join(_SHEET_PARTS)}.")
    parts = {part: np.flatnonzero(split == name) for name, part in _SHEET_PARTS.items() if name in split}
    one_part_each(groups, parts, where=str(path), what="patient")
    return Task(
        name="NIH ChestX-ray14, 96 px",
        kind="binary" if len(names) == 1 else "multilabel",
        source=ArrayInputs(sheets.images),
        labels=_columns(values, names),
        label_names=names,
        parts=parts,
        groups=groups,
        metadata={
            "age": sheets.column("age").astype(np.float64),
            "sex": sheets.column("sex"),
            "view": sheets.column("view"),
        },
        ids=sheets.column("image_index"),
    )


def _wanted(labels: Sequence[str]) -> tuple[str, ...]:
    names = tuple(labels)
    if not names or isinstance(labels, str) or not set(names) <= set(FINDINGS):
        raise ValueError(f"labels must be among NIH's findings: {', '.join(FINDINGS)}.")
    return names


def _columns(values: Floats, names: tuple[str, ...]) -> Array:
    return values[:, 0] if len(names) == 1 else values


def _image_places(folder: Path) -> dict[str, str]:
    """File name -> path, over all the folders that the archives unpack to."""
    places: dict[str, str] = {}
    for images in (folder / "images", *sorted(folder.glob("images_0[01][0-9]/images"))):
        if images.is_dir():
            with os.scandir(images) as entries:
                places |= {entry.name: entry.path for entry in entries if _FILE_NAME.fullmatch(entry.name)}
    return places


def _listed_parts(folder: Path, names: Sequence[str]) -> dict[str, Indices]:
    row_of = {name: row for row, name in enumerate(names)}
    parts: dict[str, Indices] = {}
    listed: set[str] = set()
    for part, file in LISTS.items():
        path = folder / file
        if not path.is_file() or path.stat().st_size > _MAX_LIST_BYTES:
            raise ValueError(f"{path} does not exist. Download this list with the images.")
        try:
            entries = path.read_text(encoding="utf-8").split()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text file of file names. Download it again.") from None
        for entry in entries:
            if entry in listed:
                raise ValueError(f"{path}: {shown(entry)} is listed twice. Each image must be in one list, once.")
            if entry not in row_of:
                raise ValueError(f"{path}: {shown(entry)} is not in the table of labels.")
            listed.add(entry)
        parts[part] = np.array(sorted(row_of[entry] for entry in entries), dtype=np.int64)
    if unlisted := [name for name in names if name not in listed]:
        number = counted(len(unlisted), "image")
        raise ValueError(f"{folder}: both lists lack {number}, such as {unlisted[0]}. Download the lists again.")
    return {part: rows for part, rows in parts.items() if len(rows)}
