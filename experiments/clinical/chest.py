"""CheXpert (D5), and chest X-rays of NIH at 96 px in its place.

    deepauc study run experiments/medical.py chexpert --data FOLDER  # train.csv, valid.csv, optionally readers.csv
    deepauc study run experiments/medical.py chexpert --data FOLDER --cells densenet121 --set gamma=1/300
    deepauc study run experiments/medical.py chest --data DIR  # nih_cxr14_96.npz
    deepauc study run experiments/medical.py chest-printed --data DIR  # with CheXpert's own settings

Stage 1: cross-entropy on the five diseases at once, uncertain labels smoothed. Stage 2, with a fresh classifier: each
loss for all diseases at once, and for each disease on its own, always from the same stage-1 network; hard labels by a
named policy. CE and focal loss have that second stage too, by Adam: every row has seen as many epochs. CheXpert: five
networks, frontal views, tested on those of valid.csv (the competition's own test part was never published). Stand-in:
ResNet20, five seeds; trained on the file's train and validation parts; from scratch, so Adam at 1e-3 instead of 1e-5
and more epochs; stage 2's learning rate falls at the same shares of its length (14 % and 57 %). `chest-printed`: the
five networks and all settings of CheXpert but for the epochs, and from scratch.

Margin .8 is the paper's average best on CheXpert, gamma 1/500 the middle of its grid: nothing is tuned here. Other
settings (`--set`) have records of their own, in a folder below the study's that says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from deepauc.data.datasets.benchmarks.load import data_root
from deepauc.data.datasets.medical.chexpert import COMPETITION_LABELS, LIBAUC_POLICY, Views
from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS
from deepauc.data.uncertain import Choice
from deepauc.studies.entry import Entry
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import Place, TaskSource
from deepauc.studies.study import Study, StudySet
from deepauc.training.plain import valid_name
from experiments.clinical.chest_page import PAGES
from experiments.clinical.chest_tasks import ChestSource, CheXpertImages, NIHImages
from experiments.clinical.packs import side_by_side
from experiments.clinical.readers import given_readers, note_readers
from experiments.clinical.recipes import CHEXPERT, METHODS, ONE_STAGE, arguments
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
SMOOTHED: Mapping[Choice, Choice] = {"zeros": "smooth_zeros", "ones": "smooth_ones"}
HARDENED: Mapping[Choice, Choice] = {"smooth_zeros": "zeros", "smooth_ones": "ones"}


def chest_set(design: ChestDesign) -> StudySet:
    """Stage 1 of each network, its second stages for all labels and for each, then the policies."""
    studies = [study for network in design.networks for study in _network(design, network)]
    if design.masked:
        studies += [_policy(design, policy) for policy in POLICIES]
    return StudySet(name=design.records, title=design.title, studies=tuple(studies))


def _network(design: ChestDesign, network: str) -> list[Study]:
    images, first = design.images(design), f"{network}-stage1-ce"
    smoothed = None if design.policy is None else {name: SMOOTHED.get(c, c) for name, c in design.policy.items()}
    about = {"network": network, "changed": dict(design.changed)}
    about |= {} if design.views is None else {"views": design.views}
    start = Study(
        name=first,
        task=ChestSource(images=images, tta=design.tta),
        method=METHODS["ce"],
        fixed={
            **arguments("ce", design.settings),
            "network": network,
            "pretrained": design.pretrained,
            "uncertain": smoothed,
        },
        seeds=design.seeds,
        group=network,
        starts_from="",
        about={**about, "labels": "all"},
    )
    return [
        start,
        *(
            Study(
                name=f"{network}-{(label or 'all').replace(' ', '_')}-{loss}",
                task=ChestSource(images=images, label=label, tta=design.tta, averaged=True),
                method=METHODS[loss],
                fixed={**_second_stage(design, loss, label), "network": network},
                seeds=design.seeds,
                group=network,
                starts_from=first,
                about={**about, "labels": label or "all", "loss": loss, "hard_policy": design.policy},
            )
            for loss in design.losses
            for label in ("", *design.labels)
        ),
    ]


def _second_stage(design: ChestDesign, loss: str, label: str) -> dict[str, Any]:
    """Arguments of the stage from the stage-1 network; `pretrained` is over, so the architecture alone is named."""
    hard = None if design.policy is None else {name: design.policy[name] for name in (label,) if name} or design.policy
    given = {**arguments(loss, design.settings), "alone": True}
    if loss in ONE_STAGE:
        return {**given, "epochs": design.settings["auc_epochs"], "uncertain": hard}
    return {**given, "hard": hard}


def _policy(design: ChestDesign, policy: Choice) -> Study:
    """CE then AUC-M on all diseases at once, with labels masked as uncertain by the run's seed."""
    network = design.networks[0]
    source = ChestSource(images=design.images(design), masked=True)
    return Study(
        name=f"policy-{policy}",
        task=source,
        method=METHODS["auc_m"],
        fixed={
            **arguments("auc_m", design.settings),
            "network": network,
            "uncertain": policy,
            "hard": HARDENED.get(policy, policy),
        },
        seeds=design.seeds,
        group="policy",
        starts_from="",
        about={"network": network, "labels": "all", "policy": policy, "changed": dict(design.changed)},
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
    # The policies are of the study's own network.
    other = chosen.get("networks", design.networks)[0] != design.networks[0]
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


def chest_entry(design: ChestDesign) -> Entry:
    """With the records of other settings beside its own, and readers counted where their points are given."""
    return Entry(
        studies=chest_set(design),
        page=PAGES[design.name],
        page_after_run=True,
        pack=partial(_pack_of, design),
        varied=lambda settings, seeds: chest_set(with_settings(design, settings, seeds)),
        finish=partial(count_readers, design),
    )


def _pack_of(design: ChestDesign, study: Study) -> int:
    """By the images as declared; of another `--set size` the pack may have to be halved."""
    side = design.size or 96
    return side_by_side(study.recipe({}, "final"), (side, side, 1))


def count_readers(design: ChestDesign, place: Place, set_name: str) -> dict[str, Any] | None:
    """Those that the ensembles beat, by all records of the set."""
    book = RecordBook.of(place.results, set_name)
    records = [record for study in book.studies() for record in book.final(study)]
    readers = given_readers(data_root(place.data), design.labels)
    return note_readers(set_name, records, design.labels, readers, place)


ENTRIES = [chest_entry(design) for design in (STAND_IN, PRINTED_STAND_IN, REAL)]
