"""Several runs at once against each run alone: outputs, gradients, running statistics; in plain torch and in Triton."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from deepauc.kernels.stacked.network import can_stack, stacked
from deepauc.kernels.stacked.weights import StackedWeights
from deepauc.models.activations import replace_relu
from deepauc.models.build import ResNet20Spec

RUNS, BATCH = 3, 4


def dense_net(**options):
    from timm.models.densenet import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 3), num_classes=2, **options)


def elu_dense_net():
    model = dense_net()
    replace_relu(model)
    return model


def res_net():
    from timm.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=2)


def drawn(make, runs=RUNS):
    """Networks of different weights, the norms' too."""
    models = []
    for seed in range(runs):
        torch.manual_seed(seed)
        model = make()
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.uniform_(norm.weight, 0.5, 1.5)
                nn.init.normal_(norm.bias, std=0.2)
        models.append(model.to(memory_format=torch.channels_last))  # as a run on a GPU has it
    return models


@pytest.mark.parametrize("make", [dense_net, elu_dense_net, res_net])
def test_equals_each_run_alone(make):
    models, alone = drawn(make), drawn(make)
    images = torch.randn(RUNS * BATCH, 3, 40, 40)
    weights = StackedWeights(models, half=None)
    outputs = functional_call(stacked(models[0], RUNS), weights.tensors(), (images,))
    targets = torch.randn_like(outputs)
    leaves = list(weights.leaves.values())
    weights.give_gradients(torch.autograd.grad((outputs * targets).sum(), leaves))
    for run, (mine, theirs) in enumerate(zip(models, alone, strict=True)):
        rows = slice(run * BATCH, (run + 1) * BATCH)
        wanted = theirs(images[rows])
        (wanted * targets[rows]).sum().backward()
        torch.testing.assert_close(outputs[rows], wanted, rtol=1e-3, atol=1e-4)
        scale = max(float(p.grad.abs().max()) for p in theirs.parameters())
        for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            assert a.grad.stride() == a.stride()
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")
        for (name, a), b in zip(mine.named_buffers(), theirs.buffers(), strict=True):
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_run_that_is_not_a_number_leaves_the_others_alone():
    models = drawn(dense_net)
    images = torch.randn(RUNS * BATCH, 3, 32, 32)
    network, weights = stacked(models[0], RUNS), StackedWeights(models, half=None)
    before = functional_call(network, weights.tensors(), (images,))
    with torch.no_grad():
        models[1].features.conv0.weight.fill_(float("nan"))
    after = functional_call(network, weights.tensors(), (images,))
    others = torch.cat([torch.arange(BATCH), torch.arange(2 * BATCH, 3 * BATCH)])
    assert torch.equal(before[others], after[others])
    assert after[BATCH : 2 * BATCH].isnan().all()


def test_the_modules_keep_their_tensors():
    models = drawn(dense_net)
    before = [[p.detach().clone() for p in model.parameters()] for model in models]
    ids = [[id(t) for t in (*model.parameters(), *model.buffers())] for model in models]
    strides = [[p.stride() for p in model.parameters()] for model in models]
    weights = StackedWeights(models, half=torch.bfloat16)
    for model, values, known in zip(models, before, ids, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))
        assert [id(t) for t in (*model.parameters(), *model.buffers())] == known
    assert [p.stride() for p in models[0].parameters()] == strides[0]
    with torch.no_grad():
        models[2].classifier.weight.fill_(3.0)
    tensors = weights.tensors()
    assert torch.equal(weights.leaves["classifier.weight"][2], models[2].classifier.weight)
    assert torch.equal(tensors["classifier.weight_half"][2], models[2].classifier.weight.bfloat16())
    assert torch.equal(tensors["features.conv0.weight_half"][1], models[1].features.conv0.weight.bfloat16())
    assert all(leaf.data_ptr() % 16 == 0 for leaf in tensors.values())


class _Own(nn.Module):
    def forward(self, x):
        return x


