"""Plans that start from pretrained weights: their network, inputs, size, rates, and what they refuse."""

from dataclasses import replace

import pytest

from deepauc.models.build import TimmSpec
from deepauc.models.pretrained import FoundWeights
from deepauc.training.plan.decision import ASKED
from deepauc.training.plan.inputs import Fingerprint, PlanOptions
from deepauc.training.plan.make import make_plan
from deepauc.training.plan.network import planned_size
from deepauc.training.plan.start import DEFAULT, starting_model, weights_decision
from deepauc.training.plan.wording import told

IMAGES = Fingerprint(
    rows={"train": 400, "validation": 100},
    positives={"train": (100,), "validation": (30,)},
    negatives={"train": (300,), "validation": (70,)},
    shape=(128, 128, 3),
    file_sizes={(28, 28): 500},
    groups=None,
)
START = PlanOptions(pretrained=True)


def decisions(plan):
    return {one.name: one for one in plan.decisions}


def test_on_a_cpu_the_last_layer_alone_is_trained():
    plan = make_plan(IMAGES, START, "cpu")
    recipe = plan.recipe
    assert recipe.model == TimmSpec(name=DEFAULT, pretrained=True)
    assert recipe.frozen
    assert (recipe.input_mean, recipe.input_std) == ((127 / 255,) * 3, (128 / 255,) * 3)
    assert all(stage.augment is None and stage.backbone_rate == 1 for stage in recipe.stages)
    assert decisions(plan)["image size"].reason == ("enlarged",)
    assert "first stage" in decisions(plan)
    assert all(told(one).reason for one in plan.decisions)


def test_on_a_gpu_all_layers_are_trained_the_pretrained_ones_more_slowly():
    recipe = make_plan(IMAGES, START, "cuda").recipe
    assert not recipe.frozen
    assert all(stage.augment is not None and stage.backbone_rate < 1 for stage in recipe.stages)
    assert all(stage.precision == "bfloat16" for stage in recipe.stages)
    asked = make_plan(IMAGES, replace(START, backbone="trained"), "cpu").recipe
    assert [stage.backbone_rate for stage in asked.stages] == [recipe.stages[0].backbone_rate] * len(asked.stages)
    assert make_plan(IMAGES, replace(START, backbone="frozen"), "cuda").recipe.frozen


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("auc_stage", ["auto", "none", "always"])
@pytest.mark.parametrize("backbone", ["frozen", "trained"])
def test_every_plan_can_be_told(device, auc_stage, backbone):
    plan = make_plan(IMAGES, replace(START, auc_stage=auc_stage, backbone=backbone), device)
    assert all(told(one).reason for one in plan.decisions)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ({"pretrained": True}, TimmSpec(name=DEFAULT, pretrained=True)),
        ({"pretrained": "lite2"}, TimmSpec(name="tf_efficientnet_lite2", pretrained=True)),
        ({"pretrained": True, "model": "densenet121"}, TimmSpec(name="densenet121", pretrained=True)),
        ({"pretrained": "w.safetensors", "model": "resnet50"}, TimmSpec(name="resnet50", weights="w.safetensors")),
        ({}, None),
    ],
)
def test_what_the_options_start_from(options, model):
    assert starting_model(PlanOptions(**options)) == model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pretrained": "w.safetensors"}, r"name its network too, with --model NAME, or with model under \[plan\]"),
        ({"pretrained": "resnet50", "model": "densenet121"}, "leave one of them out"),
        ({"pretrained": True, "model": "resnet20"}, "no weights are published for resnet20"),
        ({"pretrained": True, "tta": 4}, "leave out tta"),
        ({"pretrained": True, "first_stage": "contrastive"}, "which is frozen"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_plan(IMAGES, PlanOptions(**options), "cpu")


def test_options_without_weights_are_refused():
    with pytest.raises(ValueError, match="set pretrained too"):
        PlanOptions(backbone="frozen")
    with pytest.raises(ValueError, match="weights are for images"):
        make_plan(replace(IMAGES, shape=(7,), file_sizes={}), START, "cpu")


def test_small_images_are_enlarged_and_large_ones_shrunk():
    for side, cpu, cuda in ((28, 128, 128), (200, 128, 200), (600, 128, 224)):
        files = {(side, side): 9}
        assert planned_size(files, "cpu", pretrained=True) == (cpu, cpu)
        assert planned_size(files, "cuda", pretrained=True) == (cuda, cuda)
    assert planned_size({(28, 14): 3}, "cpu", pretrained=True) == (128, 64)


@pytest.mark.parametrize("source", ["package", "Hugging Face's cache", "torchvision's cache", "file"])
def test_source_and_licence_are_told(source, tmp_path):
    found = FoundWeights(file=tmp_path / "w.pth", source=source, origin="a place", licence="Apache-2.0")
    said = told(weights_decision(TimmSpec(name=DEFAULT, pretrained=True), found))
    assert said.value == DEFAULT
    assert ("Apache-2.0" in said.reason) == (source != "file")


def test_a_name_counts_as_asked_for():
    assert decisions(make_plan(IMAGES, PlanOptions(pretrained="lite1"), "cpu"))["network"].reason == ASKED
