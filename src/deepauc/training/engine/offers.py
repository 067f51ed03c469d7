"""What a loss or an optimizer may offer beyond forward and step. The loop asks for an offer, never for a class.

A loss or an optimizer of one's own that has these methods is treated like the package's. Only methods, no attributes:
a parameter of a module is none that `isinstance` would find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from deepauc.objectives.diagnosis import Diagnosis


@runtime_checkable
class RenewsReference(Protocol):
    """An optimizer that is pulled towards a reference, which a schedule's milestones renew (PESG)."""

    def new_stage(self, lr_factor: float = ...) -> None: ...


@runtime_checkable
class TakesTurns(Protocol):
    """An optimizer whose steps minimise two losses in turn, and between two steps holds other weights (PDSCA)."""

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = ...) -> Tensor:
        """Of the step that is next; the network's raw output."""

    def begin_step(self) -> bool:
        """Whether the step that begins is an inner one; who computes its loss without `loss` calls this."""

    def inner_loss(self) -> Callable[..., Tensor]:
        """What inner steps minimise, of raw scores, labels and weights."""

    def pass_turn(self) -> None:
        """The next step is of the other kind: after one that a graph has taken."""

    def set_bound(self, bound: Callable[[Tensor], Tensor]) -> None:
        """What the scores pass before the objective."""

    def weights_in_place(self) -> AbstractContextManager[None]:
        """The network holds its own weights inside the block."""

    def finish(self) -> None:
        """The network holds its own weights from now on."""


@runtime_checkable
class DualLoss(Protocol):
    """A loss in min-max form: its first dual parameter (alpha, one a label) is followed and kept where it may be."""

    def dual_parameters(self) -> Sequence[nn.Parameter]: ...

    def project_(self) -> None: ...

    def require_healthy(self, loss: Tensor, scores: Tensor, *, batch: int) -> None:
        """`Diverged` with a remedy where the loss of an epoch, or what the loss itself learns, says so."""

    def diagnose(self, scores: Tensor, labels: Tensor) -> Diagnosis: ...


@runtime_checkable
class TracedLoss(Protocol):
    """A loss with a pure function that takes prior and margin as tensors: a grid of margins is one compiled program."""

    def program(self) -> str:
        """What that function depends on besides its arguments."""

    def margins(self) -> Sequence[float]:
        """One a label."""

    def traced(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        variables: Mapping[str, Tensor],
        *,
        prior: Tensor,
        margin: Tensor,
    ) -> Tensor: ...


def alpha_of(objective: DualLoss) -> Tensor:
    """alpha (L,), detached."""
    return objective.dual_parameters()[0].detach()
