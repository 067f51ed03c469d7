"""The paper's Figure 1: does adding easy or wrongly labelled points move AUC-S's decision boundary, and AUC-M's not?

Two Gaussian clouds in the plane, a two-layer ELU network pre-trained with cross-entropy (the two-stage framework of
section 3.4), then retrained by AUC-S and by AUC-M on the same points, with easy positives added, or with flipped
labels added. Both losses start from the same network, with a and b at its class means and alpha at 0, and take the same
steps. The boundary is where the score equals (a + b)/2; what is measured is the share of the window that changes side.

Scores are unbounded here, as in section 3.2. Then the two losses share their minimiser up to a factor m: for scores s·h
A_M = s² V + [m - s D]_+² is least at s = m D/(V + D²), where alpha = m V/(V + D²) > 0, and the best h is the same. So
the boundaries can differ on the way (while alpha is 0) but not in the end. That is why the whole path is recorded.

The paper does not say how the network of its figure was pre-trained nor which scores the losses saw. Cross-entropy and
raw scores are a choice made after trials: in those, after pre-training by an AUC loss, or behind a sigmoid
(`sigmoid=True`, which the demo shows too), no advantage of AUC-M was seen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.objectives.auc_square import AUCSquareLoss
from deepauc.objectives.saddle_loss import SaddleLoss
from deepauc.optim.pesg import PESG

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

SETS = ("nothing added", "easy points added", "flipped labels added")
WINDOW = ((-4.0, 6.0), (-4.0, 4.0))
"""The part of the plane that is drawn and measured."""


@dataclass(frozen=True, kw_only=True)
class ToySettings:
    """The set-up. `shown_step` is where the picture is taken: near the largest difference, so look at the path too."""

    seeds: int = 20
    first_seed: int = 0
    hidden: int = 16
    points: int = 60  # of each class
    easy: int = 20  # positives far from the boundary
    flipped: int = 6  # of each class, labelled as the other
    pretraining_steps: int = 100
    pretraining_lr: float = 0.02  # momentum 0.9
    steps: int = 800
    shown_step: int = 100
    lr: float = 0.01  # PESG, gamma .002, all points in each step
    sigmoid: bool = False  # scores behind a sigmoid in retraining, as everywhere else in this package
    margins: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 1.0)
    shown_margin: float = 1.0  # AUC-S's own, so that the rows of the picture differ in the constraint alone
    grid: int = 60  # points along each side of the window

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"an interval over seeds needs at least two seeds, not {self.seeds}.")
        if not 0 < self.shown_step <= self.steps:
            raise ValueError(f"shown_step must lie between 1 and steps = {self.steps}, not {self.shown_step}.")
        if self.shown_margin not in self.margins:
            raise ValueError(f"shown_margin {self.shown_margin} must be one of the margins {self.margins}.")


@dataclass(frozen=True)
class Points:
    """A training set for every seed: places (S, N, 2), labels (N,) as given, which of them are flipped (N,)."""

    places: Tensor
    labels: Tensor
    flipped: Tensor


@dataclass(frozen=True)
class Path:
    """One retraining of the networks, once for each margin."""

    moved: Floats  # (marks, networks): share of the window
    alpha_zero: Floats  # (marks, networks): share of the steps so far with alpha = 0
    fields: Floats  # (networks, G, G): score - (a + b)/2 at `shown_step`


@dataclass(frozen=True)
class ToyResult:
    """Everything the tables and pictures need. moved: share of the window, by set, mark and seed."""

    settings: ToySettings
    marks: tuple[int, ...]
    moved_square: Floats  # (3, marks, seeds)
    moved_margin: Floats  # (3, marks, margins, seeds)
    alpha_zero: Floats  # (3, marks, margins): share of the steps so far at which alpha was 0
    initial_field: Floats  # (G, G) of the first seed: score - (a + b)/2
    square_fields: Floats  # (3, G, G)
    margin_fields: Floats  # (3, G, G) at `shown_margin`
    points: tuple[Points, ...]


def run_toy(settings: ToySettings | None = None, *, progress: Progress | None = None) -> ToyResult:
    """Pre-train for each seed, then retrain by both losses on the three sets, all seeds and margins side by side."""
    settings = settings or ToySettings()
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    sets = make_sets(seeds, settings)
    networks = TwoLayerNetworks(seeds, settings.hidden)
    pretrain(networks, sets[0], settings)
    networks.bounded = settings.sigmoid
    marks = _marks(settings)
    window = _window(settings.grid)
    with torch.no_grad():
        positive_mean, negative_mean = _class_means(networks(sets[0].places), sets[0].labels)
        initial = networks(window.expand(settings.seeds, -1, 2)) - (positive_mean + negative_mean) / 2
    margins_tried = len(settings.margins)
    margins = [m for m in settings.margins for _ in seeds]
    paths: list[tuple[Path, Path]] = []
    for number, points in enumerate(sets):
        prior = float(points.labels.mean())
        square = AUCSquareLoss(prior=prior, num_labels=settings.seeds)
        margin = AUCMarginLoss(prior=prior, margin=margins, num_labels=settings.seeds * margins_tried)
        pair: list[Path] = []
        runs: tuple[tuple[SaddleLoss, int], ...] = ((square, 1), (margin, margins_tried))
        for step, (loss, times) in enumerate(runs):
            with torch.no_grad():
                loss.a.copy_(positive_mean.repeat(times))
                loss.b.copy_(negative_mean.repeat(times))
            pair.append(
                _retrain(
                    networks.repeated(times),
                    loss,
                    points.places.repeat(times, 1, 1),
                    points.labels,
                    initial=initial.repeat(1, times),
                    window=window,
                    marks=marks,
                    settings=settings,
                )
            )
            if progress is not None:
                progress(2 * number + step + 1, 2 * len(sets))
        paths.append((pair[0], pair[1]))
    by_margin = (len(marks), margins_tried, settings.seeds)
    shown = settings.margins.index(settings.shown_margin) * settings.seeds
    side = (settings.grid, settings.grid)
    return ToyResult(
        settings=settings,
        marks=marks,
        moved_square=np.stack([square.moved for square, _ in paths]),
        moved_margin=np.stack([margin.moved.reshape(by_margin) for _, margin in paths]),
        alpha_zero=np.stack([margin.alpha_zero.reshape(by_margin).mean(-1) for _, margin in paths]),
        initial_field=initial[:, 0].double().reshape(side).numpy(),
        square_fields=np.stack([square.fields[0] for square, _ in paths]),
        margin_fields=np.stack([margin.fields[shown] for _, margin in paths]),
        points=sets,
    )


def make_sets(seeds: range, settings: ToySettings) -> tuple[Points, ...]:
    """The three training sets: two clouds about (1, 1) and (-1, -1), plus easy positives, plus flipped labels."""
    n, easy, flipped = settings.points, settings.easy, settings.flipped
    clouds, easy_places, flipped_places = [], [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)

        def cloud(count: int, x: float, y: float, spread: float, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(count, 2, generator=generator) * spread + torch.tensor([x, y])

        clouds.append(torch.cat([cloud(n, 1, 1, 0.6), cloud(n, -1, -1, 0.6)]))
        easy_places.append(cloud(easy, 4, 0, 0.5))
        flipped_places.append(torch.cat([cloud(flipped, 1.2, 1.2, 0.4), cloud(flipped, -1.2, -1.2, 0.4)]))
    base, labels = torch.stack(clouds), torch.cat([torch.ones(n), torch.zeros(n)])
    right = torch.zeros(2 * n, dtype=torch.bool)

    def added(places: list[Tensor], given: Tensor, *, are_flipped: bool) -> Points:
        return Points(
            torch.cat([base, torch.stack(places)], dim=1),
            torch.cat([labels, given]),
            torch.cat([right, torch.full((len(given),), are_flipped)]),
        )

    return (
        Points(base, labels, right),
        added(easy_places, torch.ones(easy), are_flipped=False),
        added(flipped_places, torch.cat([torch.zeros(flipped), torch.ones(flipped)]), are_flipped=True),
    )


class TwoLayerNetworks(nn.Module):
    """One network a seed, side by side: h(x) = w2 · ELU(W1 x + b1) + b2 on places (S, N, 2), scores (N, S)."""

    def __init__(self, seeds: range, hidden: int) -> None:
        super().__init__()
        first, last = [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(1_000_000 + seed)
            first.append(torch.randn(2, hidden, generator=generator) / math.sqrt(2))
            last.append(torch.randn(hidden, 1, generator=generator) / math.sqrt(hidden))
        self.w1 = nn.Parameter(torch.stack(first))
        self.b1 = nn.Parameter(torch.zeros(len(seeds), 1, hidden))
        self.w2 = nn.Parameter(torch.stack(last))
        self.b2 = nn.Parameter(torch.zeros(len(seeds), 1, 1))
        self.bounded = False

    def forward(self, places: Tensor) -> Tensor:
        hidden = F.elu(torch.baddbmm(self.b1, places, self.w1))
        scores = torch.baddbmm(self.b2, hidden, self.w2).squeeze(2).T
        return torch.sigmoid(scores) if self.bounded else scores

    def repeated(self, times: int) -> TwoLayerNetworks:
        """The same networks `times` over, independent of these."""
        twins = copy.deepcopy(self)
        for name, parameter in self.named_parameters():
            setattr(twins, name, nn.Parameter(parameter.detach().repeat(times, 1, 1)))
        return twins


def pretrain(networks: TwoLayerNetworks, points: Points, settings: ToySettings) -> None:
    """Cross-entropy on the points, SGD with momentum 0.9, every network on its own."""
    optimizer = torch.optim.SGD(networks.parameters(), lr=settings.pretraining_lr, momentum=0.9)
    count = points.places.shape[0]
    labels = points.labels[:, None].expand(-1, count)
    for _ in range(settings.pretraining_steps):
        optimizer.zero_grad()
        # the mean is over networks too: times their number, each gets the gradient it would get alone
        loss = count * F.binary_cross_entropy_with_logits(networks(points.places), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _retrain(
    networks: TwoLayerNetworks,
    loss_fn: SaddleLoss,
    places: Tensor,
    labels: Tensor,
    *,
    initial: Tensor,
    window: Tensor,
    marks: tuple[int, ...],
    settings: ToySettings,
) -> Path:
    optimizer = PESG(networks.parameters(), loss_fn, lr=settings.lr)
    count = places.shape[0]
    targets = labels[:, None].expand(-1, count)
    everywhere = window.expand(count, -1, 2)
    at_zero = torch.zeros(count)
    moved, alpha_zero, fields = [], [], initial
    for step in range(1, settings.steps + 1):
        optimizer.zero_grad()
        (count * loss_fn(networks(places), targets)).backward()
        optimizer.step()
        at_zero += loss_fn.alpha.detach() == 0
        if step in marks:
            with torch.no_grad():
                field = networks(everywhere) - (loss_fn.a + loss_fn.b) / 2
            moved.append(share_changed(initial, field))
            alpha_zero.append(at_zero / step)
            if step == settings.shown_step:
                fields = field
    side = (count, settings.grid, settings.grid)
    return Path(
        moved=torch.stack(moved).double().numpy(),
        alpha_zero=torch.stack(alpha_zero).double().numpy(),
        fields=fields.T.double().reshape(side).numpy(),
    )


def share_changed(before: Tensor, after: Tensor) -> Tensor:
    """Share of the places (P, S) whose field has another sign than before, by column: (S,)."""
    return ((before > 0) != (after > 0)).float().mean(0)


def _marks(settings: ToySettings) -> tuple[int, ...]:
    """Steps at which the boundary is looked at: about four a doubling, the shown one and the last among them."""
    spaced = np.unique(np.round(np.geomspace(1, settings.steps, 28)).astype(int))
    return tuple(sorted({*spaced.tolist(), settings.shown_step, settings.steps}))


def _window(grid: int) -> Tensor:
    (left, right), (bottom, top) = WINDOW
    x, y = torch.meshgrid(torch.linspace(left, right, grid), torch.linspace(bottom, top, grid), indexing="xy")
    return torch.stack([x, y], dim=-1).reshape(1, -1, 2)


def _class_means(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return scores[labels == 1].mean(0), scores[labels == 0].mean(0)
