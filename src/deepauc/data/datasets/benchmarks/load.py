"""A benchmark by name, with the paper's imbalance: `load("C10", imratio=0.01, seed=0)`."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepauc.data.datasets.benchmarks import downloads
from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, Benchmark, Classes
from deepauc.data.datasets.benchmarks.sheet_files import read_sheet_files
from deepauc.data.imbalance import binarise, imbalanced, positive_classes, tuning_task
from deepauc.data.task import ArrayInputs, Task

Root = str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodedSet:
    """A benchmark's images in memory: the training images first, then the test images."""

    inputs: ArrayInputs  # (train + test, H, W, 3) uint8
    classes: Classes  # (train + test,)
    ids: npt.NDArray[np.str_]
    train: int


def load(
    name: str,
    *,
    imratio: float,
    seed: int,
    validation: bool = True,
    root: Root = None,
    positive: Collection[int] | None = None,
    download: bool = False,
) -> Task:
    """One training set of a benchmark: positives removed at random until #pos / #all is imratio (D1).

    seed: which of the random training sets; the paper has five. validation: True holds out a stratified tenth of the
    training set, for tuning; False leaves it whole, for the refit. Test images are untouched. The removed positives
    are in no part. Other arguments: `load_balanced`.
    """
    balanced = load_balanced(name, root=root, positive=positive, download=download)
    task = imbalanced(balanced, imratio=imratio, seed=seed)
    return tuning_task(task, seed=seed) if validation else task


def load_balanced(
    name: str, *, root: Root = None, positive: Collection[int] | None = None, download: bool = False
) -> Task:
    """A benchmark with all its training images, as a binary task; the start for imbalance, noise and easy rows.

    The sheet files are read where all of them are there, else the public download.

    root: folder of the images, by default the environment variable DEEPAUC_DATA.
    positive: class ids that count as positive; by default the upper half of the ids (dog of cat and dog).
    download: fetch and read the public download, with torchvision (C10, C100, S10). Nothing else downloads.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"{name!r} is not a benchmark; the benchmarks are {', '.join(BENCHMARKS)}.")
    benchmark = BENCHMARKS[name]
    upper = positive_classes(benchmark.num_classes)
    chosen = upper if positive is None else tuple(sorted(set(positive)))
    if not chosen or len(chosen) >= benchmark.num_classes or not set(chosen) <= set(range(benchmark.num_classes)):
        raise ValueError(f"positive must name some, but not all, of the class ids 0 to {benchmark.num_classes - 1}.")
    folder = data_root(root)
    if folder is None:
        raise ValueError("the folder of the benchmark's images is not known: pass root, or set DEEPAUC_DATA.")
    if download and name == "C2":
        raise ValueError("C2 cannot be downloaded: unpack Kaggle's Dogs vs. Cats train.zip into `root`.")
    whole = name == "C100" and chosen != upper  # of the classes 50 to 99 the sheet files hold only some images
    files = not (download or whole) and all((folder / file).is_file() for file in benchmark.files)
    if not (files or download or benchmark.public_at(folder)):
        needed = benchmark.public if whole else f"{', '.join(benchmark.files)}, or {benchmark.public}"
        raise ValueError(f"{folder} does not hold {benchmark.title}. It needs {needed}.")
    decoded = _decode(name, folder, files=files, pool=name == "C100" and not whole, download=download)
    rows = len(decoded.classes)
    return Task(
        name=f"{name} (lossy)" if files and benchmark.lossy else name,
        kind="binary",
        source=decoded.inputs,
        labels=binarise(decoded.classes, chosen),
        label_names=(_label_name(benchmark, chosen),),
        parts={"train": np.arange(decoded.train), "test": np.arange(decoded.train, rows)},
        ids=decoded.ids,
    )


@lru_cache(maxsize=4)
def _decode(name: str, root: Path, *, files: bool, pool: bool, download: bool) -> DecodedSet:
    """Decoded once in a process: five training sets share one array."""
    benchmark = BENCHMARKS[name]
    if files:
        train, test = read_sheet_files(benchmark, root)
    elif name == "C2":
        train, test = downloads.read_catdog(root)
    elif name == "S10":
        train, test = downloads.read_stl10(root, download=download)
    else:
        train, test = downloads.read_cifar(root, name, download=download, pool=pool)
    _require_counts(benchmark, "train", train[1], root, pool=pool)
    _require_counts(benchmark, "test", test[1], root)
    images = np.concatenate([train[0], test[0]])
    images.flags.writeable = False
    return DecodedSet(
        inputs=ArrayInputs(images),
        classes=np.concatenate([train[1], test[1]]).astype(np.int64),
        ids=np.array(train[2] + test[2]),
        train=len(train[0]),
    )


def data_root(root: Root = None) -> Path | None:
    """The folder of the named data sets: `root`, else the environment variable DEEPAUC_DATA, else None."""
    place = root or os.environ.get("DEEPAUC_DATA")
    return Path(os.path.abspath(place)) if place else None


def _require_counts(benchmark: Benchmark, part: str, classes: Classes, root: Path, *, pool: bool = False) -> None:
    """ValueError unless each class has its share of the images; in a pool that is sure of the lower half alone."""
    total, number = benchmark.train if part == "train" else benchmark.test, benchmark.num_classes
    counts = np.bincount(classes, minlength=number)
    each = 500 if benchmark.name == "C100" and part == "train" else total // number
    sure = counts[: number // 2] if pool else counts
    if len(counts) != number or (sure != each).any() or (pool and len(classes) != total):
        found = f"the classes of {benchmark.title} have {counts.tolist()[:12]} {part} images"
        raise ValueError(f"{root} is incomplete: {found}. Get its files again.")


def _label_name(benchmark: Benchmark, positive: tuple[int, ...]) -> str:
    if isinstance(benchmark.classes, tuple) and len(positive) <= 5:
        return " or ".join(benchmark.classes[c] for c in positive)
    run = positive == tuple(range(positive[0], positive[-1] + 1))
    return f"classes {positive[0]} to {positive[-1]}" if run else f"{len(positive)} of the classes"
