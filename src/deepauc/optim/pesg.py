"""PESG, the proximal epoch stochastic gradient method (Algorithm 1 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, get_args, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deepauc.kernels.pesg_fused import FusedUpdate
from deepauc.kernels.pesg_update import Primal, Rates, descend, update
from deepauc.optim.standard import require_rates, without_norms


class MinMaxObjective(Protocol):
    """What PESG knows of a loss: what to descend in besides the network, what to ascend in, and the constraint."""

    def primal_parameters(self) -> Sequence[nn.Parameter]: ...

    def dual_parameters(self) -> Sequence[nn.Parameter]:
        """Their `.grad` is minus the gradient of the objective."""
        ...

    def project_(self) -> None: ...


class ClosedAscentObjective(MinMaxObjective, Protocol):
    """What PESG's alpha_step="closed" asks for besides."""

    def closed_ascent_(self, lr: float | Tensor) -> None:
        """Called once a and b have moved: the whole step in alpha, its projection included."""
        ...


Reference = Literal["start", "zero"]
AlphaStep = Literal["gradient", "closed"]
_OWN_NAMES = ("objective.primal", "objective.dual")  # in groups of named parameters


def require_factor(lr_factor: float) -> None:
    """What the learning rate of the next stage is multiplied by."""
    if not 0 < lr_factor <= 1:
        raise ValueError(
            f"lr_factor must be above 0 and at most 1, not {lr_factor}: 0.1 divides the learning rate by ten, as "
            "LibAUC's decay_factor=10 does."
        )


