"""Networks from specs: shapes, sizes, seeds, stems, and errors that name the way out."""

import pytest
import torch
from torch import nn

from deepauc.models.build import (
    FactorySpec,
    MLPSpec,
    ResNet20Spec,
    SmallCNNSpec,
    TimmSpec,
    architecture,
    build_model,
    check_output,
)
from deepauc.models.stem import use_small_stem


def count(model):
    return sum(p.numel() for p in model.parameters())


IMAGE_SPECS = [
    ResNet20Spec(),
    SmallCNNSpec(),
    SmallCNNSpec(widths=(8,), activation="relu", drop_rate=0.2),
    TimmSpec(name="densenet121", activation="elu", small_stem=True),
    TimmSpec(name="resnet18", small_stem=True),
    TimmSpec(name="test_efficientnet", drop_rate=0.2, drop_path_rate=0.1),
    TimmSpec(name="test_vit", image_size=32),
]


@pytest.mark.parametrize("spec", IMAGE_SPECS, ids=lambda spec: getattr(spec, "name", type(spec).__name__))
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (3, 1), (4, 5)])
def test_images_become_raw_scores(spec, channels, outputs):
    model = build_model(spec, in_channels=channels, num_outputs=outputs, seed=0, input_shape=(channels, 32, 32))
    model.eval()
    with torch.no_grad():
        scores = model(torch.randn(3, channels, 32, 32))
    assert scores.shape == (3, outputs)
    assert scores.isfinite().all()


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (28, 28)])
def test_small_cnn_takes_any_size(size):
    model = build_model(SmallCNNSpec(), in_channels=1, num_outputs=2, seed=0).eval()
    assert model(torch.zeros(2, 1, *size)).shape == (2, 2)


def test_small_cnn_halves_between_widths():
    model = build_model(SmallCNNSpec(widths=(4, 8, 6)), in_channels=2, num_outputs=1, seed=0)
    assert model.features(torch.zeros(1, 2, 28, 28)).shape == (1, 6, 7, 7)
    assert count(model) == 9 * (2 * 4 + 4 * 8 + 8 * 6) + 2 * (4 + 8 + 6) + 6 + 1


def test_mlp_is_the_papers_metadata_network():
    model = build_model(MLPSpec(), in_channels=9, num_outputs=1, seed=0, input_shape=(9,))
    assert [tuple(p.shape) for p in model.parameters()] == [(256, 9), (256,), (128, 256), (128,), (1, 128), (1,)]
    x = torch.randn(5, 9)
    weights = list(model.parameters())
    hidden = nn.functional.elu(nn.functional.elu(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3])
    torch.testing.assert_close(model(x), hidden @ weights[4].T + weights[5])
    linear = build_model(MLPSpec(hidden=()), in_channels=9, num_outputs=3, seed=0)
    assert torch.equal(linear(x), linear.head(x))


@pytest.mark.parametrize(
    ("name", "channels", "expected"),
    [
        ("densenet121", 3, 6_954_881),  # torchvision's 7,978,856 less 1,025,000 for the 1,000 classes plus 1,025
        ("densenet161", 3, 26_474_209),
        ("densenet169", 3, 12_486_145),
        ("densenet201", 3, 18_094_849),
        ("efficientnet_b3", 3, 10_697_769),
        ("tf_efficientnet_b5", 3, 28_342_833),
        ("tf_efficientnet_b6", 3, 40_738_009),
        ("inception_resnet_v2", 3, 54_308_001),
        ("densenet121", 1, 6_948_609),
    ],
)
def test_the_papers_networks(name, channels, expected):
    with torch.device("meta"):
        model = TimmSpec(name=name).build(in_channels=channels, num_outputs=1)
        assert count(model) == expected
        assert model.eval()(torch.zeros(2, channels, 96, 96)).shape == (2, 1)


def test_small_stem_keeps_the_resolution():
    seen = {}
    for name, first_block in (("densenet121", "features.denseblock1"), ("resnet34", "layer1")):
        model = TimmSpec(name=name, small_stem=True).build(in_channels=3, num_outputs=1)
        model.get_submodule(first_block).register_forward_pre_hook(
            lambda _, inputs, name=name: seen.update({name: inputs[0].shape})
        )
        model.eval()(torch.zeros(1, 3, 32, 32))
    assert seen == {"densenet121": (1, 64, 32, 32), "resnet34": (1, 64, 32, 32)}


