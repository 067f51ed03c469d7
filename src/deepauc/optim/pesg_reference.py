"""Algorithm 1 as printed, with the paper's letters: slow, plain, and what `PESG` is tested against."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class PESGReference:
    """Holds v, v_ref, alpha and the iterates of the stage as plain lists. Gradients are handed in.

    reference: v_ref begins at v_1 ("start") or at 0 ("zero"). clip: elements of dF/dv are clipped to [-clip, clip].
    margin: alpha steps in closed form with this m, and v ends with a and b; None: along its gradient.
    """

    def __init__(
        self,
        v: Sequence[Tensor],
        alpha: Tensor,
        *,
        eta: float,
        gamma: float,
        lambda_: float = 0.0,
        mu: float = 0.0,
        reference: str = "start",
        clip: float = math.inf,
        margin: Tensor | float | None = None,
    ) -> None:
        self.v = [x.clone() for x in v]
        self.v_ref = [x.clone() if reference == "start" else torch.zeros_like(x) for x in v]
        self.clip, self.margin = clip, margin
        self.alpha = alpha.clone()
        self.eta, self.gamma, self.lambda_, self.mu = eta, gamma, lambda_, mu
        self.buffers = [torch.zeros_like(x) for x in v]
        self.iterates: list[list[Tensor]] = []

    def step(
        self,
        grad_v: Sequence[Tensor | None],
        grad_alpha: Tensor,
        *,
        nonnegative: bool = True,
        present: Tensor | bool = True,
    ) -> None:
        """Lines 4 and 5; grad_v is dF/dv (None: not part of this step), grad_alpha is +dF/dalpha.

        present: which labels have a valid entry in the batch; in closed form alpha of the others stays.
        """
        for i, g in enumerate(grad_v):
            if g is None:
                continue
            clipped = torch.clamp(g, -self.clip, self.clip)
            d = clipped + self.gamma * (self.v[i] - self.v_ref[i]) + self.lambda_ * self.v[i]
            self.buffers[i] = self.mu * self.buffers[i] + d
            self.v[i] = self.v[i] - self.eta * self.buffers[i]
        if self.margin is not None:
            a, b = self.v[-2:]
            grad_alpha = 2 * (self.margin + b - a - self.alpha) * present
        self.alpha = self.alpha + self.eta * grad_alpha
        if nonnegative:
            self.alpha = torch.clamp(self.alpha, min=0)
        self.iterates.append([x.clone() for x in self.v])

    def new_stage(self, factor: float) -> None:
        """Line 6: decrease eta, v_ref <- mean of v over the stage."""
        self.eta *= factor
        if self.iterates:
            self.v_ref = [torch.stack(xs).mean(0) for xs in zip(*self.iterates, strict=True)]
        self.iterates = []
