"""What a pipeline tells its caller while it works, as data: the caller prints it, draws a bar, or ignores it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deepauc.pipeline.stages import StageLength
from deepauc.training.engine.trainer import Progress
from deepauc.training.plan.decision import Decision
from deepauc.training.prepare.prepare import Prepared


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Rows of the table or packed set are read; `total` is None as long as their number is unknown."""

    source: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The data have been read, checked and split."""

    prepared: Prepared


@dataclass(frozen=True, kw_only=True)
class ComputingFeatures:
    """Images pass the frozen layers of a network, once for all of training."""

    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A few steps of each stage are timed."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Decisions that hold from now on."""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Steps of all trials together. finished: what has just ended; a pair (margin, gamma), or the stages before."""

    pairs: int
    done: int
    total: int
    finished: tuple[float, float] | str | None = None


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The folder holds this run, unfinished."""

    out: Path


@dataclass(frozen=True, kw_only=True)
class AlreadyFinished:
    """The folder holds this run, finished: nothing is changed."""

    out: Path


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """About how long training takes in all, from a few timed steps."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class FoldBegan:
    """A network of a fold is trained next. number, network: from 1."""

    number: int
    folds: int
    name: str
    network: int = 1
    networks: int = 1

    def __str__(self) -> str:
        of_several = f", network {self.network} of {self.networks}" if self.networks > 1 else ""
        return f"Fold {self.number} of {self.folds}{of_several}"


@dataclass(frozen=True, kw_only=True)
class TrainingBegan:
    """Training begins, or goes on."""

    lengths: tuple[StageLength, ...]


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """One training step."""

    step: Progress


@dataclass(frozen=True, kw_only=True)
class TrainingEnded:
    """validation_auc: after the last epoch, if that was measured."""

    validation_auc: float | None


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The networks that were not kept score all rows."""


@dataclass(frozen=True, kw_only=True)
class WritingReport:
    """The report is written."""


Event = (
    Reading
    | Checked
    | ComputingFeatures
    | Timing
    | Decided
    | Tuning
    | Resumed
    | AlreadyFinished
    | Estimated
    | FoldBegan
    | TrainingBegan
    | Stepped
    | TrainingEnded
    | Scoring
    | WritingReport
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of a caller that wants results only."""
