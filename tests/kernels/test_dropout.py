"""Dropout by counting: shares, independence, runs and ranks that share a batch, networks with it."""

import itertools

import numpy as np
import pytest
import torch
from torch.func import functional_call

from deepauc.kernels.dropout import (
    DroppedDenseLayer,
    StepDropout,
    drop_in_dense_layers,
    dropped,
    kept,
    set_rows,
    set_step,
    step_dropouts,
)
from deepauc.kernels.stacked.network import can_stack, stacked
from deepauc.kernels.stacked.weights import StackedWeights
from deepauc.models.build import ResNet20Spec, SmallCNNSpec, TimmSpec, build_model

KEYS = (0, 1, 2**32, 2**63 - 1, 123456789012345678)
COUNT = 1 << 16


def mask(key=1, layer=0, rate=0.5, shape=(64, 4, 4, 64)):
    return kept(shape, torch.tensor([key]), layer, rate).flatten()


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("key", KEYS)
def test_the_share_that_stays(rate, key):
    error = (rate * (1 - rate) / COUNT) ** 0.5
    assert abs(mask(key, rate=rate).float().mean() - (1 - rate)) < 4.5 * error


def test_masks_of_layers_and_steps_are_independent():
    """Correlations of 0/1 masks, and of a mask with itself shifted, are those of independent ones: N(0, 1/COUNT)."""
    masks = torch.stack([mask(key, layer) for key in (*KEYS, 2, 3) for layer in (0, 1, 57)]).float() * 2 - 1
    correlations = (masks @ masks.T / COUNT)[~torch.eye(len(masks), dtype=bool)]
    assert correlations.abs().max() < 4.5 / COUNT**0.5
    assert 0.8 < correlations.std() * COUNT**0.5 < 1.2
    for shift in (1, 2, 32, 64, 4096):
        assert abs((masks * masks.roll(shift, dims=1)).mean(1)).max() < 4.5 / COUNT**0.5


def test_no_element_is_dropped_more_often_over_steps():
    steps, rate = 2000, 0.3
    share = torch.stack([mask(key * 7919, rate=rate, shape=(2, 3, 3, 8)) for key in range(steps)]).float().mean(0)
    z = (share - (1 - rate)) / (rate * (1 - rate) / steps) ** 0.5
    assert z.abs().max() < 4.5
    assert 0.7 < z.std() < 1.3


def test_the_mask_never_changes():
    """Against the formula in Python's whole numbers, and against what it was: recorded runs depend on it."""
    key, layer, rate = 123456789012345678, 3, 0.3

    def mix(x):
        x = (x ^ x >> 16) * 0x21F0AAAD % 2**32
        x = (x ^ x >> 15) * 0x735A2D97 % 2**32
        return x ^ x >> 15

    first = mix((key + (layer + 1) * 0x9E3779B9) % 2**32)
    second = mix((key >> 32 ^ first) % 2**32)
    wanted = [mix((mix(n ^ first) + second) % 2**32) >= rate * 2**32 for n in range(128)]
    found = mask(key, layer, rate, shape=(1, 4, 4, 8)).tolist()
    assert found == wanted
    assert np.packbits(found).tobytes().hex() == "57422fdb56cb1b7e5efae77e9d5dafac"


