"""A benchmark from its sheet files: the training files, then the test file, in the official order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.datasets.benchmarks.descriptions import Benchmark, Part, require_pool
from deepauc.data.datasets.sheets import Sheets, read_sheets


def read_sheet_files(benchmark: Benchmark, root: Path) -> tuple[Part, Part]:
    """Training and test part; what the lossy ones hold (C2, S10) differs from the public download."""
    sheets = [read_sheets(root / file) for file in benchmark.files]
    for file, one in zip(benchmark.files, sheets, strict=True):
        if one.images.shape[1:] != benchmark.shape or one.column("labels").dtype.kind not in "iu":
            raise ValueError(f"{root / file} holds images of shape {one.images.shape[1:]}, not {benchmark.shape}.")
    return _part(benchmark.name, "train", sheets[:-1], root), _part(benchmark.name, "test", sheets[-1:], root)


def _part(name: str, part: str, sheets: list[Sheets], root: Path) -> Part:
    def column(what: str) -> Any:
        return np.concatenate([one.column(what).ravel() for one in sheets])

    images, classes = np.concatenate([one.images for one in sheets]), column("labels").astype(np.int64)
    if name == "C2":
        animals = np.where(classes == 0, "cat", "dog")
        ids = [f"{animal}.{number}.jpg" for animal, number in zip(animals, column("ids"), strict=True)]
        return images, classes, ids
    numbers = range(len(images))
    if name == "S10":
        numbers = column("ids")
    elif name == "C100" and part == "train":
        numbers = column("index")
        require_pool(numbers, where=str(root))
    return images, classes, [f"{part}/{number}" for number in numbers]
