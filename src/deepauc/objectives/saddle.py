"""The mathematics of the min-max form that the AUC margin and AUC square losses share (Theorem 1 of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepauc.labels import scale_free
from deepauc.objectives.once import once

PerLabel = float | Tensor
"""A constant: one number, or one per label as a tensor of shape (L,)."""


def auc_saddle(
    scores: Tensor,
    labels: Tensor,
    a: Tensor,
    b: Tensor,
    alpha: Tensor,
    *,
    prior: PerLabel,
    margin: PerLabel,
    weights: Tensor | None = None,
    normalise: bool = True,
) -> Tensor:
    """F_M of Theorem 1, the mean over the batch, averaged over labels; `normalise` divides it by p(1 - p).

    F_M = (1-p)(h-a)^2 [y=1] + p(h-b)^2 [y=0] - p(1-p)alpha^2 + 2 alpha (p(1-p)m + p h [y=0] - (1-p) h [y=1])

    At the optimal a, b, alpha the normalised value is A_M, whatever p is. The gradient with respect to alpha is the
    true +dF/dalpha; `SaddleLoss` turns it round. A label y in [0, 1] counts as y of a positive and 1 - y of a negative.

    scores (N,) or (N, L), floating; labels the same shape and type, nothing missing (`input_check.prepare`);
    a, b, alpha (L,); weights as scores, 0 where an entry does not count, or None. Returns a scalar.
    """
    factors = _factors(prior, normalise=normalise)
    value: Tensor = _Saddle.apply(scores, labels, weights, a, b, alpha, margin, *factors)[0]
    return value


def auc_saddle_one_label(
    scores: Tensor,
    labels: Tensor,
    a: Tensor,
    b: Tensor,
    alpha: Tensor,
    *,
    prior: float,
    margin: float,
    normalise: bool = True,
) -> Tensor:
    """`auc_saddle` for (N,) scores and complete hard labels on the CPU: half the passes, the scalars on the host."""
    factors = _factors(prior, normalise=normalise)
    value: Tensor = _SaddleOneLabel.apply(scores, labels, a, b, alpha, margin, *factors)
    return value


def _factors(prior: PerLabel, *, normalise: bool) -> tuple[PerLabel, PerLabel, PerLabel]:
    """What a positive, a negative and the constant terms are multiplied with."""
    if normalise:
        return 1 / prior, 1 / (1 - prior), 1.0
    return 1 - prior, prior, prior * (1 - prior)


class _Saddle(torch.autograd.Function):
    """Value and gradient in one go: about fifteen passes over the scores, none of them kept but the gradient."""

    @staticmethod
    def forward(
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        a: Tensor,
        b: Tensor,
        alpha: Tensor,
        margin: PerLabel,
        positive: PerLabel,
        negative: PerLabel,
        constant: PerLabel,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        num_labels = a.numel()
        present: PerLabel
        if weights is None:
            count = max(scores.shape[0], 1) * num_labels
            u = labels * (positive / count)
            v = (1 - labels).mul_(negative / count)
            present = 1.0 if scores.shape[0] else 0.0
        else:
            weights = scale_free(weights)
            total = weights.sum(0)
            share = weights / (total.clamp(min=torch.finfo(scores.dtype).tiny) * num_labels)
            u = share * labels * positive
            v = share * (1 - labels) * negative
            present = (total > 0).to(scores.dtype)
        # Residuals about a and b, never raw moments: at a score offset of 100 those lose three digits in float32.
        above_a = scores - a
        below_b = scores - b
        pull_a = u * above_a
        pull_b = v * below_b
        sum_a, sum_b = pull_a.sum(0), pull_b.sum(0)
        spread = above_a.mul_(pull_a).sum(0) + below_b.mul_(pull_b).sum(0)
        difference = (sum_b + b * v.sum(0)) - (sum_a + a * u.sum(0))  # E[h | y=0] - E[h | y=1] of the batch
        scale = constant * present / num_labels
        value = (spread + alpha * (scale * (2 * margin - alpha) + 2 * difference)).sum()
        grad_scores = pull_a.add_(pull_b).add_(v.sub_(u).mul_(alpha)).mul_(2)
        grad_alpha = 2 * (scale * (margin - alpha) + difference)
        return value, grad_scores, (-2 * sum_a).reshape(a.shape), (-2 * sum_b).reshape(a.shape), grad_alpha

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:], inputs[0])  # not a and b, which a step may change before

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 10
        *gradients, scores = ctx.saved_tensors
        of_scores, of_a, of_b, of_alpha = (grad * once(gradient, scores) for gradient in gradients)
        return of_scores, None, None, of_a, of_b, of_alpha, None, None, None, None


class _SaddleOneLabel(torch.autograd.Function):
    """The same with a, b, alpha read as numbers; r is the residual about a for a positive, about b for a negative.

    The context is passed the old way, which costs a third of the other at 128 scores but rules out torch.func.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        labels: Tensor,
        a: Tensor,
        b: Tensor,
        alpha: Tensor,
        margin: float,
        positive: float,
        negative: float,
        constant: float,
    ) -> Tensor:
        a_, b_, alpha_ = a.item(), b.item(), alpha.item()
        h, y = scores, labels
        n, n_positive = max(h.numel(), 1), y.sum().item()
        per_positive, per_negative = positive / n, negative / n
        r = torch.sub(h, y, alpha=a_ - b_).sub_(b_)
        pull = (y * (per_positive - per_negative)).add_(per_negative).mul_(r)
        spread, pull_all, pull_a = torch.dot(pull, r).item(), pull.sum().item(), torch.dot(pull, y).item()
        pull_b = pull_all - pull_a
        share_a, share_b = per_positive * n_positive, per_negative * (h.numel() - n_positive)
        difference = (pull_b + b_ * share_b) - (pull_a + a_ * share_a)
        scale = constant if h.numel() else 0.0
        grad_scores = pull.mul_(2).add_(y, alpha=-2 * alpha_ * (per_positive + per_negative))
        ctx.save_for_backward(grad_scores.add_(2 * alpha_ * per_negative), scores)
        ctx.grads = (-2 * pull_a, -2 * pull_b, 2 * (scale * (margin - alpha_) + difference))
        return h.new_full((), spread + alpha_ * (scale * (2 * margin - alpha_) + 2 * difference))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_scores, scores = ctx.saved_tensors
        if not torch.is_grad_enabled():
            scale = grad.item()
            small = (grad.new_full((1,), scale * each) for each in ctx.grads)
            return (grad_scores * scale, None, *small, None, None, None, None)
        gradients = (grad_scores, *(grad.new_full((1,), each) for each in ctx.grads))
        of_scores, *small_ones = (grad * once(gradient, scores) for gradient in gradients)
        return (of_scores, None, *small_ones, None, None, None, None)
