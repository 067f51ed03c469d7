"""Forward, bound, loss, backward for one batch, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from deepauc.data.counter import hash_key
from deepauc.kernels.dropout import set_rows
from deepauc.models.bags import Bags
from deepauc.objectives.score_norm import unit_norm
from deepauc.training.engine.distributed import ALONE, Ranks
from deepauc.training.engine.offers import TakesTurns
from deepauc.training.engine.views import view_loss
from deepauc.training.recipe import Stage


@dataclass(frozen=True)
class Batch:
    """What a step reads: inputs (n, ...) or bags of them, labels (B, L), sample weights (B,), rows' numbers (B,).

    With several ranks the inputs are this one's slice, the rest the whole batch's. index: None unless the stage's
    objective asks for it (`needs_index`).
    """

    inputs: Tensor | Bags
    labels: Tensor
    weights: Tensor | None = None
    index: Tensor | None = None


def bounded(scores: Tensor, bound: str) -> Tensor:
    """What the loss sees of the network's output; in training only."""
    if bound == "sigmoid":
        return torch.sigmoid(scores)
    if bound == "l2":
        return unit_norm(scores)
    if bound == "rms":
        return unit_norm(scores) * scores.shape[0] ** 0.5
    return scores


def backward_whole_batch(
    model: nn.Module, batch: Batch, objective: nn.Module | TakesTurns, stage: Stage, ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor]:
    """Gradients of the loss of this batch; returns the loss and the bounded scores, detached.

    objective: the loss, or the optimizer that says which loss it is.

    With several ranks loss and scores are the whole batch's; the network's gradients are this rank's terms of a sum.

    For a stage on views the inputs are all views, and instead of scores come the images whose views match, (N, 1).
    With stage.accumulate > 1 the network sees the batch in pieces but the loss sees it whole, so class means and score
    norms are exact: one pass without gradient for the scores, the loss on all of them, then piece by piece again with
    the scores' gradients. Costs one more forward pass. Batch normalisation, if any, works on the pieces.
    """
    inputs, labels = batch.inputs, batch.labels
    if labels.shape[1] == 1:
        labels = labels.squeeze(1)
        batch = replace(batch, labels=labels)
    if stage.accumulate == 1:
        if not ranks.alone:
            set_rows(model, _own_rows(len(labels), inputs, stage, ranks))
        with ranks.global_statistics():
            own = _scores(model, inputs, stage)
        loss, seen = _loss(ranks.gather_outputs(own, len(labels), views=stage.views), batch, objective, stage)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), seen.detach()

    pieces = _pieces(inputs, stage, ranks)
    if isinstance(inputs, Bags):
        places = tuple(piece.rows for piece in pieces if isinstance(piece, Bags))
    else:
        places = torch.split(_own_rows(len(labels), inputs, stage, ranks), [len(piece) for piece in pieces])
    step_seed = torch.initial_seed()
    buffers = [b.clone() for b in model.buffers()]
    with torch.no_grad(), ranks.global_statistics():
        parts = [
            _piece_scores(model, piece, place, stage, step_seed, i)
            for i, (piece, place) in enumerate(zip(pieces, places, strict=True))
        ]
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)  # running statistics count each image once
    scores = torch.cat(parts).requires_grad_()
    whole = ranks.gather_outputs(scores, len(labels), views=stage.views)
    loss, seen = _loss(whole, batch, objective, stage)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    gradients = torch.split(scores.grad, [len(part) for part in parts])
    for i, (piece, place, gradient) in enumerate(zip(pieces, places, gradients, strict=True)):
        with ranks.global_statistics():
            part = _piece_scores(model, piece, place, stage, step_seed, i)
        part.backward(gradient)  # type: ignore[no-untyped-call]
    set_rows(model, None)
    return loss.detach(), seen.detach()


def _pieces(inputs: Tensor | Bags, stage: Stage, ranks: Ranks) -> Sequence[Tensor | Bags]:
    if isinstance(inputs, Bags):
        ends = [len(inputs) * n // stage.accumulate for n in range(stage.accumulate + 1)]
        return [inputs[start:stop] for start, stop in pairwise(ends)]
    if ranks.alone:
        return torch.split(inputs, -(-len(inputs) // stage.accumulate))
    return torch.tensor_split(inputs, stage.accumulate)  # as many on every rank, whatever its slice


def _loss(outputs: Tensor, batch: Batch, objective: nn.Module | TakesTurns, stage: Stage) -> tuple[Tensor, Tensor]:
    if isinstance(objective, TakesTurns):
        return objective.loss(outputs, batch.labels, batch.weights), bounded(outputs, stage.resolved_bound)
    if stage.on_views:
        return view_loss(outputs, batch.labels, objective, views=stage.views)
    seen = bounded(outputs, stage.resolved_bound)
    index = () if batch.index is None else (batch.index,)
    return objective(seen, batch.labels, *index, batch.weights), seen


def _scores(model: nn.Module, inputs: Tensor | Bags, stage: Stage) -> Tensor:
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=stage.precision == "bfloat16"):
        scores: Tensor = model(inputs)
    scores = scores.float()
    return scores.squeeze(1) if scores.shape[1] == 1 and not stage.on_views else scores


def _own_rows(count: int, inputs: Tensor | Bags, stage: Stage, ranks: Ranks) -> Tensor:
    """Which rows of the whole batch, view by view, the inputs are; of bags, which images."""
    if isinstance(inputs, Bags):
        return inputs.rows
    share = torch.arange(count, device=inputs.device)[ranks.share(count)]
    return torch.cat([view * count + share for view in range(stage.views)])


def _piece_scores(
    model: nn.Module, piece: Tensor | Bags, rows: Tensor, stage: Stage, step_seed: int, number: int
) -> Tensor:
    torch.manual_seed(hash_key(step_seed, number) >> 1)  # the same dropout in both passes
    set_rows(model, rows)
    return _scores(model, piece, stage)
