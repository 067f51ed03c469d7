"""All that a plan is made from: what the user has decided, and what may be known of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from deepauc.data.bags import BagInputs
from deepauc.data.splits import trainable_rows
from deepauc.data.task import Task
from deepauc.metrics.partial import Region
from deepauc.models.bags import Pooling
from deepauc.training.plan.network import Sizes

FirstStage = Literal["auto", "none", "contrastive"]
AucStage = Literal["auto", "always", "none"]
Backbone = Literal["auto", "frozen", "trained"]
Objective = Literal["auc-margin", "all-pairs", "partial-auc", "average-precision", "pdsca"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What the user decides; None leaves it to the plan. epochs: of each stage. model: see `named_model`.

    minutes: how long one is willing to wait for training, on the machine it runs on. first_stage: whether a contrastive
    stage on the images alone comes first; `auto` leaves that to the plan. auc_stage: whether the AUC margin loss comes
    last; `auto`: where cross-entropy, with all the steps it is to have, leaves time for it. tta: copies of an image
    that a score is the mean of, 0 for none. objective: what that last stage minimises instead; one that is named is
    always trained. max_fpr, min_tpr: of `partial-auc`. pretrained: whether the network starts from published weights:
    True for the plan's own network, the name of another, or a .safetensors file of `model`. backbone: whether all
    layers but the last then stay as they are; `auto`: on a CPU. pooling, images_per_bag: of bags of images; how their
    scores become one, and how many of a bag's images a training step sees at most.
    """

    model: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    minutes: float | None = None
    first_stage: FirstStage = "auto"
    auc_stage: AucStage = "auto"
    tta: int | None = None
    objective: Objective = "auc-margin"
    max_fpr: float | None = None
    min_tpr: float | None = None
    pretrained: bool | str = False
    backbone: Backbone = "auto"
    pooling: Pooling | None = None
    images_per_bag: int | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be positive, not {self.minutes:g}.")
        if self.minutes is not None and self.epochs is not None:
            raise ValueError("epochs and minutes both say how long training takes: give one of them.")
        for name, least in (("epochs", 1), ("batch_size", 2), ("tta", 0), ("images_per_bag", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}.")
        kinds = {"first_stage": FirstStage, "auc_stage": AucStage, "objective": Objective, "backbone": Backbone}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}.")
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling must be one of {', '.join(get_args(Pooling))}, not {self.pooling!r}.")
        if self.objective != "auc-margin" and self.auc_stage == "none":
            raise ValueError(
                f"objective {self.objective} is for the AUC stage, and auc_stage none leaves that stage out."
            )
        limits = [limit for limit in (self.max_fpr, self.min_tpr) if limit is not None]
        if self.objective == "partial-auc":
            if not limits:
                raise ValueError(
                    "partial-auc needs max_fpr or min_tpr, or both: for example --min-tpr 0.8, or min_tpr = 0.8 under "
                    "[plan] of a config file."
                )
            Region.asked(self.max_fpr, self.min_tpr)
        elif limits:
            raise ValueError(
                "max_fpr and min_tpr are limits of the partial AUC: set objective to partial-auc, or leave them out."
            )
        if self.backbone != "auto" and not self.pretrained:
            raise ValueError(
                "backbone needs a network with pretrained weights: set pretrained too, or leave out backbone."
            )


@dataclass(frozen=True, kw_only=True)
class BagSizes:
    """How many images the bags of the training part have."""

    mean: float
    largest: int


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """All that a plan may know of the data. Counts are of labelled rows, by part; positives and negatives by label.

    unlabelled: training rows without a label that a stage which needs none may learn from. bags: where rows are bags.
    """

    rows: Mapping[str, int]
    positives: Mapping[str, tuple[int, ...]]
    negatives: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...]  # of one input: (H, W, C) or (F,)
    file_sizes: Sizes
    groups: int | None
    unlabelled: int = 0
    bags: BagSizes | None = None

    @classmethod
    def of(cls, task: Task, *, file_sizes: Sizes | None = None) -> Fingerprint:
        labels = task.labels.reshape(len(task), task.num_labels)
        parts = {part: labels[task.labelled(part)] for part in task.parts}
        return cls(
            rows={part: len(values) for part, values in parts.items()},
            positives={part: tuple(map(int, (values == 1).sum(0))) for part, values in parts.items()},
            negatives={part: tuple(map(int, (values == 0).sum(0))) for part, values in parts.items()},
            shape=tuple(task.source.shape),
            file_sizes=dict(file_sizes or {}),
            groups=None if task.groups is None else len(set(task.groups.tolist())),
            unlabelled=len(trainable_rows(task)) - len(parts["train"]) if "train" in parts else 0,
            bags=_bag_sizes(task),
        )


def _bag_sizes(task: Task) -> BagSizes | None:
    if not isinstance(task.source, BagInputs):
        return None
    sizes = task.source.sizes[task.part("train")] if "train" in task.parts else task.source.sizes
    return BagSizes(mean=float(sizes.mean()), largest=int(sizes.max()))