REFUSED = {
    "grouped": nn.Conv2d(4, 4, 3, groups=2),
    "dilated": nn.Conv2d(4, 4, 3, dilation=2),
    "reflected": nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    "oblong": nn.Conv2d(4, 4, (1, 3)),
    "same": nn.Conv2d(4, 4, 3, padding="same"),
    "dropout": nn.Dropout(0.1),
    "no statistics": nn.BatchNorm2d(4, track_running_stats=False),
    "no momentum": nn.BatchNorm2d(4, momentum=None),
    "no weights": nn.BatchNorm2d(4, affine=False),
    "in evaluation": nn.BatchNorm2d(4).eval(),
    "layer norm": nn.LayerNorm(4),
    "somebody's own": _Own(),
    "float64": nn.Linear(4, 4, dtype=torch.float64),
    "frozen": nn.Linear(4, 4).requires_grad_(False),
}


@pytest.mark.parametrize("module", REFUSED.values(), ids=REFUSED.keys())
def test_refused(module):
    assert not can_stack(nn.Sequential(nn.Linear(4, 4), module))


def test_refused_networks_and_taken_ones():
    linear = nn.Linear(4, 4)
    assert not can_stack(nn.Sequential(linear, nn.Sequential(linear)))
    assert not can_stack(dense_net(proj_drop_rate=0.1))
    assert not can_stack(dense_net(drop_rate=0.1))
    assert not can_stack(dense_net(memory_efficient=True))
    for model in (dense_net(), elu_dense_net(), res_net(), ResNet20Spec().build(in_channels=3, num_outputs=1)):
        assert can_stack(model)


IN_FLOAT = """
import dataclasses
import torch
import torch.nn.functional as F
from deepauc.kernels.stacked import conv as stacked_conv
from deepauc.kernels.stacked import norm as stacked_norm
from deepauc.kernels.stacked import rows as stacked_rows
from deepauc.kernels.stacked.conv import Taps
from deepauc.kernels.stacked.norm import Norm

stacked_rows.takes = lambda x: True
stacked_rows.HALF = torch.float32
stacked_conv.TAPS_BLOCK, stacked_conv.SHORT_SUM, stacked_conv.MOST_PIECES = (64, 64), 4, 16
stacked_norm.TILE, stacked_norm.PROGRAMS, stacked_norm.WHOLE = 1024, 12, 40
close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
last = torch.channels_last
"""
CONVOLUTIONS = """
SHAPES = [(3, 8, 5, 6, 5, Taps(3, 1, 1)), (2, 5, 8, 6, 5, Taps(3, 1, 1)), (2, 8, 4, 1, 1, Taps(3, 1, 1)),
          (2, 3, 6, 9, 8, Taps(5, 2, 2)), (2, 20, 2, 7, 6, Taps(3, 2, 1)), (2, 9, 4, 5, 5, Taps(3, 1, 0)),
          (2, 33, 20, 4, 4, Taps(1, 1, 0)), (2, 5, 6, 5, 4, Taps(1, 2, 0)), (1, 4, 4, 1, 1, Taps(1, 1, 0))]
for b, c, k, h, w, taps in SHAPES:
    runs = 2
    torch.manual_seed(c)
    x = torch.randn(runs * b, c + 4, h, w).contiguous(memory_format=last).requires_grad_()
    weight = torch.randn(runs, k, c, taps.kernel, taps.kernel)
    weight = (weight if c == 5 else weight.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)).requires_grad_()
    bias = torch.randn(runs, k, requires_grad=True)
    mine = stacked_conv.conv(x[:, 2 : c + 2], weight, bias, None, taps)
    pieces = zip(x[:, 2 : c + 2].split(b), weight, bias)
    theirs = torch.cat([F.conv2d(*piece, taps.stride, taps.padding) for piece in pieces])
    close(mine, theirs)
    close(stacked_conv._grouped(x[:, 2 : c + 2], weight, bias, taps), theirs)
    wide = torch.randn(runs * b, k + 3, *mine.shape[2:]).contiguous(memory_format=last)
    found = torch.autograd.grad(mine, (x, weight, bias), wide[:, 3:])
    for a, e in zip(found, torch.autograd.grad(theirs, (x, weight, bias), wide[:, 3:])):
        close(a, e)
print("equal")
"""
NORMALISATION = """
for b, c, size in [(5, 24, ()), (2, 35, (4, 5)), (7, 64, (3, 3)), (11, 33, (6, 7)), (20, 3, (1, 1))]:
    for act, apply in (("", lambda z: z), ("relu", F.relu), ("elu", F.elu)):
        runs = 2
        torch.manual_seed(c)
        x = (torch.randn(runs * b, c, *size) * 2 + 5)
        x = (x.contiguous(memory_format=last) if size else x).requires_grad_()
        weight, bias = (torch.rand(runs, c) + 0.5).requires_grad_(), torch.randn(runs, c, requires_grad=True)
        mine_running, plain, theirs_running = ((torch.zeros(runs, c), torch.ones(runs, c)) for _ in range(3))
        norm = Norm(weight=weight, bias=bias, running=mine_running, momentum=0.1, eps=1e-5, activation=act)
        mine = stacked_norm.norm_act(x, norm)
        rows = stacked_rows.rows_of(x, runs)
        other = stacked_norm.plain_norm_act(rows, dataclasses.replace(norm, running=plain))
        pieces = zip(x.split(b), weight, bias, *theirs_running)
        theirs = torch.cat([apply(F.batch_norm(v, m, s, w, z, True, 0.1, 1e-5)) for v, w, z, m, s in pieces])
        close(mine, theirs)
        close(other, stacked_rows.rows_of(theirs, runs))
        for a, p, e in zip(mine_running, plain, theirs_running):
            close(a, e)
            close(p, e)
        wide = torch.randn(runs * b, c + 2, *size)
        wide = wide.contiguous(memory_format=last) if size else wide
        found = torch.autograd.grad(mine, (x, weight, bias), wide[:, 2:])
        for a, e in zip(found, torch.autograd.grad(theirs, (x, weight, bias), wide[:, 2:])):
            torch.testing.assert_close(a, e, rtol=1e-3, atol=2e-3)
print("equal")
"""


