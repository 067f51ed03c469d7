"""The convolution and normalisation kernels against torch's, in Triton's interpreter; what they replace."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from deepauc.kernels import conv_norm, cuda_source, small_conv
from deepauc.kernels.conv_norm import conv_norm_act
from deepauc.kernels.norm_gradient import norm_gradients
from deepauc.kernels.small_conv import SmallConv2d, small_conv_norm_gradient, suits, use_small_convs
from deepauc.kernels.small_conv_launch import has_room, launch_tag
from deepauc.models.resnet20 import ResNet20Spec

SMALL_TILES = """
import dataclasses
import torch
import deepauc.kernels.small_conv as small
from deepauc.kernels import conv_norm
from deepauc.kernels import norm_gradient

for table in (small.CONV, small.STRIDED, small.GRADIENT):
    for channels, launch in table.items():
        tiles = 1 if launch.form == "taps" else 2
        table[channels] = dataclasses.replace(launch, block=16, tiles=tiles, ahead=channels != 32)
norm_gradient.TILE, norm_gradient.PROGRAMS = 256, 5
small.MOST_AT_ONCE = 4  # several turns
last = torch.channels_last
close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)

SHAPES = [(2, 16, 32, 9, 7, 1), (3, 32, 16, 8, 8, 1), (2, 64, 64, 7, 6, 1), (2, 3, 16, 9, 8, 1), (2, 1, 16, 7, 7, 1),
          (2, 16, 32, 8, 8, 2), (2, 32, 64, 7, 9, 2), (1, 64, 32, 6, 6, 2)]
"""
CONVOLUTIONS = """
for n, c, k, h, w, stride in SHAPES:
    torch.manual_seed(c)
    x = torch.randn(n, c, h, w).contiguous(memory_format=last).requires_grad_()
    weight = torch.randn(k, c, 3, 3)
    weight = (weight.contiguous(memory_format=last) if c == 32 else weight).requires_grad_()
    mine = small.small_conv(x, weight, stride)
    theirs = torch.nn.functional.conv2d(x, weight, padding=1, stride=stride)
    close(mine, theirs)
    dy = torch.randn_like(theirs)
    for a, b in zip(torch.autograd.grad(mine, (x, weight), dy), torch.autograd.grad(theirs, (x, weight), dy)):
        close(a, b)
print("equal")
"""
NORMALISATION = """
for n, c, k, h, w, stride in SHAPES:
    torch.manual_seed(c)
    x = (torch.randn(n, c, h, w) + 0.5).contiguous(memory_format=last)
    conv = small.SmallConv2d(c, k, 3, padding=1, stride=stride, bias=False)
    for act in (torch.nn.ELU(), torch.nn.ReLU()):
        for with_shortcut in (False, True):
            norm = torch.nn.BatchNorm2d(k)
            torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
            torch.nn.init.normal_(norm.bias)
            size = torch.nn.functional.conv2d(x, conv.weight, padding=1, stride=stride).shape
            shortcut = torch.randn(size).contiguous(memory_format=last).requires_grad_() if with_shortcut else None
            wanted = [conv.weight, norm.weight, norm.bias] + ([shortcut] if with_shortcut else [])
            dout = torch.randn(size)
            found = []
            for mine in (True, False):
                norm.reset_running_stats()
                small.SmallConv2d.takes = lambda self, x, mine=mine: mine
                conv_norm.torch.bfloat16 = torch.float32 if mine else torch.bfloat16
                out = conv_norm.conv_norm_act(conv, norm, act, x, shortcut)
                found.append([out, *torch.autograd.grad(out, wanted, dout), norm.running_mean.clone(),
                              norm.running_var.clone()])
            for a, b in zip(*found, strict=True):
                close(a, b)
print("equal")
"""

DELAYED = """
from deepauc.models.resnet20 import BasicBlock