def test_small_stem_from_trained_weights_is_the_centre_of_the_old_kernel():
    model = TimmSpec(name="resnet18").build(in_channels=3, num_outputs=1)
    old = model.conv1.weight.detach().clone()
    use_small_stem(model, keep_kernel=True)
    assert torch.equal(model.conv1.weight, old[:, :, 2:5, 2:5])
    assert (model.conv1.stride, model.conv1.padding) == ((1, 1), (1, 1))


def test_drawn_stem_has_he_variance():
    model = build_model(TimmSpec(name="resnet18", small_stem=True), in_channels=3, num_outputs=1, seed=0)
    assert model.conv1.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.1)


@pytest.mark.parametrize("name", ["resnet50d", "test_efficientnet", "vgg11"])
def test_a_stem_not_understood_is_refused(name):
    with torch.device("meta"), pytest.raises(ValueError, match=r"small_stem=True.*not understood.*densenet121"):
        TimmSpec(name=name, small_stem=True).build(in_channels=3, num_outputs=1)


@pytest.mark.parametrize("spec", [*IMAGE_SPECS, MLPSpec()], ids=lambda s: getattr(s, "name", type(s).__name__))
def test_weights_are_a_function_of_the_seed(spec):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(spec, in_channels=3, num_outputs=1, seed=5).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = build_model(spec, in_channels=3, num_outputs=1, seed=5).state_dict()
    other = build_model(spec, in_channels=3, num_outputs=1, seed=6).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_xavier_and_momentum_of_both_networks():
    """DenseNet: uniform convolutions, a bias of 0; ResNet20: normal convolutions and classifier."""
    dense = build_model(TimmSpec(start="xavier", norm_momentum=0.01), in_channels=3, num_outputs=1, seed=0)
    res = build_model(ResNet20Spec(start="xavier", norm_momentum=0.01), in_channels=3, num_outputs=1, seed=0)
    norms = [m for model in (dense, res) for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 121 + 19
    assert {norm.momentum for norm in norms} == {0.01}
    assert dense.classifier.bias.eq(0).all()

    def scaled(layers):
        """All weights in units of Glorot and Bengio's standard deviation."""
        fans = [torch.nn.init._calculate_fan_in_and_fan_out(layer.weight) for layer in layers]
        units = [(2 / sum(fan)) ** 0.5 for fan in fans]
        return torch.cat([layer.weight.flatten() / unit for layer, unit in zip(layers, units, strict=True)])

    convolutions = [m for m in dense.modules() if isinstance(m, torch.nn.Conv2d)]
    assert scaled(convolutions).abs().max() <= 3**0.5 * (1 + 1e-6)
    torch.testing.assert_close(scaled(convolutions).std(), torch.tensor(1.0), atol=0.01, rtol=0)
    normal = scaled([m for m in res.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)])
    torch.testing.assert_close(normal.std(), torch.tensor(1.0), atol=0.01, rtol=0)
    assert normal.abs().max() > 4  # which a uniform draw never is


def test_unknown_network_names_the_nearest():
    with pytest.raises(ValueError, match=r"'densnet121'.*densenet121"):
        TimmSpec(name="densnet121").build(in_channels=3, num_outputs=1)
    with pytest.raises(ValueError, match=r"'lite7'\. Did you mean .*tf_efficientnet_lite2"):  # a short name of ours
        TimmSpec(name="lite7").build(in_channels=3, num_outputs=1)
    with pytest.raises(ValueError, match="no network named"):
        TimmSpec(name="hf-hub:timm/resnet18.a1_in1k").build(in_channels=3, num_outputs=1)


def test_elu_where_there_is_no_relu_is_refused():
    with pytest.raises(ValueError, match="test_efficientnet has no ReLU"):
        TimmSpec(name="test_efficientnet", activation="elu").build(in_channels=3, num_outputs=1)


def test_an_option_the_network_lacks_is_refused():
    with pytest.raises(ValueError, match=r"densenet121 does not take the options \{'drop_path_rate': 0.1\}"):
        TimmSpec(drop_path_rate=0.1).build(in_channels=3, num_outputs=1)
    with pytest.raises(ValueError, match="image_size"):
        TimmSpec(name="resnet18", image_size=64).build(in_channels=3, num_outputs=1)


