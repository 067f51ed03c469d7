"""The subset of PathMNIST that stands in for PatchCamelyon: 28 x 28 RGB patches of colorectal tissue, 9 classes."""

from __future__ import annotations

import os

import numpy as np

from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.task import ArrayInputs, Task

TUMOUR = 8  # of 9 classes: colorectal adenocarcinoma epithelium
_PARTS = {"train": "train", "val": "validation", "test": "test"}


def load_pathmnist_subset(path: str | os.PathLike[str]) -> Task:
    """The tumour against the other classes; the test part comes from another clinical centre."""
    sheets = read_sheets(path)
    classes, split, index = sheets.column("labels").ravel(), sheets.column("split"), sheets.column("index")
    if classes.shape != split.shape or classes.dtype.kind not in "iu" or not np.isin(classes, range(9)).all():
        raise ValueError(f"{path} does not hold the 9 classes of PathMNIST.")
    if not np.isin(split, list(_PARTS)).all():
        raise ValueError(f"{path} must hold only the parts {', '.join(_PARTS)}.")
    return Task(
        name="PathMNIST subset",
        kind="binary",
        source=ArrayInputs(sheets.images),
        labels=classes == TUMOUR,
        label_names=("tumour",),
        parts={part: np.flatnonzero(split == name) for name, part in _PARTS.items()},
        ids=np.array([f"{_PARTS[name]}/{place}" for name, place in zip(split.tolist(), index.tolist(), strict=True)]),
    )
