"""The convolution kernels against torch's, in Triton's interpreter; which convolutions are replaced."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from deepauc.models.resnet20 import ResNet20Spec
from deepauc.models.small_conv import SmallConv2d, use_small_convs

CHECK = """
import torch
import deepauc.models.small_conv as small
small.SPLITS = 3
for n, c, k, h, w in [(2, 16, 32, 9, 7), (3, 32, 16, 8, 8), (2, 64, 64, 7, 6)]:
    torch.manual_seed(c)
    x = torch.randn(n, c, h, w).contiguous(memory_format=torch.channels_last).requires_grad_()
    layout = torch.channels_last if c == 32 else torch.contiguous_format
    weight = torch.randn(k, c, 3, 3).contiguous(memory_format=layout).requires_grad_()
    mine, theirs = small.small_conv(x, weight, False), torch.nn.functional.conv2d(x, weight, padding=1)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    dy = torch.randn_like(theirs)
    for a, b in zip(torch.autograd.grad(mine, (x, weight), dy), torch.autograd.grad(theirs, (x, weight), dy)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
print("equal")
"""


def test_kernels_equal_torch():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_only_fitting_convolutions_are_replaced_and_nothing_changes_on_a_cpu():
    model = ResNet20Spec().build(in_channels=3, num_outputs=1).eval()
    x = torch.randn(2, 3, 32, 32)
    before = model(x)
    assert use_small_convs(model) == 16  # all 3x3 but the stem and the two with stride 2
    assert torch.equal(model(x), before)
    kept = nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1, bias=False), nn.Conv2d(16, 24, 3, padding=1, bias=False),
        nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False), nn.Conv2d(16, 16, 3, padding=1, stride=2, bias=False),
    )  # fmt: skip
    assert use_small_convs(kept) == 0
    assert not any(isinstance(m, SmallConv2d) for m in kept)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("channels", "size"), [(16, 32), (32, 16), (64, 8)])
def test_kernels_on_the_device(channels, size):
    make = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(16, channels, size, size, **make).contiguous(memory_format=torch.channels_last).requires_grad_()
    conv = SmallConv2d(channels, channels, 3, padding=1, bias=False).cuda()
    mine = conv(x)
    dy = torch.randn_like(mine)
    theirs = nn.functional.conv2d(x.double(), conv.weight.double(), padding=1)
    pairs = [(mine, theirs), *zip(torch.autograd.grad(mine, (x, conv.weight), dy),
                                  torch.autograd.grad(theirs, (x, conv.weight), dy.double()), strict=True)]  # fmt: skip
    for a, b in pairs:
        assert (a.double() - b.double()).norm() / b.double().norm() < 1e-2