def test_bad_options_are_refused_at_once():
    for spec in (TimmSpec, SmallCNNSpec, ResNet20Spec):
        with pytest.raises(ValueError, match="drop_rate must lie in"):
            spec(drop_rate=1.0)
    for spec in (MLPSpec, SmallCNNSpec, ResNet20Spec):
        with pytest.raises(ValueError, match="activation must be one of relu, elu, not 'gelu'"):
            spec(activation="gelu")
    with pytest.raises(ValueError, match="proj_drop_rate must lie in"):
        TimmSpec(proj_drop_rate=1.0)
    for spec in (TimmSpec, ResNet20Spec):
        with pytest.raises(ValueError, match=r"norm_momentum must lie in \(0, 1\], not -0.1"):
            spec(norm_momentum=-0.1)
        with pytest.raises(ValueError, match=r"start must be .*xavier.* not 'glorot'"):
            spec(start="glorot")
    with pytest.raises(ValueError, match="leave start out"):
        TimmSpec(start="xavier", pretrained=True)
    with pytest.raises(ValueError, match="'elu', or None"):
        TimmSpec(activation="relu")
    with pytest.raises(ValueError, match="widths is empty"):
        SmallCNNSpec(widths=())
    with pytest.raises(ValueError, match="hidden must hold"):
        MLPSpec(hidden=(4, 0))
    with pytest.raises(ValueError, match="num_outputs must be at least 1"):
        build_model(MLPSpec(), in_channels=1, num_outputs=0, seed=0)


def test_specs_are_frozen_and_hashable():
    specs = {*IMAGE_SPECS, MLPSpec(), FactorySpec(factory="a.b:c", arguments={"x": [1]})}
    assert len(specs) == len(IMAGE_SPECS) + 2
    with pytest.raises(AttributeError):
        ResNet20Spec().activation = "relu"
    with pytest.raises(TypeError):
        TimmSpec("densenet121")


def test_architecture_leaves_the_starting_weights_out():
    spec = TimmSpec(name="resnet18", pretrained=True, weights="x.safetensors", small_stem=True)
    assert architecture(spec) == TimmSpec(name="resnet18", small_stem=True)
    assert architecture(MLPSpec()) == MLPSpec()


def test_check_output_explains_a_wrong_size():
    model = build_model(ResNet20Spec(), in_channels=1, num_outputs=1, seed=0)
    with pytest.raises(ValueError, match=r"fails on an input of shape \(3, 28, 28\).*number of channels"):
        check_output(model, (3, 28, 28), num_outputs=1)
    assert model.training


@pytest.mark.parametrize(
    ("spec", "side"),
    [
        (TimmSpec(name="densenet121"), 29),
        (TimmSpec(name="densenet121", small_stem=True), 8),
        (TimmSpec(name="convnext_atto"), 32),
    ],
    ids=["densenet", "small-stem", "convnext"],
)
def test_the_smallest_size_is_named_and_works(spec, side):
    model = build_model(spec, in_channels=1, num_outputs=1, seed=0)
    check_output(model, (1, side, side), num_outputs=1)
    for shape in ((1, side - 1, side - 1), (1, 1, 1), (1, 3, 200)):
        with pytest.raises(ValueError, match=rf"The smallest images it takes are {side} x {side}: ") as error:
            check_output(model, shape, num_outputs=1)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", [ResNet20Spec(), SmallCNNSpec(), TimmSpec(name="resnet18")], ids=["R", "C", "T"])
def test_some_networks_take_one_pixel(spec):
    model = build_model(spec, in_channels=1, num_outputs=1, seed=0, input_shape=(1, 1, 1))
    assert model(torch.randn(4, 1, 1, 1)).isfinite().all()


def test_a_network_of_one_size_is_not_told_to_have_a_smallest():
    class Fixed(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1))

    model = Fixed(64 * 64, 1)
    with pytest.raises(ValueError, match="The smallest images it takes are 64 x 64"):
        check_output(model, (1, 28, 28), num_outputs=1)
    with pytest.raises(ValueError, match=r"size of the images against what the network takes\.$"):
        check_output(model, (1, 128, 128), num_outputs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tf_efficientnet_b6", "inception_resnet_v2", "densenet201"])
def test_big_networks_train_a_step(name):
    model = build_model(TimmSpec(name=name), in_channels=3, num_outputs=5, seed=0)
    loss = model(torch.randn(2, 3, 96, 96)).square().mean()
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [ResNet20Spec(), TimmSpec(activation="elu", small_stem=True)], ids=["R", "D"])
def test_forward_and_backward_fit_in_a_cuda_graph(spec):
    model = build_model(spec, in_channels=3, num_outputs=1, seed=0).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

    def step():
        model.zero_grad(set_to_none=False)
        model(x).sigmoid().sum().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    expected = [p.grad.clone() for p in model.parameters()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for p in model.parameters():
        p.grad.fill_(torch.nan)  # only a replay can repair this
    graph.replay()
    for p, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-2, atol=1e-3)
