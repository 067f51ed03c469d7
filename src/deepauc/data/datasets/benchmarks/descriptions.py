"""The four benchmarks of the paper's sec. 4.1: what each holds, where it comes from, what to know about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.data.task import ArrayInputs


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
    note: str
    citation: str

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
            note=(
                "training: ids 0 to 9999 of each class; test: 10000 to 12499; resized to 32 x 32 by a box filter. The "
                "sheet files were compressed (AVIF, 38.2 dB), so their pixels differ from the public download. "
                "Three groups of duplicates are in both parts"
            ),
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
            note="sheet files and public download have the same pixels",
            citation="Krizhevsky: Learning multiple layers of features from tiny images, Toronto, 2009",
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
            note=(
                "all 25,000 training images of the classes 0 to 49, and a fixed pool of 8,000 of the 25,000 images of "
                "the classes 50 to 99. Random training sets therefore overlap more than sets drawn from all images"
            ),
            citation="Krizhevsky: Learning multiple layers of features from tiny images, Toronto, 2009",
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
            note=(
                "the labelled images alone, at 96 x 96, without the 100,000 unlabelled ones. The sheet files were "
                "compressed (AVIF, 33.1 dB), so their pixels differ from the public download"
            ),
            citation="Coates, Ng, Lee: Single-layer networks in unsupervised feature learning, AISTATS 2011",
        ),
    )
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodedSet:
    """A benchmark's images in memory: the training images first, then the test images."""

    inputs: ArrayInputs  # (train + test, H, W, 3) uint8
    classes: npt.NDArray[np.int64]  # (train + test,)
    ids: npt.NDArray[np.str_]
    train: int
    lossy: bool = False


def joined(
    train: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]],
    test: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]],
    *,
    lossy: bool = False,
) -> DecodedSet:
    """One set from (images, classes, ids) of the two parts."""
    images = np.concatenate([train[0], test[0]])
    images.flags.writeable = False
    return DecodedSet(
        inputs=ArrayInputs(images),
        classes=np.concatenate([train[1], test[1]]).astype(np.int64),
        ids=np.array(train[2] + test[2]),
        train=len(train[0]),
        lossy=lossy,
    )


def require_counts(classes: npt.NDArray[np.int64], expected: npt.ArrayLike, *, where: str) -> None:
    """ValueError unless each class has the number of images it must have."""
    counts = np.asarray(expected)
    found = np.bincount(classes, minlength=len(counts))
    if len(found) != len(counts) or (found != counts).any():
        raise ValueError(f"{where} is incomplete: its classes have {found.tolist()[:12]} images. Get its files again.")
