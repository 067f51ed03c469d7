"""The medical studies: melanoma, DDSM+ and PatchCamelyon for those who have them, and stand-ins for all (`medical`).

    deepauc study run experiments/medical.py melanoma --data FOLDER --device cuda  # 5 folds, TTA(30), ensembles
    deepauc study run experiments/medical.py medical --cells ham --device cuda  # the same on HAM10000 at 64 px
    deepauc study table experiments/medical.py medical

`-printed`: the paper's settings for the task it stands in for, but for the task, image size and length. D7 on
BreastMNIST and D8 on PathMNIST: DenseNet121 (images of 28 px with a border of 2, it takes none below 29), flips, the
whole grids, no copies of test images. D6 on HAM10000: EfficientNets, Adam between 3e-5 and 2.4e-4, the whole grids,
metadata. Nothing is pretrained; whether the paper's networks were it does not say. The other cells differ in the
network too (ResNet20, and DenseNet121 at 32 px on HAM10000: five seeds of four losses then take minutes on a GPU), try
a part of the printed grids drawn by seed, and, because nothing here is pretrained, larger learning rates of the
melanoma recipe. `ours` is a second recipe on 28 px: learning rates that fall along a cosine and in steps, and more
epochs. CE and focal loss have as many epochs as both stages of the AUC losses together. No guard: an AUC row is the AUC
stage's own network. `best`: `best.py`. CheXpert: `chest.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepauc.studies.grid import Grid, sample
from deepauc.studies.study import Inherits, Study, StudySet
from experiments.clinical.best import best_cells
from experiments.clinical.recipes import (
    AUC_LEARNING_RATES,
    DDSM,
    FOCAL,
    GAMMAS,
    LEARNING_RATES,
    LOSSES,
    MARGINS,
    MELANOMA,
    METHODS,
    ONE_STAGE,
    PCAM,
    arguments,
)
from experiments.clinical.tasks import MedicalSource

Axes = Mapping[str, Sequence[Any]]
DRAW_SEED = 14
DRAWN = {"ce": 5, "focal": 8, "auc_s": 9, "auc_m": 12}  # of 5, 45, 9 and 36: what a stand-in tries
# D7 and D8 as printed: 95 configurations; the AUC losses start from the CE whose learning rate was selected.
PRINTED: Mapping[str, Axes] = {
    "ce": {"lr": LEARNING_RATES},
    "focal": {"lr": LEARNING_RATES, **FOCAL},
    "auc_s": {"auc_lr": AUC_LEARNING_RATES, "gamma": GAMMAS},
    "auc_m": {"auc_lr": AUC_LEARNING_RATES, "gamma": GAMMAS, "margin": MARGINS},
}
MELANOMA_GRIDS: Mapping[str, Axes] = {"ce": {}, "focal": FOCAL, "auc_s": {}, "auc_m": {"margin": MARGINS}}  # D6, too
OURS: Mapping[str, Axes] = {
    "ce": {"lr": (1e-4, 1e-3, 1e-2)},
    "focal": FOCAL,
    "auc_s": {"auc_lr": (0.1, 0.01)},
    "auc_m": {"auc_lr": (0.1, 0.01), "margin": MARGINS},
}
SKIN: Mapping[str, Axes] = {
    "ce": {"lr": (3e-5, 3e-4, 1e-3)},  # the paper's, and two for networks that start from nothing
    "focal": FOCAL,
    "auc_s": {"auc_lr": (0.01, 0.1)},
    "auc_m": {"auc_lr": (0.01, 0.1), "margin": MARGINS},
}

SMALL_SETS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    # name: data set, lengths under `paper`, lengths and schedule under `ours`
    "breast": (
        "breastmnist",
        {**DDSM, "augment": "small", "epochs": 60, "auc_epochs": 15},
        {**DDSM, "augment": "small", "epochs": 80, "auc_epochs": 40, "milestones": (20, 30)},
    ),
    "pneumonia": (
        "pneumoniamnist",
        {**DDSM, "augment": "small", "epochs": 15, "auc_epochs": 4},
        {**DDSM, "augment": "small", "epochs": 20, "auc_epochs": 10, "milestones": (5, 8)},
    ),
    "path": (
        "pathmnist",
        {**PCAM, "epochs": 20, "auc_epochs": 5},
        {**PCAM, "epochs": 30, "auc_epochs": 10, "milestones": (5, 8)},
    ),
}
HAM = {**MELANOMA, "epochs": 64, "auc_epochs": 32}
ISIC = {
    **MELANOMA,
    "network": "M",
    "augment": "none",
    "precision": "float32",
    "epochs": 16,
    "auc_epochs": 8,
    "milestones": (4, 6),
}
PRINTED_SKIN, PRINTED_NETWORKS = "ham-printed", ("B5-32", "B3-32")  # the first, that of Table 4, has all four losses
HAM_NETWORKS = ("R-64", "R-32", "D-32")  # the first is tuned, the others inherit; 64 px cost four times 32
# Ten models, the paper does not say which: EfficientNet and side of the images. The first is the one of its Table 4.
MELANOMA_NETWORKS = (
    *("B5-384", "B3-256", "B3-384", "B3-512", "B5-256", "B5-512", "B5-768"),
    *("B6-384", "B6-512", "B6-768"),
)


def cell_studies(
    cell: str,
    source: MedicalSource,
    settings: Mapping[str, Any],
    grids: Mapping[str, Axes | Grid],
    *,
    heir_of: str = "",
    equal_length: bool = True,
    tuning_seeds: tuple[int, ...] = (0,),
) -> list[Study]:
    """A study for each loss, or, after another cell whose selections are taken over (heir_of), for CE and AUC-M.

    The other losses begin with what CE has selected, unless they try that themselves; what the grid tries, or another
    study has selected, is no longer fixed. equal_length: one stage lasts as long as two together. Seeds are five
    training sets, or the numbers of five folds.
    """
    axes = {loss: tuple(one.axes if isinstance(one, Grid) else one) for loss, one in grids.items()}
    studies = []
    for loss in ("ce", "auc_m") if heir_of else LOSSES:
        taken = tuple(axis for axis in axes["ce"] if axis not in axes[loss]) if loss != "ce" else ()
        origin = f"{heir_of}-{loss}" if heir_of else f"{cell}-ce"
        if heir_of:
            taken = tuple(dict.fromkeys([*axes[loss], *axes["ce"]]))
        fixed = arguments(loss, settings)
        if equal_length and loss in ONE_STAGE:
            fixed["epochs"] = settings["epochs"] + settings["auc_epochs"]
        studies.append(
            Study(
                name=f"{cell}-{loss}",
                task=source,
                method=METHODS[loss],
                fixed={name: value for name, value in fixed.items() if name not in (*axes[loss], *taken)},
                grid={} if heir_of else grids[loss],
                inherits=Inherits(study=origin, axes=taken) if taken else None,
                tuning_seeds=tuning_seeds,
                group=cell,
            )
        )
    return studies


def skin_studies(
    name: str,
    dataset: str,
    settings: Mapping[str, Any],
    grids: Mapping[str, Axes],
    networks: Sequence[str],
    *,
    equal_length: bool = True,
) -> list[Study]:
    """Images by network and size, then metadata: two layers, 256 and 128, in the same configuration."""
    studies, first = [], f"{name}-{networks[0]}"
    for network in networks:
        letter, _, side = network.partition("-")
        known = {"network": f"tf_efficientnet_{letter.lower()}" if letter.startswith("B") else letter}
        cell, source = f"{name}-{network}", MedicalSource(dataset=dataset, size=int(side))
        heir_of = "" if cell == first else first
        studies += cell_studies(cell, source, {**settings, **known}, grids, heir_of=heir_of, equal_length=equal_length)
    patients = {"network": "M", "augment": "none", "precision": "float32", "pretrained": False}
    source = MedicalSource(dataset=dataset, size=int(networks[0].partition("-")[2]), metadata=True)
    return studies + cell_studies(f"{name}-meta", source, {**settings, **patients}, grids, equal_length=equal_length)


def medical() -> StudySet:
    """All stand-ins but the chest X-rays. ISIC 2020: age, sex and site alone, 33,126 rows, 2,056 patients, 1.76 %."""
    studies = [study for name in SMALL_SETS for recipe in ("paper", "ours") for study in _small(name, recipe)]
    studies += skin_studies("ham", "ham10000", HAM, SKIN, HAM_NETWORKS)
    studies += cell_studies("isic-M", MedicalSource(dataset="isic2020", tta=0), ISIC, SKIN)
    breast, path = (MedicalSource(dataset=name, size=32, tta=0) for name in ("breastmnist", "pathmnist"))
    studies += cell_studies("breast-printed", breast, {**DDSM, "epochs": 60, "auc_epochs": 15}, PRINTED)
    studies += cell_studies("path-printed", path, {**PCAM, "epochs": 20, "auc_epochs": 5}, PRINTED)
    studies += skin_studies(PRINTED_SKIN, "ham10000", MELANOMA, MELANOMA_GRIDS, PRINTED_NETWORKS)
    title = "Stand-ins for the medical tasks: BreastMNIST, PneumoniaMNIST, PathMNIST at 1 %, HAM10000, ISIC 2020 table"
    return StudySet(name="medical", title=title, studies=(*studies, *best_cells()))


def _small(name: str, recipe: str) -> list[Study]:
    dataset, paper, ours = SMALL_SETS[name]
    drawn: dict[str, Axes | Grid] = {loss: sample(PRINTED[loss], n=DRAWN[loss], seed=DRAW_SEED) for loss in LOSSES}
    settings = {**(paper if recipe == "paper" else ours), "network": "R", "cosine": recipe == "ours"}
    return cell_studies(
        f"{name}-R-{recipe}",
        MedicalSource(dataset=dataset),
        settings,
        drawn if recipe == "paper" else {**OURS},
        tuning_seeds=(0, 1, 2) if name == "breast" else (0,),  # 21 positives in its validation part
    )


def melanoma() -> StudySet:
    """D6 on the SIIM-ISIC images: EfficientNets, metadata, five patient-disjoint folds."""
    settings = {**MELANOMA, "pretrained": True}
    studies = skin_studies("melanoma", "melanoma", settings, MELANOMA_GRIDS, MELANOMA_NETWORKS, equal_length=False)
    title = "SIIM-ISIC melanoma (D6): EfficientNets at four sizes, metadata, 5 folds; --data: the folder of train.csv"
    return StudySet(name="melanoma", title=title, studies=tuple(studies))


def ddsm() -> StudySet:
    """D7 on the real tiles."""
    title = "DDSM+ (D7): DenseNet121 at 224 px; --data: the folder of the TFRecord and .npy files"
    source = MedicalSource(dataset="ddsm", size=224, test_imratio=0.04)
    studies = cell_studies("ddsm-D", source, DDSM, PRINTED, equal_length=False)
    return StudySet(name="ddsm", title=title, studies=tuple(studies))


def pcam() -> StudySet:
    """D8 on the real patches."""
    title = "PatchCamelyon at 1 % (D8): DenseNet121 at 96 px; --data: the folder of the h5 files"
    studies = cell_studies("pcam-D", MedicalSource(dataset="pcam"), PCAM, PRINTED, equal_length=False)
    return StudySet(name="pcam", title=title, studies=tuple(studies))
