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

from collections.abc import Mapping
from functools import partial
from typing import Any

from deepauc.data.datasets.benchmarks.load import data_root
from deepauc.data.uncertain import Choice
from deepauc.studies.entry import Entry
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import Place
from deepauc.studies.study import Study, StudySet
from experiments.clinical.chest_design import (
    POLICIES,
    PRINTED_STAND_IN,
    REAL,
    STAND_IN,
    ChestDesign,
    with_settings,
)
from experiments.clinical.chest_page import PAGES
from experiments.clinical.chest_tasks import ChestSource
from experiments.clinical.packs import side_by_side
from experiments.clinical.readers import given_readers, note_readers
from experiments.clinical.recipes import METHODS, ONE_STAGE, arguments

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
