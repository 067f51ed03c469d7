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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepauc.data.counter import fixed_permutation
from deepauc.data.datasets.benchmarks.load import data_root
from deepauc.data.datasets.medical.chexpert import COMPETITION_LABELS, load_chexpert
from deepauc.data.datasets.medical.nih import COMPETITION_FINDINGS, load_nih_sheets
from deepauc.data.task import UNCERTAIN, Task
from deepauc.data.uncertain import Choice
from deepauc.studies.decoded import decoded_once
from deepauc.studies.records.book import RecordBook
from deepauc.studies.sources import Place
from deepauc.studies.study import chosen_names
from deepauc.training.recipe import Recipe
from experiments.clinical.chain import Link, Report, run_links
from experiments.clinical.chest_design import (
    POLICIES,
    PRINTED_STAND_IN,
    REAL,
    STAND_IN,
    ChestDesign,
    study_name,
    study_names,
    with_settings,
)
from experiments.clinical.readers import given_readers, note_readers
from experiments.clinical.recipes import METHODS, ONE_STAGE, arguments
from experiments.clinical.tasks import joined, root_of

SMOOTHED: Mapping[Choice, Choice] = {"zeros": "smooth_zeros", "ones": "smooth_ones"}
HARDENED: Mapping[Choice, Choice] = {"smooth_zeros": "zeros", "smooth_ones": "ones"}
MASKED_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class ChestStudy:
    """A design as an entry of `STUDIES`: its runs by name, which of them are recorded, and all or some of it run."""

    design: ChestDesign
    labels: tuple[str, ...]
    load: Callable[[Place, ChestDesign], Task]

    @property
    def names(self) -> tuple[str, ...]:
        return study_names(self.design, self.labels)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.design.seeds

    @property
    def options(self) -> tuple[str, ...]:
        return ("cells", "seeds", "settings", "pack")

    @property
    def why(self) -> str:
        return "nothing is tuned there, and its runs wait for each other in this process."

    def path(self, results: Path) -> Path:
        return results / f"{self.design.records}.jsonl"

    def chosen(self, cells: Sequence[str]) -> tuple[str, ...]:
        """Names that begin with one of these (`densenet121`, `R-all`), or fit it (`*-auc_m`)."""
        return chosen_names(self.names, cells, f"run of {self.design.name}")

    def recorded(self, results: Path, cells: Sequence[str] = ()) -> dict[str, int]:
        """Final runs by name, those of the study's own settings and seeds."""
        book = RecordBook.of(results, self.design.records)
        return {
            name: sum(record["seed"] in self.design.seeds for record in book.final(name)) for name in self.chosen(cells)
        }

    def with_other_settings(self, results: Path) -> dict[str, int]:
        """Final runs by the text that says what differs."""
        path = results / self.design.records
        books = {other: RecordBook(path, other=other) for other in RecordBook(path).others()}
        return {name: sum(len(book.final(study)) for study in book.studies()) for name, book in books.items()}

    def run(
        self,
        place: Place,
        *,
        cells: Sequence[str] = (),
        seeds: tuple[int, ...] | None = None,
        settings: Mapping[str, Any] | None = None,
        pack: int | None = None,
        device: str | None = None,
        max_minutes: float | None = None,
        report: Report | None = None,
    ) -> dict[str, Any]:
        """Train, write the records down, and count readers where their points are given. left: runs without a record.

        cells: as in `chosen`; what they start from comes along. settings: as in `with_settings`.
        """
        design = with_settings(self.design, settings or {})
        if seeds is not None:
            if len(set(seeds)) != len(seeds) or min(seeds) < 0:
                raise ValueError(f"seeds are distinct whole numbers of at least 0, not {seeds}.")
            design = replace(design, seeds=seeds)
        # Before the images are read, and before days of training.
        names = chosen_names(study_names(design, self.labels), cells, f"run of {design.name}")
        readers = given_readers(data_root(place.data), self.labels)
        task = self.load(place, design)
        _require_both_classes(task)
        every = [*chest_links(design, task), *(policy_links(design, task) if design.masked else ())]
        links = [link for link in every if link.study in names]
        done = run_links(design.records, links, place, device=device, pack=pack, max_minutes=max_minutes, report=report)
        book = RecordBook.of(place.results, design.records)
        records = [record for study in book.studies() for record in book.final(study)]
        beaten = note_readers(design.records, records, self.labels, readers, place)
        return {"runs": len(done), "left": len(links) - len(done), "readers": beaten}


def chexpert_task(place: Place, design: ChestDesign = REAL) -> Task:
    """The download in the design's views and size; the images of valid.csv are the test part."""
    assert design.views is not None
    assert design.size is not None
    return decoded_once(load_chexpert(root_of(place), valid_part="test", views=design.views, size=design.size), place)


def nih_task(place: Place, design: ChestDesign = STAND_IN) -> Task:
    """The five competition labels; train and validation together, whatever the design."""
    del design
    return joined(load_nih_sheets(root_of(place) / "nih_cxr14_96.npz", labels=COMPETITION_FINDINGS))


