"""Layers below the last at a share of the learning rate, in the plain loop and in the fast engine's CPU form."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deepauc.models.build import SmallCNNSpec, build_model
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamWSpec, SGDSpec
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.schedule import Steps

MODEL = SmallCNNSpec(widths=(4, 8))
HEAD = ("head.weight", "head.bias")
SGD = SGDSpec(lr=0.1, momentum=0.0)


def moved(task, folder, stage):
    """What one stage has changed in each tensor that is trained."""
    run = train(Recipe(model=MODEL, stages=(stage,)), task, seed=0, run_dir=folder, device="cpu")
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
