"""What to watch instead of the loss: A_M in closed form, the duality gap, a, b, alpha beside their optimal values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepauc.labels import ONE_CLASS, scale_free

LARGE_BIAS = 0.05


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """State of an AUC loss on some scores: numbers for one label, tuples for several, with NaN where a class is absent.

    Attributes:
        value: A_M = Var+ + Var- + [m - mean+ + mean-]₊², without [.]₊ where alpha is free. It is never negative, unlike
            the min-max value, which rises and falls with alpha.
        gap: max_alpha phi - min_{a,b} phi at the current a, b, alpha; it is 0 exactly where these are optimal.
        a: The current a.
        b: The current b.
        alpha: The current alpha.
        a_optimal: The best a for these scores.
        b_optimal: The best b.
        alpha_optimal: The best alpha.
        positive_share: Share of positives among the labelled entries; compare it with the prior.
        decay_bias: The share by which weight decay holds a and b below the class means, towards 0, once they have
            settled.
        caution: What to do about `decay_bias`; "" where it is small.
    """

    value: float | tuple[float, ...]
    gap: float | tuple[float, ...]
    a: float | tuple[float, ...]
    b: float | tuple[float, ...]
    alpha: float | tuple[float, ...]
    a_optimal: float | tuple[float, ...]
    b_optimal: float | tuple[float, ...]
    alpha_optimal: float | tuple[float, ...]
    positive_share: float | tuple[float, ...]
    decay_bias: float | tuple[float, ...] = 0.0
    caution: str = ""


def diagnose(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor,
    a: Tensor,
    b: Tensor,
    alpha: Tensor,
    *,
    margin: Tensor,
    constrain_alpha: bool,
    curvature: Tensor,
    decay: float,
) -> Diagnosis:
    """Closed forms from class moments taken about the class means; all in `precise_dtype`, scores (N,) or (N, L).

    curvature: second derivative of the objective in a and in b, (L,). Against decay, a settles where
    curvature (a - mean+) + decay a = 0.
    """
    if not decay >= 0:
        raise ValueError(f"decay must be at least 0, not {decay}: it is the optimizer's weight_decay.")
    weights = scale_free(weights)
    positive = weights * labels
    negative = weights * (1 - labels)
    n_positive, n_negative = positive.sum(0), negative.sum(0)
    absent = (n_positive <= 0) | (n_negative <= 0)
    if absent.all():
        raise ValueError(
            ONE_CLASS.format(
                what="diagnose",
                where=" in some label" if labels.ndim > 1 else "",
                positives=f"{float(n_positive.sum()):g}",
                negatives=f"{float(n_negative.sum()):g}",
            )
        )
    mean_positive = (positive * scores).sum(0) / n_positive
    mean_negative = (negative * scores).sum(0) / n_negative
    variance = (positive * (scores - mean_positive) ** 2).sum(0) / n_positive
    variance = variance + (negative * (scores - mean_negative) ** 2).sum(0) / n_negative
    shortfall = margin - mean_positive + mean_negative
    alpha_optimal = shortfall.clamp(min=0) if constrain_alpha else shortfall
    gap = (mean_positive - a) ** 2 + (mean_negative - b) ** 2 + alpha_optimal**2 - 2 * alpha * shortfall + alpha**2

    bias = decay / (curvature + decay)
    worst = bias.max().item()
    caution = ""
    if worst > LARGE_BIAS:
        caution = (
            f"A decay of {decay:g} holds a and b {worst:.0%} closer to 0 than the class means. Use normalise=True, or "
            "less decay for a and b, which are the group before the last one of PESG."
        )

    def shown(x: Tensor) -> float | tuple[float, ...]:
        values = torch.where(absent, torch.nan, x).reshape(-1).tolist()
        return values[0] if len(values) == 1 else tuple(values)

    return Diagnosis(
        value=shown(variance + alpha_optimal**2),
        gap=shown(gap.clamp(min=0)),
        a=shown(a),
        b=shown(b),
        alpha=shown(alpha),
        a_optimal=shown(mean_positive),
        b_optimal=shown(mean_negative),
        alpha_optimal=shown(alpha_optimal),
        positive_share=shown(n_positive / (n_positive + n_negative)),
        decay_bias=shown(bias),
        caution=caution,
    )
