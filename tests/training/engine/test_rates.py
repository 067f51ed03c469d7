"""Layers below the last at a share of the learning rate, or frozen, and dropout of one stage; both engines, packed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deepauc.models.build import SmallCNNSpec, build_model
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pdsca import PDSCASpec
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec, SGDSpec
from deepauc.training.engine.fast import fast_step
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.engine.rates import RATE, slow_backbone
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps

MODEL = SmallCNNSpec(widths=(4, 8))
HEAD = ("head.weight", "head.bias")
SGD = SGDSpec(lr=0.1, momentum=0.0)


def moved(task, folder, stage, engine="plain"):
    """What one stage has changed in each tensor that is trained."""
    run = train(Recipe(model=MODEL, stages=(stage,)), task, seed=0, run_dir=folder, device="cpu", engine=engine)
    after = load_file(run.path / "model.safetensors")
    before = build_model(MODEL, in_channels=1, num_outputs=1, seed=0)
    return {name: after[name] - tensor.detach() for name, tensor in before.named_parameters()}


@pytest.mark.parametrize(
    ("objective", "optimizer"), [(CrossEntropy(), SGD), (AUCMargin(), PESGSpec(lr=0.1)), (CrossEntropy(), AdamWSpec())]
)
def test_one_step_moves_the_layers_by_their_share(image_task, tmp_path, objective, optimizer):
    stage = Stage(objective=objective, optimizer=optimizer, iterations=1, batch_size=32)
    whole = moved(image_task, tmp_path / "whole", stage)
    slow = moved(image_task, tmp_path / "slow", replace(stage, backbone_rate=0.1))
    for name, change in whole.items():
        share = 1.0 if name in HEAD else 0.1
        torch.testing.assert_close(slow[name], share * change, rtol=2e-2, atol=1e-6)
        assert change.abs().max() > 1e-5


def test_graded_rates_rise_by_one_factor_to_the_last_layer(image_task, tmp_path):
    """Eight layers below the last: two in each quarter, their norms beside them."""
    model = SmallCNNSpec(widths=(4,) * 8)
    trained = build_model(model, in_channels=1, num_outputs=1, seed=0)
    optimizer = SGD.build(trained.parameters(), torch.nn.Module())
    slow_backbone(optimizer, trained, rate=0.0001, graded=True)
    rates = {id(p): group.get(RATE, 1.0) for group in optimizer.param_groups for p in group["params"]}
    found = {name.rpartition(".")[0]: rates[id(p)] for name, p in trained.named_parameters()}
    assert list(found.values()) == pytest.approx([r for r in (1e-4, 1e-3, 1e-2, 1e-1) for _ in range(4)] + [1.0])
    stage = Stage(objective=AUCMargin(), optimizer=PESGSpec(lr=0.1), iterations=1, batch_size=32)
    whole = moved(image_task, tmp_path / "whole", stage)
    graded = moved(image_task, tmp_path / "graded", replace(stage, backbone_rate=0.01, graded_rates=True))
    shares = {
        "features.0.weight": 0.01,
        "features.1.bias": 0.01,
        "features.5.bias": 0.1,
        "head.bias": 1.0,
    }  # of MODEL's two layers
    for name, share in shares.items():
        torch.testing.assert_close(graded[name], share * whole[name], rtol=5e-2, atol=1e-6)


FROZEN = Stage(
    objective=AUCMargin(),
    optimizer=PESGSpec(lr=0.1, gamma=0.1, momentum=0.9),
    epochs=3,
    batch_size=16,
    frozen_epochs=2,
    backbone_rate=0.5,
    graded_rates=True,
)


@pytest.mark.parametrize("optimizer", [FROZEN.optimizer, SGDSpec(lr=0.1, weight_decay=0.01), AdamWSpec(lr=0.1)])
@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_frozen_layers_stay_until_their_epochs_are_over(image_task, tmp_path, optimizer, engine):
    objective = AUCMargin() if isinstance(optimizer, PESGSpec) else CrossEntropy()
    for epochs in (2, 3):
        stage = replace(
            FROZEN, objective=objective, optimizer=optimizer, epochs=None, iterations=epochs * 4, batch_size=24
        )
        found = moved(image_task, tmp_path / str(epochs), stage, engine=engine)
        assert found["head.weight"].abs().max() > 1e-3
        for name in found.keys() - set(HEAD):
            assert (found[name].abs().max() > 0) == (epochs == 3), name


def dropping(rate):
    """A first stage without dropout, then one with this rate."""
    first = Stage(objective=CrossEntropy(), optimizer=SGD, epochs=1, batch_size=16, drop_rate=0.0)
    return Recipe(model=replace(MODEL, drop_rate=0.3), stages=(first, replace(FROZEN, drop_rate=rate)))


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_a_stage_has_the_dropout_it_asks_for(image_task, tmp_path, engine):
    def scores(name, recipe):
        return train(recipe, image_task, seed=1, run_dir=tmp_path / name, device="cpu", engine=engine).scores("test")[0]

    own, same, none = (scores(str(rate), dropping(rate)) for rate in (None, 0.3, 0.0))
    np.testing.assert_array_equal(own, same)
    assert not np.array_equal(own, none)
    without = tuple(replace(stage, drop_rate=None) for stage in dropping(0.0).stages)
    np.testing.assert_array_equal(none, scores("without", Recipe(model=MODEL, stages=without)))


def test_a_network_without_dropout_layers_cannot_be_given_a_rate(image_task, tmp_path):
    with pytest.raises(ValueError, match="no dropout layers"):
        train(replace(dropping(0.5), model=MODEL), image_task, seed=0, run_dir=tmp_path / "run", device="cpu")


@pytest.mark.parametrize("engine", ["plain", "fast"])
@pytest.mark.parametrize("at", [5, 9, 13])
def test_a_resumed_run_is_the_same_to_the_bit(image_task, tmp_path, engine, at):
    options = {"seed": 1, "engine": engine, "device": "cpu"}
    whole = train(dropping(0.5), image_task, **options, run_dir=tmp_path / "whole")

    def stop(progress):
        if progress.iteration + 5 * progress.stage >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dropping(0.5), image_task, **options, run_dir=tmp_path / "stopped", progress=stop)
    resumed = train(dropping(0.5), image_task, **options, run_dir=tmp_path / "stopped")
    np.testing.assert_array_equal(whole.scores("test")[0], resumed.scores("test")[0])


@pytest.mark.parametrize("stacks", [False, True])
def test_packed_runs_with_rates_and_dropout_of_their_own_are_the_runs_alone(image_task, tmp_path, monkeypatch, stacks):
    """One shape, but three rates of dropout: those with another rate do not share a network's program."""
    monkeypatch.setattr(fast_step, "worth_stacking", lambda trainer, stage: stacks)
    recipes = [dropping(rate) for rate in (0.5, 0.5, 0.0)]
    jobs = [Job(recipe=one, task=image_task, seed=n, run_dir=tmp_path / str(n)) for n, one in enumerate(recipes)]
    for job, packed in zip(jobs, train_together(jobs, device="cpu"), strict=True):
        alone = train(job.recipe, image_task, seed=job.seed, run_dir=tmp_path / f"alone {job.seed}", device="cpu")
        np.testing.assert_allclose(packed.scores("test")[0], alone.scores("test")[0], rtol=1e-3, atol=1e-3)


