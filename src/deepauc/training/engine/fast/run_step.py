"""One run's step on the device: what it reads, what it does once its gradients are there, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from deepauc.kernels.dropout import STEP_KEY
from deepauc.training.engine.fast.feed import HostFeed
from deepauc.training.engine.offers import DualLoss, RenewsReference, TakesTurns, TracedLoss, alpha_of
from deepauc.training.engine.rates import RATE, share_of
from deepauc.training.engine.step import Batch
from deepauc.training.engine.trainer import Epoch, Trainer
from deepauc.training.recipe import Stage


class RunStep:
    """State of one run's steps on the device, for one stage. No host value is looked at in a step."""

    def __init__(self, trainer: Trainer, stage: Stage) -> None:
        if stage.accumulate != 1:
            raise ValueError("the fast engine takes the batch whole: set accumulate=1, or use the plain engine.")
        self.trainer, self.stage, self.optimizer = trainer, stage, trainer.optimizer
        device, stream = trainer.device, trainer.stream
        batch, steps, width = stream.batch_size, stream.per_epoch, trainer.task.num_labels
        tensors = {**dict(trainer.trained.named_parameters()), **dict(trainer.trained.named_buffers())}
        self.counters = [tensors.pop(name) for name in list(tensors) if name.endswith("num_batches_tracked")]
        self.key_names = [name for name in tensors if name.rpartition(".")[2] == STEP_KEY]
        self.key = torch.zeros(1, dtype=torch.int64, device=device)  # of the step's dropout, one for all layers
        self.keys = torch.zeros(steps if self.key_names else 0, dtype=torch.int64, device=device)
        self.weights = tensors | dict.fromkeys(self.key_names, self.key)
        self.variables = {**dict(trainer.objective.named_parameters()), **dict(trainer.objective.named_buffers())}
        objective = trainer.objective
        margin = objective.margins() if isinstance(objective, TracedLoss) else (1.0,)
        self.dual = objective if isinstance(objective, DualLoss) else None
        self.renewing = trainer.optimizer if isinstance(trainer.optimizer, RenewsReference) else None
        self.turns = trainer.optimizer if isinstance(trainer.optimizer, TakesTurns) else None
        self.prior, self.margin = (torch.tensor(x, dtype=torch.float32, device=device) for x in (stream.prior, margin))
        self.constants = trainer.preprocessing.constants(device)
        self.labels = torch.from_numpy(stream.labels).to(device)
        self.sample_weights = None if stream.weights is None else torch.from_numpy(stream.weights).to(device)
        self.feed = None if trainer.images is not None else HostFeed(trainer.task, batch, device)
        self.t = torch.zeros(1, dtype=torch.int64, device=device)
        self.table = torch.zeros(steps, batch, dtype=torch.int64, device=device)
        columns = 0 if stage.augment is None else len(stage.augment.columns)
        self.changes = torch.zeros(steps, stage.views * batch, columns, device=device)
        self.rates = torch.zeros(steps, device=device)
        self.lr = torch.zeros((), device=device)
        shares = {group[RATE] for group in trainer.optimizer.param_groups if RATE in group}
        self.slower = {share: torch.zeros((), device=device) for share in shares}
        self.shares = {share: torch.zeros((), device=device) for share in shares}  # of this epoch: 0 while frozen
        self.losses = torch.zeros(steps, device=device)
        self.alphas = torch.zeros(steps, width, device=device)
        self.seen = torch.zeros(steps, batch, 1 if stage.on_views else width, device=device)
        self.targets = torch.zeros(steps, batch, width, device=device)
        _make_capturable(trainer.optimizer, self.lr, self.slower)

    def batch(self) -> tuple[Batch, Tensor | None]:
        """Of step t, its inputs as they are stored, and the augmentation; lr is set, and alpha is where it may be."""
        trainer, stage = self.trainer, self.stage
        rows = self.table.index_select(0, self.t).squeeze(0)
        if self.key_names:
            self.key.copy_(self.keys.index_select(0, self.t))
        self.lr.copy_(self.rates.index_select(0, self.t).squeeze(0))
        for share, rate in self.slower.items():
            rate.copy_(self.lr * self.shares[share])
        images = self.feed.staged if self.feed is not None else trainer.images.index_select(0, rows)  # type: ignore[union-attr]
        sample_weights = None if self.sample_weights is None else self.sample_weights.index_select(0, rows)
        changes = self.changes.index_select(0, self.t).squeeze(0) if stage.augment is not None else None
        if self.dual is not None and not stage.optimizer_projects:
            self.dual.project_()
        index = rows if stage.needs_index else None
        return Batch(images, self.labels.index_select(0, rows), sample_weights, index), changes

    def update(self, loss: Tensor, seen: Tensor, labels: Tensor) -> None:
        """Once every parameter has its gradient: update, log, count."""
        trainer, stage = self.trainer, self.stage
        if stage.gradient_clip is not None:
            nn.utils.clip_grad_norm_(trainer.trained.parameters(), stage.gradient_clip, foreach=True)
        trainer.optimizer.step()
        if trainer.average is not None:
            trainer.average.update(trainer.trained)
        self.losses.index_copy_(0, self.t, loss.detach().reshape(1))
        self.seen.index_copy_(0, self.t, seen.unsqueeze(0))
        self.targets.index_copy_(0, self.t, labels.unsqueeze(0))
        if self.dual is not None:
            self.alphas.index_copy_(0, self.t, alpha_of(self.dual).unsqueeze(0))
        self.t.add_(1)

    def begin_epoch(self, epoch: Epoch) -> None:
        """The epoch's tables to the device, t to its first step."""
        stream, stage = self.trainer.stream, self.stage
        rows, changes = stream.drawn(epoch.number)
        if changes is not None:
            self.changes.copy_(changes)
        self.table.copy_(torch.from_numpy(rows))
        if self.key_names:
            self.keys.copy_(torch.tensor([stream.step_key(epoch.number, t) for t in range(stream.per_epoch)]))
        first = self.trainer.iteration - epoch.start
        factors = [
            stage.schedule.factor(first + t, total=self.trainer.total, per_epoch=stream.per_epoch)
            for t in range(stream.per_epoch)
        ]
        self.rates.copy_(torch.tensor(factors) * stage.optimizer.lr)
        for group in self.optimizer.param_groups:
            if RATE in group:
                self.shares[group[RATE]].fill_(share_of(group, frozen=epoch.number < stage.frozen_epochs))
        self.t.fill_(epoch.start)
        if self.feed is not None:
            self.feed.start(rows[epoch.start : epoch.stop])

    def renewals(self, epoch: Epoch) -> list[int]:
        """Steps of this epoch before which the optimizer's reference is renewed, if it has one."""
        if self.renewing is None:
            return []
        first, per_epoch = self.trainer.iteration - epoch.start, self.trainer.stream.per_epoch
        return [t for t in range(epoch.start, epoch.stop) if self.stage.schedule.renews(first + t, per_epoch=per_epoch)]

    def end_epoch(self, epoch: Epoch) -> None:
        """The epoch's logs to the trainer's tally: the one place that waits for the device."""
        trainer, steps = self.trainer, slice(epoch.start, epoch.stop)
        trainer.iteration += epoch.stop - epoch.start
        for counter in self.counters:
            counter.add_(epoch.stop - epoch.start)
        trainer.tally.add_epoch(
            self.losses[steps], self.alphas[steps], self.seen[steps], self.targets[steps], trainer.objective
        )
        if trainer.recipe.alpha_curve and self.dual is not None:
            trainer.alphas.extend(self.alphas[steps].clone().unbind(0))


