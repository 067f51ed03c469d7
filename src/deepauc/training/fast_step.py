"""The fast engine: data, tables and state on the device, one step in one CUDA graph, several runs side by side.

The mathematics is the plain loop's. What differs: images lie on the device as uint8; a step reads row t of tables that
lie there too, t being counted on the device; forward and loss are compiled; the whole step is captured once and
replayed, so that nothing waits for the host inside an epoch. On a CPU the same step runs uncaptured and uncompiled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepauc.data.task import ArrayInputs
from deepauc.objectives.saddle_loss import SaddleLoss
from deepauc.optim.pesg import PESG
from deepauc.training.feed import HostFeed, images_on_device, rows_needed
from deepauc.training.forward import Forward, make_forward, program_key
from deepauc.training.recipe import Stage
from deepauc.training.trainer import Epoch, Trainer

WARM_UP_STEPS = 3
PROGRAMS = 256
_FORWARDS: dict[tuple[bool, str], Forward] = {}  # of this process: the next pack of a study compiles nothing again


class FastStep:
    """One run's step on the device, for one stage."""

    def __init__(self, trainer: Trainer, stage: Stage, forward: Forward) -> None:
        if stage.accumulate != 1:
            raise ValueError("the fast engine takes the batch whole: set accumulate=1, or use the plain engine.")
        self.trainer, self.stage, self.forward, self.optimizer = trainer, stage, forward, trainer.optimizer
        device, stream = trainer.device, trainer.stream
        batch, steps, width = stream.batch_size, stream.per_epoch, trainer.task.num_labels
        tensors = {**dict(trainer.trained.named_parameters()), **dict(trainer.trained.named_buffers())}
        self.counters = [tensors.pop(name) for name in list(tensors) if name.endswith("num_batches_tracked")]
        self.weights = tensors
        self.variables = dict(trainer.objective.named_parameters())
        margin = trainer.objective.margin if isinstance(trainer.objective, SaddleLoss) else (1.0,)
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
        self.losses = torch.zeros(steps, device=device)
        self.alphas = torch.zeros(steps, width, device=device)
        self.seen = torch.zeros(steps, batch, 1 if stage.on_views else width, device=device)
        self.targets = torch.zeros(steps, batch, width, device=device)
        _make_capturable(trainer.optimizer, self.lr)

    def __call__(self) -> None:
        """Step t: gather, augment, forward, loss, backward, update, log, count. No host value is looked at."""
        trainer, stage = self.trainer, self.stage
        rows = self.table.index_select(0, self.t).squeeze(0)
        self.lr.copy_(self.rates.index_select(0, self.t).squeeze(0))
        images = self.feed.staged if self.feed is not None else trainer.images.index_select(0, rows)  # type: ignore[union-attr]
        sample_weights = None if self.sample_weights is None else self.sample_weights.index_select(0, rows)
        changes = self.changes.index_select(0, self.t).squeeze(0) if stage.augment is not None else None
        trainer.optimizer.zero_grad(set_to_none=True)
        if isinstance(trainer.objective, SaddleLoss) and not isinstance(trainer.optimizer, PESG):
            trainer.objective.project_()  # PESG does it after its step
        loss, seen, labels = self.forward(
            self.weights,
            self.variables,
            self.prior,
            self.margin,
            self.constants,
            images,
            self.labels.index_select(0, rows),
            sample_weights,
            changes,
        )
        torch.autograd.backward(loss)
        if stage.gradient_clip is not None:
            nn.utils.clip_grad_norm_(trainer.trained.parameters(), stage.gradient_clip, foreach=True)
        trainer.optimizer.step()
        if trainer.average is not None:
            trainer.average.update(trainer.trained)
        self.losses.index_copy_(0, self.t, loss.detach().reshape(1))
        self.seen.index_copy_(0, self.t, seen.unsqueeze(0))
        self.targets.index_copy_(0, self.t, labels.unsqueeze(0))
        if isinstance(trainer.objective, SaddleLoss):
            self.alphas.index_copy_(0, self.t, trainer.objective.alpha.detach().unsqueeze(0))
        self.t.add_(1)

    def begin_epoch(self, epoch: Epoch) -> None:
        """The epoch's tables to the device, t to its first step."""
        stream, stage = self.trainer.stream, self.stage
        rows = stream.table(epoch.number)
        drawn = stream.changes(epoch.number)
        if drawn is not None:
            self.changes.copy_(drawn)
        self.table.copy_(torch.from_numpy(rows))
        first = self.trainer.iteration - epoch.start
        factors = [
            stage.schedule.factor(first + t, total=self.trainer.total, per_epoch=stream.per_epoch)
            for t in range(stream.per_epoch)
        ]
        self.rates.copy_(torch.tensor(factors) * stage.optimizer.lr)
        self.t.fill_(epoch.start)
        if self.feed is not None:
            self.feed.start(rows[epoch.start : epoch.stop])

    def renewals(self, epoch: Epoch) -> list[int]:
        """Steps of this epoch before which PESG's reference is renewed."""
        if not isinstance(self.trainer.optimizer, PESG):
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
        if trainer.recipe.alpha_curve and isinstance(trainer.objective, SaddleLoss):
            trainer.alphas.extend(self.alphas[steps].clone().unbind(0))


