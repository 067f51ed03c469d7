"""A PESG step on a CUDA device as one Triton kernel over all parameters.

Words moved per parameter: reads v, g, v_ref, drift, writes v, drift: 6; with momentum 8; with gamma = 0: 3 (5).
The kernel finds its tensors through a table of addresses on the device. Gradients get new addresses now and then,
so the table is compared on the host and sent again when they do. During graph capture it is sent from pinned memory
that stays as it is, so every replay reads the addresses of the captured gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deepauc.kernels.pesg_update import Primal, Rates, same_dense_layout

BLOCK = 1024  # by measurement on an H200: pesg-launch in results/speed.jsonl
CAPTURED_STEPS = 32
COLUMNS = 5  # addresses of value, gradient, reference, drift, momentum


class FusedUpdate:
    """The address tables of one optimizer. Not part of its state: rebuilt after a copy or a load."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, ...], _Table] = {}

    def takes(self, primal: Sequence[Primal]) -> bool:
        """Whether the kernel can do these: dense CUDA parameters of one type on one device, all with a gradient."""
        first = primal[0].value
        if not first.is_cuda or not _triton_works():
            return False
        if first.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return False
        return all(
            p.gradient is not None
            and p.value.dtype == p.gradient.dtype == first.dtype
            and p.value.device == first.device
            and same_dense_layout(p.value, p.gradient)
            for p in primal
        )

    def update(self, primal: Sequence[Primal], rates: Rates) -> None:
        """The same step as `pesg_update.update`, in one kernel."""
        key = tuple(p.value.data_ptr() for p in primal)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table(primal)
        table.send_addresses(primal)
        lr = rates.lr
        on_device = isinstance(lr, Tensor) and lr.device == primal[0].value.device
        with torch.cuda.device(primal[0].value.device):  # Triton launches on the current one
            _kernel()[(table.blocks.shape[0],)](
                table.addresses,
                table.blocks,
                table.sizes,
                lr if on_device else float(lr),
                rates.gamma,
                rates.weight_decay,
                rates.momentum,
                float(rates.clip_value or 0),
                len(primal),
                LR_ON_DEVICE=on_device,
                PROXIMAL=bool(rates.gamma),
                MOMENTUM=bool(rates.momentum),
                CLIP=rates.clip_value is not None,
                DTYPE=_triton_type(primal[0].value.dtype),
                ALIGNED=table.aligned,
                BLOCK=BLOCK,
                num_warps=8,
            )


class _Table:
    def __init__(self, primal: Sequence[Primal]) -> None:
        device = primal[0].value.device
        sizes = [p.value.numel() for p in primal]
        blocks = [(i, start) for i, size in enumerate(sizes) for start in range(0, size, BLOCK)]
        self.blocks = torch.tensor(blocks, dtype=torch.int64).reshape(-1, 2).to(device)
        self.sizes = torch.tensor(sizes, dtype=torch.int64).to(device)
        self.addresses = torch.zeros(COLUMNS * len(primal), dtype=torch.int64, device=device)
        self.aligned = False
        self._sent: list[int] = []
        self._free: list[Tensor] = []  # pinned rows, one for each captured step; none can be made during capture
        self._captured: list[tuple[Tensor, Tensor]] = []

    def send_addresses(self, primal: Sequence[Primal]) -> None:
        wanted = [
            0 if tensor is None else tensor.data_ptr()
            for column in range(COLUMNS)
            for tensor in (p[column] for p in primal)
        ]
        if torch.cuda.is_current_stream_capturing():
            if not self._free:
                raise RuntimeError(
                    "PESG: no room left for another captured step. Run one step eagerly between captures; one capture "
                    f"may hold {CAPTURED_STEPS} steps."
                )
            # The graph copies from this pinned memory at every replay: it belongs to the graph from here on.
            pinned, there = self._free.pop(), torch.empty_like(self.addresses)
            pinned.copy_(torch.tensor(wanted, dtype=torch.int64))
            there.copy_(pinned, non_blocking=True)
            self._captured.append((pinned, there))
            self.addresses, self._sent = there, []
        elif wanted != self._sent or len(self._free) < CAPTURED_STEPS:
            missing = CAPTURED_STEPS - len(self._free)
            self._free += torch.empty(missing, len(wanted), dtype=torch.int64).pin_memory().unbind(0)
            self.addresses = torch.tensor(wanted, dtype=torch.int64).to(self.addresses.device)
            self._sent = wanted
        self.aligned = all(address % 16 == 0 for address in wanted)


@cache
def _triton_works() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.version.hip is None


def _triton_type(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


@cache
def _kernel() -> Any:
    from deepauc.kernels.pesg_kernel import pesg_kernel

    return pesg_kernel