class PESG(Optimizer):
    """Descends in v = (w, a, b) with a proximal pull towards v_ref, ascends in alpha, and projects alpha.

        d = dF/dv + gamma (v - v_ref) + weight_decay v
        buf = momentum buf + d
        v <- v - lr buf  (d without momentum)
        alpha <- project(alpha + lr dF/dalpha)

    `new_stage` divides lr and sets v_ref to the average of the stage's iterates. A parameter that gets no gradient in a
    step stays where it is and counts so in the average. Per-group options: lr, gamma, weight_decay, momentum,
    reference, clip_value. The objective's parameters are groups of their own after the given ones: a and b with the
    default options, then alpha. Reference and averages are float32 for half-precision parameters; gamma = 0 keeps
    neither.

    Args:
        params: The network's parameters, or groups of them.
        objective: The loss, which brings a, b and alpha.
        lr: Learning rate of both steps. It may be a tensor; inside a CUDA graph it has to be one, on the device, if it
            is to change.
        gamma: Strength of the pull towards v_ref.
        weight_decay: Weight decay of v, never of alpha.
        momentum: Momentum of v, never of alpha.
        reference: Where v_ref begins. "start" is v at the first step; "zero" is the origin, so that gamma is a weight
            decay until the first `new_stage`.
        alpha_step: "gradient" is the step along dF/dalpha; "closed" takes its place, once a and b have moved, by
            alpha <- project(alpha + 2 lr (m + b - a - alpha)), each label by itself (`AUCMarginLoss.closed_ascent_`).
        clip_value: Each element of dF/dv is clipped to [-clip_value, clip_value] before pull and decay are added;
            alpha's step is not clipped. None does not clip.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        objective: MinMaxObjective,
        lr: float | Tensor = 0.1,
        *,
        gamma: float = 0.002,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        reference: Reference = "start",
        alpha_step: AlphaStep = "gradient",
        clip_value: float | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "gamma": gamma,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "reference": reference,
            "clip_value": clip_value,
            "dual": False,
        }
        groups = _as_groups(params)
        if not (hasattr(objective, "primal_parameters") and hasattr(objective, "dual_parameters")):
            raise ValueError(
                f"{type(self).__name__} needs an AUC objective with a, b and alpha, not {type(objective).__name__}: "
                "give a loss such as AUCMarginLoss as the second argument. With other losses use SGD, or Adam."
            )
        if alpha_step == "closed" and not hasattr(objective, "closed_ascent_"):
            raise ValueError(
                "alpha_step='closed' needs a loss with the method closed_ascent_, which "
                f"{type(objective).__name__} lacks: use alpha_step='gradient'."
            )
        primal, dual = list(objective.primal_parameters()), list(objective.dual_parameters())
        given = {id(_parameter_of(p)) for group in groups for p in group["params"]}
        if any(id(p) in given for p in (*primal, *dual)):
            raise ValueError(
                "PESG takes the objective's a, b and alpha from the objective itself: pass model.parameters() only."
            )
        self.objective = objective
        own: list[list[Any]] = [primal, dual]
        if any(isinstance(p, tuple) for group in groups for p in group["params"]):  # torch wants names of all or none
            own = [[(f"{kind}.{n}", p) for n, p in enumerate(o)] for kind, o in zip(_OWN_NAMES, own, strict=True)]
        fixed = {"gamma": 0.0, "weight_decay": 0.0, "momentum": 0.0, "alpha_step": alpha_step, "dual": True}
        groups += [{"params": params, **more} for params, more in zip(own, ({}, fixed), strict=True) if params]
        self._fused = FusedUpdate()
        super().__init__(groups, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the options are checked here, where defaults have been filled in."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group.get("maximize"):
            raise ValueError(_NO_MAXIMIZE)
        require_rates(group)
        require_options(group["reference"], group.get("alpha_step", "gradient"), group["clip_value"])

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of lines 3 to 5 of Algorithm 1."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(group["gamma"] for group in self.param_groups):
            self._stage_steps().add_(1)
        for rates, primal in self._batches():
            if self._fused.takes(primal):
                self._fused.update(primal, rates)
            else:
                update(primal, rates)
        for group in self.param_groups:
            if group["dual"] and group["alpha_step"] == "closed":
                cast(ClosedAscentObjective, self.objective).closed_ascent_(group["lr"])
            elif group["dual"]:
                for alpha in group["params"]:
                    if alpha.grad is not None:
                        descend(alpha, alpha.grad, group["lr"])
        self.objective.project_()
        return loss

    @torch.no_grad()
    def new_stage(self, lr_factor: float = 0.1) -> None:
        """Line 6 of Algorithm 1: lr <- lr_factor * lr, v_ref <- average of the iterates since the last call.

        With a learning-rate scheduler of torch's, pass lr_factor=1.
        """
        require_factor(lr_factor)
        scaled: set[int] = set()
        for group in self.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] *= lr_factor
            elif group["lr"].data_ptr() not in scaled:  # groups may share one tensor
                scaled.add(group["lr"].data_ptr())
                group["lr"].mul_(lr_factor)
        steps = float(self._stage_steps()) if self.state else 0.0
        if not steps:
            return
        for state in self.state.values():
            if "reference" in state:
                state["reference"].add_(state["drift"], alpha=1 / steps)
                state["drift"].zero_()
        self._stage_steps().zero_()
        for group in self.param_groups:
            group["reference"] = "start"  # of what begins to move from now on: the average of where it stood

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but the state keeps its precision: the float32 reference of a bf16 parameter stays float32.

        A state saved before `reference`, `alpha_step` and `clip_value` existed is taken to have their defaults.
        """
        _require_own_state(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        _require_fitting_state(state_dict, parameters)
        super().load_state_dict(state_dict)
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        for parameter, number in zip(parameters, numbers, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if not isinstance(value, Tensor):
                    continue
                kept = torch.empty_like(parameter, dtype=value.dtype) if value.shape == parameter.shape else None
                if kept is None:  # the step count
                    kept = torch.empty_like(value, device=parameter.device)
                self.state[parameter][name] = kept.copy_(value)  # laid out in memory as the parameter is

    def __getstate__(self) -> dict[str, Any]:
        # torch's keeps state and groups only; a copy or a pickle needs the objective too
        return {**super().__getstate__(), "objective": self.objective}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fused = FusedUpdate()
        super().__setstate__(state)
        for options in (self.defaults, *self.param_groups):  # a state or a pickle from before these existed
            options.setdefault("reference", "start")
            options.setdefault("clip_value", None)
            if options["dual"]:
                options.setdefault("alpha_step", "gradient")

    def _stage_steps(self) -> Tensor:
        """Steps of this stage, on the device, so that a captured step counts; kept with alpha, which every step has."""
        owner = self._stage_owner()
        state = self.state[owner]
        if "stage_steps" not in state:
            state["stage_steps"] = torch.zeros((), dtype=torch.float32, device=owner.device)
        return state["stage_steps"]

    def _stage_owner(self) -> Tensor:
        objective, first = self.objective, self.param_groups[0]["params"]
        owner: Tensor = (objective.dual_parameters() or objective.primal_parameters() or first)[0]
        return owner

    def _batches(self) -> list[tuple[Rates, list[Primal]]]:
        """What to descend in, together where options, type and device agree; state is made at first sight."""
        by_rates: dict[Rates, dict[tuple[object, ...], list[Primal]]] = {}
        for group in self.param_groups:
            if group["dual"]:
                continue
            rates = Rates(*(group[name] for name in Rates._fields))
            batches = by_rates.setdefault(rates, {})
            for parameter in group["params"]:
                gradient = parameter.grad
                state = self.state.get(parameter, {})
                if gradient is None and "reference" not in state:
                    continue
                if (rates.gamma and "reference" not in state) or (rates.momentum and "momentum" not in state):
                    state = self._begun(parameter, rates, group["reference"])
                if gradient is not None and gradient.is_sparse:
                    raise ValueError("PESG needs dense gradients: build the embedding with sparse=False.")
                tensors = Primal(parameter, gradient, state.get("reference"), state.get("drift"), state.get("momentum"))
                batches.setdefault((parameter.dtype, parameter.device, gradient is None), []).append(tensors)
        return [(rates, primal) for rates, batches in by_rates.items() for primal in batches.values()]

    def _begun(self, parameter: nn.Parameter, rates: Rates, reference: Reference) -> dict[str, Tensor]:
        """The parameter's state, with what is missing of it."""
        state = self.state[parameter]
        precise = torch.promote_types(parameter.dtype, torch.float32)
        if rates.gamma and "reference" not in state:
            start = parameter.detach().to(precise, copy=True, memory_format=torch.preserve_format)
            # drift is the sum of v - v_ref over the steps of the stage: precise after many of them.
            if reference == "start":
                state["reference"], state["drift"] = start, torch.zeros_like(start)
            else:  # where it stood in the steps without it counts
                state["reference"], state["drift"] = torch.zeros_like(start), start * (self._stage_steps() - 1)
        if rates.momentum and "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter, dtype=precise, memory_format=torch.preserve_format)
        return state


@dataclass(frozen=True, kw_only=True)
class PESGSpec:
    """`PESG`, to be built once network and objective are there.

    Args:
        decay_norms: Whether normalisation parameters and biases are decayed too, as a and b always are.
    """

    lr: float = 0.1
    gamma: float = 0.002
    weight_decay: float = 0.0
    momentum: float = 0.0
    reference: Reference = "start"
    alpha_step: AlphaStep = "gradient"
    clip_value: float | None = None
    decay_norms: bool = True
    projects: ClassVar[bool] = True  # each step ends with the objective's projection

    def __post_init__(self) -> None:
        require_rates(vars(self))
        require_options(self.reference, self.alpha_step, self.clip_value)

    def build(self, parameters: Iterable[nn.Parameter], objective: nn.Module) -> PESG:
        return PESG(
            parameters if self.decay_norms else norms_apart(parameters),
            cast(MinMaxObjective, objective),
            self.lr,
            gamma=self.gamma,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            reference=self.reference,
            alpha_step=self.alpha_step,
            clip_value=self.clip_value,
        )


def norms_apart(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Normalisation parameters and biases without weight decay, nor a pull to 0 in its place."""
    weights, rest = without_norms(parameters)
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": rest, "weight_decay": 0.0, "reference": "start"}]
    return [group for group in groups if group["params"]]


_NO_MAXIMIZE = "PESG does not take maximize: it descends in the network and ascends in alpha already."


def _require_own_state(state_dict: dict[str, Any]) -> None:
    """Raise ValueError for another optimizer's state, LibAUC's PESG by name: its reference and momentum are others."""
    groups = state_dict.get("param_groups", [])
    if any({"a", "b", "alpha"} <= group.keys() for group in groups):  # LibAUC keeps the loss's own among the options
        raise ValueError(
            "this is the state of LibAUC's PESG, whose reference and momentum mean something else here. a, b and alpha "
            "mean the same: take them over by loss_fn.load_state_dict({name: state['param_groups'][0][name].detach() "
            "for name in ('a', 'b', 'alpha')}), load the network's weights, and begin with a new PESG."
        )
    if any("gamma" not in group or "dual" not in group for group in groups):
        raise ValueError(
            "this is the state of another optimizer, not of PESG: load the network's weights alone, and begin with a "
            "new PESG."
        )
    if any(group.get("maximize") for group in groups):
        raise ValueError(_NO_MAXIMIZE)


def require_options(reference: object, alpha_step: object, clip_value: float | None) -> None:
    """ValueError, naming the valid ones, for a value that PESG does not know."""
    for name, value, valid in (("reference", reference, Reference), ("alpha_step", alpha_step, AlphaStep)):
        if value not in get_args(valid):
            raise ValueError(f"{name} must be {' or '.join(map(repr, get_args(valid)))}, not {value!r}.")
    if clip_value is not None and not float(clip_value) > 0:
        raise ValueError(f"clip_value must be positive, or None for no clipping, not {clip_value}.")


def _require_fitting_state(state_dict: dict[str, Any], parameters: Sequence[Tensor]) -> None:
    """Raise ValueError for the state of a network of another shape; torch looks at how many parameters there are."""
    numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
    for parameter, number in zip(parameters, numbers, strict=False):
        for name, value in state_dict["state"].get(number, {}).items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(
                    f"this is the state of another network: {name} of parameter {number} has shape "
                    f"{tuple(value.shape)}, the parameter {tuple(parameter.shape)}. Load it into a PESG of the network "
                    "that it was saved with."
                )


def _parameter_of(given: Any) -> Any:
    """Of `parameters()` or `named_parameters()`."""
    return given[1] if isinstance(given, tuple) else given


def _as_groups(params: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    items = list(params)
    if not items:
        raise ValueError("PESG got no parameters: pass model.parameters(), and not a generator already used up.")
    if not isinstance(items[0], dict):
        return [{"params": items}]
    groups = [dict(group) for group in items if isinstance(group, dict)]
    for group in groups:
        group["params"] = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
    return groups