CHEST_STUDY = ChestStudy(design=STAND_IN, labels=COMPETITION_FINDINGS, load=nih_task)
CHEST_PRINTED_STUDY = ChestStudy(design=PRINTED_STAND_IN, labels=COMPETITION_FINDINGS, load=nih_task)
CHEXPERT_STUDY = ChestStudy(design=REAL, labels=COMPETITION_LABELS, load=chexpert_task)
STUDIES = (CHEST_STUDY, CHEST_PRINTED_STUDY, CHEXPERT_STUDY)


def _require_both_classes(task: Task) -> None:
    """Said before anything is trained: a record needs the test AUC of every label."""
    tested = task.labels.reshape(len(task), -1)[task.part("test")]
    for name, values in zip(task.label_names, tested.T, strict=True):
        if not {0.0, 1.0} <= set(values.tolist()):
            raise ValueError(
                f"the test part of {task.name!r} has one class only of {name!r}, so it has no AUC: "
                "test on more images, or leave that label out."
            )


def chest_links(design: ChestDesign, task: Task) -> list[Link]:
    """Stage 1 of each network and seed, then its second stages."""
    apart = {name: one_disease(task, name) for name in task.label_names}
    about = {"changed": dict(design.changed), **({} if design.views is None else {"views": design.views})}
    links = []
    for network in design.networks:
        for seed in design.seeds:
            first = Link(study=f"{network}-stage1-ce", seed=seed, recipe=_stage_1(design, network), task=task,
                         tta=design.tta, about={"network": network, "labels": "all", **about})  # fmt: skip
            links.append(first)
            for loss in design.losses:
                for labels, own in {"all": task, **apart}.items():
                    links.append(
                        Link(
                            study=study_name(network, labels, loss),
                            seed=seed,
                            recipe=_stage_2(design, network, loss, own),
                            task=own,
                            parent=first,
                            tta=design.tta,
                            about={
                                "network": network,
                                "labels": labels,
                                "loss": loss,
                                "hard_policy": design.policy,
                                **about,
                            },
                        )
                    )
    return links


def policy_links(design: ChestDesign, task: Task) -> list[Link]:
    """CE then AUC-M on all diseases at once, with labels masked as uncertain by the run's seed, policy by policy."""
    settings, links = arguments("auc_m", design.settings), []
    for seed in design.seeds:
        masked = mask_labels(task, share=MASKED_SHARE, seed=seed)
        for policy in POLICIES:
            hard = HARDENED.get(policy, policy)
            recipe = METHODS["auc_m"](**settings, network=design.networks[0], uncertain=policy, hard=hard)
            about = {"network": design.networks[0], "labels": "all", "policy": policy, "masked_share": MASKED_SHARE}
            about["changed"] = dict(design.changed)
            links.append(Link(study=f"policy-{policy}", seed=seed, recipe=recipe, task=masked, tta=0, about=about))
    return links


def mask_labels(task: Task, *, share: float, seed: int) -> Task:
    """Some labels of the training part as uncertain (-1): `share` of each label's positives and as many negatives.

    An uncertain label is then positive half of the time, whatever is guessed for all of them. Drawn by seed, the same
    with every version of NumPy; validation and test keep their labels.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie above 0 and at most at 1, not {share}.")
    labels, train = task.labels.reshape(len(task), task.num_labels).copy(), task.part("train")
    for column, name in enumerate(task.label_names):
        positives = train[labels[train, column] == 1]
        count = round(share * len(positives))
        for rows, kind in ((positives, "positives"), (train[labels[train, column] == 0], "negatives")):
            order = fixed_permutation(len(rows), seed=seed, stream=f"uncertain {kind} {name}")
            labels[rows[order[: min(count, len(rows))]], column] = UNCERTAIN
    return task.with_labels(labels.reshape(task.labels.shape))


def one_disease(task: Task, name: str) -> Task:
    """One label of several as a task of its own; rows without that label leave validation and test."""
    labels = task.labels[:, task.label_names.index(name)]
    parts = {part: rows if part == "train" else rows[~np.isnan(labels[rows])] for part, rows in task.parts.items()}
    return replace(task, name=f"{task.name}, {name}", kind="binary", labels=labels, label_names=(name,), parts=parts)


def _stage_1(design: ChestDesign, network: str) -> Recipe:
    smoothed = None if design.policy is None else {name: SMOOTHED.get(c, c) for name, c in design.policy.items()}
    settings = {"network": network, "pretrained": design.pretrained, "uncertain": smoothed}
    return METHODS["ce"](**arguments("ce", design.settings), **settings)


def _stage_2(design: ChestDesign, network: str, loss: str, task: Task) -> Recipe:
    """One stage from the stage-1 network; `pretrained` is over, so the architecture alone is named."""
    hard = None if design.policy is None else {name: design.policy[name] for name in task.label_names}
    given = arguments(loss, design.settings)
    if loss in ONE_STAGE:
        given |= {"epochs": design.settings["auc_epochs"], "uncertain": hard}
    else:
        given["hard"] = hard
    recipe = METHODS[loss](**given, network=network)
    return replace(recipe, stages=(replace(recipe.stages[-1], reset_classifier=True),))
