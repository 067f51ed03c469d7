"""MedMNIST's own .npz files (Yang et al., Scientific Data 10:41, 2023), with their official parts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from deepauc.data.npy import read_npz
from deepauc.data.task import ArrayInputs, Task

_PARTS = {"train": "train", "val": "validation", "test": "test"}


def load_medmnist(path: str | os.PathLike[str], *, positive: int) -> Task:
    """One class against the rest, as a binary task.

    positive: the class number. In PneumoniaMNIST 0 is normal (the minority) and 1 pneumonia; in BreastMNIST 0 is
    malignant (the minority) and 1 normal or benign.
    """
    arrays = read_npz(path)
    images, classes, ids, parts, start = [], [], [], {}, 0
    for key, part in _PARTS.items():
        try:
            pictures, labels = arrays[f"{key}_images"], arrays[f"{key}_labels"]
        except KeyError as error:
            raise ValueError(f"{path} is no MedMNIST file: the array {error} is missing.") from None
        if pictures.dtype != np.uint8 or pictures.ndim not in (3, 4) or labels.dtype.kind not in "iu":
            raise ValueError(f"{path} is no MedMNIST file: its {key} images or labels are of another kind.")
        if labels.shape not in ((len(pictures), 1), (len(pictures),)):
            raise ValueError(
                f"{path}: labels of shape {labels.shape} for {len(pictures)} images. One class number an image is read "
                "here; files with several labels an image are not."
            )
        images.append(pictures)
        classes.append(labels.ravel().astype(np.int64))
        ids += [f"{part}/{row}" for row in range(len(pictures))]
        parts[part] = np.arange(start, start + len(pictures))
        start += len(pictures)
    if len({one.shape[1:] for one in images}) != 1:
        raise ValueError(f"{path} is no MedMNIST file: its parts hold images of several sizes.")
    together = np.concatenate(classes)
    there = np.unique(together).tolist()
    if positive not in there or len(there) < 2:
        raise ValueError(f"{path} has the classes {there[:20]}: positive must be one of several, not {positive}.")
    return Task(
        name=Path(path).stem,
        kind="binary",
        source=ArrayInputs(np.concatenate(images)),
        labels=together == positive,
        label_names=(f"class {positive}",),
        parts=parts,
        ids=np.array(ids),
    )
