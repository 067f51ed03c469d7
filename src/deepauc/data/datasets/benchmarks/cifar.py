"""CIFAR-10 and CIFAR-100, from sheet files or as torchvision downloads them: the same tensors either way."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, DecodedSet, joined, require_counts
from deepauc.data.datasets.sheets import read_sheets

Images = npt.NDArray[np.uint8]
Classes = npt.NDArray[np.int64]

C100_POOL = 8_000
_C100_HALF = 50
# SHA-256 of the positions (little-endian uint16) in the official training file that are kept.
C100_INDEX_SHA256 = "88e12b2fce64a090548e67058a7369f927104888369dd8976245d4bc38deec4a"


def read_cifar10_files(root: Path) -> DecodedSet:
    """The five training files and the test file, in the official order."""
    train, test = _read_files(root, "C10")
    return _cifar10(train[:2], test[:2], where=str(root))


def read_cifar10_public(root: Path, *, download: bool) -> DecodedSet:
    """`cifar-10-batches-py`, whose checksums torchvision verifies before it reads."""
    train, test = (_read_public(root, "CIFAR10", train=part, download=download) for part in (True, False))
    return _cifar10(train, test, where=str(root))


def _cifar10(train: tuple[Images, Classes], test: tuple[Images, Classes], *, where: str) -> DecodedSet:
    require_counts(train[1], [5_000] * 10, where=where)
    require_counts(test[1], [1_000] * 10, where=where)
    ids = [[f"{part}/{row}" for row in range(count)] for part, count in (("train", 50_000), ("test", 10_000))]
    return joined((*train, ids[0]), (*test, ids[1]))


def read_cifar100_files(root: Path) -> DecodedSet:
    """The four training files, which hold the pool, and the test file."""
    train, test = _read_files(root, "C100")
    positions = np.concatenate([sheets.column("index") for sheets in train[2]])
    _check_positions(positions, where=str(root))
    return _cifar100(train[:2], test[:2], positions, where=str(root))


def read_cifar100_public(root: Path, *, download: bool, pool: bool) -> DecodedSet:
    """`cifar-100-python`. With `pool`, only the rows that the sheet files hold, so both draw the same training sets."""
    (images, classes), test = (_read_public(root, "CIFAR100", train=part, download=download) for part in (True, False))
    require_counts(classes, [500] * 100, where=str(root))
    positions = pool_positions(classes) if pool else np.arange(len(classes))
    return _cifar100((images[positions], classes[positions]), test, positions, where=str(root), pool=pool)


def pool_positions(classes: Classes) -> npt.NDArray[np.int64]:
    """Which of the 50,000 official training images are used: the classes 0 to 49, and 8,000 of the others."""
    others = np.random.default_rng(100).permutation(np.flatnonzero(classes >= _C100_HALF))[:C100_POOL]
    positions = np.sort(np.concatenate([np.flatnonzero(classes < _C100_HALF), others]))
    # NumPy does not promise a generator's stream for ever, so what came out is held against what is recorded.
    _check_positions(positions, where="the pool drawn by this version of NumPy")
    return positions


def _check_positions(positions: npt.NDArray[Any], *, where: str) -> None:
    if hashlib.sha256(positions.astype("<u2").tobytes()).hexdigest() != C100_INDEX_SHA256:
        raise ValueError(f"{where} is not the recorded pool of CIFAR-100's positives: results would differ.")


def _cifar100(
    train: tuple[Images, Classes],
    test: tuple[Images, Classes],
    positions: npt.NDArray[Any],
    *,
    where: str,
    pool: bool = True,
) -> DecodedSet:
    if pool:
        require_counts(train[1][train[1] < _C100_HALF], [500] * _C100_HALF, where=where)
        require_counts((train[1] >= _C100_HALF).astype(np.int64), [25_000, C100_POOL], where=where)
    require_counts(test[1], [100] * 100, where=where)
    train_ids = [f"train/{position}" for position in positions]
    return joined((*train, train_ids), (*test, [f"test/{row}" for row in range(len(test[0]))]))


def _read_files(root: Path, name: str) -> tuple[tuple[Images, Classes, list[Any]], tuple[Images, Classes, list[Any]]]:
    benchmark = BENCHMARKS[name]
    sheets = [read_sheets(root / file) for file in benchmark.files]
    for file, one in zip(benchmark.files, sheets, strict=True):
        if one.images.shape[1:] != benchmark.shape or one.column("labels").dtype.kind not in "iu":
            raise ValueError(f"{root / file} holds images of shape {one.images.shape[1:]}, not {benchmark.shape}.")

    def together(some: list[Any]) -> tuple[Images, Classes, list[Any]]:
        classes = np.concatenate([one.column("labels").ravel() for one in some]).astype(np.int64)
        return np.concatenate([one.images for one in some]), classes, some

    return together(sheets[:-1]), together(sheets[-1:])


def _read_public(root: Path, name: str, *, train: bool, download: bool) -> tuple[Images, Classes]:
    from torchvision import datasets

    try:
        found = getattr(datasets, name)(str(root), train=train, download=download)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"torchvision finds no complete {name} in {root} ({error}). Download it again.") from None
    return np.ascontiguousarray(found.data), np.asarray(found.targets, dtype=np.int64)
