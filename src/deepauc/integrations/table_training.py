"""AUC-M with PESG on rows of numbers: what the scikit-learn estimator runs once a fold and once on all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deepauc.data.samplers import ClassQuotaSampler
from deepauc.models.small import MLP
from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.optim.pesg import PESG

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
ModuleFactory = Callable[[int, int], nn.Module]  # (in_features, num_outputs): (N, in_features) -> (N, num_outputs)

Batch = tuple[list[Tensor], Tensor, Tensor]  # a network's inputs (<= B, F); labels and weights (B, networks * L)

SMALLEST_QUOTA = 0.25  # of a mini-batch, for a class that is rarer than this among the rows


class LinearPlusMLP(nn.Module):
    """Features (N, in_features) -> raw scores (N, num_outputs): a linear model plus an MLP on the same features.

    Both start at 0 and the MLP learns more slowly, so that a short training is a linear model with corrections, not
    half a network: early stopping then chooses how much curvature a table bears.
    """

    MLP_SHARE = 0.3

    def __init__(self, in_features: int, num_outputs: int = 1, *, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_outputs)
        self.mlp = MLP(in_features=in_features, num_outputs=num_outputs, hidden=hidden, activation="relu")
        for layer in (self.linear, self.mlp.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x) + self.MLP_SHARE * self.mlp(x)
        return scores


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """How a network is made and trained; the names are the estimator's."""

    module: ModuleFactory
    margin: float
    lr: float
    gamma: float
    weight_decay: float
    momentum: float
    batch_size: int
    device: torch.device
    seed: int


@dataclass(frozen=True)
class FeatureTable:
    """Features (N, F), 0/1 columns (N, L) and row weights (N,), all float64."""

    features: Floats
    columns: Floats
    weights: Floats


