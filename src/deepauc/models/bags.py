"""One score for several images (a bag: an exam, a patient, a slide): pooling, and the network that pools.

The functions take values of each image in a grid, (B, M, ...), and which of its places hold an image, (B, M): bag b has
n_b images, at least one. A bag of one image has that image's score, whatever the pooling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from deepauc.models.average import Buildable
from deepauc.models.classifier import Classifier, classifier_head

Pooling = Literal["mean", "max", "smooth-max", "attention"]


@dataclass(frozen=True, eq=False)
class Bags:
    """Images of several bags.

    Args:
        images: (n, ...), one bag after the other.
        sizes: How many images each bag has.
        places: (n,) where each image stands in the whole batch, of which these bags may be a part; None: it is the
            whole.
    """

    images: Tensor
    sizes: tuple[int, ...]
    places: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if sum(self.sizes) != len(self.images):
            raise ValueError(f"the bags have {sum(self.sizes)} images in all, but {len(self.images)} are given.")

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> Tensor:
        """(n,) where each image stands in the whole batch."""
        return torch.arange(len(self.images), device=self.device) if self.places is None else self.places

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def is_cuda(self) -> bool:
        return self.images.is_cuda

    def __getitem__(self, chosen: slice) -> Bags:
        """Some consecutive bags."""
        first, stop, _ = chosen.indices(len(self))
        of_images = slice(sum(self.sizes[:first]), sum(self.sizes[:stop]))
        return Bags(self.images[of_images], self.sizes[chosen], self.rows[of_images])


def in_grid(values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Values of images, (n, K), one bag after the other -> (B, M, K), 0 where there is none, and present (B, M)."""
    if not sizes or min(sizes) < 1:
        raise ValueError("a bag without images has no score: leave it out.")
    counts = torch.tensor(sizes, device=values.device)
    present = torch.arange(max(sizes), device=values.device) < counts[:, None]
    grid = values.new_zeros(*present.shape, values.shape[1])
    return grid.index_put((present,), values), present


def mean_pool(scores: Tensor, present: Tensor) -> Tensor:
    """h_b = 1/n_b Σ_i φ_i: (B, M, L) -> (B, L)."""
    return torch.where(present[..., None], scores, 0).sum(1) / present.sum(1, keepdim=True)


def max_pool(scores: Tensor, present: Tensor) -> Tensor:
    """h_b = max_i φ_i; equal maxima share the gradient."""
    return torch.where(present[..., None], scores, -math.inf).amax(1)


def smooth_max_pool(scores: Tensor, present: Tensor, tau: float) -> Tensor:
    """h_b = τ log(1/n_b Σ_i exp(φ_i/τ)): the mean as τ grows, the maximum as τ goes to 0 (MIDAM, ICML 2023)."""
    inside = torch.where(present[..., None], scores / tau, -math.inf)
    return tau * (torch.logsumexp(inside, dim=1) - present.sum(1, keepdim=True).to(scores.dtype).log())


def attention_weights(logits: Tensor, present: Tensor) -> Tensor:
    """w_i = exp(g_i) / Σ_j exp(g_j) within a bag: (B, M) -> (B, M), 0 where there is no image."""
    return torch.softmax(torch.where(present, logits, -math.inf), dim=1)


def attention_pool(scores: Tensor, logits: Tensor, present: Tensor) -> Tensor:
    """h_b = Σ_i w_i φ_i, of scores (B, M, L) and one logit g for each image, (B, M).

    For a linear classifier c this is c(Σ_i w_i f_i), the score of the weighted mean of features f (Ilse, Tomczak and
    Welling, ICML 2018), since the weights sum to 1.
    """
    return (attention_weights(logits, present)[..., None] * scores).sum(1)


@runtime_checkable
class PoolsImages(Protocol):
    """A network of bags in two halves: the first sees each image by itself, the second a few numbers for each image.

    So bags of any size are scored exactly, a few images at a time.
    """

    num_image_outputs: int

    def image_outputs(self, images: Tensor) -> Tensor:
        """(n, ...) -> (n, num_image_outputs)."""

    def pool(self, grid: Tensor, present: Tensor) -> Tensor:
        """What the first half gave, (B, M, num_image_outputs), and where there are images -> scores (B, L)."""

    def importance(self, outputs: Tensor) -> Tensor:
        """Of the images of one bag, (n, num_image_outputs) -> (n, L): the weight dh/dφ_i of each in the bag's score."""


