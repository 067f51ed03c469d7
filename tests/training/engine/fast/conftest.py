"""A CUDA device without one: shapes, types and devices are computed, values are not (torch's fake tensors).

The engine's own code for a GPU runs here, with every branch that asks for the kind of device, and its launches of
Triton's kernels, whose arguments are compared with their signatures. What a graph cannot hold raises `NotInAGraph`, or
torch's own error for fake tensors where a shape follows from values. Numbers are not looked at: other tests do.
"""

from collections import defaultdict
from contextlib import contextmanager, nullcontext
from inspect import signature
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
LAUNCH_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "grid", "warmup"}


class NotInAGraph(AssertionError):
    """Something that cannot be captured."""


class _Watch(TorchDispatchMode):
    """While a graph is captured, refuses what waits for the device: values read, copies between it and the host.

    Copies from pinned memory that nobody waits for are part of a graph. Otherwise a value that is read is 0.
    """

    def __init__(self):
        super().__init__()
        self.capturing = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func._schema.name, kwargs or {}
        if name == "aten::_local_scalar_dense" and args[0].is_cuda:
            if self.capturing:
                raise NotInAGraph("a value is read on the host")
            return False if args[0].dtype == torch.bool else 0
        found = func(*args, **kwargs)
        if self.capturing and name in ("aten::copy_", "aten::_to_copy"):
            source, target = (args[1], args[0]) if name == "aten::copy_" else (args[0], found)
            waits = not (kwargs.get("non_blocking") or args[2:3] == (True,))
            if source.device.type != target.device.type and (waits or not getattr(source, "pinned", False)):
                raise NotInAGraph(f"{name} from {source.device.type} to {target.device.type}")
        return found


def backward(loss, wanted=None):
    """`torch.autograd`'s own backward pass, whose engine asks for a real device: its nodes, called one after the other.

    Gradients go to the leaves, or of these tensors come back.
    """
    order, seen = [], set()

    def visit(node):
        stack = [(node, False)]
        while stack:
            current, done = stack.pop()
            if done:
                order.append(current)
            elif current not in seen:
                seen.add(current)
                stack.append((current, True))
                stack += [(other, False) for other, _ in current.next_functions if other is not None]

    visit(loss.grad_fn)
    given = defaultdict(dict)
    given[loss.grad_fn][loss.output_nr] = torch.ones_like(loss)
    leaves = {}
    with torch.no_grad():
        for node in reversed(order):
            inputs = [given[node].get(n) for n in range(max(given[node], default=0) + 1)]
            if not given[node]:
                continue
            if node.name() == "torch::autograd::AccumulateGrad":
                alike = inputs[0].stride() == node.variable.stride()  # the layout of .grad is the parameter's
                leaves[node.variable] = inputs[0] if alike else torch.empty_like(node.variable).copy_(inputs[0])
                continue
            count = len(node._input_metadata)
            inputs += [None] * (count - len(inputs))
            made = (node.apply if hasattr(node, "apply") else node)(*inputs)
            made = list(made) if isinstance(made, tuple) else [made]
            edges = list(node.next_functions)
            if len(made) != len(edges):  # a Function of Python's says None for what is no tensor
                made, edges = [g for g in made if g is not None], [edge for edge in edges if edge[0] is not None]
            for (other, number), gradient in zip(edges, made, strict=True):
                if other is not None and gradient is not None:
                    wants, before = other._input_metadata[number], given[other].get(number)
                    fitting = gradient.sum_to_size(wants.shape).to(wants.dtype)
                    given[other][number] = fitting if before is None else before + fitting
    if wanted is not None:
        return tuple(leaves.get(tensor) for tensor in wanted)
    for leaf, gradient in leaves.items():
        leaf.grad = gradient
    return ()


@pytest.fixture
def fake_gpu(monkeypatch):
    """`with fake_gpu() as launched:` happens on `DEVICE`, which is not there; the names of Triton's kernels in turn."""
    return lambda: _fake_gpu(monkeypatch)


@contextmanager
def _fake_gpu(monkeypatch):
    triton = pytest.importorskip("triton")
    launched, watch = [], _Watch()

    @contextmanager
    def graph(*_, **__):
        watch.capturing = True
        yield
        watch.capturing = False

    def run(kernel, *args, **kwargs):
        own = {name: value for name, value in kwargs.items() if name not in LAUNCH_OPTIONS}
        signature(kernel.fn).bind(*args, **own)
        for given in (*args, *own.values()):
            if isinstance(given, torch.Tensor) and not given.is_cuda:
                raise NotInAGraph(f"{kernel.fn.__name__} was given a tensor of the host's")
        launched.append(kernel.fn.__name__)

    def pinned(tensor):
        if watch.capturing:
            raise NotInAGraph("pinned memory is made")
        tensor.pinned = True
        return tensor

    def unbound(tensor, dim=0):
        pieces = torch.ops.aten.unbind.int(tensor, dim)
        for piece in pieces:
            piece.pinned = getattr(tensor, "pinned", False)
        return pieces

    def to(module, device=None, *, memory_format=torch.preserve_format):
        """Whole tensors in place of the old: torch's own way of changing fake ones in place does not work."""
        for one in module.modules():
            for tensors in (one._parameters, one._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        form = memory_format if tensor.ndim == 4 else torch.preserve_format
                        moved = tensor.detach().to(device or tensor.device, memory_format=form)
                        own = isinstance(tensor, torch.nn.Parameter)
                        tensors[name] = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad) if own else moved
        return module

    stream = SimpleNamespace(wait_stream=lambda _: None)
    for name, made in {
        "Stream": lambda *_: stream,
        "current_stream": lambda *_: stream,
        "stream": lambda _: nullcontext(),
        "device": lambda _: nullcontext(),
        "graph": graph,
        "CUDAGraph": SimpleNamespace,
        "is_current_stream_capturing": lambda: watch.capturing,
        "is_bf16_supported": lambda *_: True,
        "get_rng_state": lambda *_: 0,
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (1 << 37, 1 << 37),
    }.items():
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch, "equal", lambda one, other: one == other)  # the states of a generator that nobody asks
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda tensor: 256 * id(tensor), raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(FakeTensor, "unbind", unbound, raising=False)
    monkeypatch.setattr(torch.nn.Module, "to", to)
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, **__: None)  # which fake tensors do not know
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(triton.runtime.JITFunction, "run", run)
    monkeypatch.setattr(torch.autograd, "backward", backward)
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, wanted, **_: backward(loss, wanted))
    with FakeTensorMode(allow_non_fake_inputs=True), watch:
        yield launched
