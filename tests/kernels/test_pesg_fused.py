"""The address tables of the one-kernel step, followed on the CPU: what a graph has captured is never overwritten."""

from contextlib import nullcontext

import pytest
import torch

from deepauc.kernels import pesg_fused
from deepauc.kernels.pesg_fused import FusedUpdate, _Table
from deepauc.kernels.pesg_update import Primal, Rates, same_dense_layout


def primal(seed):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(n, generator=generator) for n in (3, 5000)]
    return [Primal(v, torch.zeros_like(v), torch.zeros_like(v), torch.zeros_like(v), None) for v in values]


@pytest.fixture
def pinned(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


def expected(items):
    return [0 if t is None else t.data_ptr() for column in range(5) for t in (p[column] for p in items)]


def test_each_captured_step_has_a_table_of_its_own(pinned, monkeypatch):
    first = primal(0)
    table = _Table(first)
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    table.send_addresses(first)
    assert table.addresses.tolist() == expected(first)
    captured = []
    capturing[0] = True
    for _ in range(3):  # three steps in one graph, or three graphs, each with gradients of its own
        items = [p._replace(gradient=torch.ones_like(p.value)) for p in first]
        table.send_addresses(items)
        captured.append((table.addresses, items))
    capturing[0] = False
    table.send_addresses(first)
    assert table.addresses.tolist() == expected(first)
    for addresses, items in captured:
        assert addresses.tolist() == expected(items)
    sources = [source.data_ptr() for source, _ in table._captured]
    assert len(set(sources)) == 3
    assert [source.tolist() for source, _ in table._captured] == [expected(items) for _, items in captured]


def test_no_more_captured_steps_than_there_is_room_for(pinned, monkeypatch):
    items = primal(0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    table = _Table(items)
    table.send_addresses(items)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(pesg_fused.CAPTURED_STEPS):
        table.send_addresses(items)
    with pytest.raises(RuntimeError, match="eagerly between captures"):
        table.send_addresses(items)


def test_the_kernel_is_told_whether_and_where_to_clip(pinned, monkeypatch):
    told = []
    kernel = {(n,): lambda *given, **options: told.append((given[7], options["CLIP"])) for n in range(100)}
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(pesg_fused, "_kernel", lambda: kernel)
    monkeypatch.setattr(pesg_fused, "_triton_type", str)
    for clip_value in (None, 2):
        FusedUpdate().update(primal(0), Rates(0.1, 0.0, 0.0, 0.0, clip_value))
    assert told == [(0.0, False), (2.0, True)]


def test_blocks_cover_every_element_once():
    items = primal(0)
    table = _Table(items)
    covered = [set() for _ in items]
    for tensor, start in table.blocks.tolist():
        covered[tensor] |= set(range(start, min(start + pesg_fused.BLOCK, items[tensor].value.numel())))
    assert [len(c) for c in covered] == [3, 5000]


def test_the_kernel_is_for_cuda_only_and_layouts_must_agree():
    assert not FusedUpdate().takes(primal(0))
    x = torch.zeros(2, 3, 4, 4)
    assert same_dense_layout(x, torch.zeros_like(x))
    last = x.contiguous(memory_format=torch.channels_last)
    assert same_dense_layout(last, last.clone())
    assert not same_dense_layout(last, x)
    assert not same_dense_layout(x[:, :, :, ::2], x[:, :, :, ::2])
    pointwise = torch.zeros(2, 3, 1, 1)
    assert same_dense_layout(pointwise, pointwise.contiguous(memory_format=torch.channels_last))


def test_the_kernel_goes_to_the_device_of_the_parameters(pinned, monkeypatch):
    """Triton launches on the current device, which may be another one."""
    current = [None]

    class OnDevice:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            current[0] = self.device

        def __exit__(self, *problem):
            current[0] = None

    launched = []
    kernel = {(n,): lambda *_, **__: launched.append(current[0]) for n in range(100)}
    monkeypatch.setattr(torch.cuda, "device", OnDevice)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(pesg_fused, "_kernel", lambda: kernel)
    monkeypatch.setattr(pesg_fused, "_triton_type", str)
    items = primal(0)
    FusedUpdate().update(items, Rates(lr=0.1, gamma=0.0, weight_decay=0.0, momentum=0.0))
    assert launched == [items[0].value.device]
