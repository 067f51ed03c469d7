"""What the fast engine draws, compiles and captures: dropout by seeds, programs by names, graphs on their device."""

import sys
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from deepauc.data.counter import hash_key
from deepauc.models.build import FactorySpec, ResNet20Spec, SmallCNNSpec, TimmSpec
from deepauc.objectives.baselines import CrossEntropy
from deepauc.optim.standard import SGDSpec
from deepauc.training.engine.fast import fast_step
from deepauc.training.engine.fast.forward import value_key, worth_compiling
from deepauc.training.engine.fast.packing import Job, train_together
from deepauc.training.engine.loop import train
from deepauc.training.recipe import Recipe, Stage


def with_dropout(in_channels, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 16), nn.Dropout(0.5), nn.Linear(16, num_outputs))


@pytest.mark.parametrize(
    ("spec", "side", "steps", "worth"),
    [
        (TimmSpec(name="densenet121"), 32, 19_999, False),
        (TimmSpec(name="densenet121"), 32, 20_000, True),
        (TimmSpec(name="densenet121"), 224, 7_000, False),
        (TimmSpec(name="densenet121"), 224, 8_000, True),
        (TimmSpec(name="tf_efficientnet_b5"), 32, 1000, False),
        (TimmSpec(name="resnet18"), 32, 1, True),
        (ResNet20Spec(), 32, 1, True),
    ],
)
def test_deep_networks_are_compiled_for_long_stages(spec, side, steps, worth):
    with torch.device("meta"):
        network = spec.build(in_channels=3, num_outputs=1)
    task, stream = SimpleNamespace(source=SimpleNamespace(shape=(side, side, 3))), SimpleNamespace(batch_size=128)
    assert worth_compiling(SimpleNamespace(trained=network, total=steps, task=task, stream=stream)) is worth


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_dropout_follows_from_the_seed_alone_and_survives_a_resume(image_task, tmp_path, monkeypatch, engine):
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])
    stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=4, batch_size=16)
    run = {"recipe": Recipe(model=FactorySpec(factory="nets:with_dropout"), stages=(stage,)), "task": image_task}
    options = {"seed": 1, "engine": engine, "device": "cpu"}
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)  # whatever the process has drawn before
        found.append(train(**run, **options, run_dir=tmp_path / str(seed)).scores("test")[0])

    def stop(progress):
        if progress.iteration >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(**run, **options, run_dir=tmp_path / "stopped", progress=stop)
    found.append(train(**run, **options, run_dir=tmp_path / "stopped").scores("test")[0])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_dropout_of_packed_runs_is_that_of_runs_alone_and_of_the_plain_loop(image_task, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nets", sys.modules[__name__])
    jobs = []
    for seed, epochs in ((1, 3), (2, 1), (3, 2)):  # the pack shrinks while they train
        stage = Stage(objective=CrossEntropy(), optimizer=SGDSpec(lr=0.05), epochs=epochs, batch_size=16)
        recipe = Recipe(model=FactorySpec(factory="nets:with_dropout"), stages=(stage,))
        jobs.append(Job(recipe=recipe, task=image_task, seed=seed, run_dir=tmp_path / str(seed)))
    for job, packed in zip(jobs, train_together(jobs, device="cpu"), strict=True):
        fast, plain = (
            train(job.recipe, image_task, seed=job.seed, run_dir=tmp_path / f"{e} {job.seed}", engine=e, device="cpu")
            for e in ("fast", "plain")
        )
        assert (packed.path / "scores.csv").read_bytes() == (fast.path / "scores.csv").read_bytes()
        np.testing.assert_allclose(fast.scores("test")[0], plain.scores("test")[0], rtol=1e-3, atol=1e-4)


class Counting(nn.Module):
    """A user's loss that keeps something of the batches it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, scores, labels, weights=None):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(scores.mean(), alpha=0.1)
        return nn.functional.binary_cross_entropy_with_logits(scores - self.mean, labels)


@dataclass(frozen=True)
class CountingSpec:
    bound: ClassVar[str] = "none"
    soft_labels: ClassVar[bool] = False

    def build(self, *, prior):
        return Counting()


@pytest.mark.parametrize("stacked", [False, True])
def test_what_a_loss_keeps_is_its_runs_own(image_task, tmp_path, monkeypatch, stacked):
    monkeypatch.setattr(fast_step, "worth_stacking", lambda *_: stacked)
    stage = Stage(objective=CountingSpec(), optimizer=SGDSpec(lr=0.05), epochs=2, batch_size=16)
    made = Recipe(model=SmallCNNSpec(widths=(4, 8)), stages=(stage,))
    jobs = [Job(recipe=made, task=image_task, seed=seed, run_dir=tmp_path / str(seed)) for seed in (0, 1)]
    for job, packed in zip(jobs, train_together(jobs, device="cpu"), strict=True):
        alone = train(made, image_task, seed=job.seed, run_dir=tmp_path / f"alone {job.seed}", engine="plain")
        for one, other in zip(packed.history, alone.history, strict=True):
            assert float(one["loss"]) == pytest.approx(float(other["loss"]), rel=1e-4)


class Scaled(nn.Module):
    """A user's loss that does not show its settings."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, scores, labels, weights=None):
        return self.factor * nn.functional.binary_cross_entropy_with_logits(scores, labels)


@dataclass(frozen=True)
class ScaledSpec:
    factor: float = 1.0
    bound: ClassVar[str] = "none"
    soft_labels: ClassVar[bool] = False

    def build(self, *, prior):
        return Scaled(self.factor)


def test_losses_of_ones_own_are_told_apart_by_settings_they_do_not_show(image_task):
    def key(factor):
        stage = Stage(objective=ScaledSpec(factor), optimizer=SGDSpec(lr=0.05), epochs=1, batch_size=16)
        trainer = SimpleNamespace(
            recipe=SimpleNamespace(model=SmallCNNSpec(widths=(4, 8))), task=image_task, device=torch.device("cpu"),
            objective=stage.objective.build(prior=(0.5,)), stream=SimpleNamespace(batch_size=16, prior=(0.5,)),
            preprocessing=SimpleNamespace(images=True),
        )  # fmt: skip
        return value_key(stage, trainer)

    assert key(1.0) == key(1.0)
    assert key(1.0) != key(2.0)


def test_programs_are_named_by_the_launch_settings_also_those_of_another_thread(monkeypatch):
    monkeypatch.setattr(fast_step, "launch_tag", lambda device: "launch")
    named = []

    def noted(graph, inputs):
        named.append((threading.current_thread(), torch.compiler.config.cache_key_tag))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted)
    torch._dynamo.reset()
    loss = torch.compile(lambda x: (x.sin() * x).sum(), backend=backend, dynamic=False)
    with torch.compiler.config.patch(cache_key_tag="the user's"):
        with fast_step.programs_named_by_launch(torch.device("cpu")):
            found = loss(torch.ones(3, requires_grad=True))
            backward = threading.Thread(target=found.backward)  # as torch does it for a GPU
            backward.start()
            backward.join()
        assert torch.compiler.config.cache_key_tag == "the user's"
    assert [tag for _, tag in named] == ["the user's launch"] * 2