class Snapshot:
    """Weights and state of a run before warm-up, to be put back in place; captured addresses stay valid."""

    def __init__(self, step: RunStep) -> None:
        self.step = step
        self.kept = [(tensor, tensor.detach().clone()) for tensor in self._tensors()]
        self.known = {(id(p), name) for p, state in step.optimizer.state.items() for name in state}

    def _tensors(self) -> list[Tensor]:
        step = self.step
        state = [v for s in step.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        average = [] if step.trainer.average is None else step.trainer.average.average
        return [*step.weights.values(), *step.variables.values(), *state, *average]

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, before in self.kept:
            tensor.copy_(before)
        with nullcontext() if self.step.turns is None else self.step.turns.weights_in_place():
            self._restore_new()

    def _restore_new(self) -> None:
        """What was made during warm-up."""
        groups = self.step.optimizer.param_groups
        from_zero = {id(p) for group in groups if group.get("reference") == "zero" for p in group["params"]}
        for parameter, state in self.step.optimizer.state.items():
            for name, value in state.items():
                if (id(parameter), name) not in self.known and isinstance(value, Tensor):
                    # Momenta and counts start at 0, PESG's reference at the weights or at 0.
                    at_weights = name == "reference" and id(parameter) not in from_zero
                    value.copy_(parameter) if at_weights else value.zero_()


def _make_capturable(optimizer: torch.optim.Optimizer, lr: Tensor, slower: Mapping[float, Tensor]) -> None:
    """The learning rate from the device, and torch's optimizers in the form that a graph can hold.

    slower: by their share of it, the rates of groups that have one.
    """
    for group in optimizer.param_groups:
        group["lr"] = slower[group[RATE]] if RATE in group else lr
        if lr.is_cuda and "capturable" in group:
            group["capturable"] = True
        elif lr.is_cuda and "fused" in group:  # SGD: only its fused form takes a learning rate on the device
            group["fused"], group["foreach"] = True, False
    for state in optimizer.state.values():
        if "step" in state and isinstance(state["step"], Tensor):
            state["step"] = state["step"].to(lr.device)
