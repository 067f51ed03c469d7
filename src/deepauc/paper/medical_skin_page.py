"""Melanoma: test-time augmentation, metadata fusion and ensembles over networks, sizes, losses, fold by fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.models.fusion import Scale, fuse
from deepauc.paper.medical_scores import Floats, TestScores, against, intervals, joined_scores, pooled, read_scores
from deepauc.paper.recipes import TITLES
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.records import Record, RecordBook

LOSSES = ("ce", "focal", "auc_s", "auc_m")
SCALES: tuple[Scale, ...] = ("sigmoid", "rank")
HEADER = ("what", "folds", "mean over folds", "out of fold [95 %]", "minus the first row")
PAPER_FUSION = (
    "The paper, private part, EfficientNet-B5 at 384 px, without / with TTA: CE .9285 / .9345, focal .9266 / .9303, "
    "AUC-S .9332 / .9364, AUC-M .9357 / .9393, AUC-S + metadata .9358 / .9409, AUC-M + metadata .9380 / .9423, ten "
    "models .9438, AUC-M B5-384 + metadata with CE B6-512 .9505."
)


@dataclass(frozen=True, kw_only=True)
class SkinCells:
    """Names of the studies: NAME-NETWORK-LOSS and NAME-meta-LOSS; the first network is that of the comparison."""

    name: str
    networks: tuple[str, ...]


Folds = dict[int, TestScores]


def skin_sections(book: RecordBook, cells: SkinCells) -> list[str]:
    """Markdown, or nothing where no image run is there."""
    first = f"{cells.name}-{cells.networks[0]}"
    images = {loss: _folds(book.final(f"{first}-{loss}")) for loss in LOSSES}
    patients = {loss: _folds(book.final(f"{cells.name}-meta-{loss}")) for loss in LOSSES}
    if not any(images.values()):
        return []
    parts = [f"## Melanoma: TTA, metadata, ensembles ({first})", PAPER_FUSION]
    for loss, folds in images.items():
        if folds:
            parts += [f"### {TITLES[loss]}", markdown_table(HEADER, _fusion_rows(folds, patients[loss]))]
    ensembles = _ensemble_rows(book, cells)
    if ensembles:
        parts += [
            "### Ensembles within a fold",
            "Means after a sigmoid, of scores with TTA where there is any. The first row is the best single network, "
            "by its mean over folds.",
            markdown_table(HEADER, ensembles),
        ]
    return parts


def _fusion_rows(images: Folds, patients: Folds) -> list[list[str]]:
    """Image alone, with TTA, metadata alone, both with either scale; each against the plain image score."""
    common = [fold for fold in images if fold in patients]
    plain = {fold: one.plain for fold, one in images.items()}
    rows = [_row("image", images, plain, plain)]
    augmented = {fold: one.tta for fold, one in images.items() if one.tta is not None}
    if len(augmented) == len(images):
        rows.append(_row("image, TTA", images, augmented, plain))
    if not common:
        return rows
    for fold in common:
        if not np.array_equal(images[fold].labels, patients[fold].labels):
            raise ValueError(f"fold {fold}: images and metadata have other test rows; run both on the same data.")
    own = {fold: images[fold] for fold in common}
    rows.append(_row("metadata", own, {fold: patients[fold].plain for fold in common}, plain))
    for scale in SCALES:
        for text, scores in (("image", plain), ("image, TTA", augmented)):
            if all(fold in scores for fold in common):
                joined = {fold: fuse(scores[fold], patients[fold].plain, scale=scale) for fold in common}
                rows.append(_row(f"{text} + metadata, 0.5 : 0.5, {scale}", own, joined, plain))
    return rows


def _ensemble_rows(book: RecordBook, cells: SkinCells) -> list[list[str]]:
    members: dict[str, Folds] = {}
    for network in cells.networks:
        for loss in LOSSES:
            if folds := _folds(book.final(f"{cells.name}-{network}-{loss}")):
                members[f"{network}-{loss}"] = folds
    if len(members) < 2:
        return []
    common = sorted(set.intersection(*(set(folds) for folds in members.values())))
    if not common:
        return []
    single = {name: fmean(_auc(folds[fold].best, folds[fold]) for fold in common) for name, folds in members.items()}
    best = max(single, key=lambda name: single[name])
    tests = {fold: members[best][fold] for fold in common}
    scores = {fold: members[best][fold].best for fold in common}
    rows = [_row(f"best single: {best}", tests, scores, scores)]
    first = cells.networks[0]
    choices = {
        f"four losses, {first}": [name for name in members if name.startswith(f"{first}-")],
        "all networks and sizes, AUC-M": [name for name in members if name.endswith("-auc_m")],
        "all networks and sizes, AUC-M and CE": [name for name in members if name.endswith(("-auc_m", "-ce"))],
        "all": list(members),
    }
    for text, names in choices.items():
        if len(names) > 1:
            rows.append(_row(f"{text} ({len(names)})", tests, _mean(members, names, common), scores))
    patients = _folds(book.final(f"{cells.name}-meta-auc_m"))
    if all(fold in patients for fold in common) and f"{first}-auc_m" in members:
        with_patients = {
            fold: fuse(members[f"{first}-auc_m"][fold].best, patients[fold].plain, scale="rank") for fold in common
        }
        for name in (n for n in members if n.endswith("-ce") and not n.startswith(f"{first}-")):
            pair = {
                fold: joined_scores([with_patients[fold], members[name][fold].best], scale="rank") for fold in common
            }
            rows.append(_row(f"AUC-M {first} + metadata, with {name}, ranks", tests, pair, scores))
    return rows


def _mean(members: dict[str, Folds], names: Sequence[str], common: Sequence[int]) -> dict[int, Floats]:
    return {fold: joined_scores([members[name][fold].best for name in names]) for fold in common}


def _row(text: str, tests: Folds, scores: dict[int, Floats], baseline: dict[int, Floats]) -> list[str]:
    folds = sorted(scores)
    parts = [tests[fold] for fold in folds]
    test = pooled(parts, [scores[fold] for fold in folds])
    delong, _ = intervals(test.plain, test)
    other = pooled(parts, [baseline[fold] for fold in folds])
    shown = "-"
    if not np.array_equal(test.plain, other.plain):
        found = against(test.plain, other.plain, test)
        shown = f"{float(found.difference):+.3f} [{float(found.low):+.3f}, {float(found.high):+.3f}]"
    return [
        text,
        str(len(folds)),
        f"{fmean(_auc(scores[fold], tests[fold]) for fold in folds):.3f}",
        auc_text(float(delong.value), float(delong.low), float(delong.high)),
        shown,
    ]


def _auc(scores: Floats, test: TestScores) -> float:
    return float(auroc(scores, test.labels))


def _folds(records: Sequence[Record]) -> Folds:
    return {record["seed"]: read_scores(record) for record in records}
