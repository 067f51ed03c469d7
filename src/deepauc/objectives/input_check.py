"""What every loss looks at before and after it computes, and how labels may be missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deepauc.labels import (
    NON_FINITE_SCORES,
    Diverged,
    invalid_labels,
    label_message,
    require_plain_tensor,
    require_valid_labels,
    scale_free,
    shape_message,
)

READ_EVERY = 100
"""On an accelerator the flags of bad input are read at the first call and then at every hundredth."""

BAD_WEIGHTS = "weights must be finite and not negative."


class InputCheck:
    """Looks at what a loss is given, and raises a ValueError that names the remedy.

    On the CPU at once. On an accelerator, where looking means waiting, faults are noted in flags on the device, which
    are read at the first call and at every hundredth, never while a CUDA graph is captured.
    """

    def __init__(self, *, soft: bool, may_be_soft: bool = True, ran_away: str = "") -> None:
        """may_be_soft: the loss has an option for soft labels. ran_away: the message for a flag given to `after`."""
        self.soft, self.may_be_soft = soft, may_be_soft
        self.ran_away = ran_away
        self._calls = 0
        self._faults: Tensor | None = None

    def before(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> bool:
        """Raises for shapes and types, on the CPU for values too. Whether a label may be missing (False: none is)."""
        require_tensors(scores, labels, weights)
        if (message := shape_message(scores.shape, labels.shape)) is not None:
            raise ValueError(message)
        if not scores.is_floating_point():
            raise ValueError(f"scores must be floating-point, not {scores.dtype}: pass the output of the network.")
        if weights is not None and weights.shape not in (scores.shape, scores.shape[:1]):
            raise ValueError(f"weights have shape {tuple(weights.shape)}; they must be (N,) or the scores' shape.")
        if scores.ndim == 2 and scores.shape[1] == 0:
            raise ValueError(f"scores of shape {tuple(scores.shape)} hold no label: give (N,), or (N, L) with L >= 1.")
        if scores.shape[0] == 0:
            return True  # nothing is valid: the loss is 0
        if scores.device.type != "cpu" or torch.compiler.is_compiling():
            return labels.is_floating_point()
        if weights is not None and not _within(weights, 0, math.inf):
            raise ValueError(BAD_WEIGHTS)
        return self._missing(labels)

    def after(
        self,
        loss: Tensor,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        *,
        ran_away: Tensor | None = None,
    ) -> Tensor:
        """The loss, unless it is NaN or infinite: any valid score that is makes it so."""
        if torch.compiler.is_compiling():
            return loss
        if loss.device.type != "cpu":
            self._note(loss.detach(), labels, weights, ran_away)
        elif not math.isfinite(loss.item()):
            if not scores.isfinite().all():
                raise Diverged(NON_FINITE_SCORES)
            largest = scores.detach().abs().max().item()
            raise Diverged(f"the loss overflowed: scores reach {largest:.3g}. Bound them before the loss, or lower lr.")
        return loss

    def _missing(self, labels: Tensor) -> bool:
        """Whether a label is missing, after raising if one is invalid. One cheap pass when all is well."""
        if labels.dtype == torch.bool:
            return False
        if self.soft or not labels.is_floating_point():
            fine = _within(labels, 0, 1)
        else:
            # y - y^2 is 0 for 0 and 1 alone, and NaN for NaN; one temporary, no mask.
            fine = _within(torch.addcmul(labels, labels, labels, value=-1), 0, 0)
        if not fine:
            require_valid_labels(labels, soft=self.soft, may_be_soft=self.may_be_soft)
        return not fine

    def read(self, labels: Tensor | None = None) -> None:
        """Raise for what the flags on the device say, and clear them; bad values are named if `labels` has them."""
        if self._faults is None:
            return
        bad_labels, bad_weights, bad_loss, ran_away = self._faults.tolist()
        self._faults.zero_()
        if bad_labels:
            if labels is not None:
                require_valid_labels(labels, soft=self.soft, may_be_soft=self.may_be_soft)
            raise ValueError(f"In one of the last {READ_EVERY} batches {label_message(None, soft=self.soft)}")
        if bad_weights:
            raise ValueError(BAD_WEIGHTS)
        if bad_loss:
            raise Diverged(NON_FINITE_SCORES)
        if ran_away:
            raise Diverged(self.ran_away)

    def _note(self, loss: Tensor, labels: Tensor, weights: Tensor | None, ran_away: Tensor | None = None) -> None:
        capturing = loss.is_cuda and torch.cuda.is_current_stream_capturing()
        if self._faults is None or self._faults.device != loss.device:
            if capturing:  # memory taken now would belong to the graph; warm-up steps come before capture
                return
            self._faults = torch.zeros(4, dtype=torch.bool, device=loss.device)
        bad_labels, bad_loss = invalid_labels(labels, soft=self.soft).any(), ~loss.isfinite()
        bad_weights = torch.zeros_like(bad_loss) if weights is None else ~((weights >= 0) & weights.isfinite()).all()
        away = torch.zeros_like(bad_loss) if ran_away is None else ran_away
        self._faults |= torch.stack([bad_labels, bad_weights, bad_loss, away])
        if capturing:
            return
        self._calls += 1
        if self._calls % READ_EVERY == 1:
            self.read(labels)


def require_tensors(scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    """ValueError unless they are tensors that a loss can compute with."""
    for name, given in (("scores", scores), ("labels", labels), ("weights", weights)):
        if given is None and name == "weights":
            continue
        if not isinstance(given, Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(given).__name__}: torch.as_tensor makes one.")
        if not torch.compiler.is_compiling():
            require_plain_tensor(name, given)


def prepare(
    scores: Tensor, labels: Tensor, weights: Tensor | None, *, may_miss: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores, labels and weights in float32 (float64 for double scores), the weight 0 where a label is missing.

    Double weights beside float32 scores are brought into its reach first.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    scores = scores.to(dtype)
    labels = labels.to(dtype)
    if weights is not None:
        wide = torch.promote_types(weights.dtype, dtype)
        weights = (weights.unsqueeze(1) if weights.ndim < scores.ndim else weights).to(wide).expand_as(scores)
    if may_miss:
        valid = labels == labels  # noqa: PLR0124  (NaN)
        labels = torch.where(valid, labels, 0)
        scores = torch.where(valid, scores, 0)  # whatever the score beside a missing label is, it must not spread
        weights = valid.to(dtype) if weights is None else torch.where(valid, weights, 0)
    if weights is not None and weights.dtype != dtype:
        weights = scale_free(weights).to(dtype)
    return scores, labels, weights


def _within(values: Tensor, low: float, high: float) -> bool:
    """Whether all values are finite and in [low, high]; NaN is not."""
    smallest, largest = (bound.item() for bound in torch.aminmax(values.detach()))
    return bool(low <= smallest and largest <= high and math.isfinite(largest))


def precise_dtype(device_type: str) -> torch.dtype:
    """float64, or float32 on Apple's GPUs (`mps`), which have nothing wider.

    The sums are of centred scores, and so hold in float32 too: summed one after the other, the sorted hinges' value and
    gradient were within 3e-6 of float64's at 131,072 normal scores. Lost are digits of small scores beside a huge one.
    """
    return torch.float32 if device_type == "mps" else torch.float64


def numbers_of(setting: float | Sequence[float] | Tensor) -> Tensor:
    """As float64 on the host, whatever the default device is, and wherever a tensor lies."""
    plain = setting.tolist() if isinstance(setting, Tensor) else setting
    return torch.as_tensor(plain, dtype=torch.float64, device="cpu")
