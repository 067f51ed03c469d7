"""AUC losses and PESG inside a LightningModule: stages by a callback, batches with a quota of positives.

The module itself needs nothing of ours but the loss as an attribute and PESG from `configure_optimizers`:

    def configure_optimizers(self):
        return PESG(self.network.parameters(), self.loss_fn, lr=0.1)

The loss must be an attribute of the module, so that a, b and alpha are in its checkpoints and, under DDP, averaged over
the ranks. This module, and nothing that `import deepauc` loads, imports lightning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import DataLoader, Dataset, Sampler

from deepauc.data.samplers import ClassQuotaSampler, Labels
from deepauc.optim.pesg import PESG, require_factor


class NewStage(Callback):  # type: ignore[misc, unused-ignore]
    """Line 6 of Algorithm 1 at the start of each epoch in `milestones`: lr decays, the reference is renewed.

    Which milestones are past is kept in the checkpoint: a resumed run meets each of them once.

    Args:
        milestones: Epochs, counted from 0 as Lightning does.
        lr_factor: What lr is multiplied with; 1 where a scheduler decides about lr.
    """

    def __init__(self, milestones: Sequence[int], *, lr_factor: float = 0.1) -> None:
        super().__init__()
        if any(epoch != int(epoch) or epoch < 1 for epoch in milestones):
            raise ValueError(f"milestones are epochs of at least 1, not {list(milestones)}: a stage ends before them.")
        require_factor(lr_factor)
        self.milestones = tuple(sorted(int(epoch) for epoch in milestones))
        self.lr_factor = lr_factor
        self._past: list[int] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.global_step == 0:
            self._past = []  # of another run, as in a loop over folds; what a checkpoint says of this one comes later

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _pesgs(trainer)  # what is missing is said before the first epoch, not at the first milestone

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_stage(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # A run resumed from the last step of an epoch is not told that the next one starts.
        self._begin_stage(trainer)

    def _begin_stage(self, trainer: Trainer) -> None:
        epoch = trainer.current_epoch
        if epoch not in self.milestones or epoch in self._past:
            return
        self._past.append(epoch)
        for optimizer in _pesgs(trainer):
            optimizer.new_stage(lr_factor=self.lr_factor)

    def state_dict(self) -> dict[str, Any]:
        return {"past": list(self._past)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._past = list(state_dict["past"])


def quota_loader(
    dataset: Dataset[Any],
    labels: Labels,
    *,
    trainer: Trainer,
    batch_size: int,
    positives_per_batch: int,
    seed: int = 0,
    num_workers: int = 0,
) -> DataLoader[Any]:
    """A loader with `ClassQuotaSampler` as its batch sampler; return it from `train_dataloader`.

    A run resumed from a checkpoint, also from one in the middle of an epoch, goes on with the batch that comes next.
    With Trainer(overfit_batches=...) every epoch has the same batches. With several ranks,
    Trainer(use_distributed_sampler=False): Lightning would replace the sampler. The loss's prior is positives_per_batch
    / batch_size.

    Args:
        dataset: The training set.
        labels: Its labels in its order.
        trainer: The module's trainer, `self.trainer`.
        batch_size: Rows per batch, of all ranks together; each draws its share.
        positives_per_batch: Positives in each batch, of all ranks together.
        seed: Random seed.
        num_workers: As in the DataLoader.
    """
    given, rows = len(labels), len(dataset)  # type: ignore[arg-type]
    if given != rows:
        raise ValueError(f"labels has {given} rows, but dataset has {rows}: give its labels, in its order.")
    sampler = ClassQuotaSampler(
        labels, batch_size, positives_per_batch, seed, rank=trainer.global_rank, world_size=trainer.world_size
    )
    return _QuotaLoader(dataset, batch_sampler=_BatchesOfTheEpoch(sampler, trainer), num_workers=num_workers)


class _BatchesOfTheEpoch(Sampler[list[int]]):
    """The sampler's batches of the epoch that the trainer is in; with `overfit_batches` always those of the first.

    Lightning stops after the last batch without asking for one more, so the sampler cannot count the epochs itself.
    """

    def __init__(self, quota: ClassQuotaSampler, trainer: Trainer) -> None:
        self.quota, self.trainer = quota, trainer
        self.trained: dict[str, int] = {}  # of the epoch that a checkpoint was taken in

    def __len__(self) -> int:
        return len(self.quota)

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.trainer.current_epoch
        # overfit_batches is to learn a few batches by heart. Lightning takes the loader for one that is not shuffled.
        self.quota.set_epoch(0 if self.trainer.overfit_batches else epoch)
        past = self.trained.get("batches", 0) if self.trained.get("epoch") == epoch else 0
        self.trained = {}
        yield from islice(self.quota, past, None)


class _QuotaLoader(DataLoader[Any]):
    """Its place in the epoch, which Lightning keeps in its checkpoints: batches trained on, not batches fetched."""

    def state_dict(self) -> dict[str, int]:
        trainer = self._batches.trainer
        return {
            "epoch": trainer.current_epoch,
            "batches": trainer.fit_loop.epoch_loop.batch_progress.current.processed,
        }

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._batches.trained = dict(state_dict)

    @property
    def _batches(self) -> _BatchesOfTheEpoch:
        assert isinstance(self.batch_sampler, _BatchesOfTheEpoch)
        return self.batch_sampler


def _pesgs(trainer: Trainer) -> list[PESG]:
    found = [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, PESG)]
    if not found:
        raise ValueError("NewStage needs PESG: return PESG(network.parameters(), loss_fn) from configure_optimizers.")
    return found
