"""Tasks of the medical studies: the real downloads and their stand-ins, by training set or by patient fold.

Where a task is cut into folds, a study's seed is the number of the fold that is the test part; the cut is the same for
all. Otherwise the seed is that of the network, and of the positives that are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepauc.data.datasets.benchmarks.load import data_root
from deepauc.data.datasets.medical.ddsm import load_ddsm
from deepauc.data.datasets.medical.ham10000 import load_ham10000_sheets
from deepauc.data.datasets.medical.medmnist import load_medmnist
from deepauc.data.datasets.medical.melanoma import OutsideImages, load_isic2020_table, load_melanoma, outside_rows
from deepauc.data.datasets.medical.pathmnist import load_pathmnist_subset
from deepauc.data.datasets.medical.pcam import load_pcam
from deepauc.data.imbalance import imbalance_task, tuning_task
from deepauc.data.table.header import table_header
from deepauc.data.task import ArrayInputs, Indices, Task
from deepauc.studies.decoded import decoded_once
from deepauc.studies.sources import Place, TaskSource, fold_task
from deepauc.training.plain import valid_name
from deepauc.training.prepare.encoded_metadata import metadata_task
from deepauc.training.run.run import Run
from experiments.clinical.scores import kept_scores

FOLDS = 5
SPLIT_SEED = 0
TTA = 30  # Table 4
_TEST_2018 = "ISIC_2018/"


@dataclass(frozen=True, kw_only=True)
class MedicalSource(TaskSource):
    """A data set by name (`DATASETS`), as images or as encoded patient metadata.

    size: side of the images; 0 is the file's own, MedMNIST's may have a border. tta: augmented copies whose mean score
    of each test image is kept beside the plain score; 0 for none. test_imratio: for DDSM+, positives of the test part
    are dropped to this.
    """

    dataset: str
    size: int = 0
    metadata: bool = False
    tta: int = TTA
    test_imratio: float = 0.0

    @property
    def name(self) -> str:
        side = f", {self.size} px" if self.size else ""
        return f"{self.dataset}{side}{', metadata' if self.metadata else ''}"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        loader = DATASETS[valid_name(self.dataset, list(DATASETS), "medical data set")]
        task = loader(self, seed, tuning, place)
        return metadata_task(task)[0] if self.metadata else task

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        """Test scores, plain and with test-time augmentation: intervals, ensembles and fusion are made of them."""
        return kept_scores(run, task, tta=0 if self.metadata else self.tta, device=device)


def root_of(place: Place) -> Path:
    """The folder of the data; an error where nobody has named it."""
    root = data_root(place.data)
    if root is None:
        raise ValueError("the folder of the images is not known: pass --data DIR, or set DEEPAUC_DATA.")
    return root


def _medmnist(positive: int) -> Callable[[MedicalSource, int, bool, Place], Task]:
    """Tuned on the official validation part, then refitted on train and validation together."""

    def load(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
        task = _read_medmnist(root_of(place) / f"{source.dataset}.npz", positive, source.size)
        return task if tuning else joined(task)

    return load


def joined(task: Task) -> Task:
    """The validation part as part of train."""
    train = np.sort(np.concatenate([task.part("train"), task.part("validation")]))
    return task.with_parts({"train": train, "test": task.part("test")})


def _pathmnist(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
    """Tumour at 1 % in train, positives dropped by seed; validation as it is while tuning, unused afterwards."""
    task = _read_pathmnist(root_of(place) / "pathmnist_subset.npz", seed, source.size)
    return task if tuning else task.with_parts({part: task.part(part) for part in ("train", "test")})


def _ham10000(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
    """Five folds of the 5,984 images with metadata, by lesion; the 1,511 of ISIC 2018 are outside data: train only."""
    task = _read_ham10000(root_of(place) / "ham10000_64.npz", source.size or 64, not source.metadata)
    assert task.ids is not None
    outside = np.flatnonzero(np.char.startswith(task.ids, _TEST_2018))
    return _fold(task, seed, tuning, outside)


def _isic2020(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
    """Five patient-disjoint folds of the true table, age, sex and site as features."""
    return _fold(_read_isic2020(root_of(place) / "isic2020_train_metadata.csv.gz"), seed, tuning, ())


def _melanoma(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
    """Five patient-disjoint folds of the competition's training images, outside collections in train only.

    ROOT/jpeg-melanoma-NxN where it is there, else ROOT itself, resized. Outside: ROOT/outside/NAME/train.csv with the
    columns image_name and target (or image and MEL) beside ROOT/outside/NAME/train/<image>.jpg.
    """
    task = _read_melanoma(root_of(place), source.size or 384, place)
    rows = outside_rows(task)
    return _fold(task, seed, tuning, rows[np.isin(rows, task.part("train"))])


def _ddsm(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
    """Train whole, a tenth of it for tuning; the seed is the network's alone, the test part is the same for all."""
    task = _read_ddsm(root_of(place), source.size or 224, source.test_imratio or None, place)
    return tuning_task(task, seed=seed) if tuning else task


