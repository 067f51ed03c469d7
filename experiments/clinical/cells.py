"""The rows of the medical pages, and what several of their modules need to know of a row's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import Comparison
from deepauc.models.fusion import ensemble
from deepauc.studies.records.book import Record
from experiments.clinical.recipes import LOSSES
from experiments.clinical.scores import Floats, TestScores, against, pooled, read_scores
from experiments.clinical.studies import HAM_NETWORKS, MELANOMA_NETWORKS, PRINTED_NETWORKS, PRINTED_SKIN

SEEDS = 5  # training sets, or folds


@dataclass(frozen=True, kw_only=True)
class MedicalCell:
    """A row of four losses. paper: test AUC of CE, focal, AUC-S and AUC-M on the task it stands in for.

    published: of others on this very task. folds: one test part a fold, rather than one for all training sets.
    """

    name: str
    paper: tuple[float, ...] | None = None
    published: float | None = None
    folds: bool = False
    losses: tuple[str, ...] = LOSSES


_DDSM, _PCAM = (0.9392, 0.9495, 0.9469, 0.9544), (0.8394, 0.8556, 0.8703, 0.8896)
_MELANOMA = (0.9285, 0.9266, 0.9332, 0.9357)  # private part, EfficientNet-B5 at 384 px, without TTA
_BREAST, _PNEUMONIA = 0.901, 0.973  # the best seen at 28 px on the official parts
_PAIR = ("ce", "auc_m")
_SETTINGS = ("R-paper", "R-ours", "printed")


@dataclass(frozen=True, kw_only=True)
class SkinCells:
    """Names of the studies: NAME-NETWORK-LOSS and NAME-meta-LOSS; the first network is that of the comparison."""

    name: str
    networks: tuple[str, ...]

    def each(self) -> tuple[MedicalCell, ...]:
        losses = {which: LOSSES if which == self.networks[0] else _PAIR for which in self.networks}
        images = (
            MedicalCell(name=f"{self.name}-{which}", paper=_MELANOMA, folds=True, losses=own)
            for which, own in losses.items()
        )
        return (*images, MedicalCell(name=f"{self.name}-meta", folds=True))


SKINS = {
    "medical": (
        SkinCells(name="ham", networks=HAM_NETWORKS),
        SkinCells(name=PRINTED_SKIN, networks=PRINTED_NETWORKS),
    ),
    "melanoma": (SkinCells(name="melanoma", networks=MELANOMA_NETWORKS),),
}
MEDICAL_CELLS = {
    "medical": (
        *(
            MedicalCell(name=f"breast-{which}", paper=_DDSM, published=_BREAST)
            for which in ("R-paper", "R-ours", "printed")
        ),
        *(MedicalCell(name=f"pneumonia-{which}", published=_PNEUMONIA) for which in ("R-paper", "R-ours")),
        *(MedicalCell(name=f"path-{which}", paper=_PCAM) for which in _SETTINGS),
        *(cell for skin in SKINS["medical"] for cell in skin.each()),
        MedicalCell(name="isic-M", folds=True),
        MedicalCell(name="breast-R-best", paper=_DDSM, published=_BREAST, losses=_PAIR),
        MedicalCell(name="pneumonia-R-best", published=_PNEUMONIA, losses=_PAIR),
        MedicalCell(name="path-R-best", paper=_PCAM, losses=_PAIR),
        MedicalCell(name="ham-R-best", paper=_MELANOMA, folds=True, losses=_PAIR),
    ),
    "melanoma": tuple(cell for skin in SKINS["melanoma"] for cell in skin.each()),
    "ddsm": (MedicalCell(name="ddsm-D", paper=_DDSM),),
    "pcam": (MedicalCell(name="pcam-D", paper=_PCAM),),
}


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
