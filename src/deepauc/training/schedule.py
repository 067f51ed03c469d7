"""Learning rates as pure functions of the iteration: a resumed run needs no scheduler state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

Unit = Literal["epochs", "iterations"]


class Schedule(Protocol):
    """What a stage asks: the factor on the base learning rate, and where PESG's reference is renewed."""

    def factor(self, iteration: int, *, total: int, per_epoch: int) -> float:
        """Multiplies the base learning rate in this iteration (from 0) of `total`."""

    def renews(self, iteration: int, *, per_epoch: int) -> bool:
        """Whether v_ref is set to the average of the iterates so far before this iteration (PESG only)."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The base learning rate throughout."""

    def factor(self, iteration: int, *, total: int, per_epoch: int) -> float:
        return 1.0

    def renews(self, iteration: int, *, per_epoch: int) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Times `factor_each` at each milestone; line 6 of Algorithm 1 for PESG, whose reference is renewed there.

    Args:
        milestones: When the rate changes, counted from the stage's start.
        factor_each: What it is multiplied by each time.
        unit: Of the milestones: "epochs" or "iterations".
    """

    milestones: tuple[int, ...]
    factor_each: float = 0.1
    unit: Unit = "epochs"

    def __post_init__(self) -> None:
        if any(m < 1 for m in self.milestones) or list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones must be positive and rise, not {self.milestones}.")
        if not self.factor_each > 0:
            raise ValueError(f"factor_each must be positive, not {self.factor_each}.")

    def _starts(self, per_epoch: int) -> list[int]:
        return [m * per_epoch if self.unit == "epochs" else m for m in self.milestones]

    def factor(self, iteration: int, *, total: int, per_epoch: int) -> float:
        return float(self.factor_each ** sum(iteration >= start for start in self._starts(per_epoch)))

    def renews(self, iteration: int, *, per_epoch: int) -> bool:
        return iteration in self._starts(per_epoch)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Down to a floor along half a cosine, after a warm-up.

    Args:
        warmup: Iterations up from 0.
        floor: Share of the base learning rate at the end.
    """

    warmup: int = 0
    floor: float = 0.0

    def factor(self, iteration: int, *, total: int, per_epoch: int) -> float:
        if iteration < self.warmup:
            return (iteration + 1) / self.warmup
        done = (iteration - self.warmup) / max(total - self.warmup, 1)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2

    def renews(self, iteration: int, *, per_epoch: int) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """From the base up to a multiple of it and back, along straight lines (Smith 2017).

    Args:
        top: Highest rate, as a multiple of the base.
        period: Epochs up and down again.
    """

    top: float = 8.0
    period: int = 8

    def __post_init__(self) -> None:
        if self.period < 1 or not self.top > 0:
            raise ValueError("a cyclic schedule needs a period of at least one epoch and a positive top.")

    def factor(self, iteration: int, *, total: int, per_epoch: int) -> float:
        cycle = self.period * per_epoch
        place = (iteration % cycle) / cycle
        return 1 + (self.top - 1) * (1 - abs(2 * place - 1))

    def renews(self, iteration: int, *, per_epoch: int) -> bool:
        return False
