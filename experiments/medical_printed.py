"""The paper's recipes on the stand-ins as it prints them: another task, image size and number of epochs, no more.

    deepauc study run experiments/medical.py medical --cells breast-printed,path-printed,ham-printed --device cuda
    deepauc study run experiments/medical.py chest-printed --device cuda  # D5: `medical_chest_plan`

D7 on BreastMNIST and D8 on PathMNIST: DenseNet121 (images of 28 px with a border of 2, it takes none below 29), flips,
the whole grids, no copies of test images. D6 on HAM10000: EfficientNets, Adam between 3e-5 and 2.4e-4, the whole grids,
metadata. Nothing is pretrained; whether the paper's networks were it does not say. CE and focal loss have as many
epochs as both stages of the AUC losses together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepauc.studies.study import Study
from experiments.medical_losses import MELANOMA_GRIDS, printed_studies, skin_studies
from experiments.medical_recipes import DDSM, MELANOMA, PCAM
from experiments.medical_tasks import MedicalSource

BREAST: Mapping[str, Any] = {**DDSM, "epochs": 60, "auc_epochs": 15}
PATH: Mapping[str, Any] = {**PCAM, "epochs": 20, "auc_epochs": 5}
HAM: Mapping[str, Any] = MELANOMA  # its epochs too
NETWORKS = ("B5-32", "B3-32")  # the first, that of Table 4, has all four losses
SKIN_NAME = "ham-printed"
SIDE = 32


def printed_cells() -> list[Study]:
    """Those of the set `medical`."""
    breast, path = (MedicalSource(dataset=name, size=SIDE, tta=0) for name in ("breastmnist", "pathmnist"))
    return [
        *printed_studies("breast-printed", breast, BREAST, equal_length=True),
        *printed_studies("path-printed", path, PATH, equal_length=True),
        *skin_studies(SKIN_NAME, "ham10000", HAM, MELANOMA_GRIDS, NETWORKS),
    ]
