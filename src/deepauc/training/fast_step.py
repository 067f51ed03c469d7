"""The fast engine: data, tables and state on the device, one step in one CUDA graph, several runs side by side.

The mathematics is the plain loop's. What differs: images lie on the device as uint8; a step reads row t of tables that
lie there too, t being counted on the device; forward and loss are compiled; the whole step is captured once and
replayed, so that nothing waits for the host inside an epoch. On a CPU the same step runs uncaptured and uncompiled.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from deepauc.data.task import ArrayInputs
from deepauc.models.small_conv import use_small_convs
from deepauc.objectives.saddle import auc_saddle
from deepauc.objectives.saddle_loss import SaddleLoss
from deepauc.optim.pesg import PESG
from deepauc.training.feed import HostFeed, images_on_device
from deepauc.training.recipe import Stage
from deepauc.training.step import bounded
from deepauc.training.trainer import Epoch, Trainer

WARM_UP_STEPS = 3
PROGRAMS = 256
Forward = Callable[..., tuple[Tensor, Tensor, Tensor]]


def make_forward(model: nn.Module, objective: nn.Module, stage: Stage, preprocessing: Any) -> Forward:
    """Images of a batch -> (loss, bounded scores, labels).

    Weights come as arguments, so that runs share one compiled form; model and objective are templates for them.
    """
    augment, bound = stage.augment, stage.resolved_bound
    template = copy.deepcopy(model).to("meta")  # not the first run's own: the program would be bound to its weights
    if stage.precision == "bfloat16":
        use_small_convs(template)
    for module in template.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked = None  # nineteen counters, a kernel each; `end_epoch` counts instead

    def forward(
        weights: dict[str, Tensor],
        variables: dict[str, Tensor],
        prior: Tensor,
        margin: Tensor,
        constants: tuple[Tensor, Tensor],
        images: Tensor,
        labels: Tensor,
        sample_weights: Tensor | None,
        changes: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if augment is not None and changes is not None:
            images = augment.apply(images, changes)
            images, labels = augment.mix(images, labels, changes)
        elif images.dtype == torch.uint8:
            images = images.permute(0, 3, 1, 2) * (1 / 255)
        inputs = preprocessing.standardised(images, *constants)
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=stage.precision == "bfloat16"):
            scores = functional_call(template, weights, (inputs,))
        seen = bounded(scores.float(), bound)
        if isinstance(objective, SaddleLoss):
            loss = _saddle_value(objective, seen, labels, sample_weights, variables, prior, margin)
        else:
            loss = functional_call(objective, variables, (seen, labels, sample_weights))
        return loss, seen.detach(), labels

    return forward


def _saddle_value(
    objective: SaddleLoss,
    seen: Tensor,
    labels: Tensor,
    sample_weights: Tensor | None,
    variables: dict[str, Tensor],
    prior: Tensor,
    margin: Tensor,
) -> Tensor:
    """The loss's pure function, with prior and margin as tensors: a grid of margins is one compiled program."""
    valid = labels == labels  # noqa: PLR0124  (NaN is missing)
    share = valid.float() if sample_weights is None else torch.where(valid, sample_weights.unsqueeze(1), 0)
    alpha = variables["alpha"]
    return auc_saddle(
        seen,
        torch.where(valid, labels, 0),
        variables["a"],
        variables["b"],
        2 * alpha.detach() - alpha,  # its gradient turned round, as in SaddleLoss
        prior=prior,
        margin=margin,
        weights=share,
        normalise=objective.normalise,
    )


class FastStep:
    """One run's step on the device, for one stage."""

    def __init__(self, trainer: Trainer, stage: Stage, forward: Forward) -> None:
        if stage.accumulate != 1:
            raise ValueError("the fast engine takes the batch whole: set accumulate=1, or use the plain engine.")
        self.trainer, self.stage, self.forward, self.optimizer = trainer, stage, forward, trainer.optimizer
        device, stream = trainer.device, trainer.stream
        batch, steps, width = stream.batch_size, stream.per_epoch, trainer.task.num_labels
        tensors = {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}
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
        self.changes = torch.zeros(steps, batch, columns, device=device)
        self.rates = torch.zeros(steps, device=device)
        self.lr = torch.zeros((), device=device)
        self.losses = torch.zeros(steps, device=device)
        self.alphas = torch.zeros(steps, width, device=device)
        self.seen = torch.zeros(steps, batch, width, device=device)
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
            nn.utils.clip_grad_norm_(trainer.model.parameters(), stage.gradient_clip, foreach=True)
        trainer.optimizer.step()
        if trainer.average is not None:
            trainer.average.update(trainer.model)
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
        if stage.augment is not None:
            drawn = stage.augment.draw(rows.size, seed=stream.seed, epoch=epoch.number)
            self.changes.copy_(drawn.values.reshape(self.changes.shape))
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
        there: dict[int, Tensor | None] = {}  # runs on the same images share them
        for trainer in self.trainers:
            source = trainer.task.source
            key = id(source.array) if isinstance(source, ArrayInputs) else id(source)
            if key not in there:
                there[key] = images_on_device(trainer.task, self.device)
            trainer.images = there[key]

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
        shared: dict[str, Forward] = {}
        for trainer, epoch in zip(self.trainers, epochs, strict=True):
            trainer.model.train()
            key = _program_key(epoch.stage, trainer)
            if key not in shared:
                forward = make_forward(trainer.model, trainer.objective, epoch.stage, trainer.preprocessing)
                shared[key] = torch.compile(forward, dynamic=False) if self.compiled else forward
            self._steps.append(FastStep(trainer, epoch.stage, shared[key]))
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


def _program_key(stage: Stage, trainer: Trainer) -> str:
    """What the compiled program depends on; margin and prior come in as tensors."""
    objective = trainer.objective
    own = f"{type(objective).__name__} {objective.normalise}" if isinstance(objective, SaddleLoss) else repr(objective)
    shapes = (trainer.recipe.model, trainer.task.source.shape, trainer.stream.batch_size, trainer.task.num_labels)
    return repr((own, stage.resolved_bound, stage.augment, stage.precision, shapes))
