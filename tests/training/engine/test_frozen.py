"""A last layer trained alone: features once, the other layers as they were, scores as the whole network gives them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.models.build import TimmSpec, build_model
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec
from deepauc.training.engine import frozen as frozen_module
from deepauc.training.engine.frozen import FrozenBackbone
from deepauc.training.engine.loop import can_be_fast, train
from deepauc.training.plan.timing import measure_pace
from deepauc.training.predict.predict import predict
from deepauc.training.preprocessing import Preprocessing
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.baseline import baseline_run
from deepauc.training.run.bundle import Bundle

CE = Stage(objective=CrossEntropy(), optimizer=AdamWSpec(lr=0.01), epochs=3, batch_size=16)
AUC = Stage(objective=AUCMargin(), optimizer=PESGSpec(lr=0.01), epochs=2, batch_size=16, positives_per_batch=4)


@pytest.fixture
def task():
    generator = np.random.default_rng(0)
    labels = (generator.random(80) < 0.4).astype(np.float32)
    images = generator.integers(0, 120, (80, 32, 32, 3)).astype(np.uint8)
    images[:, 8:20, 8:20] += (60 * labels).astype(np.uint8)[:, None, None, None]
    parts = {"train": np.arange(48), "validation": np.arange(48, 64), "test": np.arange(64, 80)}
    return Task(
        name="spots", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("spot",), parts=parts
    )


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(5)
    state = build_model(TimmSpec(name="test_resnet"), in_channels=3, num_outputs=1, seed=5).state_dict()
    save_file({k: v.contiguous() for k, v in state.items() if not k.startswith("fc.")}, tmp_path / "w.safetensors")
    return str(tmp_path / "w.safetensors")


def recipe(weights, *stages, **options):
    return Recipe(
        model=TimmSpec(name="test_resnet", weights=weights),
        stages=stages or (CE, AUC),
        input_mean=(0.5, 0.4, 0.3),
        input_std=(0.2, 0.25, 0.3),
        frozen=True,
        **options,
    )


def test_only_the_last_layer_changes_and_images_score_as_their_features(task, weights, tmp_path):
    run = train(recipe(weights, guard=True), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    bundle, before, after = Bundle.load(run.path), load_file(weights), load_file(run.path / "model.safetensors")
    assert (bundle.preprocessing.mean, bundle.preprocessing.std) == ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    assert bundle.shape == (32, 32, 3)
    assert after.keys() - before.keys() == {"fc.weight", "fc.bias"}
    assert all(torch.equal(before[k], after[k]) for k in before)
    # By the whole network, from the images: another way to the same scores.
    scores = predict(run.path, task, device="cpu")[task.part("test")]
    np.testing.assert_allclose(np.ravel(scores), run.scores("test")[0], rtol=1e-4, atol=1e-4)
    assert np.std(run.scores("test")[0]) > 0.01


def test_the_baseline_is_the_network_of_stage_1(task, weights, tmp_path):
    run = train(recipe(weights, guard=True), task, seed=0, run_dir=tmp_path / "run", device="cpu")
    first = train(recipe(weights, CE), task, seed=0, run_dir=tmp_path / "first", device="cpu")
    found = baseline_run(run, task, device="cpu")
    np.testing.assert_allclose(found.scores("test")[0], first.scores("test")[0], rtol=1e-4, atol=1e-4)


def test_features_are_computed_once_for_all_folds(task, weights, tmp_path, monkeypatch):
    passes = []

    class Counted(frozen_module.FeatureExtractor):
        def forward(self, x):
            passes.append(len(x))
            return super().forward(x)

    monkeypatch.setattr(frozen_module, "FeatureExtractor", Counted)
    other = task.with_parts({"train": np.arange(32, 80), "validation": np.arange(16), "test": np.arange(16, 32)})
    for name, fold in (("a", task), ("b", other)):
        train(recipe(weights, CE), fold, seed=0, run_dir=tmp_path / name, device="cpu")
    assert sum(passes) == len(task)


def test_what_is_timed_is_the_last_layer(task, weights, monkeypatch):
    passes = []
    whole = frozen_module.FrozenBackbone.__init__

    def counted(self, *arguments):
        passes.append(self)
        whole(self, *arguments)

    monkeypatch.setattr(frozen_module.FrozenBackbone, "__init__", counted)
    pace = measure_pace(recipe(weights), task, seed=0, device=torch.device("cpu"))
    assert len(passes) == len(pace.step) == 2


def test_a_stopped_run_goes_on_to_the_bit(task, weights, tmp_path):
    whole = train(recipe(weights), task, seed=0, run_dir=tmp_path / "whole", device="cpu")

    def stop(step):
        if step.stage == 1 and step.iteration == 2:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        train(recipe(weights), task, seed=0, run_dir=tmp_path / "stopped", device="cpu", progress=stop)
    again = train(recipe(weights), task, seed=0, run_dir=tmp_path / "stopped", device="cpu")
    assert np.array_equal(again.scores("test")[0], whole.scores("test")[0])


def test_there_and_back(task, weights):
    """The head of standardised features, as the last layer of raw ones, and again as a head."""
    spec = TimmSpec(name="test_resnet", weights=weights)
    network = build_model(spec, in_channels=3, num_outputs=1, seed=0)
    backbone = FrozenBackbone(network, spec, task, Preprocessing.none(task))
    torch.nn.init.normal_(backbone.head.head.weight)
    torch.nn.init.normal_(backbone.head.head.bias)
    kept = {k: v.clone() for k, v in backbone.head.state_dict().items()}
    rows = np.arange(8)
    with torch.no_grad():
        by_features = backbone.head(backbone.preprocessing(torch.from_numpy(backbone.task.inputs(rows))))
        by_images = backbone.whole()(backbone.inputs(torch.from_numpy(task.inputs(rows))))
    torch.testing.assert_close(by_images, by_features, rtol=1e-4, atol=1e-4)
    backbone.head.head.reset_parameters()
    backbone.take_head()
    torch.testing.assert_close(backbone.head.state_dict(), kept, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_frozen_is_refused(weights):
    for changed, message in (
        ({"augment": Augment()}, "leave augment out"),
        ({"start_from": "runs/other"}, "leave start_from out"),
        ({"backbone_rate": 0.1}, "trains the last layer alone"),
        ({"frozen_epochs": 1}, "trains the last layer alone"),
        ({"drop_rate": 0.1}, "trains the last layer alone"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe(weights, replace(CE, **changed))
    assert not can_be_fast(recipe(weights))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_mean": (0.5,)}, "go together"),
        ({"input_mean": (0.5,), "input_std": (0.0,)}, "positive"),
        ({"input_mean": (0.5,), "input_std": (0.5,), "standardise": False}, "leave out input_mean"),
    ],
)
def test_inputs_that_cannot_be_normalised_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Recipe(model=TimmSpec(), stages=(CE,), **options)


def test_normalisation_for_another_number_of_channels_is_refused(task):
    with pytest.raises(ValueError, match="images with 1 channel,"):
        Preprocessing.given(task, mean=(0.5,), std=(0.5,))
