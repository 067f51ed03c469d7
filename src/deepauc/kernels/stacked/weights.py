"""The weights of several runs of one network in one piece of memory, each run's module still holding its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

ALIGN = 64  # numbers: every weight begins at a multiple of 128 bytes, in bfloat16 too


class StackedWeights:
    """Parameters and buffers of the runs as views of common storage, and as tensors (R, ...) for `stacked`.

    The runs' parameters and buffers stay the objects they are, with their shapes and strides: optimizers, averages and
    checkpoints see no difference. Buffers of whole numbers (BatchNorm's counters) are left alone.
    """

    def __init__(self, modules: Sequence[nn.Module], *, half: torch.dtype | None) -> None:
        """half: keep weights of layers (not of normalisation) in this type too."""
        self.parameters = [dict(module.named_parameters()) for module in modules]
        buffers = [{k: b for k, b in module.named_buffers() if b.is_floating_point()} for module in modules]
        self._flat, self.leaves = _stack(self.parameters)
        for leaf in self.leaves.values():
            leaf.requires_grad_()
        _, self.buffers = _stack(buffers)
        self._half = torch.empty_like(self._flat, dtype=half) if half is not None else None
        self.halves: dict[str, Tensor] = {}
        if self._half is not None:
            for name, leaf in self.leaves.items():
                if name.endswith("weight") and leaf.ndim > 2:
                    like = self._half.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
                    self.halves[name + "_half"] = like

    def tensors(self) -> dict[str, Tensor]:
        """What `functional_call` of a stacked network takes, the halves brought up to date: one kernel."""
        if self._half is not None:
            self._half.copy_(self._flat)
        return {**self.leaves, **self.buffers, **self.halves}

    def give_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Gradients of the leaves, in their order, to the runs' parameters: views, in the parameters' own layout."""
        for name, gradient in zip(self.leaves, gradients, strict=True):
            each = [None] * len(self.parameters) if gradient is None else gradient.unbind(0)
            for parameters, own in zip(self.parameters, each, strict=True):
                parameters[name].grad = None if own is None else _laid_out_as(parameters[name], own)


def _stack(runs: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, dict[str, Tensor]]:
    """The storage (R, total), and each name's tensor (R, ...) in it; the runs' own become views of it."""
    first = runs[0]
    starts, total = {}, 0
    for name, tensor in first.items():
        starts[name] = total
        total += -(-tensor.numel() // ALIGN) * ALIGN
    device = next((t.device for t in first.values()), None)
    flat = torch.zeros(len(runs), total, device=device)
    found = {}
    with torch.no_grad():
        for name, tensor in first.items():
            stride = _dense(tensor)
            found[name] = flat.as_strided((len(runs), *tensor.shape), (total, *stride), starts[name])
            for own, view in zip((run[name] for run in runs), found[name].unbind(0), strict=True):
                view.copy_(own)
                own.data = view
    return flat, found


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """Its strides if it fills its memory without gaps, channels last or not; else those of a plain tensor."""
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    dense = last or tensor.is_contiguous()
    return tensor.stride() if dense else torch.empty(tensor.shape, device="meta").stride()


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the parameter's strides: fused optimizers compare them, those of axes of length 1 too."""
    strides = zip(parameter.shape, parameter.stride(), gradient.stride(), strict=True)
    if all(size == 1 or mine == theirs for size, mine, theirs in strides):
        return gradient.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(gradient)
