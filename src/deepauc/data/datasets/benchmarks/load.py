"""A benchmark by name, with the paper's imbalance: `load("C10", imratio=0.01, seed=0)`."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from deepauc.data.datasets.benchmarks import catdog, cifar, stl10
from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, Benchmark, DecodedSet
from deepauc.data.imbalance import binarise, imbalanced, positive_classes, tuning_task
from deepauc.data.task import Task

Source = Literal["auto", "files", "public"]
Root = str | os.PathLike[str] | None


def load(
    name: str,
    *,
    imratio: float,
    seed: int,
    validation: bool = True,
    root: Root = None,
    source: Source = "auto",
    positive: Collection[int] | None = None,
    download: bool = False,
) -> Task:
    """One training set of a benchmark: positives removed at random until #pos / #all is imratio (D1).

    seed: which of the random training sets; the paper has five. validation: True holds out a stratified tenth of the
    training set, for tuning; False leaves it whole, for the refit. Test images are untouched. The removed positives
    are in no part. Other arguments: `load_balanced`.
    """
    balanced = load_balanced(name, root=root, source=source, positive=positive, download=download)
    task = imbalanced(balanced, imratio=imratio, seed=seed)
    return tuning_task(task, seed=seed) if validation else task


def load_balanced(
    name: str,
    *,
    root: Root = None,
    source: Source = "auto",
    positive: Collection[int] | None = None,
    download: bool = False,
) -> Task:
    """A benchmark with all its training images, as a binary task; the start for imbalance, noise and easy rows.

    root: folder of the images, by default the environment variable DEEPAUC_DATA.
    source: "files" are the sheet files, "public" the public download; "auto" takes what is there, files first.
    positive: class ids that count as positive; by default the upper half of the ids (dog of cat and dog).
    download: fetch the public download with torchvision if it is not there (C10, C100, S10). Nothing else downloads.
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
    found = _choose(benchmark, folder, source, download=download)
    if name == "C100" and chosen != upper and found == "files":
        raise ValueError(
            "the sheet files of C100 hold only some images of the classes 50 to 99, so these must be the positive "
            "classes. For other classes use the public download: source='public'."
        )
    if download and name == "C2":
        raise ValueError("C2 cannot be downloaded: unpack Kaggle's Dogs vs. Cats train.zip into `root`.")
    decoded = _decode(name, folder, found, pool=chosen == upper, download=download and found == "public")
    rows = len(decoded.classes)
    return Task(
        name=f"{name} (lossy)" if decoded.lossy else name,
        kind="binary",
        source=decoded.inputs,
        labels=binarise(decoded.classes, chosen),
        label_names=(_label_name(benchmark, chosen),),
        parts={"train": np.arange(decoded.train), "test": np.arange(decoded.train, rows)},
        ids=decoded.ids,
    )


@lru_cache(maxsize=4)
def _decode(name: str, root: Path, source: Source, *, pool: bool, download: bool) -> DecodedSet:
    """Decoded once in a process: five training sets share one array."""
    if name == "C2":
        return catdog.read_catdog_files(root) if source == "files" else catdog.read_catdog_public(root)
    if name == "C10":
        return (
            cifar.read_cifar10_files(root) if source == "files" else cifar.read_cifar10_public(root, download=download)
        )
    if name == "C100":
        if source == "files":
            return cifar.read_cifar100_files(root)
        return cifar.read_cifar100_public(root, download=download, pool=pool)
    return stl10.read_stl10_files(root) if source == "files" else stl10.read_stl10_public(root, download=download)


def data_root(root: Root = None) -> Path | None:
    """The folder of the named data sets: `root`, else the environment variable DEEPAUC_DATA, else None."""
    place = root or os.environ.get("DEEPAUC_DATA")
    return Path(os.path.abspath(place)) if place else None


def _choose(benchmark: Benchmark, root: Path, source: Source, *, download: bool) -> Source:
    if source not in get_args(Source):
        raise ValueError(f"source must be 'auto', 'files' or 'public', not {source!r}.")
    missing = [file for file in benchmark.files if not (root / file).is_file()]
    if source == "files":
        if missing:
            raise ValueError(f"these files are missing in {root}: {', '.join(missing)}.")
        return "files"
    if source == "public" or download:
        return "public"
    if not missing:
        return "files"
    if benchmark.public_at(root) is not None:
        return "public"
    sheets = ", ".join(benchmark.files)
    raise ValueError(f"{root} does not hold {benchmark.title}. It needs {sheets}, or {benchmark.public}.")


def _label_name(benchmark: Benchmark, positive: tuple[int, ...]) -> str:
    if isinstance(benchmark.classes, tuple) and len(positive) <= 5:
        return " or ".join(benchmark.classes[c] for c in positive)
    run = positive == tuple(range(positive[0], positive[-1] + 1))
    return f"classes {positive[0]} to {positive[-1]}" if run else f"{len(positive)} of the classes"