def pooled(model: PoolsImages, outputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """Scores (B, L) of what the first half gave for each image, (n, num_image_outputs), one bag after the other."""
    return model.pool(*in_grid(outputs, sizes))


def of_one_bag(model: PoolsImages, outputs: Tensor) -> Tensor:
    """The score (1, L) of one bag that has all these images."""
    return model.pool(outputs[None], torch.ones(1, outputs.shape[0], dtype=torch.bool, device=outputs.device))


class BagNetwork(nn.Module):
    """The network of `BagSpec`: bags -> raw scores (B, L); images alone, (N, ...), each count as a bag of its own.

    Args:
        image: The network for one image, with a row of scores for each.
        num_outputs: Number of labels L.
    """

    def __init__(
        self, image: nn.Module, *, num_outputs: int, pooling: Pooling, tau: float = 1.0, attention_width: int = 64
    ) -> None:
        super().__init__()
        self.image, self.pooling, self.tau, self.num_outputs = image, pooling, tau, num_outputs
        self.num_image_outputs = num_outputs
        if pooling == "attention":
            last = nn.Linear(attention_width, 1, bias=False)
            nn.init.zeros_(last.weight)  # all images count alike at first
            in_features = classifier_head(image).weight[0].numel()
            self.attention = nn.Sequential(nn.Linear(in_features, attention_width), nn.Tanh(), last)
            self.num_image_outputs += 1

    def get_classifier(self) -> Classifier:
        return classifier_head(self.image)

    def forward(self, inputs: Tensor | Bags) -> Tensor:
        if isinstance(inputs, Bags):
            return pooled(self, self.image_outputs(inputs.images), inputs.sizes)
        scores: Tensor = self.image(inputs)
        return scores

    def image_outputs(self, images: Tensor) -> Tensor:
        """The score of each image, with attention also its logit."""
        if self.pooling != "attention":
            scores: Tensor = self.image(images)
            return scores
        features: list[Tensor] = []
        handle = self.get_classifier().register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
        try:
            scores = self.image(images)
        finally:
            handle.remove()
        return torch.cat([scores, self.attention(features[0].flatten(1))], dim=1)

    def pool(self, grid: Tensor, present: Tensor) -> Tensor:
        grid = grid.to(torch.promote_types(grid.dtype, torch.float32))
        scores = grid[..., : self.num_outputs]
        match self.pooling:
            case "mean":
                return mean_pool(scores, present)
            case "max":
                return max_pool(scores, present)
            case "smooth-max":
                return smooth_max_pool(scores, present, self.tau)
            case "attention":
                return attention_pool(scores, grid[..., -1], present)

    def importance(self, outputs: Tensor) -> Tensor:
        with torch.enable_grad():
            seen = outputs.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(of_one_bag(self, seen).sum(), seen)
        return gradient[:, : self.num_outputs]


@dataclass(frozen=True, kw_only=True)
class BagSpec:
    """A network for bags of images: `image` scores each of them, `pooling` makes one score of these.

    Args:
        image: The network for one image.
        pooling: "mean", "max", "smooth-max", or "attention", a small network that weighs the images by their features.
        tau: Temperature of "smooth-max".
        attention_width: Hidden units of "attention".
    """

    image: Buildable
    pooling: Pooling = "smooth-max"
    tau: float = 1.0
    attention_width: int = 64

    def __post_init__(self) -> None:
        if isinstance(self.image, BagSpec):
            raise ValueError("image must be the network of a single image, not another BagSpec.")
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling must be one of {', '.join(get_args(Pooling))}, not {self.pooling!r}.")
        if not 0 < self.tau < math.inf:
            raise ValueError(f"tau must be positive, not {self.tau}.")
        if self.attention_width < 1:
            raise ValueError(f"attention_width must be at least 1, not {self.attention_width}.")

    def build(self, *, in_channels: int, num_outputs: int) -> nn.Module:
        return BagNetwork(
            self.image.build(in_channels=in_channels, num_outputs=num_outputs),
            num_outputs=num_outputs,
            pooling=self.pooling,
            tau=self.tau,
            attention_width=self.attention_width,
        )
