"""Gradients that are given in closed form can be differentiated no further: who tries is told, and gets no zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def once(gradient: Tensor, scores: Tensor) -> Tensor:
    """The gradient of a loss of these scores; an error where its own derivative is asked for.

    For the end of `backward`. torch's `once_differentiable` refuses only where the incoming gradient needs one itself,
    and gives zeros for a loss that nothing follows.
    """
    if not torch.is_grad_enabled():  # no create_graph: nothing can be asked for
        return gradient
    found: Tensor = _Once.apply(gradient, scores)
    return found


class WithGradient(torch.autograd.Function):
    """A loss of scores, whose value and gradient `compute` finds in one go; the gradient is all that is kept."""

    @staticmethod
    def forward(scores: Tensor, compute: Callable[..., tuple[Tensor, Tensor]], *others: Any) -> tuple[Tensor, Tensor]:
        return compute(scores, *others)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], inputs[0])
        ctx.others = (None,) * (len(inputs) - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None, *ctx.others)
        gradient, scores = ctx.saved_tensors
        return (grad * once(gradient, scores), *ctx.others)


class _Once(torch.autograd.Function):
    generate_vmap_rule = True  # for jacrev

    @staticmethod
    def forward(gradient: Tensor, scores: Tensor) -> Tensor:
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
