"""PDSCA against its plain twin in the paper's letters; its two steps in turn, whatever a user does; its state."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepauc import PDSCA, PESG, AUCMarginLoss
from deepauc.objectives.baselines import CrossEntropyLoss
from deepauc.optim.pdsca import PDSCASpec, cross_entropy
from deepauc.optim.pdsca_reference import PDSCAReference


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ELU(), nn.Linear(4, 1)).to(dtype)


def batches(number, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        y = (torch.rand(16, generator=generator) < 0.3).to(dtype)
        y[:2] = torch.tensor([0.0, 1.0])
        yield torch.randn(16, 5, generator=generator, dtype=torch.float64).to(dtype) + y.unsqueeze(1), y


def train(model, optimizer, data):
    for x, y in data:
        loss = optimizer.loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def made(dtype=torch.float64, **options):
    model, loss_fn = network(dtype), AUCMarginLoss(prior=0.3).to(dtype)
    return model, loss_fn, PDSCA(model.parameters(), loss_fn, nn.BCEWithLogitsLoss(), **options)


@pytest.mark.parametrize("reference", ["start", "zero"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_equals_the_twin_over_100_steps_and_two_new_stages(reference, weight_decay):
    """The twin's gradients are of its own weights: cross-entropy at w, the AUC loss at (u, a, b, alpha)."""
    options = {"inner_lr": 0.3, "beta0": 0.8, "beta1": 0.7, "gamma": 0.05, "weight_decay": weight_decay}
    model, loss_fn, optimizer = made(lr=0.2, reference=reference, **options)
    plain, auc = network(), AUCMarginLoss(prior=0.3).double()
    twin = PDSCAReference(
        [p.detach() for p in plain.parameters()],
        [auc.a.detach(), auc.b.detach()],
        auc.alpha.detach(),
        eta0=0.3,
        eta1=0.2,
        beta0=0.8,
        beta1=0.7,
        gamma=0.05,
        lambda_=weight_decay,
        reference=reference,
    )

    def put(weights):
        with torch.no_grad():
            for parameter, value in zip(plain.parameters(), weights, strict=True):
                parameter.copy_(value)

    for t, (x, y) in enumerate(batches(200)):
        train(model, optimizer, [(x, y)])
        if t % 2 == 0:
            put(twin.w)
            loss = F.binary_cross_entropy_with_logits(plain(x).squeeze(1), y)
            twin.inner(torch.autograd.grad(loss, list(plain.parameters())))
            continue
        put(twin.u)
        with torch.no_grad():
            for parameter, value in zip((auc.a, auc.b, auc.alpha), (*twin.v, twin.alpha), strict=True):
                parameter.copy_(value)
        found = torch.autograd.grad(
            auc(torch.sigmoid(plain(x).squeeze(1)), y), [*plain.parameters(), auc.a, auc.b, auc.alpha]
        )
        twin.outer(found[:-1], -found[-1])
        for mine, theirs in zip(
            [*model.parameters(), loss_fn.a, loss_fn.b, loss_fn.alpha], [*twin.w, *twin.v, twin.alpha], strict=True
        ):
            torch.testing.assert_close(mine.detach(), theirs, rtol=1e-9, atol=1e-11)
        if t in (79, 139):
            optimizer.new_stage(lr_factor=0.3)
            twin.new_stage(0.3)
    assert loss_fn.alpha > 0


def test_the_two_losses_really_take_turns():
    seen = []

    def baseline(scores, labels):
        seen.append("inner")
        return F.binary_cross_entropy_with_logits(scores, labels)

    model = network()
    loss_fn = AUCMarginLoss(prior=0.3).double()
    loss_fn.register_forward_hook(lambda *_: seen.append("outer"))
    optimizer = PDSCA(model.parameters(), loss_fn, baseline)
    for x, y in batches(7):
        before = [p.detach().clone() for p in model.parameters()]
        alpha = loss_fn.alpha.detach().clone()
        train(model, optimizer, [(x, y)])
        assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert torch.equal(loss_fn.alpha, alpha) is (seen[-1] == "inner") or seen.count("outer") == 1
    assert seen == ["inner", "outer"] * 3 + ["inner"]


def test_a_loss_of_ones_own_is_refused():
    model, loss_fn, optimizer = made()
    ((x, y),) = batches(1)
    loss_fn(torch.sigmoid(model(x).squeeze(1)), y).backward()
    with pytest.raises(RuntimeError, match=r"in turn: take the loss of every step from optimizer\.loss"):
        optimizer.step()
    train(model, optimizer, [(x, y)])
    with pytest.raises(RuntimeError, match="once per step"):  # the second step on one loss
        optimizer.step()
    assert optimizer.outer_next


