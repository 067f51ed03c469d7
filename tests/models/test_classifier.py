"""The classifier layer: found in any network, drawn anew without touching anything else."""

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from deepauc.models.build import MLPSpec, ResNet20Spec, SmallCNNSpec, TimmSpec, build_model
from deepauc.models.classifier import classifier_head, classifier_name, narrow_classifier, reset_classifier


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("densenet121", "classifier"),
        ("resnet18", "fc"),
        ("inception_resnet_v2", "classif"),
        ("efficientnet_b3", "classifier"),
        ("vgg11", "head.fc"),
        ("convnext_atto", "head.fc"),
        ("vit_tiny_patch16_224", "head"),
        ("dla34", "fc"),  # a 1x1 convolution
    ],
)
def test_found_in_timms_networks(name, path):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=3)
    assert classifier_name(model) == path
    assert classifier_head(model).weight.shape[0] == 3


@pytest.mark.parametrize("spec", [ResNet20Spec(), SmallCNNSpec(), MLPSpec()])
def test_found_in_ours(spec):
    model = build_model(spec, in_channels=2, num_outputs=3, seed=0)
    assert classifier_name(model) == "head"
    assert classifier_head(model) is model.head


def test_found_in_the_users():
    assert classifier_name(nn.Sequential(nn.Linear(4, 3), nn.ELU(), nn.Linear(3, 1))) == "2"

    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 1)
            self.body = nn.Linear(4, 2)

    assert classifier_name(HeadFirst()) == "head"


def test_absence_is_said():
    with pytest.raises(ValueError, match=r"name its last nn.Linear `head`"):
        classifier_head(nn.Sequential(nn.Conv2d(1, 1, 1)))
    headless = timm.create_model("test_resnet", num_classes=0)
    with pytest.raises(ValueError, match="no classifier layer found"):
        classifier_head(headless)


@pytest.mark.parametrize("spec", [ResNet20Spec(), TimmSpec(name="test_resnet"), TimmSpec(name="dla46_c")])
def test_only_the_head_changes(spec):
    model = build_model(spec, in_channels=3, num_outputs=2, seed=0)
    head = classifier_name(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    objects = {name: id(p) for name, p in model.named_parameters()}
    torch.manual_seed(0)
    generator = torch.get_rng_state()
    reset_classifier(model, seed=7)
    assert torch.equal(generator, torch.get_rng_state())
    assert objects == {name: id(p) for name, p in model.named_parameters()}
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {f"{head}.weight", f"{head}.bias"}


def test_same_seed_same_layer_whatever_the_network_type():
    models = [MLPSpec().build(in_channels=4, num_outputs=2) for _ in range(3)]
    models[1].double()
    for model, seed in zip(models, (3, 3, 4), strict=True):
        reset_classifier(model, seed=seed)
    assert torch.equal(models[0].head.weight.double(), models[1].head.weight)
    assert torch.equal(models[0].head.bias.double(), models[1].head.bias)
    assert not torch.equal(models[0].head.weight, models[2].head.weight)


def test_the_draw_is_fixed_for_good():
    model = nn.Sequential(nn.Linear(4, 1))
    reset_classifier(model, seed=0)
    # torch.rand's first numbers for seed 0 less one half: other numbers would change every two-stage run.
    expected = [0.4962566 - 0.5, 0.7682218 - 0.5, 0.0884774 - 0.5, 0.1320305 - 0.5]
    torch.testing.assert_close(model[0].weight[0].tolist(), expected, rtol=0, atol=1e-6)


def test_the_draw_is_uniform_within_its_bound():
    model = nn.Sequential(nn.Linear(400, 50))
    reset_classifier(model, seed=1)
    weight = model[0].weight
    assert weight.abs().max() <= 1 / 20
    assert weight.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=1e-3)


def test_a_layer_without_bias():
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    old = model[0].weight.detach().clone()
    reset_classifier(model, seed=0)
    assert not torch.equal(model[0].weight, old)


@pytest.mark.parametrize("name", ["test_efficientnet", "efficientnet_b0", "mobilenetv3_small_050"])
@pytest.mark.parametrize("outputs", [1, 5])
def test_a_fresh_classifier_of_timms_is_not_drawn_wider_than_ours(name, outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = classifier_head(timm.create_model(name, num_classes=outputs)).weight
    ours = classifier_head(build_model(TimmSpec(name=name), in_channels=3, num_outputs=outputs, seed=0)).weight
    bound = theirs.shape[1] ** -0.5
    assert theirs.abs().max() > 5 * bound  # else the day has come to take this out
    assert ours.abs().max().item() == pytest.approx(bound)
    assert torch.allclose(ours / ours.abs().max(), theirs / theirs.abs().max())  # no number is drawn for it
    assert classifier_head(build_model(TimmSpec(name=name), in_channels=3, num_outputs=outputs, seed=0)).weight.equal(
        ours
    )


@pytest.mark.parametrize("name", ["densenet121", "resnet18", "convnext_atto", "vit_tiny_patch16_224", "regnety_002"])
def test_classifiers_of_the_usual_width_are_left_as_they_are(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = timm.create_model(name, num_classes=1).state_dict()
    ours = build_model(TimmSpec(name=name), in_channels=3, num_outputs=1, seed=0).state_dict()
    assert all(value.equal(ours[key]) for key, value in theirs.items())


def test_what_has_no_classifier_is_left_alone():
    narrow_classifier(nn.Sequential(nn.ELU()))


def test_a_classifier_from_a_file_is_kept(tmp_path):
    state = timm.create_model("test_efficientnet", num_classes=1).state_dict()
    save_file(state, tmp_path / "w.safetensors")
    spec = TimmSpec(name="test_efficientnet", weights=str(tmp_path / "w.safetensors"))
    loaded = build_model(spec, in_channels=3, num_outputs=1, seed=3)
    assert classifier_head(loaded).weight.equal(state["classifier.weight"])
