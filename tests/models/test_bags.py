"""Pooling: by brute force over the images of each bag, by float64 gradients, and LibAUC's traps."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from deepauc.models.average import AverageSpec
from deepauc.models.bags import (
    Bags,
    BagSpec,
    attention_pool,
    attention_weights,
    in_grid,
    max_pool,
    mean_pool,
    pooled,
    smooth_max_pool,
)
from deepauc.models.build import MLPSpec, SmallCNNSpec, TimmSpec, architecture, build_model, classifier_head
from deepauc.training.plain import from_plain, to_plain

SIZES = (3, 1, 5, 2)
POOLINGS = ("mean", "max", "smooth-max", "attention")


def drawn(outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(SIZES), outputs, generator=generator, dtype=torch.float64)


def bags_of(values, sizes=SIZES):
    ends = np.cumsum([0, *sizes])
    return [values[start:stop].tolist() for start, stop in pairwise(ends)]


def by_hand(pooling, values, tau=1.0):
    """Bag by bag and label by label in plain Python; the last column of `values` is the attention's logit."""
    found = []
    for bag in bags_of(values):
        row = []
        for label in range(len(bag[0]) - 1):
            scores, logits = [image[label] for image in bag], [image[-1] for image in bag]
            if pooling == "mean":
                row.append(sum(scores) / len(scores))
            elif pooling == "max":
                row.append(max(scores))
            elif pooling == "smooth-max":
                row.append(tau * math.log(sum(math.exp(s / tau) for s in scores) / len(scores)))
            else:
                weights = [math.exp(g) for g in logits]
                row.append(sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights))
        found.append(row)
    return np.array(found)


def by_functions(pooling, values, tau=1.0):
    grid, present = in_grid(values, SIZES)
    scores, logits = grid[..., :-1], grid[..., -1]
    match pooling:
        case "mean":
            return mean_pool(scores, present)
        case "max":
            return max_pool(scores, present)
        case "smooth-max":
            return smooth_max_pool(scores, present, tau)
        case _:
            return attention_pool(scores, logits, present)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("tau", [0.1, 1.0, 7.0])
def test_each_pooling_is_what_it_is_bag_by_bag(pooling, tau):
    values = drawn(3)
    np.testing.assert_allclose(by_functions(pooling, values, tau), by_hand(pooling, values, tau), rtol=1e-12)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_gradients_in_float64(pooling):
    values = drawn(3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: by_functions(pooling, v, tau=0.5), (values,))


