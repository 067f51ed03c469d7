"""Melanoma: test-time augmentation, metadata fusion and ensembles over networks, sizes, losses, fold by fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import Comparison
from deepauc.metrics.learned_weights import NothingToWeigh
from deepauc.models.fusion import Scale, fuse
from deepauc.paper.medical_scores import (
    Floats,
    TestScores,
    against,
    delong_interval,
    joined_scores,
    learned_scores,
    pooled,
    read_scores,
)
from deepauc.paper.recipes import TITLES
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.records import Record, RecordBook

LOSSES = ("ce", "focal", "auc_s", "auc_m")
SCALES: tuple[Scale, ...] = ("sigmoid", "rank")
LEARNED = "learned on the other folds"
HEADER = ("what", "folds", "mean over folds", "out of fold [95 %]", "minus the first row")
PAPER_FUSION = (
    "The paper, private part, EfficientNet-B5 at 384 px, without / with TTA: CE .9285 / .9345, focal .9266 / .9303, "
    "AUC-S .9332 / .9364, AUC-M .9357 / .9393, AUC-S + metadata .9358 / .9409, AUC-M + metadata .9380 / .9423, ten "
    "models .9438, AUC-M B5-384 + metadata with CE B6-512 .9505."
)
LEARNING = (
    f"`{LEARNED}`: a logistic regression on two columns, the scores of images and of metadata, each standardised "
    "within its fold, is fitted on the out-of-fold scores of the other folds; its two weights are applied to the fold "
    "in hand, of which no label goes into it. This is stacking as usual and not fully nested: the other folds' "
    "networks have trained on rows of the fold in hand. But only one number is learned from their scores: how much "
    "metadata count beside the image."
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
    if any(_can_learn([fold for fold in images[loss] if fold in patients[loss]]) for loss in LOSSES):
        parts.append(LEARNING)
    for loss, folds in images.items():
        if folds:
            parts += [f"### {TITLES[loss]}", markdown_table(HEADER, _fusion_rows(folds, patients[loss]))]
    ensembles = _ensemble_rows(book, cells)
    if ensembles:
        text = (
            "Means after a sigmoid, of scores with TTA where there is any, of the networks that have all folds. The "
            "first row is the best single network, by its mean over the very folds it is tested on."
        )
        if others := _alike(_with_all_folds(book, cells))[1]:
            text += f" Left out, since their test images are others than those of the first: {', '.join(others)}."
        parts += ["### Ensembles within a fold", text, markdown_table(HEADER, ensembles)]
    return parts


def _fusion_rows(images: Folds, patients: Folds) -> list[list[str]]:
    """Image alone, with TTA, metadata alone, both half and half and learned; each against the plain image score."""
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
    both = [("image", plain), ("image, TTA", augmented)]
    both = [(text, scores) for text, scores in both if all(fold in scores for fold in common)]
    for scale in SCALES:
        for text, scores in both:
            joined = {fold: fuse(scores[fold], patients[fold].plain, scale=scale) for fold in common}
            rows.append(_row(f"{text} + metadata, 0.5 : 0.5, {scale}", own, joined, plain))
    for text, scores in both if _can_learn(common) else ():
        what, learned = f"{text} + metadata, {LEARNED}", _learned(scores, patients, common)
        nothing = [what, str(len(common)), "-", "no score rises with the label", "-"]
        rows.append(nothing if learned is None else _row(what, own, learned, plain))
    return rows


def _can_learn(folds: Sequence[int]) -> bool:
    return len(folds) > 1


def _learned(scores: dict[int, Floats], patients: Folds, common: Sequence[int]) -> dict[int, Floats] | None:
    """None where in some folds neither score says anything."""
    try:
        return learned_scores(
            {fold: scores[fold] for fold in common},
            {fold: patients[fold].plain for fold in common},
            {fold: patients[fold].labels for fold in common},
        )
    except NothingToWeigh:
        return None


def fusion_gains(book: RecordBook, cells: SkinCells) -> dict[tuple[str, str], Comparison]:
    """By loss and how they are joined: image + metadata against the image, over the folds that both have.

    Without TTA in both; with the learned weight, with TTA in both too.
    """
    found: dict[tuple[str, str], Comparison] = {}
    for loss in LOSSES:
        images = _folds(book.final(f"{cells.name}-{cells.networks[0]}-{loss}"))
        patients = _folds(book.final(f"{cells.name}-meta-{loss}"))
        common = [fold for fold in images if fold in patients]
        parts = [images[fold] for fold in common]
        plain = {fold: images[fold].plain for fold in common}
        augmented = {fold: tta for fold in common if (tta := images[fold].tta) is not None}
        joined: dict[str, tuple[dict[int, Floats], dict[int, Floats]]] = {
            scale: (plain, {fold: fuse(plain[fold], patients[fold].plain, scale=scale) for fold in common})
            for scale in (SCALES if common else ())
        }
        for how, alone in (("learned", plain), ("learned, TTA in both", augmented)):
            whole = _can_learn(common) and len(alone) == len(common)
            if whole and (learned := _learned(alone, patients, common)) is not None:
                joined[how] = alone, learned
        for how, (alone, together) in joined.items():
            test = pooled(parts, [together[fold] for fold in common])
            found[loss, how] = against(test.plain, pooled(parts, [alone[fold] for fold in common]).plain, test)
    return found


def _with_all_folds(book: RecordBook, cells: SkinCells) -> dict[str, Folds]:
    """Networks by name: a network that has seen only some of the folds yet would take the others' away from all."""
    members: dict[str, Folds] = {}
    for network in cells.networks:
        for loss in LOSSES:
            if folds := _folds(book.final(f"{cells.name}-{network}-{loss}")):
                members[f"{network}-{loss}"] = folds
    most = max((len(folds) for folds in members.values()), default=0)
    return {name: folds for name, folds in members.items() if len(folds) == most}


