"""The step of runs that share one network's kernels: their weights side by side, their batches one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from deepauc.kernels.small_conv import has_triton, use_small_convs
from deepauc.kernels.stacked.network import can_stack, empty_copy, stacked
from deepauc.kernels.stacked.weights import StackedWeights
from deepauc.training.engine.fast.forward import Ends
from deepauc.training.engine.fast.run_step import RunStep
from deepauc.training.engine.step import Batch
from deepauc.training.engine.trainer import Trainer
from deepauc.training.recipe import Stage

LARGEST_IMAGE = 96 * 96  # pixels: there it takes 12 DenseNet121 from 7.5 to 4.2 ms a run; more was not tried
T = TypeVar("T")


def worth_stacking(trainer: Trainer, stage: Stage) -> bool:
    """On a GPU with Triton, in bfloat16, small images, and a network that is not made for `small_conv`'s kernels."""
    shape = trainer.task.source.shape
    if trainer.device.type != "cuda" or not has_triton() or stage.precision != "bfloat16" or len(shape) != 3:
        return False
    if shape[0] * shape[1] > LARGEST_IMAGE or not can_stack(trainer.trained):
        return False
    convolutions = sum(isinstance(module, nn.Conv2d) for module in trainer.trained.modules())
    return 2 * use_small_convs(empty_copy(trainer.trained)) < convolutions


def stacking_key(trainer: Trainer, stage: Stage) -> str:
    """Runs of which the same network takes inputs of the same shape: these can be stacked."""
    shapes = (trainer.recipe.model, trainer.task.source.shape, trainer.stream.batch_size, trainer.task.num_labels)
    head = stage.projection if stage.on_views else None
    return repr((shapes, stage.precision, stage.views, head, stage.drop_rate))


class StackedStep:
    """Step t of several runs: each one's inputs, one network for all, each one's loss, one backward pass, each update.

    Inputs and updates of the runs have a stream each inside a captured graph.
    """

    def __init__(self, steps: Sequence[RunStep], ends: Sequence[Ends]) -> None:
        self.steps, self.ends = list(steps), list(ends)
        first = self.steps[0]
        if not all(can_stack(step.trainer.trained) for step in self.steps):
            raise ValueError("this network cannot be stacked: leave stacked out, or set it to False.")
        self.device = first.trainer.device
        self.precision = first.stage.precision
        on_kernels = self.device.type == "cuda" and self.precision == "bfloat16"
        modules = [step.trainer.trained for step in self.steps]
        self.weights = StackedWeights(modules, half=torch.bfloat16 if on_kernels else None)
        self.network = stacked(modules[0], len(modules))
        self.inputs: Tensor | None = None
        captures = self.device.type == "cuda"
        self._streams = [torch.cuda.Stream(self.device) for _ in modules] if captures else []  # type: ignore[no-untyped-call]

    def __call__(self) -> None:
        batches = self._each(self._read)
        tensors = self.weights.tensors()
        if names := self.steps[0].key_names:
            tensors |= dict.fromkeys(names, torch.cat([step.key for step in self.steps]))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
            outputs = functional_call(self.network, tensors, (self.inputs,))
        scores = outputs.float().unflatten(0, (len(self.steps), -1)).unbind(0)
        found = [
            ends.value(own, batch.labels, batch.weights, batch.index, step.variables, step.prior, step.margin)
            for own, batch, step, ends in zip(scores, batches, self.steps, self.ends, strict=True)
        ]
        variables = [v for step in self.steps for v in step.variables.values() if v.requires_grad]
        leaves = list(self.weights.leaves.values())
        total = torch.stack([loss for loss, _, _ in found]).sum()
        gradients = torch.autograd.grad(total, [*leaves, *variables], allow_unused=True)
        self.weights.give_gradients(gradients[: len(leaves)])
        for variable, gradient in zip(variables, gradients[len(leaves) :], strict=True):
            variable.grad = gradient
        self._each(lambda run: self.steps[run].update(*found[run]))

    def _read(self, run: int) -> Batch:
        """The run's batch, labels as mixed, its inputs at their place among those of all."""
        step = self.steps[run]
        batch, changes = step.batch()
        inputs, labels = self.ends[run].inputs(step.constants, batch.inputs, batch.labels, changes)
        if self.inputs is None:
            shape = (len(self.steps) * inputs.shape[0], *inputs.shape[1:])
            form = torch.channels_last if inputs.ndim == 4 else torch.contiguous_format
            self.inputs = torch.zeros(shape, device=self.device).contiguous(memory_format=form)
        rows = inputs.shape[0]
        place = self.inputs[run * rows : (run + 1) * rows]
        place.copy_(inputs)
        return replace(batch, inputs=place, labels=labels)

    def _each(self, work: Callable[[int], T]) -> list[T]:
        """The work of every run; in a graph that is captured, on a stream each."""
        if not self._streams or len(self.steps) == 1 or not torch.cuda.is_current_stream_capturing():
            return [work(run) for run in range(len(self.steps))]
        main = torch.cuda.current_stream(self.device)
        done = []
        for run, stream in enumerate(self._streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                done.append(work(run))
        for stream in self._streams:
            main.wait_stream(stream)
        return done
