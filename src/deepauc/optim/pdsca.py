"""PDSCA, compositional training (Yuan, Guo, Chawla & Yang, ICLR 2022): an AUC step through a cross-entropy step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepauc.optim.pesg import PESG, MinMaxObjective, Reference, norms_apart, require_options
from deepauc.optim.standard import require_rates

Loss = Callable[..., Tensor]
"""Of scores and labels; called with sample weights too where there are some."""


class PDSCA(PESG):
    """Minimises L_AUC(w - inner_lr grad L_CE(w)): descends in w with the AUC gradient taken where cross-entropy leads.

    In turn, one step per batch:

        inner:  u <- (1 - beta0) u + beta0 (w - inner_lr dL_CE/dw)
                the network holds u
        outer:  z <- (1 - beta1) z + beta1 dL_AUC/d(u, a, b)
                (w, a, b) and alpha step as in PESG with z as the gradient
                the network holds w again

    u and z begin with their first value, not at 0. The derivative of the inner step is taken as 1, as in the paper.

        loss_fn, baseline = AUCMarginLoss(prior=0.01), torch.nn.BCEWithLogitsLoss()
        optimizer = PDSCA(model.parameters(), loss_fn, baseline, lr=0.1)
        for x, y in loader:
            loss = optimizer.loss(model(x).squeeze(1), y)  # cross-entropy, AUC in turn
            optimizer.zero_grad(); loss.backward(); optimizer.step()

    The options of the outer step are those of `PESG`; a learning-rate schedule does not change inner_lr. `step` refuses
    to go on without a call of `loss` before it, so that the two cannot get out of turn. Between an inner and an outer
    step the network holds u: `weights_in_place` puts w there for a while (to validate, to save), `finish` for good.

    Args:
        params: The network's parameters, or groups of them.
        objective: The min-max loss, such as AUCMarginLoss; it sees bound(scores).
        baseline: The loss of the inner step; it sees the scores as they are.
        lr: Learning rate of the outer step.
        inner_lr: Learning rate of the inner step.
        beta0: Share of the new value in the moving average u.
        beta1: Share of the new gradient in the moving average z.
        bound: What the scores pass before the objective.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        objective: MinMaxObjective,
        baseline: Loss,
        lr: float | Tensor = 0.1,
        *,
        inner_lr: float = 0.1,
        beta0: float = 0.9,
        beta1: float = 0.9,
        gamma: float = 0.002,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        reference: Reference = "start",
        clip_value: float | None = None,
        bound: Callable[[Tensor], Tensor] = torch.sigmoid,
    ) -> None:
        if not callable(baseline):
            raise ValueError(
                "PDSCA takes two losses: the AUC objective, then what the inner step minimises, such as "
                f"torch.nn.BCEWithLogitsLoss(), not {type(baseline).__name__}."
            )
        _require_options(inner_lr, beta0, beta1)
        self.baseline, self.bound = baseline, bound
        self._asked = False
        super().__init__(
            params,
            objective,
            lr,
            gamma=gamma,
            weight_decay=weight_decay,
            momentum=momentum,
            reference=reference,
            clip_value=clip_value,
        )
        self.defaults |= {"inner_lr": inner_lr, "beta0": beta0, "beta1": beta1, "outer_next": False}
        for group in self.param_groups:
            group.update({name: group.get(name, self.defaults[name]) for name in _OWN_OPTIONS})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, between an outer and an inner step."""
        if self.param_groups and self.param_groups[0].get("outer_next"):
            raise RuntimeError("PDSCA is between its inner and its outer step: add parameters after the next step().")
        super().add_param_group(param_group)

    @property
    def outer_next(self) -> bool:
        """Whether the next step is an outer one: then the network holds u, and `loss` is the AUC objective."""
        return bool(self.param_groups[0]["outer_next"])

    def set_bound(self, bound: Callable[[Tensor], Tensor]) -> None:
        """What the scores pass before the objective."""
        self.bound = bound

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of the step that is next; scores: the network's raw output."""
        given = () if weights is None else (weights,)
        if self.begin_step():
            return self.baseline(scores, labels, *given)
        return cast(Loss, self.objective)(self.bound(scores), labels, *given)

    def begin_step(self) -> bool:
        """Whether the step that begins is an inner one; for who computes its loss without `loss`, as a compiled step
        does."""
        self._asked = True
        return not self.outer_next

    def inner_loss(self) -> Loss:
        """What inner steps minimise, of raw scores."""
        return self.baseline

    def pass_turn(self) -> None:
        """The next step is of the other kind: after a step that a CUDA graph has taken, which no Python sees."""
        for group in self.param_groups:
            group["outer_next"] = not group["outer_next"]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """An inner or an outer step, in turn. A closure calls `loss` and `backward`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._asked:
            raise RuntimeError(
                "PDSCA takes cross-entropy and AUC steps in turn: take the loss of every step from "
                "optimizer.loss(scores, labels), once per step, before loss.backward() and optimizer.step()."
            )
        self._asked = False
        if self.outer_next:
            self._outer()
        else:
            self._inner()
        self.pass_turn()
        return loss

    @contextmanager
    def weights_in_place(self) -> Iterator[None]:
        """The network holds w inside the block, whichever step is next."""
        if not self.outer_next:
            yield
            return
        held = [(p, p.detach().clone()) for _, parameters in self._by_group() for p in parameters]
        self._put_weights()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, u in held:
                    parameter.copy_(u)

    def finish(self) -> None:
        """The network holds w from now on; an inner step without its outer one is let go."""
        if self.outer_next:
            self._put_weights()
            for group in self.param_groups:
                group["outer_next"] = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if any("outer_next" not in group for group in state_dict.get("param_groups", [])):
            raise ValueError(
                "this is the state of another optimizer, not of PDSCA: load the network's weights alone, and begin "
                "with a new PDSCA."
            )
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "baseline": self.baseline, "bound": self.bound, "_asked": self._asked}

    def _by_group(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        """The network's parameters with their groups; a, b and alpha have no inner step."""
        own = {id(p) for p in (*self.objective.primal_parameters(), *self.objective.dual_parameters())}
        found = [(group, [p for p in group["params"] if id(p) not in own]) for group in self.param_groups]
        return [(group, parameters) for group, parameters in found if parameters]

    def _inner(self) -> None:
        begun = self._has_begun("inner")
        for group, parameters in self._by_group():
            ahead = list(torch._foreach_mul([p.to(_precise(p)) for p in parameters], 1.0))  # copies
            moving = [(x, p.grad.to(x.dtype)) for x, p in zip(ahead, parameters, strict=True) if p.grad is not None]
            if moving:
                torch._foreach_add_(*map(list, zip(*moving, strict=True)), alpha=-group["inner_lr"])
            for parameter, x in zip(parameters, ahead, strict=True):
                if "u" not in (state := self.state[parameter]):
                    state["u"], state["w"] = x.clone(), torch.empty_like(parameter)
            u, w = ([self.state[parameter][name] for parameter in parameters] for name in ("u", "w"))
            torch._foreach_copy_(w, parameters)
            _average(u, ahead, begun, group["beta0"])
            torch._foreach_copy_(parameters, u)
        begun.fill_(1)

    def _outer(self) -> None:
        begun = self._has_begun("outer")
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["dual"] or not parameters:
                continue
            gradients = [parameter.grad.to(_precise(parameter)) for parameter in parameters]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if "z" not in (state := self.state[parameter]):
                    state["z"] = gradient.clone()
            z = [self.state[parameter]["z"] for parameter in parameters]
            _average(z, gradients, begun, group["beta1"])
            torch._foreach_copy_([parameter.grad for parameter in parameters], z)
        begun.fill_(1)
        self._put_weights()
        super().step()

    def _has_begun(self, turn: Literal["inner", "outer"]) -> Tensor:
        """0 before the first step of this kind, then 1, on the device: whoever captures a step may zero what trials of
        it have left, and its first replay still begins with u or z as they come."""
        owner, name = self._stage_owner(), f"{turn}_begun"
        if name not in self.state[owner]:
            self.state[owner][name] = torch.zeros((), device=owner.device)
        begun: Tensor = self.state[owner][name]
        return begun

    @torch.no_grad()
    def _put_weights(self) -> None:
        for _, parameters in self._by_group():
            torch._foreach_copy_(parameters, [self.state[parameter]["w"] for parameter in parameters])