@dataclass(frozen=True)
class Standardiser:
    """(x - mean) / scale of each feature, by weighted moments of the rows it was fitted on; a constant has scale 1."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, table: FeatureTable, rows: Rows) -> Standardiser:
        from sklearn.preprocessing import StandardScaler

        with np.errstate(over="ignore", invalid="ignore"):
            scaler = StandardScaler().fit(table.features[rows], sample_weight=table.weights[rows])
        if (lost := np.flatnonzero(~np.isfinite(scaler.scale_))).size:
            raise ValueError(f"feature {lost[0]} (from 0) holds numbers too large to standardise: divide it first.")
        return cls(torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_))

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean.to(x.device)) / self.scale.to(x.device)


@dataclass(frozen=True)
class Scorer:
    """A trained network behind its standardiser."""

    module: nn.Module
    standardiser: Standardiser
    device: torch.device

    def __call__(self, features: Floats, *, block: int = 1 << 14) -> Floats:
        """Raw scores (N, L) of features (N, F) as they come, in evaluation mode, block by block."""
        self.module.eval()
        with torch.inference_mode():
            # Copied, since pandas hands out arrays that must not be written to, which torch does not know.
            pieces = (torch.tensor(features[i : i + block], device=self.device) for i in range(0, len(features), block))
            parts = [self.module(self.standardiser(x)) for x in pieces]
        return torch.cat(parts).cpu().numpy()


class TableRun:
    """Networks in training side by side, one for each set of rows; `advance` makes all of them longer.

    One multi-label AUC margin loss and one PESG serve them all: each network's columns are labels of their own, which
    nothing but the row of calls is shared with, so each ends where it would alone, for a fraction of the overhead.

    Where the table fits one batch every step sees all rows, and integer weights are the same as repeated rows.
    Otherwise `ClassQuotaSampler` draws mini-batches in which no class is rare, several labels in turn. Everything is
    float64: a table costs little, and a row's score does not depend on the rows beside it.
    """

    def __init__(self, table: FeatureTable, trains: Sequence[Rows], settings: TableSettings) -> None:
        self.settings, self.steps = settings, 0
        outputs = table.columns.shape[1]
        self.scorers = [
            Scorer(self._network(table.features.shape[1], outputs), Standardiser.fit(table, rows), settings.device)
            for rows in trains
        ]
        self._features = torch.from_numpy(table.features).to(settings.device)
        self._columns = torch.from_numpy(table.columns).to(settings.device)
        self._weights = torch.from_numpy(table.weights).to(settings.device)
        if len(table.features) > settings.batch_size:
            samplers = _quota_samplers(table, trains, settings)
            priors = [_prior(table, rows, sampler) for rows, sampler in zip(trains, samplers, strict=True)]
            self._batches = self._quota_batches(trains, samplers)
        else:
            priors = [_prior(table, rows) for rows in trains]
            self._batches = self._whole_batches(trains)
        flat = [share for prior in priors for share in prior]
        self._loss = AUCMarginLoss(prior=flat, margin=settings.margin, num_labels=len(flat))
        self._loss.double().to(settings.device)
        self._optimizer = PESG(
            [p for scorer in self.scorers for p in scorer.module.parameters()],
            self._loss,
            settings.lr,
            gamma=settings.gamma,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
        )

    def advance(self, steps: int) -> None:
        """So many more steps of PESG on sigmoid scores; dropout, if the network has any, follows the seed."""
        for scorer in self.scorers:
            scorer.module.train()
        with self._own_seed(1 + self.steps):
            for _ in range(steps):
                inputs, labels, weights = next(self._batches)
                scores = [
                    nn.functional.pad(scorer.module(x), (0, 0, 0, len(labels) - len(x)))
                    for scorer, x in zip(self.scorers, inputs, strict=True)
                ]
                self._optimizer.zero_grad()
                loss = self._loss(torch.sigmoid(torch.cat(scores, 1)), labels, weights)
                (len(scores) * loss).backward()  # the loss is a mean over all columns, each network's its own mean
                self._optimizer.step()
        self.steps += steps

    @contextmanager
    def _own_seed(self, offset: int) -> Iterator[None]:
        """torch's generators from this run's seed inside the block, and as they were after it."""
        device = self.settings.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self.settings.seed + offset)
            yield

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        """From the same seed for each set of rows: their scores then have nearly the same origin and scale."""
        with self._own_seed(0):
            module = self.settings.module(inputs, outputs)
        if not isinstance(module, nn.Module):
            raise ValueError(f"module must make a torch.nn.Module, not {type(module).__name__}.")
        with torch.no_grad():
            shape = tuple(module.double().eval()(torch.zeros(2, inputs, dtype=torch.float64)).shape)
        if shape != (2, outputs):
            raise ValueError(
                f"the module gives {shape} for 2 rows; it must give (N, {outputs}), one raw score per column."
            )
        return module.to(self.settings.device)

    def _whole_batches(self, trains: Sequence[Rows]) -> Iterator[Batch]:
        """Each network's own rows in each step, and no others: batch normalisation would see them. Ends weigh 0."""
        rows = [torch.from_numpy(own).to(self.settings.device) for own in trains]
        inputs = [scorer.standardiser(self._features[own]) for scorer, own in zip(self.scorers, rows, strict=True)]
        most = max(len(own) for own in rows)

        def beside(values: Tensor) -> Tensor:
            return torch.cat([nn.functional.pad(values[own], (0, 0, 0, most - len(own))) for own in rows], 1)

        labels, weights = beside(self._columns), beside(self._weights[:, None].expand_as(self._columns))
        while True:
            yield inputs, labels, weights

    def _quota_batches(self, trains: Sequence[Rows], samplers: Sequence[ClassQuotaSampler]) -> Iterator[Batch]:
        streams = [_endless(rows, sampler) for rows, sampler in zip(trains, samplers, strict=True)]
        while True:
            drawn = [torch.from_numpy(next(stream)).to(self.settings.device) for stream in streams]
            inputs = [
                scorer.standardiser(self._features[rows]) for scorer, rows in zip(self.scorers, drawn, strict=True)
            ]
            weights = [self._weights[rows, None].expand(-1, self._columns.shape[1]) for rows in drawn]
            yield inputs, torch.cat([self._columns[rows] for rows in drawn], 1), torch.cat(weights, 1)


def _endless(rows: Rows, sampler: ClassQuotaSampler) -> Iterator[Rows]:
    epoch = 0
    while True:
        yield from rows[sampler.epoch_table(epoch)]
        epoch += 1


def _quota_samplers(table: FeatureTable, trains: Sequence[Rows], settings: TableSettings) -> list[ClassQuotaSampler]:
    """Mini-batches of one size; positives near the rows' own share, but neither class below SMALLEST_QUOTA.

    Batches are smaller where the rows that are not of the most common class would not fill their part.
    """
    quotas, sizes = [], []
    for rows in trains:
        positives = table.columns[rows].sum(0)
        share = float(np.clip(positives.mean() / len(rows), SMALLEST_QUOTA, 1 - SMALLEST_QUOTA))
        quotas.append(round(share * settings.batch_size))
        sizes.append(min(settings.batch_size, quotas[-1] + int(len(rows) - positives.max())))
    size = min(sizes)
    samplers = []
    for rows, quota in zip(trains, quotas, strict=True):
        columns = table.columns[rows].squeeze(1) if table.columns.shape[1] == 1 else table.columns[rows]
        samplers.append(ClassQuotaSampler(columns, size, min(quota, size - 1), seed=settings.seed))
    return samplers


def _prior(table: FeatureTable, rows: Rows, sampler: ClassQuotaSampler | None = None) -> list[float]:
    """The weighted share of positives in what the loss sees, a column."""
    rates = table.weights[rows] if sampler is None else table.weights[rows] * sampler.draw_rates()
    return (rates @ table.columns[rows] / rates.sum()).tolist()
