"""What a run is made of: frozen specs, from the network to the last stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from torch import nn

from deepauc.data.augment import Augment
from deepauc.data.uncertain import Choice
from deepauc.models.build import ModelSpec
from deepauc.training.schedule import Constant, Schedule

Bound = Literal["auto", "sigmoid", "l2", "rms", "none"]
Precision = Literal["float32", "bfloat16"]


class ObjectiveSpec(Protocol):
    """Builds a loss with forward(scores, labels, weights) once the prior of each label is known."""

    @property
    def bound(self) -> str:
        """What goes between network and loss unless the stage says otherwise."""

    @property
    def soft_labels(self) -> bool: ...

    def build(self, *, prior: Sequence[float]) -> nn.Module: ...


class OptimizerSpec(Protocol):
    """Builds an optimizer over network and objective."""

    @property
    def lr(self) -> float: ...

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> torch.optim.Optimizer: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One objective, one optimizer, one stream of batches. Two-stage training is two of these.

    epochs or iterations: the length; exactly one is given. positives_per_batch: the quota of each batch (None: plain
    shuffling). bound: what the scores pass before the loss, in training only; `auto` is the objective's own.
    reset_classifier: start from the network as it is with a fresh last layer (M6). start_from: folder of another run
    whose weights this stage starts from. uncertain: what becomes of labels marked -1. accumulate: the batch passes the
    network in so many pieces, the loss sees it whole. keep: the weights of the last epoch, or of the best on
    validation. patience: epochs without a better validation AUC after which the stage ends.
    """

    objective: ObjectiveSpec
    optimizer: OptimizerSpec
    epochs: int | None = None
    iterations: int | None = None
    batch_size: int = 128
    positives_per_batch: int | None = None
    schedule: Schedule = field(default_factory=Constant)
    augment: Augment | None = None
    bound: Bound = "auto"
    reset_classifier: bool = False
    start_from: str | None = None
    uncertain: Choice | Mapping[str, Choice] | None = None
    gradient_clip: float | None = None
    ema: float | None = None
    accumulate: int = 1
    precision: Precision = "float32"
    keep: Literal["last", "best"] = "last"
    patience: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError("a stage has a length in epochs or in iterations: give one of the two.")
        for name in ("epochs", "iterations", "batch_size", "positives_per_batch", "accumulate", "patience"):
            value = getattr(self, name)
            if value is not None and (value != int(value) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {value}.")
        if self.bound not in get_args(Bound):
            raise ValueError(f"bound must be one of {', '.join(get_args(Bound))}, not {self.bound!r}.")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be float32 or bfloat16, not {self.precision!r}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema is the share of the old average kept in a step, between 0 and 1, not {self.ema}.")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip must be positive, not {self.gradient_clip}.")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate {self.accumulate} must divide batch_size {self.batch_size}.")
        if self.augment is not None and self.augment.mixup and not self.objective.soft_labels:
            raise ValueError("mixup makes soft labels: set soft_labels=True in the stage's objective.")

    @property
    def resolved_bound(self) -> str:
        return self.objective.bound if self.bound == "auto" else self.bound


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A network and its stages.

    guard: after the last stage, keep the earlier stage's network if that is better on validation. test_curve: also
    write the test AUC of each epoch, to a file that no selection opens. alpha_curve: alpha of each step, likewise.
    deterministic: ask torch for deterministic algorithms (on a GPU; a CPU is deterministic anyway).
    """

    model: ModelSpec
    stages: tuple[Stage, ...]
    guard: bool = False
    test_curve: bool = False
    alpha_curve: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages:
            raise ValueError("a recipe has at least one stage.")
        if self.guard and len(self.stages) < 2:
            raise ValueError("guard compares the last stage with an earlier one: the recipe has only one stage.")
