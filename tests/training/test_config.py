"""TOML settings: there and back without loss, and every fault named with its place and the nearest valid name."""

import tomllib
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepauc.data.augment.batch import Augment
from deepauc.models.average import AverageSpec, OnFeaturesSpec, OnPicturesSpec
from deepauc.models.build import FactorySpec, MLPSpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.auc_square import AUCSquare
from deepauc.objectives.baselines import CrossEntropy, Focal
from deepauc.objectives.pairwise import PairwiseAUC
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, AdamWSpec, SGDSpec
from deepauc.training.config import _KINDS, DataSettings, Settings, SplitSettings, read_settings, settings_toml
from deepauc.training.plain import SPECS, recipe_hash
from deepauc.training.plan.inputs import PlanOptions
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Cosine, Cyclic, Steps

RECIPE = """
[recipe.model]
type = "MLPSpec"
[[recipe.stages]]
epochs = 2
objective = {type = "AUCMargin", margin = 0.3}
optimizer = {type = "PESGSpec", lr = 1}
"""


def written(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def there_and_back(tmp_path, given_settings):
    return read_settings(written(tmp_path, settings_toml(given_settings, comments=["why\nand how"])))


STAGES = (
    Stage(objective=CrossEntropy(pos_weight=(2.0, 3)), optimizer=SGDSpec(nesterov=True), epochs=3, schedule=Cosine()),
    Stage(
        objective=AUCMargin(margin=(0.5, 1)),
        optimizer=PESGSpec(gamma=1 / 700, reference="zero", alpha_step="closed", clip_value=0.5),
        iterations=7,
        schedule=Steps(milestones=(2, 4), unit="iterations"),
        positives_per_batch=4,
        augment=Augment(rotation=8, scale=(0.9, 1.1)),
        uncertain={"a": "ones", "b c": "zeros"},
        keep="best",
        patience=2,
        ema=0.99,
    ),
    Stage(objective=AUCSquare(), optimizer=AdamSpec(lr=1e-05), epochs=1, bound="l2", start_from="some/where"),
    Stage(objective=Focal(), optimizer=AdamWSpec(betas=(0.8, 0.9)), epochs=1, schedule=Cyclic(period=2)),
    Stage(objective=PairwiseAUC(), optimizer=SGDSpec(), epochs=1, uncertain="ignore"),
)


@pytest.mark.parametrize(
    "model",
    [
        MLPSpec(hidden=()),
        SmallCNNSpec(),
        ResNet20Spec(),
        TimmSpec(name="resnet18", activation="elu", small_stem=True),
        FactorySpec(factory="a.b:c", arguments={"type": "x", "deep": {"list": [1, 2.5, "three"]}, "odd key": True}),
    ],
)
def test_there_and_back_gives_the_same_settings_and_hash(tmp_path, model):
    whole = Settings(
        seed=3,
        tune=2,
        data=DataSettings(table="a b.csv", label_columns=("x", "y"), image_column="file", image_size=(28, 30)),
        split=SplitSettings(train=0.8, validation=0.1, test=0.1, seed=4),
        recipe=Recipe(model=model, stages=STAGES, guard=True),
    )
    back = there_and_back(tmp_path, whole)
    assert back == whole
    assert recipe_hash(back.recipe) == recipe_hash(whole.recipe)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(text=st.text(min_size=1), share=st.floats(allow_nan=False), count=st.integers(0, 2**60))
def test_any_text_and_any_number_survive(tmp_path_factory, text, share, count):
    whole = Settings(seed=count, data=DataSettings(table=text, label_columns=(text,)), split=SplitSettings(train=share))
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half a surrogate pair is no text, in no file
        return
    assert encoded.decode() == text
    assert there_and_back(tmp_path_factory.mktemp("t"), whole) == whole


def test_options_of_the_plan_survive_and_give_way_to_a_recipe(tmp_path):
    planned = Settings(plan=PlanOptions(model="resnet20", epochs=4))
    assert there_and_back(tmp_path, planned) == planned
    with pytest.raises(ValueError, match="change epochs in the recipe itself"):
        read_settings(written(tmp_path, "[plan]\nepochs = 3\n" + RECIPE))


def test_what_is_left_out_is_the_default(tmp_path):
    found = read_settings(written(tmp_path, RECIPE)).recipe
    (stage,) = found.stages
    assert stage == Stage(objective=AUCMargin(margin=0.3), optimizer=PESGSpec(lr=1), epochs=2)
    assert read_settings(written(tmp_path, "")) == Settings()


def test_none_is_the_default_of_every_option_that_can_be_none():
    """What is None is left out of the file, so it has to come back as None."""
    for cls in (*SPECS, DataSettings, SplitSettings, PlanOptions, Settings):
        for option in fields(cls):
            if option.init and "None" in str(option.type):
                assert option.default is None, (cls, option.name)


def test_every_spec_can_be_named_in_a_file():
    assert {cls for kinds in _KINDS.values() for cls in kinds} == set(SPECS) - {
        *(Recipe, Stage, Augment, AverageSpec, OnFeaturesSpec, OnPicturesSpec)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = 3", "sed: 'sed' is not a known section or option; did you mean 'seed'?"),
        ("[data]\nlable_columns = ['x']", "data.lable_columns: .* did you mean 'label_columns'?"),
        (RECIPE.replace("epochs", "epoch"), r"recipe.stages\[0\].epoch: .* did you mean 'epochs'?"),
        (RECIPE.replace("margin", "margn"), r"recipe.stages\[0\].objective.margn: .* did you mean 'margin'?"),
        (RECIPE.replace("AUCMargin", "AUCMagin"), r"objective.type: .* did you mean 'AUCMargin'?"),
        (RECIPE.replace("MLPSpec", "PESGSpec"), r"recipe.model.type: 'PESGSpec' is not a known type for this entry"),
        (RECIPE.replace('type = "MLPSpec"', "hidden = [3]"), "recipe.model must be a table with a type: .*MLPSpec"),
        (RECIPE.replace("epochs = 2", "epochs = 'two'"), r"stages\[0\].epochs must be a whole number, not 'two'"),
        (RECIPE.replace("epochs = 2", "epochs = 2.5"), r"stages\[0\].epochs must be a whole number, not 2.5"),
        (RECIPE.replace("epochs = 2", "epochs = true"), r"stages\[0\].epochs must be a whole number, not True"),
        (RECIPE.replace("epochs = 2", "epochs = 0"), r"recipe.stages\[0\]: epochs must be a whole number of at least"),
        (RECIPE.replace("epochs = 2", ""), r"recipe.stages\[0\]: a stage has a length in epochs or in iterations"),
        (
            RECIPE.replace("lr = 1", "reference = 'origin'"),
            r"optimizer.reference must be .*start.*zero.* not 'origin'",
        ),
        (RECIPE.replace("lr = 1", "alpha_step = 'x'"), r"optimizer.alpha_step must be .*gradient.*closed.*, not 'x'"),
        (RECIPE.replace("lr = 1", "clip_value = 0"), r"optimizer: clip_value must be positive, or None"),
        (RECIPE.replace("lr = 1", "lr = '0.1'"), r"optimizer.lr must be a number, not '0.1'"),
        (RECIPE.replace("margin = 0.3", "margin = 'x'"), r"objective.margin must be a number, not 'x'"),
        (RECIPE.replace("margin = 0.3", "margin = ['x']"), r"objective.margin\[0\] must be a number, not 'x'"),
        (RECIPE + 'keep = "first"', r"stages\[0\].keep must be one of last, best, not 'first'"),
        (RECIPE + "augment = {scale = [1]}", r"augment.scale must hold 2 values, not 1"),
        (RECIPE + "augment = 3", r"stages\[0\].augment must be a table with keys, not 3"),
        (RECIPE.replace("optimizer", "# "), r"recipe.stages\[0\]: Stage needs optimizer"),
        ("[recipe.model]\ntype='MLPSpec'", r"recipe: Recipe needs stages\. .* take \[recipe\] out, print the plan"),
        ("[recipe]\ntta = 8", r"recipe: Recipe needs model\. .*--print-config > plan\.toml"),
        ("data = 3", "data must be a table with keys"),
        ("[data]\nlabel_columns = 'x'", "data.label_columns must be a list in square brackets"),
        ("[data]\nskip_bad = 'yes'", "data.skip_bad must be true or false, not 'yes'"),
        ("[plan]\npretrained = 3", "plan.pretrained must be true or false or a text in quotes, not 3"),
        ("folds = 2.5", "folds must be a whole number or a text in quotes, not 2.5"),
        ("seed = -1", "seed must not be negative"),
        ('tune = 2\n[plan]\nauc_stage = "none"', "which auc_stage none leaves out: give one"),
        ("seed = = 3", "is not a valid TOML file"),
    ],
)
def test_every_fault_is_named_with_its_place(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_settings(written(tmp_path, text))
    assert "run.toml" in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_no_such_file_and_no_text(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_settings(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match="not a valid TOML file"):
        read_settings(tmp_path / "bytes.toml")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_as_windows_writes_it(tmp_path, encoding):
    """utf-8-sig: its editor; utf-16: what PowerShell makes of `--print-config > plan.toml`."""
    text = 'seed = 3\n[data]\ntable = "δ/é.csv"\nlabel_columns = ["ill"]\n'
    (tmp_path / "plan.toml").write_text(text, encoding=encoding, newline="\r\n")
    assert read_settings(tmp_path / "plan.toml") == read_settings(written(tmp_path, text))


def test_the_file_is_toml_that_others_can_read_too():
    whole = Settings(recipe=Recipe(model=MLPSpec(), stages=STAGES))
    content = tomllib.loads(settings_toml(whole))
    assert content["recipe"]["stages"][1]["objective"] == {
        "type": "AUCMargin",
        "margin": [0.5, 1],
        "normalise": True,
        "constrain_alpha": True,
        "soft_labels": False,
    }
    assert "plan" not in content
    assert "type" not in content["recipe"]
    assert "plan" in tomllib.loads(settings_toml(replace(whole, recipe=None)))
