"""The medical studies: melanoma, DDSM+ and PatchCamelyon for those who have them, and stand-ins for all (`medical`).

    deepauc study run melanoma --data FOLDER --device cuda       # 5 folds, two stages, TTA(30), metadata, ensembles
    deepauc study run medical --cells ham --device cuda          # the same on HAM10000 at 64 px
    deepauc study table medical

A stand-in has the paper's settings for the task it stands in for; it differs in task, image size and epochs, in the
network (ResNet20 unless the cell says otherwise: five seeds of four losses then take minutes on a GPU), and, because
nothing here is pretrained, in the learning rates of the melanoma recipe that are tried. `ours` is a second recipe on
28 px: learning rates that fall along a cosine and in steps, and more epochs. CE and focal loss have as many epochs as
both stages of the AUC losses together. No guard: an AUC row is the AUC stage's own network. `best`: `medical_best`.
CheXpert: `medical_chest`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from deepauc.paper.medical_best import best_cells
from deepauc.paper.medical_recipes import (
    AUC_LEARNING_RATES,
    DDSM,
    FOCAL,
    GAMMAS,
    LEARNING_RATES,
    MARGINS,
    MELANOMA,
    METHODS,
    ONE_STAGE,
    PCAM,
)
from deepauc.paper.medical_tasks import MedicalSource
from deepauc.studies.grid import Grid, product, sample
from deepauc.studies.study import Inherits, Study, StudySet

LOSSES = tuple(METHODS)
SEEDS = (0, 1, 2, 3, 4)
DRAW_SEED = 14
Axes = Mapping[str, Sequence[Any]]

# D7 and D8 as printed; the AUC losses start from the CE whose learning rate was selected.
PRINTED: Mapping[str, Axes] = {
    "ce": {"lr": LEARNING_RATES},
    "focal": {"lr": LEARNING_RATES, **FOCAL},
    "auc_s": {"auc_lr": AUC_LEARNING_RATES, "gamma": GAMMAS},
    "auc_m": {"auc_lr": AUC_LEARNING_RATES, "gamma": GAMMAS, "margin": MARGINS},
}
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
MELANOMA_GRIDS: Mapping[str, Axes] = {"ce": {}, "focal": FOCAL, "auc_s": {}, "auc_m": {"margin": MARGINS}}

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


def arguments(loss: str, settings: Mapping[str, Any], *, equal_length: bool = True) -> dict[str, Any]:
    """Those of the settings that the loss's method takes. equal_length: one stage lasts as long as two together."""
    known = inspect.signature(METHODS[loss]).parameters
    given = {name: value for name, value in settings.items() if name in known}
    if equal_length and loss in ONE_STAGE:
        given["epochs"] = settings["epochs"] + settings["auc_epochs"]
    return given


def medical() -> StudySet:
    """All stand-ins but the chest X-rays."""
    studies = [study for name in SMALL_SETS for study in (*_small(name, "paper"), *_small(name, "ours"))]
    studies += [study for name in ("breast", "path") for study in _small_densenet(name)]
    studies += _skin("ham", "ham10000", HAM, SKIN, HAM_NETWORKS)
    studies += [_isic(loss) for loss in LOSSES]
    studies += best_cells()
    title = "Stand-ins for the medical tasks: BreastMNIST, PneumoniaMNIST, PathMNIST at 1 %, HAM10000, ISIC 2020 table"
    return StudySet(name="medical", title=title, studies=tuple(studies))


