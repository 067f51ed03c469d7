"""CheXpert (Irvin et al., AAAI 2019), both editions as Stanford hands them out: train.csv, valid.csv and JPEG files.

Layout of the folder, CheXpert-v1.0-small or CheXpert-v1.0: `train.csv`, `valid.csv`, and in `train/` and `valid/`
`patient<5 digits>/study<n>/view<n>_<frontal|lateral>.jpg`. A label cell is 1.0, 0.0, -1.0 (uncertain) or empty (the
report does not mention it).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from deepauc.data.datasets.medical.csv_columns import one_part_each, read_columns
from deepauc.data.images.decode import files_at
from deepauc.data.task import UNCERTAIN, Array, Floats, Task
from deepauc.data.uncertain import Choice, NotMentioned, resolve

Views = Literal["frontal", "all"]
ValidPart = Literal["validation", "test"]

OBSERVATIONS = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema"),
    *("Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture"),
    "Support Devices",
)
COMPETITION_LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
# The hard labels that LibAUC's published loader trains the AUC losses on.
LIBAUC_POLICY: dict[str, Choice] = {
    "Cardiomegaly": "zeros",
    "Edema": "ones",
    "Consolidation": "zeros",
    "Atelectasis": "ones",
    "Pleural Effusion": "zeros",
}

_PATH = re.compile(
    r"CheXpert-v1\.0(?:-small)?/((train|valid)/(patient\d{5})/study\d{1,4}/view\d{1,3}_(frontal|lateral)\.jpg)"
)
_SEXES = ("Male", "Female", "Unknown")
_LABELS = {"1.0": 1.0, "0.0": 0.0, "-1.0": UNCERTAIN, "": math.nan}
_LABELS |= {"1": 1.0, "0": 0.0, "-1": UNCERTAIN}  # a table saved again by other software


def load_chexpert(
    root: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] = 320,
    views: Views = "frontal",
    labels: Sequence[str] = COMPETITION_LABELS,
    not_mentioned: NotMentioned = "zeros",
    valid_part: ValidPart = "validation",
) -> Task:
    """CheXpert with uncertain labels left as -1, for a stage's policy (`data.uncertain`) to decide.

    root: the edition's folder, which holds train.csv. size: of the grey images, which are decoded when asked for;
    `data.packed.sets.pack` decodes them once. views: the frontal ones, as in LibAUC's loader, or all. labels: any of
    the 14 observations; one alone makes a binary task. not_mentioned: what an empty cell of train.csv becomes, 0
    (`zeros`, as in LibAUC) or a missing label (`ignore`). valid_part: the part that the 234 images of valid.csv form;
    as `test`, hold a validation part out of train by patients (`data.splits`). Groups are patients; metadata: age and
    sex.
    """
    if views not in get_args(Views):
        raise ValueError(f"views must be 'frontal' or 'all', not {views!r}.")
    if valid_part not in get_args(ValidPart):
        raise ValueError(f"valid_part must be 'validation' or 'test', not {valid_part!r}.")
    names = tuple(labels)
    if not names or isinstance(labels, str) or not set(names) <= set(OBSERVATIONS):
        raise ValueError(f"labels must be among CheXpert's observations: {', '.join(OBSERVATIONS)}.")
    folder = Path(os.path.abspath(root))
    _require_edition(folder)
    train, valid = (_read_table(folder, part, names, views) for part in ("train", "valid"))
    values = np.concatenate([resolve(train.labels, "keep", not_mentioned=not_mentioned), valid.labels])
    files = train.files + valid.files
    groups = np.array(train.patients + valid.patients)
    rows = np.arange(len(files))
    parts = {"train": rows[: len(train.files)], valid_part: rows[len(train.files) :]}
    one_part_each(groups, parts, where=str(folder), what="patient")
    seen = "frontal views" if views == "frontal" else "all views"
    return Task(
        name=f"{folder.name}, {seen}",
        kind="binary" if len(names) == 1 else "multilabel",
        source=files_at([os.path.join(folder, name) for name in files], size=size, channels=1, where=str(folder)),
        labels=values[:, 0] if len(names) == 1 else values,
        label_names=names,
        parts=parts,
        groups=groups,
        metadata={
            "age": np.concatenate([train.ages, valid.ages]),
            "sex": np.concatenate([train.sexes, valid.sexes]),
        },
        ids=np.array(files),
    )


def _require_edition(folder: Path) -> None:
    """ValueError for a folder that is not the edition's own, with the one that is meant where it can be seen."""
    if (folder / "train.csv").is_file():
        return
    inside = min(folder.glob("CheXpert-v1.0*/train.csv"), default=None)
    hint = "the unpacked folder, which holds train.csv, valid.csv, train/ and valid/"
    raise ValueError(f"{folder} has no train.csv. Name {hint if inside is None else inside.parent}.")


@dataclass(frozen=True, kw_only=True)
class _PartTable:
    """One of the two tables, less the views that are not wanted."""

    files: list[str]
    patients: list[str]
    labels: Floats  # (N, L)
    ages: Array
    sexes: Array


def _read_table(folder: Path, part: str, names: Sequence[str], views: Views) -> _PartTable:
    table = read_columns(folder / f"{part}.csv", ["Path", "Sex", "Age", "Frontal/Lateral", *names])
    table.require_distinct("Path")
    table.one_of("Frontal/Lateral", ("Frontal", "Lateral"))
    paths = table.matching("Path", _PATH)
    table.require([match[2] == part for match in paths], "Path", f"{part}.csv may only list images in {part}/")
    agree = [match[4] == cell.lower() for match, cell in zip(paths, table["Frontal/Lateral"], strict=True)]
    table.require(agree, "Path", "the file name and the column Frontal/Lateral disagree")
    keep = np.array([views == "all" or match[4] == "frontal" for match in paths], dtype=bool)
    if not keep.any():
        raise ValueError(f"{table.path} has no frontal view. Use views='all'.")
    table = table.select(keep)
    kept = [match for match, wanted in zip(paths, keep, strict=True) if wanted]
    # valid.csv is the radiologists' consensus: nothing in it is uncertain or empty.
    meaning = {cell: value for cell, value in _LABELS.items() if part == "train" or value >= 0}
    return _PartTable(
        files=[match[1] for match in kept],
        patients=[match[3] for match in kept],
        labels=np.stack([table.values(name, meaning) for name in names], axis=1),
        ages=table.ages("Age"),
        sexes=table.one_of("Sex", _SEXES),
    )
