"""STL-10's labelled images, from sheet files (lossy) or in the official binary layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, DecodedSet, joined, require_counts
from deepauc.data.datasets.sheets import read_sheets


def read_stl10_files(root: Path) -> DecodedSet:
    """The two sheet files, in the official order."""
    benchmark = BENCHMARKS["S10"]
    parts = []
    for file, part, count in zip(benchmark.files, ("train", "test"), (benchmark.train, benchmark.test), strict=True):
        sheets = read_sheets(root / file)
        classes, numbers = sheets.column("labels").astype(np.int64).ravel(), sheets.column("ids")
        if sheets.images.shape[1:] != benchmark.shape:
            raise ValueError(f"{root / file} holds images of shape {sheets.images.shape[1:]}, not {benchmark.shape}.")
        require_counts(classes, [count // 10] * 10, where=str(root / file))
        parts.append((sheets.images, classes, [f"{part}/{number}" for number in numbers]))
    return joined(parts[0], parts[1], lossy=True)


def read_stl10_public(root: Path, *, download: bool) -> DecodedSet:
    """`stl10_binary` under root; `download` fetches it (2.6 GB, most of it unlabelled images that are not read)."""
    benchmark = BENCHMARKS["S10"]
    folder = root / benchmark.marks[0]
    if download and not (folder / "test_y.bin").is_file():
        from torchvision import datasets

        datasets.STL10(str(root), split="test", download=True)
    parts = []
    for part, count in (("train", benchmark.train), ("test", benchmark.test)):
        images, classes = read_stl10_part(folder / f"{part}_X.bin", folder / f"{part}_y.bin", count=count)
        require_counts(classes, [count // 10] * 10, where=str(folder / f"{part}_y.bin"))
        parts.append((images, classes, [f"{part}/{row}" for row in range(count)]))
    return joined(parts[0], parts[1])


def read_stl10_part(
    images_path: Path, labels_path: Path, *, count: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (count, 96, 96, 3) and classes 0 to 9.

    On disk an image is its red, green and blue plane, each column by column; a label is one byte, 1 to 10.
    """
    height, width, channels = BENCHMARKS["S10"].shape
    for path, size in ((images_path, count * height * width * channels), (labels_path, count)):
        if not path.is_file():
            raise ValueError(f"{path} does not exist. S10 needs STL-10's binary release; download=True fetches it.")
        if path.stat().st_size != size:
            raise ValueError(f"{path} has {path.stat().st_size} bytes instead of {size}. Download it again.")
    labels = np.fromfile(labels_path, dtype=np.uint8)
    if labels.min() < 1 or labels.max() > 10:
        raise ValueError(f"{labels_path} holds labels outside 1 to 10. Download it again.")
    planes = np.memmap(images_path, dtype=np.uint8, mode="r", shape=(count, channels, width, height))
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1)), labels.astype(np.int64) - 1
