"""The rows of the medical pages, and what several of their modules need to know of a row's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import Comparison
from deepauc.models.fusion import ensemble
from deepauc.studies.records.book import Record
from deepauc.studies.study import StudySet
from experiments.clinical.recipes import LOSSES
from experiments.clinical.scores import Floats, TestScores, against, pooled, read_scores
from experiments.clinical.studies import (
    HAM_NETWORKS,
    MELANOMA_NETWORKS,
    PRINTED_NETWORKS,
    PRINTED_SKIN,
    ddsm,
    medical,
    melanoma,
    pcam,
)

SEEDS = 5  # training sets, or folds


@dataclass(frozen=True, kw_only=True)
class MedicalCell:
    """A row of up to four losses. paper: test AUC of CE, focal, AUC-S and AUC-M on the task it stands in for.

    published: of others on this very task. folds: one test part a fold, rather than one for all training sets.
    """

    name: str
    paper: tuple[float, ...] | None
    published: float | None
    folds: bool
    losses: tuple[str, ...]


_FAMILIES = ("breast", "pneumonia", "path", "ham", "isic", "melanoma", "ddsm", "pcam")  # in this order on a page
_DDSM, _PCAM = (0.9392, 0.9495, 0.9469, 0.9544), (0.8394, 0.8556, 0.8703, 0.8896)
_MELANOMA = (0.9285, 0.9266, 0.9332, 0.9357)  # private part, EfficientNet-B5 at 384 px, without TTA
_PAPER = {"breast": _DDSM, "ddsm": _DDSM, "path": _PCAM, "pcam": _PCAM, "ham": _MELANOMA, "melanoma": _MELANOMA}
_PUBLISHED = {"breast": 0.901, "pneumonia": 0.973}  # the best seen at 28 px on the official parts
_IN_FOLDS = ("ham", "isic", "melanoma")


@dataclass(frozen=True, kw_only=True)
class SkinCells:
    """Names of the studies: NAME-NETWORK-LOSS and NAME-meta-LOSS; the first network is that of the comparison."""

    name: str
    networks: tuple[str, ...]


SKINS = {
    "medical": (
        SkinCells(name="ham", networks=HAM_NETWORKS),
        SkinCells(name=PRINTED_SKIN, networks=PRINTED_NETWORKS),
    ),
    "melanoma": (SkinCells(name="melanoma", networks=MELANOMA_NETWORKS),),
}


def _cells(studies: StudySet) -> tuple[MedicalCell, ...]:
    """The groups of a set's studies, those of `best` last."""
    found = []
    for name in dict.fromkeys(study.group for study in studies.studies):
        family, *kind = name.split("-")
        own = {study.name for study in studies.studies if study.group == name}
        found.append(
            MedicalCell(
                name=name,
                paper=None if "meta" in kind else _PAPER.get(family),
                published=_PUBLISHED.get(family),
                folds=family in _IN_FOLDS,
                losses=tuple(loss for loss in LOSSES if f"{name}-{loss}" in own),
            )
        )
    return tuple(sorted(found, key=lambda one: ("best" in one.name, _FAMILIES.index(one.name.split("-")[0]))))


MEDICAL_CELLS = {studies.name: _cells(studies) for studies in (medical(), melanoma(), ddsm(), pcam())}


def together(cell: MedicalCell, records: Sequence[Record]) -> TestScores:
    """All runs of a loss as one: the mean over seeds of one test part, or the folds side by side."""
    scores = [read_scores(record) for record in records]
    if cell.folds:
        return pooled(scores, [one.plain for one in scores])
    mean = ensemble([one.plain for one in scores])
    return TestScores(plain=mean, labels=scores[0].labels, tta=None, groups=scores[0].groups)


def paired(cell: MedicalCell, records: Sequence[Record], baseline: Sequence[Record]) -> Comparison | None:
    """The paired test of both losses' scores over the sets that both have."""
    ours, theirs = ({record["seed"]: record for record in some} for some in (records, baseline))
    common = sorted(set(ours) & set(theirs))
    if not common:
        return None
    mine, other = (together(cell, [some[seed] for seed in common]) for some in (ours, theirs))
    return against(mine.plain, other.plain, mine)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """The seeds' models together, on one test part. scores: their mean, with TTA where there is any."""

    single: tuple[float, ...]  # test AUC of each
    tta: tuple[float, ...]  # of each with TTA
    plain: float  # of the mean of all
    best_single: Floats  # scores of the best of them, as it is or with TTA, best on this test part
    scores: Floats
    test: TestScores

    @property
    def to_pass(self) -> float:
        """The highest test AUC of a single model, as it is or with TTA: an ensemble with TTA must not win by that."""
        return max(*self.single, *self.tta)


def ensemble_of(records: Sequence[Record]) -> Ensemble:
    """Of one loss in a cell whose training sets share a test part."""
    runs = [read_scores(record) for record in records]
    labels = runs[0].labels
    plain, tta = [one.plain for one in runs], [one.tta for one in runs if one.tta is not None]
    aucs = [float(auroc(scores, labels)) for scores in (*plain, *tta)]
    return Ensemble(
        single=tuple(aucs[: len(plain)]),
        tta=tuple(aucs[len(plain) :]),
        plain=float(auroc(ensemble(plain), labels)),
        best_single=(*plain, *tta)[int(np.argmax(aucs))],
        scores=ensemble([one.best for one in runs]),
        test=runs[0],
    )
