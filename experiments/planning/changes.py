"""A CPU plan of `deepauc train`, changed in one thing at a time, on five real sets: the evidence for `plan.py`.

    deepauc study run experiments/plan.py --device cuda  # the recipes are a CPU's; where they are run does not matter
    deepauc study table experiments/plan.py  # results/plan.md

Three rounds. The first changes what was planned before there was any evidence (`BASE`), the second what was planned
after it (`NOW`), which differs where few rows are positive. The third is for the defaults of the AUC margin loss and of
PESG: settings of the authors' first releases, one at a time, with AUC-M alone (`ALONE`), and decay and dropout for
cross-entropy too (13 changes of five sets in five folds: 325 runs, of about 5 s each on an H200, packed by 20).
It is also run on small tables (`SMALL`), where a CPU takes seconds: a hundred positives of each set, the whole plan.
Everything is written out here, network and lengths too, so that what was compared stays what it was when the plan has
learned from it. Validation AUC over five folds of a training set, weights of the last epoch. No test image is seen:
the test AUC of a plan is in `results/csv-to-report.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from deepauc.data.augment.batch import Augment
from deepauc.models.build import ResNet20Spec, SmallCNNSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec, SGDSpec
from deepauc.studies.grid import Grid
from deepauc.studies.sources import BenchmarkSource, FoldSource, TaskSource
from deepauc.studies.study import Study, StudySet
from deepauc.training.plain import valid_name
from deepauc.training.plan.cost import TRAINING_FACTOR, multiply_adds
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Steps
from experiments.clinical.tasks import MedicalSource
from experiments.planning.small_tables import SmallTable
from experiments.search.recipe import VIEWS

SET = "plan"
FOLDS = 5
BASE, NOW = "base", "now"
PLANNED = "now, AUC-M if CE leaves time for it"  # of the second round, and by `deepauc train` since
ALONE = "now, AUC-M alone, as long"
SHARE_BEFORE, SHARE_NOW = 1 / 8, 1 / 4
RELEASED_DECAY = 0.0021  # 1e-4 and the pull of gamma = 1/500 towards 0


@dataclass(frozen=True, kw_only=True)
class PlannedSet:
    """A training set whose folds are planned for. positives, negatives: of four folds, which is what a plan sees.

    epochs: of the two stages by the budget for a CPU; the same with a quarter of positives in both, where an epoch has
    more steps; and if only what cross-entropy leaves of the budget, once it has all its steps, is for the AUC stage.
    number: of the training set; not one that another page reports, where sets are drawn by number.
    """

    source: TaskSource
    positives: int
    negatives: int
    shape: tuple[int, int, int]
    epochs: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    number: int = 0
    model: SmallCNNSpec | ResNet20Spec = field(default_factory=SmallCNNSpec)
    batch: int = 64

    @property
    def rows(self) -> int:
        return self.positives + self.negatives

    @property
    def few(self) -> bool:
        """Whether the plan raises the share of positives."""
        return self.positives / self.rows < SHARE_NOW


SETS: Mapping[str, PlannedSet] = {
    "breast": PlannedSet(
        source=MedicalSource(dataset="breastmnist"),
        positives=135,
        negatives=364,
        shape=(28, 28, 1),
        epochs=((50, 25), (50, 25), (50, 25)),
        model=ResNet20Spec(),
        batch=16,
    ),
    "pneumonia": PlannedSet(
        source=MedicalSource(dataset="pneumoniamnist"),
        positives=1079,
        negatives=3106,
        shape=(28, 28, 1),
        epochs=((28, 14), (28, 14), (31, 11)),
    ),
    "path": PlannedSet(
        source=MedicalSource(dataset="pathmnist"),
        positives=55,
        negatives=5459,
        shape=(28, 28, 3),
        epochs=((20, 9), (15, 7), (18, 5)),
        number=100,
    ),
    "ham": PlannedSet(
        source=MedicalSource(dataset="ham10000", size=32),
        positives=451,
        negatives=4587,
        shape=(32, 32, 3),
        epochs=((17, 8), (14, 7), (21, 0)),
    ),
    "C2": PlannedSet(
        source=BenchmarkSource(benchmark="C2", imratio=0.1),
        positives=888,
        negatives=8000,
        shape=(32, 32, 3),
        epochs=((9, 5), (7, 4), (12, 0)),
        number=100,
    ),
}


def _small(of: str, positives: int = 100, negatives: int = 300) -> PlannedSet:
    """Four fifths are trained on, for all the epochs that a plan would like."""
    return PlannedSet(
        source=SmallTable(source=SETS[of].source, positives=positives, negatives=negatives),
        positives=positives * 4 // 5,
        negatives=negatives * 4 // 5,
        shape=SETS[of].shape,
        epochs=((50, 25), (50, 25), (50, 25)),
        number=SETS[of].number,
        batch=16,
    )


SMALL: Mapping[str, PlannedSet] = {
    "small-breast": _small("breast"),
    "small-pneumonia": _small("pneumonia"),
    "small-path": _small("path", 65, 195),
    "small-ham": _small("ham"),
    "small-C2": _small("C2"),
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is done otherwise than in the base, which is all defaults, or than now.

    now: of the second round, where shares of positives are for sets with few of them alone. stages: both, or one of
    them over the length of both. ce_first: the AUC stage has what cross-entropy leaves of the budget. auc_part: of that
    length, None the plan's. longer: factor on their epochs. colour: brightness, contrast and, where there are any,
    colours changed, and a hole cut out. share: least share of positives in a batch of the AUC stage; ce_share: of
    cross-entropy; None: the round's own, which for cross-entropy in the first one is none. reset: whether the AUC stage
    begins with a fresh classifier. first_epochs: of a contrastive stage before everything. tta: copies of an image that
    a score is the mean of. normalise, bound, reference, decay: of the AUC stage; ce_decay: of cross-entropy's AdamW.
    dropout: before the classifier, in all stages.
    """

    now: bool = False
    stages: Literal["both", "ce", "auc_m"] = "both"
    ce_first: bool = False
    auc_part: float | None = None
    longer: float = 1.0
    ema: float | None = None
    mixup: float = 0.0
    flip: bool = False
    stronger: bool = False
    colour: bool = False
    share: float | None = None
    ce_share: float | None = None
    ce_lr: float = 2e-3
    auc_lr: float = 0.1
    margin: float = 0.5
    gamma: float = 0.002
    reset: bool = True
    first_epochs: int = 0
    tta: int = 0
    normalise: bool = True
    bound: Literal["auto", "l2"] = "auto"
    reference: Literal["start", "zero"] = "start"
    decay: float = 1e-4
    ce_decay: float = 0.01
    dropout: float = 0.0


