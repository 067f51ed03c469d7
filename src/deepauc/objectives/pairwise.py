"""The pairwise AUC losses over all (positive, negative) pairs, without ever forming the pairs.

Square, hinge and squared hinge cost O(n log n) time and O(n) memory, value and gradient; logistic, which has no such
form, goes through the pairs in chunks of bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepauc.labels import NON_FINITE_SCORES, Diverged, scale_free
from deepauc.objectives.input_check import InputCheck, precise_dtype
from deepauc.objectives.once import WithGradient

Surrogate = Literal["square", "squared_hinge", "hinge", "logistic"]

CHUNK_PAIRS = 1 << 18
"""Pairs held at once by the logistic surrogate: a megabyte in float32, which stays in a core's cache."""

DEVICE_CHUNK_PAIRS = 1 << 24
"""The same on a GPU, which needs longer pieces to be busy: a third of a gigabyte with all that hangs on them."""


RADIX_FROM = 1 << 15
"""So many numbers torch sorts by radix on the CPU, fewer by comparing them."""


def pairwise_auc_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    surrogate: Surrogate = "squared_hinge",
    margin: float | Tensor = 1.0,
) -> Tensor:
    """Mean of l(z_ij), z_ij = margin - (h_i - h_j), over all pairs of a positive i and a negative j; mean over labels.

    l(z) is z^2 (`square`), max(z, 0)^2 (`squared_hinge`), max(z, 0) (`hinge`) or log(1 + e^z) (`logistic`).
    A label y in [0, 1] counts as y of a positive and 1 - y of a negative, w is the sample weight, so the mean is
    sum_ij w_i y_i w_j (1 - y_j) l(z_ij) / sum_ij w_i y_i w_j (1 - y_j), over all i and j, i = j too.

    scores (N,) or (N, L), floating; labels the same shape, NaN where missing; weights (N,) or the scores' shape,
    constants; margin a number or (L,). Returns a scalar, float32 (float64 for double scores), 0 for a label without a
    pair. Once differentiable in the scores.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    loss: Tensor = WithGradient.apply(scores, _loss_and_gradient, labels, weights, surrogate, margin)[0]
    return loss


class PairwiseAUCLoss(nn.Module):
    """Mean of a surrogate of margin - (h_i - h_j) over all pairs of a positive i and a negative j.

    The equation is with `pairwise_auc_loss`.

    Args:
        surrogate: "square", "squared_hinge", "hinge" or "logistic".
        margin: How far a positive's score should be above a negative's; one number, or one per label. 0 gives the plain
            logistic loss.
        soft_labels: Accept labels in [0, 1]: y counts as y of a positive and 1 - y of a negative.
    """

    def __init__(
        self,
        surrogate: Surrogate = "squared_hinge",
        margin: float | Sequence[float] | Tensor = 1.0,
        soft_labels: bool = False,
    ) -> None:
        super().__init__()
        self.margin = checked_margin(surrogate, margin)
        self.surrogate: Surrogate = surrogate
        self.soft_labels = soft_labels
        self.input_check = InputCheck(soft=soft_labels)
        self._margin_there: Tensor | None = None

    def forward(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            scores: (N,) or (N, L).
            labels: Of the same shape: 0 or 1, NaN where missing.
            weights: Sample weights, (N,) or the scores' shape; a pair weighs the product of its two.
        """
        self.input_check.before(scores, labels, weights)
        require_finite_scores(scores, labels)
        return self.input_check.after(self._value(scores, labels, weights), scores, labels, weights)

    def _value(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The mathematics, on checked input."""
        margin = self._margin_for(scores)
        return pairwise_auc_loss(scores, labels, weights, surrogate=self.surrogate, margin=margin)

    def extra_repr(self) -> str:
        margin = self.margin[0] if len(self.margin) == 1 else self.margin
        return f"surrogate={self.surrogate!r}, margin={margin}, soft_labels={self.soft_labels}"

    def _margin_for(self, scores: Tensor) -> float | Tensor:
        if len(self.margin) == 1:
            return self.margin[0]
        num_labels = 1 if scores.ndim == 1 else scores.shape[1]
        if len(self.margin) != num_labels:
            raise ValueError(
                f"margin has {len(self.margin)} values for {num_labels} labels: give one number, or one per label."
            )
        if self._margin_there is None or self._margin_there.device != scores.device:
            self._margin_there = torch.tensor(
                self.margin, dtype=precise_dtype(scores.device.type), device=scores.device
            )
        return self._margin_there


def checked_margin(surrogate: Surrogate, margin: float | Sequence[float] | Tensor) -> tuple[float, ...]:
    """One margin, or one per label; ValueError where it or the surrogate is none."""
    if surrogate not in get_args(Surrogate):
        raise ValueError(f"surrogate must be one of {', '.join(get_args(Surrogate))}, not {surrogate!r}.")
    given = margin.tolist() if isinstance(margin, (Tensor, np.ndarray)) else margin
    margins = tuple(float(m) for m in given) if isinstance(given, Sequence) else (float(given),)
    if not margins or not all(m >= 0 and math.isfinite(m) for m in margins):
        raise ValueError(f"margin must be finite and not negative, not {margin}.")
    return margins


def _loss_and_gradient(
    scores: Tensor, labels: Tensor, weights: Tensor | None, surrogate: Surrogate, margin: float | Tensor
) -> tuple[Tensor, Tensor]:
    # Selecting the two classes makes the host wait for a GPU, and cannot be captured in a graph; there every entry has
    # both roles, with mass 0 where it has none. For the logistic surrogate that is so many more pairs that only batches
    # whose pairs fit into one piece are taken that way.
    many = surrogate == "logistic" and len(scores) ** 2 > DEVICE_CHUNK_PAIRS
    if scores.device.type == "cpu" or many:
        return _selected(scores, labels, weights, surrogate, margin)
    return _masked(scores, labels, weights, surrogate, margin)


Class = tuple[Tensor, Tensor, Tensor]
"""Rows of one class that take part, their scores, and their masses; the last two in `precise_dtype`."""


def label_by_label(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    surrogate: Surrogate,
    margin: float | Tensor,
    choose: Callable[[Tensor, Tensor, Tensor | None], tuple[Class, Class, float]],
) -> tuple[Tensor, Tensor]:
    """Loss and gradient from the entries that have a role.

    choose: of one label's scores, labels and weights the negatives, the positives, and what the sum over pairs is
    divided by, 0 where there is no pair.
    """
    num_labels = 1 if scores.ndim == 1 else scores.shape[1]
    loss = scores.new_zeros((), dtype=precise_dtype(scores.device.type))
    gradient = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    for label in range(num_labels):
        column = ... if scores.ndim == 1 else (slice(None), label)
        w = None if weights is None else weights if weights.ndim == 1 else weights[column]
        (negatives, t, v), (positives, a, u), pairs = choose(scores[column], labels[column], w)
        if pairs == 0:
            continue
        centre = exact_centre((t.sum() + a.sum()) / (len(t) + len(a)))
        t -= centre
        t += margin[label] if isinstance(margin, Tensor) else margin
        a -= centre
        value, slope_t, slope_a = over_pairs(t, v, a, u, surrogate, scores.dtype)
        loss += value / (pairs * num_labels)
        slope = gradient[column]
        slope.index_copy_(0, negatives, slope_t.div_(pairs * num_labels).to(scores.dtype))
        # Adds, since a soft label has both roles.
        slope.index_add_(0, positives, slope_a.div_(pairs * num_labels).to(scores.dtype))
    return loss.to(scores.dtype), gradient


def _selected(
    scores: Tensor, labels: Tensor, weights: Tensor | None, surrogate: Surrogate, margin: float | Tensor
) -> tuple[Tensor, Tensor]:
    return label_by_label(scores, labels, weights, surrogate, margin, _both_classes)


def _both_classes(h: Tensor, y: Tensor, w: Tensor | None) -> tuple[Class, Class, float]:
    precise = precise_dtype(h.device.type)
    negatives, positives = (of_class.nonzero().squeeze(1) for of_class in (y < 1, y > 0))  # a NaN is neither
    t, a = h.index_select(0, negatives).to(precise), h.index_select(0, positives).to(precise)
    v, u = 1 - y.index_select(0, negatives).to(precise), y.index_select(0, positives).to(precise)
    if w is not None:
        v, u = v * _weights_at(w, negatives, precise), u * _weights_at(w, positives, precise)
    return (negatives, t, v), (positives, a, u), (v.sum() * u.sum()).item()


def _masked(
    scores: Tensor, labels: Tensor, weights: Tensor | None, surrogate: Surrogate, margin: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Loss and gradient of all labels at once, without the host ever looking at a tensor."""
    h, y, w = known_rows(scores, labels, weights)
    v, u = w * (1 - y), w * y
    if weights is not None:  # each class by itself: one far below the other in weight is not lost in their product
        v, u, w = scale_free(v, dim=1), scale_free(u, dim=1), scale_free(w, dim=1)
    a = h - exact_centre((w * h).sum(1, keepdim=True) * reciprocal(w.sum(1, keepdim=True)))
    t = a + (margin.unsqueeze(1) if isinstance(margin, Tensor) else margin)
    value, slope_t, slope_a = over_pairs(t, v, a, u, surrogate, scores.dtype)
    scale = reciprocal(v.sum(1) * u.sum(1)) / len(y)
    gradient = slope_t.add_(slope_a).mul_(scale.unsqueeze(1)).to(scores.dtype)
    return (value * scale).sum().to(scores.dtype), gradient.T.reshape(scores.shape)


def known_rows(scores: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels and weights, all (L, N); all three are 0 where a label is missing."""
    y = label_rows(labels)
    w = (y == y).to(y.dtype)  # noqa: PLR0124  (0 where y is NaN)
    y = torch.where(w > 0, y, 0)
    if weights is not None:
        w *= label_rows(weights)
    h = torch.where(w > 0, label_rows(scores), 0)  # whatever the score beside a missing label is, it must not spread
    return h, y, w


def over_pairs(
    t: Tensor, v: Tensor, a: Tensor, u: Tensor, surrogate: Surrogate, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """sum_ij u_i v_j l(t_j - a_i) along the last axis, and its gradients in t and a; all in `precise_dtype`.

    t (..., Q): the negatives' scores plus the margin, and their masses v; a (..., P): the positives', and u.
    """
    if surrogate == "square":
        return _square(t, v, a, u)
    if surrogate == "logistic":
        if t.ndim == 1:
            return _logistic(t, v, a, u, dtype)
        labels = [_logistic(*label, dtype) for label in zip(t, v, a, u, strict=True)]
        value, slope_t, slope_a = (torch.stack(each) for each in zip(*labels, strict=True))
        return value, slope_t, slope_a
    return _hinge(t, v, a, u, squared=surrogate == "squared_hinge")


def _square(t: Tensor, v: Tensor, a: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U V (var t + var a + (mean t - mean a)^2), with residuals about the two means, never raw moments."""
    total_t, total_a = v.sum(-1, keepdim=True), u.sum(-1, keepdim=True)
    mean_t = (v * t).sum(-1, keepdim=True) * reciprocal(total_t)
    mean_a = (u * a).sum(-1, keepdim=True) * reciprocal(total_a)
    gap = mean_t - mean_a
    slope_t, slope_a = t - mean_t, a - mean_a
    spread_t, spread_a = (slope_t.square().mul_(v)).sum(-1), (slope_a.square().mul_(u)).sum(-1)
    both = (total_t * total_a * gap.square()).squeeze(-1)
    value = total_a.squeeze(-1) * spread_t + total_t.squeeze(-1) * spread_a + both
    slope_t.add_(gap).mul_(v).mul_(2 * total_a)
    slope_a.sub_(gap).mul_(u).mul_(2 * total_t)
    return value, slope_t, slope_a


def _hinge(t: Tensor, v: Tensor, a: Tensor, u: Tensor, *, squared: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The two hinges, max(z, 0)^k with k = 1 or 2, by one sort of t and a together.

    In sorted order the pairs that count for t_j are those with the a_i before it, and for a_i those with the t_j behind
    it, so that all inner sums are cumulative sums. A tie t_j = a_i does not count: the sort is stable, the t_j stand
    first. The sum f is homogeneous of degree k, so f = (t . df/dt + a . df/da) / k (Euler): no second moments are
    needed, which keeps twice the digits.
    """
    x, order = stable_sort(torch.cat([t, a], -1))
    mass = torch.cat([-v, u], -1)
    mass = mass.index_select(0, order) if mass.ndim == 1 else mass.gather(-1, order)
    u = mass.clamp(min=0)
    v = mass.sub_(u).neg_()
    before = u.cumsum(-1)
    behind = _to_behind(v.cumsum(-1))
    if squared:
        moment = (u * x).cumsum_(-1)
        before.mul_(x).sub_(moment)  # sum of u_i (x - a_i) over the a_i before x
        moment = _to_behind(torch.mul(v, x, out=moment).cumsum_(-1))
        behind.mul_(x).sub_(moment)  # sum of v_j (x - t_j) over the t_j behind x
        slope = before.mul_(v).add_(behind.mul_(u))
    else:
        slope = before.mul_(v).sub_(behind.mul_(u))
    value = x.mul_(slope).sum(-1)
    slopes = torch.empty_like(slope).scatter_(-1, order, slope.mul_(2) if squared else slope)
    return value, slopes[..., : t.shape[-1]], slopes[..., t.shape[-1] :]


def _to_behind(running: Tensor) -> Tensor:
    """Sums up to each place into sums behind it, in place."""
    total = running[..., -1:].clone()
    return running.sub_(total).neg_()


def stable_sort(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.device.type != "cpu" or x.dtype != torch.float64:
        return torch.sort(x, dim=-1, stable=True)
    x.add_(0.0)  # turns -0 into 0
    if x.ndim == 1 and not torch.compiler.is_compiling():
        if len(x) < RADIX_FROM:
            order = torch.from_numpy(_stable_order(x.numpy()))
            return x.index_select(0, order), order
        if (found := _sorted_by_cells(x)) is not None:
            return found
    # On the CPU torch sorts integers by radix, five times as fast as floats. A float's bits, all but the first turned
    # round where it is negative, order as the float does; the map is its own inverse.
    keys, order = torch.sort(_ordered_bits(x.view(torch.int64)), dim=-1, stable=True)
    return _ordered_bits(keys).view(torch.float64), order


def _stable_order(x: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """As a stable sort's, by NumPy's, which is several times as fast as torch's, and not stable: equal numbers, few
    mostly, are put in their order afterwards."""
    order = np.argsort(x)
    ordered = x[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.append(same, False)
        tied[1:] |= same
        places = np.flatnonzero(tied)
        run = np.cumsum(np.append(True, ~same))[places]
        order[places] = order[places][np.lexsort((order[places], run))]
    return order


def _sorted_by_cells(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """A stable sort by the 2^31 equal cells of the range, half the radix passes; None where many share one unsorted."""
    low, high = (bound.item() for bound in torch.aminmax(x))
    cells_a_unit = (2**31 - 1) / (high - low) if high > low else math.inf
    if not math.isfinite(cells_a_unit):
        return None
    cells, order = torch.sort(((x - low) * cells_a_unit).to(torch.int32), stable=True)
    ordered = x.index_select(0, order)
    if (ordered[1:] < ordered[:-1]).any():
        shared = torch.nn.functional.pad(cells[1:] == cells[:-1], (1, 1))
        places = (shared[1:] | shared[:-1]).nonzero().squeeze(1)
        if len(places) > len(x) // 64:
            return None
        rows = order[places]
        order[places] = rows[torch.from_numpy(np.lexsort((x[rows].numpy(), cells[places].numpy())))]
        ordered = x.index_select(0, order)
    return ordered, order


def _ordered_bits(bits: Tensor) -> Tensor:
    return (bits >> 63).bitwise_and_(0x7FFF_FFFF_FFFF_FFFF).bitwise_xor_(bits)


def _logistic(t: Tensor, v: Tensor, a: Tensor, u: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """log(1 + e^z), at most CHUNK_PAIRS pairs at a time: functions of z in `dtype`, all else as t is."""
    value = t.new_zeros(())
    slope_t, slope_a = torch.zeros_like(t), torch.zeros_like(a)
    chunk = CHUNK_PAIRS if t.device.type == "cpu" else DEVICE_CHUNK_PAIRS
    for first in range(0, len(t), chunk):
        columns = slice(first, first + chunk)
        height = max(chunk // len(t[columns]), 1)
        for top in range(0, len(a), height):
            rows = slice(top, top + height)
            z = (t[columns] - a[rows].unsqueeze(1)).to(dtype)
            mass = v[columns].to(dtype) * u[rows].to(dtype).unsqueeze(1)
            value -= F.logsigmoid(-z).mul_(mass).sum()
            slope = z.sigmoid_().mul_(mass)
            slope_t[columns] += slope.sum(0)
            slope_a[rows] -= slope.sum(1)
    return value, slope_t, slope_a


def exact_centre(mean: Tensor) -> Tensor:
    """The mean rounded to float32: its difference to a float32 score is exact in float64, so that ties stay ties."""
    return mean.float().to(mean.dtype)


def reciprocal(total: Tensor) -> Tensor:
    """1 / total, or 0 where there is nothing."""
    return torch.where(total > 0, 1 / total, 0)


def _weights_at(weights: Tensor, where: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights of one class, of which only the ratios count."""
    wide = torch.promote_types(weights.dtype, dtype)
    return scale_free(weights.index_select(0, where).to(wide)).to(dtype)


def label_rows(values: Tensor) -> Tensor:
    """(N,) or (N, L) -> (1, N) or (L, N) in `precise_dtype`."""
    columns = values.unsqueeze(1) if values.ndim == 1 else values
    return columns.to(precise_dtype(values.device.type)).T.contiguous()


def require_finite_scores(scores: Tensor, labels: Tensor) -> None:
    """On the host, for a loss that an infinite score may leave finite."""
    if scores.device.type != "cpu" or torch.compiler.is_compiling() or not scores.numel():
        return
    if not all(math.isfinite(bound.item()) for bound in torch.aminmax(scores.detach())):
        missing = labels != labels  # noqa: PLR0124  (NaN)
        if not (scores.isfinite() | missing).all():
            raise Diverged(NON_FINITE_SCORES)


@dataclass(frozen=True, kw_only=True)
class PairwiseAUC:
    """`PairwiseAUCLoss` as a stage's objective; the prior does not enter."""

    surrogate: Surrogate = "squared_hinge"
    margin: float | tuple[float, ...] = 1.0
    soft_labels: bool = False
    bound: ClassVar[str] = "sigmoid"
    ranks: ClassVar[bool] = True  # only the order of its scores is trained

    def __post_init__(self) -> None:
        checked_margin(self.surrogate, self.margin)

    def build(self, *, prior: Sequence[float]) -> PairwiseAUCLoss:
        return PairwiseAUCLoss(self.surrogate, self.margin, self.soft_labels)


Pairwise = PairwiseAUC  # its first name
