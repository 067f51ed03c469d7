"""PESG on a CUDA device against PESG on the CPU, before any of its times are believed.

Tensors of odd sizes, channels_last, off the 16-byte grid, bf16; with and without gamma, weight decay, momentum and
clipping; then CUDA graphs: replays read the present values of the captured gradients and of the learning rate, eager
steps on gradients at other addresses may come in between, and so may a second capture and a second step in one graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deepauc.objectives.auc_margin import AUCMarginLoss
from deepauc.optim.pesg import PESG

Check = dict[str, Any]
DEVICE = "cuda"
SHAPES = ((3, 5), (1,), (4097,), (8192,), (64, 32, 3, 3), (7, 3, 2, 2), (33, 1, 1, 1), (1000, 131))
CHANNELS_LAST, OFF_THE_GRID = 4, 2  # positions in SHAPES
TOLERANCE = 1e-5  # of 1 + |value|: a few rounding errors of float32
STEPS = 3


class Pair:
    """The same parameters and objective on both devices, and one optimizer each."""

    def __init__(
        self,
        *,
        dtype: torch.dtype = torch.float32,
        aligned: bool = True,
        lr_on_device: bool = False,
        gamma: float = 0.05,
        weight_decay: float = 1e-2,
        momentum: float = 0.9,
        clip_value: float | None = 0.5,
    ) -> None:
        self.generator = torch.Generator().manual_seed(0)
        cpu = [nn.Parameter(torch.randn(shape, generator=self.generator).to(dtype)) for shape in SHAPES]
        cpu[CHANNELS_LAST].data = cpu[CHANNELS_LAST].data.contiguous(memory_format=torch.channels_last)
        device = [nn.Parameter(p.detach().to(DEVICE, copy=True)) for p in cpu]
        if not aligned:
            device[OFF_THE_GRID].data = _off_the_grid(device[OFF_THE_GRID].data)
        objectives = AUCMarginLoss(prior=0.1), AUCMarginLoss(prior=0.1).to(DEVICE)
        rates = (torch.tensor(0.1), torch.tensor(0.1, device=DEVICE)) if lr_on_device else (0.1, 0.1)
        self.ours, self.theirs = (
            PESG(
                parameters,
                objective,
                lr=rate,
                gamma=gamma,
                weight_decay=weight_decay,
                momentum=momentum,
                clip_value=clip_value,
            )
            for parameters, objective, rate in zip((cpu, device), objectives, rates, strict=True)
        )
        self.cpu = [*cpu, *objectives[0].parameters()]
        self.device = [*device, *objectives[1].parameters()]

    def new_gradients(self) -> list[Tensor]:
        """Fresh tensors on both devices, with the parameters' layout; returns the device's."""
        for mine, theirs in zip(self.cpu, self.device, strict=True):
            mine.grad = torch.empty_like(mine).copy_(torch.randn(mine.shape, generator=self.generator))
            theirs.grad = torch.empty_like(theirs).copy_(mine.grad)
        return [p.grad for p in self.device if p.grad is not None]

    def new_values(self, gradients: Sequence[Tensor]) -> None:
        """Fresh values for these tensors on the device, the same for the CPU side."""
        for mine, gradient in zip(self.cpu, gradients, strict=True):
            mine.grad = torch.empty_like(mine).copy_(torch.randn(mine.shape, generator=self.generator))
            gradient.copy_(mine.grad)

    def step(self) -> None:
        self.ours.step()
        self.theirs.step()

    def require_equal(self, what: str) -> None:
        """Values, references, drifts and momenta of both sides."""
        for number, (mine, theirs) in enumerate(zip(self.cpu, self.device, strict=True)):
            half = mine.dtype == torch.bfloat16
            _require_close(mine.detach(), theirs.detach(), f"{what}: parameter {number}", half=half)
            for name, state in self.ours.state.get(mine, {}).items():
                found = self.theirs.state[theirs][name]
                _require_close(state, found, f"{what}: {name} of parameter {number}", half=half)


def check_kernel() -> list[Check]:
    """What was checked, and whether it holds."""
    checks: dict[str, Callable[[], None]] = {
        f"kernel = CPU update within {TOLERANCE:g}, float32": lambda: _check_steps(torch.float32),
        "kernel = CPU update, bf16 parameters (1 % may differ in the last bit)": lambda: _check_steps(torch.bfloat16),
        "replays see changed gradients and learning rate, eager steps in between": _check_replays,
        "two graphs captured one after the other keep their own gradients": _check_two_graphs,
        "two steps in one graph, each on its own gradients": _check_two_steps,
    }
    return [_outcome(what, check) for what, check in checks.items()]


def _outcome(what: str, check: Callable[[], None]) -> Check:
    try:
        check()
    except Exception as error:  # one that fails must not hide the others
        return {"what": f"{what}: {type(error).__name__}: {error}", "holds": False}
    return {"what": what, "holds": True}


def _check_steps(dtype: torch.dtype) -> None:
    cases = itertools.product((True, False), (0.0, 0.05), (0.0, 1e-2), (0.0, 0.9), (None, 0.5))
    for aligned, gamma, weight_decay, momentum, clip_value in cases:
        options = {"gamma": gamma, "weight_decay": weight_decay, "momentum": momentum, "clip_value": clip_value}
        pair = Pair(dtype=dtype, aligned=aligned, **options)
        for _ in range(STEPS):
            pair.new_gradients()
            pair.step()
        kernels = 1 if dtype == torch.float32 else 2  # a and b are float32
        if DEVICE == "cuda" and len(pair.theirs._fused._tables) != kernels:
            raise RuntimeError("the kernel was not used: is Triton there?")
        pair.require_equal(f"aligned {aligned}, {options}")


def _check_replays() -> None:
    pair = Pair(lr_on_device=True)
    gradients = _warmed_up(pair)
    with _captured(pair.theirs.step) as graph:
        pass
    pair.require_equal("capture itself changes nothing")
    for number in range(4):
        pair.new_values(gradients)
        graph.replay()
        pair.ours.step()
        pair.require_equal(f"replay {number}")
        if number == 1:
            pair.ours.new_stage(lr_factor=0.5)
            pair.theirs.new_stage(lr_factor=0.5)
        pair.new_gradients()
        pair.step()
        pair.require_equal(f"eager step after replay {number}")


def _check_two_graphs() -> None:
    pair = Pair()
    first = _warmed_up(pair)
    with _captured(pair.theirs.step) as one:
        second = pair.new_gradients()
    with _captured(pair.theirs.step) as other:
        pass
    for gradients, graph, name in ((first, one, "first"), (second, other, "second"), (first, one, "first again")):
        pair.new_values(gradients)
        graph.replay()
        pair.ours.step()
        pair.require_equal(f"{name} graph")


def _check_two_steps() -> None:
    pair = Pair()
    first = _warmed_up(pair)
    second = [torch.empty_like(gradient) for gradient in first]

    def steps() -> None:
        for gradients in (first, second):
            for parameter, gradient in zip(pair.device, gradients, strict=True):
                parameter.grad = gradient
            pair.theirs.step()

    with _captured(steps) as graph:
        pass
    for gradients in (first, second):
        pair.new_values(gradients)
        pair.ours.step()
    graph.replay()
    pair.require_equal("both steps")


def _warmed_up(pair: Pair) -> list[Tensor]:
    """One eager step on a stream of its own, as before every capture; returns the device's gradients."""
    gradients = pair.new_gradients()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        pair.theirs.step()
    torch.cuda.current_stream().wait_stream(stream)
    pair.ours.step()
    pair.require_equal("eager step before the capture")
    return gradients


@contextmanager
def _captured(work: Callable[[], None]) -> Iterator[torch.cuda.CUDAGraph]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    torch.cuda.synchronize()
    yield graph


def _off_the_grid(tensor: Tensor) -> Tensor:
    """The same values at an address that 16 does not divide."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return room[1:].view(tensor.shape).copy_(tensor)


def _require_close(mine: Tensor, theirs: Tensor, what: str, *, half: bool) -> None:
    """half: a rounding error of float32 can tip the rounding to bf16 by a unit in the last place, in few places."""
    theirs = theirs.cpu()
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        raise RuntimeError(f"{what}: {theirs.dtype} {tuple(theirs.shape)} instead of {mine.dtype} {tuple(mine.shape)}")
    error = (mine.double() - theirs.double()).abs() / (1 + mine.double().abs())
    allowed = STEPS * 2**-7 if half else TOLERANCE
    share_allowed = 1e-2 if half and mine.numel() > 100 else 1.0
    if not bool((error <= allowed).all()) or float((error > TOLERANCE).double().mean()) > share_allowed:
        raise RuntimeError(f"{what}: off by {float(error.max()):.2g}")
