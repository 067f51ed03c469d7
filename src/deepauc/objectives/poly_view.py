"""NT-Xent of several views of each image, for a first stage with few images or few epochs.

More views of an image in one step cut the epochs that CIFAR-10 needs (EMP-SSL, arXiv:2304.03977; ECPP,
arXiv:2401.05730), and at equal cost more views of fewer images were better (arXiv:2403.05490, on ImageNet). There is
neither a second network nor a memory of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from deepauc.objectives.contrastive import check_views, checked_temperature, finite, similarities


def poly_view(views: Sequence[Tensor], *, temperature: float) -> Tensor:
    """Poly-view NT-Xent (Shidani et al. 2024, arXiv:2403.05490, the geometric one): every pair of views by itself.

    l_iab = -log( exp(c_ia,ib / t) / (exp(c_ia,ib / t) + sum over j != i and all views g of exp(c_ia,jg / t)) ), c the
    cosine, a != b two views of image i; the mean over images and pairs. Of two views it is NT-Xent.

    views: projections (N, D) of M views, in the same order of images.
    """
    count, images = len(views), len(views[0])
    logits = similarities(views, temperature=temperature).reshape(count, images, count, images)
    own = torch.eye(images, dtype=torch.bool, device=logits.device)[:, None]
    others = logits.masked_fill(own, -torch.inf).logsumexp((2, 3))[..., None]  # (M, N, 1)
    pairs = logits.diagonal(dim1=1, dim2=3).transpose(1, 2)  # (M, N, M): the views of the image itself
    itself = torch.eye(count, dtype=torch.bool, device=logits.device)[:, None]
    return torch.where(itself, 0, torch.logaddexp(others, pairs) - pairs).sum() / (images * count * (count - 1))


class PolyViewLoss(nn.Module):
    """NT-Xent of several views; the equation is with `poly_view`. Labels are not looked at.

    Args:
        temperature: Divides the cosines; the smaller, the more the nearest views count.
        views: How many views of each image a batch has.
    """

    def __init__(self, temperature: float = 0.2, *, views: int = 4) -> None:
        super().__init__()
        self.temperature, self.views = checked_temperature(temperature), _checked(views)

    def forward(self, *views: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            *views: Projections (N, D), one tensor for each view; row i of all is of image i.
            labels: Not looked at.
        """
        if len(views) != self.views:
            raise ValueError(f"{len(views)} views were given, and the loss compares {self.views}: set views.")
        check_views(views, labels)
        return finite(poly_view(views, temperature=self.temperature))

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, views={self.views}"


def _checked(views: int) -> int:
    if not (views == int(views) and views >= 2):
        raise ValueError(f"views must be a whole number of at least 2, not {views}.")
    return views


@dataclass(frozen=True, kw_only=True)
class PolyView:
    """`PolyViewLoss` as the objective of a stage on as many views; neither labels nor prior enter."""

    temperature: float = 0.2
    views: int = 4
    uses_labels: ClassVar[bool] = False
    soft_labels: ClassVar[bool] = False
    bound: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        checked_temperature(self.temperature)
        _checked(self.views)

    def build(self, *, prior: Sequence[float]) -> PolyViewLoss:
        return PolyViewLoss(self.temperature, views=self.views)
