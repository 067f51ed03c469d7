"""What the fast engine compiles: from the images of a batch to its loss, as a function of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from deepauc.models.small_conv import use_small_convs
from deepauc.objectives.saddle import auc_saddle
from deepauc.objectives.saddle_loss import SaddleLoss
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Stage
from deepauc.training.step import bounded
from deepauc.training.trainer import Trainer
from deepauc.training.views import repeated, view_loss

Forward = Callable[..., tuple[Tensor, Tensor, Tensor]]


def make_forward(
    model: nn.Module, objective: nn.Module, stage: Stage, preprocessing: Preprocessing, *, compiled: bool
) -> Forward:
    """Images of a batch -> (loss, bounded scores, labels); on views, where the views match instead of scores.

    Weights come as arguments, so that runs share one compiled form; model and objective are templates for them. The
    network and the loss are compiled apart: half a minute for the network, once, and a moment for each loss.
    """
    outputs, value = _network(model, stage, preprocessing), _loss(objective, stage)
    if compiled:
        outputs, value = torch.compile(outputs, dynamic=False), torch.compile(value, dynamic=False)

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
        scores, labels = outputs(weights, constants, images, labels, changes)
        return value(scores, labels, sample_weights, variables, prior, margin)

    return forward


def _network(model: nn.Module, stage: Stage, preprocessing: Preprocessing) -> Callable[..., tuple[Tensor, Tensor]]:
    """(weights, constants, images, labels, changes) -> the network's output in float32, and labels as mixed."""
    augment = stage.augment
    template = _template(model)
    if stage.precision == "bfloat16":
        use_small_convs(template)
    for module in template.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked = None  # nineteen counters, a kernel each; `end_epoch` counts instead

    def outputs(
        weights: dict[str, Tensor],
        constants: tuple[Tensor, Tensor],
        images: Tensor,
        labels: Tensor,
        changes: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if augment is not None and changes is not None:
            images = augment.apply(repeated(images, stage.views), changes)
            images, labels = augment.mix(images, labels, changes)
        elif images.dtype == torch.uint8:
            images = images.permute(0, 3, 1, 2) * (1 / 255)
        inputs = preprocessing.standardised(images, *constants)
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=stage.precision == "bfloat16"):
            scores = functional_call(template, weights, (inputs,))
        return scores.float(), labels

    return outputs


def _loss(objective: nn.Module, stage: Stage) -> Forward:
    """(output, labels, sample weights, variables, prior, margin) -> what `make_forward` gives."""

    def value(
        scores: Tensor,
        labels: Tensor,
        sample_weights: Tensor | None,
        variables: dict[str, Tensor],
        prior: Tensor,
        margin: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if stage.on_views:
            loss, matched = view_loss(scores, labels, objective, views=stage.views)
            return loss, matched, labels
        seen = bounded(scores, stage.resolved_bound)
        if isinstance(objective, SaddleLoss):
            loss = _saddle_value(objective, seen, labels, sample_weights, variables, prior, margin)
        else:
            loss = functional_call(objective, variables, (seen, labels, sample_weights))
        return loss, seen.detach(), labels

    return value


def program_key(stage: Stage, trainer: Trainer) -> str:
    """What the compiled program depends on; margin and prior come in as tensors."""
    objective = trainer.objective
    own = f"{type(objective).__name__} {objective.normalise}" if isinstance(objective, SaddleLoss) else repr(objective)
    shapes = (trainer.recipe.model, trainer.task.source.shape, trainer.stream.batch_size, trainer.task.num_labels)
    head = stage.projection if stage.on_views else None
    form = (stage.resolved_bound, stage.augment, stage.precision, stage.views, head, trainer.preprocessing.images)
    return repr((own, trainer.device.type, form, shapes))


def _template(model: nn.Module) -> nn.Module:
    """The modules without any values: a program must not be bound to the first run's weights."""
    # deepcopy asks its memo first: the modules are new, the tensors empty ones of the same layout.
    empty: dict[int, Tensor] = {}
    for parameter in model.parameters():
        empty[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        empty[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(model, empty)


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
