"""A plan for bags: the network pools, a step sees few images of large bags, and the budget counts images."""

from dataclasses import replace

import pytest

from deepauc.models.build import BagSpec, SmallCNNSpec
from deepauc.training.plan.bags import MOST_IMAGES
from deepauc.training.plan.inputs import BagSizes, Fingerprint, PlanOptions
from deepauc.training.plan.make import make_plan

ROWS = Fingerprint(
    rows={"train": 800, "validation": 200},
    positives={"train": (60,), "validation": (30,)},
    negatives={"train": (740,), "validation": (170,)},
    shape=(28, 28, 1),
    file_sizes={},
    groups=None,
)


def bags(mean, largest):
    return replace(ROWS, bags=BagSizes(mean=mean, largest=largest))


@pytest.mark.parametrize(("mean", "largest", "seen"), [(4.0, 9, None), (40.0, 900, MOST_IMAGES)])
def test_the_network_pools_and_large_bags_are_drawn_from(mean, largest, seen):
    plan = make_plan(bags(mean, largest), PlanOptions(), "cpu")
    assert isinstance(plan.recipe.model, BagSpec)
    assert all(stage.images_per_bag == seen for stage in plan.recipe.stages)
    assert {"pooling", "images per bag"} <= {decision.name for decision in plan.decisions}
    assert not any(stage.on_views for stage in plan.recipe.stages)


def test_bags_take_smaller_batches_and_fewer_epochs_than_as_many_images():
    options = PlanOptions(model="small-cnn")
    image, bag = (make_plan(one, options, "cpu").recipe for one in (ROWS, bags(16.0, 16)))
    assert bag.stages[0].batch_size < image.stages[0].batch_size
    assert bag.stages[0].epochs < image.stages[0].epochs
    assert bag.model == BagSpec(image=image.model)
    assert isinstance(image.model, SmallCNNSpec)


def test_what_is_asked_for_is_done():
    options = PlanOptions(pooling="attention", images_per_bag=3)
    recipe = make_plan(bags(4.0, 9), options, "cpu").recipe
    assert recipe.model.pooling == "attention"
    assert recipe.stages[0].images_per_bag == 3


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (ROWS, {"pooling": "max"}, "--bag-column"),
        (ROWS, {"images_per_bag": 3}, "--bag-column"),
        (bags(4.0, 9), {"first_stage": "contrastive"}, "leave first_stage out"),
        (bags(4.0, 9), {"pretrained": True, "backbone": "frozen"}, "backbone trained"),
    ],
)
def test_what_cannot_be_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        make_plan(data, PlanOptions(**options), "cpu")


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="pooling must be one of"):
        PlanOptions(pooling="median")
    with pytest.raises(ValueError, match="images_per_bag must be at least 1"):
        PlanOptions(images_per_bag=0)


def test_pretrained_weights_are_those_of_the_image_network_and_all_layers_train():
    recipe = make_plan(bags(4.0, 9), PlanOptions(pretrained=True), "cpu").recipe
    assert recipe.model.image.pretrained
    assert not recipe.frozen
    assert recipe.stages[0].backbone_rate < 1
