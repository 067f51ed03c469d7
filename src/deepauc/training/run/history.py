"""What an epoch leaves behind: mean loss, and the state of the AUC loss on its scores or how many views match."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepauc.labels import Diverged
from deepauc.metrics.auroc import auroc
from deepauc.objectives.contrastive import NON_FINITE
from deepauc.training.engine.offers import DualLoss, alpha_of

NON_FINITE_LOSS = "the training loss is NaN or infinite: lower lr, or set gradient_clip."


class EpochTally:
    """Sums over an epoch, kept on the device: nothing here waits for it."""

    def __init__(self, *, watched: bool = False, on_views: bool = False) -> None:
        """watched: scores and labels are kept for every loss on scores, for the training AUC.

        on_views: instead of scores come the matches of views.
        """
        self.watched, self.on_views = watched, on_views
        self.steps = 0
        self.loss: Tensor | None = None
        self.alpha_zero: Tensor | None = None
        self.matched: Tensor | None = None
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []

    def add(self, loss: Tensor, scores: Tensor, labels: Tensor, objective: nn.Module) -> None:
        """After a step: its loss, the (bounded) scores (on views: the matches) and the labels the loss saw."""
        alpha = alpha_of(objective) if isinstance(objective, DualLoss) else loss.new_empty(0)
        self.add_epoch(loss[None], alpha[None], scores.reshape(1, len(scores), -1), labels, objective)

    def add_epoch(self, losses: Tensor, alphas: Tensor, scores: Tensor, labels: Tensor, objective: nn.Module) -> None:
        """The same for many steps at once: losses (T,), alphas (T, L), scores and labels (T, B, L)."""
        self.steps += len(losses)
        self.loss = _added(self.loss, losses.sum())
        if self.on_views:
            self.matched = _added(self.matched, scores.mean((1, 2)).sum())
        if isinstance(objective, DualLoss):
            self.alpha_zero = _added(self.alpha_zero, (alphas == 0).float().mean(1).sum())
        if isinstance(objective, DualLoss) or (self.watched and not self.on_views):
            shape = (-1,) if scores.shape[2] == 1 else (-1, scores.shape[2])
            self.scores.append(scores.reshape(shape).clone())
            self.labels.append(labels.reshape(shape).clone())

    def summary(self, objective: nn.Module) -> dict[str, float]:
        """A row of the history; for several labels the mean over them. `Diverged` with a remedy if it went astray."""
        if self.loss is None:
            return {}
        if isinstance(objective, DualLoss):
            seen = torch.cat(self.scores)
            objective.require_healthy(self.loss, seen, batch=len(seen) // self.steps)
        loss = self.loss.item() / self.steps
        if not np.isfinite(loss):
            raise Diverged(NON_FINITE if self.on_views else NON_FINITE_LOSS)
        row = {"loss": loss}
        if self.matched is not None:
            row["view_accuracy"] = self.matched.item() / self.steps
        if self.watched and self.scores:
            row["train_auc"] = _mean_auc(torch.cat(self.scores), torch.cat(self.labels))
        if self.alpha_zero is None or not isinstance(objective, DualLoss):
            return row
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        row["alpha_zero_share"] = self.alpha_zero.item() / self.steps
        if bool(((labels > 0).any(0) & (labels < 1).any(0)).any()):  # a label with both classes
            found = objective.diagnose(scores, labels)
            for name, column in (("value", "A_M"), ("gap", "gap"), ("a", "a"), ("b", "b"), ("alpha", "alpha")):
                row[column] = float(np.nanmean(getattr(found, name)))
            for name in ("a_optimal", "b_optimal", "alpha_optimal"):
                row[name] = float(np.nanmean(getattr(found, name)))
        return row

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """What `state` gave; a checkpoint of an earlier version lacks what came later."""
        for name, value in state.items():
            moved = value.to(device) if isinstance(value, Tensor) else value
            setattr(self, name, [t.to(device) for t in value] if isinstance(value, list) else moved)


def _added(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


def _mean_auc(scores: Tensor, labels: Tensor) -> float:
    """Mean over the labels that have both classes; a soft label counts as the class it is nearer to."""
    found = []
    for own, label in zip(scores.reshape(len(scores), -1).T, labels.reshape(len(labels), -1).T, strict=True):
        known = ~label.isnan()
        positive = label[known] > 0.5
        if positive.any() and not positive.all():
            found.append(float(auroc(own[known].float(), positive)))
    return float(np.mean(found)) if found else float("nan")
