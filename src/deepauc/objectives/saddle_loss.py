"""The module that owns a, b, alpha of the min-max form and looks at what it is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from deepauc.labels import NON_FINITE_SCORES, Diverged, require_valid_labels
from deepauc.objectives.diagnosis import Diagnosis, diagnose
from deepauc.objectives.input_check import InputCheck, numbers_of, precise_dtype, prepare
from deepauc.objectives.saddle import PerLabel, auc_saddle, auc_saddle_one_label

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
        margin: float | Sequence[float] = 1.0,
        num_labels: int = 1,
        normalise: bool = True,
        constrain_alpha: bool = True,
        soft_labels: bool = False,
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
        require_margin(margin)
        self.normalise = normalise
        self.constrain_alpha = constrain_alpha
        self.soft_labels = soft_labels
        self.a = nn.Parameter(torch.zeros(num_labels))
        self.b = nn.Parameter(torch.zeros(num_labels))
        self.alpha = nn.Parameter(torch.zeros(num_labels))
        left = "a or b has left the range of the scores"
        self.input_check = InputCheck(soft=soft_labels, ran_away=_diverged_message(self.prior, None, left))
        self._constants: dict[tuple[torch.dtype, torch.device], tuple[PerLabel, PerLabel]] = {}

    def forward(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Scalar loss.

        Args:
            scores: (N,) or (N, L).
            labels: Of the same shape: 0 or 1, NaN where missing.
            weights: Sample weights, (N,) or the scores' shape; the prior is then the weighted share of positives.
        """
        may_miss = self.input_check.before(scores, labels, weights)
        self._require_fit(scores)
        inside = _inside_torch_func()
        if not inside:
            self.project_()
        h, y, w = prepare(scores, labels, weights, may_miss=may_miss)
        alpha = self._projected_alpha() if inside else self._ascending_alpha()
        a, b, alpha = self.a.to(h.dtype), self.b.to(h.dtype), alpha.to(h.dtype)
        on_host = h.device.type == "cpu" and not torch.compiler.is_compiling()
        if on_host and h.ndim == 1 and w is None and not self.soft_labels and not inside:
            one = {"prior": self.prior[0], "margin": self.margin[0]}
            loss = auc_saddle_one_label(h, y, a, b, alpha, **one, normalise=self.normalise)
        else:
            prior, margin = self._prior_and_margin(h.dtype, h.device)
            loss = auc_saddle(h, y, a, b, alpha, prior=prior, margin=margin, weights=w, normalise=self.normalise)
        if on_host:
            self.require_healthy(loss, scores, batch=len(scores))
            return loss
        return self.input_check.after(loss, scores, labels, weights, ran_away=self._ran_away(scores))

    def diagnose(
        self, scores: Tensor, labels: Tensor, weights: Tensor | None = None, *, decay: float = 0.0
    ) -> Diagnosis:
        """A_M on these scores, the duality gap, and a, b, alpha beside their optimal values; see `Diagnosis`.

        Args:
            scores: As in `forward`.
            labels: As in `forward`.
            weights: As in `forward`.
            decay: The weight decay that the optimizer applies to a and b, to learn how far it biases them. PESG applies
                weight_decay, and with reference="zero" gamma on top until the first `new_stage`.
        """
        self.input_check.before(scores, labels, weights)
        self._require_fit(scores)
        require_valid_labels(labels, soft=self.soft_labels)
        self.input_check.read()
        self.project_()
        precise = precise_dtype(scores.device.type)
        h, y, w = prepare(scores.detach().to(precise), labels.detach(), weights, may_miss=True)
        assert w is not None
        if not h.isfinite().all():
            raise Diverged(NON_FINITE_SCORES)
        return diagnose(
            h,
            y,
            w,
            self.a.detach().to(precise),
            self.b.detach().to(precise),
            self.alpha.detach().to(precise),
            margin=torch.tensor(self.margin, dtype=precise, device=scores.device),
            constrain_alpha=self.constrain_alpha,
            curvature=torch.tensor(self._curvature(), dtype=precise, device=scores.device),
            decay=decay,
        )

    def program(self) -> str:
        """What `traced` depends on besides its arguments."""
        return f"{type(self).__name__} {self.normalise}"

    def margins(self) -> tuple[float, ...]:
        """One a label."""
        return self.margin

    def traced(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        variables: Mapping[str, Tensor],
        *,
        prior: Tensor,
        margin: Tensor,
    ) -> Tensor:
        """The loss (N, L) without its checks, of a, b and alpha as they are given: for programs that are compiled.

        weights: (N,) or None. Prior and margin are tensors (L,): a grid of margins is one compiled program.
        """
        valid = labels == labels  # noqa: PLR0124  (NaN is missing)
        share = valid.float() if weights is None else torch.where(valid, weights.unsqueeze(1), 0)
        alpha = variables["alpha"]
        return auc_saddle(
            scores,
            torch.where(valid, labels, 0),
            variables["a"],
            variables["b"],
            2 * alpha.detach() - alpha,  # its gradient turned round, as in `forward`
            prior=prior,
            margin=margin,
            weights=share,
            normalise=self.normalise,
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

    @torch.no_grad()
    def closed_ascent_(self, lr: float | Tensor) -> None:
        """alpha <- project(alpha + 2 lr (m + b - a - alpha)): a, b for the batch's means, without the factor p(1 - p).

        PESG's step with alpha_step="closed", once a and b have moved. A label without a valid entry in the batch stays:
        its a, b and alpha all have the gradient 0.
        """
        gradients = [p.grad for p in (self.a, self.b, self.alpha) if p.grad is not None]
        if gradients:
            present = torch.stack(gradients).ne(0).any(0)
            _, margin = self._prior_and_margin(self.alpha.dtype, self.alpha.device)
            moved = self.alpha + 2 * lr * (margin + self.b - self.a - self.alpha)
            self.alpha.copy_(torch.where(present, moved, self.alpha))
            self.project_()

    def extra_repr(self) -> str:
        shown = {name: value[0] if self.num_labels == 1 else value for name, value in self._settings().items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items()) + f", normalise={self.normalise}"

    def _settings(self) -> dict[str, tuple[float, ...]]:
        return {"prior": self.prior, "margin": self.margin}

    def _ascending_alpha(self) -> Tensor:
        """alpha with its gradient turned round: 2x - x is x exactly. Nothing of the parameter itself is saved for
        backward, so projecting it in a later forward leaves this graph alone."""
        return 2 * self.alpha.detach() - self.alpha

    def _projected_alpha(self) -> Tensor:
        """The same with [alpha]_+, for torch.func, which changes no parameter in place."""
        alpha = self.alpha.detach()
        return (alpha.clamp(min=0) if self.constrain_alpha else alpha) + (alpha - self.alpha)

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

    def _curvature(self) -> list[float]:
        """Second derivative of the loss in a and in b, the same in both, for each label."""
        return [2 * (1.0 if self.normalise else p * (1 - p)) / self.num_labels for p in self.prior]

    def _require_fit(self, scores: Tensor) -> None:
        columns = 1 if scores.ndim == 1 else scores.shape[1]
        if columns != self.num_labels:
            raise ValueError(f"scores have {columns} labels, the loss has {self.num_labels}: set num_labels={columns}.")
        if scores.device != self.a.device:
            raise ValueError(
                f"scores are on {scores.device}, a, b and alpha on {self.a.device}: "
                f"call loss_fn.to({str(scores.device)!r}) before making the optimizer."
            )

    def require_healthy(self, loss: Tensor, scores: Tensor, *, batch: int) -> None:
        """`Diverged` with a remedy if the loss is no number, or a and b are far outside the scores: waits for them.

        scores: all of the batch, also those beside a missing label, which say what the scores' range is.
        """
        if not math.isfinite(loss.item()):
            if scores.isfinite().all() and self.a.isfinite().all() and self.b.isfinite().all():
                raise Diverged(_diverged_message(self.prior, batch, "the loss overflowed"))
            raise Diverged(f"{NON_FINITE_SCORES} {_diverged_message(self.prior, batch, 'Otherwise')}")
        means = max(map(abs, [*self.a.tolist(), *self.b.tolist()]))
        if means > DIVERGED_FACTOR and self._ran_away(scores):
            raise Diverged(_diverged_message(self.prior, batch, f"a or b is {means:.3g}"))

    def _ran_away(self, scores: Tensor) -> Tensor:
        """Whether a or b is far outside the scores, as a tensor on their device; an empty batch does not say."""
        reach = scores.detach().abs().amax().float() if len(scores) else torch.inf
        return torch.maximum(self.a.detach().abs().amax(), self.b.detach().abs().amax()) > DIVERGED_FACTOR * (1 + reach)


def require_margin(margin: float | Sequence[float]) -> None:
    """ValueError unless it is, for every label, a margin of the min-max form."""
    if not all(m > 0 and math.isfinite(m) for m in numbers_of(margin).reshape(-1).tolist()):
        raise ValueError(f"margin must be positive and finite, not {margin}.")


def _per_label(name: str, value: float | Sequence[float], num_labels: int) -> tuple[float, ...]:
    values = numbers_of(value).reshape(-1).tolist()
    if len(values) == 1:
        values *= num_labels
    if len(values) != num_labels:
        raise ValueError(f"{name} has {len(values)} values for {num_labels} labels: give one number, or one per label.")
    return tuple(values)


def _inside_torch_func() -> bool:
    return bool(torch._C._are_functorch_transforms_active())  # what autograd.Function.apply asks, too


def _diverged_message(prior: tuple[float, ...], batch: int | None, what: str) -> str:
    weight = f" = {1 / (batch * min(prior)):.3g}" if batch else ""
    return (
        f"{what}: the steps in a and b overshoot. With prior p a positive weighs 1/(N p){weight} in a batch of N. "
        "Use ClassQuotaSampler, which puts a fixed number of positives into each batch (prior=sampler.prior; "
        "positives_per_batch of a Stage), larger batches, or a smaller lr."
    )