taken = []
kernel = conv_norm.small_conv_norm_gradient
conv_norm.small_conv_norm_gradient = lambda *given: taken.append(given) or kernel(*given)
for activation, h, w in (("elu", 8, 8), ("relu", 7, 5)):
    torch.manual_seed(h)
    stem = small.SmallConv2d(3, 16, 3, padding=1, bias=False)
    norm = torch.nn.BatchNorm2d(16)
    blocks = torch.nn.Sequential(*(BasicBlock(i, o, stride=s, activation=activation)
                                   for i, o, s in ((16, 16, 1), (16, 32, 2), (32, 64, 2))))
    small.use_small_convs(blocks)
    for m in blocks.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(m.weight, 0.5, 2.0)
            torch.nn.init.normal_(m.bias)
    everything = torch.nn.ModuleList([stem, norm, blocks])
    wanted = list(everything.parameters())
    x = (torch.randn(3, 3, h, w) + 0.5).contiguous(memory_format=last)
    weight = torch.randn(64, -(-h // 4), -(-w // 4))
    found = []
    for mine, delayed in ((True, True), (True, False), (False, False)):
        for m in everything.modules():
            if isinstance(m, torch.nn.BatchNorm2d):
                m.reset_running_stats()
        small.SmallConv2d.takes = lambda self, x, mine=mine: mine
        conv_norm.torch.bfloat16 = torch.float32 if mine else torch.bfloat16
        conv_norm.SUMS_IN_CONV = delayed
        act = blocks[0].act1
        out = conv_norm.activated(blocks(conv_norm.conv_norm(stem, norm, act, x)))
        found.append([out, *torch.autograd.grad((out * weight).sum(), wanted)] +
                     [b.clone() for b in everything.buffers() if b.dtype == torch.float32])
        assert len(taken) == (6 if delayed else 0), len(taken)
        taken.clear()
    for one, other in ((0, 2), (1, 2)):
        for a, b in zip(found[one], found[other], strict=True):
            assert float((a - b).norm()) <= 2e-5 * float(b.norm()), (one, a.shape, a, b)
print("equal")
"""


@pytest.mark.parametrize(
    "check", [CONVOLUTIONS, NORMALISATION, DELAYED], ids=["convolutions", "normalisation", "delayed"]
)
def test_kernels_equal_torch(check, interpreted):
    interpreted(SMALL_TILES + check)


def test_only_fitting_convolutions_are_replaced_and_nothing_changes_on_a_cpu():
    model = ResNet20Spec().build(in_channels=3, num_outputs=1).eval()
    x = torch.randn(2, 3, 32, 32)
    before = model(x)
    assert use_small_convs(model) == 19
    assert torch.equal(model(x), before)
    kept = nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1, bias=False), nn.Conv2d(16, 24, 3, padding=1, bias=False),
        nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False), nn.Conv2d(16, 16, 3, padding=1, stride=3, bias=False),
        nn.Conv2d(4, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=2, dilation=2, bias=False),
    )  # fmt: skip
    assert use_small_convs(kept) == 0
    assert not any(isinstance(m, SmallConv2d) for m in kept)


@pytest.mark.parametrize(
    ("input_type", "autocast", "taken"),
    [
        (torch.bfloat16, None, True),
        (torch.float32, None, False),
        (torch.float32, torch.bfloat16, True),
        (torch.float32, torch.float16, False),
        (torch.bfloat16, torch.float16, False),
    ],
)
def test_the_kernels_take_what_is_done_in_bfloat16(monkeypatch, input_type, autocast, taken):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: autocast is not None)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: autocast)
    conv = SmallConv2d(3, 16, 3, padding=1, bias=False)

    def takes(*shape):
        return conv.takes(SimpleNamespace(is_cuda=True, dtype=input_type, shape=shape, ndim=len(shape)))

    assert takes(128, 3, 32, 32) == taken
    assert not takes(3, 32, 32)  # an image that is no batch
    assert takes(32, 3, 1024, 1024) == taken
    assert not takes(33, 3, 1024, 1024)  # more than 2**29 numbers come out


def test_devices_the_kernels_are_not_made_for(monkeypatch):
    capability = (7, 5)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert suits(torch.device("cpu"))
    assert not suits(torch.device("cuda", 0))
    capability = (9, 4)
    assert suits(torch.device("cuda", 0))
    with monkeypatch.context() as windows:
        windows.setattr(small_conv, "has_triton", lambda: False)
        assert not suits(torch.device("cuda", 0))
    monkeypatch.setattr(torch.version, "hip", "7.2")
    assert not suits(torch.device("cuda", 0))


@pytest.mark.parametrize(("shared", "room"), [(232_448, True), (101_376, False), (None, False)])
def test_loads_ahead_only_where_shared_memory_is_enough(monkeypatch, shared, room):
    found = SimpleNamespace() if shared is None else SimpleNamespace(shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    has_room.cache_clear()
    assert has_room(torch.device("cuda", 0)) == room
    has_room.cache_clear()
    assert has_room(torch.device("cpu"))


def test_the_tag_tells_whether_there_are_tiles(monkeypatch):
    tags = set()
    for there in (True, False):
        monkeypatch.setattr(cuda_source, "available", lambda device, there=there: there)
        tags.add(launch_tag(torch.device("cuda", 0)))
    assert len(tags) == 2
    assert launch_tag(torch.device("cpu")) in tags


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("channels", "out", "size", "stride"),
    [
        (3, 16, 32, 1),
        (16, 16, 32, 1),
        (32, 32, 16, 1),
        (64, 64, 8, 1),
        (16, 32, 32, 2),
        (32, 64, 14, 2),
        (64, 64, 7, 1),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_kernels_on_the_device(channels, out, size, stride, compiled):
    torch.manual_seed(0)
    conv = SmallConv2d(channels, out, 3, padding=1, stride=stride, bias=False).cuda()
    norm, exact = nn.BatchNorm2d(out).cuda(), nn.BatchNorm2d(out).cuda().double()
    last = torch.channels_last
    x = torch.randn(50, channels, size, size, device="cuda").contiguous(memory_format=last)
    shortcut = torch.randn(50, out, -(-size // stride), -(-size // stride), device="cuda").contiguous(
        memory_format=last
    )
    shortcut = shortcut.bfloat16().requires_grad_()

    def forward(x, shortcut):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return conv_norm_act(conv, norm, nn.ELU(), x, shortcut).float()

    mine = (torch.compile(forward, dynamic=False) if compiled else forward)(x, shortcut)
    weight, other = (t.detach().double().requires_grad_() for t in (conv.weight, shortcut))
    theirs = nn.functional.elu(exact(nn.functional.conv2d(x.double(), weight, padding=1, stride=stride)) + other)
    dy = torch.randn_like(mine)
    found = torch.autograd.grad(mine, (conv.weight, norm.weight, norm.bias, shortcut), dy)
    wanted = torch.autograd.grad(theirs, (weight, exact.weight, exact.bias, other), dy.double())
    pairs = [(mine, theirs), *zip(found, wanted, strict=True), (norm.running_mean, exact.running_mean),
             (norm.running_var, exact.running_var)]  # fmt: skip
    for a, b in pairs:
        assert (a.double() - b.double()).norm() / b.double().norm() < 1e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("channels", "out", "size", "stride"),
    [
        (16, 16, 32, 1),
        (32, 32, 16, 1),
        (64, 64, 8, 1),
        (16, 32, 32, 2),
        (32, 64, 16, 2),
        (32, 64, 7, 2),
        (16, 16, 9, 1),
    ],
)
@pytest.mark.parametrize("elu", [True, False])
@pytest.mark.parametrize("shortcut", [True, False])
def test_gradient_through_convolution_and_norm_on_the_device(channels, out, size, stride, elu, shortcut):
    torch.manual_seed(0)

    def image(channels, size):
        made = torch.randn(50, channels, size, size, device="cuda", dtype=torch.bfloat16)
        return made.contiguous(memory_format=torch.channels_last)

    before, extra, dy = image(channels, size) * 2 + 1, image(channels, size), image(out, -(-size // stride))
    skipped = image(channels, size) if shortcut else None
    weight = torch.randn(out, channels, 3, 3, device="cuda") / channels
    gain, offset = torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")
    exact = [t.double().requires_grad_() for t in (before, gain, offset)]
    mean, var = exact[0].mean((0, 2, 3)), exact[0].var((0, 2, 3), correction=0)
    normalised = nn.functional.batch_norm(exact[0], None, None, exact[1], exact[2], training=True, eps=1e-5)
    z = normalised if skipped is None else normalised + skipped.double()
    activated = nn.functional.elu(z) if elu else nn.functional.relu(z)
    result = nn.functional.conv2d(activated, weight.bfloat16().double(), padding=1, stride=stride)
    wanted = torch.autograd.grad((result, activated), (z, *exact), (dy.double(), extra.double()))
    mean, rstd = mean.detach().float(), (var.detach() + 1e-5).rsqrt().float()
    norm = (activated.detach().bfloat16() if shortcut else None, before, mean, rstd, gain, offset, elu)
    found = []
    for _ in range(2):
        g, sums = small_conv_norm_gradient(dy, weight, stride, extra, *norm)
        found.append([g, *norm_gradients(g, before, mean, rstd, gain, sums)])
    for a, again, b in zip(*found, wanted, strict=True):
        assert torch.equal(a, again)
        assert (a.double() - b).norm() / b.norm() < 1e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("size", [32, 28, 33])
@pytest.mark.parametrize("compiled", [False, True])
def test_delayed_network_on_the_device(monkeypatch, size, compiled):
    torch.manual_seed(0)
    model = ResNet20Spec().build(in_channels=3, num_outputs=1).cuda().train()
    use_small_convs(model)
    x = torch.randn(64, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
    dy = torch.randn(64, 1, device="cuda")
    found = []
    for delayed in (True, False):
        torch._dynamo.reset()
        monkeypatch.setattr(conv_norm, "SUMS_IN_CONV", delayed)

        def forward(x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return model(x).float()

        out = (torch.compile(forward, dynamic=False) if compiled else forward)(x)
        found.append([out, *torch.autograd.grad(out, list(model.parameters()), dy)])
    for a, b in zip(*found, strict=True):  # the gradient is rounded at other places in nineteen layers
        assert (a - b).norm() / b.norm() < 6e-2
