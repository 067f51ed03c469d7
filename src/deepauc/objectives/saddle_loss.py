"""The module that owns a, b, alpha of the min-max form and looks at what it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepauc.labels import NON_FINITE_SCORES, invalid_labels, label_message, require_valid_labels, shape_message
from deepauc.objectives.diagnosis import Diagnosis, diagnose
from deepauc.objectives.saddle import PerLabel, auc_saddle, auc_saddle_one_label, split_missing

CHECK_EVERY = 100
"""On a GPU the flags of bad input are read at the first call and then at every hundredth."""

DIVERGED_FACTOR = 1e3
"""a and b estimate class means; this far outside the scores they are estimates of nothing."""


class SaddleLoss(nn.Module):
    """Owns a, b (descent) and alpha (ascent) of the min-max form, and checks what it is given.

    The `.grad` of alpha is -dF/dalpha, so that any torch optimizer, which descends, ascends in alpha.
    Use `AUCMarginLoss` or `AUCSquareLoss`.
    """

    def __init__(
        self,
        *,
        prior: float | Sequence[float],
        margin: float | Sequence[float],
        num_labels: int,
        normalise: bool,
        constrain_alpha: bool,
        soft_labels: bool,
    ) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, not {num_labels}.")
        self.num_labels = num_labels
        self.prior = _per_label("prior", prior, num_labels)
        self.margin = _per_label("margin", margin, num_labels)
        if not all(0 < p < 1 for p in self.prior):
            raise ValueError(
                f"prior must lie strictly between 0 and 1, not {prior}: it is the share of positives in the stream of "
                "samples the loss sees (ClassQuotaSampler.prior, or labels.mean() for plain shuffling)."
            )
        if not all(m > 0 and math.isfinite(m) for m in self.margin):
            raise ValueError(f"margin must be positive and finite, not {margin}.")
        self.normalise = normalise
        self.constrain_alpha = constrain_alpha
        self.soft_labels = soft_labels
        self.a = nn.Parameter(torch.zeros(num_labels))
        self.b = nn.Parameter(torch.zeros(num_labels))
        self.alpha = nn.Parameter(torch.zeros(num_labels))
        # Bad labels, non-finite scores, a or b run away: set on the device, read there now and then.
        self.faults: Tensor
        self.register_buffer("faults", torch.zeros(3, dtype=torch.bool), persistent=False)
        self._calls = 0
        self._constants: dict[tuple[torch.dtype, torch.device], tuple[PerLabel, PerLabel]] = {}

    def forward(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Scalar loss of scores (N,) or (N, L) and 0/1 labels of the same shape, NaN where missing.

        weights: sample weights, (N,) or the scores' shape; the prior is then the weighted share of positives.
        """
        self._require_shapes(scores, labels, weights)
        self.project_()
        dtype = torch.promote_types(scores.dtype, torch.float32)
        scores = scores.to(dtype)
        if weights is not None:
            weights = _as_scores(weights, scores)
        checked_now = scores.device.type == "cpu" and not torch.compiler.is_compiling()
        if checked_now:
            if weights is not None and not bool((weights >= 0).all()):
                raise ValueError("weights must be numbers that are not negative.")
            missing = _missing_or_raise(labels, soft=self.soft_labels)
        else:
            missing = labels.is_floating_point()  # cannot be looked at without waiting for the device
            bad_labels = invalid_labels(labels, soft=self.soft_labels).any()
        labels = labels.to(dtype)
        if missing:
            labels, weights = split_missing(labels, weights)
            scores = torch.where(weights > 0, scores, 0)  # a NaN score beside a missing label is nobody's business
        variables = self.a.to(dtype), self.b.to(dtype), self._ascending_alpha().to(dtype)
        if checked_now and scores.ndim == 1 and weights is None and not self.soft_labels and not _inside_torch_func():
            prior, margin = self.prior[0], self.margin[0]
            loss = auc_saddle_one_label(
                scores, labels, *variables, prior=prior, margin=margin, normalise=self.normalise
            )
        else:
            priors, margins = self._prior_and_margin(dtype, scores.device)
            loss = auc_saddle(
                scores, labels, *variables, prior=priors, margin=margins, weights=weights, normalise=self.normalise
            )
        if checked_now:
            self._require_healthy(loss, scores)
        else:
            self._note_faults(bad_labels, scores.detach())
        return loss

    def diagnose(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Diagnosis:
        """A_M on these scores, the duality gap, and a, b, alpha beside their optimal values; see `Diagnosis`."""
        self._require_shapes(scores, labels, weights)
        if self.faults.device.type != "cpu":
            self._read_faults(labels)
        require_valid_labels(labels, soft=self.soft_labels)
        self.project_()
        double = scores.detach().double()
        filled, valid = split_missing(
            labels.detach().double(), None if weights is None else _as_scores(weights.detach(), double)
        )
        return diagnose(
            torch.where(valid > 0, double, 0),
            filled,
            valid,
            self.a.detach().double(),
            self.b.detach().double(),
            self.alpha.detach().double(),
            margin=torch.tensor(self.margin, dtype=torch.float64, device=scores.device),
            constrain_alpha=self.constrain_alpha,
        )

    def primal_parameters(self) -> list[nn.Parameter]:
        """What PESG descends in besides the network: a and b."""
        return [self.a, self.b]

    def dual_parameters(self) -> list[nn.Parameter]:
        """What PESG steps without momentum, weight decay or proximal term: alpha."""
        return [self.alpha]

    def project_(self) -> None:
        """alpha <- [alpha]_+ where the loss asks for it."""
        if self.constrain_alpha:
            with torch.no_grad():
                self.alpha.clamp_(min=0)

    def extra_repr(self) -> str:
        shown = {name: value[0] if self.num_labels == 1 else value for name, value in self._settings().items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items()) + f", normalise={self.normalise}"

    def _settings(self) -> dict[str, tuple[float, ...]]:
        return {"prior": self.prior, "margin": self.margin}

    def _ascending_alpha(self) -> Tensor:
        """alpha with its gradient turned round: 2x - x is x exactly. Nothing of the parameter itself is saved for
        backward, so projecting it in a later forward leaves this graph alone."""
        return 2 * self.alpha.detach() - self.alpha

    def _prior_and_margin(self, dtype: torch.dtype, device: torch.device) -> tuple[PerLabel, PerLabel]:
        if self.num_labels == 1:
            return self.prior[0], self.margin[0]
        key = (dtype, device)
        if key not in self._constants:
            self._constants[key] = (
                torch.tensor(self.prior, dtype=dtype, device=device),
                torch.tensor(self.margin, dtype=dtype, device=device),
            )
        return self._constants[key]

    def _require_shapes(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        if (message := shape_message(scores.shape, labels.shape)) is not None:
            raise ValueError(message)
        if not scores.is_floating_point():
            raise ValueError(f"scores must be floating, not {scores.dtype}: pass what the network gives.")
        columns = 1 if scores.ndim == 1 else scores.shape[1]
        if columns != self.num_labels:
            raise ValueError(f"scores have {columns} labels, the loss has {self.num_labels}: set num_labels={columns}.")
        if weights is not None and weights.shape not in (scores.shape, scores.shape[:1]):
            raise ValueError(
                f"weights have shape {tuple(weights.shape)}; they must be (N,) or the scores' {tuple(scores.shape)}."
            )
        if scores.device != self.a.device:
            raise ValueError(
                f"scores are on {scores.device}, a, b and alpha on {self.a.device}: "
                f"call loss_fn.to({str(scores.device)!r}) before making the optimizer."
            )

    def _require_healthy(self, loss: Tensor, scores: Tensor) -> None:
        if not math.isfinite(loss.item()):
            if scores.isfinite().all() and self.a.isfinite().all() and self.b.isfinite().all():
                raise ValueError(_diverged_message(self.prior, scores.shape[0], "the loss overflowed"))
            raise ValueError(f"{NON_FINITE_SCORES} {_diverged_message(self.prior, scores.shape[0], 'Otherwise')}")
        means = max(map(abs, [*self.a.tolist(), *self.b.tolist()]))
        if means > DIVERGED_FACTOR and means > DIVERGED_FACTOR * (1 + scores.detach().abs().max().item()):
            raise ValueError(_diverged_message(self.prior, scores.shape[0], f"a or b is {means:.3g}"))

    def _note_faults(self, bad_labels: Tensor, scores: Tensor) -> None:
        with torch.no_grad():
            reach = scores.abs().amax() if scores.numel() else scores.sum()  # NaN and infinity come through amax
            means = torch.maximum(self.a.abs().amax(), self.b.abs().amax())
            self.faults |= torch.stack([bad_labels, ~reach.isfinite(), means > DIVERGED_FACTOR * (1 + reach)])
        if torch.compiler.is_compiling() or (scores.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        self._calls += 1
        if self._calls % CHECK_EVERY == 1:
            self._read_faults(None)

    def _read_faults(self, labels: Tensor | None) -> None:
        bad_labels, bad_scores, diverged = self.faults.tolist()
        self.faults.zero_()
        if labels is not None:
            require_valid_labels(labels, soft=self.soft_labels)
        if bad_labels:
            raise ValueError(f"In one of the last {CHECK_EVERY} batches " + label_message(None, soft=self.soft_labels))
        if bad_scores:
            raise ValueError(NON_FINITE_SCORES)
        if diverged:
            raise ValueError(_diverged_message(self.prior, None, "a or b has left the range of the scores"))


def _per_label(name: str, value: float | Sequence[float], num_labels: int) -> tuple[float, ...]:
    values = [float(v) for v in value] if isinstance(value, Sequence | Tensor) else [float(value)]
    if len(values) == 1:
        values *= num_labels
    if len(values) != num_labels:
        raise ValueError(f"{name} has {len(values)} values for {num_labels} labels: give one number, or one per label.")
    return tuple(values)


def _as_scores(weights: Tensor, scores: Tensor) -> Tensor:
    if weights.ndim < scores.ndim:
        weights = weights.unsqueeze(1)
    return weights.to(scores.dtype).expand_as(scores)


def _missing_or_raise(labels: Tensor, *, soft: bool) -> bool:
    """Whether a label is missing; ValueError if one is invalid. One cheap pass when all is well."""
    if labels.dtype == torch.bool or labels.numel() == 0:
        return False
    if not labels.is_floating_point():
        low, high = torch.aminmax(labels)
        if low < 0 or high > 1:
            require_valid_labels(labels, soft=soft)
        return False
    if soft:
        low, high = torch.aminmax(labels)  # NaN comes through
        fine = bool(low >= 0) and bool(high <= 1)
    else:
        low, high = torch.aminmax(labels * labels - labels)
        fine = low.item() == 0 and high.item() == 0
    if not fine:
        require_valid_labels(labels, soft=soft)
    return not fine


def _inside_torch_func() -> bool:
    return bool(torch._C._are_functorch_transforms_active())  # what autograd.Function.apply asks, too


def _diverged_message(prior: tuple[float, ...], batch: int | None, what: str) -> str:
    weight = f" = {1 / (batch * min(prior)):.3g}" if batch else ""
    return (
        f"{what}: the steps in a and b overshoot. With prior p a positive weighs 1/(N p){weight} in a batch of N. "
        "Use ClassQuotaSampler, which puts a fixed number of positives into each batch (prior=sampler.prior), "
        "larger batches, or a smaller lr."
    )