class Captured:
    """Stands for a graph: which units were called while it was captured, and with which seed it is replayed."""

    def __init__(self):
        self.units, self.seeds, self.stream = [], [], None

    def replay(self):
        self.seeds.append(torch.initial_seed())


class OnAStream:
    def __init__(self, device):
        self.device = device

    def wait_stream(self, other):
        pass


class Step:
    def __init__(self, seed):
        self.turns, self.t, self.trainer = None, torch.ones(1), SimpleNamespace(stream=SimpleNamespace(seed=seed))


@pytest.fixture
def pretended_gpu(monkeypatch):
    """What the engine asks of a GPU; the devices that were made current."""
    current = []

    @contextmanager
    def capture(graph, *, stream):
        before = len(called)
        graph.stream = stream
        yield
        graph.units = called[before:]

    @contextmanager
    def on(device):
        current.append(device)
        yield
        current.append("left")

    called = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Captured)
    monkeypatch.setattr(torch.cuda, "Stream", OnAStream)
    monkeypatch.setattr(torch.cuda, "current_stream", OnAStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    return current, called


@pytest.mark.parametrize("by_chance", [True, False])
def test_graphs_of_packed_runs_with_dropout_have_seeds_of_their_own(pretended_gpu, by_chance):
    second = torch.device("cuda", 1)
    engine = object.__new__(fast_step.FastEngine)
    engine.device, engine.captures = second, True
    engine._steps, engine._turn = [], 0

    def unit(name, seed):
        def work():
            compiles = name not in pretended_gpu[1]
            pretended_gpu[1].append(name)
            if by_chance or compiles:
                torch.rand(1)

        work.steps = [Step(seed)]
        return work

    engine._units = [unit("a", 5), unit("b", 6)]
    with torch.random.fork_rng():
        engine._capture()
        engine._steps = [step for one in engine._units for step in one.steps]
        seeds = engine._seeds([SimpleNamespace(number=2), SimpleNamespace(number=3)])
        for t in (7, 8):
            engine._replay(seeds, t)
    (graphs,) = engine._graphs
    assert [graph.units for graph in graphs] == ([["a"], ["b"]] if by_chance else [["a", "b"]])
    assert all(graph.stream.device == second for graph in graphs)
    if by_chance:
        assert [graph.seeds for graph in graphs] == [[hash_key(seed, epoch, t) >> 1 for t in (7, 8)]
                                                     for seed, epoch in ((5, 2), (6, 3))]  # fmt: skip


def test_the_runs_device_is_current_while_they_train(pretended_gpu, monkeypatch):
    engine = object.__new__(fast_step.FastEngine)
    engine.device, engine.captures = torch.device("cuda", 1), True
    monkeypatch.setattr(engine, "_run_epoch", pretended_gpu[0].append, raising=False)
    engine.run_epoch(["an epoch"])
    assert pretended_gpu[0] == [torch.device("cuda", 1), ["an epoch"], "left"]
