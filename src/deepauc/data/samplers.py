"""Batches with a fixed number of positives, the same on every machine and for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, Sampler

from deepauc.data.counter import fixed_permutation
from deepauc.labels import label_message, shape_message

Labels = npt.ArrayLike | torch.Tensor


class ClassQuotaSampler(Sampler[list[int]]):
    """A batch sampler: `positives_per_batch` positives, the rest negatives; use as `DataLoader(batch_sampler=...)`.

    Not as `sampler=`, which would make batches of batches: (n, batch_size, ...), or "list indices must be integers".

    An epoch is a fresh permutation of the negatives, each once, the incomplete tail dropped; positives are cycled in
    fresh permutations. Both are drawn from (seed, epoch) alone, so an epoch can be made again anywhere. The k shares of
    k ranks together are the batch of one rank. `prior` is what the loss needs: the share of positives in this stream of
    samples; a tuple for (N, L).

    Args:
        labels: 0/1, NaN where unlabelled (never drawn), (N,) or (N, L).
        batch_size: Rows per batch, of all ranks together.
        positives_per_batch: Positives in each batch, of all ranks together.
        seed: Random seed.
        rank: This process's number, from 0; it draws its share of each batch.
        world_size: Number of processes.
        label: For (N, L) the column whose positives fill the quota; None takes the columns in turn, batch by batch.
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        positives_per_batch: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        label: int | None = None,
    ) -> None:
        columns = _as_columns(labels)
        if positives_per_batch != int(positives_per_batch):
            raise ValueError(f"positives_per_batch is a number of rows, not a share such as {positives_per_batch}.")
        if batch_size != int(batch_size):
            raise ValueError(f"batch_size must be a whole number, not {batch_size}.")
        batch_size, positives_per_batch = int(batch_size), int(positives_per_batch)  # a quarter of 16 is 4.0
        if not 0 < positives_per_batch < batch_size:
            raise ValueError(
                f"positives_per_batch must lie between 1 and batch_size - 1 = {batch_size - 1}, "
                f"not {positives_per_batch}."
            )
        if seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, not {seed}.")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank must be one of 0 to world_size - 1 = {world_size - 1}, not {rank}.")
        if batch_size % world_size or positives_per_batch % world_size:
            raise ValueError(
                f"batch_size {batch_size} and positives_per_batch {positives_per_batch} count the rows of all ranks: "
                f"both must be divisible by the {world_size} ranks."
            )
        if label is not None and not 0 <= label < columns.shape[1]:
            raise ValueError(f"label must be one of 0 to {columns.shape[1] - 1}, not {label}.")
        self.batch_size, self.positives_per_batch, self.seed = batch_size, positives_per_batch, seed
        self.rank, self.world_size = rank, world_size
        self._count = len(columns)
        turns = range(columns.shape[1]) if label is None else [label]
        self._positives = [np.flatnonzero(columns[:, t] == 1) for t in turns]
        self._negatives = [np.flatnonzero(columns[:, t] == 0) for t in turns]
        for turn, positives, negatives in zip(turns, self._positives, self._negatives, strict=True):
            where = f" in label {turn}" if columns.shape[1] > 1 else ""
            if not positives.size:
                raise ValueError(f"there is no positive{where} to draw: check the labels, or leave this label out.")
            if negatives.size < batch_size - positives_per_batch:
                raise ValueError(
                    f"{negatives.size} negatives{where} do not fill one batch of {batch_size} with "
                    f"{positives_per_batch} positives: use a smaller batch_size."
                )
        self.prior: float | tuple[float, ...] = self._stream_shares(columns)
        self._epoch, self._position, self._resuming = 0, 0, False

    def __len__(self) -> int:
        """Batches in an epoch: every label's negatives are passed once."""
        return sum(self._batches_of_turn(t) for t in range(len(self._positives)))

    def __iter__(self) -> Iterator[list[int]]:
        # A new iterator is a new epoch, also after one that was left early; with a saved state it goes on from there,
        # and a state at the very end is of a reader that counts batches and did not ask for one more.
        if self._position and (not self._resuming or self._position >= len(self)):
            self._epoch, self._position = self._epoch + 1, 0
        self._resuming = False
        table = self.epoch_table(self._epoch)
        share = self.batch_size // self.world_size
        mine = table[:, self.rank * share : (self.rank + 1) * share]
        while self._position < len(mine):
            self._position += 1  # before the yield: a batch handed out is not handed out again after a resume
            yield mine[self._position - 1].tolist()
        self._epoch, self._position = self._epoch + 1, 0

    def epoch_table(self, epoch: int) -> npt.NDArray[np.int64]:
        """All batches of an epoch, (batches, batch_size); ranks own equal slices of columns, positives first."""
        quota, ranks = self.positives_per_batch, self.world_size
        rows = [self._turn_table(turn, epoch) for turn in range(len(self._positives))]
        if len(rows) == 1:
            table = rows[0]
        else:  # in turn, as long as each lasts
            order = np.argsort(np.concatenate([np.arange(len(r)) for r in rows]), kind="stable")
            table = np.concatenate(rows)[order]
        positives = table[:, :quota].reshape(len(table), ranks, -1)
        negatives = table[:, quota:].reshape(len(table), ranks, -1)
        return np.concatenate([positives, negatives], axis=2).reshape(len(table), self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Start at the beginning of this epoch."""
        self._epoch, self._position, self._resuming = epoch, 0, False

    def state_dict(self) -> dict[str, int]:
        """Where the sampler stands, mid-epoch too: batches handed out. A prefetching loader runs ahead of training."""
        return {"epoch": self._epoch, "position": self._position, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the next iterator starts there."""
        if state["seed"] != self.seed:
            raise ValueError(
                f"the saved sampler had seed {state['seed']}, this one {self.seed}: build it with that seed."
            )
        self._epoch, self._position, self._resuming = int(state["epoch"]), int(state["position"]), True

    def _batches_of_turn(self, turn: int) -> int:
        return len(self._negatives[turn]) // (self.batch_size - self.positives_per_batch)

    def _turn_table(self, turn: int, epoch: int) -> npt.NDArray[np.int64]:
        positives, negatives = self._positives[turn], self._negatives[turn]
        per_batch = self.batch_size - self.positives_per_batch
        batches = len(negatives) // per_batch
        wanted = batches * self.positives_per_batch

        def shuffled(rows: npt.NDArray[np.int64], what: str) -> npt.NDArray[np.int64]:
            return rows[fixed_permutation(len(rows), seed=self.seed, stream=f"{what} of {turn} in {epoch}")]

        rounds = -(-wanted // len(positives))
        cycled = np.concatenate([shuffled(positives, f"positives {i}") for i in range(rounds)])[:wanted]
        passed = shuffled(negatives, "negatives")[: batches * per_batch]
        return np.concatenate([cycled.reshape(batches, -1), passed.reshape(batches, -1)], axis=1)

    def draw_rates(self) -> npt.NDArray[np.float64]:
        """How often each row is drawn, in expectation and up to a common factor, (N,); 0 for unlabelled rows."""
        rates = np.zeros(self._count)
        quota = self.positives_per_batch / self.batch_size
        for turn in range(len(self._positives)):
            for rows, share in ((self._positives[turn], quota), (self._negatives[turn], 1 - quota)):
                rates[rows] += self._batches_of_turn(turn) * share / len(rows)
        return rates

    def _stream_shares(self, columns: npt.NDArray[np.float64]) -> float | tuple[float, ...]:
        """Expected share of positives of each label among the labelled entries of the stream."""
        rates = self.draw_rates()[:, None]
        positive, labelled = (rates * (columns == 1)).sum(0), (rates * ~np.isnan(columns)).sum(0)
        shares = tuple(float(p / n) if n else float("nan") for p, n in zip(positive, labelled, strict=True))
        return shares[0] if len(shares) == 1 else shares


def _as_columns(labels: Labels) -> npt.NDArray[np.float64]:
    if isinstance(labels, Dataset):
        raise ValueError("ClassQuotaSampler takes labels, not a data set: pass its labels, in its order.")
    array = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
    if (message := shape_message(array.shape, array.shape)) is not None:
        raise ValueError(message.replace("scores", "labels"))
    columns = array.astype(np.float64).reshape(len(array), -1)
    bad = (columns != 0) & (columns != 1) & ~np.isnan(columns)
    if bad.any():
        raise ValueError(label_message(columns[bad], soft=False, may_be_soft=False))
    return columns
