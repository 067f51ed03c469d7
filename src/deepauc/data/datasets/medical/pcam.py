"""PatchCamelyon (Veeling et al., MICCAI 2018): 96 x 96 RGB patches of lymph nodes, from its h5 files.

Six files `camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5`, unpacked, and optionally three `..._meta.csv`
whose column `wsi` names the slide of each patch. Images are read from the disk when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.datasets.medical.csv_columns import one_part_each, read_columns
from deepauc.data.datasets.medical.stored_images import StoredImages
from deepauc.data.imbalance import imbalanced
from deepauc.data.npy import one_line
from deepauc.data.task import Array, Task

SIDE = 96
PARTS = ("train", "valid", "test")
_STEM = "camelyonpatch_level_2_split"


def load_pcam(root: str | os.PathLike[str], *, imratio: float | None = 0.01, seed: int = 0) -> Task:
    """Tumour in the centre against none. Train and valid together are the training part, test stays as it is (D8).

    root: the folder of the h5 files. imratio: drop positives of train + valid, drawn by seed, until #pos / #all is
    this; the dropped ones are in no part and not in the task; None keeps all. Groups are slides where all
    three meta files are there. Needs h5py.
    """
    folder = Path(os.path.abspath(root))
    images = H5Images([_file(folder, part, "x") for part in PARTS])
    labels = [_read_labels(_file(folder, part, "y")) for part in PARTS]
    for part, count, own in zip(PARTS, images.counts, labels, strict=True):
        if count != len(own):
            raise ValueError(f"{folder}: {part} has {count:,} images but {len(own):,} labels.")
    rows, train = np.arange(len(images)), sum(images.counts[:2])
    task = Task(
        name="PatchCamelyon",
        kind="binary",
        source=images,
        labels=np.concatenate(labels),
        label_names=("tumour",),
        parts={"train": rows[:train], "test": rows[train:]},
        groups=_slides(folder, images.counts),
        ids=np.array(
            [f"{part}/{row}" for part, count in zip(PARTS, images.counts, strict=True) for row in range(count)]
        ),
    )
    if task.groups is not None:
        one_part_each(task.groups, task.parts, where=str(folder), what="slide")
    if imratio is None:
        return task
    made = imbalanced(task, imratio=imratio, seed=seed)
    return made.subset(np.sort(np.concatenate(list(made.parts.values()))))  # to be packed without the dropped ones


class H5Images(StoredImages):
    """The datasets `x` of several h5 files, one after the other; (96, 96, 3) uint8. Each process opens its own."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._open: dict[tuple[int, int], Any] = {}
        super().__init__((SIDE, SIDE, 3), [self._dataset(number).shape[0] for number in range(len(self.paths))])

    def read(self, number: int, low: int, high: int) -> npt.NDArray[np.uint8]:
        try:
            return np.ascontiguousarray(self._dataset(number)[low:high])
        except OSError as error:
            raise ValueError(f"{self.paths[number]} cannot be read: {one_line(error)}. Download it again.") from None

    def _dataset(self, number: int) -> Any:
        key = (os.getpid(), number)  # an h5 handle must not be used across a fork
        if key not in self._open:
            self._open[key] = open_dataset(self.paths[number], "x", (SIDE, SIDE, 3))
        return self._open[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def open_dataset(path: Path, name: str, shape: tuple[int, ...]) -> Any:
    """A uint8 dataset (N, *shape) of an h5 file, nothing of it read yet."""
    try:
        import h5py  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise ValueError("reading PatchCamelyon needs h5py: pip install 'deepauc[pcam]'") from None
    try:
        file = h5py.File(path, "r")
        dataset = file[name]
        found = (tuple(dataset.shape[1:]), np.dtype(dataset.dtype))
    except (OSError, KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or not an h5 file with a dataset {name!r}: {one_line(error)}.") from None
    if found != (shape, np.uint8):
        raise ValueError(f"{path}: {name!r} holds {found[1]} of shape (N, {found[0]}), not uint8 (N, {shape}).")
    return dataset


def _read_labels(path: Path) -> Array:
    try:
        labels = np.asarray(open_dataset(path, "y", (1, 1, 1))[:]).ravel()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}. Download it again.") from None
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"{path} holds labels other than 0 and 1. Download it again.")
    return labels


def _file(folder: Path, part: str, what: str) -> Path:
    path = folder / f"{_STEM}_{part}_{what}.h5"
    if path.is_file():
        return path
    remedy = "Unpack it: gunzip." if path.with_suffix(".h5.gz").is_file() else "Download all six files."
    raise ValueError(f"{path} does not exist. {remedy}")


def _slides(folder: Path, counts: Sequence[int]) -> Array | None:
    paths = [folder / f"{_STEM}_{part}_meta.csv" for part in PARTS]
    if not all(path.is_file() for path in paths):
        return None
    slides = []
    for path, count in zip(paths, counts, strict=True):
        table = read_columns(path, ["wsi"])
        table.require([bool(cell) for cell in table["wsi"]], "wsi", "the cell is empty")
        if len(table) != count:
            raise ValueError(f"{path} has {len(table):,} rows for {count:,} images. Download it again.")
        slides.append(table.text("wsi"))
    return np.concatenate(slides)
