"""Features on the network's own tensors, and the projection head behind them."""

import pytest
import timm
import torch
from torch import nn

from deepauc.models.build import MLPSpec, ResNet20Spec, SmallCNNSpec, TimmSpec, build_model
from deepauc.models.classifier import classifier_head, classifier_name
from deepauc.models.projection import FeatureExtractor, ProjectionHead


@pytest.mark.parametrize(
    ("spec", "width"),
    [
        (ResNet20Spec(), 64),
        (SmallCNNSpec(), 128),
        (TimmSpec(name="densenet121", small_stem=True, activation="elu"), 1024),
        (TimmSpec(name="test_efficientnet"), 256),
        (TimmSpec(name="dla46_c"), 256),  # its classifier is a 1x1 convolution
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_features_are_what_the_classifier_reads(spec, width):
    model = build_model(spec, in_channels=3, num_outputs=2, seed=0).eval()
    extractor = FeatureExtractor(model)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = extractor(x)
    assert features.shape == (2, width) == (2, extractor.num_features)
    head = classifier_head(model)
    scores = features @ head.weight.reshape(2, width).T + head.bias
    torch.testing.assert_close(scores, model(x), rtol=1e-4, atol=1e-4)


def test_tensors_are_shared_and_the_classifier_is_left_out():
    model = build_model(ResNet20Spec(), in_channels=1, num_outputs=1, seed=0)
    extractor = FeatureExtractor(model)
    head = classifier_name(model)
    expected = {id(p) for name, p in model.named_parameters() if not name.startswith(head)}
    assert {id(p) for p in extractor.parameters()} == expected
    assert {id(b) for b in extractor.buffers()} == {id(b) for b in model.buffers()}
    assert isinstance(model.head, nn.Linear)


def test_training_the_extractor_trains_the_network():
    model = build_model(SmallCNNSpec(), in_channels=1, num_outputs=1, seed=0)
    extractor = FeatureExtractor(model)
    projection = ProjectionHead(extractor.num_features, 16, 8)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD([*extractor.parameters(), *projection.parameters()], lr=0.1)
    projection(extractor(torch.randn(8, 1, 16, 16))).square().mean().backward()
    optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if not k.startswith("head")}


def test_every_parameter_gets_a_gradient():
    # What DistributedDataParallel asks of a module it wraps.
    extractor = FeatureExtractor(build_model(ResNet20Spec(), in_channels=1, num_outputs=1, seed=0))
    both = nn.Sequential(extractor, ProjectionHead(extractor.num_features))
    both(torch.randn(4, 1, 16, 16)).sum().backward()
    assert all(p.grad is not None for p in both.parameters())


def test_loading_the_network_later_shows_in_the_extractor():
    model, other = (build_model(MLPSpec(), in_channels=4, num_outputs=1, seed=s) for s in (0, 1))
    extractor = FeatureExtractor(model)
    model.load_state_dict(other.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(extractor(x), other.hidden(x))


def test_moving_alone_is_refused_and_staying_is_not():
    model = build_model(SmallCNNSpec(), in_channels=1, num_outputs=1, seed=0)
    extractor = FeatureExtractor(model)
    nn.Sequential(extractor, nn.ELU()).to("cpu", memory_format=torch.channels_last)
    assert {id(b) for b in extractor.buffers()} == {id(b) for b in model.buffers()}
    with pytest.raises(RuntimeError, match="move the network first"):
        extractor.double()


def test_extractor_is_one_graph_for_the_compiler():
    model = build_model(ResNet20Spec(), in_channels=1, num_outputs=1, seed=0).eval()
    extractor = FeatureExtractor(model).eval()
    x = torch.randn(2, 1, 16, 16)
    assert torch.equal(torch.compile(extractor, backend="eager", fullgraph=True)(x), extractor(x))


def test_a_network_without_classifier_is_refused():
    with pytest.raises(ValueError, match="no classifier layer"):
        FeatureExtractor(timm.create_model("test_resnet", num_classes=0))


def test_projection_head():
    head = ProjectionHead(6, 5, 3)
    assert sum(p.numel() for p in head.parameters()) == 6 * 5 + 2 * 5 + 5 * 3 + 3
    x = torch.randn(7, 6)
    hidden = x @ head.hidden.weight.T
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    expected = hidden.clamp(min=0) @ head.out.weight.T + head.out.bias
    torch.testing.assert_close(head(x), expected, rtol=1e-5, atol=1e-5)
