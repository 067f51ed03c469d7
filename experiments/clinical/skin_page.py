"""Melanoma: test-time augmentation, metadata fusion and ensembles over networks, sizes, losses, fold by fold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from deepauc.metrics.auroc import auroc
from deepauc.metrics.comparison import Comparison
from deepauc.metrics.learned_weights import NothingToWeigh
from deepauc.models.fusion import Scale, ensemble, fuse
from deepauc.studies.records.book import RecordBook
from deepauc.studies.records.tables import Books, Figures, Table
from deepauc.text_tables import auc_text
from experiments.benchmarks.recipes import TITLES
from experiments.clinical.cells import SkinCells
from experiments.clinical.recipes import LOSSES
from experiments.clinical.scores import (
    Floats,
    TestScores,
    against,
    comparison_text,
    interval,
    learned_scores,
    pooled,
    read_scores,
)

SCALES: tuple[Scale, ...] = ("sigmoid", "rank")
Folds = dict[int, TestScores]
Scores = Mapping[int, Floats]


@dataclass(frozen=True, kw_only=True)
class Way:
    """Scores by fold. without: the same without metadata. scores: None where no score rises with the label."""

    what: str
    key: str
    scores: Scores | None
    without: Scores | None = None


def ways(images: Folds, patients: Folds) -> Iterator[Way]:
    """The image alone, with TTA, metadata alone, both half and half, and by weights learned on the other folds."""
    common = [fold for fold in images if fold in patients]
    alone: dict[tuple[str, str], Scores] = {("image", ""): {fold: one.plain for fold, one in images.items()}}
    augmented = {fold: one.tta for fold, one in images.items() if one.tta is not None}
    if len(augmented) == len(images):
        alone["image, TTA", "_tta"] = augmented
    yield from (Way(what=text, key=f"image{end}", scores=scores) for (text, end), scores in alone.items())
    if not common:
        return
    for fold in common:
        if not np.array_equal(images[fold].labels, patients[fold].labels):
            raise ValueError(f"fold {fold}: images and metadata have different test rows: run both on the same data.")
    metadata = {fold: patients[fold].plain for fold in common}
    yield Way(what="metadata", key="metadata", scores=metadata)
    for scale in SCALES:
        for (text, end), scores in alone.items():
            half = {fold: fuse(scores[fold], metadata[fold], scale=scale) for fold in common}
            yield Way(what=f"{text} + metadata, 0.5 : 0.5, {scale}", key=f"{scale}{end}", scores=half, without=scores)
    truth = {fold: patients[fold].labels for fold in common}
    for (text, end), scores in alone.items() if len(common) > 1 else ():
        learned = _learned({fold: scores[fold] for fold in common}, metadata, truth)
        what = f"{text} + metadata, learned on the other folds"
        yield Way(what=what, key=f"learned{end}", scores=learned, without=scores)


def _learned(images: Scores, metadata: Scores, labels: Scores) -> Scores | None:
    try:
        return learned_scores(images, metadata, labels)
    except NothingToWeigh:
        return None


def compared(tests: Folds, scores: Scores, baseline: Scores) -> Comparison:
    """Out of fold, paired."""
    parts = [tests[fold] for fold in sorted(scores)]
    mine, other = (pooled(parts, [some[fold] for fold in sorted(scores)]) for some in (scores, baseline))
    return against(mine.plain, other.plain, mine)


def members_of(book: RecordBook, cells: SkinCells) -> tuple[dict[str, Folds], str] | None:
    """Networks by name that have all folds and the test images of the first, and the best of them; None below two.

    A network that has seen only some of the folds yet would take the others' away from all.
    """
    names = [f"{network}-{loss}" for network in cells.networks for loss in LOSSES]
    named = {name: folds for name in names if (folds := folds_of(book, f"{cells.name}-{name}"))}
    first = max(named.values(), key=len, default={})  # of equals the first
    members = {name: folds for name, folds in named.items() if folds.keys() == first.keys() and _alike(folds, first)}
    if len(members) < 2:
        return None
    means = {name: _mean_auc(folds, _best(folds)) for name, folds in members.items()}
    return members, max(means, key=lambda name: means[name])


def ensembles(book: RecordBook, cells: SkinCells) -> Iterator[tuple[str, Folds, Scores]]:
    """What, test parts and scores of the best single network, then of averages after a sigmoid."""
    found = members_of(book, cells)
    if found is None:
        return
    members, best = found
    tests, first = members[best], cells.networks[0]
    yield f"best single: {best}", tests, _best(tests)
    choices = {
        f"four losses, {first}": [name for name in members if name.startswith(f"{first}-")],
        "all networks and sizes, AUC-M": [name for name in members if name.endswith("-auc_m")],
        "all networks and sizes, AUC-M and CE": [name for name in members if name.endswith(("-auc_m", "-ce"))],
        "all": list(members),
    }
    for text, names in choices.items():
        if len(names) > 1:
            joined = {fold: ensemble([members[name][fold].best for name in names]) for fold in tests}
            yield f"{text} ({len(names)})", tests, joined
    patients = folds_of(book, f"{cells.name}-meta-auc_m")
    if patients.keys() >= tests.keys() and f"{first}-auc_m" in members:
        own = members[f"{first}-auc_m"]
        for name in (n for n in members if n.endswith("-ce") and not n.startswith(f"{first}-")):
            pair = {
                fold: ensemble(
                    [fuse(own[fold].best, patients[fold].plain, scale="rank"), members[name][fold].best], scale="rank"
                )
                for fold in tests
            }
            yield f"AUC-M {first} + metadata, with {name}, ranks", tests, pair


def skin_tables(set_name: str, cells: SkinCells) -> tuple[Table, Table]:
    """Fusion by loss, and ensembles."""
    first = f"{cells.name}-{cells.networks[0]}"

    def fusions(books: Books) -> Iterator[list[str]]:
        for loss in LOSSES:
            images, patients = _pair(books(set_name), cells, loss)
            plain = {fold: one.plain for fold, one in images.items()}
            for way in ways(images, patients) if images else ():
                shown = ["-"] * 5 if way.scores is None else _shown(images, way.scores, plain, way.without)
                yield [TITLES[loss], way.what, *shown]

    def averages(books: Books) -> Iterator[list[str]]:
        single: Scores | None = None
        for what, tests, scores in ensembles(books(set_name), cells):
            single = single or scores
            yield [what, *_shown(tests, scores, single, None)[:-1]]

    header = ("folds", "mean over folds", "out of fold [95 %]", "minus the first row")
    return (
        Table(
            title=f"TTA and metadata: {first}",
            note=(
                "`learned on the other folds`: a logistic regression on two columns, the scores of images and of "
                "metadata, each standardised within its fold, is fitted on the out-of-fold scores of the other folds. "
                "This is stacking as usual, not fully nested: the other folds' networks have trained on rows of the "
                "fold in hand. `minus the same`: the same scores without metadata. The paper (private part, "
                "EfficientNet-B5 at 384 px), without / with TTA: CE .9285 / .9345, focal .9266 / .9303, AUC-S .9332 / "
                ".9364, AUC-M .9357 / .9393, AUC-S + metadata .9358 / .9409, AUC-M + metadata .9380 / .9423, ten "
                "models .9438, AUC-M + metadata with CE B6-512 .9505."
            ),
            header=("loss", "what", *header, "minus the same without metadata"),
            lines=fusions,
        ),
        Table(
            title=f"Ensembles within a fold: {cells.name}",
            note=(
                "Means after a sigmoid, of scores with TTA where there is any, of the networks that have all folds. "
                "The first row is the best single network, by its mean over the very folds it is tested on."
            ),
            header=("what", *header),
            lines=averages,
        ),
    )


def skin_figures(book: RecordBook, cells: SkinCells) -> Figures:
    """NAME-NETWORK.fusion.LOSS.(sigmoid, rank, learned, each also _tta): minus the same without metadata; ensemble."""
    first, tree = f"{cells.name}-{cells.networks[0]}", Figures()
    for loss in LOSSES:
        images, patients = _pair(book, cells, loss)
        for way in ways(images, patients) if images else ():
            if way.scores is not None and way.without is not None:
                gain = _comparison_figures(compared(images, way.scores, way.without))
                tree.setdefault(first, {}).setdefault("fusion", {}).setdefault(loss, {})[way.key] = gain
    rows = list(ensembles(book, cells))
    every = [row for row in rows if row[0].startswith("all (")]
    if every:
        _, tests, scores = every[0]
        tree.setdefault(first, {})["ensemble"] = _comparison_figures(compared(tests, scores, rows[0][2]))
    return tree


def _comparison_figures(found: Comparison) -> Figures:
    return {"mean": float(found.difference), "low": float(found.low), "high": float(found.high)}


def _shown(tests: Folds, scores: Scores, first: Scores, without: Scores | None) -> list[str]:
    folds = sorted(scores)
    parts = [tests[fold] for fold in folds]
    test = pooled(parts, [scores[fold] for fold in folds])
    found = interval(test.plain, test)
    value = auc_text(found.value, found.low, found.high)
    minus = [_minus(tests, scores, one) for one in (first, without)]
    return [str(len(folds)), f"{_mean_auc(tests, scores):.3f}", value, *minus]


def _minus(tests: Folds, scores: Scores, baseline: Scores | None) -> str:
    if baseline is None or all(np.array_equal(scores[fold], baseline[fold]) for fold in scores):
        return "-"
    return comparison_text(compared(tests, scores, baseline))


def _mean_auc(tests: Folds, scores: Scores) -> float:
    return fmean(float(auroc(scores[fold], tests[fold].labels)) for fold in scores)


def _best(folds: Folds) -> Scores:
    return {fold: one.best for fold, one in folds.items()}


def _alike(folds: Folds, first: Folds) -> bool:
    """By labels and patients in their order."""
    return all(
        np.array_equal(folds[fold].labels, one.labels)
        and np.array_equal(np.asarray(folds[fold].groups, dtype=object), np.asarray(one.groups, dtype=object))
        for fold, one in first.items()
    )


def _pair(book: RecordBook, cells: SkinCells, loss: str) -> tuple[Folds, Folds]:
    """Of the first network's images, and of metadata."""
    return folds_of(book, f"{cells.name}-{cells.networks[0]}-{loss}"), folds_of(book, f"{cells.name}-meta-{loss}")


def folds_of(book: RecordBook, study: str) -> Folds:
    return {record["seed"]: read_scores(record) for record in book.final(study)}
