"""Four losses of one cell as studies: tuned on the printed grids, or network by network on images of skin."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from deepauc.studies.grid import Grid, product
from deepauc.studies.study import Inherits, Study
from experiments.medical_recipes import AUC_LEARNING_RATES, FOCAL, GAMMAS, LEARNING_RATES, MARGINS, METHODS, ONE_STAGE
from experiments.medical_tasks import MedicalSource

LOSSES = tuple(METHODS)
SEEDS = (0, 1, 2, 3, 4)  # five training sets, or the numbers of five folds
Axes = Mapping[str, Sequence[Any]]

# D7 and D8 as printed; the AUC losses start from the CE whose learning rate was selected.
PRINTED: Mapping[str, Axes] = {
    "ce": {"lr": LEARNING_RATES},
    "focal": {"lr": LEARNING_RATES, **FOCAL},
    "auc_s": {"auc_lr": AUC_LEARNING_RATES, "gamma": GAMMAS},
    "auc_m": {"auc_lr": AUC_LEARNING_RATES, "gamma": GAMMAS, "margin": MARGINS},
}
# D6 as printed.
MELANOMA_GRIDS: Mapping[str, Axes] = {"ce": {}, "focal": FOCAL, "auc_s": {}, "auc_m": {"margin": MARGINS}}


def arguments(loss: str, settings: Mapping[str, Any], *, equal_length: bool = True) -> dict[str, Any]:
    """Those of the settings that the loss's method takes. equal_length: one stage lasts as long as two together."""
    known = inspect.signature(METHODS[loss]).parameters
    given = {name: value for name, value in settings.items() if name in known}
    if equal_length and loss in ONE_STAGE:
        given["epochs"] = settings["epochs"] + settings["auc_epochs"]
    return given


def loss_study(
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
        seeds=SEEDS,
        tuning_seeds=tuning_seeds,
        group=group,
    )


def printed_studies(
    name: str,
    source: MedicalSource,
    settings: Mapping[str, Any],
    *,
    equal_length: bool = False,
) -> tuple[Study, ...]:
    """The whole grids of D7 and D8: 95 configurations."""
    return tuple(
        loss_study(
            f"{name}-{loss}",
            loss,
            source,
            settings,
            grid=product(PRINTED[loss]),
            inherits=from_ce(f"{name}-ce", loss),
            group=name,
            equal_length=equal_length,
        )
        for loss in LOSSES
    )


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
    studies, tuned = [], f"{name}-{networks[0]}"
    for network in networks:
        cell = f"{name}-{network}"
        for loss in LOSSES if cell == tuned else ("ce", "auc_m"):
            studies.append(
                loss_study(
                    f"{cell}-{loss}",
                    loss,
                    MedicalSource(dataset=dataset, size=_side(network)),
                    {**settings, "network": _timm_name(network)},
                    grid=product(grids[loss] if cell == tuned else {}),
                    inherits=from_ce(f"{cell}-ce", loss, axes=tuple(grids["ce"]), focal_too=True)
                    if cell == tuned
                    else _all_of(f"{tuned}-{loss}", loss, grids),
                    group=cell,
                    equal_length=equal_length,
                )
            )
    about_patients = {"network": "M", "augment": "none", "precision": "float32", "pretrained": False}
    for loss in LOSSES:
        studies.append(
            loss_study(
                f"{name}-meta-{loss}",
                loss,
                MedicalSource(dataset=dataset, size=_side(networks[0]), metadata=True),
                {**settings, **about_patients},
                grid=product(grids[loss]),
                inherits=from_ce(f"{name}-meta-ce", loss, axes=tuple(grids["ce"]), focal_too=True),
                group=f"{name}-meta",
                equal_length=equal_length,
            )
        )
    return studies


def _all_of(study: str, loss: str, grids: Mapping[str, Axes]) -> Inherits | None:
    """Whatever was tuned for this loss, its first stage included."""
    axes = tuple(dict.fromkeys([*grids[loss], *grids["ce"]]))
    return Inherits(study=study, axes=axes) if axes else None


def from_ce(study: str, loss: str, *, axes: tuple[str, ...] = ("lr",), focal_too: bool = False) -> Inherits | None:
    """The first stage's learning rate, as CE alone has selected it."""
    if loss == "ce" or (loss == "focal" and not focal_too) or not axes:
        return None
    return Inherits(study=study, axes=axes)


def _side(network: str) -> int:
    return int(network.split("-")[1])


def _timm_name(network: str) -> str:
    letter = network.split("-", maxsplit=1)[0]
    return f"tf_efficientnet_{letter.lower()}" if letter.startswith("B") else letter