def test_the_smooth_maximum_lies_between_mean_and_maximum_and_tends_to_each():
    grid, present = in_grid(drawn(1), SIZES)
    mean, top = mean_pool(grid, present), max_pool(grid, present)
    smooth = smooth_max_pool(grid, present, 1.0)
    several = torch.tensor(SIZES) > 1
    assert (mean < smooth)[several].all()
    assert (smooth < top)[several].all()
    torch.testing.assert_close(smooth_max_pool(grid, present, 1e6), mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(smooth_max_pool(grid, present, 1e-4), top, rtol=0, atol=1e-3)


def test_large_scores_and_small_temperatures_neither_overflow_nor_vanish():
    grid, present = in_grid(torch.tensor([[1000.0], [999.0], [-1000.0]]), (2, 1))
    found = smooth_max_pool(grid, present, 0.01)
    torch.testing.assert_close(found, torch.tensor([[1000.0 + 0.01 * math.log(0.5)], [-1000.0]]))
    assert torch.isfinite(attention_weights(torch.tensor([[1e4, -1e4]]), torch.tensor([[True, True]]))).all()


def test_a_first_visit_is_unbiased():
    """LibAUC's MIDAM keeps a moving estimate of mean exp(φ/τ) that starts at 0, so a first visit shifts h by τ log γ.

    Here a bag is whole in its batch and nothing is remembered: first and last visit give the same score.
    """
    values = drawn(2)
    model = BagSpec(image=MLPSpec(hidden=()), pooling="smooth-max", tau=0.1).build(in_channels=4, num_outputs=2)
    first = pooled(model, values, SIZES)
    model.train()
    for _ in range(3):
        assert torch.equal(pooled(model, values, SIZES), first)
    for name, by in (("one image of 0", 0.0), ("one image of 2", 2.0)):
        assert float(pooled(model, torch.full((1, 2), by), (1,))[0, 0]) == pytest.approx(by), name


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_bag_of_one_image_has_its_score_and_padding_has_no_say(pooling):
    model = build_model(
        BagSpec(image=SmallCNNSpec(widths=(4,)), pooling=pooling), in_channels=1, num_outputs=1, seed=0
    ).eval()
    if pooling == "attention":
        torch.nn.init.normal_(model.attention[-1].weight)
    images = torch.randn(6, 1, 8, 8)
    places = torch.arange(6)
    torch.testing.assert_close(model(Bags(images, (1,) * 6, places)), model(images))
    together = model(Bags(images, (1, 5), places))
    apart = torch.cat([model(Bags(images[:1], (1,), places)), model(Bags(images[1:], (5,), places))])
    torch.testing.assert_close(together, apart)
    # In two halves, as predictions are made.
    halves = torch.cat([model.image_outputs(images[:4]), model.image_outputs(images[4:])])
    torch.testing.assert_close(pooled(model, halves, (1, 5)), together)


def test_attention_is_the_score_of_the_weighted_mean_of_features():
    model = build_model(
        BagSpec(image=SmallCNNSpec(widths=(4, 6)), pooling="attention"), in_channels=1, num_outputs=3, seed=1
    ).eval()
    torch.nn.init.normal_(model.attention[-1].weight)
    images = torch.randn(5, 1, 8, 8)
    features = model.image.features(images).mean((2, 3))
    weights = torch.softmax(model.attention(features)[:, 0], dim=0)
    expected = model.image.head((weights[:, None] * features).sum(0, keepdim=True))
    torch.testing.assert_close(model(Bags(images, (5,))), expected)
    assert float(weights.detach().std()) > 0.01  # they differ


def test_attention_begins_as_the_mean_and_is_trained():
    model = build_model(
        BagSpec(image=SmallCNNSpec(widths=(4,)), pooling="attention"), in_channels=1, num_outputs=1, seed=1
    )
    bags = Bags(torch.randn(6, 1, 8, 8), (4, 2), torch.arange(6))
    scores = model.image(bags.images)
    torch.testing.assert_close(model(bags), torch.stack([scores[:4].mean(0), scores[4:].mean(0)]))
    model(bags).square().sum().backward()
    assert model.attention[-1].weight.grad.abs().sum() > 0


def test_importance_is_the_derivative_by_each_images_score():
    model = BagSpec(image=MLPSpec(hidden=()), pooling="attention").build(in_channels=4, num_outputs=2)
    values = drawn(3)
    found = model.importance(values)
    weights = torch.softmax(values[:, -1], dim=0)
    torch.testing.assert_close(found, torch.stack([weights, weights], dim=1))
    top = BagSpec(image=MLPSpec(hidden=()), pooling="max").build(in_channels=4, num_outputs=1)
    assert top.importance(torch.tensor([[1.0], [3.0], [2.0]]))[:, 0].tolist() == [0, 1, 0]


def test_an_average_of_bag_networks_pools_each_member_by_itself():
    spec = AverageSpec(
        members=(
            BagSpec(image=MLPSpec(hidden=(3,)), pooling="max"),
            BagSpec(image=MLPSpec(hidden=(5,)), pooling="attention"),
        )
    )
    model = build_model(spec, in_channels=4, num_outputs=2, seed=3).eval()
    torch.nn.init.normal_(model.members[1].attention[-1].weight)
    model.share.copy_(torch.tensor([0.25, 0.75]))
    model.slope.copy_(torch.tensor([[2.0, 1.0], [1.0, 0.5]]))
    model.mean.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]))
    rows = torch.randn(sum(SIZES), 4)
    found = pooled(model, model.image_outputs(rows), SIZES)
    each = [
        torch.sigmoid(model.slope[n] * member(Bags(rows - model.mean[n], SIZES)))
        for n, member in enumerate(model.members)
    ]
    torch.testing.assert_close(torch.sigmoid(found), 0.25 * each[0] + 0.75 * each[1])


def test_state_loads_into_a_fresh_network():
    """Of LibAUC's MIDAM the state does not load: bags it has not seen have no estimate there."""
    spec = BagSpec(image=SmallCNNSpec(widths=(4,)), pooling="attention")
    one, other = (build_model(spec, in_channels=1, num_outputs=1, seed=seed).eval() for seed in (0, 1))
    torch.nn.init.normal_(one.attention[-1].weight)
    other.load_state_dict(one.state_dict())
    bags = Bags(torch.randn(5, 1, 8, 8), (2, 3), torch.arange(5))
    assert torch.equal(one(bags), other(bags))


def test_the_classifier_is_the_images_and_specs_become_plain_and_back():
    spec = BagSpec(image=SmallCNNSpec(widths=(4,)), pooling="smooth-max", tau=0.5)
    model = build_model(spec, in_channels=1, num_outputs=1, seed=0)
    assert classifier_head(model) is model.image.head
    assert from_plain(to_plain(spec)) == from_plain(to_plain(spec, defaults=False)) == spec
    inside = BagSpec(image=TimmSpec(name="resnet18", pretrained=True))
    assert architecture(inside) == BagSpec(image=TimmSpec(name="resnet18"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "median"}, "pooling must be one of mean"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"attention_width": 0}, "attention_width"),
        ({"image": BagSpec(image=MLPSpec())}, "not another BagSpec"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BagSpec(**{"image": MLPSpec(), **options})


def test_an_empty_bag_is_refused():
    with pytest.raises(ValueError, match="without images"):
        in_grid(drawn(1), (11, 0))