def _pcam(source: MedicalSource, seed: int, tuning: bool, place: Place) -> Task:
    """Train and valid together at 1 %, positives dropped by seed (D8)."""
    task = decoded_once(load_pcam(root_of(place), imratio=0.01, seed=seed), place)
    return tuning_task(task, seed=seed) if tuning else task


DATASETS: Mapping[str, Callable[[MedicalSource, int, bool, Place], Task]] = {
    "breastmnist": _medmnist(positive=0),
    "pneumoniamnist": _medmnist(positive=0),
    "pathmnist": _pathmnist,
    "ham10000": _ham10000,
    "isic2020": _isic2020,
    "melanoma": _melanoma,
    "ddsm": _ddsm,
    "pcam": _pcam,
}


def _fold(task: Task, fold: int, tuning: bool, outside: Indices | tuple[()]) -> Task:
    divided = fold_task(task, fold=fold, folds=FOLDS, split_seed=SPLIT_SEED, outside=outside, tuning=tuning)
    return replace(divided, name=f"{task.name}, fold {fold + 1} of {FOLDS}")


@cache
def _read_medmnist(path: Path, positive: int, size: int) -> Task:
    return _bordered(load_medmnist(path, positive=positive), size)


@cache
def _path_images(path: Path, size: int) -> Task:
    return _bordered(load_pathmnist_subset(path), size)


def _read_pathmnist(path: Path, seed: int, size: int) -> Task:
    task = _path_images(path, size)  # read once: runs of several seeds then share the images on the device
    return imbalance_task(task, imratio=0.01, seed=seed).task(task)


def _bordered(task: Task, size: int) -> Task:
    """The images in the middle of larger ones, their outermost pixels repeated; 0 leaves them as they are.

    DenseNet121 takes no image of 28 pixels, the smallest is 29.
    """
    side = task.source.shape[0]
    if size in (0, side):
        return task
    if size < side:
        raise ValueError(f"{task.name} has {side} pixels, or more with a border, not {size}.")
    before = (size - side) // 2
    border = (before, size - side - before)
    images = np.pad(task.inputs(np.arange(len(task))), ((0, 0), border, border, (0, 0)), mode="edge")
    return replace(task, source=ArrayInputs(images))


@cache
def _ham_sheets(path: Path) -> Task:
    """All images, once decoded; the ids of those of 2018 begin with their set's name, as outside images do."""
    task = load_ham10000_sheets(path, division="none")
    assert task.ids is not None
    assert task.groups is not None
    unnamed = task.groups == task.ids  # the images of 2018: their lesion is not named, so each is its own group
    return replace(task, ids=np.where(unnamed, np.char.add(_TEST_2018, task.ids), task.ids))


@cache
def _read_ham10000(path: Path, size: int, with_2018: bool) -> Task:
    task = _ham_sheets(path)
    assert task.ids is not None
    if not with_2018:
        return task.subset(np.flatnonzero(~np.char.startswith(task.ids, _TEST_2018)))
    if size not in (64, 32):
        raise ValueError(f"HAM10000 has 64 pixels, or 32 by averaging, not {size}.")
    if size == 64:
        return task
    blocks = task.inputs(np.arange(len(task))).reshape(-1, 32, 2, 32, 2, 3).astype(np.uint16).sum(axis=(2, 4))
    return replace(task, name="HAM10000, 32 px", source=ArrayInputs(((blocks + 2) // 4).astype(np.uint8)))


_read_isic2020 = cache(load_isic2020_table)


@cache
def _read_melanoma(root: Path, size: int, place: Place) -> Task:
    resized = root / f"jpeg-melanoma-{size}x{size}"
    outside = [_outside(folder) for folder in sorted(root.glob("outside/[!.]*")) if folder.is_dir()]
    if resized.is_dir():
        return decoded_once(load_melanoma(resized, size=size, outside=outside), place)
    if not any((root / name).is_dir() for name in ("jpeg/train", "train")):
        raise ValueError(
            f"{root} has no images of {size} pixels: neither {resized.name}/train/ nor the competition's jpeg/train/."
        )
    # Resized editions leave duplicates out: with one beside them, the competition's files have the same rows as it.
    table = min(root.glob("jpeg-melanoma-*/train.csv"), default=None)
    return decoded_once(load_melanoma(root, size=size, outside=outside, table=table), place)


def _outside(folder: Path) -> OutsideImages:
    table = folder / "train.csv"
    if not table.is_file():
        raise ValueError(
            f"{folder} has no train.csv, a table with the columns image_name and target, or image and MEL. Give its "
            "table that name, or take the folder away."
        )
    isic = {"image", "MEL"} <= set(table_header(table))
    columns = {"image_column": "image", "target_column": "MEL"} if isic else {}
    return OutsideImages(name=folder.name, table=table, folder=folder / "train", **columns)


@cache
def _read_ddsm(root: Path, size: int, test_imratio: float | None, place: Place) -> Task:
    return decoded_once(load_ddsm(root, size=size, test_imratio=test_imratio), place)
