"""A DenseNet's block of several runs in one buffer: layers append their channels to it, none is ever copied.

x_0 given; x_i+1 = [x_i, conv2(act(norm2(conv1(act(norm1(x_i))))))] (Huang et al. 2017, DenseNet-BC). Concatenation
would copy all channels once a layer, and its backward pass add them up once a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepauc.kernels.stacked import rows as stacked_rows
from deepauc.kernels.stacked.conv import Taps, gathered, precise_product, spread
from deepauc.kernels.stacked.norm import Norm, norm_act_gradients, norm_act_rows
from deepauc.kernels.stacked.rows import images_of, rows_of

KEPT = 7  # tensors of a layer that its backward pass needs


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Dropout behind a layer: keys (R,) of the step, the layer's number, the rate; see `dropout`."""

    keys: Tensor
    layer: int
    rate: float

    def inside(self, rows: Tensor) -> None:
        """In place, on rows (R, pixels, K)."""
        from deepauc.kernels.dropout_kernel import drop_rows

        drop_rows(rows, rows, self.keys, self.layer, self.rate)


@dataclass(frozen=True, kw_only=True)
class DenseLayer:
    """Weights conv1 (R, M, C, 1, 1) and conv2 (R, K, M, k, k), in half precision too."""

    norm1: Norm
    conv1: Tensor
    half1: Tensor
    norm2: Norm
    conv2: Tensor
    half2: Tensor
    drop: Drop | None = None

    def leaves(self) -> tuple[Tensor, ...]:
        return self.norm1.weight, self.norm1.bias, self.conv1, self.norm2.weight, self.norm2.bias, self.conv2

    def matrices(self) -> tuple[Tensor, Tensor]:
        """conv1 (R, M, C) and conv2 (R, K k k, M) in half precision."""
        runs, middle = self.half1.shape[:2]
        return self.half1.reshape(runs, middle, -1), self.half2.permute(0, 1, 3, 4, 2).reshape(runs, -1, middle)


def dense_block(x: Tensor, layers: Sequence[DenseLayer], taps: Taps) -> Tensor:
    """x (R * B, C, H, W) -> (R * B, C + layers K, H, W), on the kernels; taps: conv2's, which keep the size."""
    runs = layers[0].conv1.shape[0]
    n, _, h, w = x.shape
    leaves = [leaf for layer in layers for leaf in layer.leaves()]
    rows = _DenseBlock.apply(rows_of(x.to(stacked_rows.HALF), runs), (n, h, w), taps, layers, *leaves)
    return images_of(rows, (n, h, w))


class _DenseBlock(torch.autograd.Function):
    """The whole block, because a layer writes where autograd would have to see a new tensor."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, ctx.shape, ctx.taps, ctx.layers = inputs[:4]
        runs, pixels, ctx.first = x.shape
        growth = ctx.layers[0].conv2.shape[1]
        block = x.new_empty(runs, pixels, ctx.first + growth * len(ctx.layers))
        block[:, :, : ctx.first].copy_(x)
        kept = []
        for number, layer in enumerate(ctx.layers):
            c = ctx.first + number * growth
            conv1, conv2 = layer.matrices()
            a1, *moments1 = norm_act_rows(block[:, :, :c], layer.norm1)
            middle = torch.bmm(a1, conv1.mT)
            a2, *moments2 = norm_act_rows(middle, layer.norm2)
            to = block[:, :, c : c + growth]
            gathered(torch.bmm(a2, conv2.mT), ctx.shape, ctx.taps, inverse=False, to=to)
            if layer.drop is not None:
                layer.drop.inside(to)
            kept += [a1, *moments1, middle, a2, *moments2]
        ctx.save_for_backward(block, *kept)
        return block

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        block, *kept = ctx.saved_tensors
        total = gradients[0].clone(memory_format=torch.contiguous_format)  # each layer adds to what lies before it
        found: list[Tensor] = []
        end = block.shape[2]
        for number, layer in reversed(list(enumerate(ctx.layers))):
            a1, mean1, rstd1, middle, a2, mean2, rstd2 = kept[KEPT * number : KEPT * (number + 1)]
            conv1, conv2 = layer.matrices()
            c = end - layer.conv2.shape[1]
            if layer.drop is not None:
                layer.drop.inside(total[:, :, c:end])  # nobody reads it without
            columns = spread(total[:, :, c:end], ctx.shape, ctx.taps, inverse=True)
            own2 = precise_product(columns, a2)
            dmiddle, dweight2, dbias2 = norm_act_gradients(torch.bmm(columns, conv2), middle, layer.norm2, mean2, rstd2)
            own1 = precise_product(dmiddle, a1)
            dbefore, before = torch.bmm(dmiddle, conv1), block[:, :, :c]
            _, dweight1, dbias1 = norm_act_gradients(dbefore, before, layer.norm1, mean1, rstd1, onto=total[:, :, :c])
            runs, out, inner, high, wide = layer.conv2.shape
            own2 = own2.reshape(runs, out, high, wide, inner).permute(0, 1, 4, 2, 3)
            found = [dweight1, dbias1, own1.reshape(layer.conv1.shape), dweight2, dbias2, own2, *found]
            end = c
        return total[:, :, : ctx.first], None, None, None, *found
