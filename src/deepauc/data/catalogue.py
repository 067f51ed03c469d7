"""The data sets that go by a name: what each holds, under which licence, how to get it, and how it becomes a Task."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deepauc.data.benchmarks.catalogue import BENCHMARKS
from deepauc.data.benchmarks.load import load_balanced
from deepauc.data.imbalance import imbalance_task
from deepauc.data.medical.medmnist import load_medmnist
from deepauc.data.packed import open_packed
from deepauc.data.packed_manifest import MANIFEST_NAME
from deepauc.data.task import Task

Root = str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """One data set. `places`: alternatives under the root folder; it is there if all files of one of them are."""

    name: str
    title: str
    positive: str  # what label 1 stands for
    images: int
    shape: tuple[int, int, int]
    licence: str
    citation: str
    get: str  # how to get it
    places: tuple[tuple[str, ...], ...]
    read: Callable[[Path], Task]

    def found(self, root: Path) -> tuple[str, ...]:
        """The files or folders it would be read from; empty where it is not there."""
        return next((place for place in self.places if all((root / name).exists() for name in place)), ())


def _benchmark(name: str, *, positive: str, licence: str, get: str, public: tuple[str, ...]) -> NamedSet:
    facts = BENCHMARKS[name]
    return NamedSet(
        name=name,
        title=facts.title,
        positive=positive,
        images=facts.train + facts.test,
        shape=facts.shape,
        licence=licence,
        citation=facts.citation,
        get=f"{get}; expected: {facts.public}",
        places=tuple(place for place in (facts.files, *((one,) for one in public)) if place),
        read=lambda root: load_balanced(name, root=root),
    )


def _medmnist(
    name: str,
    *,
    title: str,
    positive: tuple[int, str],
    images: int,
    shape: tuple[int, int, int],
    source: str,
    licence: str = "CC BY 4.0",
) -> NamedSet:
    return NamedSet(
        name=name,
        title=title,
        positive=positive[1],
        images=images,
        shape=shape,
        licence=licence,
        citation=f"Yang et al.: MedMNIST v2, Scientific Data 10:41, 2023; {source}",
        get=f"download {name}.npz of MedMNIST v2 (medmnist.com, Zenodo) into the root folder",
        places=((f"{name}.npz",),),
        read=lambda root: load_medmnist(root / f"{name}.npz", positive=positive[0]),
    )


_CIFAR_LICENCE = "none stated; cite the report"
CATALOGUE = {
    one.name: one
    for one in (
        _benchmark(
            "C2",
            positive="dog",
            licence="non-commercial research (Kaggle's competition rules)",
            get="unpack train.zip of Kaggle's Dogs vs. Cats into the root folder",
            public=("cat.0.jpg", "train/cat.0.jpg"),
        ),
        _benchmark(
            "C10",
            positive="classes 5 to 9",
            licence=_CIFAR_LICENCE,
            get="torchvision downloads it (load('C10', ..., download=True))",
            public=("cifar-10-batches-py",),
        ),
        _benchmark(
            "C100",
            positive="classes 50 to 99",
            licence=_CIFAR_LICENCE,
            get="torchvision downloads it (load('C100', ..., download=True))",
            public=("cifar-100-python",),
        ),
        _benchmark(
            "S10",
            positive="classes 5 to 9",
            licence="none stated; cite the paper",
            get="torchvision downloads it (load('S10', ..., download=True))",
            public=("stl10_binary",),
        ),
        _medmnist(
            "breastmnist",
            title="BreastMNIST, ultrasound",
            positive=(0, "malignant"),
            images=780,
            shape=(28, 28, 1),
            source="Al-Dhabyani et al., Data in Brief 28, 2020",
        ),
        _medmnist(
            "pneumoniamnist",
            title="PneumoniaMNIST, chest X-ray",
            positive=(0, "normal (the minority)"),
            images=5_856,
            shape=(28, 28, 1),
            source="Kermany et al., Cell 172(5), 2018",
        ),
        _medmnist(
            "pathmnist",
            title="PathMNIST, histology",
            positive=(8, "adenocarcinoma epithelium"),
            images=107_180,
            shape=(28, 28, 3),
            source="Kather et al., PLOS Medicine 16(1), 2019",
        ),
        _medmnist(
            "dermamnist",
            title="DermaMNIST, dermoscopy",
            positive=(4, "melanoma"),
            images=10_015,
            shape=(28, 28, 3),
            source="Tschandl et al., Scientific Data 5:180161, 2018",
            licence="CC BY-NC 4.0",
        ),
    )
}


def data_root(root: Root = None) -> Path | None:
    """The folder of the named data sets: `root`, else the environment variable DEEPAUC_DATA, else None."""
    place = root or os.environ.get("DEEPAUC_DATA")
    return Path(os.path.abspath(place)) if place else None


def load_named(name: str, *, root: Root = None) -> Task:
    """A data set of the catalogue with all its training images, or the packed set in the folder `name`."""
    if name not in CATALOGUE:
        if (Path(name) / MANIFEST_NAME).is_file():
            return open_packed(name).task()
        near = difflib.get_close_matches(name.lower(), [one.lower() for one in CATALOGUE], n=1)
        hint = f"Did you mean {next(one for one in CATALOGUE if one.lower() == near[0])}? " if near else ""
        raise ValueError(
            f"{name!r} is neither a data set nor the folder of a packed one. {hint}There are {', '.join(CATALOGUE)}."
        )
    known, place = CATALOGUE[name], data_root(root)
    if place is None:
        raise ValueError(f"pass root, or set DEEPAUC_DATA: the folder that holds {known.title}.")
    if not known.found(place):
        raise ValueError(f"{place} does not hold {known.title}. To get it: {known.get}.")
    return known.read(place)


def imbalanced(task: Task, *, imratio: float, seed: int) -> Task:
    """`task` with positives removed from train until #pos / #all is imratio (spec D1); other parts are untouched."""
    made = imbalance_task(task, imratio=imratio, seed=seed).task(task)
    return replace(made, name=f"{task.name}, imratio {imratio:g}, set {seed}")
