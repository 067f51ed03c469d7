"""The subset of PathMNIST that stands in for PatchCamelyon: 28 x 28 RGB patches of colorectal tissue, 9 classes."""

from __future__ import annotations

import os

import numpy as np

from deepauc.data.datasets.sheets import read_sheets
from deepauc.data.imbalance import imbalanced
from deepauc.data.task import ArrayInputs, Task

CLASSES = (
    *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa"),
    *("cancer-associated stroma", "tumour"),
)
TUMOUR = 8  # colorectal adenocarcinoma epithelium
_PARTS = {"train": "train", "val": "validation", "test": "test"}


def load_pathmnist_subset(
    path: str | os.PathLike[str], *, positive: int = TUMOUR, imratio: float | None = None, seed: int = 0
) -> Task:
    """One class, the tumour, against the rest; the test part comes from another clinical centre.

    imratio: drop positives of the training part, drawn by seed, until #pos / #all is this (D1); validation and
    test stay as they are.
    """
    if positive not in range(len(CLASSES)):
        raise ValueError(f"positive must be a class number from 0 to {len(CLASSES) - 1}, not {positive}.")
    sheets = read_sheets(path)
    classes, split, index = sheets.column("labels").ravel(), sheets.column("split"), sheets.column("index")
    if classes.shape != split.shape or classes.dtype.kind not in "iu" or not np.isin(classes, range(9)).all():
        raise ValueError(f"{path} does not hold the 9 classes of PathMNIST.")
    if not np.isin(split, list(_PARTS)).all():
        raise ValueError(f"{path} must hold only the parts {', '.join(_PARTS)}.")
    task = Task(
        name="PathMNIST subset",
        kind="binary",
        source=ArrayInputs(sheets.images),
        labels=classes == positive,
        label_names=(CLASSES[positive],),
        parts={part: np.flatnonzero(split == name) for name, part in _PARTS.items()},
        ids=np.array([f"{_PARTS[name]}/{place}" for name, place in zip(split.tolist(), index.tolist(), strict=True)]),
    )
    return task if imratio is None else imbalanced(task, imratio=imratio, seed=seed)
