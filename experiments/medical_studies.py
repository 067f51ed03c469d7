"""The medical studies: melanoma, DDSM+ and PatchCamelyon for those who have them, and stand-ins for all (`medical`).

    deepauc study run experiments/medical.py melanoma --data FOLDER --device cuda  # 5 folds, TTA(30), ensembles
    deepauc study run experiments/medical.py medical --cells ham --device cuda  # the same on HAM10000 at 64 px
    deepauc study table experiments/medical.py medical

`-printed`: the paper's settings for the task it stands in for, another task, image size and length apart
(`medical_printed`). The other cells differ in the network too (ResNet20, and DenseNet121 at 32 px on HAM10000: five
seeds of four losses then take minutes on a GPU), try a part of the printed grids drawn by seed, and, because nothing
here is pretrained, larger learning rates of the melanoma recipe. `ours` is a second recipe on 28 px: learning rates
that fall along a cosine and in steps, and more epochs. CE and focal loss have as many epochs as both stages of the AUC
losses together. No guard: an AUC row is the AUC stage's own network. `best`: `medical_best`.
CheXpert: `medical_chest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepauc.studies.grid import Grid, product, sample
from deepauc.studies.study import Study, StudySet
from experiments.medical_best import best_cells
from experiments.medical_losses import (
    LOSSES,
    MELANOMA_GRIDS,
    PRINTED,
    Axes,
    from_ce,
    loss_study,
    printed_studies,
    skin_studies,
)
from experiments.medical_printed import printed_cells
from experiments.medical_recipes import DDSM, FOCAL, MARGINS, MELANOMA, PCAM
from experiments.medical_tasks import MedicalSource

DRAW_SEED = 14
DRAWN = {"ce": 5, "focal": 8, "auc_s": 9, "auc_m": 12}  # of 5, 45, 9 and 36: what a stand-in tries
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
HAM_NETWORKS = ("R-64", "R-32", "D-32")  # the first is tuned, the others inherit; 64 px cost four times 32
# Ten models, the paper does not say which: EfficientNet and side of the images. The first is the one of its Table 4.
MELANOMA_NETWORKS = (
    *("B5-384", "B3-256", "B3-384", "B3-512", "B5-256", "B5-512", "B5-768"),
    *("B6-384", "B6-512", "B6-768"),
)


def medical() -> StudySet:
    """All stand-ins but the chest X-rays."""
    studies = [study for name in SMALL_SETS for study in (*_small(name, "paper"), *_small(name, "ours"))]
    studies += skin_studies("ham", "ham10000", HAM, SKIN, HAM_NETWORKS)
    studies += [_isic(loss) for loss in LOSSES]
    studies += [*printed_cells(), *best_cells()]
    title = "Stand-ins for the medical tasks: BreastMNIST, PneumoniaMNIST, PathMNIST at 1 %, HAM10000, ISIC 2020 table"
    return StudySet(name="medical", title=title, studies=tuple(studies))


def melanoma() -> StudySet:
    """D6 on the SIIM-ISIC images: EfficientNets, metadata, five patient-disjoint folds."""
    settings = {**MELANOMA, "pretrained": True}
    studies = skin_studies(
        "melanoma",
        "melanoma",
        settings,
        MELANOMA_GRIDS,
        MELANOMA_NETWORKS,
        equal_length=False,
    )
    title = "SIIM-ISIC melanoma (D6): EfficientNets at four sizes, metadata, 5 folds; --data: the folder of train.csv"
    return StudySet(name="melanoma", title=title, studies=tuple(studies))


def ddsm() -> StudySet:
    """D7 on the real tiles."""
    title = "DDSM+ (D7): DenseNet121 at 224 px; --data: the folder of the TFRecord and .npy files"
    source = MedicalSource(dataset="ddsm", size=224, test_imratio=0.04)
    return StudySet(name="ddsm", title=title, studies=printed_studies("ddsm-D", source, DDSM))


def pcam() -> StudySet:
    """D8 on the real patches."""
    title = "PatchCamelyon at 1 % (D8): DenseNet121 at 96 px; --data: the folder of the h5 files"
    return StudySet(name="pcam", title=title, studies=printed_studies("pcam-D", MedicalSource(dataset="pcam"), PCAM))


def _small(name: str, recipe: str) -> list[Study]:
    dataset, paper, ours = SMALL_SETS[name]
    cell = f"{name}-R-{recipe}"
    settings = {**(paper if recipe == "paper" else ours), "network": "R", "cosine": recipe == "ours"}
    return [
        loss_study(
            f"{cell}-{loss}",
            loss,
            MedicalSource(dataset=dataset),
            settings,
            grid=_grid(recipe, loss),
            inherits=from_ce(f"{cell}-ce", loss, focal_too=recipe == "ours"),
            tuning_seeds=(0, 1, 2) if name == "breast" else (0,),  # 21 positives in its validation part
            group=cell,
        )
        for loss in LOSSES
    ]


def _grid(recipe: str, loss: str) -> Grid:
    return product(OURS[loss]) if recipe == "ours" else sample(PRINTED[loss], n=DRAWN[loss], seed=DRAW_SEED)


def _isic(loss: str) -> Study:
    """Melanoma from age, sex and site alone, at the true scale: 33,126 rows, 2,056 patients, 1.76 %."""
    return loss_study(
        f"isic-M-{loss}",
        loss,
        MedicalSource(dataset="isic2020", tta=0),
        ISIC,
        grid=product(SKIN[loss]),
        inherits=from_ce("isic-M-ce", loss, focal_too=True),
        group="isic-M",
    )
