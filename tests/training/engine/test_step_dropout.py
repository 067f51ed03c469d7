"""Runs with dropout inside a DenseNet: engines, packs, resumes, pieces and views agree; it leaves with the training."""

import sys

import numpy as np
import pytest
import torch

from deepauc.data.augment.batch import Augment
from deepauc.kernels.dropout import drop_in_dense_layers, step_dropouts
from deepauc.models.build import FactorySpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.distributed import ALONE
from deepauc.training.engine.fast import fast_step
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.engine.step import Batch, backward_whole_batch
from deepauc.training.recipe import Recipe, Stage
from deepauc.training.run.bundle import Bundle


def dense_net(in_channels, num_outputs):
    from timm.models.densenet import DenseNet

    model = DenseNet(growth_rate=4, block_config=(2, 2), bn_size=2, num_classes=num_outputs, in_chans=in_channels)
    drop_in_dense_layers(model, 0.3)
    return model


def dense_net_without_norms(in_channels, num_outputs):
    """Batch normalisation works on the pieces of a batch, so that pieces never equal the whole."""
    model = dense_net(in_channels, num_outputs)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, torch.nn.ELU())
    return model


@pytest.fixture(autouse=True)
def nets(monkeypatch):
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])


def recipe(epochs=2, *, factory="dense_net"):
    first = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=epochs, batch_size=16)
    second = Stage(
        objective=AUCMargin(), optimizer=PESGSpec(lr=0.05), epochs=1, batch_size=16, augment=Augment(crop_padding=1)
    )
    return Recipe(model=FactorySpec(factory=f"nets:{factory}"), stages=(first, second))


def jobs(task, folder):
    return [
        Job(recipe=recipe(epochs), task=task, seed=seed, run_dir=folder / str(seed))
        for seed, epochs in ((1, 2), (2, 1))
    ]


@pytest.mark.parametrize("stacks", [False, True])
def test_a_packed_run_is_the_run_alone(image_task, tmp_path, monkeypatch, stacks):
    monkeypatch.setattr(fast_step, "worth_stacking", lambda trainer, stage: stacks)
    made = jobs(image_task, tmp_path)
    for job, packed in zip(made, train_together(made, device="cpu"), strict=True):
        fast, plain = (
            train(job.recipe, image_task, seed=job.seed, run_dir=tmp_path / f"{e} {job.seed}", engine=e, device="cpu")
            for e in ("fast", "plain")
        )
        if stacks:  # the masks are the same to the bit, sums in shared kernels need not be
            np.testing.assert_allclose(packed.scores("test")[0], fast.scores("test")[0], rtol=1e-4, atol=1e-4)
        else:
            assert (packed.path / "scores.csv").read_bytes() == (fast.path / "scores.csv").read_bytes()
        np.testing.assert_allclose(fast.scores("test")[0], plain.scores("test")[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_a_resumed_run_is_the_same_to_the_bit(image_task, tmp_path, engine):
    options = {"seed": 1, "engine": engine, "device": "cpu"}
    whole = train(recipe(), image_task, **options, run_dir=tmp_path / "whole")

    def stop(progress):
        if (progress.iteration >= 3 and progress.stage == 1) or (engine == "plain" and progress.iteration == 8):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe(), image_task, **options, run_dir=tmp_path / "stopped", progress=stop)
    resumed = train(recipe(), image_task, **options, run_dir=tmp_path / "stopped")
    np.testing.assert_array_equal(whole.scores("test")[0], resumed.scores("test")[0])


def test_dropout_matters_and_is_gone_after_training(image_task, tmp_path):
    run = train(recipe(), image_task, seed=1, run_dir=tmp_path / "run", engine="plain", device="cpu")
    assert not any("step_key" in name for name in Bundle.load(run.path).network(run.path).state_dict())
    model = Bundle.load(run.path).network(run.path)
    assert len(step_dropouts(model)) == 4
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), model(images))
        assert not torch.equal(model.train()(images), model.eval()(images))


def test_pieces_of_a_batch_drop_what_the_whole_drops():
    torch.manual_seed(0)
    model = dense_net_without_norms(1, 1)
    inputs, labels = torch.rand(8, 1, 8, 8), torch.tensor([[0.0], [1]]).repeat(4, 1)
    stage = {"objective": CrossEntropy(), "optimizer": SGDSpec(), "epochs": 1, "batch_size": 8}
    found = []
    for accumulate in (1, 4):
        model.zero_grad()
        loss, _ = backward_whole_batch(
            model,
            Batch(inputs, labels),
            CrossEntropy().build(prior=(0.5,)),
            Stage(**stage, accumulate=accumulate),
            ALONE,
        )
        found.append((loss, *(p.grad.clone() for p in model.parameters())))
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(whole, pieces)
    assert all(dropout.rows is None for dropout in step_dropouts(model))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_export(image_task, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from deepauc.reporting.export import export_onnx

    run = train(recipe(1), image_task, seed=1, run_dir=tmp_path / "run", engine="plain", device="cpu")
    done = export_onnx(run.path, tmp_path / "net.onnx")
    assert done.max_difference <= done.tolerance
    model = Bundle.load(run.path).network(run.path).eval()
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        scripted = torch.jit.trace(model, images[:2])
        torch.testing.assert_close(scripted(images), model(images))