def _alike(members: dict[str, Folds]) -> tuple[dict[str, Folds], list[str]]:
    """Those with the test images of the first, by labels and patients in their order, and the names of the others."""
    first = next(iter(members.values()), {})
    alike = {
        name: folds
        for name, folds in members.items()
        if all(_same_images(folds[fold], first[fold]) for fold in folds if fold in first)
    }
    return alike, [name for name in members if name not in alike]


def _same_images(one: TestScores, other: TestScores) -> bool:
    return np.array_equal(one.labels, other.labels) and np.array_equal(
        np.asarray(one.groups, dtype=object), np.asarray(other.groups, dtype=object)
    )


def _members(book: RecordBook, cells: SkinCells) -> tuple[dict[str, Folds], list[int], str] | None:
    """Networks by name, the folds that all of them have, and the best single one; None with fewer than two."""
    members, _ = _alike(_with_all_folds(book, cells))
    common = sorted(set.intersection(*(set(folds) for folds in members.values()))) if members else []
    if len(members) < 2 or not common:
        return None
    single = {name: fmean(_auc(folds[fold].best, folds[fold]) for fold in common) for name, folds in members.items()}
    return members, common, max(single, key=lambda name: single[name])


def ensemble_gain(book: RecordBook, cells: SkinCells) -> tuple[str, Comparison] | None:
    """All networks together against the best single one, both with TTA; in words, and paired."""
    found = _members(book, cells)
    if found is None:
        return None
    members, common, best = found
    parts = [members[best][fold] for fold in common]
    every = _mean(members, list(members), common)
    test = pooled(parts, [every[fold] for fold in common])
    single = pooled(parts, [one.best for one in parts])
    return f"{len(members)} against {best}", against(test.plain, single.plain, test)


def _ensemble_rows(book: RecordBook, cells: SkinCells) -> list[list[str]]:
    found = _members(book, cells)
    if found is None:
        return []
    members, common, best = found
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
    delong = delong_interval(test.plain, test)
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
