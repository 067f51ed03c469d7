"""The one-kernel step on a CUDA device against the plain one, eager and inside a captured graph."""

import copy

import pytest
import torch
from torch import nn

from deepauc import PESG, AUCMarginLoss
from deepauc.kernels import pesg_update
from deepauc.optim.pesg_reference import PESGReference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def network(dtype=torch.float32):
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 17, 3), nn.BatchNorm2d(17), nn.ELU(), nn.Conv2d(17, 33, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(33, 301), nn.ELU(), nn.Linear(301, 1),
    )  # fmt: skip
    return layers.to("cuda", dtype, memory_format=torch.channels_last)


def grads(parameters, step):
    generator = torch.Generator(device="cuda").manual_seed(step)
    for p in parameters:
        gradient = torch.empty_like(p)
        gradient.copy_(torch.randn(p.shape, device="cuda", generator=generator))
        p.grad = gradient


def pair(momentum, gamma, dtype, lr=0.05, **options):
    """Optimizers over equal networks; the second is kept from the kernel."""
    made = []
    for _ in range(2):
        model, objective = network(dtype), AUCMarginLoss(prior=0.1).cuda()
        made.append((model, objective, PESG(model.parameters(), objective, lr=copy.deepcopy(lr), gamma=gamma,
                                            weight_decay=1e-3, momentum=momentum, **options)))  # fmt: skip
    made[1][2]._fused.takes = lambda primal: False
    return made


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_equals_plain_step(momentum, gamma, dtype):
    (model, objective, fused), (other, second, plain) = pair(momentum, gamma, dtype)
    assert fused._fused.takes(
        [pesg_update.Primal(p, torch.zeros_like(p), None, None, None) for p in model.parameters()]
    )
    for step in range(30):
        for module, loss, optimizer in ((model, objective, fused), (other, second, plain)):
            grads([*module.parameters(), *loss.parameters()], step)
            optimizer.step()
            if step in (10, 20):
                optimizer.new_stage(0.5)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for mine, theirs in zip([*model.parameters(), *objective.parameters()],
                            [*other.parameters(), *second.parameters()], strict=True):  # fmt: skip
        torch.testing.assert_close(mine, theirs, **tolerance)


@pytest.mark.parametrize("reference", ["start", "zero"])
@pytest.mark.parametrize("alpha_step", ["gradient", "closed"])
@pytest.mark.parametrize("clip_value", [None, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_kernel_equals_the_twin_over_100_steps(reference, alpha_step, clip_value, momentum):
    objective = AUCMarginLoss(prior=[0.1, 0.3], margin=[0.4, 0.8], num_labels=2).cuda()
    weights = list(network().parameters())
    options = {"lr": 0.1, "gamma": 0.05, "weight_decay": 1e-2, "momentum": momentum}
    options |= {"reference": reference, "alpha_step": alpha_step, "clip_value": clip_value}
    optimizer = PESG(weights, objective, **options)
    v = [*weights, objective.a, objective.b]
    twin = PESGReference(
        [x.detach().cpu() for x in v],
        objective.alpha.detach().cpu(),
        eta=0.1,
        gamma=0.05,
        lambda_=1e-2,
        mu=momentum,
        reference=reference,
        clip=float("inf") if clip_value is None else clip_value,
        margin=torch.tensor([0.4, 0.8]) if alpha_step == "closed" else None,
    )
    for t in range(100):
        present = torch.tensor([True, t % 4 != 2])
        grads([*v, objective.alpha], t)
        for own in (objective.a, objective.b, objective.alpha):
            own.grad *= present.cuda()
        optimizer.step()
        twin.step([x.grad.cpu() for x in v], -objective.alpha.grad.cpu(), present=present)
        if t in (39, 69):
            optimizer.new_stage(0.3)
            twin.new_stage(0.3)
    assert optimizer._fused._tables  # the kernel was used
    for mine, theirs in zip([*v, objective.alpha], [*twin.v, twin.alpha], strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_the_kernel_does_not_clip_nan_away():
    x = nn.Parameter(torch.zeros(5, device="cuda"))
    x.grad = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.25, -3.0], device="cuda")
    PESG([x], AUCMarginLoss(prior=0.1).cuda(), lr=1.0, gamma=0.0, clip_value=0.5).step()
    torch.testing.assert_close(x.detach().cpu(), torch.tensor([float("nan"), -0.5, 0.5, -0.25, 0.5]), equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"reference": "zero", "alpha_step": "closed", "clip_value": 0.01}])
def test_captured_training_step_equals_eager_and_follows_a_tensor_lr(options):
    x = torch.randn(32, 3, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last)
    y = (torch.arange(32, device="cuda") < 5).float()

    def step(model, objective, optimizer):
        optimizer.zero_grad(set_to_none=True)
        loss = objective(torch.sigmoid(model(x).squeeze(1)), y)
        loss.backward()
        optimizer.step()

    made = pair(0.0, 0.1, torch.float32, lr=torch.tensor(0.05, device="cuda"), **options)
    captured, eager = made
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*captured)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*captured)
    for _ in range(3):
        step(*eager)
    for t in range(20):
        if t == 10:
            for _, _, optimizer in made:
                optimizer.new_stage(0.1)
        x.copy_(torch.randn(32, 3, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(t)))
        graph.replay()
        step(*eager)
        if t == 15:  # an eager step between replays disturbs neither
            step(*captured)
            step(*eager)
    for mine, theirs in zip(captured[0].parameters(), eager[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(captured[1].alpha, eager[1].alpha, rtol=1e-4, atol=1e-5)


def test_bad_labels_on_the_device_are_reported_without_waiting():
    loss = AUCMarginLoss(prior=0.1).cuda()
    scores, good, bad = (
        torch.rand(8, device="cuda"),
        torch.zeros(8, device="cuda"),
        torch.full((8,), 7.0, device="cuda"),
    )
    for labels in (good, bad, *[good] * 98):
        loss(scores, labels)
    with pytest.raises(ValueError, match="0 or 1"):
        loss(scores, good)  # call 101
    loss(scores, bad)
    with pytest.raises(ValueError, match="0 or 1"):
        loss.diagnose(scores, (torch.arange(8, device="cuda") < 3).float())
    with pytest.raises(ValueError, match="0 or 1"):
        AUCMarginLoss(prior=0.1).cuda()(scores, bad)  # the very first call looks


def test_bf16_autocast_on_the_device():
    loss = AUCMarginLoss(prior=0.1).cuda()
    model = network()
    x, y = torch.randn(16, 3, 8, 8, device="cuda"), (torch.arange(16, device="cuda") < 3).float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = loss(torch.sigmoid(model(x).squeeze(1)), y)
    value.backward()
    assert value.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in model.parameters())
