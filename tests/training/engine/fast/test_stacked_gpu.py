"""On a CUDA device: the stacked network and step against plain torch, float64 or the plain loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from deepauc.data.augment.batch import Augment
from deepauc.data.task import ArrayInputs, Task
from deepauc.kernels.stacked.conv import Taps, conv
from deepauc.kernels.stacked.network import stacked
from deepauc.kernels.stacked.norm import Norm, norm_act
from deepauc.kernels.stacked.weights import StackedWeights
from deepauc.models.activations import replace_relu
from deepauc.models.build import TimmSpec
from deepauc.objectives.auc_margin import AUCMargin
from deepauc.objectives.baselines import CrossEntropy
from deepauc.objectives.contrastive import Contrastive
from deepauc.optim.pesg import PESGSpec
from deepauc.optim.standard import AdamSpec, SGDSpec
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.fast.stacked_step import StackedStep
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # of a process whose first product happens to be in a backward pass, on autograd's thread
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

RUNS = 3


def far(mine, exact):
    return float((mine.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize(
    ("batch", "channels", "out", "size", "taps"),
    [
        (16, 128, 32, 8, Taps(3, 1, 1)),
        (16, 128, 32, 1, Taps(3, 1, 1)),
        (16, 33, 50, 7, Taps(3, 1, 1)),
        (16, 96, 128, 4, Taps(1, 1, 0)),
        (16, 64, 128, 8, Taps(1, 2, 0)),
        (16, 64, 128, 8, Taps(3, 2, 1)),
        (16, 3, 64, 32, Taps(7, 2, 3)),
        (16, 3, 64, 32, Taps(3, 1, 1)),
    ],
)
def test_convolutions(batch, channels, out, size, taps):
    torch.manual_seed(0)
    x = torch.randn(RUNS * batch, channels, size, size, device="cuda").bfloat16()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(RUNS, out, taps.kernel, taps.kernel, channels, device="cuda").permute(0, 1, 4, 2, 3)
    weight.requires_grad_()
    mine = conv(x, weight, None, None, taps)
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    pieces = zip(exact[0].split(batch), exact[1], strict=True)
    theirs = torch.cat([F.conv2d(v, w, None, taps.stride, taps.padding) for v, w in pieces])
    assert far(mine, theirs) < 1e-2
    dy = torch.randn(RUNS * batch, out + 8, *mine.shape[2:], device="cuda").bfloat16()
    dy = dy.contiguous(memory_format=torch.channels_last)[:, 8:]
    found = torch.autograd.grad(mine, (x, weight), dy)
    assert found[1].dtype == torch.float32
    assert found[1].stride()[1:] == weight.stride()[1:] or taps.kernel == 1
    for a, b in zip(found, torch.autograd.grad(theirs, exact, dy.double()), strict=True):
        assert far(a, b) < 1e-2


@pytest.mark.parametrize(
    ("batch", "channels", "size"), [(64, 96, 8), (70, 33, 7), (50, 160, 4), (128, 40, 2), (128, 1000, 1)]
)
@pytest.mark.parametrize("act", ["", "relu", "elu"])
def test_normalisation(batch, channels, size, act):
    torch.manual_seed(0)
    x = torch.randn(RUNS * batch, channels, size, size, device="cuda") * 2 + 3
    x = x.bfloat16().contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = (torch.rand(RUNS, channels, device="cuda") + 0.5).requires_grad_()
    bias = torch.randn(RUNS, channels, device="cuda", requires_grad=True)
    running = torch.zeros(RUNS, channels, device="cuda"), torch.ones(RUNS, channels, device="cuda")
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    moved = [t.double() for t in running]
    norm = Norm(weight=weight, bias=bias, running=running, momentum=0.1, eps=1e-5, activation=act)
    mine = norm_act(x, norm)
    apply = {"": lambda z: z, "relu": F.relu, "elu": F.elu}[act]
    pieces = zip(exact[0].split(batch), *exact[1:], *moved, strict=True)
    theirs = torch.cat([apply(F.batch_norm(v, m, s, w, b, True, 0.1, 1e-5)) for v, w, b, m, s in pieces])
    dy = torch.randn_like(mine)
    found = torch.autograd.grad(mine, (x, weight, bias), dy)
    wanted = torch.autograd.grad(theirs, exact, dy.double())
    for a, b in [(mine, theirs), *zip(found, wanted, strict=True), *zip(running, moved, strict=True)]:
        assert far(a, b) < 1e-2


def networks(name):
    made = []
    for seed in range(RUNS):
        torch.manual_seed(seed)
        model = TimmSpec(name=name).build(in_channels=3, num_outputs=1)
        replace_relu(model)
        made.append(model.cuda().to(memory_format=torch.channels_last))
    return made


@pytest.mark.parametrize("name", ["densenet121", "resnet18"])
def test_gradients_are_as_near_as_autocast(name):
    """Both against float32: the stacked network must not be twice as far off as torch's own bfloat16."""
    images = torch.randn(RUNS * 64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    signs = torch.randn(RUNS * 64, 1, device="cuda")
    found = {}
    for form in ("exact", "autocast"):
        models = networks(name)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=form == "autocast"):
            outputs = torch.cat([m(v) for m, v in zip(models, images.split(64), strict=True)])
        (outputs.float() * signs).sum().backward()
        found[form] = outputs.float(), models
    models = networks(name)
    weights = StackedWeights(models, half=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = functional_call(stacked(models[0], RUNS), weights.tensors(), (images,))
    gradients = torch.autograd.grad((outputs.float() * signs).sum(), list(weights.leaves.values()))
    weights.give_gradients(gradients)
    found["stacked"] = outputs.float(), models
    assert far(outputs, found["exact"][0]) < 2 * far(found["autocast"][0], found["exact"][0]) + 1e-3
    for run in range(RUNS):
        flat = {
            form: torch.cat([p.grad.float().flatten() for p in models[run].parameters()])
            for form, (_, models) in found.items()
        }
        assert far(flat["stacked"], flat["exact"]) < 2 * far(flat["autocast"], flat["exact"]) + 1e-3
        for p in models[run].parameters():
            assert p.grad.stride() == p.stride()
        others = (found[form][1][run].buffers() for form in ("autocast", "exact"))
        for (buffer_name, mine), autocast, exact in zip(models[run].named_buffers(), *others, strict=True):
            if "num_batches" not in buffer_name:
                assert far(mine, exact) < 2 * far(autocast, exact) + 1e-2


def task():
    generator = np.random.default_rng(0)
    labels = (generator.random(1000) < 0.2).astype(np.float32)
    images = generator.integers(0, 160, (1000, 32, 32, 3)).astype(np.uint8)
    images[:, 8:20, 8:20] += (60 * labels).astype(np.uint8)[:, None, None, None]
    parts = {"train": np.arange(600), "validation": np.arange(600, 800), "test": np.arange(800, 1000)}
    return Task(name="s", kind="binary", source=ArrayInputs(images), labels=labels, label_names=("y",), parts=parts)


def recipe(margin=0.5, optimizer=None, first=None):
    common = {"batch_size": 64, "precision": "bfloat16"}
    first = first or Stage(objective=CrossEntropy(), optimizer=optimizer or SGDSpec(lr=0.01), epochs=2, **common)
    second = Stage(
        objective=AUCMargin(margin=margin), optimizer=PESGSpec(lr=0.02), epochs=2, positives_per_batch=16,
        augment=Augment(crop_padding=2), ema=0.5, gradient_clip=5.0, **common,
    )  # fmt: skip
    return Recipe(model=TimmSpec(name="densenet121", activation="elu"), stages=(first, second))


def assert_follows(run, alone):
    mine, theirs = ([float(row["loss"]) for row in r.history] for r in (run, alone))
    np.testing.assert_allclose(mine[0], theirs[0], rtol=0.05)
    np.testing.assert_allclose(mine[:2], theirs[:2], rtol=0.25)
    assert np.isfinite(mine).all()
    assert abs(run.auc("test")["y"].value - alone.auc("test")["y"].value) < 0.15


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_stacked_runs_follow_the_plain_loop(tmp_path, monkeypatch, dropout):
    calls = []
    step = StackedStep.__call__
    monkeypatch.setattr(StackedStep, "__call__", lambda self: (calls.append(len(self.steps)), step(self))[1])
    made = [recipe(0.3), recipe(1.0), recipe(0.5, AdamSpec(lr=1e-4))]
    made = [replace(r, model=replace(r.model, proj_drop_rate=dropout)) for r in made]
    jobs = [Job(recipe=r, task=task(), seed=s, run_dir=tmp_path / str(s)) for s, r in enumerate(made)]
    packed = train_together(jobs, device="cuda")
    assert set(calls) == {3}
    for job, run in zip(jobs, packed, strict=True):
        alone = train(
            job.recipe, job.task, seed=job.seed, run_dir=tmp_path / f"a{job.seed}", device="cuda", engine="plain"
        )
        assert_follows(run, alone)
    single = train(jobs[0].recipe, task(), seed=0, run_dir=tmp_path / "single", device="cuda", engine="fast")
    assert calls[-1] == 1
    assert_follows(single, packed[0])


def test_the_same_twice(tmp_path):
    made = recipe()
    jobs = [[Job(recipe=made, task=task(), seed=s, run_dir=tmp_path / f"{t}{s}") for s in (0, 1)] for t in "ab"]
    first, second = (train_together(some, device="cuda") for some in jobs)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a.scores("test")[0], b.scores("test")[0], atol=0.05)


def test_a_stage_on_views(tmp_path):
    views = Stage(
        objective=Contrastive(), optimizer=SGDSpec(lr=0.01), epochs=2, batch_size=64, views=2,
        augment=Augment(crop_padding=2, brightness=0.3), precision="bfloat16",
    )  # fmt: skip
    made = recipe(first=views)
    jobs = [Job(recipe=made, task=task(), seed=s, run_dir=tmp_path / str(s)) for s in (0, 1)]
    for job, run in zip(jobs, train_together(jobs, device="cuda"), strict=True):
        alone = train(made, job.task, seed=job.seed, run_dir=tmp_path / f"a{job.seed}", device="cuda", engine="plain")
        mine, theirs = ([float(row["loss"]) for row in r.history][:2] for r in (run, alone))
        np.testing.assert_allclose(mine, theirs, rtol=0.05)
