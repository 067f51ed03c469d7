"""What is run on chest X-rays: the designs of CheXpert (D5) and of its stand-ins, with their settings and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deepauc.data.datasets.medical.chexpert import COMPETITION_LABELS, LIBAUC_POLICY, Views
from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS
from deepauc.data.uncertain import Choice
from deepauc.studies.sources import TaskSource
from deepauc.training.plain import valid_name
from experiments.clinical.chest_tasks import CheXpertImages, NIHImages
from experiments.clinical.recipes import CHEXPERT, METHODS
from experiments.clinical.tasks import TTA

POLICIES: tuple[Choice, ...] = ("ignore", "zeros", "ones", "smooth_zeros", "smooth_ones")
CHEXPERT_NETWORKS = ("densenet121", "densenet161", "densenet169", "densenet201", "inception_resnet_v2")


@dataclass(frozen=True, kw_only=True)
class ChestDesign:
    """What is run: networks x seeds x (all at once, each disease) x losses. policy: hard labels of stage 2.

    views, size: of CheXpert's images; None where there is no choice. changed: settings that are not the study's own.
    """

    name: str
    title: str = ""
    labels: tuple[str, ...] = COMPETITION_FINDINGS
    images: Callable[[ChestDesign], TaskSource] = lambda _: NIHImages()
    networks: tuple[str, ...] = ("R",)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    losses: tuple[str, ...] = tuple(METHODS)
    pretrained: bool = False
    settings: Mapping[str, Any]
    policy: Mapping[str, Choice] | None = None
    masked: bool = False
    tta: int = TTA
    views: Views | None = None
    size: int | None = None
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def records(self) -> str:
        """The set that the records name: the study, and after a slash what differs from it."""
        return "/".join([self.name, *([_folder_name(self.changed)] if self.changed else [])])


REAL = ChestDesign(
    name="chexpert",
    title="CheXpert (D5): five networks, at once and by disease; --data: the edition's folder",
    labels=COMPETITION_LABELS,
    images=lambda design: CheXpertImages(views=design.views or "frontal", size=design.size or 320),
    networks=CHEXPERT_NETWORKS,
    seeds=(0,),
    pretrained=True,
    settings=CHEXPERT,
    policy=LIBAUC_POLICY,
    views="frontal",
    size=320,
)
# 3,964 training images in batches of 32 are 123 steps an epoch: 738 in stage 2, 14 % and 57 % of which are 106 and 423.
STAND_IN = ChestDesign(
    name="chest",
    title="Chest X-rays of NIH at 96 px for CheXpert: at once, by disease, uncertain labels, ensembles",
    settings={**CHEXPERT, "lr": 1e-3, "epochs": 12, "auc_epochs": 6, "milestones": (106, 423)},
    masked=True,
)
# D5 as printed but for task, size and epochs: stage 1 has 2,952 steps (two epochs of CheXpert: 12,000), stage 2, which
# there is 24 times a network, 369. The paper's milestones lie beyond that. It names copies of test images for D6 alone.
PRINTED_STAND_IN = ChestDesign(
    name="chest-printed",
    title="The same with CheXpert's settings as printed (D5), five networks",
    networks=CHEXPERT_NETWORKS,
    seeds=(0,),
    settings={**CHEXPERT, "epochs": 24, "auc_epochs": 3},
    tta=0,
)


def with_settings(
    design: ChestDesign, settings: Mapping[str, Any], seeds: tuple[int, ...] | None = None
) -> ChestDesign:
    """The design with others of its seeds, settings, losses, networks, tta, pretrained; for CheXpert views and size.

    Losses and networks choose what is run; whatever else differs from the design makes it another experiment, whose
    records name a set of their own.
    """
    own: dict[str, Any] = {**design.settings, "precision": design.settings.get("precision", "bfloat16")}
    own |= {name: getattr(design, name) for name in ("losses", "networks", "tta", "pretrained")}
    own |= {name: getattr(design, name) for name in ("views", "size") if getattr(design, name) is not None}
    given = {}
    for name, value in settings.items():
        given[name] = _like(own[valid_name(name, list(own), f"setting of {design.name}")], value, name)
    for loss in given.get("losses", ()):
        valid_name(loss, list(METHODS), "loss")
    if given.get("views", "all") not in ("all", "frontal"):
        raise ValueError(f"views must be 'frontal' or 'all', not {given['views']!r}.")
    chosen = {name: given.pop(name) for name in ("losses", "networks") if name in given}
    changed = {name: value for name, value in given.items() if value != own[name]}
    direct = {name: changed[name] for name in ("views", "size", "tta", "pretrained") if name in changed}
    inside = {name: value for name, value in changed.items() if name not in direct}
    other = (
        chosen.get("networks", design.networks)[0] != design.networks[0]
    )  # the policies are of the study's own network
    return replace(
        design,
        seeds=seeds or design.seeds,
        settings={**design.settings, **inside},
        changed={**design.changed, **changed},
        masked=design.masked and not other,
        **direct,
        **chosen,
    )


def _like(own: Any, value: Any, name: str) -> Any:
    """The value, if it is of the setting's kind. Several: `ce,auc_m`, `52,210` or a list; 1 is a float too."""
    if isinstance(own, tuple):
        several = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        if isinstance(own[0], int) and all(isinstance(one, str) and one.strip().isdecimal() for one in several):
            several = [int(one) for one in several]
        if several and all(isinstance(one, type(own[0])) and one != "" for one in several):
            return tuple(several)
    elif isinstance(own, bool) or isinstance(value, bool):
        if isinstance(own, bool) and isinstance(value, bool):
            return value
    elif isinstance(own, float) and isinstance(value, int):
        return float(value)
    elif isinstance(value, type(own)):
        return value
    raise ValueError(f"{name} is {own!r} by default: {value!r} has another type.")


def _folder_name(changed: Mapping[str, Any]) -> str:
    """`gamma=0.00333333,views=all`."""
    shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in sorted(changed.items())}
    return ",".join(f"{name}={''.join(c for c in text if c not in '/() ')}" for name, text in shown.items())
