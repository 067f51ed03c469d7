"""What the fast engine compiles: from the images of a batch to its loss, as a function of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from deepauc.kernels.small_conv import suits, use_small_convs
from deepauc.kernels.stacked.network import empty_copy
from deepauc.models.build import architecture
from deepauc.training.engine.offers import TracedLoss
from deepauc.training.engine.step import Batch, bounded
from deepauc.training.engine.trainer import Trainer
from deepauc.training.engine.views import repeated, view_loss
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Stage

DEEP = 60  # convolutions: each has kernels of its own shape, in either direction
COMPILED_STEPS, COMPILED_PIXELS = 20_000, 5 * 10**10  # 171 s at 7.5 ms each: 23,000 steps of 128 images of 128 px
Inputs = Callable[..., tuple[Tensor, Tensor]]
Network = Callable[..., Tensor]
Forward = Callable[..., tuple[Tensor, Tensor, Tensor]]


class Ends(NamedTuple):
    """What stands before and behind a network."""

    inputs: Inputs
    value: Forward


def make_forward(ends: Ends, network: Network) -> Forward:
    """Images of a batch -> (loss, bounded scores, labels); on views, where the views match instead of scores.

    The three are compiled apart: half a minute for a network, once, and a moment for each augmentation and each loss.
    """

    def forward(
        weights: dict[str, Tensor],
        variables: dict[str, Tensor],
        prior: Tensor,
        margin: Tensor,
        constants: tuple[Tensor, Tensor],
        batch: Batch,
        changes: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs, labels = ends.inputs(constants, batch.inputs, batch.labels, changes)
        outputs = network(weights, inputs)
        return ends.value(outputs, labels, batch.weights, batch.index, variables, prior, margin)

    return forward


def make_inputs(stage: Stage, preprocessing: Preprocessing, *, compiled: bool) -> Inputs:
    """(constants, images, labels, changes) -> the network's inputs, and labels as mixed."""
    augment = stage.augment

    def inputs(
        constants: tuple[Tensor, Tensor], images: Tensor, labels: Tensor, changes: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if augment is not None and changes is not None:
            images = augment.apply(repeated(images, stage.views), changes)
            images, labels = augment.mix(images, labels, changes)
        elif images.dtype == torch.uint8:
            images = images.permute(0, 3, 1, 2) * (1 / 255)
        return preprocessing.standardised(images, *constants), labels

    return torch.compile(inputs, dynamic=False) if compiled else inputs


def make_network(model: nn.Module, stage: Stage, *, compiled: bool) -> Network:
    """(weights, inputs) -> the network's output in float32. Runs share it: the model is a template for weights."""
    template = empty_copy(model)
    if stage.precision == "bfloat16" and all(suits(weight.device) for weight in model.parameters()):
        use_small_convs(template)
    for module in template.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked = None  # nineteen counters, a kernel each; `end_epoch` counts instead

    def outputs(weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=stage.precision == "bfloat16"):
            scores: Tensor = functional_call(template, weights, (inputs,))
        return scores.float()

    return torch.compile(outputs, dynamic=False) if compiled else outputs


def worth_compiling(trainer: Trainer) -> bool:
    """Whether the stage is long enough: a network of many layers takes minutes, and saves milliseconds a step.

    DenseNet121 with a small stem at 32 px, whose maps are those of 128 px with its own stem: 171 s, for 12.5 ms a step
    instead of 20 (docs/speed.md). More pixels a step save more.
    """
    convolutions = sum(isinstance(module, nn.Conv2d) for module in trainer.trained.modules())
    pixels = trainer.total * trainer.stream.batch_size * math.prod(trainer.task.source.shape[:2])
    return convolutions < DEEP or trainer.total >= COMPILED_STEPS or pixels >= COMPILED_PIXELS


def make_value(
    objective: nn.Module, stage: Stage, *, compiled: bool, inner: Callable[..., Tensor] | None = None
) -> Forward:
    """(output, labels, sample weights, row index, variables, prior, margin) -> what `make_forward` gives.

    inner: minimised in place of the objective, of the output as it is (`TakesTurns`).
    """
    traced = objective.traced if isinstance(objective, TracedLoss) else None

    def value(
        scores: Tensor,
        labels: Tensor,
        sample_weights: Tensor | None,
        index: Tensor | None,
        variables: dict[str, Tensor],
        prior: Tensor,
        margin: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if stage.on_views:
            loss, matched = view_loss(scores, labels, objective, views=stage.views)
            return loss, matched, labels
        seen = bounded(scores, stage.resolved_bound)
        if inner is not None:
            loss = inner(scores, labels, sample_weights)
        elif traced is not None:
            loss = traced(seen, labels, sample_weights, variables, prior=prior, margin=margin)
        else:
            asked = () if index is None else (index,)
            loss = functional_call(objective, variables, (seen, labels, *asked, sample_weights))
        return loss, seen.detach(), labels

    return torch.compile(value, dynamic=False) if compiled else value


def inputs_key(stage: Stage, trainer: Trainer) -> str:
    """What the compiled inputs depend on."""
    return repr((stage.augment, stage.views, trainer.preprocessing.images, _shapes(trainer)))


def network_key(stage: Stage, trainer: Trainer) -> str:
    """What the compiled network depends on: no augmentation, no loss, no weights that it starts from."""
    head = stage.projection if stage.on_views else None
    form = (architecture(trainer.recipe.model), stage.precision, stage.views, head, stage.drop_rate)
    return repr((form, trainer.preprocessing.images, suits(trainer.device), _shapes(trainer)))


def value_key(stage: Stage, trainer: Trainer, inner: Callable[..., Tensor] | None = None) -> str:
    """What the compiled loss depends on; margin and prior of a `TracedLoss` come in as tensors.

    Other losses go by the spec they were built from as well: they need not print all their settings.
    """
    objective = trainer.objective
    own = objective.program() if isinstance(objective, TracedLoss) else repr((objective, stage.objective))
    if type(objective).__module__.partition(".")[0] != "deepauc":  # one's own loss may also depend on the prior
        own = repr((own, stage.objective, trainer.stream.prior))
    return repr((own, inner, stage.resolved_bound, stage.on_views, stage.views, _shapes(trainer)))


def _shapes(trainer: Trainer) -> tuple[object, ...]:
    return trainer.device.type, trainer.task.source.shape, trainer.stream.batch_size, trainer.task.num_labels
