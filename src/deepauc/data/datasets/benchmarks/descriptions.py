"""The four benchmarks of the paper's sec. 4.1: what each holds, where it comes from, what to know about it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]  # (N, H, W, C)
Classes = npt.NDArray[np.int64]
Part = tuple[Images, Classes, list[str]]  # and the ids of its rows

# SHA-256 of the positions (little-endian uint16) in CIFAR-100's official training file that are kept.
C100_INDEX_SHA256 = "88e12b2fce64a090548e67058a7369f927104888369dd8976245d4bc38deec4a"
_CIFAR = "Krizhevsky: Learning multiple layers of features from tiny images, Toronto, 2009"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark, with all its training images; imbalance is made after loading."""

    name: str
    title: str
    classes: tuple[str, ...] | int  # names, or how many
    shape: tuple[int, int, int]
    train: int  # images, before positives are removed
    test: int
    files: tuple[str, ...]  # sheet files, training files first
    public: str  # what the public download looks like under `root`
    marks: tuple[str, ...]  # by which it is known to be there: a file or folder, the first that is
    licence: str
    citation: str
    get: str  # how to get it
    positive: str  # what label 1 stands for, unless it is chosen otherwise
    lossy: bool = False  # the sheet files were compressed (AVIF), so their pixels differ from the public download

    def public_at(self, root: Path) -> Path | None:
        """The mark of the public download in this folder; None where there is none."""
        return next((root / mark for mark in self.marks if (root / mark).exists()), None)

    @property
    def num_classes(self) -> int:
        return self.classes if isinstance(self.classes, int) else len(self.classes)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="C2",
            title="Cat&Dog",
            classes=("cat", "dog"),
            shape=(32, 32, 3),
            train=20_000,
            test=5_000,
            files=("catsdogs32_train.npz", "catsdogs32_test.npz"),
            public="cat.N.jpg and dog.N.jpg, N from 0 to 12499, in this folder or in train/",
            marks=("cat.0.jpg", "train/cat.0.jpg"),
            # Training: ids 0 to 9999 of each class. Three groups of duplicates are in both parts.
            lossy=True,
            positive="dog",
            licence="non-commercial research (Kaggle's competition rules)",
            get="unpack train.zip of Kaggle's Dogs vs. Cats into the root folder",
            citation="Elson, Douceur, Howell, Saul: Asirra, ACM CCS 2007; Kaggle Dogs vs. Cats, 2013",
        ),
        Benchmark(
            name="C10",
            title="CIFAR-10",
            classes=(
                *("airplane", "automobile", "bird", "cat", "deer"),
                *("dog", "frog", "horse", "ship", "truck"),
            ),
            shape=(32, 32, 3),
            train=50_000,
            test=10_000,
            files=(*(f"cifar10_train_{i}.npz" for i in range(1, 6)), "cifar10_test.npz"),
            public="cifar-10-batches-py/, as torchvision downloads it",
            marks=("cifar-10-batches-py",),
            positive="classes 5 to 9",
            licence="none stated; cite the report",
            get="torchvision downloads it (load('C10', ..., download=True))",
            citation=_CIFAR,
        ),
        Benchmark(
            name="C100",
            title="CIFAR-100",
            classes=100,
            shape=(32, 32, 3),
            train=33_000,
            test=10_000,
            files=(*(f"cifar100_train_{i}.npz" for i in range(1, 5)), "cifar100_test.npz"),
            public="cifar-100-python/, as torchvision downloads it",
            marks=("cifar-100-python",),
            # All of the classes 0 to 49, and a fixed pool of 8,000 of the 25,000 others: training sets overlap more.
            positive="classes 50 to 99",
            licence="none stated; cite the report",
            get="torchvision downloads it (load('C100', ..., download=True))",
            citation=_CIFAR,
        ),
        Benchmark(
            name="S10",
            title="STL-10",
            classes=(
                *("airplane", "bird", "car", "cat", "deer"),
                *("dog", "horse", "monkey", "ship", "truck"),
            ),
            shape=(96, 96, 3),
            train=5_000,
            test=8_000,
            files=("stl10_train.npz", "stl10_test.npz"),
            public="stl10_binary/ with train_X.bin, train_y.bin, test_X.bin, test_y.bin, as torchvision downloads it",
            marks=("stl10_binary",),
            lossy=True,
            positive="classes 5 to 9",
            licence="none stated; cite the paper",
            get="torchvision downloads it (load('S10', ..., download=True))",
            citation="Coates, Ng, Lee: Single-layer networks in unsupervised feature learning, AISTATS 2011",
        ),
    )
}


def require_pool(positions: npt.NDArray[Any], *, where: str) -> None:
    """ValueError unless these are the recorded positions of CIFAR-100's training images that are used."""
    if hashlib.sha256(positions.astype("<u2").tobytes()).hexdigest() != C100_INDEX_SHA256:
        raise ValueError(f"{where} is not the recorded pool of CIFAR-100's positives: results would differ.")