def melanoma() -> StudySet:
    """D6 on the SIIM-ISIC images: EfficientNets, metadata, five patient-disjoint folds."""
    settings = {**MELANOMA, "pretrained": True}
    studies = _skin(
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
    return StudySet(name="ddsm", title=title, studies=_printed("ddsm-D", source, DDSM))


def pcam() -> StudySet:
    """D8 on the real patches."""
    title = "PatchCamelyon at 1 % (D8): DenseNet121 at 96 px; --data: the folder of the h5 files"
    return StudySet(name="pcam", title=title, studies=_printed("pcam-D", MedicalSource(dataset="pcam"), PCAM))


def _study(
    name: str,
    loss: str,
    source: MedicalSource,
    settings: Mapping[str, Any],
    *,
    grid: Grid,
    inherits: Inherits | None,
    group: str,
    equal_length: bool = True,
    tuning_seeds: tuple[int, ...] = (0,),
) -> Study:
    """One loss; what the grid tries, or another study has selected, is no longer fixed."""
    chosen = {*grid.axes, *(() if inherits is None else inherits.axes)}
    fixed = arguments(loss, settings, equal_length=equal_length)
    return Study(
        name=name,
        task=source,
        method=METHODS[loss],
        fixed={key: value for key, value in fixed.items() if key not in chosen},
        grid=grid,
        inherits=inherits,
        seeds=SEEDS,  # five training sets, or the numbers of five folds
        tuning_seeds=tuning_seeds,
        group=group,
    )


def _printed(name: str, source: MedicalSource, settings: Mapping[str, Any]) -> tuple[Study, ...]:
    return tuple(
        _study(
            f"{name}-{loss}",
            loss,
            source,
            settings,
            grid=product(PRINTED[loss]),
            inherits=_from_ce(f"{name}-ce", loss),
            group=name,
            equal_length=False,
        )
        for loss in LOSSES
    )


def _small(name: str, recipe: str) -> list[Study]:
    dataset, paper, ours = SMALL_SETS[name]
    cell = f"{name}-R-{recipe}"
    settings = {**(paper if recipe == "paper" else ours), "network": "R", "cosine": recipe == "ours"}
    return [
        _study(
            f"{cell}-{loss}",
            loss,
            MedicalSource(dataset=dataset),
            settings,
            grid=_grid(recipe, loss),
            inherits=_from_ce(f"{cell}-ce", loss, focal_too=recipe == "ours"),
            tuning_seeds=(0, 1, 2) if name == "breast" else (0,),  # 21 positives in its validation part
            group=cell,
        )
        for loss in LOSSES
    ]


def _grid(recipe: str, loss: str) -> Grid:
    return product(OURS[loss]) if recipe == "ours" else sample(PRINTED[loss], n=DRAWN[loss], seed=DRAW_SEED)


def _small_densenet(name: str) -> list[Study]:
    """The paper's own network with what ResNet20 has selected, on images with a border: it takes none of 28 px."""
    dataset, paper, _ = SMALL_SETS[name]
    return [
        _study(
            f"{name}-D-paper-{loss}",
            loss,
            MedicalSource(dataset=dataset, size=32),
            paper,
            grid=product({}),
            inherits=_all_of(f"{name}-R-paper-{loss}", loss, PRINTED),
            group=f"{name}-D-paper",
        )
        for loss in LOSSES
    ]


def _skin(
    name: str,
    dataset: str,
    settings: Mapping[str, Any],
    grids: Mapping[str, Axes],
    networks: Sequence[str],
    *,
    equal_length: bool = True,
) -> list[Study]:
    """Images by network and size, then metadata: two layers, 256 and 128, in the same configuration."""
    studies, tuned = [], f"{name}-{networks[0]}"
    for network in networks:
        cell = f"{name}-{network}"
        for loss in LOSSES if cell == tuned else ("ce", "auc_m"):
            studies.append(
                _study(
                    f"{cell}-{loss}",
                    loss,
                    MedicalSource(dataset=dataset, size=_side(network)),
                    {**settings, "network": _timm_name(network)},
                    grid=product(grids[loss] if cell == tuned else {}),
                    inherits=_from_ce(f"{cell}-ce", loss, axes=tuple(grids["ce"]), focal_too=True)
                    if cell == tuned
                    else _all_of(f"{tuned}-{loss}", loss, grids),
                    group=cell,
                    equal_length=equal_length,
                )
            )
    about_patients = {"network": "M", "augment": "none", "precision": "float32", "pretrained": False}
    for loss in LOSSES:
        studies.append(
            _study(
                f"{name}-meta-{loss}",
                loss,
                MedicalSource(dataset=dataset, size=_side(networks[0]), metadata=True),
                {**settings, **about_patients},
                grid=product(grids[loss]),
                inherits=_from_ce(f"{name}-meta-ce", loss, axes=tuple(grids["ce"]), focal_too=True),
                group=f"{name}-meta",
                equal_length=equal_length,
            )
        )
    return studies


def _isic(loss: str) -> Study:
    """Melanoma from age, sex and site alone, at the true scale: 33,126 rows, 2,056 patients, 1.76 %."""
    return _study(
        f"isic-M-{loss}",
        loss,
        MedicalSource(dataset="isic2020", tta=0),
        ISIC,
        grid=product(SKIN[loss]),
        inherits=_from_ce("isic-M-ce", loss, focal_too=True),
        group="isic-M",
    )


def _all_of(study: str, loss: str, grids: Mapping[str, Axes]) -> Inherits | None:
    """Whatever was tuned for this loss, its first stage included."""
    axes = tuple(dict.fromkeys([*grids[loss], *grids["ce"]]))
    return Inherits(study=study, axes=axes) if axes else None


def _from_ce(study: str, loss: str, *, axes: tuple[str, ...] = ("lr",), focal_too: bool = False) -> Inherits | None:
    """The first stage's learning rate, as CE alone has selected it."""
    if loss == "ce" or (loss == "focal" and not focal_too) or not axes:
        return None
    return Inherits(study=study, axes=axes)


def _side(network: str) -> int:
    return int(network.split("-")[1])


def _timm_name(network: str) -> str:
    letter = network.split("-", maxsplit=1)[0]
    return f"tf_efficientnet_{letter.lower()}" if letter.startswith("B") else letter
