"""Dropout whose mask is counted, not drawn: it follows from (key of the step, layer, element) alone.

No generator is asked, so a captured graph needs none, a resumed run goes on to the bit, and what a run drops does not
depend on the runs it shares kernels with. An element's number u is a hash of 32 bits: with mix(x) the finaliser
"lowbias32" of C. Wellons' hash prospector (two multiplications, three xor-shifts) and a, b two salts made of the step's
key and the layer's number, u = mix(mix(element ^ a) + b); the element is kept where u >= rate 2^32. Integers alone, so
the mask is the same on every device. Elements are counted as they lie in memory with channels last: ((n H + y) W + x) C
+ c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from deepauc.kernels.small_conv import has_triton
from deepauc.kernels.stacked.rows import images_of, rows_of

STEP_KEY = "step_key"  # the buffer's name, by which an engine finds it
_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
FIRST, SECOND = 0x21F0AAAD, 0x735A2D97  # below 2^31: products of 32-bit words stay inside int64


def mix(x: Tensor) -> Tensor:
    """A permutation of the 32-bit words, here in int64."""
    x = ((x ^ (x >> 16)) * FIRST) & _WORD
    x = ((x ^ (x >> 15)) * SECOND) & _WORD
    return x ^ (x >> 15)


def salts(keys: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Two words for each key (int64, not negative) and this layer."""
    low = mix((keys + layer_offset(layer)) & _WORD)
    high = mix(((keys >> 32) ^ low) & _WORD)
    return low, high


def layer_offset(layer: int) -> int:
    """A word of the layer's own."""
    return (layer + 1) * _GOLDEN & _WORD


def kept(shape: Sequence[int], keys: Tensor, layer: int, rate: float, rows: Tensor | None = None) -> Tensor:
    """Which elements of a batch (R * B, ..., C), channels last, stay; run r has keys[r]. rows: see `StepDropout`."""
    count, inner = shape[0] // keys.numel(), 1
    for size in shape[1:]:
        inner *= size
    own = torch.arange(count, device=keys.device) if rows is None else rows
    element = (own[:, None] * inner + torch.arange(inner, device=keys.device)) & _WORD  # (B, inner)
    first, second = (salt[:, None, None] for salt in salts(keys, layer))
    numbers = mix((mix(element ^ first) + second) & _WORD)
    return (numbers >= threshold(rate)).view(*shape)


def threshold(rate: float) -> int:
    """Numbers below it drop their element."""
    return round(rate * 2**32)


def dropped(x: Tensor, keys: Tensor, layer: int, rate: float, rows: Tensor | None = None) -> Tensor:
    """x (R * B, C, ...) with each element 0 with probability `rate`, otherwise over 1 - rate."""
    if x.is_cuda and rows is None and has_triton() and not torch.compiler.is_compiling():
        return _Dropped.apply(x, keys, layer, rate)
    last = x.movedim(1, -1)
    mask = kept(last.shape, keys, layer, rate, rows).movedim(-1, 1)
    return torch.where(mask, x * (1 / (1 - rate)), 0)


class _Dropped(torch.autograd.Function):
    """One kernel in either direction; the mask is counted again, not kept."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, keys, ctx.layer, ctx.rate = inputs
        ctx.save_for_backward(keys)
        return _dropped_copy(x, keys, ctx.layer, ctx.rate)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (keys,) = ctx.saved_tensors
        return _dropped_copy(gradients[0], keys, ctx.layer, ctx.rate), None, None, None


def _dropped_copy(x: Tensor, keys: Tensor, layer: int, rate: float) -> Tensor:
    from deepauc.kernels.dropout_kernel import drop_rows

    rows = rows_of(x, keys.numel())
    found = torch.empty_like(rows, memory_format=torch.contiguous_format)
    drop_rows(rows if rows.stride(2) == 1 else rows.contiguous(), found, keys, layer, rate)
    return images_of(found, (x.shape[0], *x.shape[2:]))


class StepDropout(nn.Module):
    """Dropout by the key of the step, which whoever trains sets; the identity in eval mode.

    layer: its number in the network. step_key (R,): one key for each run whose rows lie in the batch one after the
    other. rows: which rows of the step's whole batch the input holds, where it holds but some of them; None: all.
    """

    step_key: Tensor

    def __init__(self, rate: float, *, layer: int) -> None:
        super().__init__()
        self.own_rate = self.rate = rate
        self.layer = layer
        self.rows: Tensor | None = None
        self.register_buffer(STEP_KEY, torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        drops = self.training and self.rate
        return dropped(x, self.step_key, self.layer, self.rate, self.rows) if drops else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}, layer={self.layer}"


class DroppedDenseLayer(nn.Module):
    """timm's DenseLayer, its parts under their names, with `StepDropout` behind it."""

    def __init__(self, layer: Any, drop: StepDropout) -> None:
        super().__init__()
        self.norm1, self.conv1, self.norm2, self.conv2 = layer.norm1, layer.conv1, layer.norm2, layer.conv2
        self.drop = drop

    def forward(self, x: Tensor | list[Tensor]) -> Tensor:
        features = x if isinstance(x, Tensor) else torch.cat(x, 1)
        new: Tensor = self.drop(self.conv2(self.norm2(self.conv1(self.norm1(features)))))
        return new


def drop_in_dense_layers(model: nn.Module, rate: float) -> int:
    """Put dropout behind every dense layer of a DenseNet of timm's, in place; how many there are."""
    layer = 0
    for block in list(model.modules()):
        if isinstance(block, nn.ModuleDict) and type(block).__name__ == "DenseBlock":
            for name, dense in list(block.items()):
                block[name] = DroppedDenseLayer(dense, StepDropout(rate, layer=layer))
                layer += 1
    return layer


def require_rate(rate: float, option: str) -> None:
    """ValueError where that share cannot be dropped."""
    if not 0 <= rate < 1:
        raise ValueError(f"{option} must lie in [0, 1), not {rate}.")


def step_dropouts(model: nn.Module) -> list[StepDropout]:
    """All of a network, in order."""
    return [module for module in model.modules() if isinstance(module, StepDropout)]


def set_rate(model: nn.Module, rate: float | None) -> None:
    """The rate of every dropout layer; None: the one that it was built with."""
    for dropout in step_dropouts(model):
        dropout.rate = dropout.own_rate if rate is None else rate


def set_step(dropouts: Sequence[StepDropout], key: int) -> None:
    """The key of the next step, for every layer."""
    for dropout in dropouts:
        dropout.step_key.fill_(key)


def set_rows(model: nn.Module, rows: Tensor | None) -> None:
    """Which rows of the step's batch the network sees next; None: all of them."""
    for dropout in step_dropouts(model):
        dropout.rows = rows