class FastEngine:
    """Runs epochs of one run, or of several of one shape side by side, each on its own stream of one graph."""

    def __init__(self, trainers: Sequence[Trainer], *, compiled: bool = True) -> None:
        self.trainers = list(trainers)
        self.device = self.trainers[0].device
        self.captures = self.device.type == "cuda"
        self.compiled = compiled and self.captures
        self.start_up_seconds = 0.0
        # A study compiles many stages; past torch's limit of 8 it would silently run them uncompiled.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, PROGRAMS)
        self._steps: list[FastStep] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._place_images()

    def _place_images(self) -> None:
        """The images on the device, once for all runs that share them: those of any part of any of these runs."""
        by_source: dict[int, list[Trainer]] = {}
        for trainer in self.trainers:
            source = trainer.task.source
            key = id(source.array) if isinstance(source, ArrayInputs) else id(source)
            by_source.setdefault(key, []).append(trainer)
        for sharing in by_source.values():
            rows = rows_needed([trainer.task for trainer in sharing])
            images = images_on_device(sharing[0].task, self.device, rows=rows)
            for trainer in sharing:
                trainer.images = images

    def run_epoch(self, epochs: Sequence[Epoch]) -> None:
        """The same epoch of every run: all have the same number of steps."""
        spans = {(epoch.start, epoch.stop) for epoch in epochs}
        if len(spans) > 1:
            raise ValueError("packed runs must have the same number of steps in every epoch.")
        # A new stage has a new optimizer, whatever its spec says.
        if [trainer.optimizer for trainer in self.trainers] != [step.optimizer for step in self._steps]:
            self._prepare(epochs)
        for step, epoch in zip(self._steps, epochs, strict=True):
            step.begin_epoch(epoch)
        renewals = [set(step.renewals(epoch)) for step, epoch in zip(self._steps, epochs, strict=True)]
        for t in range(epochs[0].start, epochs[0].stop):
            for step, due in zip(self._steps, renewals, strict=True):
                if t in due and isinstance(step.optimizer, PESG):
                    step.optimizer.new_stage(lr_factor=1.0)
                if step.feed is not None:
                    step.feed.next()
            self._replay()
        for step, epoch in zip(self._steps, epochs, strict=True):
            step.end_epoch(epoch)
            step.trainer.after_step(epoch, epoch.stop - 1)

    def _replay(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        for step in self._steps:
            step()

    def _prepare(self, epochs: Sequence[Epoch]) -> None:
        """Steps of this stage, warmed up and captured. Every weight and state is as before afterwards."""
        began = time.monotonic()
        self._graph = None
        self._steps = []
        for trainer, epoch in zip(self.trainers, epochs, strict=True):
            trainer.trained.train()
            key = (self.compiled, program_key(epoch.stage, trainer))
            if key not in _FORWARDS:
                _FORWARDS[key] = make_forward(
                    trainer.trained, trainer.objective, epoch.stage, trainer.preprocessing, compiled=self.compiled
                )
            self._steps.append(FastStep(trainer, epoch.stage, _FORWARDS[key]))
        if self.captures:
            self._capture()
        self.start_up_seconds += time.monotonic() - began

    def _capture(self) -> None:
        before = [_Snapshot(step) for step in self._steps]
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for step in self._steps:
                for _ in range(WARM_UP_STEPS):  # all tables are 0, the learning rate too: no weight moves
                    step.t.zero_()
                    step()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        streams = [torch.cuda.Stream(self.device) for _ in self._steps]  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream(self.device)
            if len(self._steps) == 1:
                self._steps[0]()
            else:
                for step, stream in zip(self._steps, streams, strict=True):
                    stream.wait_stream(main)
                    with torch.cuda.stream(stream):
                        step()
                for stream in streams:
                    main.wait_stream(stream)
        self._graph = graph
        for snapshot in before:
            snapshot.restore()


class _Snapshot:
    """Weights and state of a run before warm-up, to be put back in place; captured addresses stay valid."""

    def __init__(self, step: FastStep) -> None:
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
        for parameter, state in self.step.optimizer.state.items():
            for name, value in state.items():
                if (id(parameter), name) not in self.known and isinstance(value, Tensor):
                    # Made during warm-up: momenta and counts start at 0, PESG's reference at the weights.
                    value.copy_(parameter) if name == "reference" else value.zero_()


def _make_capturable(optimizer: torch.optim.Optimizer, lr: Tensor) -> None:
    """The learning rate from the device, and torch's optimizers in the form that a graph can hold."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if lr.is_cuda and isinstance(optimizer, torch.optim.SGD):
            group["fused"], group["foreach"] = True, False
        if lr.is_cuda and "capturable" in group:
            group["capturable"] = True
    for state in optimizer.state.values():
        if "step" in state and isinstance(state["step"], Tensor):
            state["step"] = state["step"].to(lr.device)