def test_fast_equals_plain(image_task, tmp_path):
    schedule = Steps(milestones=(2,))
    stages = (
        Stage(objective=CrossEntropy(), optimizer=AdamWSpec(lr=0.01), epochs=2, batch_size=16, backbone_rate=0.2),
        Stage(
            objective=AUCMargin(), optimizer=PESGSpec(), epochs=3, batch_size=16, backbone_rate=0.1, schedule=schedule
        ),
    )
    plain, fast = (
        train(
            Recipe(model=MODEL, stages=stages), image_task, seed=1, run_dir=tmp_path / name, device="cpu", engine=name
        )
        for name in ("plain", "fast")
    )
    np.testing.assert_allclose(fast.scores("test")[0], plain.scores("test")[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        Stage(objective=CrossEntropy(), optimizer=SGD, epochs=1, backbone_rate=rate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"frozen_epochs": 2}, "below the stage's epochs"),
        ({"frozen_epochs": -1}, "whole number"),
        ({"graded_rates": True}, "backbone_rate below 1"),
        ({"drop_rate": 1.0}, r"lie in \[0, 1\)"),
        ({"frozen_epochs": 1, "optimizer": PDSCASpec(), "objective": AUCMargin()}, "one loss"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Stage(**{"objective": CrossEntropy(), "optimizer": SGD, "epochs": 2, **given})
