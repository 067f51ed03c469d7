"""ResNet20 against a second, functional reading of He et al. (2016)."""

import pytest
import torch
import torch.nn.functional as F

from deepauc.models.resnet20 import BasicBlock, ResNet20, ResNet20Spec, shortcut_a


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("channels", "outputs", "expected"), [(3, 10, 269_722), (3, 1, 269_137), (1, 1, 268_849)])
def test_parameter_count_is_that_of_the_published_network(channels, outputs, expected):
    # 0.27 M in He et al.'s table 6; 269,722 is the sum of 19 convolutions, their BN and a 64 -> 10 layer.
    assert count(ResNet20(in_channels=channels, num_outputs=outputs)) == expected
    widths = [16, 32, 64]
    convolutions = 9 * 16 * channels + 6 * 9 * 16 * 16
    convolutions += sum(9 * c * 2 * c + 5 * 9 * 4 * c * c for c in widths[:2])
    batch_norms = 2 * (16 + 6 * sum(widths))
    assert expected == convolutions + batch_norms + 64 * outputs + outputs


def reference(model, x, act):
    """The same function written from the state dict, without the module's forward; eval mode."""
    s = model.state_dict()

    def conv_bn(x, conv, bn, stride=1):
        x = F.conv2d(x, s[f"{conv}.weight"], stride=stride, padding=1)
        scale = s[f"{bn}.weight"] / (s[f"{bn}.running_var"] + 1e-5).sqrt()
        return (x - s[f"{bn}.running_mean"][:, None, None]) * scale[:, None, None] + s[f"{bn}.bias"][:, None, None]

    x = act(conv_bn(x, "conv", "bn"))
    for stage in range(3):
        for block in range(3):
            name = f"stages.{stage}.{block}"
            stride = 2 if stage and not block else 1
            out = act(conv_bn(x, f"{name}.conv1", f"{name}.bn1", stride))
            out = conv_bn(out, f"{name}.conv2", f"{name}.bn2")
            if stride == 2:
                zeros = torch.zeros(x.shape[0], x.shape[1] // 2, *out.shape[2:], dtype=x.dtype)
                x = torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
            x = act(out + x)
    return x.flatten(2).mean(2) @ s["head.weight"].T + s["head.bias"]


@pytest.mark.parametrize(("activation", "function"), [("elu", F.elu), ("relu", F.relu)])
@pytest.mark.parametrize("size", [28, 32, 33])
def test_forward_is_the_papers(activation, function, size):
    torch.manual_seed(0)
    model = ResNet20(in_channels=2, num_outputs=3, activation=activation).double()
    x = torch.randn(2, 2, size, size, dtype=torch.float64)
    model(torch.randn(8, 2, size, size, dtype=torch.float64))  # gives BN statistics of their own
    model.eval()
    torch.testing.assert_close(model(x), reference(model, x, function), rtol=1e-9, atol=1e-9)


def test_shortcut_keeps_channels_last():
    x = torch.randn(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    out = shortcut_a(x, stride=2, extra_channels=16)
    assert out.shape == (2, 32, 4, 4)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_channels_last_gives_the_same_scores_and_gradients():
    torch.manual_seed(0)
    model = ResNet20(in_channels=3)
    x = torch.randn(4, 3, 16, 16)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model.zero_grad()
        model.to(memory_format=layout)
        out = model(x.contiguous(memory_format=layout))
        out.square().sum().backward()
        results.append((out.detach(), model.conv.weight.grad.clone()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_inplace_activations_leave_the_gradients_right():
    torch.manual_seed(0)
    block = BasicBlock(2, 4, stride=2, activation="elu").double()
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: block(x * 1.0), (x,))


def test_one_graph_for_the_compiler():
    model = ResNet20Spec().build(in_channels=1, num_outputs=2)
    x = torch.randn(4, 1, 28, 28)
    model.eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)  # fullgraph: a graph break is an error
    assert torch.equal(compiled(x), model(x))


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="relu, elu"):
        ResNet20Spec(activation="gelu").build(in_channels=3, num_outputs=1)
