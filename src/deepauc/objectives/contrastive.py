"""Contrastive losses on two augmented views of each image: NT-Xent without labels, and its form with labels.

Both compare all 2N projections of a batch by one matrix product of (2N)^2 cosines, in float32 whatever comes in, also
inside autocast. An objective on views needs no prior and gives no scores: it trains features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepauc.labels import Diverged, require_plain_tensor
from deepauc.objectives.score_norm import unit_norm

Classes = Literal["both", "positives"]

NON_FINITE = (
    "the projections hold NaN or infinity: the network has diverged. Lower lr, let it rise over the first steps "
    "(Cosine(warmup=...)), or set gradient_clip."
)


def nt_xent(first: Tensor, second: Tensor, *, temperature: float) -> Tensor:
    """NT-Xent (Chen et al. 2020, SimCLR, eq. 1): each view has to find the other one of its image among all views.

    l_i = -log( exp(c_ij / t) / sum over k != i of exp(c_ik / t) ), c the cosine, j the other view of i's image; the
    mean over all 2N views.

    first, second: projections (N, D) of the two views, in the same order of images.
    """
    logits = _without_self(similarities([first, second], temperature=temperature))
    count = len(first)
    other = torch.arange(2 * count, device=logits.device).roll(count)
    return F.cross_entropy(logits, other)


def supervised_contrastive(
    first: Tensor, second: Tensor, labels: Tensor, *, temperature: float, classes: Classes = "both"
) -> Tensor:
    """NT-Xent with labels (Khosla et al. 2020, eq. 2): all views of the class are to be found, not the image's alone.

    l_i = -1/|P_i| sum over p in P_i of log( exp(c_ip / t) / sum over k != i of exp(c_ik / t) ); P_i: i's other view and
    both views of every image with i's label; the mean over all 2N views. An image with a missing label has its own
    views alone in P, and is in no other P. Several labels: alike are images that agree in all of them.

    classes: "positives" treats images without a positive label like those with a missing one. With few positives
    most pairs are of two negatives, and to draw them all together is to draw everything to one point, where the loss is
    log(2N - 1); so only the rare class is drawn together, and each negative is told from all others.

    first, second (N, D); labels (N,) or (N, L), NaN where missing.
    """
    logits = _without_self(similarities([first, second], temperature=temperature))
    count = len(first)
    columns = labels.reshape(count, -1)
    alike = (columns[:, None] == columns[None]).all(-1)  # NaN equals nothing
    if classes == "positives":
        alike = alike & (columns == 1).any(-1)
    alike = (alike | torch.eye(count, dtype=torch.bool, device=alike.device)).repeat(2, 2)
    alike = alike & ~_diagonal(logits)
    log_share = torch.where(alike, F.log_softmax(logits, 1), 0)  # not a product: it is -inf on the diagonal
    return -(log_share.sum(1) / alike.sum(1)).mean()


def own_view_nearest(first: Tensor, second: Tensor) -> Tensor:
    """Whether, of all second views, each first view's own one is the nearest by cosine: 0 or 1, (N,). No gradient."""
    one, two = _unit_rows(first.detach()), _unit_rows(second.detach())
    with torch.autocast(one.device.type, enabled=False):
        nearest = (one @ two.T).argmax(1)
    return (nearest == torch.arange(len(one), device=one.device)).to(one.dtype)


