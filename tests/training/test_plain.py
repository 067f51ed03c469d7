"""Recipes as plain data: there and back, named by their hash, strict about what they do not know."""

import json

import pytest

from deepauc.data.augment.batch import Augment
from deepauc.models.build import FactorySpec, MLPSpec, ResNet20Spec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec
from deepauc.training.plain import from_plain, recipe_hash, to_plain
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Steps

STAGES = (
    Stage(
        objective=CrossEntropy(label_smoothing=0.1), optimizer=AdamSpec(lr=1e-5), epochs=2, schedule=Cosine(warmup=5)
    ),
    Stage(
        objective=AUCMargin(margin=(0.3, 0.5)),
        optimizer=PESGSpec(gamma=1 / 300),
        iterations=10_000,
        schedule=Steps(milestones=(2000, 8000), factor_each=1 / 3, unit="iterations"),
        augment=Augment(scale=(0.9, 1.1)),
        uncertain={"Edema": "ones", "Cardiomegaly": "zeros"},
    ),
)


@pytest.mark.parametrize(
    "model",
    [
        ResNet20Spec(),
        TimmSpec(name="densenet121"),
        MLPSpec(hidden=(3, 4)),
        FactorySpec(factory="a.b:c", arguments={"type": "x", "d": 1}),
    ],
)
def test_there_and_back(model):
    recipe = Recipe(model=model, stages=STAGES, guard=True)
    text = json.dumps(to_plain(recipe))
    again = from_plain(json.loads(text))
    assert again == recipe
    assert recipe_hash(again) == recipe_hash(recipe)


def test_every_option_changes_the_name():
    names = {recipe_hash(Recipe(model=ResNet20Spec(), stages=stages)) for stages in (STAGES, STAGES[:1], STAGES[1:])}
    names.add(recipe_hash(Recipe(model=ResNet20Spec(), stages=STAGES, guard=True)))
    assert len(names) == 4


def test_unknown_names_are_refused_with_the_nearest():
    plain = to_plain(STAGES[0])
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        from_plain({**plain, "batchsize": 3})
    with pytest.raises(ValueError, match="did you mean 'AUCMargin'"):
        from_plain({"type": "AUCMargn"})
    with pytest.raises(ValueError, match="none of these"):
        to_plain(Recipe(model=object(), stages=STAGES))
