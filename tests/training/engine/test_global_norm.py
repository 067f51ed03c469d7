"""With one rank, global batch normalisation is torch's own, in whatever module asks for it."""

import copy

import pytest
import torch
from torch import nn

from deepauc.training.engine.global_norm import GlobalBatchNorm


class OneRank:
    """Nothing to add to the sum."""

    def __init__(self):
        self.messages = []

    def add_up(self, values, what):
        self.messages.append(values.numel())


def timm_norm():
    from timm.layers import BatchNormAct2d

    return BatchNormAct2d(3)  # batch normalisation and its ReLU in one module, which a replacement would drop


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(3),
        lambda: nn.BatchNorm2d(3, momentum=None),
        lambda: nn.BatchNorm2d(3, affine=False, eps=0.1),
        lambda: nn.BatchNorm2d(3, track_running_stats=False),
        timm_norm,
    ],
)
def test_it_is_torchs_own(make):
    torch.manual_seed(0)
    plain = make().double().train()
    ours, ranks = copy.deepcopy(plain), OneRank()
    for _ in range(3):
        x = torch.randn(5, 3, 4, 2, dtype=torch.float64) * 3 + 100
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected = plain(one)
        with GlobalBatchNorm(ranks):
            found = ours(other)
        gradient = torch.randn_like(x)
        expected.backward(gradient)
        found.backward(gradient)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(ours.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    assert ranks.messages == [7, 6] * 3  # forward and backward of each step


def test_evaluation_exchanges_nothing():
    norm, ranks = nn.BatchNorm1d(3).eval(), OneRank()
    x = torch.randn(4, 3)
    with GlobalBatchNorm(ranks):
        assert torch.equal(norm(x), nn.BatchNorm1d(3).eval()(x))
    assert not ranks.messages


def test_float32_with_a_large_offset_and_bfloat16():
    x = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 1000
    norm = nn.BatchNorm2d(3)
    with GlobalBatchNorm(OneRank()):
        found = copy.deepcopy(norm)(x)
        half = copy.deepcopy(norm)((x - 1000).bfloat16())
    torch.testing.assert_close(found.double(), copy.deepcopy(norm).double()(x.double()), rtol=1e-3, atol=1e-3)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, copy.deepcopy(norm)((x - 1000).bfloat16()), rtol=0.02, atol=0.02)
