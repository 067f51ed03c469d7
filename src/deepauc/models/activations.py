"""ELU in the place of ReLU, by a conversion that is checked: none is left, whether a module or a function call.

The paper's networks use ELU (Clevert et al. 2016) because PESG's theory asks for a smooth objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ActivationName = Literal["relu", "elu"]
RELU_FAMILY: tuple[type[nn.Module], ...] = (nn.ReLU, nn.ReLU6)


def make_activation(name: ActivationName, *, inplace: bool = False) -> nn.Module:
    """A fresh activation module: two places never share one object."""
    if name == "elu":
        return nn.ELU(inplace=inplace)
    if name == "relu":
        return nn.ReLU(inplace=inplace)
    raise ValueError(f"activation must be one of {', '.join(get_args(ActivationName))}, not {name!r}.")


def replace_relu(
    model: nn.Module, activation: ActivationName = "elu", *, kinds: tuple[type[nn.Module], ...] = RELU_FAMILY
) -> int:
    """Replace every module of these kinds, in place, by an activation of its own; the number of places replaced.

    Those inside timm's BatchNorm+activation layers are submodules too. `inplace` stays as it was: an in-place ELU
    keeps its result for the backward pass, as an in-place ReLU does, so neither gradients nor memory change hands.
    """
    if isinstance(model, kinds):
        raise ValueError("the model is itself an activation; replace it where it is used.")
    replaced: set[tuple[int, str]] = set()
    # Duplicates are kept: an activation shared by two places would otherwise be replaced in one of them only.
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, kinds):
            parent_path, _, name = path.rpartition(".")
            parent = model.get_submodule(parent_path)
            if (id(parent), name) not in replaced:
                setattr(parent, name, make_activation(activation, inplace=bool(getattr(module, "inplace", False))))
                replaced.add((id(parent), name))
    return len(replaced)


def assert_no_relu(model: nn.Module, example: Tensor) -> None:
    """Raise ValueError, naming each place, if a ReLU or ReLU6 is left in the model: a module, or a call in `forward`.

    example: two rows or more of valid input, (N, C, H, W) or (N, F). The model runs on it in eval and in training mode
    with copies of its buffers and without gradients: nothing in it changes. It may be a meta tensor.
    """
    places = [f"{path} (nn.{type(m).__name__})" for path, m in model.named_modules() if isinstance(m, RELU_FAMILY)]
    places += [place for place in relu_calls(model, example) if place not in places]
    if places:
        raise ValueError(
            f"ReLU is left in {len(places)} places: {', '.join(places[:8])}{', ...' if len(places) > 8 else ''}. "
            "A module is replaced by replace_relu; a function call has to become a module in the network's code."
        )


def relu_calls(model: nn.Module, example: Tensor) -> list[str]:
    """Where a forward pass calls ReLU, ReLU6 or clamps at zero from below: `path (operation)`, each once."""
    device = example.device
    state: dict[str, Tensor] = {name: p.detach().to(device) for name, p in model.named_parameters()}
    modes = [(module, module.training) for module in model.modules()]
    stack: list[str] = [""]
    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, path=path: stack.append(path)))
        hooks.append(module.register_forward_hook(lambda *_: _pop(stack), always_call=True))
    recorder = _ReluRecorder(stack)
    try:
        # Both modes: an auxiliary branch may run in training only.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
            for training in (False, True):
                model.train(training)
                buffers = {name: b.detach().to(device, copy=True) for name, b in model.named_buffers()}
                with recorder:
                    torch.func.functional_call(model, state | buffers, (example,))
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return list(dict.fromkeys(recorder.places))


def _pop(stack: list[str]) -> None:
    stack.pop()  # a hook that returns a value would replace the module's output


class _ReluRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every ReLU that reaches PyTorch's dispatcher, and the module whose `forward` called it."""

    def __init__(self, stack: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack = stack
        self.places: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        operation = func.overloadpacket.__name__.rstrip("_")
        if _is_relu(operation, args[1:]):
            self.places.append(f"{self.stack[-1] or 'the model itself'} ({operation})")
        return func(*args, **(kwargs or {}))


def _is_relu(operation: str, arguments: Sequence[Any]) -> bool:
    if operation in ("relu", "relu6"):
        return True
    # relu6(x) is hardtanh(x, 0, 6); F.threshold(x, 0, 0), x.clamp(min=0) and x.clamp_min(0) are ReLU by other names.
    # A clamp between two bounds is left alone: it limits a range.
    if operation in ("hardtanh", "threshold", "clamp_min"):
        return _is_zero(arguments[0])
    if operation == "clamp":
        return _is_zero(arguments[0]) and (len(arguments) < 2 or arguments[1] is None)
    return False


def _is_zero(value: object) -> bool:
    return isinstance(value, int | float) and value == 0
