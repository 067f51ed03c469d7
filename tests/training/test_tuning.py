import pytest
import torch
from safetensors.torch import load_file

from deepauc.data.augment.batch import Augment
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.plan.network import named_model
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.scoring import mean_auc
from deepauc.training.tuning import tune, with_pair

PAIRS = ((0.5, 0.002), (0.3, 0.01))
VIEWS = Stage(
    objective=Contrastive(),
    optimizer=SGDSpec(lr=0.1),
    epochs=1,
    batch_size=16,
    views=2,
    augment=Augment(crop_padding=1),
)
CE = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.1), epochs=2, batch_size=16)
AUC = Stage(
    objective=AUCMargin(margin=0.7),
    optimizer=PESGSpec(lr=0.1, gamma=0.005),
    epochs=2,
    batch_size=16,
    positives_per_batch=4,
    reset_classifier=True,
    augment=Augment(crop_padding=1),
)


@pytest.mark.parametrize("stages", [(AUC,), (CE, AUC), (VIEWS, CE, AUC)], ids=["one", "two", "three"])
def test_a_trial_is_the_training_it_stands_for(image_task, tmp_path, stages):
    """Its AUC is what the pair is chosen by: of other batches and another classifier it would say little."""
    model = named_model("small-cnn", image_task.source.shape)
    recipe = Recipe(model=model, stages=stages, guard=len(stages) == 2)
    trials = tune(recipe, image_task, pairs=PAIRS, seed=3, folder=tmp_path / "tuning", device="cpu")
    for number, (margin, gamma) in enumerate(PAIRS, start=1):
        pair = with_pair(recipe, margin=margin, gamma=gamma)
        whole = train(pair, image_task, seed=3, run_dir=tmp_path / str(number), device="cpu")
        weights = load_file(tmp_path / "tuning" / str(number) / "model.safetensors")
        last = whole.path / f"stage-{len(stages) - 1}.safetensors"  # the guard may have kept another
        for name, values in load_file(last if last.exists() else whole.path / "model.safetensors").items():
            assert torch.equal(values, weights[name]), name
        if not recipe.guard:
            assert trials[number - 1].validation_auc == mean_auc(whole.auc("validation"))


def test_a_place_is_a_whole_number():
    with pytest.raises(ValueError, match=r"place must be a whole number, from 0, not -1\."):
        Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.1), epochs=1, place=-1)