def test_a_closure_takes_its_loss_there_too():
    model, _, optimizer = made()
    other, _, plain = made()
    data = list(batches(6))
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = optimizer.loss(model(x).squeeze(1), y)
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
    train(other, plain, data)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_without_an_inner_step_and_averages_it_is_pesg():
    """inner_lr = 0 and betas of 1: every second batch is a step of PESG."""
    model, loss_fn, optimizer = made(inner_lr=0.0, beta0=1.0, beta1=1.0, momentum=0.5)
    other, own = network(), AUCMarginLoss(prior=0.3).double()
    pesg = PESG(other.parameters(), own, momentum=0.5)
    for t, (x, y) in enumerate(batches(20)):
        train(model, optimizer, [(x, y)])
        if t % 2:
            loss = own(torch.sigmoid(other(x).squeeze(1)), y)
            pesg.zero_grad()
            loss.backward()
            pesg.step()
    for mine, theirs in zip(
        [*model.parameters(), *loss_fn.parameters()], [*other.parameters(), *own.parameters()], strict=True
    ):
        assert torch.equal(mine, theirs)


def test_w_can_be_put_in_place():
    model, _, optimizer = made()
    start = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, batches(1))
    u = [p.detach().clone() for p in model.parameters()]
    assert not torch.equal(u[0], start[0])
    with optimizer.weights_in_place():
        assert all(torch.equal(p, w) for p, w in zip(model.parameters(), start, strict=True))
    assert all(torch.equal(p, x) for p, x in zip(model.parameters(), u, strict=True))
    optimizer.finish()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), start, strict=True))
    assert not optimizer.outer_next
    train(model, optimizer, batches(2))


@pytest.mark.parametrize("steps", [10, 11])
@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "pickle"])
def test_it_goes_on_to_the_bit(steps, way):
    """Also from between an inner and an outer step."""
    data = list(batches(30))
    model, loss_fn, optimizer = made(torch.float64)
    train(model, optimizer, data[:steps])
    if way == "state_dict":
        file = io.BytesIO()
        torch.save((model.state_dict(), loss_fn.state_dict(), optimizer.state_dict()), file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        again, own, other = made()
        for one, state in zip((again, own, other), states, strict=True):
            one.load_state_dict(state)
    else:
        pair = (model, optimizer)
        again, other = copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))
    assert other.outer_next is bool(steps % 2)
    train(model, optimizer, data[steps:])
    train(again, other, data[steps:])
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_bfloat16_weights_keep_their_averages_in_float32():
    model, _, optimizer = made(torch.bfloat16)
    train(model, optimizer, batches(4, torch.bfloat16))
    first = next(model.parameters())
    assert optimizer.state[first]["u"].dtype == optimizer.state[first]["z"].dtype == torch.float32
    assert first.dtype == torch.bfloat16


def test_groups_may_have_options_of_their_own():
    model, loss_fn = network(), AUCMarginLoss(prior=0.3).double()
    groups = [{"params": model[0].parameters(), "inner_lr": 0.0, "lr": 0.0}, {"params": model[2].parameters()}]
    optimizer = PDSCA(groups, loss_fn, nn.BCEWithLogitsLoss())
    before = model[0].weight.detach().clone()
    train(model, optimizer, batches(5))
    assert torch.equal(model[0].weight, before)
    with pytest.raises(RuntimeError, match="between its inner and its outer step"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def test_refusals():
    model, loss_fn = network(), AUCMarginLoss(prior=0.3)
    with pytest.raises(ValueError, match="two losses"):
        PDSCA(model.parameters(), loss_fn, 0.1)
    for option in ({"beta0": 0.0}, {"beta1": 1.2}, {"inner_lr": -1.0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            PDSCA(model.parameters(), loss_fn, nn.BCEWithLogitsLoss(), **option)
        with pytest.raises(ValueError, match=next(iter(option))):
            PDSCASpec(**option)
    with pytest.raises(ValueError, match="not of PDSCA"):
        made()[2].load_state_dict(PESG(model.parameters(), loss_fn).state_dict())
    with pytest.raises(ValueError, match="PDSCA needs an AUC objective"):
        PDSCASpec().build(model.parameters(), CrossEntropyLoss())


@pytest.mark.parametrize("shape", [(20,), (20, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_specs_inner_loss_is_cross_entropy(shape, weighted):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = (torch.rand(shape, generator=generator) < 0.4).double()
    labels[3] = torch.nan
    weights = torch.rand(20, generator=generator, dtype=torch.float64) if weighted else None
    torch.testing.assert_close(cross_entropy(scores, labels, weights), CrossEntropyLoss()(scores, labels, weights))
