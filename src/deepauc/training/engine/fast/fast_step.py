"""The fast engine: data, tables and state on the device, one step in one CUDA graph, several runs side by side.

The mathematics is the plain loop's. What differs: images lie on the device as uint8; a step reads row t of tables that
lie there too, t being counted on the device; forward and loss are compiled; the whole step is captured once and
replayed, so that nothing waits for the host inside an epoch. On a CPU the same step runs uncaptured and uncompiled.
Runs of one network share their kernels where that is faster (`stacked_step`); others have a stream each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from deepauc.data.counter import hash_key
from deepauc.data.task import ArrayInputs
from deepauc.kernels.small_conv import has_triton
from deepauc.kernels.small_conv_launch import launch_tag
from deepauc.training.engine.fast.feed import images_on_device, rows_needed
from deepauc.training.engine.fast.forward import (
    Ends,
    Forward,
    Inputs,
    Network,
    inputs_key,
    make_forward,
    make_inputs,
    make_network,
    make_value,
    network_key,
    value_key,
    worth_compiling,
)
from deepauc.training.engine.fast.run_step import RunStep, Snapshot
from deepauc.training.engine.fast.stacked_step import StackedStep, stacking_key, worth_stacking
from deepauc.training.engine.trainer import Epoch, Trainer

WARM_UP_STEPS = 3
PROGRAMS = 256
# Of this process: the next pack of a study compiles nothing again.
_INPUTS: dict[tuple[bool, str], Inputs] = {}
_NETWORKS: dict[tuple[bool, str], Network] = {}
_VALUES: dict[tuple[bool, str], Forward] = {}


class SingleStep:
    """One run's step: gather, augment, forward, loss, backward, update, log, count.

    inner: the forward pass of the inner steps of an optimizer that takes turns.
    """

    def __init__(self, step: RunStep, forward: Forward, inner: Forward | None = None) -> None:
        self.steps, self.forward, self.inner = [step], forward, inner

    def __call__(self) -> None:
        (step,) = self.steps
        batch, changes = step.batch()
        step.optimizer.zero_grad(set_to_none=True)
        given = (step.weights, step.variables, step.prior, step.margin, step.constants)
        inner = self.inner if step.turns is not None and step.turns.begin_step() else None
        forward = inner or self.forward
        loss, seen, labels = forward(*given, batch, changes)
        torch.autograd.backward(loss)
        step.update(loss, seen, labels)


class FastEngine:
    """Runs epochs of one run, or of several of one shape side by side in one graph."""

    def __init__(self, trainers: Sequence[Trainer], *, compiled: bool = True, stacked: bool | None = None) -> None:
        """stacked: whether runs of one network share its kernels; None, where `worth_stacking` says so."""
        self.trainers = list(trainers)
        self.device = self.trainers[0].device
        self.captures = self.device.type == "cuda"
        self.compiled = compiled and self.captures and has_triton()
        # A study compiles many stages; past torch's limit of 8 it would silently run them uncompiled.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, PROGRAMS)
        self.stacked = stacked
        self._steps: list[RunStep] = []  # in the order of the trainers
        self._units: list[SingleStep | StackedStep] = []
        # By turn: one for all units, or one each where they draw numbers. Two turns where an optimizer takes them.
        self._graphs: list[list[torch.cuda.CUDAGraph]] = []
        self._turn = 0
        self._draws = not self.captures
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
        # Triton and a graph's capture go to the current device, which need not be that of the runs.
        with torch.cuda.device(self.device) if self.captures else nullcontext():
            self._run_epoch(epochs)

    def _run_epoch(self, epochs: Sequence[Epoch]) -> None:
        spans = {(epoch.start, epoch.stop) for epoch in epochs}
        if len(spans) > 1:
            raise ValueError("packed runs must have the same number of steps in every epoch.")
        # A new stage has a new optimizer, whatever its spec says.
        if [trainer.optimizer for trainer in self.trainers] != [step.optimizer for step in self._steps]:
            self._prepare(epochs)
        seeds = self._seeds(epochs)
        for step, epoch in zip(self._steps, epochs, strict=True):
            step.begin_epoch(epoch)
        renewals = [set(step.renewals(epoch)) for step, epoch in zip(self._steps, epochs, strict=True)]
        start, stop = epochs[0].start, epochs[0].stop
        for t in range(start, stop):
            for step, due in zip(self._steps, renewals, strict=True):
                if t in due and step.renewing is not None:
                    step.renewing.new_stage(lr_factor=1.0)
                if step.feed is not None:
                    step.feed.next()
            self._replay(seeds, t)
            if 0 <= (number := t - (start + stop) // 2) < len(self._steps):
                self._look_ahead(self._steps[number].trainer, epochs[number])
        for step, epoch in zip(self._steps, epochs, strict=True):
            step.end_epoch(epoch)
            step.trainer.after_step(epoch, epoch.stop - 1)

    @staticmethod
    def _look_ahead(trainer: Trainer, epoch: Epoch) -> None:
        """Draws the next epoch while the device works on this one: by its middle the host is far ahead."""
        if trainer.iteration + epoch.stop - epoch.start < trainer.total:
            trainer.stream.look_ahead(epoch.number + 1)

    def _seeds(self, epochs: Sequence[Epoch]) -> list[list[int]]:
        """What each unit's random numbers of this epoch follow from: the plain loop's, however runs are packed."""
        numbers = {step: epoch.number for step, epoch in zip(self._steps, epochs, strict=True)}
        return [[n for s in unit.steps for n in (s.trainer.stream.seed, numbers[s])] for unit in self._units]

    def _replay(self, seeds: Sequence[Sequence[int]], t: int) -> None:
        graphs = self._graphs[self._turn] if self.captures else []
        if not self._draws:
            graphs[0].replay()
        else:
            for seed, unit in zip(seeds, [graph.replay for graph in graphs] or self._units, strict=True):
                torch.manual_seed(hash_key(*seed, t) >> 1)  # dropout, if any
                unit()
        if self.captures:
            self._turn = (self._turn + 1) % len(self._graphs)
            for step in self._steps:
                if step.turns is not None:
                    step.turns.pass_turn()

    def _prepare(self, epochs: Sequence[Epoch]) -> None:
        """Steps of this stage, warmed up and captured. Every weight and state is as before afterwards."""
        self._graphs, self._units, self._turn = [], [], 0
        for trainer in self.trainers:
            trainer.trained.train()
        self._steps = [RunStep(t, e.stage) for t, e in zip(self.trainers, epochs, strict=True)]
        together: dict[str, list[RunStep]] = {}
        for step in self._steps:
            if step.turns is not None:  # never stacked: its inner steps have another loss
                both = (make_forward(self._ends(step, i), self._network(step)) for i in (None, step.turns.inner_loss()))
                self._units.append(SingleStep(step, *both))
            elif self.stacked or (self.stacked is None and worth_stacking(step.trainer, step.stage)):
                together.setdefault(stacking_key(step.trainer, step.stage), []).append(step)
            else:
                self._units.append(SingleStep(step, make_forward(self._ends(step), self._network(step))))
        self._units += [StackedStep(steps, [self._ends(step) for step in steps]) for steps in together.values()]
        if self.captures:
            with programs_named_by_launch(self.device):
                self._capture()

    def _network(self, step: RunStep) -> Network:
        trainer, stage = step.trainer, step.stage
        compiled = self.compiled and worth_compiling(trainer)
        key = (compiled, network_key(stage, trainer))
        if key not in _NETWORKS:
            _NETWORKS[key] = make_network(trainer.trained, stage, compiled=compiled)
        return _NETWORKS[key]

    def _ends(self, step: RunStep, inner: Callable[..., Tensor] | None = None) -> Ends:
        trainer, stage = step.trainer, step.stage
        before, behind = (self.compiled, inputs_key(stage, trainer)), (self.compiled, value_key(stage, trainer, inner))
        if before not in _INPUTS:
            _INPUTS[before] = make_inputs(stage, trainer.preprocessing, compiled=self.compiled)
        if behind not in _VALUES:
            _VALUES[behind] = make_value(trainer.objective, stage, compiled=self.compiled, inner=inner)
        return Ends(_INPUTS[before], _VALUES[behind])

    def _capture(self) -> None:
        before = [Snapshot(step) for step in self._steps]
        turns = 1 if all(step.turns is None for step in self._steps) else 2
        drawn = [False] * len(self._units)
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for number, unit in enumerate(self._units):
                for _ in range(turns * WARM_UP_STEPS):  # all tables are 0, the learning rate too
                    for step in unit.steps:
                        step.t.zero_()
                    generator = torch.cuda.get_rng_state(self.device)
                    unit()
                    # Of the last step only: compiling may draw too.
                    drawn[number] = not torch.equal(torch.cuda.get_rng_state(self.device), generator)
        torch.cuda.current_stream(self.device).wait_stream(side)
        # A graph has one seed. Units with dropout have one each, one after the other: packed runs draw as if alone.
        self._draws = any(drawn)
        together = [[unit] for unit in self._units] if self._draws else [self._units]
        # So many trials and captures that an optimizer's turn is what it was.
        self._graphs = [[self._captured(units) for units in together] for _ in range(turns)]
        for snapshot in before:
            snapshot.restore()

    def _captured(self, units: Sequence[SingleStep | StackedStep]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        own, *streams = (torch.cuda.Stream(self.device) for _ in (None, *units))  # type: ignore[no-untyped-call]
        with torch.cuda.graph(graph, stream=own):  # torch's default is on the device of the process's first capture
            main = torch.cuda.current_stream(self.device)
            if len(units) == 1:
                units[0]()
            else:
                for unit, stream in zip(units, streams, strict=True):
                    stream.wait_stream(main)
                    with torch.cuda.stream(stream):
                        unit()
                for stream in streams:
                    main.wait_stream(stream)
        return graph


@contextmanager
def programs_named_by_launch(device: torch.device) -> Iterator[None]:
    """What torch compiles in here and keeps on a disk is named by the launch settings, beside the user's own tag.

    Settings are a thread's own, and a GPU's backward pass has another thread, where its program would be made without
    that name: it is made together with the forward program instead.
    """
    tag = f"{torch.compiler.config.cache_key_tag} {launch_tag(device)}".strip()
    # A setting inside torch: where a version has it no more, the tag names the forward program only.
    known = hasattr(functorch_config, "force_non_lazy_backward_lowering")
    with (
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
        functorch_config.patch({"force_non_lazy_backward_lowering": True} if known else {}),
    ):
        yield
