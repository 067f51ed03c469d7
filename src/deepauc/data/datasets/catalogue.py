"""The data sets that go by a name: what each holds, under which licence, how to get it, and how it becomes a Task."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deepauc.data.datasets.benchmarks.descriptions import BENCHMARKS, Benchmark
from deepauc.data.datasets.benchmarks.load import Root, data_root, load_balanced
from deepauc.data.datasets.medical.chexpert import load_chexpert
from deepauc.data.datasets.medical.ddsm import TEST_FILES, TRAINING_FILES, load_ddsm
from deepauc.data.datasets.medical.ham10000 import load_ham10000, load_ham10000_sheets
from deepauc.data.datasets.medical.medmnist import load_medmnist
from deepauc.data.datasets.medical.melanoma import load_isic2020_table, load_melanoma
from deepauc.data.datasets.medical.nih import load_nih_cxr14, load_nih_sheets
from deepauc.data.datasets.medical.pathmnist import load_pathmnist_subset
from deepauc.data.datasets.medical.pcam import load_pcam
from deepauc.data.packed.manifest import MANIFEST_NAME
from deepauc.data.packed.sets import open_packed
from deepauc.data.task import Task


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """One data set. `places`: alternatives under the root folder; it is there if all files of one of them are."""

    name: str
    title: str
    positive: str  # what label 1 stands for
    images: int
    shape: tuple[int, ...]  # of one input as it is read here
    licence: str
    citation: str
    get: str  # how to get it
    places: tuple[tuple[str, ...], ...]
    read: Callable[[Path], Task]

    def found(self, root: Path) -> tuple[str, ...]:
        """The files or folders it would be read from; empty where it is not there."""
        return next((place for place in self.places if all((root / name).exists() for name in place)), ())


def _benchmark(facts: Benchmark) -> NamedSet:
    return NamedSet(
        name=facts.name,
        title=facts.title,
        positive=facts.positive,
        images=facts.train + facts.test,
        shape=facts.shape,
        licence=facts.licence,
        citation=facts.citation,
        get=f"{facts.get}; expected: {facts.public}",
        places=(facts.files, *((mark,) for mark in facts.marks)),
        read=lambda root: load_balanced(facts.name, root=root),
    )


def _medmnist(
    name: str,
    *,
    title: str,
    positive: tuple[int | None, str],
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


def _chexpert(name: str, folder: str) -> NamedSet:
    return NamedSet(
        name=name,
        title=f"{folder}, chest X-ray, frontal views",
        positive="finding present (5 labels; -1 uncertain)",
        images=223_648,
        shape=(320, 320, 1),
        licence="Stanford University Dataset Research Use Agreement",
        citation="Irvin et al.: CheXpert, AAAI 2019",
        get=f"ask Stanford AIMI for it and unpack {folder}/ (train.csv, valid.csv, train/, valid/) in the root folder",
        places=((f"{folder}/train.csv", f"{folder}/valid.csv"),),
        read=lambda root: load_chexpert(root / folder),
    )


def _melanoma(name: str, folder: str, *, edition: str, side: int, get: str) -> NamedSet:
    return NamedSet(
        name=name,
        title=f"SIIM-ISIC melanoma 2020, {edition}",
        positive="melanoma",
        images=33_126,
        shape=(side, side, 3),
        licence="CC BY-NC 4.0",
        citation="Rotemberg et al., Scientific Data 8:34, 2021",
        get=get,
        places=((f"{folder}/train.csv",),),
        read=lambda root: load_melanoma(root / folder, size=side),
    )


def _resized_melanoma(side: int) -> NamedSet:
    folder = f"jpeg-melanoma-{side}x{side}"
    get = f"unpack Kaggle's {folder} as {folder}/ (train.csv with a column tfrecord, train/) into the root folder"
    return _melanoma(f"melanoma-{side}", folder, edition="resized", side=side, get=get)


_DDSM_FOLDER = "ddsm-mammography"
_NIH_FOLDER = "nih-cxr14"
_NIH_LICENCE = "no restrictions; cite the paper and acknowledge the NIH Clinical Center"
_NIH_CITATION = "Wang et al.: ChestX-ray8, CVPR 2017"
_HAM_CITATION = "Tschandl, Rosendahl, Kittler: The HAM10000 dataset, Scientific Data 5:180161, 2018"
_PCAM_PARTS = ("train", "valid", "test")
CATALOGUE = {
    one.name: one
    for one in (
        *map(_benchmark, BENCHMARKS.values()),
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
        _medmnist(
            "chestmnist",
            title="ChestMNIST, chest X-ray",
            positive=(None, "finding present (14 labels)"),
            images=112_120,
            shape=(28, 28, 1),
            source=_NIH_CITATION,
        ),
        _chexpert("chexpert-small", "CheXpert-v1.0-small"),
        _chexpert("chexpert", "CheXpert-v1.0"),
        NamedSet(
            name="nih-cxr14",
            title="NIH ChestX-ray14, chest X-ray",
            positive="finding present (14 labels)",
            images=112_120,
            shape=(224, 224, 1),
            licence=_NIH_LICENCE,
            citation=_NIH_CITATION,
            get=(
                f"from the NIH Clinical Center, into {_NIH_FOLDER}/ in the root folder: Data_Entry_2017_v2020.csv, "
                "train_val_list.txt, test_list.txt, and images/ or images_001/images/ to images_012/images/"
            ),
            places=tuple(
                (f"{_NIH_FOLDER}/{table}", f"{_NIH_FOLDER}/train_val_list.txt", f"{_NIH_FOLDER}/test_list.txt")
                for table in ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
            ),
            read=lambda root: load_nih_cxr14(root / _NIH_FOLDER),
        ),
        NamedSet(
            name="nih-cxr14-96",
            title="NIH ChestX-ray14, first archive, 96 px",
            positive="finding present (14 labels)",
            images=4_999,
            shape=(96, 96, 1),
            licence=_NIH_LICENCE,
            citation=_NIH_CITATION,
            get="put nih_cxr14_96.npz into the root folder",
            places=(("nih_cxr14_96.npz",),),
            read=lambda root: load_nih_sheets(root / "nih_cxr14_96.npz"),
        ),
        _melanoma(
            "melanoma",
            "siim-isic-melanoma-classification",
            edition="competition",
            side=256,
            get=(
                "unpack Kaggle's siim-isic-melanoma-classification under that name (train.csv, jpeg/train/) into the "
                "root folder"
            ),
        ),
        *(_resized_melanoma(side) for side in (256, 384, 512, 768)),
        NamedSet(
            name="isic2020-table",
            title="ISIC 2020, age, sex and site of patients, no images",
            positive="melanoma",
            images=33_126,
            shape=(10,),
            licence="CC BY-NC 4.0",
            citation="Rotemberg et al., Scientific Data 8:34, 2021",
            get="put the training ground truth (version 2) into the root folder: isic2020_train_metadata.csv.gz",
            places=(("isic2020_train_metadata.csv.gz",),),
            read=lambda root: load_isic2020_table(root / "isic2020_train_metadata.csv.gz"),
        ),
        NamedSet(
            name="ham10000",
            title="HAM10000, dermoscopy",
            positive="melanoma",
            images=10_015,
            shape=(224, 224, 3),
            licence="CC BY-NC 4.0",
            citation=_HAM_CITATION,
            get=(
                "from Harvard Dataverse, into ham10000/ in the root folder: HAM10000_metadata.csv, "
                "HAM10000_images_part_1/ and HAM10000_images_part_2/"
            ),
            places=(("ham10000/HAM10000_metadata.csv",), ("ham10000/HAM10000_metadata",)),
            read=lambda root: load_ham10000(root / "ham10000"),
        ),
        NamedSet(
            name="ham10000-64",
            title="HAM10000 and ISIC 2018 test, dermoscopy, 64 px",
            positive="melanoma",
            images=7_495,
            shape=(64, 64, 3),
            licence="CC BY-NC 4.0",
            citation=f"{_HAM_CITATION}; parts: Abhishek, Jain, Hamarneh, 2024",
            get="put ham10000_64.npz into the root folder",
            places=(("ham10000_64.npz",),),
            read=lambda root: load_ham10000_sheets(root / "ham10000_64.npz"),
        ),
        NamedSet(
            name="pcam",
            title="PatchCamelyon, lymph nodes",
            positive="tumour in the centre",
            images=327_680,
            shape=(96, 96, 3),
            licence="CC0",
            citation="Veeling et al.: Rotation equivariant CNNs for digital pathology, MICCAI 2018",
            get="unpack (gunzip) the six h5 files of PatchCamelyon into pcam/ in the root folder",
            places=(
                tuple(
                    f"pcam/camelyonpatch_level_2_split_{part}_{what}.h5" for part in _PCAM_PARTS for what in ("x", "y")
                ),
            ),
            read=lambda root: load_pcam(root / "pcam", imratio=None),
        ),
        NamedSet(
            name="pathmnist-subset",
            title="PathMNIST, a subset, histology",
            positive="tumour (class 8)",
            images=16_180,
            shape=(28, 28, 3),
            licence="CC BY 4.0",
            citation="Yang et al.: MedMNIST v2, Scientific Data 10:41, 2023; Kather et al., PLOS Medicine 16(1), 2019",
            get="put pathmnist_subset.npz into the root folder",
            places=(("pathmnist_subset.npz",),),
            read=lambda root: load_pathmnist_subset(root / "pathmnist_subset.npz"),
        ),
        NamedSet(
            name="ddsm",
            title="DDSM+, tiles of mammograms",
            positive="lesion",
            images=71_254,
            shape=(224, 224, 1),
            licence="that of its sources (CBIS-DDSM: CC BY 3.0); see the download",
            citation="Scuccimarra: DDSM Mammography (Kaggle), from DDSM and CBIS-DDSM",
            get=(
                f"unpack Kaggle's ddsm-mammography as {_DDSM_FOLDER}/ into the root folder; it must hold, at any "
                f"depth: {', '.join((*TRAINING_FILES, *(name for pair in TEST_FILES for name in pair)))}"
            ),
            places=((_DDSM_FOLDER,),),
            read=lambda root: load_ddsm(root / _DDSM_FOLDER),
        ),
    )
}


def load_named(name: str, *, root: Root = None) -> Task:
    """A data set of the catalogue with all its training images, or the packed set in the folder `name`."""
    if name not in CATALOGUE:
        if (Path(name) / MANIFEST_NAME).is_file():
            return open_packed(name).task()
        near = difflib.get_close_matches(name.lower(), [one.lower() for one in CATALOGUE], n=1)
        hint = f"Did you mean {next(one for one in CATALOGUE if one.lower() == near[0])}? " if near else ""
        raise ValueError(
            f"{name!r} is neither a named data set nor the folder of a packed set. {hint}Data sets: "
            f"{', '.join(CATALOGUE)}."
        )
    known, place = CATALOGUE[name], data_root(root)
    if place is None:
        raise ValueError(f"the folder of {known.title} is not known: pass root, or set DEEPAUC_DATA.")
    if not known.found(place):
        raise ValueError(f"{place} does not hold {known.title}. To get it: {known.get}.")
    return known.read(place)