class ViewLoss(nn.Module):
    """A loss of two views' projections, (N, D) each; labels (N,) or (N, L), for those that look at them."""

    def forward(self, first: Tensor, second: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            first: (N, D), projections of the first views.
            second: Those of the second views; row i of both is of image i.
            labels: (N,) or (N, L), for losses that look at them.
        """
        check_views([first, second], labels)
        return finite(self.value(first, second, labels))

    def value(self, first: Tensor, second: Tensor, labels: Tensor | None) -> Tensor:
        """The mathematics, on checked shapes."""
        raise NotImplementedError


class ContrastiveLoss(ViewLoss):
    """NT-Xent of two views; the equation is with `nt_xent`. Labels are not looked at.

    Args:
        temperature: Divides the cosines; the smaller, the more the nearest views count.
    """

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = checked_temperature(temperature)

    def value(self, first: Tensor, second: Tensor, labels: Tensor | None) -> Tensor:
        return nt_xent(first, second, temperature=self.temperature)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


class SupervisedContrastiveLoss(ViewLoss):
    """The contrastive loss with labels; the equation is with `supervised_contrastive`.

    Args:
        temperature: Divides the cosines; the smaller, the more the nearest views count.
        classes: Which classes attract their own: "both", or "positives" where these are few.
    """

    def __init__(self, temperature: float = 0.2, *, classes: Classes = "both") -> None:
        super().__init__()
        self.temperature = checked_temperature(temperature)
        self.classes = _checked_classes(classes)

    def value(self, first: Tensor, second: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None:
            raise ValueError("the supervised contrastive loss needs labels: without labels use ContrastiveLoss.")
        return supervised_contrastive(first, second, labels, temperature=self.temperature, classes=self.classes)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, classes={self.classes!r}"


def check_views(views: Sequence[Tensor], labels: Tensor | None) -> None:
    """Says what is wrong with projections (N, D), one tensor for each view, or with their labels."""
    first = views[0]
    for given in () if torch.compiler.is_compiling() else views:
        require_plain_tensor("views", given)
    if any(view.shape != first.shape or view.ndim != 2 for view in views):
        raise ValueError(
            f"views of shape {' and '.join(str(tuple(view.shape)) for view in views)}: give {len(views)} of the same "
            f"(N, D), row i of {'both' if len(views) == 2 else 'all'} from image i."
        )
    if not all(view.is_floating_point() for view in views):
        raise ValueError(f"views must be floating-point, not {first.dtype}: pass the projection head's output.")
    if len(first) < 2:
        raise ValueError("a batch of one image has nothing to contrast: give at least 2.")
    if labels is not None and (labels.ndim not in (1, 2) or len(labels) != len(first)):
        raise ValueError(f"labels of shape {tuple(labels.shape)} for {len(first)} images: give (N,) or (N, L).")


def finite(loss: Tensor) -> Tensor:
    """The loss itself; on a CPU an error where the network has diverged."""
    if loss.device.type == "cpu" and not torch.compiler.is_compiling() and not math.isfinite(loss.item()):
        raise Diverged(NON_FINITE)
    return loss


def similarities(views: Sequence[Tensor], *, temperature: float) -> Tensor:
    """Cosines of all views of all N images over the temperature, view by view: (M N, M N) for M views."""
    z = _unit_rows(torch.cat([*views]))
    with torch.autocast(z.device.type, enabled=False):  # bfloat16 cosines would be told apart to 0.4 % only
        return (z / temperature) @ z.T


def _without_self(logits: Tensor) -> Tensor:
    """-inf where a view meets itself."""
    return logits.masked_fill(_diagonal(logits), -torch.inf)


def _unit_rows(projections: Tensor) -> Tensor:
    """Each row over its L2 norm, in float32 at least; a row of zeros stays 0, its gradient too."""
    return unit_norm(projections.T).T


def _diagonal(square: Tensor) -> Tensor:
    return torch.eye(len(square), dtype=torch.bool, device=square.device)


def checked_temperature(temperature: float) -> float:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, not {temperature}.")
    return temperature


def _checked_classes(classes: Classes) -> Classes:
    if classes not in get_args(Classes):
        raise ValueError(f"classes must be 'both' or 'positives', not {classes!r}.")
    return classes


@dataclass(frozen=True, kw_only=True)
class Contrastive:
    """`ContrastiveLoss` as the objective of a stage on two views (SimCLR); neither labels nor prior enter."""

    temperature: float = 0.2
    views: ClassVar[int] = 2
    uses_labels: ClassVar[bool] = False
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        checked_temperature(self.temperature)

    def build(self, *, prior: Sequence[float]) -> ContrastiveLoss:
        return ContrastiveLoss(self.temperature)


@dataclass(frozen=True, kw_only=True)
class SupervisedContrastive:
    """`SupervisedContrastiveLoss` as the objective of a stage on two views; the prior does not enter."""

    temperature: float = 0.2
    classes: Classes = "both"
    views: ClassVar[int] = 2
    uses_labels: ClassVar[bool] = True
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        checked_temperature(self.temperature)
        _checked_classes(self.classes)

    def build(self, *, prior: Sequence[float]) -> SupervisedContrastiveLoss:
        return SupervisedContrastiveLoss(self.temperature, classes=self.classes)
