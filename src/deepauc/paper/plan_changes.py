"""A CPU plan of `deepauc train`, changed in one thing at a time, on five real sets: the evidence for `plan.py`.

    deepauc study run plan --device cuda     # the recipes are a CPU's; where they are run does not matter
    deepauc study table plan                 # results/plan.md

Network, batch and epochs are the plan's for the set; all else is written here, so that what was compared stays what it
was when the plan has learned from it. Validation AUC over five folds of a training set, weights of the last epoch. No
test image is looked at: the test AUC of a plan comes from `benchmarks/csv_to_report.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Literal

from deepauc.data.augment import Augment
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec, SGDSpec
from deepauc.paper.best import VIEWS
from deepauc.paper.medical_tasks import MedicalSource
from deepauc.paper.toy import mean_interval
from deepauc.reporting.tables import auc_text, markdown_table
from deepauc.studies.folds import FoldSource
from deepauc.studies.grid import Grid
from deepauc.studies.records import RecordBook
from deepauc.studies.sources import BenchmarkSource, TaskSource
from deepauc.studies.study import Study, StudySet
from deepauc.training.cost import TRAINING_FACTOR, multiply_adds
from deepauc.training.plain import valid_name
from deepauc.training.plan import Fingerprint, PlanOptions, make_plan
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Steps

SET = "plan"
FOLDS = 5
BASE = "base"


@dataclass(frozen=True, kw_only=True)
class PlannedSet:
    """A training set whose folds are planned for. positives, negatives: of four folds, which is what a plan sees."""

    source: TaskSource
    number: int  # of the training set; not one that another page reports, where sets are drawn by number
    positives: int
    negatives: int
    shape: tuple[int, int, int]

    @property
    def rows(self) -> int:
        return self.positives + self.negatives

    @property
    def fingerprint(self) -> Fingerprint:
        """Without a validation part: the weights of the last epoch are kept, so that folds do not flatter them."""
        return Fingerprint(
            rows={"train": self.rows},
            positives={"train": (self.positives,)},
            negatives={"train": (self.negatives,)},
            shape=self.shape,
            file_sizes={},
            groups=None,
        )


SETS: Mapping[str, PlannedSet] = {
    "breast": PlannedSet(
        source=MedicalSource(dataset="breastmnist"), number=0, positives=135, negatives=364, shape=(28, 28, 1)
    ),
    "pneumonia": PlannedSet(
        source=MedicalSource(dataset="pneumoniamnist"), number=0, positives=1079, negatives=3106, shape=(28, 28, 1)
    ),
    "path": PlannedSet(
        source=MedicalSource(dataset="pathmnist"), number=100, positives=55, negatives=5459, shape=(28, 28, 3)
    ),
    "ham": PlannedSet(
        source=MedicalSource(dataset="ham10000", size=32), number=0, positives=451, negatives=4587, shape=(32, 32, 3)
    ),
    "C2": PlannedSet(
        source=BenchmarkSource(benchmark="C2", imratio=0.1),
        number=100,
        positives=888,
        negatives=8000,
        shape=(32, 32, 3),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is done otherwise than in the base, which is all defaults.

    stages: both, or one of them over the length of both. longer: factor on their epochs. colour: brightness, contrast
    and, where there are any, colours changed, and a hole cut out. share: least share of positives in a batch of the AUC
    stage; ce_share: of cross-entropy, None as they come. reset: whether the AUC stage begins with a fresh classifier.
    first_epochs: of a contrastive stage before everything. tta: copies of an image that a score is the mean of.
    """

    stages: Literal["both", "ce", "auc_m"] = "both"
    longer: float = 1.0
    ema: float | None = None
    mixup: float = 0.0
    flip: bool = False
    stronger: bool = False
    colour: bool = False
    share: float = 1 / 8
    ce_share: float | None = None
    ce_lr: float = 2e-3
    auc_lr: float = 0.1
    margin: float = 0.5
    gamma: float = 0.002
    reset: bool = True
    first_epochs: int = 0
    tta: int = 0