def test_values_gradient_and_eval_mode():
    dropout = StepDropout(0.25, layer=2)
    x = torch.randn(6, 5, 3, 2, requires_grad=True)
    set_step([dropout], 99)
    y = dropout(x)
    stays = kept((6, 3, 2, 5), torch.tensor([99]), 2, 0.25).movedim(-1, 1)
    torch.testing.assert_close(y, torch.where(stays, x / 0.75, 0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, stays / 0.75)
    assert dropout.eval()(x) is x
    assert not dropout.state_dict()


def test_the_mask_does_not_depend_on_the_layout_in_memory():
    x, key = torch.randn(4, 8, 3, 3), torch.tensor([5])
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(dropped(x, key, 0, 0.3), dropped(last, key, 0, 0.3))


def test_runs_in_one_batch_drop_what_they_drop_alone():
    x, keys = torch.randn(12, 8, 3, 3), torch.tensor([3, 99, 2**40])
    together = dropped(x, keys, 1, 0.3)
    alone = [dropped(own, key.view(1), 1, 0.3) for own, key in zip(x.split(4), keys, strict=True)]
    assert torch.equal(together, torch.cat(alone))


def test_ranks_that_share_a_batch_drop_what_one_drops():
    x, key = torch.randn(10, 4, 2, 2), torch.tensor([8])
    shares = [torch.arange(10)[rank::3] for rank in range(3)]
    whole = dropped(x, key, 0, 0.5)
    for rows in shares:
        assert torch.equal(dropped(x[rows], key, 0, 0.5, rows), whole[rows])


def small_dense_net():
    from timm.models.densenet import DenseNet

    model = DenseNet(growth_rate=8, block_config=(2, 3), num_classes=2)
    assert drop_in_dense_layers(model, 0.3) == 5
    return model


def test_a_stacked_network_drops_as_each_alone():
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(small_dense_net())
    assert can_stack(models[0])
    images, keys = torch.randn(12, 3, 40, 40), torch.tensor([5, 6, 2**50])
    alone = []
    for model, own, key in zip(models, images.split(4), keys, strict=True):
        set_step(step_dropouts(model), int(key))
        alone.append(model(own))
    weights = StackedWeights(models, half=None)
    names = [name for name, _ in models[0].named_buffers() if name.endswith("step_key")]
    assert len(names) == 5
    together = functional_call(stacked(models[0], 3), weights.tensors() | dict.fromkeys(names, keys), (images,))
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_densenet121_of_the_spec():
    """Dropout behind all 58 dense layers, under the names of the network without it; other networks have timm's own."""
    spec = TimmSpec(proj_drop_rate=0.3, activation="elu")
    plain, dropping = (build_model(s, in_channels=3, num_outputs=1, seed=0) for s in (TimmSpec(activation="elu"), spec))
    assert [d.layer for d in step_dropouts(dropping)] == list(range(58))
    assert sum(isinstance(m, DroppedDenseLayer) for m in dropping.modules()) == 58
    assert dropping.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(dropping.parameters(), plain.parameters(), strict=True))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(dropping.eval()(images), plain.eval()(images))
        dropping.train()
        found = []
        for key, rows in itertools.product((1, 2), (None, torch.tensor([4, 7]))):
            set_step(step_dropouts(dropping), key)
            set_rows(dropping, rows)
            found.append(dropping(images))
    assert len({tuple(f.flatten().tolist()) for f in found}) == 4
    vit = TimmSpec(name="test_vit", proj_drop_rate=0.3).build(in_channels=3, num_outputs=1)
    assert not step_dropouts(vit)
    assert any(isinstance(m, torch.nn.Dropout) and m.p == 0.3 for m in vit.modules())


@pytest.mark.parametrize(("spec", "width"), [(SmallCNNSpec, 128), (ResNet20Spec, 64)])
def test_dropout_before_the_classifier(spec, width):
    """Half of what the classifier sees, by step; the weights are those of the network without it."""
    plain, dropping = (build_model(spec(drop_rate=r), in_channels=3, num_outputs=1, seed=0) for r in (0.0, 0.5))
    assert dropping.state_dict().keys() == plain.state_dict().keys()
    seen = []
    dropping.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images = torch.randn(64, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(dropping.eval()(images), plain.eval()(images))
        dropping.train()
        for key in (1, 2):
            set_step(step_dropouts(dropping), key)
            dropping(images)
    masks = [(features == 0).float() for features in seen[1:]]
    assert not torch.equal(*masks)
    assert all(abs(mask.mean() - 0.5) < 4.5 * (0.25 / (64 * width)) ** 0.5 for mask in masks)


KERNEL = """
import torch
from deepauc.kernels.dropout import kept
from deepauc.kernels.dropout_kernel import drop_rows

for keys in (torch.tensor([7]), torch.tensor([0, 2**63 - 1, 99])):
    for layer, rate, pixels, channels in ((0, 0.3, 40, 32), (57, 0.5, 9, 5), (20, 0.9, 1, 48)):
        runs = len(keys)
        block = torch.randn(runs, pixels, channels + 6)
        rows, before = block[:, :, 3 : 3 + channels], block.clone()
        stays = kept((runs * pixels, channels), keys, layer, rate).view(rows.shape)
        wanted = torch.where(stays, rows * (1 / (1 - rate)), 0)
        apart = torch.empty(runs, pixels, channels)
        drop_rows(rows, apart, keys, layer, rate)
        assert torch.equal(apart, wanted)
        drop_rows(rows, rows, keys, layer, rate)
        assert torch.equal(rows, wanted)
        block[:, :, 3 : 3 + channels] = before[:, :, 3 : 3 + channels]
        assert torch.equal(block, before)  # its neighbours are left alone
print("equal")
"""


def test_the_kernel_is_the_twin(interpreted):
    interpreted(KERNEL)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_gpu_drops_what_a_cpu_drops(dtype, form):
    x, keys = torch.randn(12, 32, 5, 5, dtype=dtype), torch.tensor([3, 2**62 + 1, 99])
    wanted = dropped(x, keys, 57, 0.3)
    given = x.cuda().contiguous(memory_format=form).requires_grad_()
    found = dropped(given, keys.cuda(), 57, 0.3)
    assert torch.equal(found.cpu(), wanted)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    stays = dropped(torch.ones_like(x), keys, 57, 0.3)  # a normal number of 16 bits may be 0 itself
    assert torch.equal(gradient.cpu(), stays)