def _precise(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _average(old: list[Tensor], new: list[Tensor], begun: Tensor, beta: float) -> None:
    """old <- (1 - beta) old + beta new in place, and new itself where begun, a number on the device, is 0."""
    torch._foreach_sub_(old, new)
    torch._foreach_mul_(old, begun.to(old[0].dtype) * (1 - beta))
    torch._foreach_add_(old, new)


_OWN_OPTIONS = ("inner_lr", "beta0", "beta1", "outer_next")


def _require_options(inner_lr: float, beta0: float, beta1: float) -> None:
    if not inner_lr >= 0:
        raise ValueError(f"inner_lr must be at least 0, not {inner_lr}.")
    for name, value in (("beta0", beta0), ("beta1", beta1)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} is the weight of the newest value, above 0 and at most 1, not {value}.")


def cross_entropy(scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Binary cross-entropy on logits (N,) or (N, L), NaN labels left out: each label's weighted mean, then the mean."""
    known = labels == labels  # noqa: PLR0124  (NaN)
    share = known.to(scores.dtype)
    if weights is not None:
        share = share * (weights if weights.ndim == scores.ndim else weights.unsqueeze(1))
    share = share / share.sum(0).clamp(min=torch.finfo(share.dtype).tiny)
    targets = torch.where(known, labels, 0).to(scores.dtype)
    logits = torch.where(known, scores, 0)
    total = F.binary_cross_entropy_with_logits(logits, targets, share, reduction="sum")
    return total / (1 if scores.ndim == 1 else scores.shape[1])


@dataclass(frozen=True, kw_only=True)
class PDSCASpec:
    """`PDSCA`, with the options of `PESG` and cross-entropy inside, to be built once network and objective are there.

    Args:
        decay_norms: Whether normalisation parameters and biases are decayed too, as a and b always are.
    """

    lr: float = 0.1
    inner_lr: float = 0.1
    beta0: float = 0.9
    beta1: float = 0.9
    gamma: float = 0.002
    weight_decay: float = 0.0
    momentum: float = 0.0
    reference: Reference = "start"
    decay_norms: bool = True
    projects: ClassVar[bool] = True  # as PESGSpec's
    takes_turns: ClassVar[bool] = True  # two losses, one after the other

    def __post_init__(self) -> None:
        _require_options(self.inner_lr, self.beta0, self.beta1)
        require_rates(vars(self))
        require_options(self.reference, "gradient", None)

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> PDSCA:
        return PDSCA(
            parameters if self.decay_norms else norms_apart(parameters),
            cast(MinMaxObjective, objective),
            cross_entropy,
            self.lr,
            inner_lr=self.inner_lr,
            beta0=self.beta0,
            beta1=self.beta1,
            gamma=self.gamma,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            reference=self.reference,
        )