CHANGES: Mapping[str, Change] = {
    BASE: Change(),
    "CE alone, as long": Change(stages="ce"),
    "AUC-M alone, as long": Change(stages="auc_m"),
    "twice as long": Change(longer=2.0),
    "EMA .99": Change(ema=0.99),
    "EMA .998": Change(ema=0.998),
    "mixup .2": Change(mixup=0.2),
    "mixup 1": Change(mixup=1.0),
    "mixup 1, EMA .99, twice as long": Change(mixup=1.0, ema=0.99, longer=2.0),
    "mirrored": Change(flip=True),
    "stronger augmentation": Change(stronger=True),
    "8 copies": Change(tta=8),
    "stronger augmentation, 8 copies": Change(stronger=True, tta=8),
    "colour and cutout": Change(colour=True),
    "colour and cutout, 8 copies": Change(colour=True, tta=8),
    "a quarter positives": Change(share=0.25),
    "a quarter positives in CE": Change(ce_share=0.25),
    "a quarter positives in both": Change(share=0.25, ce_share=0.25),
    "CE lr .001": Change(ce_lr=1e-3),
    "CE lr .005": Change(ce_lr=5e-3),
    "AUC lr .03": Change(auc_lr=0.03),
    "AUC lr .01": Change(auc_lr=0.01),
    "margin 1": Change(margin=1.0),
    "gamma 0": Change(gamma=0.0),
    "classifier kept": Change(reset=False),
    "contrastive first, 50 epochs": Change(first_epochs=50),
    "contrastive first, 50 epochs, mixup 1, EMA .99": Change(first_epochs=50, mixup=1.0, ema=0.99),
    "contrastive first, 50 epochs, a quarter positives in both, colour and cutout, 8 copies": Change(
        first_epochs=50, share=0.25, ce_share=0.25, colour=True, tta=8
    ),
}


def planned(*, on: str, change: str = BASE) -> Recipe:
    """The CPU plan for a set of `SETS`, with a change of `CHANGES`."""
    data = SETS[valid_name(on, list(SETS), "planned set")]
    other = CHANGES[valid_name(change, list(CHANGES), "change")]
    plan = _plan(on)
    *_, first, second = plan.stages
    batch = first.batch_size
    ce, auc = (round(other.longer * (stage.epochs or 0)) for stage in (first, second))
    match other.stages:
        case "both":
            stages = [_ce(data, batch, ce, other), _auc(data, batch, auc, other)]
        case "ce":
            stages = [_ce(data, batch, ce + auc, other)]
        case "auc_m":
            stages = [replace(_auc(data, batch, ce + auc, other), reset_classifier=False)]
    if other.first_epochs:
        stages.insert(0, _views(other.first_epochs, data))
    return Recipe(model=plan.model, stages=tuple(stages), tta=other.tta)


@cache  # it builds networks to count their multiply-adds
def _plan(on: str) -> Recipe:
    return make_plan(SETS[on].fingerprint, PlanOptions(), "cpu").recipe


def _ce(data: PlannedSet, batch: int, epochs: int, other: Change) -> Stage:
    return Stage(
        objective=CrossEntropy(soft_labels=other.mixup > 0),
        optimizer=AdamWSpec(lr=other.ce_lr),
        epochs=epochs,
        schedule=Cosine(),
        positives_per_batch=None if other.ce_share is None else _quota(data, batch, other.ce_share),
        batch_size=batch,
        augment=_augment(data, other),
        ema=other.ema,
    )


