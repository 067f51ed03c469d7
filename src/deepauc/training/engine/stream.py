"""Which rows a stage sees, in which order and how changed, and the prior that follows from it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepauc.data.bags import BagInputs
from deepauc.data.counter import fixed_permutation, hash_key
from deepauc.data.samplers import ClassQuotaSampler
from deepauc.data.splits import trainable_rows
from deepauc.data.task import UNCERTAIN, Task
from deepauc.data.uncertain import resolve_task
from deepauc.training.recipe import Stage, ViewObjectiveSpec

Rows = npt.NDArray[np.int64]


class Stream:
    """The batches of a stage: tables of row numbers drawn from (seed, stage, epoch) alone; step t reads row t.

    labels: (N, L) of the task as the stage sees them, uncertain ones resolved. prior: per label, the (weighted) mean
    label of the stream; none for a stage on views. per_epoch: steps of an epoch; the incomplete tail of an epoch is
    dropped. unlabelled: how many of the rows have no label.
    """

    def __init__(self, task: Task, stage: Stage, *, seed: int, number: int) -> None:
        self.seed = hash_key(seed, number) >> 1  # of this stage's orders and augmentations
        resolved = task if stage.uncertain is None else resolve_task(task, stage.uncertain, seed=seed)
        self.labels = resolved.labels.reshape(len(task), task.num_labels).copy()
        self._names = task.label_names
        without_labels = stage.on_views and stage.positives_per_batch is None
        self.rows = trainable_rows(resolved) if without_labels else resolved.labelled("train")
        self.unlabelled = int(np.isin(self.rows, resolved.unlabelled("train")).sum())
        if isinstance(stage.objective, ViewObjectiveSpec) and without_labels and not stage.objective.uses_labels:
            self.labels[:] = np.nan  # not looked at: whatever they are is no fault
        # Images of a bag are drawn in each step, and their changes with them.
        self._augment = None if isinstance(task.source, BagInputs) else stage.augment
        self._views = stage.views
        if stage.augment is not None and len(task.source.shape) == 3:
            stage.augment.require_fit(*task.source.shape[:2])
        seen = self.labels[self.rows]
        if (seen == UNCERTAIN).any():
            raise ValueError(
                "the training labels hold uncertain entries (-1): set uncertain = 'ignore', 'zeros' or 'ones' in "
                "each stage (of the file that `deepauc train --print-config` prints)."
            )
        if not stage.objective.soft_labels and ((seen > 0) & (seen < 1)).any():
            raise ValueError(
                "the training labels are soft (smoothed uncertain ones, for example), but the stage's objective takes "
                "hard labels: set soft_labels=True in it, or uncertain = 'zeros', 'ones' or 'ignore' in this stage."
            )
        self.weights = None if task.weights is None or stage.on_views else task.weights.copy()
        self.batch_size = min(stage.batch_size, len(self.rows))
        self._sampler: ClassQuotaSampler | None = None
        if stage.positives_per_batch is not None:
            hard = np.where(np.isnan(seen), np.nan, seen >= 0.5)
            self._sampler = ClassQuotaSampler(
                hard[:, 0] if task.num_labels == 1 else hard,
                self.batch_size,
                stage.positives_per_batch,
                seed=self.seed,
            )
        self.per_epoch = len(self._sampler) if self._sampler else len(self.rows) // self.batch_size
        self.prior = () if stage.on_views else self._prior()
        self._ahead: tuple[int, Rows, Tensor | None] | None = None

    def look_ahead(self, epoch: int) -> None:
        """Draw this epoch now, while the device is busy; `drawn` hands it out."""
        self._ahead = (epoch, *self.drawn(epoch))

    def drawn(self, epoch: int) -> tuple[Rows, Tensor | None]:
        """Batches and augmentation of an epoch."""
        if self._ahead is not None and self._ahead[0] == epoch:
            return self._ahead[1:]
        return self.table(epoch), self.changes(epoch)

    def table(self, epoch: int) -> Rows:
        """All batches of an epoch, (steps, batch_size)."""
        if self._sampler is not None:
            return self.rows[self._sampler.epoch_table(epoch)]
        order = fixed_permutation(len(self.rows), seed=self.seed, stream=f"order {epoch}")
        return self.rows[order[: self.per_epoch * self.batch_size].reshape(self.per_epoch, self.batch_size)]

    def step_key(self, epoch: int, position: int) -> int:
        """What the dropout of a step follows from; not negative, so that int64 holds it."""
        return hash_key(self.seed, *b"dropout", epoch, position) >> 1

    def bag_key(self, epoch: int, position: int) -> int:
        """What the images that a step sees of its bags, and their augmentation, follow from."""
        return hash_key(self.seed, *b"bags", epoch, position)

    def changes(self, epoch: int) -> Tensor | None:
        """The augmentation of an epoch, (steps, views * batch_size, columns): in each step view by view."""
        if self._augment is None:
            return None
        shape = (self.per_epoch, self.batch_size, len(self._augment.columns))
        count = self.per_epoch * self.batch_size
        tables = [
            self._augment.draw(count, seed=self.seed, epoch=epoch, view=view).values.reshape(shape)
            for view in range(self._views)
        ]
        return torch.cat(tables, dim=1)

    def _prior(self) -> tuple[float, ...]:
        """Mean label where drawn: exact for plain shuffling, in expectation for a quota (through its own shares)."""
        seen = self.labels[self.rows].astype(np.float64)
        weights = np.ones(len(self.rows)) if self.weights is None else self.weights[self.rows].astype(np.float64)
        if self._sampler is not None:
            weights = weights * self._sampler.draw_rates()
        known = ~np.isnan(seen)
        total = (known * weights[:, None]).sum(0)
        positive = (np.where(known, seen, 0) * weights[:, None]).sum(0)
        shares = positive / np.where(total > 0, total, np.nan)
        if not ((shares > 0) & (shares < 1)).all():
            wrong = int(np.flatnonzero(~((shares > 0) & (shares < 1)))[0])
            weighted = "" if self.weights is None else " of a weight above 0"
            raise ValueError(
                f"the training part has no positive row{weighted} of the label {self._names[wrong]!r}, or no negative "
                "one: nothing can be ranked. Check the labels and the split, or leave this label out."
            )
        return tuple(float(s) for s in shares)
