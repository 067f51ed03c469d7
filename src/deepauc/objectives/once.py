"""Gradients that are given in closed form can be differentiated no further: who tries is told, and gets no zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def once(gradient: Tensor, *inputs: Tensor | None) -> Tensor:
    """The gradient, which follows from these inputs; an error where its own derivative by them is asked for.

    For the end of `backward`. torch's `once_differentiable` refuses only where the incoming gradient needs one itself,
    and gives zeros for a loss that nothing follows.
    """
    if not torch.is_grad_enabled():  # no create_graph: nothing can be asked for
        return gradient
    found: Tensor = _Once.apply(gradient, *inputs)
    return found


class _Once(torch.autograd.Function):
    generate_vmap_rule = True  # for jacrev

    @staticmethod
    def forward(gradient: Tensor, *inputs: Tensor | None) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        raise RuntimeError(
            "this AUC loss has no second derivatives (gradient penalties, Hessians): take them of another term, or "
            "write the loss out in plain torch."
        )
