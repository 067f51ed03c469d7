"""One-vs-rest and one-vs-one AUC losses against loops over classes and pairs of rows."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from deepauc import PESG, AUCMarginLoss
from deepauc.metrics.multiclass import multiclass_auroc
from deepauc.objectives.multiclass import OneVsOneAUCLoss, OneVsRestAUCLoss

BOTH = [OneVsRestAUCLoss, OneVsOneAUCLoss]


def batch(n=60, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat(
        [torch.arange(classes).repeat(2), torch.randint(classes, (n - 2 * classes,), generator=generator)]
    )
    return torch.rand(n, classes, generator=generator, dtype=torch.float64), labels


def shares(labels, classes):
    return (torch.bincount(labels, minlength=classes) / len(labels)).tolist()


def pairwise_margin(positives, negatives, margin):
    """A_M by its definition: class variances plus [m - mean+ + mean-]_+^2."""
    shortfall = margin - positives.mean() + negatives.mean()
    return positives.var(correction=0) + negatives.var(correction=0) + shortfall.clamp(min=0) ** 2


def brute_force(scores, labels, *, kind, margin):
    classes = range(scores.shape[1])
    if kind is OneVsRestAUCLoss:
        terms = [pairwise_margin(scores[labels == k, k], scores[labels != k, k], margin) for k in classes]
    else:
        terms = [
            pairwise_margin(scores[labels == i, i], scores[labels == j, i], margin)
            for i in classes
            for j in classes
            if i != j
        ]
    return torch.stack(terms).mean()


def at_the_saddle(loss, scores, labels):
    """a, b, alpha at their optimal values for these scores."""
    loss.double()
    found = loss.diagnose(scores, labels)
    with torch.no_grad():
        for name in ("a", "b", "alpha"):
            getattr(loss.columns, name).copy_(torch.tensor(getattr(found, f"{name}_optimal")))
    return loss


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("margin", [0.3, 1.0])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_value_and_gradient_at_the_saddle_are_those_of_the_definition(kind, margin, classes):
    scores, labels = batch(classes=classes)
    loss = at_the_saddle(kind(prior=shares(labels, classes), margin=margin), scores, labels)
    mine, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    value, expected = loss(mine, labels), brute_force(theirs, labels, kind=kind, margin=margin)
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)  # the prior came through float32
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-8)
    assert loss.diagnose(scores, labels).gap == pytest.approx((0,) * loss.columns.num_labels, abs=1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_gradcheck(kind):
    scores, labels = batch(12, 3)
    loss = kind(prior=shares(labels, 3), margin=0.7).double()
    with torch.no_grad():
        loss.columns.a.uniform_()
        loss.columns.b.uniform_()
        loss.columns.alpha.uniform_()
    assert torch.autograd.gradcheck(lambda s: loss(s, labels), scores.requires_grad_())


def test_two_classes_one_vs_one_is_one_vs_rest():
    scores, labels = batch(classes=2)
    prior = shares(labels, 2)
    assert OneVsOneAUCLoss(prior=prior)(scores, labels).item() == pytest.approx(
        OneVsRestAUCLoss(prior=prior)(scores, labels).item()
    )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64])
def test_any_number_type_and_missing_labels(kind, dtype):
    scores, labels = batch()
    loss = kind(prior=shares(labels, 4))
    assert loss(scores, labels.to(dtype)).item() == loss(scores, labels).item()
    with_gaps = torch.cat([labels.double(), torch.full((3,), torch.nan)])
    more = torch.cat([scores, torch.full((3, 4), torch.nan)])
    assert loss(more, with_gaps).item() == pytest.approx(loss(scores, labels).item(), rel=1e-12)


@pytest.mark.parametrize("kind", BOTH)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(weights=st.lists(st.integers(0, 3), min_size=20, max_size=20), order=st.permutations(range(4)))
def test_integer_weights_are_repeated_rows_and_classes_have_no_order(kind, weights, order):
    scores, labels = batch(20)
    w = torch.tensor(weights)
    prior = [0.1, 0.2, 0.3, 0.4]
    loss = kind(prior=prior)
    value = loss(scores, labels, w.double())
    repeated = loss(scores.repeat_interleave(w, 0), labels.repeat_interleave(w))
    assert value.item() == pytest.approx(repeated.item(), rel=1e-9, abs=1e-12)
    place = torch.tensor(order)  # class k is called place[k]
    renamed = kind(prior=[prior[k] for k in place.argsort()])
    assert renamed(scores[:, place.argsort()], place[labels], w.double()).item() == pytest.approx(
        value.item(), rel=1e-6
    )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("with_pesg", [True, False])
def test_training_raises_the_multiclass_auc(kind, with_pesg):
    generator = torch.Generator().manual_seed(1)
    labels = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 400, replacement=True, generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    x = centres[labels] + 0.8 * torch.randn(400, 2, generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 3)
    loss_fn = kind(prior=shares(labels, 3))
    average = "ovr" if kind is OneVsRestAUCLoss else "ovo"
    optimizer = (
        PESG(model.parameters(), loss_fn, lr=0.5)
        if with_pesg
        else torch.optim.SGD([*model.parameters(), *loss_fn.parameters()], lr=0.5)
    )
    before = multiclass_auroc(model(x), labels, average=average)
    for _ in range(150):
        loss = loss_fn(torch.sigmoid(model(x)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = multiclass_auroc(model(x), labels, average=average)
    assert before < 0.9
    logistic = LogisticRegression().fit(x, labels).decision_function(x)
    assert after > multiclass_auroc(logistic, labels, average=average) - 0.01
    assert all((alpha >= 0).all() and (alpha > 0).any() for alpha in loss_fn.dual_parameters())


@pytest.mark.parametrize("kind", BOTH)
def test_a_batch_without_some_classes_is_finite(kind):
    scores = torch.rand(5, 4, requires_grad=True)
    loss = kind(prior=[0.25] * 4)
    value = loss(scores, torch.full((5,), 2))
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize(
    ("scores", "labels", "remedy"),
    [
        (torch.rand(3, 4), torch.tensor([0, 1, 3]), r"\(N, 3\)"),
        (torch.rand(3), torch.tensor([0, 1, 2]), r"\(N, 3\)"),
        (torch.rand(3, 3), torch.eye(3), "argmax"),
        (torch.rand(3, 3), torch.tensor([0, 1, 3]), "0 to 2.*hold 3"),
        (torch.rand(3, 3), torch.tensor([0, -1, 2]), "hold -1"),
        (torch.rand(3, 3), torch.tensor([0, 0.5, 2]), "hold 0.5"),
        (torch.tensor([[0.1, torch.nan, 0.2]] * 3), torch.tensor([0, 1, 2]), "sigmoid"),
        (torch.ones(3, 3, dtype=torch.int64), torch.tensor([0, 1, 2]), "floating"),
    ],
)
@pytest.mark.parametrize("kind", BOTH)
def test_bad_input_names_the_remedy(kind, scores, labels, remedy):
    with pytest.raises(ValueError, match=remedy):
        kind(prior=[0.2, 0.3, 0.5])(scores, labels)


@pytest.mark.parametrize("prior", [[1.0], [0.5, 0.6], [0.0, 1.0], [0.5, float("nan")], 0.1])
@pytest.mark.parametrize("kind", BOTH)
def test_bad_priors_are_refused(kind, prior):
    with pytest.raises(ValueError, match="share of every class"):
        kind(prior=prior)


@pytest.mark.parametrize("kind", BOTH)
def test_state_copies_and_pickles(kind):
    scores, labels = batch()
    loss = at_the_saddle(kind(prior=shares(labels, 4)), scores, labels)
    assert sorted(loss.state_dict()) == ["columns.a", "columns.alpha", "columns.b"]
    expected = loss(scores, labels).item()
    assert copy.deepcopy(loss)(scores, labels).item() == expected
    assert pickle.loads(pickle.dumps(loss))(scores, labels).item() == expected
    fresh = kind(prior=shares(labels, 4)).double()
    fresh.load_state_dict(loss.state_dict())
    assert fresh(scores, labels).item() == expected
    assert isinstance(loss.columns, AUCMarginLoss)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", BOTH)
def test_on_a_gpu_as_on_the_cpu_and_bad_classes_are_noticed(kind):
    scores, labels = batch()
    loss = kind(prior=shares(labels, 4))
    expected = loss(scores, labels).item()
    loss.cuda()
    assert loss(scores.cuda(), labels.cuda()).item() == pytest.approx(expected)
    loss(scores.cuda(), (labels + 1).cuda())
    with pytest.raises(ValueError, match="0 to 3"):
        loss.diagnose(scores.cuda(), labels.cuda())
