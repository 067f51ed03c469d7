"""MedMNIST's own .npz files (Yang et al., Scientific Data 10:41, 2023), with their official parts; any 2-D one."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from deepauc.data.datasets.medical.nih import FINDINGS
from deepauc.data.datasets.medical.zipped_images import ZippedImages
from deepauc.data.npy import MAX_BYTES, read_npz
from deepauc.data.task import Array, ArrayInputs, Inputs, Task

_PARTS = {"train": "train", "val": "validation", "test": "test"}
_KEYS = tuple(f"{part}_{what}" for part in _PARTS for what in ("images", "labels"))


def load_medmnist(path: str | os.PathLike[str], *, positive: int | None = None, max_bytes: int = MAX_BYTES) -> Task:
    """One class against the rest, as a binary task; a file with several labels per image as it is, or one of them.

    positive: the class number. In PneumoniaMNIST 0 is normal (the minority) and 1 pneumonia; in BreastMNIST 0 is
    malignant (the minority) and 1 normal or benign. In ChestMNIST, which has 14 labels per image, it is the number of
    a label, and None takes all 14. max_bytes: a file that takes more, such as the 224 px edition of a large set, is
    not read into memory; pack it (`data.packed.sets.pack`) before training.
    """
    sizes = _sizes(path)
    if sum(sizes.values()) <= max_bytes:
        arrays = read_npz(path, max_bytes=max_bytes)
        _require_keys(arrays, path)
        source: Inputs = ArrayInputs(np.concatenate(_pictures(arrays, path)))
        counts = tuple(len(arrays[f"{part}_images"]) for part in _PARTS)
    else:
        _require_keys(sizes, path)
        arrays = read_npz(path, names=[key for key in _KEYS if key.endswith("_labels")])
        zipped = ZippedImages(path, [f"{part}_images" for part in _PARTS])
        source, counts = zipped, zipped.counts
    if source.shape[2] not in (1, 3):
        raise ValueError(f"{path} holds 3-D volumes (shape {source.shape}). Use one of MedMNIST's 2-D files.")
    values, names = _labels([arrays[f"{part}_labels"] for part in _PARTS], counts, positive, path)
    ends = np.cumsum(counts)
    return Task(
        name=Path(path).stem,
        kind="binary" if values.ndim == 1 else "multilabel",
        source=source,
        labels=values,
        label_names=names,
        parts={
            part: np.arange(end - count, end) for part, end, count in zip(_PARTS.values(), ends, counts, strict=True)
        },
        ids=np.array(
            [f"{part}/{row}" for part, count in zip(_PARTS.values(), counts, strict=True) for row in range(count)]
        ),
    )


def _labels(
    by_part: list[Array], counts: tuple[int, ...], positive: int | None, path: str | os.PathLike[str]
) -> tuple[Array, tuple[str, ...]]:
    for labels, count in zip(by_part, counts, strict=True):
        if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2) or len(labels) != count:
            raise ValueError(
                f"{path} is not a MedMNIST file: it has {count} images but labels {labels.shape}, {labels.dtype}."
            )
    columns = {1 if labels.ndim == 1 else labels.shape[1] for labels in by_part}
    if len(columns) != 1:
        raise ValueError(f"{path} is not a MedMNIST file: only some of its parts have several labels per image.")
    (count,) = columns
    together = np.concatenate([labels.reshape(len(labels), count).astype(np.int64) for labels in by_part])
    if count == 1:
        there = np.unique(together).tolist()
        if positive is None or positive not in there or len(there) < 2:
            raise ValueError(f"{path} has the classes {there[:20]}: positive must be one of them, not {positive}.")
        return together[:, 0] == positive, (f"class {positive}",)
    if not np.isin(together, (0, 1)).all():
        raise ValueError(f"{path} has {count} labels per image, and they are not all 0 or 1.")
    chest = Path(path).stem.startswith("chestmnist") and count == len(FINDINGS)
    names = FINDINGS if chest else tuple(f"label {number}" for number in range(count))
    if positive is None:
        return together, names
    if positive not in range(count):
        raise ValueError(f"{path} has {count} labels per image: positive must be 0 to {count - 1}, not {positive}.")
    return together[:, positive], (names[positive],)


def _pictures(arrays: dict[str, Array], path: str | os.PathLike[str]) -> list[Array]:
    pictures = [arrays[f"{part}_images"] for part in _PARTS]
    if any(one.dtype != np.uint8 or one.ndim not in (3, 4) for one in pictures):
        raise ValueError(f"{path} is not a MedMNIST file: its images must be uint8, grey or colour.")
    if len({one.shape[1:] for one in pictures}) != 1:
        raise ValueError(f"{path} is not a MedMNIST file: its parts hold images of several sizes.")
    return pictures


def _require_keys(there: Collection[str], path: str | os.PathLike[str]) -> None:
    if missing := [key for key in _KEYS if key not in there]:
        raise ValueError(f"{path} is not a MedMNIST file: the array {missing[0]!r} is missing.")


def _sizes(path: str | os.PathLike[str]) -> dict[str, int]:
    """What the file's arrays take in memory, by name; empty where it is no zip file, which `read_npz` then says."""
    if not os.path.isfile(path):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            return {member.filename.removesuffix(".npy"): member.file_size for member in archive.infolist()}
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return {}
