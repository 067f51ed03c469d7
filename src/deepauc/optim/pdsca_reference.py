"""PDSCA as printed, with the paper's letters: slow, plain, and what `PDSCA` is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class PDSCAReference:
    """Holds w, u, z, v = (a, b), alpha and the iterates of the stage as plain lists. Gradients are handed in.

    reference: w_ref begins at w_1 ("start") or at 0 ("zero").
    """

    def __init__(
        self,
        w: Sequence[Tensor],
        v: Sequence[Tensor],
        alpha: Tensor,
        *,
        eta0: float,
        eta1: float,
        beta0: float,
        beta1: float,
        gamma: float,
        lambda_: float = 0.0,
        reference: str = "start",
    ) -> None:
        self.w, self.v, self.alpha = [x.clone() for x in w], [x.clone() for x in v], alpha.clone()
        every = [*self.w, *self.v]
        self.ref = [x.clone() if reference == "start" else torch.zeros_like(x) for x in every]
        self.eta0, self.eta1, self.beta0, self.beta1 = eta0, eta1, beta0, beta1
        self.gamma, self.lambda_ = gamma, lambda_
        self.u: list[Tensor] | None = None
        self.z: list[Tensor] | None = None
        self.iterates: list[list[Tensor]] = []

    def inner(self, grad: Sequence[Tensor]) -> None:
        """u <- (1 - beta0) u + beta0 (w - eta0 grad L_CE(w)); grad is that of L_CE at w."""
        ahead = [w - self.eta0 * g for w, g in zip(self.w, grad, strict=True)]
        if self.u is None:
            self.u = ahead
        self.u = [(1 - self.beta0) * u + self.beta0 * x for u, x in zip(self.u, ahead, strict=True)]

    def outer(self, grad: Sequence[Tensor], grad_alpha: Tensor) -> None:
        """z <- (1 - beta1) z + beta1 grad; (w, v) descend along z, alpha ascends. grad: of L_AUC at (u, v)."""
        if self.z is None:
            self.z = list(grad)
        self.z = [(1 - self.beta1) * z + self.beta1 * g for z, g in zip(self.z, grad, strict=True)]
        every = [*self.w, *self.v]
        moved = [
            x - self.eta1 * (z + self.gamma * (x - ref) + self.lambda_ * x)
            for x, z, ref in zip(every, self.z, self.ref, strict=True)
        ]
        self.w, self.v = moved[: len(self.w)], moved[len(self.w) :]
        self.alpha = torch.clamp(self.alpha + self.eta1 * grad_alpha, min=0)
        self.iterates.append([x.clone() for x in moved])

    def new_stage(self, factor: float) -> None:
        """Decrease eta1, ref <- mean of the outer iterates of the stage."""
        self.eta1 *= factor
        self.ref = [torch.stack(xs).mean(0) for xs in zip(*self.iterates, strict=True)]
        self.iterates = []