def _auc(data: PlannedSet, batch: int, epochs: int, other: Change) -> Stage:
    return Stage(
        objective=AUCMargin(margin=other.margin, soft_labels=other.mixup > 0),
        optimizer=PESGSpec(lr=other.auc_lr, gamma=other.gamma, weight_decay=1e-4),
        epochs=epochs,
        schedule=Steps(milestones=(max(1, epochs // 2), max(2, 3 * epochs // 4))),
        positives_per_batch=_quota(data, batch, other.share),
        reset_classifier=other.reset,
        batch_size=batch,
        augment=_augment(data, other),
        ema=other.ema,
    )


def _quota(data: PlannedSet, batch: int, share: float) -> int:
    """Positives of a batch: this share, or the rows' own where that is larger."""
    return min(round(max(share, data.positives / data.rows) * batch), data.positives)


def _augment(data: PlannedSet, other: Change) -> Augment:
    shifts = Augment(flip=other.flip, crop_padding=data.shape[0] // 14, mixup=other.mixup)
    if other.stronger:
        return replace(shifts, rotation=15.0, scale=(0.8, 1.15), brightness=0.2, contrast=0.2)
    if other.colour:
        seen = replace(shifts, brightness=0.4, contrast=0.4, coarse_dropout=1, hole_size=0.25)
        return seen if data.shape[2] == 1 else replace(seen, saturation=0.4, hue=0.1)
    return replace(shifts, rotation=5.0, scale=(0.95, 1.05))


def _views(epochs: int, data: PlannedSet) -> Stage:
    """NT-Xent on grey or colour views; the batch as large as gives ten steps an epoch, 256 at most."""
    batch = min(256, 1 << ((data.rows // 10).bit_length() - 1))
    colours = {"brightness": 0.4, "contrast": 0.4}
    grey = Augment(flip=False, crop_padding=0, resized_crop=VIEWS.resized_crop, **colours)  # type: ignore[arg-type]
    return Stage(
        objective=Contrastive(temperature=0.2),
        optimizer=SGDSpec(lr=0.5 * batch / 512, weight_decay=1e-4),
        epochs=epochs,
        batch_size=batch,
        views=2,
        schedule=Cosine(warmup=epochs * (data.rows // batch) // 10),
        augment=grey if data.shape[2] == 1 else replace(VIEWS, flip=False),
    )


def plan_set() -> StudySet:
    """A study a set; all changes on the same folds. A cut keeps the first ones: the base, then CE alone, ..."""
    grid = Grid(axes={"change": tuple(CHANGES)}, configs=tuple({"change": change} for change in CHANGES), seed=0)
    studies = []
    for name, data in SETS.items():
        folds = FoldSource(source=data.source, folds=FOLDS)
        studies.append(
            Study(
                name=f"plan-{name}",
                task=folds,
                method=planned,
                fixed={"on": name},
                grid=grid,
                tuning_seeds=folds.seeds((data.number,)),
                seeds=(0,),  # folds are for choosing
            )
        )
    title = "What `deepauc train` plans for a CPU, changed in one thing at a time, five folds of five real sets"
    return StudySet(name=SET, title=title, studies=tuple(studies))


def cost_of(on: str, change: str) -> float:
    """Multiply-adds of a change's recipe over those of the base."""
    return _multiply_adds(on, change) / _multiply_adds(on, BASE)


def _multiply_adds(on: str, change: str) -> float:
    data, recipe = SETS[on], planned(on=on, change=change)
    images = 0
    for stage in recipe.stages:
        assert stage.epochs is not None
        quota = stage.positives_per_batch
        steps = data.rows // stage.batch_size if quota is None else data.negatives // (stage.batch_size - quota)
        images += stage.epochs * steps * stage.batch_size * stage.views
    return float(TRAINING_FACTOR * images * multiply_adds(recipe.model, data.shape))


def page(results: Path) -> str:
    """results/plan.md."""
    book = RecordBook(results / SET)
    found = {name: _by_change(book, name) for name in SETS}
    there = [name for name in SETS if BASE in found[name]]
    introduction = (
        "Made by `deepauc study table plan` from `results/plan/`; `deepauc study run plan` makes the records. A column "
        "is a training set (positives of rows in four of its folds): mean validation AUC over the folds, weights of "
        "the last epoch. `base`: cross-entropy (AdamW, lr .002, cosine), then AUC-M (m .5, gamma .002, lr .1 in steps) "
        "with a fresh classifier; network, batch and epochs as `deepauc train` plans them for a CPU, small shifts and "
        "turns. The other rows differ in what they name; `=`: on this set it is the base (a quarter of its rows are "
        "positives as they come). `minus base`: mean difference on the same folds with a 95 % t-interval over all "
        "folds of the sets that are complete (they share training images, so it is somewhat too narrow). `cost`: "
        "multiply-adds over those of the base, mean over sets."
    )
    parts = ["# The plan of `deepauc train`, one change at a time", introduction]
    rows = [_row(change, found, there) for change in CHANGES if any(change in found[name] for name in there)]
    if not rows:
        return "\n\n".join([*parts, "No run is recorded yet."]) + "\n"
    header = ("change", *(f"{name} ({SETS[name].positives:,} of {SETS[name].rows:,})" for name in there))
    parts.append(markdown_table((*header, "minus base [95 %]", "cost"), rows))
    return "\n\n".join(parts) + "\n"


def _by_change(book: RecordBook, name: str) -> dict[str, dict[int, float]]:
    """Validation AUC by change and fold; runs that diverged are left out.

    Changes with one recipe on this set are one run, which is recorded under the name of one of them.
    """
    by_recipe: dict[Recipe, dict[int, float]] = {}
    for record in book.tuning(f"plan-{name}"):
        if "failed" not in record:
            folds = by_recipe.setdefault(planned(on=name, change=record["config"]["change"]), {})
            folds[record["seed"]] = record["auc"]["validation"][0]
    recipes = {change: planned(on=name, change=change) for change in CHANGES}
    return {change: by_recipe[recipe] for change, recipe in recipes.items() if recipe in by_recipe}


def _row(change: str, found: Mapping[str, Mapping[str, Mapping[int, float]]], there: list[str]) -> list[str]:
    cells, differences = [], []
    for name in there:
        mine, base = found[name].get(change, {}), found[name][BASE]
        if change != BASE and planned(on=name, change=change) == planned(on=name):
            cells.append("=")
        elif len(mine) == len(base) == FOLDS:
            cells.append(auc_text(fmean(mine.values())))
            differences += [mine[fold] - base[fold] for fold in sorted(mine)]
        else:
            cells.append("-")
    if change == BASE or len(differences) < 2:
        minus = "-"
    else:
        interval = mean_interval(differences)
        minus = f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
    cost = fmean(cost_of(name, change) for name in there)
    return [change, *cells, minus, f"{cost:.2f}"]
