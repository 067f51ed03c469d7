"""Grad-CAM: it peaks where the evidence is, agrees with its definition, and leaves the network as it was."""

import pytest
import torch
from torch import nn

from deepauc.models.average import AverageNetwork
from deepauc.models.build import MLPSpec, ResNet20Spec, SmallCNNSpec, build_model
from deepauc.models.grad_cam import grad_cam
from deepauc.models.thumbnail import ThumbnailLinear


class Spots(nn.Module):
    """Channel 0 sees bright places, channel 1 dark ones; output 0 is raised by bright, output 1 by dark."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)  # puts out (N, 2, 1, 1): no map
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.stack([torch.ones(1, 3, 3), -torch.ones(1, 3, 3)]) / 9)
            self.head.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))

    def forward(self, x):
        return self.head(self.pool(self.act(self.conv(x))).flatten(1))


def spots():
    images = torch.zeros(2, 1, 12, 16)
    images[0, 0, 2:5, 3:6] = 1  # bright
    images[0, 0, 7:10, 11:14] = -1  # dark
    images[1, 0, 8:11, 2:5] = 1
    return images


def peak(heat):
    return divmod(int(heat.argmax()), heat.shape[1])


def test_the_map_peaks_where_the_evidence_is_label_by_label():
    bright, dark = (grad_cam(Spots(), spots(), label=label) for label in (0, 1))
    assert bright.shape == dark.shape == (2, 12, 16)
    assert [peak(heat) for heat in bright] == [(3, 4), (9, 3)]
    assert peak(dark[0]) == (8, 12)
    assert bright[0, 8, 12] == dark[0, 3, 4] == 0
    assert bright.amax((1, 2)).tolist() == [1, 1]
    assert dark[1].eq(0).all()  # nothing dark is in the second image


def average(*members, share):
    network = AverageNetwork(members, in_channels=1, num_outputs=2)
    network.share.copy_(torch.tensor(share))
    return network


def test_every_member_of_an_average_counts_by_its_share():
    bright, dark = Spots(), Spots()
    with torch.no_grad():
        dark.head.weight.mul_(-1)  # its output 0 is raised by dark places
    alone = [grad_cam(average(bright, dark, share=share), spots()) for share in ([1.0, 0.0], [0.0, 1.0])]
    assert [peak(heat[0]) for heat in alone] == [(3, 4), (8, 12)]
    both = grad_cam(average(bright, dark, share=[0.5, 0.5]), spots())[0]
    assert both[3, 4] > 0
    assert both[8, 12] > 0
    mostly = grad_cam(average(bright, dark, share=[0.9, 0.1]), spots())[0]
    assert mostly[8, 12] / mostly[3, 4] < both[8, 12] / both[3, 4]


def test_a_linear_member_has_no_map_and_is_passed_over():
    linear = ThumbnailLinear(in_channels=1, num_outputs=2)
    mixed = grad_cam(average(Spots(), linear, share=[0.5, 0.5]), spots())
    assert peak(mixed[0]) == (3, 4)
    with pytest.raises(ValueError, match="no network of this average"):
        grad_cam(average(linear, share=[1.0]), spots())


def test_it_is_the_papers_formula():
    model = build_model(SmallCNNSpec(widths=(4, 6)), in_channels=1, num_outputs=3, seed=1).eval()
    images = torch.randn(3, 1, 9, 10, generator=torch.Generator().manual_seed(0))
    features = model.features(images).detach().requires_grad_()
    for label in range(3):
        scores = model.head(features.mean((2, 3)))[:, label]
        expected = []
        for number in range(3):
            (gradient,) = torch.autograd.grad(scores[number], features, retain_graph=True)
            weights = gradient[number].mean((1, 2))
            raised = sum(w * a for w, a in zip(weights, features[number].detach(), strict=True)).clamp_min(0)
            large = nn.functional.interpolate(raised[None, None], size=(9, 10), mode="bilinear")[0, 0]
            expected.append(large / large.max() if large.max() > 0 else large)
        torch.testing.assert_close(grad_cam(model, images, label=label), torch.stack(expected))


@pytest.mark.parametrize("spec", [SmallCNNSpec(widths=(4, 8)), ResNet20Spec()])
@pytest.mark.parametrize("training", [False, True])
def test_the_network_is_left_as_it_was(spec, training):
    model = build_model(spec, in_channels=1, num_outputs=2, seed=0).train(training)
    next(model.children()).eval()  # a part of the network may be frozen
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    images = torch.randn(4, 1, 16, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    with torch.no_grad():
        maps = grad_cam(model, images, label=1)
    assert not maps.requires_grad
    assert 0 <= maps.min() <= maps.max() <= 1
    assert maps.max() > 0
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(p.requires_grad for p in model.parameters())
    for parameter, before in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) if before is None else torch.equal(parameter.grad, before)
    assert not any(module._forward_hooks for module in model.modules())


def test_one_image_does_not_depend_on_the_others():
    model = build_model(ResNet20Spec(), in_channels=1, num_outputs=1, seed=0)
    images = torch.randn(3, 1, 16, 16)
    together = grad_cam(model, images)
    for number in range(3):
        torch.testing.assert_close(grad_cam(model, images[number : number + 1])[0], together[number])


def test_a_module_used_twice_is_taken_at_its_last_call():
    class Twice(Spots):
        def forward(self, x):
            first = self.act(self.conv(x))
            return self.head(self.act(-first.flip(-1) + 1).mean((2, 3)))

    heat = grad_cam(Twice(), spots()[1:], label=1)[0]
    assert peak(heat) == (9, 12)  # where the bright spot of (9, 3) is a dark one, by then
    assert heat[9, 3] == 0


def test_what_cannot_be_explained_is_refused():
    mlp = build_model(MLPSpec(hidden=(4,)), in_channels=5, num_outputs=1, seed=0)
    with pytest.raises(ValueError, match="needs images"):
        grad_cam(mlp, torch.randn(2, 5))
    with pytest.raises(ValueError, match="convolutional network"):
        grad_cam(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), torch.randn(2, 1, 4, 4))
    with pytest.raises(ValueError, match=r"label 2 .* 2 outputs"):
        grad_cam(Spots(), spots(), label=2)


def test_networks_of_timm():
    import timm

    images = torch.randn(2, 3, 64, 64)
    maps = grad_cam(timm.create_model("resnet18", num_classes=1), images)
    assert maps.shape == (2, 64, 64)
    assert torch.isfinite(maps).all()
    transformer = timm.create_model("vit_tiny_patch16_224", num_classes=1, img_size=64, depth=1)
    with pytest.raises(ValueError, match="convolutional network"):
        grad_cam(transformer, images)