DENSE_BLOCK = """
from timm.models.densenet import DenseNet
from torch.func import functional_call
from deepauc.kernels.dropout import drop_in_dense_layers
from deepauc.kernels.stacked.network import stacked
from deepauc.kernels.stacked.weights import StackedWeights

models = [DenseNet(growth_rate=4, block_config=(2, 2), bn_size=2, num_classes=1) for _ in range(2)]
models = [model.to(memory_format=last) for model in models]
keys = {}
if DROPPED:
    for model in models:
        drop_in_dense_layers(model, 0.3)
    names = [name for name, _ in models[0].named_buffers() if name.endswith("step_key")]
    keys = dict.fromkeys(names, torch.tensor([5, 2**40]))
for norm in (m for model in models for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    torch.nn.init.normal_(norm.bias)
images = torch.randn(8, 3, 16, 16)
found = []
for kernels in (True, False):
    stacked_rows.takes = lambda x, kernels=kernels: kernels
    for buffer in (b for model in models for b in model.buffers() if b.is_floating_point()):
        buffer.fill_(0.5)
    weights = StackedWeights(models, half=torch.float32 if kernels else None)
    out = functional_call(stacked(models[0], 2), weights.tensors() | keys, (images,))
    gradients = torch.autograd.grad((out * torch.linspace(-1, 1, 8)[:, None]).sum(), list(weights.leaves.values()))
    found.append([out, *(b.clone() for b in weights.buffers.values()), *gradients])
for a, b in zip(*found, strict=True):
    close(a, b)
print("equal")
"""


@pytest.mark.parametrize(
    "check",
    [CONVOLUTIONS, NORMALISATION, "DROPPED = False" + DENSE_BLOCK, "DROPPED = True" + DENSE_BLOCK],
    ids=["convolutions", "normalisation", "dense block", "dense block with dropout"],
)
def test_kernels_equal_torch(check, interpreted):
    interpreted(IN_FLOAT + check)