FIRST_ROUND: Mapping[str, Change] = {
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
SECOND_ROUND: Mapping[str, Change] = {
    NOW: Change(now=True),
    "now, an eighth positives": Change(now=True, share=1 / 8, ce_share=1 / 8),
    "now, half positives": Change(now=True, share=1 / 2, ce_share=1 / 2),
    "now, CE alone, as long": Change(now=True, stages="ce"),
    ALONE: Change(now=True, stages="auc_m"),
    PLANNED: Change(now=True, ce_first=True),
    "now, AUC-M for a sixth of it": Change(now=True, auc_part=1 / 6),
    "now, AUC-M for half of it": Change(now=True, auc_part=1 / 2),
    "now, classifier kept": Change(now=True, reset=False),
    "now, 8 copies": Change(now=True, tta=8),
    "now, CE alone, as long, 8 copies": Change(now=True, stages="ce", tta=8),
    f"{PLANNED}, 8 copies": Change(now=True, ce_first=True, tta=8),
    "now, AUC-M for a sixth of it, lr .01, classifier kept": Change(now=True, auc_part=1 / 6, auc_lr=0.01, reset=False),
    "now, twice as long": Change(now=True, longer=2.0),
    "now, CE alone, twice as long": Change(now=True, stages="ce", longer=2.0),
    "now, contrastive first, 50 epochs": Change(now=True, first_epochs=50),
}
_ALONE = SECOND_ROUND[ALONE]
THIRD_ROUND: Mapping[str, Change] = {
    "AUC-M, Theorem 1": replace(_ALONE, normalise=False),
    "AUC-M, Theorem 1, normalised scores": replace(_ALONE, normalise=False, bound="l2"),
    "AUC-M, normalised scores": replace(_ALONE, bound="l2"),
    "AUC-M, decay .0021": replace(_ALONE, decay=RELEASED_DECAY),
    "AUC-M, reference 0": replace(_ALONE, reference="zero"),
    "AUC-M, Theorem 1, reference 0": replace(_ALONE, normalise=False, reference="zero"),
    "AUC-M, margin .3": replace(_ALONE, margin=0.3),
    "AUC-M, margin 1": replace(_ALONE, margin=1.0),
    "AUC-M, dropout .3": replace(_ALONE, dropout=0.3),
    "AUC-M, dropout .3, decay .0021": replace(_ALONE, dropout=0.3, decay=RELEASED_DECAY),
    "CE, decay .05": Change(now=True, stages="ce", ce_decay=0.05),
    "CE, dropout .3": Change(now=True, stages="ce", dropout=0.3),
    "CE, dropout .3, decay .05": Change(now=True, stages="ce", dropout=0.3, ce_decay=0.05),
}
AFTER_CE: Mapping[str, Change] = {  # of the third round, on small tables: the AUC stage after cross-entropy
    "now, Theorem 1": Change(now=True, normalise=False),
    "now, dropout .3": Change(now=True, dropout=0.3),
    "now, four times as long": Change(now=True, longer=4.0),
}
CHANGES: Mapping[str, Change] = {**FIRST_ROUND, **SECOND_ROUND, **THIRD_ROUND, **AFTER_CE}
ON_SMALL = (
    ALONE,
    "AUC-M, Theorem 1",
    "AUC-M, decay .0021",
    "AUC-M, margin .3",
    "AUC-M, margin 1",
    "AUC-M, dropout .3",
    NOW,
    *AFTER_CE,
    "now, twice as long",
    "now, CE alone, as long",
    "CE, dropout .3",
)


def planned(*, on: str, change: str = BASE) -> Recipe:
    """The CPU plan for a set of `SETS`, with a change of `CHANGES`."""
    data = _set(on)
    other = CHANGES[valid_name(change, list(CHANGES), "change")]
    ce, auc = _epochs(data, other)
    match other.stages:
        case "both":
            stages = [_ce(data, ce, other), *([_auc(data, auc, other)] if auc else [])]
        case "ce":
            stages = [_ce(data, ce + auc, other)]
        case "auc_m":
            stages = [replace(_auc(data, ce + auc, other), reset_classifier=False)]
    if other.first_epochs:
        stages.insert(0, _views(other.first_epochs, data))
    model = replace(data.model, drop_rate=other.dropout)
    return Recipe(model=model, stages=tuple(stages), tta=other.tta)


def _set(on: str) -> PlannedSet:
    every = {**SETS, **SMALL}
    return every[valid_name(on, list(every), "planned set")]


def _epochs(data: PlannedSet, other: Change) -> tuple[int, int]:
    before, now, ce_first = data.epochs
    ce, auc = ce_first if other.ce_first else now if other.now else before
    if other.auc_part is not None:
        both, auc = ce + auc, round(other.auc_part * (ce + auc))
        ce = both - auc
    return round(other.longer * ce), round(other.longer * auc)


def _ce(data: PlannedSet, epochs: int, other: Change) -> Stage:
    return Stage(
        objective=CrossEntropy(soft_labels=other.mixup > 0),
        optimizer=AdamWSpec(lr=other.ce_lr, weight_decay=other.ce_decay),
        epochs=epochs,
        schedule=Cosine(),
        positives_per_batch=_ce_quota(data, other),
        batch_size=data.batch,
        augment=_augment(data, other),
        ema=other.ema,
    )


def _auc(data: PlannedSet, epochs: int, other: Change) -> Stage:
    return Stage(
        objective=AUCMargin(margin=other.margin, normalise=other.normalise, soft_labels=other.mixup > 0),
        optimizer=PESGSpec(lr=other.auc_lr, gamma=other.gamma, weight_decay=other.decay, reference=other.reference),
        bound=other.bound,
        epochs=epochs,
        schedule=Steps(milestones=(max(1, epochs // 2), max(2, 3 * epochs // 4))),
        positives_per_batch=_auc_quota(data, other),
        reset_classifier=other.reset,
        batch_size=data.batch,
        augment=_augment(data, other),
        ema=other.ema,
    )


def _ce_quota(data: PlannedSet, other: Change) -> int | None:
    if other.now:
        return _quota(data, other.ce_share or SHARE_NOW) if data.few else None
    return None if other.ce_share is None else _quota(data, other.ce_share)


def _auc_quota(data: PlannedSet, other: Change) -> int:
    if other.now:
        return _quota(data, (other.share or SHARE_NOW) if data.few else 0)
    return _quota(data, other.share or SHARE_BEFORE)


def _quota(data: PlannedSet, share: float) -> int:
    """Positives of a batch: this share, or the rows' own where that is larger."""
    return min(round(max(share, data.positives / data.rows) * data.batch), data.positives)


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
    every = [change for change in CHANGES if change not in AFTER_CE]
    studies = (*(_study(name, every) for name in SETS), *(_study(name, ON_SMALL) for name in SMALL))
    title = "What `deepauc train` plans for a CPU, changed in one thing at a time, five folds of five real sets"
    return StudySet(name=SET, title=title, studies=studies)


def _study(name: str, changes: Sequence[str]) -> Study:
    data = _set(name)
    folds = FoldSource(source=data.source, folds=FOLDS)
    return Study(
        name=f"plan-{name}",
        task=folds,
        method=planned,
        fixed={"on": name},
        grid=Grid(axes={"change": tuple(changes)}, configs=tuple({"change": change} for change in changes), seed=0),
        tuning_seeds=folds.seeds((data.number,)),
    )


def cost_of(on: str, change: str, base: str = BASE) -> float:
    """Multiply-adds of a change's recipe over those of the base."""
    return _multiply_adds(on, change) / _multiply_adds(on, base)


def _multiply_adds(on: str, change: str) -> float:
    data, recipe = _set(on), planned(on=on, change=change)
    images = 0
    for stage in recipe.stages:
        assert stage.epochs is not None
        quota = stage.positives_per_batch
        steps = data.rows // stage.batch_size if quota is None else data.negatives // (stage.batch_size - quota)
        images += stage.epochs * steps * stage.batch_size * stage.views
    return float(TRAINING_FACTOR * images * multiply_adds(recipe.model, data.shape))
